//! The overview of all limits, those with the most denials first.

use axum::http::Uri;
use maud::{Markup, html};

use super::{
    Missing,
    chart::{Pair, Size, chart},
    denied, latency,
    layout::layout,
    shown,
};
use crate::{
    decide::limits::Limit,
    edges::http::{App, Viewer, health_name, query_fields},
    observe::history::{Points, Step},
};

/// The number of seconds in the small charts.
const RECENT: usize = 60;
/// The number of seconds over which rates are averaged.
const RATE: usize = 10;

/// A limit's admitted and denied requests in each step. Requests that a shadow limit would have denied count as denied.
pub(super) fn pairs(points: &Points<5>) -> Vec<Pair> {
    let pair = |point: &[u32; 5]| {
        let [allowed, delayed, denied, shadow, _] = point.map(u64::from);
        [allowed + delayed, denied + shadow]
    };
    points.points.iter().map(pair).collect()
}

/// The mean of the latest seconds.
pub(super) fn rates(pairs: &[Pair]) -> [f64; 2] {
    let last = &pairs[pairs.len().saturating_sub(RATE)..];
    [0, 1].map(|at| last.iter().map(|pair| pair[at] as f64).sum::<f64>() / last.len().max(1) as f64)
}

/// The maximum number of limits that are listed because their rules differ at another server.
const DIFFERING: usize = 5;

struct Row<'a> {
    limit: &'a Limit,
    pairs: Vec<Pair>,
    rates: [f64; 2],
}

/// The filter of the page: names that contain this text.
pub(super) fn filter(uri: &Uri) -> Result<String, Missing> {
    let [q] = query_fields(uri, ["q"])?;
    Ok(q.unwrap_or_default())
}

pub(super) fn page(app: &App, uri: &Uri, viewer: Viewer) -> Result<Markup, Missing> {
    let q = filter(uri)?;
    let live = format!("/live?q={}", shown::encoded(&q));
    let head = html! {
        h1 { "Limits" }
        form class="filter" role="search" action="/" {
            label for="q" { "Name contains" }
            input id="q" name="q" value=(q) autocomplete="off";
            button type="submit" { "Filter" }
        }
    };
    Ok(layout("Limits", "/", Some(&live), &head, &changing(app, &q, viewer)))
}

/// The part that is updated each second.
pub(super) fn changing(app: &App, q: &str, viewer: Viewer) -> Markup {
    let limits = app.service.limits();
    let row = |limit| {
        let limit: &Limit = limit;
        let told = app.service.history().of(&limit.spec().name, Step::Second, RECENT);
        let pairs = told.as_ref().map(pairs).unwrap_or_default();
        Row { limit, rates: rates(&pairs), pairs }
    };
    let mut rows: Vec<Row<'_>> = limits
        .limits()
        .iter()
        .filter(|limit| limit.spec().name.contains(q))
        .map(|limit| row(limit))
        .collect();
    // Among equals, in the order of the file.
    rows.sort_by(|one, other| other.rates[1].total_cmp(&one.rates[1]));
    html! {
        ul class="facts" {
            li { (rows.len()) " of " (limits.limits().len()) " limits, most denied first" }
            @if let Some(words) = answers(app) { li { (words) } }
            @if let Some(shared) = app.service.store() {
                li {
                    "store " (health_name(shared.store().health())) ", "
                    a href="/servers" { (shared.store().nodes()) " servers" }
                }
                @for differs in shared.store().differing_rules().iter().take(DIFFERING) {
                    li { "limit " (shown::text(&differs.limit)) " has another rule at " (shown::text(&differs.node)) }
                }
            }
        }
        (denied::section(app, q, viewer))
        table class="limits" role="table" {
            caption class="hidden" { "Limits" }
            thead role="rowgroup" { tr role="row" {
                @for head in ["Limit", "Admitted/s", "Denied/s", "Denied", "Last minute", "Most requests", "Keys"] {
                    th role="columnheader" scope="col" class=[(head == "Most requests").then_some("key")] { (head) }
                }
            } }
            tbody role="rowgroup" { @for row in &rows { (tr(app, row)) } }
        }
    }
}

fn tr(app: &App, row: &Row<'_>) -> Markup {
    let Row { limit, pairs, rates: [admitted, denied] } = row;
    let (spec, stats) = (limit.spec(), limit.limiter().stats());
    let name = &spec.name;
    let sum = pairs.iter().fold([0; 2], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]]);
    let words = format!("{} admitted and {} denied in the last minute", sum[0], sum[1]);
    let top = limit.top(1, app.service.now());
    let heaviest = top.as_ref().and_then(|top| Some((top.asked.first()?, top.requests)));
    html! {
        tr role="row" data-row={ "limit " (shown::encoded(name)) } class=[(*denied > 0.0).then_some("hurts")] {
            th role="rowheader" scope="row" {
                a id={ "limit-" (shown::encoded(name)) } href={ "/limit?name=" (shown::encoded(name)) } { (shown::text(name)) }
                small { (spec.policy.quota()) " " (spec.policy.algorithm.name())
                    @if spec.shadow { " · shadow" }
                    @if spec.global { " · global" }
                    @if limit.sharing() != "local" { " · " (limit.sharing()) }
                }
            }
            td role="cell" data-head="Admitted/s" { (shown::rate(*admitted)) }
            td role="cell" data-head="Denied/s" { (shown::rate(*denied)) }
            td role="cell" data-head="Denied" { (shown::share(*denied, admitted + denied)) }
            td role="cell" class="chart" data-head="Last minute" {
                (chart(pairs, RECENT, Size { width: 120, height: 28, steps: RECENT }, &words))
            }
            td role="cell" class="key" data-head="Most requests" {
                @if let Some((top, all)) = heaviest {
                    (shown::text(&String::from_utf8_lossy(&top.key))) " "
                    small { (shown::share(top.count as f64, all.max(top.count) as f64)) }
                } @else { "–" }
            }
            td role="cell" data-head="Keys" { @if spec.global { "–" } @else { (stats.keys) } }
        }
    }
}

/// The latencies of answers in the last minute.
fn answers(app: &App) -> Option<String> {
    let told = app.service.history().latency(Step::Second, RECENT)?;
    let sums = latency::sums(&told.points);
    let all: u64 = sums.iter().sum();
    Some(format!("{all} answers in the last minute, {}", latency::within(&sums)?))
}
