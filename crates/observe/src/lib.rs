//! Everything that only watches decisions: metrics, history, heavy keys, traces, the ledger of usage;
//! and what these share: files that grow by lines (`files`), places that tenants share (`shares`),
//! durations, counts and commands as people read them (`shown`).
//!
//! An internal crate of `tidegate serve`, without a promise of stability.

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

pub mod audit;
pub mod files;
pub mod heavy;
pub mod history;
pub mod latency;
pub mod metrics;
pub mod once_a_minute;
pub mod reached;
pub mod shares;
pub mod shown;
pub mod ticks;
pub mod trace;
pub mod usage;
pub mod what_if;
