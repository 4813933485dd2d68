//! Limits that nodes share and decide in memory.
//!
//! One *authority* owns the exact state of a limit (a server, a Lua script next to the data, a
//! test's `Vec`). Each *node* has a [`Lease`] for the limit. Both have the same [`Terms`]. Time is
//! an argument on both sides. The two clocks may differ in everything but the length of a second.
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
//! | `exact` | the algorithm's own decisions | always, except for a remembered denial |
//! | `leased` | never over: the nodes admit only what the algorithm, asked at the same moments, would have admitted | if the node holds no units: a rarely used key, the first request of a slot or window, near the limit |
//! | `reported` | over by at most nodes × [`unreported`](Terms::unreported) in any window | at the node's first request, and when it has that much unreported |
//!
//! *Leased*: a node takes a batch of units, an *allotment*, from the shared state before it uses
//! them. [`Policy::ahead`](crate::Policy::ahead) explains for each algorithm why the bound holds at
//! the time of use, and what that costs. The price is denials: units that one node holds are denied
//! to the others. An allotment is at most a quarter of what is left, so allotments shrink towards
//! the limit until the authority decides each request. An allotment is also no more than the node
//! will use in a quarter of the slack, as measured over the whole slack, so a node whose traffic
//! stops holds few units, and only for a short time. A key with few but steady requests (one to 64
//! in a slack) and plenty of room takes what it will use in a whole slack, and
//! [`returning`](Lease::returning) renews it before it ends: then requests for many keys can share
//! a call, and callers rarely wait. Units of a token bucket lose value while they are held, because
//! the bucket goes on refilling. A node therefore takes them only at a steady rate, and keeps them
//! for the whole slack in case they are used. Leased nodes that are 0.2 ms from the authority admit
//! at least 97 % of what one place would admit, with 1 to 16 nodes and a demand of 0.5 to 1.5 times
//! the limit. If callers come in groups of five at the same moment, they admit at least 90 %.
//! (`tests/lease_use.rs` measures both.) A round trip that takes a large part of a slot costs more:
//! an allotment expires when its slot ends, and much of the slot has passed when the allotment
//! arrives.
//!
//! Near the limit (something was denied, and the node got fewer units than it wanted), only one
//! caller of a node at a time asks the authority. The others are denied until its answer arrives,
//! and their `retry_after` is the time at which it is expected. Otherwise each caller of a hot key
//! would wait a round trip for the same answer.
//!
//! In every mode, a node remembers a denial until its retry time, for each of up to eight costs
//! (except for policies that count denials). A remembered denial becomes out of date if other
//! callers return units.
//!
//! *Reported* charges units after use. The bound: let `s` be the last time at which the authority
//! admitted a request, or showed units to be free that were then used in the window in question. Up
//! to `s` it had charged at most the limit for the window. All units that are used in the window
//! and not charged by `s` were held by some node, and each node holds at most `unreported`,
//! including what it may still use.
//!
//! # When nodes come and go
//!
//! A new node starts with nothing and asks the authority. A node that shuts down returns exactly
//! what it holds ([`Lease::close`]), also if others took units in between
//! ([`Policy::give_back`](crate::Policy::give_back)).
//!
//! If a *leased* node dies, its allotment is lost to the others until the algorithm forgets what
//! was charged (a token bucket refills it, a window ends). That is at most a quarter of what was
//! left at its last request, and usually what it would have used in half a slack (it may have one
//! allotment open and one in reserve). The limit is never exceeded. (A `first-hit` window may then
//! have begun with a unit that was never used. It still admits its limit, and any window at most
//! twice that, but the algorithm asked only at the admissions would have begun its windows at other
//! times.) If a *reported* node dies, what it used since its last report is never charged: at most
//! `unreported` units over, once for each death.
//!
//! An authority that loses its state (a restart without its data, a failover that lost the last
//! writes) may grant units again that nodes still hold. The limit is then exceeded by what all
//! nodes hold, once, and for no longer than the slack.
//!
//! Requests and grants may be lost, delayed or reordered, but must not be repeated: each is one
//! step of the authority.

mod allotment;
mod demand;
mod handle;
mod message;
mod refusals;
mod state;
mod sync;
mod terms;

pub use handle::{Lease, Taken};
pub use message::{Answer, GiveBack, Grant, Request};
pub use terms::{Mode, Terms};
