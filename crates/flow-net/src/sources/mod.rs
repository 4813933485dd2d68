//! Sources of rules that a gate follows over the network: see [`Gate::follow`].
//!
//! [`Gate::follow`]: tidegate_flow::Gate::follow

#[cfg(feature = "http-source")]
mod http;
#[cfg(feature = "redis-source")]
mod redis;

#[cfg(feature = "http-source")]
pub use http::HttpSource;
#[cfg(feature = "redis-source")]
pub use redis::RedisSource;

use tidegate_flow::sources::{RuleUpdate, SourceError};

/// The parser of a source's text.
type Parse = Box<dyn Fn(&str) -> Result<RuleUpdate, SourceError> + Send>;
