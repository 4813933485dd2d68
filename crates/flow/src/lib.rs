//! Flow control: a caller enters a resource through a [`Gate`]. The gate counts every call and admits, delays or blocks
//! it according to its rules.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_flow::{BlockKind, Gate, rules::{BreakerRule, FlowRule, IsolationRule, Rules, Trip}};
//!
//! let gate = Gate::new();
//! gate.load(Rules {
//!     flow: vec![FlowRule::new("db", 1_000)],
//!     isolation: vec![IsolationRule::new("db", 1)],
//!     breakers: vec![BreakerRule::new("db", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5))],
//!     ..Rules::default()
//! })?;
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
//! - No threshold is exceeded with any number of threads: the gate decides on an entry and counts it in one step.
//! - A blocked entry consumes nothing from any rule. It is counted as blocked.
//! - A guard exits in `Drop`: after an error, during a panic, and when a future is cancelled.
//! - Entering never blocks a thread to wait. It returns the delay, or [`Entry::enter_async`] sleeps for it
//!   asynchronously.
//! - An entry checks only the rules of its resource. Rules of other resources cost it nothing.
//! - Gates share no state with each other.

mod admit;
#[cfg(any(feature = "http-source", feature = "report"))]
mod agent;
mod arg;
mod background;
mod blocked;
mod borrowed;
mod bounds;
mod breaker;
#[doc(hidden)]
pub mod cgroup;
mod compile;
mod compiled;
mod enter;
mod entry;
mod failure;
mod gate;
mod gate_state;
mod guard;
mod leave;
mod machine;
pub mod metric_log;
mod named_nodes;
mod node;
mod pass;
#[cfg(feature = "report")]
pub mod report;
mod resource;
pub mod rules;
mod sample;
#[cfg(all(feature = "sentinel", not(loom)))]
pub mod sentinel;
mod signals;
pub mod sources;
mod state;
mod sync;
mod table;
mod timer;
mod value_table;

pub use arg::{Arg, Float, ToArg};
pub use blocked::{BlockKind, BlockReason, Blocked};
pub use breaker::{Breaker, CallError};
pub use entry::Entry;
pub use gate::{Gate, GateBuilder};
pub use guard::{Guard, OwnedGuard};
pub use machine::{Machine, MachineWatch};
pub use node::Node;
pub use resource::Resource;
pub use rules::BreakerState;
pub use sample::Sample;
pub use table::OVERFLOW;
pub use tidegate_core::Clock;
pub use tidegate_core::clock::{ManualTimer, SystemClock, Timer};
pub use tidegate_core::stats::{Counts, Event, Layout, LayoutError, Slot};
