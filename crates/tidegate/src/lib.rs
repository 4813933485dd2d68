//! Flow control for services: decide whether a piece of work may go ahead now, later, or not at all.
//!
//! * [`Limiter`]: one limit for everything. [`KeyedLimiter`]: one for each key, bounded in memory.
//! * [`Policy`]: which algorithm, with what [`Quota`] and options; [`algorithm`] tells the bound of each.
//! * [`Decision`]: allowed, delayed or denied; how much remains, when to try again, when all is fresh.
//! * [`acquire_all_at`]: several limits in one atomic decision.
//!
//! With the feature `flow`, the module `flow` and the attribute `guard` guard resources: entries, flow rules, circuit
//! breakers, hot parameters, system protection, and the statistics behind them. With the feature `redis` the module of that
//! name shares limits between processes, with `tower` that one limits services as middleware. [`KeyedLimit`] is the trait of
//! limits of both kinds, local or shared.
//!
//! ```
//! use tidegate::{KeyedLimiter, Policy};
//!
//! // 100 requests a minute for each user, in any window of a minute.
//! let per_user = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
//!
//! let decision = per_user.acquire("alice", 1);
//! if let Some(wait) = decision.retry_after() {
//!     println!("too many requests, try again in {wait:?}");
//! } else {
//!     println!("go ahead, {} left", decision.remaining());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "flow")]
pub use tidegate_flow as flow;
pub use tidegate_limiter::*;
#[cfg(feature = "flow")]
pub use tidegate_macros::guard;
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;
#[cfg(feature = "tower")]
pub use tidegate_tower as tower;

/// The README's example, so that it keeps running.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
