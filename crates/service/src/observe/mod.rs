//! Everything that only watches decisions: metrics, history, heavy keys, traces.

pub mod audit;
pub mod heavy;
pub mod history;
pub mod latency;
pub mod metrics;
pub mod once_a_minute;
pub mod reached;
pub mod ticks;
pub mod trace;
pub mod usage;
pub mod what_if;
