//! One limit that tenants share: each gets its weight's part, and nothing stays idle.

mod limiter;
mod notes;
mod permit;
mod snapshot;
mod tenants;

pub use limiter::{FairBuilder, FairLimiter};
pub use permit::TenantPermit;
pub use snapshot::TenantEntry;
pub use tenants::{FairBuildError, FairTenants, Joined, TotalStep};
