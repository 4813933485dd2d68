//! The sharing options in rules, and which limits can be shared.

use std::time::Duration;

use tidegate_config::{Fields, Problem};
use tidegate_core::{Nanos, parse_duration};
use tidegate_redis::{Mode, OnError, Plan, Timeout};

use crate::{LimitSpec, PolicySpec, SharingSpec};

/// The maximum deadline of a decision: a client's pipeline waits for it.
const MAX_DEADLINE: Duration = Duration::from_secs(5);

/// The maximum slack: the units of a server that dies can be missing for this long.
const MAX_SLACK: Duration = Duration::from_hours(1);

const MODES: [(&str, Mode); 3] = [
    ("exact", Mode::Exact),
    ("leased", Mode::Leased),
    ("reported", Mode::Reported),
];
const ON_ERROR: [(&str, OnError); 3] = [
    ("open", OnError::Open),
    ("closed", OnError::Closed),
    ("local", OnError::Local),
];

const DEADLINE: &str = "`auto`, or a duration such as 50ms";

/// The name of a mode in rules.
pub fn mode_name(mode: Mode) -> &'static str {
    word(&MODES, &mode)
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words
        .iter()
        .find(|(_, known)| known == value)
        .map_or("", |(word, _)| word)
}

/// A deadline of the store that is neither `auto` nor a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be {DEADLINE}")]
pub struct TimeoutError;

/// Parses `auto` or a duration.
///
/// # Errors
/// When the text is neither.
pub fn parse_timeout(text: &str) -> Result<Timeout, TimeoutError> {
    match text {
        "auto" => Ok(Timeout::Auto),
        _ => parse_duration(text)
            .map(Timeout::After)
            .map_err(|_| TimeoutError),
    }
}

/// Whether a deadline is within bounds.
pub fn is_sensible(deadline: Timeout) -> bool {
    match deadline {
        Timeout::After(wait) => !wait.is_zero() && wait <= MAX_DEADLINE,
        Timeout::Auto => true,
    }
}

impl SharingSpec {
    /// The options as the file writes them:
    /// `sharing: leased, slack: 1s, on_error: closed, deadline: 20ms`.
    pub fn options(&self) -> String {
        let span = |name: &str, span: Duration| format!("{name}: {}", Nanos::from(span));
        let mut options = Vec::new();
        options.extend(
            self.mode
                .map(|mode| format!("sharing: {}", mode_name(mode))),
        );
        options.extend(self.slack.map(|slack| span("slack", slack)));
        options.extend(self.unreported.map(|units| format!("unreported: {units}")));
        options.extend(
            self.on_error
                .map(|on_error| format!("on_error: {}", word(&ON_ERROR, &on_error))),
        );
        options.extend(self.deadline.map(|deadline| match deadline {
            Timeout::After(wait) => span("deadline", wait),
            Timeout::Auto => "deadline: auto".to_owned(),
        }));
        options.extend(self.line.then(|| "line: true".to_owned()));
        options.join(", ")
    }
}

impl LimitSpec {
    /// How many of its policies (its own, and those of overridden keys) are exact although another
    /// mode is configured.
    pub fn exact_all_the_same(&self) -> usize {
        let (mode, slack) = (self.sharing.mode.unwrap_or_default(), self.sharing.slack);
        let policies = self
            .overrides
            .values()
            .chain([&self.policy])
            .filter_map(|spec| spec.policy().ok());
        policies
            .filter(|policy| mode.for_policy(*policy, slack) != mode)
            .count()
    }
}

pub fn read(fields: &Fields<'_>, called: &str) -> SharingSpec {
    let spec = SharingSpec {
        unshared: false,
        mode: fields.word("sharing", &MODES),
        on_error: fields.word("on_error", &ON_ERROR),
        deadline: fields.read("deadline", DEADLINE, |text| parse_timeout(text).ok()),
        slack: fields.duration("slack"),
        unreported: fields.number("unreported", 1),
        line: fields.flag("line").unwrap_or(false),
    };
    let wrong = |field: &str, what: &str, mend: &str| {
        fields.complaints().at(
            fields.line_of(field),
            format!("{called}: `{field}` {what}"),
            mend,
        );
    };
    if spec.deadline.is_some_and(|deadline| !is_sensible(deadline)) {
        let mend = "give the store a few milliseconds, as in `deadline: 50ms`";
        wrong("deadline", "must be above 0 and at most 5s", mend);
    }
    if spec
        .slack
        .is_some_and(|slack| slack < Duration::from_millis(1) || slack > MAX_SLACK)
    {
        wrong(
            "slack",
            "must be from 1ms to 1h",
            "a tenth of a second, `slack: 100ms`, is the default",
        );
    }
    if spec.line && spec.mode.is_some_and(|mode| mode != Mode::Exact) {
        let mend =
            "remove `sharing`, because a line knows only what the store decides, or remove `line`";
        wrong("line", "is for exact limits", mend);
    }
    // An invalid mode was already reported.
    if fields.get("sharing").is_none() || spec.mode.is_some() {
        let mode = spec.mode.unwrap_or_default();
        if spec.slack.is_some() && mode == Mode::Exact {
            wrong(
                "slack",
                "is for limits that are not exact",
                "add `sharing: leased`, or remove it",
            );
        }
        if spec.unreported.is_some() && mode != Mode::Reported {
            wrong(
                "unreported",
                "is for reported limits",
                "add `sharing: reported`, or remove it",
            );
        }
    }
    spec
}

/// Reports limits that no store can implement.
pub fn check(limit: &LimitSpec, fields: &Fields<'_>) {
    let wrong = |field: &str, why: String, mend: &str| {
        let what = format!("limit `{}` cannot be shared: {why}", limit.name);
        let problem = Problem::at(fields.line_of(field), what);
        fields.complaints().add(if mend.is_empty() {
            problem
        } else {
            problem.mend(mend)
        });
    };
    if let Some(why) = refusal(&limit.policy) {
        let holdless =
            !limit.policy.algorithm.limits_rate() && limit.policy.algorithm.get("hold").is_none();
        let (field, mend) = if holdless {
            (
                "algorithm",
                "add the longest time that a permit is held, as in `hold: 1m`",
            )
        } else {
            ("limit", "")
        };
        return wrong(field, why, mend);
    }
    for (key, policy) in &limit.overrides {
        if let Some(why) = refusal(policy) {
            wrong("overrides", format!("for `{key}`: {why}"), "");
        }
    }
}

/// Why the store cannot implement a policy. The reason says what to do.
fn refusal(policy: &PolicySpec) -> Option<String> {
    // An invalid policy was already reported.
    Plan::new(policy.policy().ok()?)
        .err()
        .map(|error| error.to_string())
}
