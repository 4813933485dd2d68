//! wip
pub mod rules;
pub mod service;
