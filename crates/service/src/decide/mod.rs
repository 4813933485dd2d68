//! The way of a request from its limit's name to a decision. Every edge enters through [`service`].

pub mod counts;
pub mod limits;
pub mod metrics;
pub mod observers;
pub mod occupancy;
pub mod refusal;
pub mod reservations;
pub mod service;
pub mod shared;
pub mod thresholds;
pub mod throttle;
pub mod waits;
