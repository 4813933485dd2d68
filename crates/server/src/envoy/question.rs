//! What Envoy asks, and what it is told: free of any wire format.

use std::fmt;

use super::{Entry, Override, Unit};
use crate::refusal::Refusal;

/// One request for a decision.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Which rules are meant.
    pub domain: &'a str,
    /// How much each descriptor takes that does not say so itself; 0 stands for 1.
    pub hits: u32,
    /// What the request is, seen from several sides. Each may lead to a rule.
    pub descriptors: Vec<Descriptor<'a>>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, in order.
    pub entries: Vec<Entry<'a>>,
    /// How much it takes; 0 looks without taking, `None` is what the request says.
    pub hits: Option<u64>,
    /// Whether the hits are given back instead.
    pub is_refund: bool,
    /// The limit to hold it to, in place of the configuration's.
    pub limit: Option<Override>,
}

/// What Envoy is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request is to be denied.
    pub is_over: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<Status>,
    /// What the rules that applied say for whoever reads the metadata. Where several have the same name, the first rule counts.
    pub metadata: Vec<(String, String)>,
    /// Header fields for the response, where they are wanted.
    pub headers: Vec<(&'static str, String)>,
}

/// What became of one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether it is over its limit. Shadow mode never is.
    pub is_over: bool,
    /// The limit that applied.
    pub limit: Option<Current>,
    /// How much is left; `u32::MAX` for a rule without a limit, 0 for no rule at all.
    pub remaining: u32,
    /// The seconds, rounded up, until the limit has room again (where it is over) or is as good as new.
    pub reset_after: Option<u64>,
}

/// A limit, as answers name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// The rule's name; often empty.
    pub name: String,
    /// How many requests.
    pub requests_per_unit: u32,
    /// In how long.
    pub unit: Unit,
}

/// Why there is no answer. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unanswered {
    /// The request names no domain.
    NoDomain,
    /// The request has no descriptor.
    NoDescriptors,
    /// A descriptor asks for more hits than any limit could admit.
    TooManyHits {
        /// How many.
        hits: u64,
    },
    /// There are more different overrides than can be kept.
    TooManyOverrides {
        /// How many are kept.
        most: usize,
    },
    /// The request's own limit cannot be used.
    Override(String),
    /// The limits cannot be asked.
    Refused(Refusal),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDomain => f.write_str("rate limit domain must not be empty: set `domain` in Envoy's filter"),
            Self::NoDescriptors => {
                f.write_str("rate limit descriptor list must not be empty: add `rate_limits` to the route")
            }
            Self::TooManyHits { hits } => {
                write!(f, "hits_addend is {hits}; it must be at most {}", u32::MAX)
            }
            Self::TooManyOverrides { most } => write!(
                f,
                "requests brought along more than {most} different limits: use fewer, or put them into the configuration"
            ),
            Self::Override(why) => write!(f, "the limit that the request brought along cannot be used: {why}"),
            Self::Refused(Refusal::Scattered) => f.write_str(
                "the limits of this request are on different nodes of the store's cluster, so no one step can decide on all \
                 of them: start with --envoy-consume each",
            ),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for Unanswered {}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
