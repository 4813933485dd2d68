//! Control planes that send the configuration of Envoy's rate limit service, as Envoy Gateway does
//! (xDS, state of the world).
//!
//! ```text
//! client ─ the newest answer ─► count ─► messages ─► Discovered ─► Reload ─ in force ─► ACK
//!                                                                        └─ refused ──► NACK, and the rules of before stay
//! ```

#[cfg(feature = "grpc")]
mod client;
#[cfg(feature = "grpc")]
mod count;
mod discovered;
#[cfg(feature = "grpc")]
mod error;
#[cfg(feature = "grpc")]
mod messages;
mod source;
#[cfg(feature = "grpc")]
mod stats;

#[cfg(feature = "grpc")]
pub use client::Client;
pub use discovered::Discovered;
#[cfg(feature = "grpc")]
pub use error::ResourceError;
#[cfg(feature = "grpc")]
pub use messages::read_resource;
pub use source::{XdsSource, XdsSourceError};
#[cfg(feature = "grpc")]
pub use stats::{ControlPlanes, XdsStats};
