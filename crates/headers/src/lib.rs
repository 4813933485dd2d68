//! The header fields with which `tidegate-tower` and the server report limits.
//!
//! `RateLimit-Policy: "name";q=100;w=60` describes a limit. `RateLimit: "name";r=99;t=66` says how
//! much the client has left, and in how many seconds the limit is full again. Both are lists, so
//! one response can report several limits. They are those of the IETF draft
//! `draft-ietf-httpapi-ratelimit-headers`, version 10.
//!
//! With the feature `vendors`, `Vendor` has those of providers of language models. With the feature
//! `forwarded`, `Forwarded` reads the addresses that proxies write.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod fields;
#[cfg(feature = "forwarded")]
mod forwarded;
#[cfg(feature = "vendors")]
mod vendor;

#[doc(hidden)]
pub use fields::{FieldText, push_policy, push_state_after};
pub use fields::{Per, ceil_secs, quota, retry_after, write_policy, write_state};
#[cfg(feature = "forwarded")]
pub use forwarded::{Forwarded, NetworkError, Networks};
#[cfg(feature = "vendors")]
pub use vendor::{UnknownVendor, Vendor};
