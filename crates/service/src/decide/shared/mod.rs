//! Limits that are decided in a store which several servers share. This module contains the
//! server's use of `tidegate-redis`.
//!
//! ```text
//! Limit ─ StoreLimit ─► tidegate-redis  one limit in the store: its policy, and those of overridden keys
//! Service ─ SharedStore                 the store, joint decisions and the buckets of `CL.THROTTLE`
//! ```

mod limit;
pub(super) mod metrics;
mod store;
mod thread;

pub use limit::StoreLimit;
pub use store::SharedStore;
