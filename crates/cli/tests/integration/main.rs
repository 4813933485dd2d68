//! The promises of the command, with the real program.

mod beginners;
mod certificates;
mod check;
mod client;
#[cfg(all(feature = "otlp", feature = "grpc"))]
mod collector;
mod commands;
mod envoy;
mod import;
mod metrics;
mod program;
mod ratelimit;
mod readme;
mod secure;
mod sentinel;
mod serve;
mod simulate;
mod supervised;
#[cfg(all(feature = "otlp", feature = "grpc"))]
mod telemetry;
mod terminal;
mod top;
mod usage;
