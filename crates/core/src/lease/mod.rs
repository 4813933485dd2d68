//! Limits shared by nodes and decided in memory.
//!
//! One *authority* owns the exact state of a limit (a server, a Lua script beside the data, a test's `Vec`). Each *node*
//! has a [`Lease`] for it. Both have the same [`Terms`]. Time is an argument on both sides, and the two clocks need not
//! agree on anything but the length of a second.
//!
//! ```
//! use tidegate_core::{Algorithm, Nanos, Policy};
//! use tidegate_core::lease::{Answer, Lease, Terms};
//!
//! let terms = Terms::leased(Policy::sliding_window("10000/1s".parse()?), Terms::SLACK);
//! let mut shared = vec![0; terms.policy().words()]; // the authority's
//! let lease = Lease::new(terms);
//!
//! let mut round_trips = 0;
//! for micros in 0..1_000 {
//!     let now = Nanos::from_micros(5_000 + 10 * micros);
//!     let answer = lease.ask(1, now);
//!     if let Some(request) = answer.request() {
//!         // Over the network, with the authority's clock at the other end.
//!         let grant = terms.serve(&mut shared, Nanos::from_micros(777_000 + 10 * micros), &request);
//!         assert!(lease.granted(request, &grant, now).is_allowed());
//!         round_trips += 1;
//!     }
//! }
//! assert!(round_trips < 20, "a thousand decisions cost {round_trips} round trips");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What each mode promises
//!
//! | mode | promise, for all nodes together | a caller waits for the authority |
//! |---|---|---|
//! | `exact` | the algorithm's own decisions | always, but for a denial that is remembered |
//! | `leased` | whatever is admitted, the algorithm asked at the same moments would have admitted: never over | when there is no piece: a key that is rarely asked for, the first request of a slot or window, near the limit |
//! | `reported` | over by at most nodes × [`unreported`](Terms::unreported) in any window | at its first request, and when that much is out |
//!
//! A *leased* unit is taken from the shared state before it is used. [`Policy::ahead`](crate::Policy::ahead) says
//! for each algorithm why the bound holds at the moment of use all the same, and what that costs. The price is in
//! denials: units that one node holds are denied to the others. A piece is never more than a quarter of what is left, so
//! pieces shrink towards the limit, until each request is decided by the authority; and it is what the node will use in
//! a quarter of the slack, as measured over the whole slack, so a node whose traffic stops holds little, and that not for long.
//! Units of a token bucket that come back are worth less by what has refilled since they were taken. So a node takes them only
//! at a rate that lasts, and keeps them for the whole slack in case they are used.
//!
//! Leased nodes that are 0.2 ms from the authority admit at least 97 % of what one place would admit, with 1 to 16 nodes and a
//! demand of 0.5 to 1.5 times the limit. Where callers come in groups of five at the same moment it is at least 90 %.
//! (`tests/lease_use.rs` measures both.) A round trip that takes a good part of a slot costs more: a piece is only good until its
//! slot ends, and much of that has passed when it arrives.
//!
//! Near the limit, when something has been denied and less came than was wanted, one caller of a node at a time asks the
//! authority; the others are denied until its answer is here, with the time at which it is expected as `retry_after`.
//! Otherwise each of a hot key's callers would wait a round trip to learn the same.
//!
//! A denial is remembered until its time, for each of up to eight costs, in every mode (but for policies that count
//! denials). It may outlive its reason where somebody gives back units meanwhile.
//!
//! *Reported* charges after use. The bound: let `s` be the last moment at which the authority admitted, or showed
//! something to be free that was then used in the window in question. Up to `s` it had charged at most the limit for the
//! window; whatever is used in the window and not charged by `s` was out at some node, and at each node at most
//! `unreported` is, what it may still use included.
//!
//! # When nodes come and go
//!
//! A new node begins with nothing and asks. A node that leaves in order gives back what it holds ([`Lease::close`]),
//! exactly, whoever took what in between ([`Policy::give_back`](crate::Policy::give_back)).
//!
//! A node that dies: *leased*, its piece is lost to the others until the algorithm forgets what was charged (a token
//! bucket refills it, a window ends); that is at most a quarter of what was left at its last request, and usually what it
//! would have used in half a slack (it may have one piece open and one in reserve). Never over. (A `first-hit`
//! window may then have begun with a unit that nobody used. It still admits its limit, and any window twice that; but the
//! algorithm asked at the admissions alone would have begun its windows elsewhere.) *Reported*: what it used
//! since its last report is never charged: at most `unreported` units over, once for each death.
//!
//! An authority that loses its state (a restart without its data, a failover that lost the last writes) may grant again
//! what is still out: over by what all nodes hold, once, and for no longer than the slack.
//!
//! Requests and grants may be lost, late, or in any order, but must not be repeated: each is one step of the authority's.

mod demand;
mod handle;
mod message;
mod piece;
mod refusals;
mod state;
mod sync;
mod terms;

pub use handle::{Lease, Taken};
pub use message::{Answer, GiveBack, Grant, Request};
pub use terms::{Mode, Terms};
