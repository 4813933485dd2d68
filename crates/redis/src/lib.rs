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
//! # Modes
//!
//! | mode | promise, over all nodes | a decision costs | when nodes come and go |
//! |---|---|---|---|
//! | [`Exact`](Mode::Exact) | the algorithm's own decisions | a round trip, shared with callers at the same time; none for a denial that is remembered | nothing changes |
//! | [`Leased`](Mode::Leased) | never over: whatever is admitted, the algorithm asked at that moment would have admitted | nothing but memory while an allotment lasts; a round trip for keys that are rarely asked for, and near the limit | one that leaves gives back; one that dies takes its allotments (each at most a quarter of what was left) with it until the algorithm forgets them |
//! | [`Reported`](Mode::Reported) | over by at most nodes × [`unreported`](LimitBuilder::unreported) in any window | the same, and a round trip when that much is out | one that dies has not reported at most that much, once for each death |
//!
//! The price of a lease is in denials: what one node holds is denied to the others, for at most the
//! [slack](LimitBuilder::slack). An allotment is what the node will use in a quarter of that, as measured, and at most a quarter of
//! what is left; so allotments shrink towards the limit until every request is decided by the store. What a quiet node holds
//! comes back by itself within about half the slack, or of a token bucket after the slack. `tidegate simulate --nodes` shows what a mode costs a workload.
//!
//! Leaky buckets and permits hand out moments and places, which cannot be kept: they are always exact, as are leased token
//! buckets of less than 16 or to which not even one token flows in the slack. [`SharedLimit::mode`] tells the mode that came
//! out. Several limits in one decision ([`Store::acquire_all`]) are decided in memory where this node holds enough of each,
//! all or nothing, and else by the store. While nodes of one limit differ in mode or slack (during a change of
//! configuration), leased sliding logs and token buckets may be over by what is used in the slack.
//!
//! A request of a lease goes on when its caller gives up: what it brings is for others, too. Units are given back once,
//! however often a call is repeated: a call that gives back is not sent a second time, and in a cluster, whose client repeats
//! calls by itself, it has a key by which the script refuses the second one. [`Store::close`] gives everything back at the
//! end of a program.
//!
//! # What holds, and what it rests on
//!
//! * A decision and its effect are one step: a script, which Redis runs alone. Requests of callers at the same time share a
//!   call. Several limits are decided in one step by [`Store::acquire_all`].
//! * The time is Redis's own `TIME`, in microseconds; the nodes' clocks do not matter. Should it go backwards it counts as
//!   standing still.
//! * Each script is held to the algorithm in `tidegate-core` by tests that take the same random steps through both. What
//!   the scripts could not represent exactly is refused when the limit is built ([`PlanError`]).
//! * A denial writes nothing, and is remembered here until its time: asking again costs no round trip.
//! * [`SharedLimit::refund`] gives back, of exact limits and permits; once, however often a call is repeated.
//! * **Never over**, as far as Redis keeps what it has written. Redis replicates after it has answered: a failover to a
//!   replica that has not seen the last writes yet admits those once more, as does a restart without (or behind) an
//!   append-only file, a `FLUSHALL`, an eviction (`maxmemory-policy` should be `noeviction`, or `volatile-ttl` if limits may
//!   be forgotten under pressure), or a step forward of the server's clock, to which a new master's clock that is ahead
//!   of the old one's is the same. What [`OnError`] admits meanwhile comes on top.
//!   Leases are no exception: what was forgotten is granted once more, and what nodes held of it is used up to its end.
//! * A change of a limit's numbers keeps what was used: windows their counts, logs and permits their times, buckets (to the
//!   microsecond) the time until they are as good as new. A change of a window, of slots or of the algorithm starts afresh,
//!   under other keys; but a log's times stay whatever its window.
//!
//! # When the store does not answer
//!
//! A decision has a deadline ([`LimitBuilder::deadline`]). A failure that is the whole store's (nobody listens, loading, a
//! read-only replica, memory full) opens a breaker at once; any other calls for a sign of life, a small write, which opens it
//! when it is refused, or has no answer three times in a row. While it is open every decision is made at once by the limit's
//! [`OnError`], and nobody waits: one task goes on giving signs of life, after pauses that grow from 25 ms to 2 s, each with its
//! share of chance, and the first that succeeds lets everybody in again. It may take as long as the shortest of the limits'
//! deadlines (at least 50 ms, at most 1 s): limits that can wait longer than others share the others' store only while it is
//! quick enough for all. In a cluster each 128 slots have a breaker of their own.
//!
//! [`Stats`] counts all of it. A line is logged when the store goes and when it comes back, and one a minute for each other kind
//! of error, never with a key.
//!
//! What a node holds by a lease it may use until its end, store or no store; only then does [`OnError`] decide.
//!
//! A request that timed out may still be charged. That errs on the safe side, as does asking again after a connection broke.
//!
//! # In Redis
//!
//! A key is `prefix:name:shape:key`, its value a string of 7 to 13 bytes (sliding counter above 65,535: 15; sliding window: 7, and 1, 2 or 4 for each slot, for
//! the one that is leaving, and for the sum; logs: 8 bytes an entry, above 128 entries up to 12; permits: 8 and 16 each). Every
//! key expires by itself within six seconds of its limit being as good as new. In a cluster the keys of one joint decision need
//! a common hash tag: `{tenant}:user`.
//!
//! A user of an ACL needs the keys that begin with the prefix, and these commands: `~tidegate:* +eval +evalsha +time +get +mget
//! +set +getrange +setrange +strlen +pexpire +pexpireat +del +zadd +zremrangebyscore +zcard`; in a cluster also what tells the
//! client where the slots are. A key or a command that is missing fails the limits that need it and no other; but one who may
//! not give signs of life (`PEXPIRE` and the last three) has no store.

mod ad_hoc;
mod batch;
mod connection;
mod deadline;
#[cfg(all(test, feature = "servers"))]
mod differential;
mod error;
mod health;
mod lease;
mod limit;
mod script;
mod stats;
mod store;

pub use ad_hoc::AdHoc;
pub use connection::Address;
pub use deadline::{Deadline, Timeout};
pub use error::StoreError;
pub use health::Health;
pub use limit::{LimitBuilder, LimitError, Mode, OnError, Part, Permit, SharedDecision, SharedLimit, Source};
pub use script::{Plan, PlanError};
pub use stats::Stats;
pub use store::{Gathering, Store};
