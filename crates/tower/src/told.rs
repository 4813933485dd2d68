//! The header fields that report limits in responses.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use tidegate_core::{Decision, Policy};

use crate::headers::{Line, Per, ceil_secs, push_policy, push_state, quota};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Which responses report the state of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tell {
    /// All responses.
    #[default]
    Always,
    /// Only refusals.
    Denials,
    /// No response. Refusals still have `Retry-After`.
    Never,
}

/// The name of a limit in headers: printable ASCII. Quotes, backslashes and all other characters become `_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Makes a name, replacing characters that headers do not allow.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let taken = |c: char| (' '..='~').contains(&c) && c != '"' && c != '\\';
        Self(name.chars().map(|c| if taken(c) { c } else { '_' }).collect())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A limit's decision, for the headers.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) rule: usize,
    pub(crate) decision: Decision,
    pub(crate) policy: Policy,
}

/// The `RateLimit-Policy` of a policy. It is formatted once, because a policy rarely changes.
pub(crate) struct PolicyText {
    policy: Policy,
    quota: u64,
    text: HeaderValue,
}

impl PolicyText {
    fn new(name: &str, policy: Policy) -> Self {
        let (quota, per) = quota(&policy);
        let mut text = Line::new();
        push_policy(&mut text, name, quota, per);
        Self { policy, quota, text: value(&text) }
    }

    /// Whether this is the text for the policy and the quota. A key with an override has another quota.
    fn is_of(&self, told: &Told) -> bool {
        self.quota == told.decision.limit() && self.policy == told.policy
    }
}

/// The text that was formatted last.
#[derive(Default)]
pub(crate) struct LastText(ArcSwapOption<PolicyText>);

impl LastText {
    /// The text for this answer; most often the one that was formatted last.
    fn of(&self, name: &str, told: &Told) -> HeaderValue {
        if let Some(last) = &*self.0.load()
            && last.is_of(told)
        {
            return last.text.clone();
        }
        let new = PolicyText::new(name, told.policy);
        if new.is_of(told) {
            let text = new.text.clone();
            self.0.store(Some(Arc::new(new)));
            return text;
        }
        let mut text = Line::new();
        // The key has an override, whose window is not known here.
        push_policy(&mut text, name, told.decision.limit(), Per::Time);
        value(&text)
    }
}

/// The header fields of a response, ready to be added to it.
pub(crate) struct Fields {
    policy: HeaderValue,
    state: HeaderValue,
    old: Option<OldFields>,
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
struct OldFields {
    limit: u64,
    remaining: u64,
    reset: Option<u64>,
}

impl Fields {
    /// The fields for these answers. `rule` returns the name of a limit and the cached text of its policy. `None` if there are no answers.
    pub(crate) fn new<'n>(
        told: &[Told],
        rule: impl Fn(usize) -> (&'n str, &'n LastText),
        with_old: bool,
    ) -> Option<Self> {
        let mut states = Line::new();
        for told in told {
            push_state(&mut states, rule(told.rule).0, &told.decision);
        }
        let policy = match told {
            [] => return None,
            [told] => {
                let (name, last) = rule(told.rule);
                last.of(name, told)
            }
            several => {
                let mut policies = Line::new();
                for told in several {
                    let (name, last) = rule(told.rule);
                    policies.push_entry(last.of(name, told).as_bytes());
                }
                value(&policies)
            }
        };
        let old = if with_old { OldFields::new(told) } else { None };
        Some(Self { policy, state: value(&states), old })
    }

    /// Adds the fields. Fields of other layers stay.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        headers.append(POLICY, self.policy);
        headers.append(STATE, self.state);
        if let Some(OldFields { limit, remaining, reset }) = self.old {
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
    fn new(told: &[Told]) -> Option<Self> {
        let bound = told.iter().max_by_key(|told| {
            let decision = &told.decision;
            (decision.severity(), std::cmp::Reverse(decision.remaining()))
        });
        let Told { decision, .. } = bound?;
        let reset = (decision.reset_after_nanos() != u64::MAX).then(|| ceil_secs(decision.reset_after()));
        Some(Self { limit: decision.limit(), remaining: decision.remaining(), reset })
    }
}

/// Names are printable, so the value is always valid.
fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Adds `Retry-After` unless it is already set.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.entry(RETRY_AFTER).or_insert_with(|| ceil_secs(wait).into());
}
