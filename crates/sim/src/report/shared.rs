//! The cost of sharing a limit between nodes: the part of each report that only fleets have.

use super::{
    Report,
    format::{grouped, percent, span},
};
use crate::{
    fleet::{Fleet, Sharing},
    replay::{Findings, Row},
};

/// The heads of the columns.
pub(super) const HEADS: [&str; 9] = [
    "limit",
    "algorithm",
    "mode",
    "admitted",
    "in one place",
    "denied by sharing",
    "over",
    "round trips",
    "a decision",
];

/// The fleet, and a row of cells for each trial and algorithm; `None` if no nodes share the limits.
pub(super) fn rows(report: &Report) -> Option<(Fleet, Vec<[String; 9]>)> {
    let fleet = report.findings.first()?.fleet?;
    let cells = report
        .rows()
        .filter_map(|(_, findings, row)| Some(cells(findings, row, row.shared.as_ref()?)));
    Some((fleet, cells.collect()))
}

fn cells(findings: &Findings, row: &Row, shared: &Sharing) -> [String; 9] {
    [
        findings.quota.to_string(),
        row.algorithm.clone(),
        shared.mode.to_string(),
        grouped(row.admitted),
        grouped(shared.admitted_in_one_place),
        format!(
            "{} ({})",
            grouped(shared.denied_by_sharing),
            percent(shared.denied_by_sharing, findings.requests)
        ),
        grouped(shared.over),
        grouped(shared.round_trips),
        format!(
            "{:.3}",
            shared.round_trips as f64 / findings.requests.max(1) as f64
        ),
    ]
}

/// The fleet in words.
pub(super) fn describe(fleet: &Fleet) -> String {
    let nodes = fleet.nodes.get();
    let dying = fleet
        .node_life
        .map(|life| format!(", each dying after {}", span(life)));
    format!(
        "{nodes} {}, {}, {} to the authority and back{}",
        if nodes == 1 { "node" } else { "nodes" },
        fleet.mode,
        span(fleet.round_trip),
        dying.unwrap_or_default(),
    )
}

/// The meaning of the columns, for reports without the help text.
pub(super) const LEGEND: &str = "In one place: what the algorithm admits if one place makes every decision immediately. \
    Denied by sharing: denied, although admitted there. Over: the most admitted requests in any window that the algorithm, \
    asked at the times of their admission, would have denied. A decision: round trips per decision.";
