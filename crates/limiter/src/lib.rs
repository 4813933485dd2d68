//! Rate limiters: each combines a policy, its state and a clock.
//!
//! * [`Limiter`] limits all requests together; [`KeyedLimiter`] limits each key separately.
//! * [`acquire_all_at`] decides over several limiters in one atomic step: all admit, or none is
//!   charged.
//! * A limiter reads its [`Clock`]. [`at`](KeyedLimiter::at) is the limiter at a given time: a
//!   [`KeyedAt`], [`LimiterAt`] or [`FairAt`] has each operation. Functions on several limiters take
//!   the time as an argument (`…_at`).
//! * [`KeyedLimit`] is the trait of keyed limits, in this process or in a shared store. Middleware
//!   accepts it.
//! * [`Limiter::wait`] and [`KeyedLimiter::wait`] wait for admission, by [`Priority`] and first come first served within one, on
//!   any async runtime; [`wait_all`] waits for several limits together.
//! * [`FairLimiter`] is one limit that tenants share by weight, with guarantees and ceilings.
//! * [`Reservation`] takes an estimate before the work, and corrects it when the true cost is
//!   known.
//!
//! ```
//! # // Users import the crate `tidegate`, which exports this one and so cannot be a dependency of its examples.
//! # use tidegate_limiter as tidegate;
//! use tidegate::{KeyedLimiter, Policy};
//!
//! let logins = KeyedLimiter::new(Policy::sliding_log("5/10m".parse()?)?)?;
//! let decision = logins.acquire("alice", 1);
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod eras;
mod fair;
mod joint;
mod keyed;
mod limit;
mod limiter;
mod marks;
mod permit;
pub mod repeats;
mod reserve;
mod reserve_all;
mod sync;
mod table;
mod version;
mod wait;
mod wait_all;

pub use crate::table::{BuildError, Forgotten, Full, HashKeys, RecordSpot, Stats, WhenFull};
pub use block::Until;
pub use fair::{
    FairAt, FairBuildError, FairBuilder, FairLimiter, FairTenants, Joined, TenantEntry,
    TenantPermit, TenantsAt, TotalStep,
};
pub use joint::{
    AllDecision, AnyDecision, Request, acquire_all, acquire_all_at, acquire_all_estimates_at,
    acquire_any, acquire_any_at, deny_all_at,
};
pub use keyed::{
    Change, KeyedAt, KeyedBuilder, KeyedLimiter, OverrideError, SnapshotEntry, Sweeping,
    TooManyExceptions,
};
pub use limit::KeyedLimit;
pub use limiter::{Limiter, LimiterAt};
pub use permit::{OwnedPermit, Permit};
pub use reserve::{Estimates, Reservation};
pub use reserve_all::{ReserveAll, ReserveAllError};
pub use tidegate_core::clock::{CoarseClock, ManualTimer, SystemClock, Timer};
pub use tidegate_core::fair::{FairError, Terms, TermsError};
pub use tidegate_core::{
    Admission, Algorithm, AlgorithmSpec, Clock, Debt, Decision, DenialReason, Denied, Estimate,
    Key, Lasts, MAX_LIMIT, MAX_WINDOW, ManualClock, Nanos, Outcome, ParsePolicyError,
    ParseQuotaError, Penalty, Policy, PolicyError, Priority, PriorityError, Quota, QuotaError,
    Share, Spans, Standing, algorithm,
};
#[cfg(feature = "calendar")]
pub use tidegate_core::{Calendar, Period};
pub use wait::{WaitError, WaitUntil};
pub use wait_all::{WaitAllError, wait_all, wait_all_estimates, wait_all_estimates_by};
