//! The header fields that report limits in responses.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use tidegate_core::{Decision, Policy};

use crate::headers::{Per, ceil_secs, quota, write_policy, write_state};

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

/// Adds `RateLimit-Policy` and `RateLimit` with a list of these limits. Fields of other layers stay.
pub(crate) fn write<'n>(headers: &mut HeaderMap, told: &[Told], name: impl Fn(usize) -> &'n str) {
    if told.is_empty() {
        return;
    }
    let (mut policies, mut states) = (String::with_capacity(48), String::with_capacity(48));
    for Told { rule, decision, policy } in told {
        let (quota, per) = quota(policy);
        // The key has an override, whose window is not known here.
        let (quota, per) =
            if decision.limit() == quota { (quota, per) } else { (decision.limit(), Per::Time) };
        write_policy(&mut policies, name(*rule), quota, per);
        write_state(&mut states, name(*rule), decision);
    }
    for (name, value) in [(POLICY, policies), (STATE, states)] {
        // Names are printable, so the value is always valid.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(name, value);
        }
    }
}

/// Sets `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds from now) for the limit with the least left.
pub(crate) fn write_old(headers: &mut HeaderMap, told: &[Told]) {
    let bound = told.iter().max_by_key(|told| {
        let decision = &told.decision;
        (decision.severity(), std::cmp::Reverse(decision.remaining()))
    });
    let Some(Told { decision, .. }) = bound else { return };
    headers.insert(LIMIT, decision.limit().into());
    headers.insert(REMAINING, decision.remaining().into());
    if decision.reset_after_nanos() != u64::MAX {
        headers.insert(RESET, ceil_secs(decision.reset_after()).into());
    }
}

/// Adds `Retry-After` unless it is already set.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.entry(RETRY_AFTER).or_insert_with(|| ceil_secs(wait).into());
}
