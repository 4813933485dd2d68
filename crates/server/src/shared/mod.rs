//! Limits that are decided in a store which several servers share. Everything that the server wants of `tidegate-redis` is
//! asked here.
//!
//! ```text
//! Limit ─ StoreLimit ─► tidegate-redis  one limit in the store: its policy, and those of overridden keys
//! Service ─ SharedStore                 the store, its readiness, joint decisions and the buckets of `CL.THROTTLE`
//! RESP ─ Question                       what a connection's thread hands to the async runtime
//! ```

mod limit;
mod question;
mod readiness;
mod store;

pub use limit::StoreLimit;
pub(crate) use question::{Question, Reply};
pub use readiness::Readiness;
pub use store::SharedStore;
