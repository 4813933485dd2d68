//! Flow control for services: decide whether a piece of work may proceed now, later, or not at all.
//!
//! # Limit each user
//!
//! ```
//! use tidegate::{KeyedLimiter, Policy};
//!
//! // 100 requests a minute for each user, in any window of a minute.
//! let per_user = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
//!
//! let decision = per_user.check("alice");
//! if let Some(wait) = decision.retry_after() {
//!     println!("too many requests, try again in {wait:?}");
//! } else {
//!     println!("go ahead, {} left", decision.remaining());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limiter`] is a single limit. A [`KeyedLimiter`] is one limit for each key, with bounded
//! memory. A [`Policy`] selects the algorithm with its [`Quota`] and options; [`algorithm`]
//! documents the bound of each algorithm. [`acquire_all`] decides over several limits in one atomic
//! step: either all admit or none is charged.
//!
//! # Wait instead of being denied
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Limiter, Policy, Quota};
//!
//! # futures::executor::block_on(async {
//! let pace = Limiter::new(Policy::token_bucket(Quota::per_second(1_000)));
//! match pace.wait_for(1, Duration::from_secs(2)).await {
//!     Ok(_) => println!("our turn"),
//!     Err(late) => println!("{late}"),
//! }
//! # });
//! ```
//!
//! Waiting is first come, first served, and works with any async runtime. [`wait_all`] waits for
//! several limits together, and [`Limiter::wait_blocking`] blocks a thread. A caller that does not
//! wait is denied as long as others wait.
//!
//! # Limit concurrency
//!
//! ```
//! use tidegate::{KeyedLimiter, Policy};
//!
//! let downloads = KeyedLimiter::new(Policy::concurrency(2))?;
//! if let Ok(permit) = downloads.permit("alice", 1) {
//!     // Dropping the permit releases it.
//!     drop(permit);
//! }
//! # Ok::<(), tidegate::BuildError>(())
//! ```
//!
//! # Test with a manual clock
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{KeyedLimiter, ManualTimer, Nanos, Policy, Quota};
//!
//! let timer = ManualTimer::new(Nanos::from_secs(1_000));
//! let logins = KeyedLimiter::builder(Policy::fixed_window(Quota::per_minute(1))).clock(timer.clone()).build()?;
//! assert!(logins.check("alice").is_allowed());
//! assert!(logins.check("alice").is_denied());
//! timer.advance(Duration::from_mins(1));
//! assert!(logins.check("alice").is_allowed());
//! # Ok::<(), tidegate::BuildError>(())
//! ```
//!
//! # Optional features
//!
//! | feature | what it adds |
//! |---|---|
//! | `flow` | the module `flow` and the attribute `guard`: entries, flow rules, circuit breakers, hot parameters, system protection |
//! | `redis-source` | `flow`, and rules read from a Redis key |
//! | `sentinel` | `flow`, and `flow::sentinel`: heartbeats to a Sentinel dashboard, and its commands |
//! | `http-source` | `flow`, and rules read from a key of Consul, etcd, Nacos or Apollo |
//! | `redis` | the module `redis`: limits shared by several processes |
//! | `serde` | policies and quotas as text, such as `token-bucket 10/1s` |
//! | `tower` | the module `middleware`: limits as middleware for axum, tonic and hyper. With `flow` and `redis`, also gates and shared limits |
//! | `grpc` | middleware with gRPC responses for gRPC calls |
//! | `reqwest` | the same middleware for reqwest clients |
//!
//! The trait [`KeyedLimit`] covers local and shared limits.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use tidegate_limiter::{
    Admission, Algorithm, AlgorithmSpec, AllDecision, AnyDecision, BuildError, Change, Clock,
    CoarseClock, Debt, Decision, DenialReason, Denied, Estimate, Estimates, FairAt, FairBuildError,
    FairBuilder, FairError, FairLimiter, FairTenants, Forgotten, Full, HashKeys, Joined, Key,
    KeyedAt, KeyedBuilder, KeyedLimit, KeyedLimiter, Lasts, Limiter, LimiterAt, MAX_LIMIT,
    MAX_WINDOW, ManualClock, ManualTimer, Nanos, Outcome, OverrideError, OwnedPermit,
    ParsePolicyError, ParseQuotaError, Penalty, Permit, Policy, PolicyError, Priority,
    PriorityError, Quota, QuotaError, RecordSpot, Request, Reservation, ReserveAll,
    ReserveAllError, Share, SnapshotEntry, Spans, Standing, Stats, Sweeping, SystemClock,
    TenantEntry, TenantPermit, TenantsAt, Terms, TermsError, Timer, TooManyExceptions, TotalStep,
    Until, WaitAllError, WaitError, WaitUntil, WhenFull, acquire_all, acquire_all_at,
    acquire_all_estimates_at, acquire_any, acquire_any_at, algorithm, deny_all_at, wait_all,
    wait_all_estimates,
};
#[cfg(feature = "calendar")]
pub use tidegate_limiter::{Calendar, Period};
#[cfg(feature = "flow")]
pub use tidegate_macros::guard;
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;
#[cfg(feature = "tower")]
pub use tidegate_tower as middleware;

/// Flow control by resource: see [`tidegate_flow`].
#[cfg(feature = "flow")]
pub mod flow {
    pub use tidegate_flow::*;
    #[cfg(feature = "report")]
    pub use tidegate_flow_net::report;
    #[cfg(feature = "sentinel")]
    pub use tidegate_flow_net::sentinel;

    /// Sources of rules outside code: see [`tidegate_flow::sources`].
    pub mod sources {
        pub use tidegate_flow::sources::*;
        #[cfg(feature = "http-source")]
        pub use tidegate_flow_net::sources::HttpSource;
        #[cfg(feature = "redis-source")]
        pub use tidegate_flow_net::sources::RedisSource;
    }
}

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmePage;

/// Runs the book's examples as tests.
#[cfg(all(doctest, feature = "flow", feature = "tower"))]
#[doc = include_str!("../book/migrate.md")]
struct MigratePage;

#[cfg(all(
    doctest,
    feature = "flow",
    feature = "redis",
    feature = "reqwest",
    feature = "tower"
))]
#[doc = include_str!("../book/library.md")]
struct LibraryPage;

#[cfg(all(doctest, feature = "report"))]
#[doc = include_str!("../book/flow.md")]
struct FlowPage;

#[cfg(all(doctest, feature = "sentinel"))]
#[doc = include_str!("../book/sentinel.md")]
struct SentinelPage;

#[cfg(all(doctest, feature = "json"))]
#[doc = include_str!("../book/charge.md")]
struct ChargePage;
