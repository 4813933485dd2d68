//! Limits that many processes share, decided in Redis or Valkey (6.2 and newer): one server, a master with replicas behind
//! sentinels, or a cluster.
//!
//! ```no_run
//! use tidegate_core::Policy;
//! use tidegate_redis::{OnError, Store};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::open("redis://localhost")?;
//! let logins = store.limit("logins", Policy::sliding_log("5/10m".parse()?)?).on_error(OnError::Closed).build()?;
//! if logins.acquire("alice", 1).await.is_denied() {
//!     // tell alice to come back later
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What holds, and what it rests on
//!
//! * A decision and its effect are one step: a script, which Redis runs alone. Requests of callers at the same time share a
//!   call. Several limits are decided in one step by [`Store::decide_all`].
//! * The time is Redis's own `TIME`, in microseconds; the nodes' clocks do not matter. Should it go backwards it counts as
//!   standing still.
//! * Each script is held to the algorithm in `tidegate-core` by tests that take the same random steps through both. What
//!   the scripts could not represent exactly is refused when the limit is built ([`PlanError`]).
//! * A denial writes nothing, and is remembered here until its time: asking again costs no round trip.
//! * **Never over**, as far as Redis keeps what it has written. Redis replicates after it has answered: a failover to a
//!   replica that has not seen the last writes yet admits those once more, as does a restart without (or behind) an
//!   append-only file, a `FLUSHALL`, or an eviction (`maxmemory-policy` should be `noeviction`, or `volatile-ttl` if limits
//!   may be forgotten under pressure). Nothing else does.
//! * A change of a limit's numbers keeps what was used; a change of its windows, slots or algorithm starts afresh, under
//!   other keys.
//!
//! # When the store does not answer
//!
//! A decision has a deadline ([`LimitBuilder::deadline`]). A failure that leaves no doubt (nobody listens, loading, a
//! read-only replica), or five others in a row, open a breaker: from then on every decision is made at once by the limit's
//! [`OnError`], and one caller at a time tries the store, after pauses that grow from 25 ms to 2 s, each with its share of
//! chance. In a cluster each 128 slots have a breaker of their own. [`Stats`] counts all of it; a line is logged when the
//! store goes and when it comes back.
//!
//! A request that timed out may still be charged. That errs on the safe side, as does asking again after a connection broke.
//!
//! # In Redis
//!
//! A key is `prefix:name:shape:key`, its value a string of 7 to 15 bytes (sliding window: 7 and 1, 2 or 4 a slot; logs: 8
//! bytes an entry, at most 12 while they grow). Every key expires by itself when its limit is as good as new. In a cluster
//! the keys of one joint decision need a common hash tag: `{tenant}:user`.

mod address;
mod breaker;
mod call;
mod denials;
#[cfg(test)]
mod differential;
mod error;
mod joint;
mod keyed;
mod lane;
mod limit;
mod link;
mod local;
mod nodes;
mod permit;
mod plan;
mod script;
mod slot;
mod stats;
mod store;

pub use address::Address;
pub use error::StoreError;
pub use joint::Request;
pub use keyed::Part;
pub use limit::{LimitBuilder, LimitError, Mode, OnError, SharedDecision, SharedLimit, Source};
pub use permit::Permit;
pub use plan::{Plan, PlanError};
pub use stats::Stats;
pub use store::{Health, Store};
