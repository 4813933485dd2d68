//! The configuration of Envoy's rate limit service, in the format of envoyproxy/ratelimit.
//!
//! ```text
//! files ─ load ─ parse ─► Domains (tree of descriptors) + limits (as a rules file has them)
//! request ─ Domains::find ─► Match { rule, key } ─► decide::descriptors
//! ```
//!
//! A descriptor with a `rate_limit` becomes a normal limit. The tree only decides which limit a
//! descriptor asks and under which key: the values that the configuration leaves open, each with
//! its length, so that different lists of values never share a key.

mod hold;
mod import;
pub mod load;
pub mod names;
mod parse;
mod tree;
mod unit;

pub use hold::{Estimate, HOLD_ID, HOLD_REPORT, Hold};
pub use import::to_yaml;
pub(crate) use load::by_calendar;
pub use load::{Config, is_config, load};
pub use parse::{File, parse};
pub use tree::{Charge, Domain, Domains, Entry, Match, Rule};
pub use unit::Unit;
