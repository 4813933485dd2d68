//! One report, and what is kept of an instance's reports.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_core::Nanos;

/// Seconds that are kept.
pub const MINUTE: usize = 60;
/// Minutes that are kept.
pub(super) const HOUR: usize = 60;
/// Bytes of the rules that a program reports.
const MAX_OWN: usize = 16 * 1024;
/// Bytes of a resource's name. One that is longer is left out.
pub(super) const MAX_RESOURCE_NAME: usize = 256;
/// Breakers, and adaptive limits, of one resource.
const MAX_RULES: usize = 16;
/// Characters of a rule's name, and of an error.
const MAX_LABEL: usize = 64;
const MAX_ERROR: usize = 512;
/// The most that a count of one second is taken for: sums of sums of them do not overflow.
const MAX_COUNT: u64 = 1 << 40;

/// The report that a program sends each second. Unknown fields are those of a newer program.
#[derive(Debug, Deserialize)]
pub struct ProgramReport {
    pub app: String,
    pub instance: String,
    /// The current second of the program's clock, which need not be the server's.
    pub now: u64,
    /// The version of the pushed rules that the program has seen.
    pub version: Option<String>,
    /// Why it rejected them.
    pub rejected: Option<String>,
    /// Resources that found no room in the report.
    #[serde(default)]
    pub left_out: usize,
    /// The rules in force, if the program sends them.
    pub own: Option<OwnRules>,
    pub resources: Vec<ResourceReport>,
}

/// The rules that a program has, as YAML.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct OwnRules {
    #[serde(deserialize_with = "shared")]
    pub text: Arc<str>,
    /// The parts of its rules that YAML cannot express.
    #[serde(default)]
    pub left_out: Vec<String>,
}

fn shared<'de, D: Deserializer<'de>>(text: D) -> Result<Arc<str>, D::Error> {
    Ok(String::deserialize(text)?.into())
}

/// The part about one resource.
#[derive(Debug, Default, Deserialize)]
pub struct ResourceReport {
    pub name: String,
    pub in_flight: u64,
    /// Each as second since 1970, pass, block, exception, completed, response times in
    /// microseconds, most in flight.
    pub seconds: Vec<[u64; 7]>,
    #[serde(default)]
    pub breakers: Vec<(String, String)>,
    #[serde(default)]
    pub adaptive: Vec<(String, u64)>,
    /// The units that were blocked since the program's start, by reason.
    #[serde(default)]
    pub blocked: Vec<(String, u64)>,
    #[serde(default)]
    pub origins: Vec<StreamPart>,
    #[serde(default)]
    pub contexts: Vec<StreamPart>,
}

/// A part of a resource's traffic by name: what passed and was blocked in the last second and is in
/// flight.
pub type StreamPart = (String, [u64; 3]);

/// Rules that were pushed, as the answer to a report has them.
#[derive(Clone, Debug, Serialize)]
pub struct Rules {
    pub version: String,
    pub text: String,
}

/// A program that reports.
#[derive(Debug, Default)]
pub(super) struct Instance {
    pub seen: Nanos,
    /// How far the server's clock is ahead of the program's, in seconds.
    pub ahead: Option<i128>,
    pub version: Option<String>,
    pub rejected: Option<String>,
    pub left_out: usize,
    pub own: Option<OwnRules>,
    pub resources: BTreeMap<String, Resource>,
}

/// A resource of one instance.
#[derive(Debug, Default)]
pub(super) struct Resource {
    pub in_flight: u64,
    /// The last minute, oldest first.
    pub seconds: VecDeque<(u64, [u64; 6])>,
    /// The last hour: units passed and blocked in each minute, oldest first.
    pub minutes: VecDeque<(u64, [u64; 2])>,
    /// The newest second of the program's clock that counts in a minute.
    pub counted: u64,
    pub breakers: Vec<(String, String)>,
    pub adaptive: Vec<(String, u64)>,
    pub blocked: Vec<(String, u64)>,
    pub origins: Vec<StreamPart>,
    pub contexts: Vec<StreamPart>,
}

