//! Accepting connections: within bounds, over TLS, from clients whose credentials allow it.

pub mod access;
pub(crate) mod connections;
pub(crate) mod descriptors;
pub(crate) mod idle;
pub(crate) mod peers;
pub(crate) mod security;
pub(crate) mod socket;
pub(crate) mod strangers;
pub(crate) mod tls;
