//! One object for each trial and algorithm.

use std::io::{self, Write};

use serde::Serialize;

use super::Report;
use crate::{
    fleet::{Fleet, Shared},
    replay::{Delays, Estimate},
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
    denied_wrongly: u64,
    over: u64,
    round_trips: u64,
    waited: u64,
}

impl SharedObject {
    fn new(fleet: &Fleet, shared: &Shared) -> Self {
        Self {
            nodes: fleet.nodes.get(),
            mode: shared.mode.name(),
            round_trip_us: fleet.round_trip.as_secs_f64() * 1e6,
            admitted_in_one_place: shared.admitted_in_one_place,
            denied_wrongly: shared.denied_wrongly,
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

/// Writes an array with one object for each trial and algorithm, indented, with a line end.
///
/// Each has `algorithm`, `limit`, `requests`, `keys`, `admitted`, `denied`, `denied_keys`, `wrongly_admitted`,
/// `wrongly_denied` and `worst_window`; the leaky bucket also `delays` (`delayed`, `mean_ms`, `longest_ms`), the
/// sliding counter `estimate` (see [`Estimate`]), one whose limit was suggested `suggested: true`, and one that nodes
/// share `shared` (`nodes`, `mode`, `round_trip_us`, and the counts of [`Shared`]).
///
/// # Errors
/// Those of the writer.
pub fn write_json(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut objects = Vec::new();
    for findings in &report.findings {
        objects.extend(findings.rows.iter().map(|row| Object {
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
            delays: row.delays.map(DelaysObject::from),
            estimate: row.estimate,
            shared: findings.fleet.zip(row.shared).map(|(fleet, shared)| SharedObject::new(&fleet, &shared)),
            suggested: report.is_suggested(findings, &row.algorithm),
        }));
    }
    serde_json::to_writer_pretty(&mut *out, &objects)?;
    writeln!(out)
}
