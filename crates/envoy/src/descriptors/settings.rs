//! The settings of envoyproxy/ratelimit that concern all rules.

use http::HeaderName;

/// How a denied request is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consume {
    /// Every limit of a request is charged, also if another one denies, as in envoyproxy/ratelimit:
    /// a limit is over if more is in use after the request than it allows. A limit with another
    /// algorithm than a fixed window is charged if it admits the request.
    #[default]
    Each,
    /// Nothing: all limits of a request are one decision.
    AllOrNone,
}

/// The header fields of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AnswerFields {
    /// None.
    #[default]
    None,
    /// `RateLimit` and `RateLimit-Policy`, with each limit.
    RateLimit,
    /// Fields with these names for the limit, what remains and the seconds until the end of the
    /// unit, of the descriptor that denies or has the least remaining, as in envoyproxy/ratelimit.
    Named(FieldNames),
}

/// The names of the fields for a limit, what remains, and the seconds until its unit ends.
pub type FieldNames = [HeaderName; 3];

/// Fields with these names; `None` unless they are three valid ones.
pub fn field_names<'n>(names: impl Iterator<Item = &'n str>) -> Option<FieldNames> {
    let names: Option<Vec<HeaderName>> = names.map(|name| name.trim().parse().ok()).collect();
    names?.try_into().ok()
}

/// The settings of envoyproxy/ratelimit that concern all rules.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting there")]
pub struct Modes {
    /// Several files, or resources of control planes, may have descriptors of one domain.
    pub merge_domains: bool,
    /// Admitted hits beyond this part of a limit count as near it, 0 to 1.
    pub near_limit: f32,
    /// All requests are admitted. The descriptors' own statuses say what is over its limit.
    pub shadow: bool,
    /// Every rule is in quota mode.
    pub quota: bool,
    /// The metadata of an answer describes the request, with the rules' own below `metadata`.
    pub metadata: bool,
    /// A month is one of the calendar, in UTC, instead of 30 days.
    pub calendar_months: bool,
    /// Answers have a pair of header fields for each unit of their limits.
    pub each_unit: bool,
    /// The metadata of an answer says neither which limit denies nor why, as there.
    pub without_reasons: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            merge_domains: false,
            near_limit: 0.8,
            shadow: false,
            quota: false,
            metadata: false,
            calendar_months: false,
            each_unit: false,
            without_reasons: false,
        }
    }
}
