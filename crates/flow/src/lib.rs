//! Flow control: a caller enters a resource through a [`Gate`]. The gate counts every call and
//! admits, delays or blocks it according to its rules.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_flow::{BlockKind, Gate, rules::{BreakerRule, FlowRule, IsolationRule, Rules, Trip}};
//!
//! let gate = Gate::new();
//! let breaker = BreakerRule::new("db", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5));
//! let rules = Rules::from(vec![FlowRule::new("db", 1_000)])
//!     .and(vec![IsolationRule::new("db", 1)])
//!     .and(vec![breaker]);
//! gate.load(rules)?;
//!
//! let db = gate.resource("db");
//! let mut guard = gate.enter(&db)?;
//! if let Err(error) = "nan".parse::<i32>() {
//!     guard.fail(&error); // breakers record it
//! }
//! assert_eq!(gate.enter(&db).unwrap_err().kind(), BlockKind::Isolation);
//! drop(guard);
//! assert!(gate.enter(&db).is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Guarantees:
//!
//! - No threshold is exceeded with any number of threads: the gate decides on an entry and counts
//!   it in one step.
//! - A blocked entry consumes nothing from any rule. It is counted as blocked.
//! - A guard exits in `Drop`: after an error, during a panic, and when a future is cancelled.
//! - Entering never blocks a thread to wait. It returns the delay, or [`Entry::enter_async`] sleeps
//!   for it asynchronously.
//! - An entry checks only the rules of its resource. Rules of other resources cost it nothing.
//! - Gates share no state with each other.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
mod call;
mod machine;
pub mod metric_log;
pub mod rules;
pub mod sources;
mod stats;
mod sync;

#[doc(hidden)]
pub use background::Background;
pub use call::{
    breaker::{Breaker, CallError},
    entry::Entry,
    gate::{Gate, GateBuilder},
    guard::{Guard, OwnedGuard},
    resource::Resource,
    table::OVERFLOW,
};
#[doc(hidden)]
pub use machine::cgroup;
pub use machine::{Machine, MachineWatch, sample::Sample};
pub use rules::{
    BreakerState,
    arg::{Arg, Float, ToArg},
    blocked::{BlockKind, BlockReason, Blocked},
};
pub use stats::node::Node;
pub use tidegate_core::Clock;
pub use tidegate_core::clock::{ManualTimer, SystemClock, Timer};
pub use tidegate_core::stats::{Counts, Event, Layout, LayoutError, Slot};
