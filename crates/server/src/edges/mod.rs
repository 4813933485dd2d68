//! One module for each protocol: it parses a request, asks the service, and prints the answer.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
pub mod http;
pub mod resp;
pub(crate) mod sentinel;
pub(crate) mod spoe;
