//! The content of a report, in JSON.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_core::{Nanos, stats::Slot};
use tidegate_flow::{Gate, Node, Resource, sources::yaml};

use super::{Report, Rules};

/// The bytes of resources in one report. The server takes bodies of 64 KiB.
const MAX_BYTES: usize = 56 * 1024;
/// The seconds that are looked back for ones that were not sent.
const MINUTE: u64 = 60;
/// The longest rules that are reported, with the words about what is left out.
const MAX_OWN: usize = 16 * 1024;
/// The origins, and the contexts, of one resource in a report, and the bytes of the name of one.
const MAX_PARTS: usize = 10;
const MAX_PART: usize = 64;
const SECOND: u64 = 1_000_000_000;

#[derive(Serialize)]
struct Head<'a> {
    app: &'a str,
    instance: &'a str,
    /// The current second.
    now: u64,
    /// The version of the rules from the server.
    version: &'a Option<String>,
    /// Why they were rejected.
    rejected: &'a Option<String>,
    /// Resources that found no room.
    left_out: usize,
    /// The gate's rules, when the server needs them.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<&'a OwnRules>,
    resources: &'a [serde_json::Value],
}

/// The rules in force as YAML, whether or not the server has pushed them.
#[derive(Serialize)]
pub(super) struct OwnRules {
    text: String,
    /// Parts of the rules that YAML cannot express.
    left_out: Vec<String>,
}

impl OwnRules {
    pub fn of(gate: &Gate) -> Self {
        let (text, left_out) = yaml::write(&gate.rules());
        if text.len() + left_out.iter().map(String::len).sum::<usize>() <= MAX_OWN {
            return Self { text, left_out };
        }
        let why = format!(
            "the rules have {} bytes in YAML; at most {MAX_OWN} are reported",
            text.len()
        );
        Self {
            text: String::new(),
            left_out: vec![why],
        }
    }
}

#[derive(Serialize)]
struct ResourceReport<'a> {
    name: &'a str,
    in_flight: u64,
    /// Each as second since 1970, pass, block, exception, completed, response time in all in
    /// microseconds, most in flight.
    seconds: Vec<[u64; 7]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    breakers: Vec<(String, &'static str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adaptive: Vec<(String, u64)>,
    /// The units that were blocked since the start, by reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blocked: Vec<(&'static str, u64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    origins: Vec<StreamPart>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contexts: Vec<StreamPart>,
}

/// The part of a resource's traffic from one origin or within one context: its name, and what
/// passed and was blocked within the last interval and is in flight.
type StreamPart = (String, [u64; 3]);

/// The busiest parts, for which the report has room.
fn busiest(
    names: Vec<String>,
    node: impl Fn(&str) -> Option<Arc<Node>>,
    now: Nanos,
) -> Vec<StreamPart> {
    let part = |name: String| {
        let node = node(&name)?;
        let counts = node.counts(now);
        (name.len() <= MAX_PART).then_some((name, [counts.pass, counts.block, node.in_flight()]))
    };
    let mut parts: Vec<StreamPart> = names.into_iter().filter_map(part).collect();
    parts.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u64>()));
    parts.truncate(MAX_PARTS);
    parts
}

/// The answer to a report.
#[derive(Deserialize)]
pub(super) struct ReportReply {
    pub rules: Option<Pushed>,
    /// Whether the server needs the gate's rules.
    #[serde(default)]
    pub wants_own: bool,
}

/// Rules from the server.
#[derive(Deserialize)]
pub(super) struct Pushed {
    pub version: String,
    pub text: String,
}

/// The detail of a problem+json document.
pub(super) fn detail(problem: &str) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_str(problem).ok()?;
    problem.get("detail")?.as_str().map(ToOwned::to_owned)
}

/// Remembers which seconds were sent.
#[derive(Default)]
pub(super) struct Collect {
    /// The last second that the server has.
    sent: Option<u64>,
    /// The last second of the report under way.
    telling: Option<u64>,
}

impl Collect {
    /// The report of the seconds that have ended and were not sent yet.
    pub fn body(
        &mut self,
        gate: &Gate,
        report: &Report,
        rules: &Rules,
        own: Option<&OwnRules>,
    ) -> String {
        let now = gate.now();
        let current = now.get() / SECOND;
        // The first report begins with the second before the current one.
        let sent = *self.sent.get_or_insert(current.saturating_sub(2));
        let first = (sent + 1).max(current.saturating_sub(MINUTE));
        self.telling = current.checked_sub(1);
        let mut all: Vec<(u64, Resource, Vec<[u64; 7]>)> = gate
            .resources()
            .into_iter()
            .map(|resource| {
                let node = resource.node();
                let ended = node.ended(now).into_iter();
                let ended = ended.filter(|slot| slot.start.get() / SECOND >= first);
                let seconds: Vec<_> = ended.map(|slot| second(&slot)).collect();
                let calls = seconds
                    .iter()
                    .map(|second| second[1].saturating_add(second[2]))
                    .max()
                    .unwrap_or(0);
                (calls, resource, seconds)
            })
            .collect();
        // The busiest come first, in case the report has no room for all. The sort is stable:
        // otherwise in the order of their names.
        all.sort_by_key(|(calls, ..)| std::cmp::Reverse(*calls));
        let own_bytes = own
            .and_then(|own| serde_json::to_string(own).ok())
            .map_or(0, |text| text.len());
        let (mut bytes, mut resources) = (own_bytes, Vec::new());
        for (_, resource, seconds) in &all {
            let report = ResourceReport {
                name: resource.name(),
                in_flight: resource.node().in_flight(),
                seconds: seconds.clone(),
                breakers: resource
                    .breakers()
                    .into_iter()
                    .map(|(rule, state)| (rule, state.name()))
                    .collect(),
                adaptive: resource.adaptive_limits(),
                blocked: resource
                    .blocked()
                    .into_iter()
                    .map(|(why, count)| (why.name(), count))
                    .collect(),
                origins: busiest(resource.origins(), |name| resource.origin(name), now),
                contexts: busiest(resource.contexts(), |name| resource.context(name), now),
            };
            // Names and numbers can always be written.
            let Ok(value) = serde_json::to_value(report) else {
                continue;
            };
            bytes += value.to_string().len() + 1;
            if bytes > MAX_BYTES {
                break;
            }
            resources.push(value);
        }
        let (Report { app, instance, .. }, Rules { version, rejected }) = (report, rules);
        let left_out = all.len() - resources.len();
        let head = Head {
            app,
            instance,
            now: current,
            version,
            rejected,
            left_out,
            own,
            resources: &resources,
        };
        serde_json::to_string(&head).unwrap_or_default()
    }

    /// The server has the report.
    pub fn sent(&mut self) {
        self.sent = self.telling.or(self.sent);
    }
}

fn second(slot: &Slot) -> [u64; 7] {
    let counts = &slot.counts;
    let rt = u64::try_from(counts.rt.as_micros()).unwrap_or(u64::MAX);
    [
        slot.start.get() / SECOND,
        counts.pass,
        counts.block,
        counts.exception,
        counts.success,
        rt,
        counts.max_in_flight,
    ]
}
