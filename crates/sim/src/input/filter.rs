//! Selects the requests of a log that are replayed.

use std::{fmt, str::FromStr};

use super::{
    client::client,
    request::LogRequest,
    timestamp::{parse_access_log_time, parse_rfc3339, parse_unix},
};
use crate::workload::Field;

/// A condition on a field: `path=/login`, or a pattern in which a star matches any text, such as
/// `path=/static/*`.
///
/// ```
/// use tidegate_sim::input::Condition;
/// let health: Condition = "path=/health*".parse()?;
/// assert_eq!(health.to_string(), "path=/health*");
/// # Ok::<(), tidegate_sim::input::ConditionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    field: Field,
    pattern: String,
}

impl Condition {
    /// A condition on a field, with the pattern that it must match.
    pub const fn new(field: Field, pattern: String) -> Self {
        Self { field, pattern }
    }

    /// The field.
    pub const fn field(&self) -> &Field {
        &self.field
    }

    /// Whether a request meets the condition. A request without the field does not.
    pub(super) fn fits(&self, request: &impl LogRequest) -> bool {
        let Ok(text) = request.field(&self.field) else {
            return false;
        };
        // An address may be given as in the log, or as the client to which it belongs.
        fits(self.pattern.as_bytes(), &text)
            || (self.field == Field::Ip && fits(self.pattern.as_bytes(), &client(&text)))
    }
}

/// Whether a text matches a pattern in which `*` matches any bytes. The time is linear in the text
/// for each star.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut on) = (0, 0);
    // The position of the last star, and how much of the text it has matched.
    let mut star: Option<(usize, usize)> = None;
    while on < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, on));
            at += 1;
        } else if pattern.get(at) == Some(&text[on]) {
            (at, on) = (at + 1, on + 1);
        } else if let Some((place, given)) = star {
            star = Some((place, given + 1));
            (at, on) = (place + 1, given + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (field, pattern) = text.split_once('=').ok_or(ConditionError)?;
        let field = Field::from_name(field.trim());
        field
            .map(|field| Self::new(field, pattern.to_owned()))
            .ok_or(ConditionError)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.field.name(), self.pattern)
    }
}

/// A text is not a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a field and a pattern with `=` between them, as in path=/health* or status=5*")]
pub struct ConditionError;

/// A moment, in nanoseconds since 1970.
///
/// ```
/// use tidegate_sim::input::Moment;
/// let day: Moment = "2015-05-17".parse()?;
/// assert_eq!(day, "2015-05-17T00:00:00Z".parse()?);
/// # Ok::<(), tidegate_sim::input::MomentError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let date = || parse_rfc3339(format!("{text}T00:00:00Z").as_bytes());
        let time = || {
            parse_rfc3339(text.as_bytes())
                .or_else(|| parse_rfc3339(format!("{text}:00").as_bytes()))
        };
        let log = || parse_access_log_time(text.as_bytes());
        time()
            .or_else(date)
            .or_else(log)
            .or_else(|| parse_unix(text))
            .map(Self)
            .ok_or(MomentError)
    }
}

/// A text is not a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a time such as 2015-05-17, 2015-05-17T10:05:03Z or 17/May/2015:10:05:03 +0000")]
pub struct MomentError;

/// The requests that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Requests that meet any of these conditions.
    pub exclude: Vec<Condition>,
    /// Requests before this moment.
    pub since: Option<Moment>,
    /// Requests at or after this moment.
    pub until: Option<Moment>,
}

impl Filter {
    /// Whether a request that began at `time` is replayed.
    pub(super) fn takes(&self, request: &impl LogRequest, time: u64) -> bool {
        let time = Moment(time);
        self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
            && !self.exclude.iter().any(|condition| condition.fits(request))
    }
}
