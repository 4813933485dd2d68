//! The service behind every listener of the server: rules, limits, decisions, and what is observed
//! of them. It knows no socket and no protocol.
//!
//! An internal crate of `tidegate serve`, without a promise of stability. `tidegate-server` exports
//! what programs that embed the server need.
//!
//! | module | what it does |
//! |---|---|
//! | `flow` | reports of programs that link `tidegate::flow`, and the rules for them |
//! | `decide` | the service, its limits in memory and in the store, what a refusal means, what is counted |
//! | `observe` | the crate `tidegate-observe`: metrics, history, heavy keys, traces, the ledger of usage |
//! | `rules` | the crate `tidegate-rules`: parses, checks and replaces the rules file |
//!
//! A module imports only modules below it (`scripts/layers.py` checks it).

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

pub mod decide;
pub mod digest;
pub mod flow;

pub use tidegate_observe::{self as observe, files, shares, shown};
pub use tidegate_rules as rules;
