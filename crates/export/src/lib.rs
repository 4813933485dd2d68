//! Sends what is known about decisions to other systems: metrics, traces and logs to a collector of
//! OpenTelemetry, the counters of envoyproxy/ratelimit to `StatsD`, events to a webhook.
//! Each is a feature; without it, only its address or a type without values is here.
//!
//! An internal crate of `tidegate serve`, without a promise of stability. `tidegate-server` exports
//! what programs that embed the server need.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

#[cfg(feature = "agent")]
mod agent;
pub mod statsd;
#[cfg(feature = "otlp")]
pub mod telemetry;
#[cfg(not(feature = "otlp"))]
#[path = "telemetry/off.rs"]
pub mod telemetry;
#[cfg(feature = "webhook")]
pub mod webhook;
