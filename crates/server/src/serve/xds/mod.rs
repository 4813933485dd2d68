//! Control planes that send the configuration of Envoy's rate limit service, as Envoy Gateway does
//! (xDS, state of the world).
//!
//! ```text
//! client ─ an answer with all domains ─► messages ─► Discovered ─► Reload ─ in force ─► ACK
//!                                                                        └─ refused ──► NACK, and the rules of before stay
//! ```

#[cfg(feature = "grpc")]
mod client;
#[cfg(feature = "grpc")]
mod messages;
mod source;

#[cfg(feature = "grpc")]
pub(super) use client::Client;
pub use source::{XdsSource, XdsSourceError};
