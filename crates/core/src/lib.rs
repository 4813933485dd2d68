//! The core of Tidegate: each limit algorithm, defined once, as a pure function of
//! `(state, now, cost)`.
//!
//! Nothing here reads a clock, allocates, logs or waits. A state is a few 64-bit words that its
//! owner stores (a [`cell`], the keyed table, a shared store). An [`Algorithm`] reads and writes
//! those words and returns a [`Decision`]. The words are plain numbers, so the same definition
//! serves a single cell, millions of keys, a snapshot file and a shared store.
//!
//! ```
//! use tidegate_core::{Algorithm, Nanos, Policy, Quota};
//!
//! let policy = Policy::sliding_log("2/1s".parse()?)?;
//! let mut state = [0; 3]; // fresh states are all zero
//! assert_eq!(state.len(), policy.words());
//! assert!(policy.decide(&mut state, Nanos::from_millis(0), 1).is_allowed());
//! assert!(policy.decide(&mut state, Nanos::from_millis(999), 1).is_allowed());
//! let denied = policy.decide(&mut state, Nanos::from_millis(999), 1);
//! assert_eq!(denied.retry_after(), Some(core::time::Duration::from_millis(1)));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(any(feature = "std", loom)), no_std)]

extern crate alloc;

pub mod algorithm;
mod calendar;
pub mod cell;
#[cfg(feature = "std")]
pub mod clock;
mod debt;
mod decision;
pub mod fair;
mod key;
#[cfg(feature = "std")]
pub mod lease;
mod parameters;
mod period;
mod policy;
mod policy_error;
mod priority;
mod quota;
mod spec;
pub mod stats;
mod sync;
mod time;
mod visible;

pub use algorithm::{Algorithm, StoredState};
pub use calendar::Calendar;
pub use debt::{Debt, Lasts, Share};
pub use decision::{Admission, Decision, DenialReason, Denied, Outcome, Standing};
pub use key::{Key, address_key};
pub use parameters::Parameters;
pub use period::Period;
pub use policy::{Estimate, Holds, Penalty, Policy, Spans};
pub use policy_error::PolicyError;
pub use priority::{Priority, PriorityError};
pub(crate) use quota::MOST_USED;
pub use quota::{
    MAX_LIMIT, MAX_WINDOW, ParseQuotaError, Quota, QuotaError, parse_duration, parse_units,
};
pub use spec::{AlgorithmSpec, Known, ParsePolicyError, Value, Wants};
pub use time::{Clock, ManualClock, Nanos, write_duration};
pub use visible::{Visible, is_visible};
