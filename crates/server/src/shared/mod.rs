//! Limits that are decided in a store which several servers share.
//!
//! ```text
//! Limit ─ Shares ─► tidegate-redis      one limit's part in the store: its policy, and those of overridden keys
//! Service ─ SharedStore                 the store, its readiness, and the buckets of `CL.THROTTLE`
//! HTTP ─ ask ─► Service::decide         RESP ─ Question ─► the same, handed over by the connection's thread
//! ```
//!
//! What needs no store is still decided in the server's own memory, before the store is asked: the deny list and blocks.

mod ask;
mod readiness;
mod shares;
mod store;

pub use ask::Act;
pub(crate) use ask::{Question, Reply};
pub use readiness::Readiness;
pub use shares::Shares;
pub use store::SharedStore;