impl Instance {
    /// Takes a report in, with at most `room` resources.
    pub fn take(&mut self, report: ProgramReport, room: usize, now: Nanos) {
        let ProgramReport {
            version,
            rejected,
            left_out,
            own,
            resources,
            now: its,
            ..
        } = report;
        self.seen = self.seen.max(now);
        let ahead = i128::from(now.get() / 1_000_000_000) - i128::from(its);
        // How long a report was under way differs. A second must keep its place.
        if self.ahead.is_none_or(|before| before.abs_diff(ahead) > 2) {
            self.ahead = Some(ahead);
        }
        self.version = version.map(|text| short(&text, MAX_LABEL));
        self.rejected = rejected.map(|text| short(&text, MAX_ERROR));
        self.own = own.map(OwnRules::bounded).or(self.own.take());
        // Each report lists all resources of the program; one that is missing is gone.
        let mut before = std::mem::take(&mut self.resources);
        let all = resources.len();
        for reported in resources {
            if self.resources.len() < room && reported.name.len() <= MAX_RESOURCE_NAME {
                let mut resource = before.remove(&reported.name).unwrap_or_default();
                resource.take(&reported, its, self.ahead.unwrap_or(0));
                self.resources.insert(reported.name, resource);
            }
        }
        self.left_out = left_out.saturating_add(all - self.resources.len());
    }
}

impl OwnRules {
    fn bounded(self) -> Self {
        let left_out = self
            .left_out
            .iter()
            .take(MAX_RULES)
            .map(|why| short(why, MAX_ERROR));
        if self.text.len() <= MAX_OWN {
            return Self {
                left_out: left_out.collect(),
                ..self
            };
        }
        let why = format!(
            "the rules have {} bytes in YAML; at most {MAX_OWN} are kept",
            self.text.len()
        );
        Self {
            text: Arc::default(),
            left_out: std::iter::once(why).chain(left_out).collect(),
        }
    }
}

impl Resource {
    fn take(&mut self, reported: &ResourceReport, now: u64, ahead: i128) {
        self.in_flight = reported.in_flight.min(MAX_COUNT);
        let at_most = |count: u64| count.min(MAX_COUNT);
        self.blocked = bounded(&reported.blocked, at_most);
        self.adaptive = bounded(&reported.adaptive, at_most);
        self.origins = bounded(&reported.origins, |counts| counts.map(at_most));
        self.contexts = bounded(&reported.contexts, |counts| counts.map(at_most));
        self.breakers = reported
            .breakers
            .iter()
            .take(MAX_RULES)
            .map(|(rule, state)| (short(rule, MAX_LABEL), known(state)))
            .collect();
        for second in &reported.seconds {
            // An answer may get lost: then the next report has the same seconds again.
            let is_recent = second[0] < now && now - second[0] <= MINUTE as u64;
            if is_recent && self.seconds.back().is_none_or(|last| last.0 < second[0]) {
                let [at, ref counts @ ..] = *second;
                let counts = counts.map(at_most);
                self.seconds.push_back((at, counts));
                // After a restart of the server a program sends its last minute again.
                if at > self.counted {
                    self.counted = at;
                    self.count_minute(
                        u64::try_from(i128::from(at) + ahead).unwrap_or(at) / 60,
                        counts,
                    );
                }
            }
        }
        let excess = self.seconds.len().saturating_sub(MINUTE);
        self.seconds.drain(..excess);
    }

    /// Adds a second to its minute of the server's clock.
    fn count_minute(&mut self, minute: u64, [pass, block, ..]: [u64; 6]) {
        match self.minutes.back_mut() {
            // A clock that was set back counts in the newest minute.
            Some((newest, sum)) if *newest >= minute => {
                *sum = [sum[0].saturating_add(pass), sum[1].saturating_add(block)];
            }
            _ => self.minutes.push_back((minute, [pass, block])),
        }
        let excess = self.minutes.len().saturating_sub(HOUR);
        self.minutes.drain(..excess);
    }
}

/// The first numbers, each within its bound.
fn bounded<T: Copy>(counts: &[(String, T)], bound: impl Fn(T) -> T) -> Vec<(String, T)> {
    counts
        .iter()
        .take(MAX_RULES)
        .map(|(name, count)| (short(name, MAX_LABEL), bound(*count)))
        .collect()
}

/// A breaker's state, if it is one.
fn known(state: &str) -> String {
    let states = ["closed", "open", "half-open"];
    states
        .into_iter()
        .find(|known| *known == state)
        .unwrap_or("unknown")
        .to_owned()
}

fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}
