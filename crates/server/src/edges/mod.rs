//! One module for each protocol: it parses a request, asks the service, and prints the answer.

pub mod http;
pub(crate) mod spoe;
