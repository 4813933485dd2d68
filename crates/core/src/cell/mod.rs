//! Cells: where one state lives while many threads decide on it.
//!
//! [`StateCell`] holds the state of one limiter. A state of one word is decided by compare-and-swap and never waits
//! for another thread; a wider one is decided under a [`Lock`] that is held for the few nanoseconds of one decision.
//! Several cells can be locked together for one decision over all of them.

mod backoff;
mod lock;
mod state_cell;

pub use backoff::Backoff;
pub use lock::{LOCKED, Lock};
pub use state_cell::{StateCell, StateGuard};
