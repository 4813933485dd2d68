//! Envoy's rate limit service: the configuration format of envoyproxy/ratelimit, the rules for a request's descriptors, and
//! the answers.
//!
//! ```text
//! files ─ load ─ parse ─► Domains (tree of descriptors) + limits (as a rules file has them)
//! request ─ Domains::find ─► Match { rule, key } ─ DescriptorService ─► the one decision path of the server
//! ```
//!
//! A descriptor with a `rate_limit` becomes a normal limit. The tree only decides which limit a descriptor asks and under
//! which key: the values that the configuration leaves open, each with its length, so that different lists of values never
//! share a key.

pub(crate) mod counts;
pub(crate) mod decide;
pub(crate) mod descriptors;
mod import;
pub(crate) mod load;
mod names;
pub(crate) mod overrides;
mod parse;
mod question;
mod tree;
mod unit;

pub use decide::{AnswerFields, Consume, DescriptorService, Modes};
pub use import::to_yaml;
pub use load::{Config, is_config, load};
pub use overrides::Override;
pub use parse::{File, parse};
pub use question::{Answer, Current, Descriptor, Question, Status, Unanswered};
pub use tree::{Charge, Domain, Domains, Entry, Match, Rule};
pub use unit::Unit;
