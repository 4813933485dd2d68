//! The way of a request from its limit's name to a decision. Every edge enters through [`service`].

pub mod counts;
pub mod descriptors;
pub mod limits;
pub(crate) mod metrics;
pub(crate) mod observers;
pub(crate) mod occupancy;
pub(crate) mod refusal;
pub mod reservations;
pub mod service;
pub mod shared;
pub(crate) mod thresholds;
pub mod throttle;
