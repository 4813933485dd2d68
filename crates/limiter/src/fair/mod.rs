//! One limit that tenants share: each gets its weight's part, and nothing stays idle.

mod at;
mod limiter;
mod notes;
mod permit;
mod snapshot;
mod tenants;

pub use at::FairAt;
pub use limiter::{FairBuilder, FairLimiter};
pub use permit::TenantPermit;
pub use snapshot::TenantEntry;
pub use tenants::{FairBuildError, FairTenants, Joined, TenantsAt, TotalStep};
