//! Shared limits, as callers use them.

mod answer;
mod any;
mod ask;
mod bound;
mod builder;
mod changes;
mod estimate;
mod joint;
mod local;
mod many;
mod on_error;
mod once;
mod permit;
mod reserve;
mod shared;
mod tenants;
mod up_to;
mod wait;

pub use answer::{SharedDecision, Source};
pub use any::AnyOf;
pub use ask::Ask;
pub use builder::{LimitBuilder, LimitError};
pub use estimate::SharedEstimate;
pub use joint::{JointRequest, Part, decide_joint_seen};
pub use on_error::OnError;
pub use once::Once;
pub use permit::SharedPermit;
pub use reserve::{Corrected, Correction, FoundBy, Reserved};
pub use shared::SharedLimit;
pub use tenants::TenantOf;
pub use wait::{LimitNow, Lines, Queued, SharedGrant, Tried, WaitFor};
