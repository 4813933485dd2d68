//! Limits that many processes share, decided in Redis or Valkey.

#![allow(dead_code)]

mod call;
#[cfg(test)]
mod differential;
mod error;
mod plan;
mod script;

pub use error::StoreError;
pub use plan::{Plan, PlanError};
