//! Envoy's requests and the answers, independent of the wire format.

use std::borrow::Cow;

use serde_json::{Map, Value};
use tidegate_service::decide::service::{Refusal, check_id};

use super::Override;
use crate::config::{Entry, HOLD_ID, HOLD_REPORT, Unit};

/// One request for a decision.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Which rules apply.
    pub domain: &'a str,
    /// The hits of each descriptor that does not set its own; 0 stands for 1.
    pub hits: u64,
    /// Different descriptions of the request, each of which may match a rule.
    pub descriptors: Vec<Descriptor<'a>>,
    /// The id that makes it safe to repeat.
    pub id: Option<&'a [u8]>,
}

impl Question<'_> {
    /// Refuses a request without a domain or descriptors, or with an id that is none.
    pub(super) fn check(&self) -> Result<(), Unanswered> {
        match (self.domain, &*self.descriptors) {
            ("", _) => Err(Unanswered::NoDomain),
            (_, []) => Err(Unanswered::NoDescriptors),
            _ => self.id.map_or(Ok(()), |id| Ok(check_id(id)?)),
        }
    }
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, in order, without those that rules with holds have for themselves.
    pub entries: Vec<Entry<'a>>,
    /// The hits; 0 looks without taking, and `None` uses the request's value.
    pub hits: Option<u64>,
    /// Whether the hits are refunded instead.
    pub is_refund: bool,
    /// The limit to apply instead of the configuration's, or why it is none.
    pub limit: Option<Result<Override, Unanswered>>,
    /// The request's id for rules with holds.
    pub hold_id: Option<&'a str>,
    /// Whether it reports what a request has used of a rule with holds.
    pub is_report: bool,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with these entries and the hits of its request.
    pub fn new(entries: impl Iterator<Item = Entry<'a>>) -> Self {
        let (mut hold_id, mut is_report) = (None, false);
        let belongs = |&(key, value): &Entry<'a>| {
            match key {
                HOLD_ID => hold_id = Some(value).filter(|id| !id.is_empty()),
                HOLD_REPORT => is_report = true,
                _ => return true,
            }
            false
        };
        let entries = entries.filter(belongs).collect();
        Self {
            entries,
            hits: None,
            is_refund: false,
            limit: None,
            hold_id,
            is_report,
        }
    }
}

/// The answer to Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether Envoy should deny the request.
    pub is_over: bool,
    /// One for each descriptor, in order.
    pub statuses: Vec<Status>,
    /// The metadata of the rules that applied, as texts, or the request's description. If several
    /// rules have the same name, the first wins.
    pub metadata: Map<String, Value>,
    /// Header fields for the response, if enabled.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Header fields for the request, if enabled.
    pub request_headers: Vec<(Cow<'static, str>, String)>,
}

/// The outcome for one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether it is over its limit. Never true in shadow mode.
    pub is_over: bool,
    /// The limit that applied.
    pub limit: Option<Current>,
    /// How much is left; `u32::MAX` for a rule without a limit, 0 if no rule matches.
    pub remaining: u64,
    /// The seconds, rounded up, until the limit admits again (if it is over) or is full again.
    pub reset_after: Option<u64>,
}

impl Status {
    /// Whether the limit does not fit into 32 bits, so that an answer has scaled numbers.
    pub fn is_scaled(&self) -> bool {
        self.scale() > 0
    }

    /// The limit and what remains for a field of 32 bits. If the limit does not fit, both are
    /// divided by the same power of two, so that their ratio stays: a client that computes with it
    /// is off by at most one part in 2^31. What remains is 0 only if nothing does.
    pub fn in_32_bits(&self) -> (u32, u32) {
        let limit = self
            .limit
            .as_ref()
            .map_or(0, |limit| limit.requests_per_unit);
        let scale = self.scale();
        let narrow = |number: u64| u32::try_from(number >> scale).unwrap_or(u32::MAX);
        let remaining = narrow(self.remaining).max(u32::from(self.remaining > 0));
        (narrow(limit), remaining)
    }

    /// The number of bits by which the limit is too wide.
    fn scale(&self) -> u32 {
        let limit = self
            .limit
            .as_ref()
            .map_or(0, |limit| limit.requests_per_unit);
        u32::BITS.saturating_sub(limit.leading_zeros())
    }
}

/// A limit in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// The rule's name, which is often empty.
    pub name: String,
    /// The number of requests.
    pub requests_per_unit: u64,
    /// The unit of time.
    pub unit: Unit,
}

/// Why a request, or one of its descriptors, cannot be decided. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The request names no domain.
    #[error("rate limit domain must not be empty: set `domain` in Envoy's filter")]
    NoDomain,
    /// The request has no descriptor.
    #[error("rate limit descriptor list must not be empty: add `rate_limits` to the route")]
    NoDescriptors,
    /// The request's override is invalid.
    #[error("the limit in the request is invalid: {0}")]
    Override(String),
    /// The request has an id, but cannot be repeated.
    #[error("{what} cannot be repeated: leave out the metadata `tidegate-id`")]
    NotOnce {
        /// A part of the request.
        what: &'static str,
    },
    /// The limits refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
