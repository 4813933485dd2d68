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
    /// None about the limits; a refusal has `x-amz-retry-after`, the wait in milliseconds.
    Aws,
}

/// The longest wait that every client of `OpenAI` obeys. After a longer one, the client for
/// JavaScript asks again at once, and the one for Python not at all.
const OPENAI_OBEYS: Duration = Duration::from_mins(1);

/// The text is no [`Vendor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vendors are openai, anthropic and aws")]
pub struct UnknownVendor;

impl FromStr for Vendor {
    type Err = UnknownVendor;

    fn from_str(text: &str) -> Result<Self, UnknownVendor> {
        match text {
            "openai" => Ok(Self::OpenAi),
            "anthropic" => Ok(Self::Anthropic),
            "aws" => Ok(Self::Aws),
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
            Self::Aws => &[],
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
                    Self::OpenAi | Self::Aws => format!("x-ratelimit-{what}-{kind}"),
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

    /// The fields of a refusal, for the clients of the vendor, which try again by themselves:
    /// `retry-after-ms` with the exact wait, and `x-should-retry: false` where no wait helps or the
    /// clients do not obey it. `wait` is `None` where no wait helps.
    #[must_use]
    pub fn retry_fields(self, wait: Option<Duration>) -> Vec<(HeaderName, HeaderValue)> {
        // A client takes 0 for no value, and waits by its own rule.
        let ms = wait.map(|wait| wait.as_nanos().div_ceil(1_000_000).max(1));
        // Clients count in 32 bits.
        let ms = ms.map(|ms| i32::try_from(ms).unwrap_or(i32::MAX));
        let field = |name, value| (HeaderName::from_static(name), value);
        let no_retry = || vec![field("x-should-retry", HeaderValue::from_static("false"))];
        match (self, wait, ms) {
            (Self::Aws, _, Some(ms)) => vec![field("x-amz-retry-after", ms.into())],
            (Self::Aws, ..) => Vec::new(),
            (Self::OpenAi, Some(wait), _) if wait > OPENAI_OBEYS => no_retry(),
            (_, _, Some(ms)) => vec![field("retry-after-ms", ms.into())],
            (_, _, None) => no_retry(),
        }
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
            Self::Anthropic | Self::Aws => {
                let at = ceil_secs(Duration::from(now).saturating_add(after));
                let at = jiff::Timestamp::from_second(i64::try_from(at).ok()?).ok()?;
                Some(format!("{at:.0}"))
            }
        }
    }
}
