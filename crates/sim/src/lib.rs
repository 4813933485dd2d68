//! Replays traffic through Tidegate's limit algorithms, to show who would have been denied and how
//! exact each algorithm is.
//!
//! A [`Workload`] (a log that was [read](input::read), or [synthetic traffic](workload::Synthetic))
//! is [replayed](replay()) through [trials](Trial). A trial is a quota with the algorithms to try
//! on it. Time is that of the requests: no code here reads a clock, and the same input gives the
//! same findings.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use tidegate_sim::{AlgorithmSpec, Progress, Trial, replay};
//! use tidegate_sim::workload::{Synthetic, Traffic};
//!
//! let traffic = Traffic { sources: 100, requests: 10_000, ..Traffic::default() };
//! let trial = Trial::new("50/1m".parse()?, &AlgorithmSpec::parse_list("sliding-log,fixed-window")?)?;
//! let findings = replay(&Synthetic::new(traffic)?, &[trial], NonZeroUsize::MIN, &Progress::default());
//! let [log, fixed] = findings[0].rows.as_slice() else { unreachable!() };
//! assert!(log.worst_window <= 50 && fixed.worst_window <= 100);
//! assert_eq!(log.admitted + log.denied, 10_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![allow(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the command is the caller"
)]

pub mod input;
pub mod report;
pub mod workload;

mod algorithm;
mod escape;
mod fleet;
mod live;
mod numbers;
mod progress;
mod replay;
mod suggest;

pub use algorithm::{AlgorithmSpec, SpecError};
pub use fleet::{Fleet, Load, Sharing};
pub use live::{Live, LiveCounts, LiveLimit};
pub use progress::{Progress, Stage};
pub use replay::{
    Delays, DeniedKey, Estimate, Findings, HeatMap, Row, SharesFindings, SharesTrial,
    TenantFindings, Timeline, Trial, TrialError, heat_map, replay, replay_shares,
};
pub use suggest::{
    CurvePoint, Goal, ParseShareError, Recommendation, Share, SuggestError, Suggestion, Survey,
    curve, limits_around, recommend, suggest_all,
};
pub use tidegate_core::lease::Mode;
pub use workload::Workload;
