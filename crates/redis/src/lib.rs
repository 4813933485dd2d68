//! Limits that many processes share, decided in Redis or Valkey 6.2 or newer: one server, a master
//! with replicas behind sentinels, or a cluster.
//!
//! ```no_run
//! use tidegate_core::Policy;
//! use tidegate_redis::{OnError, Store};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::open("redis://localhost")?;
//! let logins = store.limit("logins", Policy::sliding_log("5/10m".parse()?)?).on_error(OnError::Closed).build()?;
//! if logins.acquire("alice", 1).await.is_denied() {
//!     // ask alice to come back later
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modes
//!
//! | mode | guarantee over all nodes | cost of a decision | nodes that come and go |
//! |---|---|---|---|
//! | [`Exact`](Mode::Exact) | the algorithm's own decisions | a round trip, shared with concurrent callers; none for a remembered denial | nothing changes |
//! | [`Leased`](Mode::Leased) | never over: the algorithm would have admitted every admitted request at its time | no round trip while an allotment lasts; a round trip for rarely used keys, and near the limit | a node that leaves gives back its allotments; the allotments of a node that dies (each at most a quarter of what was left) stay charged until the algorithm forgets them |
//! | [`Reported`](Mode::Reported) | over by at most nodes × [`unreported`](LimitBuilder::unreported) in any window | the same, and a round trip when that much is unreported | each node that dies leaves at most that much unreported |
//!
//! Leases cost additional denials: units that one node holds are denied to the others, for at most
//! the [slack](LimitBuilder::slack). An allotment is the node's measured demand for a quarter of
//! the slack, and at most a quarter of what is left. So allotments shrink near the limit until the
//! store decides every request. An idle node gives its units back within about half the slack, or
//! within the slack for a token bucket. `tidegate simulate --nodes` shows what each mode costs for
//! a workload.
//!
//! Leaky buckets and permits cannot be leased, because they assign moments and places. They are
//! always exact, and so are leased token buckets with a burst below 16 or a rate below one token
//! per slack, policies that block keys for denials, because the store counts each denial, and limits with a
//! [line](LimitBuilder::line). Reported limits that [tenants](LimitBuilder::tenants) share are exact; leased
//! ones take units ahead for each tenant, within its share.
//! [`SharedLimit::mode`] returns the mode in force. Several limits in one decision
//! ([`Store::acquire_all`]) are decided in memory, all or nothing, if this node holds enough of
//! each, otherwise by the store. While nodes use different modes or slacks for one limit (during a
//! change of configuration), leased sliding logs and token buckets may be over by the use within
//! the slack.
//!
//! A lease request continues when its caller gives up, because its grant serves other callers, too.
//! Units are given back only once: a call that gives back is not repeated, and in a cluster, whose
//! client repeats calls on its own, an extra key lets the script refuse the second one. At the end
//! of a program, [`Store::close`] gives everything back.
//!
//! # Guarantees and their conditions
//!
//! * A decision and its effect are one step: a script, which Redis runs alone. Concurrent requests
//!   share a call. [`Store::acquire_all`] decides several limits in one step.
//! * The time is Redis's own `TIME`, in microseconds, so the nodes' clocks do not matter. If it
//!   goes backwards, it counts as standing still. If it goes backwards by more than a second (for
//!   example because it was an hour ahead for a moment), units that were used in its future count
//!   from now on, so each key recovers within a window. Until the clock has caught up, a bucket
//!   owes at most its capacity, so a [charge](SharedLimit::charge) beyond that is forgiven. A
//!   difference of more than a second between the store's clock and this machine's is logged, and
//!   [`Stats`] shows it.
//! * Tests run each script and its algorithm in `tidegate-core` through the same random steps and
//!   compare them. A limit that the scripts cannot represent exactly is refused when it is built
//!   ([`PlanError`]).
//! * A denial writes nothing, unless the policy has a [`Penalty`](tidegate_core::Penalty): its
//!   decisions are joint ones, each a call, and blocks have separate keys. This node remembers it until the wait is over, for a second at most,
//!   so retries cost few round trips, and what another node refunds is noticed within that second.
//! * [`SharedLimit::refund`] refunds only once, however often a call is repeated. A refund or a
//!   [reset](SharedLimit::reset) of a leased or reported limit makes every node give back or drop
//!   what it holds for the key, within a second.
//! * [Orders](Store::order) about single keys (blocks, overrides) are kept in the store and known
//!   to every node within a second.
//! * **Never over**, as long as Redis keeps what it has written. Redis replicates after it replies.
//!   So these events admit the lost writes again: a failover to a replica that has not seen the
//!   last writes, a restart without an append-only file (or with one that lags behind), a
//!   `FLUSHALL`, and an eviction (`maxmemory-policy` should be
//!   `noeviction`: any other admits the units of evicted keys again). A forward step of the server's clock has the
//!   same effect, for example after a failover to a master whose clock is ahead. Requests that
//!   [`OnError`] admits come on top. This holds for leases, too: forgotten units are granted again,
//!   and nodes still use up the allotments that they hold.
//! * A change of a limit's numbers keeps its use, as
//!   [`Policy::transfer`](tidegate_core::Policy::transfer) does in memory: windows keep their
//!   counts, logs and permits their times, token buckets the units that they owe, and leaky buckets
//!   the start times that they gave out. A token bucket's value includes the rule that wrote it,
//!   and the key's next request by another rule converts it. A change of the window, the slots or
//!   the algorithm starts from zero under new keys. A log, however, keeps its times when its window
//!   changes.
//!
//! # When the store is down
//!
//! Each decision has a deadline ([`LimitBuilder::deadline`]). A failure of the whole store
//! (connection refused, loading, a read-only replica, memory full) opens a breaker at once. Any
//! other failure triggers a heartbeat, a small write. The breaker opens if the heartbeat is
//! refused, or gets no reply three times in a row. While the breaker is open, the limit's
//! [`OnError`] makes every decision immediately, and no caller waits. One task continues to send
//! heartbeats, with randomized pauses that grow from 25 ms to 400 ms, and the first success closes
//! the breaker. The time limit of a heartbeat follows the measured distance (three round trips and
//! 20 ms, at least 50 ms, at most 1 s) and doubles with each that gets no reply. The limits'
//! deadlines have no part in it: a limit whose deadline is shorter than a round trip fails alone.
//! In a cluster, each group of 128 slots has its own breaker.
//!
//! [`Stats`] counts all of this. One line is logged when the store goes down and one when it comes
//! back. Each other kind of error is logged at most once a minute, never with a key.
//!
//! A node may use up its allotments even while the store is down. [`OnError`] decides only after
//! that.
//!
//! A request that timed out may still be charged, and so may one that is repeated after a
//! connection broke. Both err on the safe side.
//!
//! # In Redis
//!
//! A key is `prefix:name:shape:key`. Its value is a string of 7 to 13 bytes (a token bucket: 18,
//! or 32 if its interval is not a whole number of microseconds; a sliding counter above 65,535: 15;
//! a sliding window: 7 bytes plus 1, 2 or 4 for each slot, for the slot that is leaving, and for
//! the sum; a log: 8 bytes per entry, above 128 entries up to 12; permits: 8 bytes plus 16 each).
//! Every key expires within six seconds after its limit has fully recovered. The [line](SharedLimit::wait) at a
//! key is a sorted set, `prefix:name:q:key`, in which each request that waits takes 130 bytes; it expires five
//! seconds after the last call of those who wait. The last answer to each of them, `prefix:turn:number`, is kept for a minute.
//! A limit that [tenants](LimitBuilder::tenants) share has one key, `prefix:name:shape:`. A string
//! of 88 bytes, `prefix:name:o:`, is about all tenants, and one of 72 bytes about each of them:
//! `prefix:name:h:tenant` (in a cluster the digest of its name). They expire 20 and 4 seconds after
//! the tenant's last request, or as many windows, if those are longer.
//!
//! In a cluster, the keys of one joint decision need a common hash tag: `{tenant}:user`. A
//! reservation is a hash, `prefix:reserved:id`, until its end and as long again; the open ones are
//! in the sorted set `prefix:reserved:`.
//!
//! An ACL user needs access to the keys with the prefix, and these commands:
//! `~tidegate:* +eval +evalsha +time +get +mget +set +getrange +setrange +strlen +pexpire +pexpireat +del +zadd +zremrangebyscore +zcard +zrange +hget +hmget +hset +hdel +hlen +zrem`.
//! In a cluster it also needs `+cluster|slots`, and `+asking` while slots move. A missing key or
//! command fails only what needs it: `ZRANGE` only lists nodes, and the last six only serve orders
//! about keys. But a user that may not send heartbeats (`PEXPIRE`, `ZADD`, `ZREMRANGEBYSCORE`,
//! `ZCARD`) cannot use the store at all.

mod ad_hoc;
mod batch;
mod deadline;
mod denials;
mod health;
mod lease;
mod limit;
mod name;
mod orders;
mod rules;
mod store;

pub use ad_hoc::AdHoc;
pub use batch::Gathering;
pub use connection::Address;
pub use deadline::{Deadline, Timeout};
pub use health::{Health, SeenNode};
pub use limit::{
    AnyOf, Corrected, Correction, FoundBy, LimitBuilder, LimitError, LimitNow, OnError, Once, Part,
    Queued, Reserved, SharedDecision, SharedEstimate, SharedGrant, SharedLimit, SharedPermit,
    Source, TenantOf, Tried, WaitFor,
};
pub use orders::{GivenOrder, LimitOrders, Order, OrderKind};
pub use rules::DifferingRule;
pub use script::{Plan, PlanError, ShareSeen};
pub use stats::Stats;
pub use store::Store;
pub use tidegate_core::lease::Mode;
pub use tidegate_redis_script::StoreError;
use tidegate_redis_script::{connection, script, stats, sync};

/// The parts that the differential tests run.
#[cfg(feature = "servers")]
#[doc(hidden)]
pub mod internals {
    pub use crate::script::{Script, Scripts, TEST_TIME, call};
}
