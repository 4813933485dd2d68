//! Flow control: resources are entered through a [`Gate`], which counts every call and lets it through, delays it or
//! blocks it, as the rules say.
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
//!     guard.fail(&error); // the breaker hears of it
//! }
//! assert_eq!(gate.enter(&db).unwrap_err().kind(), BlockKind::Isolation);
//! drop(guard);
//! assert!(gate.enter(&db).is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it promises:
//!
//! - However many threads enter, no threshold is ever passed: an entry is decided on and counted in one step.
//! - An entry that is blocked has taken nothing of any rule; it is counted as blocked.
//! - A guard leaves by `Drop`: after an error, in a panic, when a future is cancelled.
//! - No call blocks a thread to wait; a delay is returned, or slept out by [`Entry::enter_async`].
//! - An entry pays for the rules of its resource, not for those of others.
//! - Gates share nothing with each other.

mod admit;
mod arg;
mod background;
mod blocked;
mod borrowed;
mod cgroup;
mod compile;
mod compiled;
mod enter;
mod entry;
mod failure;
mod gate;
mod guard;
mod leave;
mod machine;
pub mod metric_log;
mod named_nodes;
mod node;
mod pass;
mod resource;
pub mod rules;
mod sample;
mod shared;
pub mod sources;
mod state;
mod sync;
mod table;
mod timer;
mod value_table;

pub use arg::{Arg, Float, ToArg};
pub use blocked::{BlockKind, Blocked};
pub use entry::Entry;
pub use gate::{Gate, GateBuilder};
pub use guard::{Guard, OwnedGuard};
pub use machine::{Machine, MachineWatch};
pub use node::Node;
pub use resource::Resource;
pub use rules::BreakerState;
pub use sample::Sample;
pub use table::OVERFLOW;
pub use tidegate_core::clock::{ManualTimer, SystemClock, Timer};
pub use tidegate_core::stats::{Counts, Event, Layout, Slot};
