//! The header fields that report limits in responses.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use tidegate_headers::{FieldText, ceil_secs, push_state_after, retry_after};
use tidegate_limiter::Timer;

use crate::{
    header_decision::{HeaderDecision, value},
    options::{LayerOptions, LimitSource},
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The header fields of a response, ready to be added to it.
pub(crate) struct Fields {
    policy: HeaderValue,
    state: HeaderValue,
    /// Boxed: few layers have them, and a response's future is moved and boxed by its server.
    old: Option<Box<OldFields>>,
    #[cfg(feature = "vendors")]
    vendor: Vec<(HeaderName, HeaderValue)>,
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
struct OldFields {
    limit: u64,
    remaining: u64,
    reset: Option<u64>,
}

impl<C: Timer + 'static> LayerOptions<C> {
    /// The fields for these answers; `None` without answers.
    pub(crate) fn fields(&self, decided: &[HeaderDecision<C>]) -> Option<Fields> {
        if decided.is_empty() {
            return None;
        }
        let mut states = FieldText::new();
        for decided in decided {
            let start = self.rules[decided.rule].name.start();
            push_state_after(&mut states, start.as_bytes(), &decided.decision);
        }
        let policy = match decided {
            [decided] => self.policy_text(decided),
            several => {
                let mut policies = FieldText::new();
                for decided in several {
                    policies.push_entry(self.policy_text(decided).as_bytes());
                }
                value(&policies)
            }
        };
        let old = if self.old_headers {
            OldFields::new(decided).map(Box::new)
        } else {
            None
        };
        #[cfg(feature = "vendors")]
        let vendor = self.vendor.map(|vendor| {
            let limits = decided
                .iter()
                .map(|decided| (self.rules[decided.rule].name.as_str(), &decided.decision));
            vendor.fields(limits, self.time.now())
        });
        Some(Fields {
            policy,
            state: value(&states),
            old,
            #[cfg(feature = "vendors")]
            vendor: vendor.unwrap_or_default(),
        })
    }

    fn policy_text(&self, decided: &HeaderDecision<C>) -> HeaderValue {
        let rule = &self.rules[decided.rule];
        match (&decided.chosen, &rule.source) {
            (Some(limit), _) | (None, LimitSource::Fixed(limit)) => {
                rule.last_text.of(rule.name.as_str(), decided, limit)
            }
            // The answer of such a rule always has the chosen limit.
            (None, LimitSource::ByRequest(_)) => HeaderValue::from_static(""),
        }
    }
}

impl Fields {
    /// Adds the fields. Fields of other layers stay.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        headers.append(POLICY, self.policy);
        headers.append(STATE, self.state);
        #[cfg(feature = "vendors")]
        headers.extend(self.vendor);
        if let Some(old) = self.old {
            let OldFields {
                limit,
                remaining,
                reset,
            } = *old;
            headers.insert(LIMIT, limit.into());
            headers.insert(REMAINING, remaining.into());
            if let Some(reset) = reset {
                headers.insert(RESET, reset.into());
            }
        }
    }
}

impl OldFields {
    /// The fields for the limit with the least left.
    fn new<C>(decided: &[HeaderDecision<C>]) -> Option<Self> {
        let bound = decided.iter().max_by_key(|decided| {
            let decision = &decided.decision;
            (decision.severity(), std::cmp::Reverse(decision.remaining()))
        });
        let HeaderDecision { decision, .. } = bound?;
        let reset =
            (decision.reset_after_nanos() != u64::MAX).then(|| ceil_secs(decision.reset_after()));
        Some(Self {
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset,
        })
    }
}

/// Adds `Retry-After` unless it is already set.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers
        .entry(RETRY_AFTER)
        .or_insert_with(|| retry_after(wait).into());
}
