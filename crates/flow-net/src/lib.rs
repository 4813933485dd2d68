//! Connects a [`Gate`](tidegate_flow::Gate) with other programs: [`sources`] of rules in a store or a
//! configuration service, the [`report`] of its resources to `tidegate serve`, and the heartbeats and
//! commands of [`sentinel`]'s dashboard. Each is a feature; none is on by default.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "agent")]
mod agent;
#[cfg(any(feature = "report", feature = "sentinel"))]
mod host;
#[cfg(feature = "report")]
pub mod report;
#[cfg(feature = "sentinel")]
pub mod sentinel;
#[cfg(any(feature = "http-source", feature = "redis-source"))]
pub mod sources;
