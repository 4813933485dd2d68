//! Alibaba Sentinel's side of the server.
//!
//! An internal crate of `tidegate serve`, without a promise of stability. `tidegate-server` exports
//! what programs that embed the server need.
//!
//! | module | what it does |
//! |---|---|
//! | `token_server` | grants tokens to Sentinel's cluster clients |
//! | `programs` | takes heartbeats of programs, asks them for their metrics, pushes rules to them |
//! | `cluster` | reads cluster rules in Sentinel's JSON |

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

pub mod cluster;
pub mod programs;
pub mod stats;
pub mod token_server;
