//! Requests as entries of a `tidegate-flow` gate.

mod call;
mod layer;
mod service;

#[cfg(feature = "reqwest")]
pub(crate) use call::{Entered, Stopped};
pub use layer::{GateBuilder, GateLayer};
pub use service::Gated;
