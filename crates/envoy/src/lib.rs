//! Envoy's rate limit services.
//!
//! An internal crate of `tidegate serve`, without a promise of stability. `tidegate-server` exports
//! what programs that embed the server need.
//!
//! | module | what it does |
//! |---|---|
//! | `grpc` | the services over gRPC, also Kuadrant's (feature `grpc`) |
//! | `xds` | control planes that send configurations (feature `grpc`, except for their addresses) |
//! | `descriptors` | decides on the descriptors of a request, also for `POST /json` over HTTP |
//! | `pb` | the messages and services of the files in `proto` (feature `grpc`) |
//! | `config` | reads configurations of envoyproxy/ratelimit into a tree of descriptors |
//!
//! A module imports only modules below it (`scripts/layers.py` checks it).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

pub mod config;
pub mod descriptors;
#[cfg(feature = "grpc")]
pub mod grpc;
// Written by the program in `proto` at the root of the checkout.
#[cfg(feature = "grpc")]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, rustdoc::all, reason = "it is generated")]
pub mod pb;
pub mod xds;
