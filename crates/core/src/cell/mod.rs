//! Cells: one state each, on which many threads decide.
//!
//! [`StateCell`] holds the state of one limiter. A decision on a one-word state is a
//! compare-and-swap and never waits for another thread. A decision on a wider state holds a
//! [`Lock`] for a few nanoseconds. Several cells can be locked together for one decision over all
//! of them.

mod backoff;
mod lock;
mod state_cell;

pub use backoff::Backoff;
pub use lock::{LOCKED, Lock};
pub use state_cell::{StateCell, StateGuard};
