//! The scripts with which limits are decided in Redis or Valkey, and the connection that runs them.
//!
//! An internal crate of `tidegate-redis`, which exports what its users need, without a promise of
//! stability.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "tidegate-redis is the caller"
)]

pub mod connection;
mod error;
pub mod script;
pub mod stats;
pub mod sync;

pub use error::StoreError;
