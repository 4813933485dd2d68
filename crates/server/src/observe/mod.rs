//! Everything that only watches decisions: metrics, history, heavy keys, traces, telemetry.

#[cfg(feature = "webhook")]
mod agent;
pub mod audit;
pub mod heavy;
pub mod history;
pub(crate) mod latency;
pub(crate) mod metrics;
pub(crate) mod once_a_minute;
pub(crate) mod statsd;
#[cfg(feature = "otlp")]
pub mod telemetry;
#[cfg(not(feature = "otlp"))]
#[path = "telemetry/off.rs"]
pub mod telemetry;
pub(crate) mod ticks;
pub mod trace;
pub mod usage;
pub(crate) mod webhook;
pub mod what_if;
