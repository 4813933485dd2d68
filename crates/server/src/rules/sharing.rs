//! What the rules say for servers that share their limits, and which limits can be shared.

use std::time::Duration;

use tidegate_config::{Complaints, Fields, Problem};
use tidegate_core::write_duration;
use tidegate_redis::{Mode, OnError, Plan};

use super::{AlgorithmName, LimitSpec, PolicySpec, SharingSpec};

/// The longest time that the store may be given for a decision: a client's pipeline waits with it.
pub(crate) const MAX_DEADLINE: Duration = Duration::from_secs(5);

const MODES: [(&str, Mode); 3] =
    [("exact", Mode::Exact), ("leased", Mode::Leased), ("reported", Mode::Reported)];
const ON_ERROR: [(&str, OnError); 3] =
    [("open", OnError::Open), ("closed", OnError::Closed), ("local", OnError::Local)];

impl SharingSpec {
    /// As the file writes it: `on_error: closed, deadline: 20ms`.
    #[must_use]
    pub fn options(&self) -> String {
        fn name<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
            words.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
        }
        let mut options = Vec::new();
        options.extend(self.mode.map(|mode| format!("sharing: {}", name(&MODES, &mode))));
        options.extend(self.on_error.map(|on_error| format!("on_error: {}", name(&ON_ERROR, &on_error))));
        if let Some(deadline) = self.deadline {
            let mut text = "deadline: ".to_owned();
            // Writing to a `String` does not fail.
            let _ = write_duration(&mut text, deadline);
            options.push(text);
        }
        options.join(", ")
    }
}

pub(super) fn read(fields: &Fields<'_>, called: &str, complaints: &mut Complaints) -> SharingSpec {
    let deadline = fields.duration("deadline", complaints);
    if let Some(span) = deadline
        && (span.is_zero() || span > MAX_DEADLINE)
    {
        let line = fields.get("deadline").map_or(fields.line(), |node| node.line);
        let problem = Problem::at(line, format!("{called}: `deadline` must be above 0 and at most 5s"));
        complaints.add(problem.mend("give the store some milliseconds, as in `deadline: 50ms`"));
    }
    SharingSpec {
        mode: fields.word("sharing", &MODES, complaints),
        on_error: fields.word("on_error", &ON_ERROR, complaints),
        deadline,
    }
}

/// Complains about what no store can decide.
pub(super) fn check(limit: &LimitSpec, fields: &Fields<'_>, complaints: &mut Complaints) {
    let mut wrong = |field: &str, why: String, mend: &str| {
        let line = fields.get(field).map_or(fields.line(), |node| node.line);
        let problem = Problem::at(line, format!("limit `{}` cannot be shared: {why}", limit.name));
        complaints.add(if mend.is_empty() { problem } else { problem.mend(mend) });
    };
    if limit.name.contains(':') {
        wrong("name", "a colon parts the keys of the store".to_owned(), "write another sign in its place");
    }
    if limit.policy.algorithm == AlgorithmName::Concurrency {
        let why = "no server gives back the permits that another gave out";
        let mend =
            "keep it on one server without --store, or use permits of the library in the programs themselves";
        return wrong("algorithm", why.to_owned(), mend);
    }
    if let Some(why) = refusal(&limit.policy) {
        return wrong("limit", why, "");
    }
    for (key, policy) in &limit.overrides {
        if let Some(why) = refusal(policy) {
            wrong("overrides", format!("for `{key}`: {why}"), "");
        }
    }
}

/// Why the store cannot decide by a policy; the reason says what to do.
fn refusal(policy: &PolicySpec) -> Option<String> {
    // A policy that makes no sense has been told already.
    Plan::new(policy.policy().ok()?).err().map(|error| error.to_string())
}
