//! The limits that a response reports: name, decision and policy of each.

use std::{
    fmt, iter,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use tidegate_core::{Decision, Policy};
use tidegate_headers::{FieldText, Per, push_policy, quota};
use tidegate_limiter::Timer;

use crate::limit::Limit;

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

/// The name of a limit in headers: printable ASCII. Quotes, backslashes and all other characters
/// become `_`.
// It is kept as its entries in `RateLimit` start: `"name";r=`.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(String);

/// The end of [`Name`].
const AFTER: &str = "\";r=";

impl Name {
    /// Makes a name, replacing characters that headers do not allow.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let taken = |c: char| (' '..='~').contains(&c) && c != '"' && c != '\\';
        let name = name.chars().map(|c| if taken(c) { c } else { '_' });
        Self(iter::once('"').chain(name).chain(AFTER.chars()).collect())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self.0.strip_suffix(AFTER).unwrap_or_default();
        name.strip_prefix('"').unwrap_or_default()
    }

    pub(crate) const fn start(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Name").field(&self.as_str()).finish()
    }
}

/// A limit's decision, for the headers.
pub(crate) struct HeaderDecision<C> {
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
        let mut text = FieldText::new();
        push_policy(&mut text, name, quota, per);
        Self {
            version,
            policy,
            quota,
            text: value(&text),
        }
    }
}

/// The text of the first policy, and the one that was formatted last. Reading the first one writes
/// nothing.
#[derive(Default)]
pub(crate) struct LastText {
    first: OnceLock<PolicyText>,
    last: ArcSwapOption<PolicyText>,
}

impl LastText {
    /// The text for this answer; most often the one that was formatted last.
    pub(crate) fn of<C: Timer + 'static>(
        &self,
        name: &str,
        decided: &HeaderDecision<C>,
        limit: &Limit<C>,
    ) -> HeaderValue {
        // The versions of a limit that was chosen for one request are not the rule's.
        let version = if decided.chosen.is_none() {
            limit.policy_version()
        } else {
            None
        };
        // A key with an override has another quota than its limit.
        let quota = decided.decision.limit();
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
                // The policy is read after its version: if it changes in between, the text is
                // formatted once more.
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
        let mut text = FieldText::new();
        push_policy(&mut text, name, quota, Per::Time);
        value(&text)
    }
}

/// Names are printable, so the value is always valid.
pub(crate) fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
