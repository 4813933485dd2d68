//! The header fields that report limits in responses.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use tidegate_core::{Decision, Policy};
use tidegate_limiter::Timer;

use crate::{
    headers::{Line, Per, ceil_secs, push_policy, push_state, quota},
    layer::{Options, Source},
    limit::Limit,
};

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
pub(crate) struct Told<C> {
    pub(crate) rule: usize,
    pub(crate) decision: Decision,
    /// The limit, if the rule chose it for this request.
    pub(crate) chosen: Option<Limit<C>>,
}

/// The `RateLimit-Policy` of a policy. It is formatted once, because a policy rarely changes.
pub(crate) struct PolicyText {
    /// The version of the rule's own limit that had this policy.
    version: Option<u64>,
    policy: Policy,
    quota: u64,
    text: HeaderValue,
}

impl PolicyText {
    fn new(name: &str, version: Option<u64>, policy: Policy) -> Self {
        let (quota, per) = quota(&policy);
        let mut text = Line::new();
        push_policy(&mut text, name, quota, per);
        Self { version, policy, quota, text: value(&text) }
    }
}

/// The text of the first policy, and the one that was formatted last. Reading the first one writes nothing.
#[derive(Default)]
pub(crate) struct LastText {
    first: OnceLock<PolicyText>,
    last: ArcSwapOption<PolicyText>,
}

impl LastText {
    /// The text for this answer; most often the one that was formatted last.
    fn of<C: Timer + 'static>(&self, name: &str, told: &Told<C>, limit: &Limit<C>) -> HeaderValue {
        // A limit that was chosen for one request has versions of its own.
        let version = if told.chosen.is_none() { limit.policy_version() } else { None };
        // A key with an override has another quota than its limit.
        let quota = told.decision.limit();
        let is_current = |text: &&PolicyText| match version {
            Some(_) => text.version == version,
            None => text.policy == limit.policy(),
        };
        let last;
        let text = match self.first.get().filter(is_current) {
            None => {
                last = self.last.load();
                last.as_deref().filter(is_current)
            }
            first => first,
        };
        match text {
            Some(text) if text.quota == quota => return text.text.clone(),
            Some(_) => {}
            None => {
                // The policy is read after its version: if it changes in between, the text is formatted once more.
                let new = PolicyText::new(name, version, limit.policy());
                let text = (new.quota == quota).then(|| new.text.clone());
                if let Err(new) = self.first.set(new) {
                    self.last.store(Some(Arc::new(new)));
                }
                if let Some(text) = text {
                    return text;
                }
            }
        }
        // The window of an override is not known here.
        let mut text = Line::new();
        push_policy(&mut text, name, quota, Per::Time);
        value(&text)
    }
}

/// The header fields of a response, ready to be added to it.
pub(crate) struct Fields {
    policy: HeaderValue,
    state: HeaderValue,
    /// Boxed: few layers have them, and a response's future is moved and boxed by its server.
    old: Option<Box<OldFields>>,
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
struct OldFields {
    limit: u64,
    remaining: u64,
    reset: Option<u64>,
}

impl<C: Timer + 'static> Options<C> {
    /// The fields for these answers, or `None` if there are no answers.
    pub(crate) fn fields(&self, told: &[Told<C>]) -> Option<Fields> {
        if told.is_empty() {
            return None;
        }
        let mut states = Line::new();
        for told in told {
            push_state(&mut states, self.rules[told.rule].name.as_str(), &told.decision);
        }
        let policy = match told {
            [told] => self.policy_text(told),
            several => {
                let mut policies = Line::new();
                for told in several {
                    policies.push_entry(self.policy_text(told).as_bytes());
                }
                value(&policies)
            }
        };
        let old = if self.old_headers { OldFields::new(told).map(Box::new) } else { None };
        Some(Fields { policy, state: value(&states), old })
    }

    fn policy_text(&self, told: &Told<C>) -> HeaderValue {
        let rule = &self.rules[told.rule];
        match (&told.chosen, &rule.source) {
            (Some(limit), _) | (None, Source::Fixed(limit)) => {
                rule.last_text.of(rule.name.as_str(), told, limit)
            }
            // Such a rule always tells which limit it chose.
            (None, Source::ByRequest(_)) => HeaderValue::from_static(""),
        }
    }
}

impl Fields {
    /// Adds the fields. Fields of other layers stay.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        headers.append(POLICY, self.policy);
        headers.append(STATE, self.state);
        if let Some(old) = self.old {
            let OldFields { limit, remaining, reset } = *old;
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
    fn new<C>(told: &[Told<C>]) -> Option<Self> {
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
