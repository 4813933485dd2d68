//! Findings as one JSON object.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;

use super::{
    BusiestWindow, Report, Suggested,
    format::{moment, span},
};
use crate::{
    fleet::{Fleet, Sharing},
    replay::{Delays, Estimate, Findings, Row},
    suggest::CurvePoint,
};

#[derive(Serialize)]
struct Object<'a> {
    algorithm: &'a str,
    limit: String,
    requests: u64,
    keys: u64,
    admitted: u64,
    denied: u64,
    denied_keys: u64,
    wrongly_admitted: u64,
    wrongly_denied: u64,
    worst_window: u64,
    denied_over_time: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    delays: Option<DelaysObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<Estimate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<SharedObject>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    suggested: bool,
}

#[derive(Serialize)]
struct SharedObject {
    nodes: u16,
    mode: &'static str,
    round_trip_us: f64,
    admitted_in_one_place: u64,
    denied_by_sharing: u64,
    over: u64,
    round_trips: u64,
    waited: u64,
}

impl SharedObject {
    fn new(fleet: &Fleet, shared: &Sharing) -> Self {
        Self {
            nodes: fleet.nodes.get(),
            mode: shared.mode.name(),
            round_trip_us: fleet.round_trip.as_secs_f64() * 1e6,
            admitted_in_one_place: shared.admitted_in_one_place,
            denied_by_sharing: shared.denied_by_sharing,
            over: shared.over,
            round_trips: shared.round_trips,
            waited: shared.waited,
        }
    }
}

#[derive(Serialize)]
struct DelaysObject {
    delayed: u64,
    mean_ms: f64,
    longest_ms: f64,
}

impl From<Delays> for DelaysObject {
    fn from(delays: Delays) -> Self {
        let ms = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        Self { delayed: delays.delayed, mean_ms: ms(delays.mean()), longest_ms: ms(delays.longest) }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    command: &'a str,
    date: &'a str,
    source: &'a str,
    by: &'a str,
    lines: u64,
    unparsed: u64,
    excluded: u64,
    warnings: &'a [String],
    conclusions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<SuggestionObject<'a>>,
    trials: Vec<TrialObject<'a>>,
}

#[derive(Serialize)]
struct SuggestionObject<'a> {
    goal: String,
    found: Vec<FoundObject<'a>>,
    busiest_window: Vec<BusiestObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recommended: Option<RecommendedObject<'a>>,
}

#[derive(Serialize)]
struct FoundObject<'a> {
    algorithm: &'a str,
    limit: String,
    denied: u64,
    denied_keys: u64,
}

#[derive(Serialize)]
struct BusiestObject {
    window: String,
    requests: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct RecommendedObject<'a> {
    algorithm: &'a str,
    limit: String,
    reason: &'a str,
    yaml: &'a str,
    curve: Vec<PointObject>,
}

#[derive(Serialize)]
struct PointObject {
    limit: u32,
    denied: u64,
    denied_keys: u64,
}

#[derive(Serialize)]
struct TrialObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    limit: String,
    requests: u64,
    keys: u64,
    start: String,
    end: String,
    timeline: TimelineObject,
    requests_over_time: &'a [u64],
    results: Vec<Object<'a>>,
    most_denied: Vec<DeniedObject<'a>>,
}

#[derive(Serialize)]
struct TimelineObject {
    start: String,
    step_seconds: f64,
}

#[derive(Serialize)]
struct DeniedObject<'a> {
    key: &'a str,
    requests: u64,
    denied: BTreeMap<&'a str, u64>,
    #[serde(skip_serializing_if = "<[(u64, u64)]>::is_empty")]
    requests_and_denied_over_time: &'a [(u64, u64)],
}

