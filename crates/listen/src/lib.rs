//! The listeners: sockets that accept connections within bounds, over TLS, from clients whose
//! credentials allow it. Nothing here asks a limit or speaks a protocol.
//!
//! An internal crate of `tidegate serve`, without a promise of stability. `tidegate-server` exports
//! what programs that embed the server need.

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

pub mod access;
pub mod connections;
pub mod credentials;
pub mod descriptors;
pub mod drain;
pub mod idle;
pub mod pages;
pub mod peers;
pub mod security;
pub mod sleepers;
pub mod socket;
pub mod strangers;
pub mod tls;
