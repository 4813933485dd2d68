//! Envoy's rate limit services, called by gRPC clients.
#![cfg(feature = "grpc")]

#[path = "../integration/harness/mod.rs"]
mod harness;

mod attack;
mod charges;
mod client;
mod descriptors;
#[cfg(feature = "servers")]
mod holds;
#[cfg(feature = "servers")]
mod holds_random;
#[cfg(feature = "servers")]
mod interop;
mod kuadrant;
mod largest;
mod quota;
mod quota_load;
#[cfg(feature = "servers")]
mod quotas;
mod rights;
mod rls;
#[cfg(feature = "servers")]
mod shared;
mod socket;
mod statsd;
mod xds;