/// Writes one indented JSON object with a line end. It contains everything that the table and the page show.
///
/// `trials` has an object for each limit: `name` (of a limit of a rules file), `limit`, `requests`, `keys`, `start`, `end`,
/// `timeline` (`start`, `step_seconds`), `requests_over_time`, `most_denied` (`key`, `requests`, `denied` by algorithm,
/// `requests_and_denied_over_time`) and `results`, one for each algorithm: `algorithm`, `limit`, `requests`, `keys`,
/// `admitted`, `denied`, `denied_keys`, `wrongly_admitted`, `wrongly_denied`, `worst_window`, `denied_over_time`; the leaky
/// bucket also `delays` (`delayed`, `mean_ms`, `longest_ms`), the sliding counter `estimate` (see [`Estimate`]), one whose
/// limit was suggested `suggested: true`, and one that nodes share `shared` (`nodes`, `mode`, `round_trip_us`, and the counts
/// of [`Sharing`]).
///
/// Besides these there are `command`, `date`, `source`, `by`, `lines`, `unparsed`, `excluded`, `warnings`, `conclusions`, and
/// on request `suggestion`: `goal`, `found`, `busiest_window` and `recommended` (`algorithm`, `limit`, `reason`, `yaml`,
/// `curve`).
///
/// # Errors
/// The errors of the writer.
pub fn write_json(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let trials =
        report.findings.iter().enumerate().map(|(trial, findings)| trial_object(report, trial, findings));
    let document = Document {
        command: &report.command,
        date: &report.date,
        source: &report.source,
        by: &report.by,
        lines: report.lines,
        unparsed: report.unparsed,
        excluded: report.excluded,
        warnings: &report.warnings,
        conclusions: report.conclusions(),
        suggestion: report.suggested.as_ref().map(suggestion_object),
        trials: trials.collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

fn suggestion_object(suggested: &Suggested) -> SuggestionObject<'_> {
    let found = suggested.found.iter().map(|(algorithm, found)| FoundObject {
        algorithm,
        limit: found.quota.to_string(),
        denied: found.denied,
        denied_keys: found.denied_keys,
    });
    let busiest = suggested.busiest.iter().map(|busiest| BusiestObject {
        window: span(busiest.window),
        requests: busiest
            .percentiles
            .iter()
            .map(|(share, most)| (BusiestWindow::name(*share), *most))
            .collect(),
    });
    let point = |point: &CurvePoint| PointObject {
        limit: point.limit,
        denied: point.denied,
        denied_keys: point.denied_keys,
    };
    let recommended = suggested.recommended.as_ref().map(|recommended| RecommendedObject {
        algorithm: &recommended.algorithm,
        limit: recommended.quota.to_string(),
        reason: &recommended.reason,
        yaml: &recommended.yaml,
        curve: recommended.curve.iter().map(point).collect(),
    });
    SuggestionObject {
        goal: suggested.goal.to_string(),
        found: found.collect(),
        busiest_window: busiest.collect(),
        recommended,
    }
}

fn trial_object<'a>(report: &'a Report, trial: usize, findings: &'a Findings) -> TrialObject<'a> {
    let timeline = &findings.timeline;
    let heat = report.heat.get(trial);
    let most_denied = report.most_denied(trial).enumerate().map(|(at, (name, key))| DeniedObject {
        key: name,
        requests: key.requests,
        denied: findings
            .rows
            .iter()
            .map(|row| row.algorithm.as_str())
            .zip(key.denied.iter().copied())
            .collect(),
        requests_and_denied_over_time: heat.and_then(|heat| heat.keys.get(at)).map_or(&[], Vec::as_slice),
    });
    TrialObject {
        name: report.limits.get(trial).map(String::as_str),
        limit: findings.quota.to_string(),
        requests: findings.requests,
        keys: findings.keys,
        start: moment(timeline, findings.span.0),
        end: moment(timeline, findings.span.1),
        timeline: TimelineObject {
            start: moment(timeline, timeline.start),
            step_seconds: timeline.step as f64 / 1e9,
        },
        requests_over_time: &findings.requests_over_time,
        results: findings.rows.iter().map(|row| object(report, findings, row)).collect(),
        most_denied: most_denied.collect(),
    }
}

fn object<'a>(report: &Report, findings: &Findings, row: &'a Row) -> Object<'a> {
    Object {
        algorithm: &row.algorithm,
        limit: findings.quota.to_string(),
        requests: findings.requests,
        keys: findings.keys,
        admitted: row.admitted,
        denied: row.denied,
        denied_keys: row.denied_keys,
        wrongly_admitted: row.wrongly_admitted,
        wrongly_denied: row.wrongly_denied,
        worst_window: row.worst_window,
        denied_over_time: &row.denied_over_time,
        delays: row.delays.map(DelaysObject::from),
        estimate: row.estimate,
        shared: findings.fleet.zip(row.shared).map(|(fleet, shared)| SharedObject::new(&fleet, &shared)),
        suggested: report.is_suggested(findings, &row.algorithm),
    }
}
