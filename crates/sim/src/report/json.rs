//! Findings as one JSON object.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde_json::{Value, json};

use super::{
    BusiestWindow, Report, Suggested,
    format::{moment, span},
};
use crate::replay::{Findings, Row};

/// Writes one indented JSON object with a line end. It contains everything that the table and the
/// page show.
///
/// `trials` has an object for each limit: `name` (of a limit of a rules file), `limit`, `requests`,
/// `keys`, `start`, `end`, `timeline` (`start`, `step_seconds`), `requests_over_time`,
/// `most_denied` (`key`, `requests`, `denied` by algorithm, `requests_and_denied_over_time`) and
/// `results`, one for each algorithm: `algorithm`, `limit`, `requests`, `keys`, `admitted`,
/// `denied`, `denied_keys`, `wrongly_admitted`, `wrongly_denied`, `worst_window`,
/// `denied_over_time`; the leaky bucket also `delays` (`delayed`, `mean_ms`, `longest_ms`), the
/// sliding counter `estimate` (see [`Estimate`](crate::replay::Estimate)), one whose limit was
/// suggested `suggested: true`, and one that nodes share `shared` (`nodes`, `mode`,
/// `round_trip_us`, and the counts of [`Sharing`](crate::fleet::Sharing)).
///
/// Besides these there are `command`, `date`, `source`, `by`, `lines`, `unparsed`, `excluded`,
/// `samples` (`line`, `keys`, `time`, `path`, `cost`), `warnings`, `conclusions`, and on request `suggestion`: `goal`, `found`, `busiest_window` and
/// `recommended` (`algorithm`, `limit`, `reason`, `yaml`, `curve`). `shares` has an object for each limit that tenants share: `name` (of a limit of
/// a rules file), `by`, and the fields of [`SharesFindings`](crate::SharesFindings).
///
/// # Errors
/// The errors of the writer.
pub fn write_json(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let trials = report.findings.iter().enumerate();
    let trials: Vec<Value> = trials
        .map(|(at, findings)| trial(report, at, findings))
        .collect();
    let mut document = json!({
        "command": report.command,
        "date": report.date,
        "source": report.source,
        "by": report.by,
        "lines": report.lines,
        "unparsed": report.unparsed,
        "excluded": report.excluded,
        "samples": report.samples,
        "warnings": report.warnings,
        "conclusions": report.conclusions(),
        "trials": trials,
    });
    if let Some(suggested) = &report.suggested {
        document["suggestion"] = suggestion(suggested);
    }
    if !report.shares.is_empty() {
        let shares = report.shares.iter().map(|shared| {
            let mut object = json!(shared.findings);
            object["by"] = json!(shared.by);
            if !shared.name.is_empty() {
                object["name"] = json!(shared.name);
            }
            object
        });
        document["shares"] = shares.collect();
    }
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

fn suggestion(suggested: &Suggested) -> Value {
    let found = suggested.found.iter().map(|(algorithm, found)| {
        let mut found = json!(found);
        found["algorithm"] = json!(algorithm.label());
        found
    });
    let busiest = suggested.busiest.iter().map(|busiest| {
        let requests = busiest
            .percentiles
            .iter()
            .map(|(share, most)| (BusiestWindow::name(*share), *most));
        json!({"window": span(busiest.window), "requests": requests.collect::<BTreeMap<_, _>>()})
    });
    let mut object = json!({
        "goal": suggested.goal.to_string(),
        "found": found.collect::<Vec<_>>(),
        "busiest_window": busiest.collect::<Vec<_>>(),
    });
    if let Some(recommended) = &suggested.recommended {
        object["recommended"] = json!(recommended);
    }
    object
}

fn trial(report: &Report, trial: usize, findings: &Findings) -> Value {
    let timeline = &findings.timeline;
    let algorithms = || findings.rows.iter().map(|row| row.algorithm.as_str());
    let heat = report.heat.get(trial);
    let most_denied = report
        .most_denied(trial)
        .enumerate()
        .map(|(at, (name, key))| {
            let denied: BTreeMap<_, _> = algorithms().zip(&key.denied).collect();
            let mut object = json!({"key": name, "requests": key.requests, "denied": denied});
            if let Some(steps) = heat
                .and_then(|heat| heat.keys.get(at))
                .filter(|steps| !steps.is_empty())
            {
                object["requests_and_denied_over_time"] = json!(steps);
            }
            object
        });
    let mut object = json!({
        "limit": findings.quota,
        "requests": findings.requests,
        "keys": findings.keys,
        // Without requests there is neither.
        "start": (findings.requests > 0).then(|| moment(timeline, findings.span.0)),
        "end": (findings.requests > 0).then(|| moment(timeline, findings.span.1)),
        "timeline": {"start": moment(timeline, timeline.start), "step_seconds": timeline.step as f64 / 1e9},
        "requests_over_time": findings.requests_over_time,
        "results": findings.rows.iter().map(|row| result(report, findings, row)).collect::<Vec<_>>(),
        "most_denied": most_denied.collect::<Vec<_>>(),
    });
    if let Some(name) = report.limits.get(trial) {
        object["name"] = json!(name);
    }
    object
}

fn result(report: &Report, findings: &Findings, row: &Row) -> Value {
    let mut object = json!(row);
    object["limit"] = json!(findings.quota);
    object["requests"] = json!(findings.requests);
    object["keys"] = json!(findings.keys);
    if let Some((fleet, shared)) = findings.fleet.zip(row.shared) {
        object["shared"] = json!(shared);
        object["shared"]["nodes"] = json!(fleet.nodes.get());
        object["shared"]["mode"] = json!(shared.mode.name());
        object["shared"]["round_trip_us"] = json!(fleet.round_trip.as_secs_f64() * 1e6);
    }
    if report.is_suggested(findings, &row.algorithm) {
        object["suggested"] = json!(true);
    }
    object
}
