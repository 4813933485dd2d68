//! The header fields with which providers of language models report limits.

use std::{str::FromStr, time::Duration};

use http::{HeaderName, HeaderValue};
use tidegate_core::{Decision, Nanos};

use crate::ceil_secs;

/// A provider of language models. Its clients know its header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vendor {
    /// `x-ratelimit-limit-requests`, `x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests`
    /// (a time such as `6m0s` until the limit is full again), and the same for `tokens`.
    OpenAi,
    /// `anthropic-ratelimit-requests-limit`, `-remaining` and `-reset` (the time of day, as in RFC
    /// 3339, when the limit is full again), and the same for `tokens`, `input-tokens` and
    /// `output-tokens`.
    Anthropic,
}

/// The text is no [`Vendor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vendors are openai and anthropic")]
pub struct UnknownVendor;

impl FromStr for Vendor {
    type Err = UnknownVendor;

    fn from_str(text: &str) -> Result<Self, UnknownVendor> {
        match text {
            "openai" => Ok(Self::OpenAi),
            "anthropic" => Ok(Self::Anthropic),
            _ => Err(UnknownVendor),
        }
    }
}

impl Vendor {
    /// The kinds of limits that the vendor reports.
    const fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::OpenAi => &["requests", "tokens"],
            Self::Anthropic => &["requests", "input-tokens", "output-tokens", "tokens"],
        }
    }

    /// The fields for these limits at a time since 1970. A limit is reported under the kind that
    /// its name is, or with which its name ends after `-`, `_` or `.`: `tokens` and
    /// `per-user.tokens` are tokens. If several limits have one kind, the one with the least left
    /// is reported. Limits with other names are not.
    #[must_use]
    pub fn fields<'a>(
        self,
        limits: impl Iterator<Item = (&'a str, &'a Decision)>,
        now: Nanos,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let mut bound: [Option<&Decision>; 4] = [None; 4];
        for (name, decision) in limits {
            let is_of = |kind: &&str| {
                name.strip_suffix(kind)
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '_', '.']))
            };
            if let Some(at) = self.kinds().iter().position(is_of)
                && bound[at].is_none_or(|before| decision.remaining() < before.remaining())
            {
                bound[at] = Some(decision);
            }
        }
        let mut fields = Vec::new();
        for (kind, decision) in self.kinds().iter().zip(bound) {
            let Some(decision) = decision else { continue };
            let mut add = |what: &str, value: HeaderValue| {
                let name = match self {
                    Self::OpenAi => format!("x-ratelimit-{what}-{kind}"),
                    Self::Anthropic => format!("anthropic-ratelimit-{kind}-{what}"),
                };
                fields.extend(name.parse().ok().map(|name| (name, value)));
            };
            add("limit", decision.limit().into());
            add("remaining", decision.remaining().into());
            let reset = (decision.reset_after_nanos() != u64::MAX).then(|| decision.reset_after());
            let text = reset.and_then(|reset| self.reset(reset, now));
            if let Some(value) = text.and_then(|text| text.try_into().ok()) {
                add("reset", value);
            }
        }
        fields
    }

    fn reset(self, after: Duration, now: Nanos) -> Option<String> {
        match self {
            Self::OpenAi if after < Duration::from_secs(1) => {
                Some(format!("{}ms", after.as_nanos().div_ceil(1_000_000)))
            }
            Self::OpenAi => {
                let seconds = ceil_secs(after);
                let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
                Some(match (hours, minutes) {
                    (0, 0) => format!("{seconds}s"),
                    (0, _) => format!("{minutes}m{seconds}s"),
                    _ => format!("{hours}h{minutes}m{seconds}s"),
                })
            }
            Self::Anthropic => {
                let at = ceil_secs(Duration::from(now).saturating_add(after));
                let at = jiff::Timestamp::from_second(i64::try_from(at).ok()?).ok()?;
                Some(format!("{at:.0}"))
            }
        }
    }
}
