//! The overview of all limits, those with the most denials first.

use std::collections::HashMap;

use axum::http::Uri;
use maud::{Markup, html};
use tidegate_service::{
    decide::{limits::Limit, service::DeniedKey},
    observe::history::{OUTCOMES, Points, Step},
};

use super::{
    Missing, denied, latency,
    layout::{Frame, layout},
    shown,
};
use crate::{
    control::{
        ControlPlane,
        chart::{self, Pair},
    },
    edges::http::{App, permit::Viewer, query},
};

/// The number of seconds in the small charts.
const RECENT: usize = 60;
/// The number of seconds over which rates are averaged.
const RATE: usize = 10;

/// A limit's admitted and denied requests in each step. Requests that a shadow limit would have
/// denied count as denied.
pub(super) fn pairs(points: &Points<{ OUTCOMES.len() }>) -> Vec<Pair> {
    let pair = |point: &[u32; OUTCOMES.len()]| {
        let [allowed, delayed, denied, shadow, ..] = point.map(u64::from);
        [allowed + delayed, denied + shadow]
    };
    points.points.iter().map(pair).collect()
}

/// The mean of the latest seconds.
pub(super) fn rates(pairs: &[Pair]) -> [f64; 2] {
    let last = &pairs[pairs.len().saturating_sub(RATE)..];
    [0, 1].map(|at| last.iter().map(|pair| pair[at] as f64).sum::<f64>() / last.len().max(1) as f64)
}

struct Row<'a> {
    limit: &'a Limit,
    rates: [f64; 2],
}

/// The limits on one page. With their charts they are about 25 kB, which are sent each second.
const PAGE: usize = 25;

/// The head, the order that its link asks for, and what is compared, largest first.
type Column = (&'static str, &'static str, fn(&Row<'_>) -> f64);

const COLUMNS: [Column; 7] = [
    // In the order of the file.
    ("Limit", "file", |_| 0.0),
    ("Admitted/s", "admitted", |row| row.rates[0]),
    ("Denied/s", "denied", |row| row.rates[1]),
    ("Denied", "share", |row| {
        row.rates[1] / (row.rates[0] + row.rates[1]).max(f64::MIN_POSITIVE)
    }),
    ("Last minute", "", |_| 0.0),
    ("Most requests", "", |_| 0.0),
    ("Keys", "keys", |row| row.limit.stats().keys as f64),
];

/// What the page shows: the limits whose names contain `q`, in an order, from a page on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    q: String,
    sort: String,
    page: usize,
}

impl View {
    pub fn of(uri: &Uri) -> Result<Self, Missing> {
        let [q, sort, page] = query::texts(uri, ["q", "sort", "page"])?;
        let page = page.and_then(|page| page.parse().ok()).unwrap_or(1).max(1);
        Ok(Self {
            q: q.unwrap_or_default(),
            sort: sort.unwrap_or_else(|| "denied".to_owned()),
            page,
        })
    }

    /// A link to the same limits in another order or on another page.
    fn link(&self, path: &str, sort: &str, page: usize) -> String {
        format!(
            "{path}?q={}&sort={}&page={page}",
            shown::encoded(&self.q),
            shown::encoded(sort)
        )
    }
}

/// The parts that several renderings share: reading the heavy keys of all limits takes most of
/// the time of a rendering.
#[derive(Default)]
pub(super) struct Kept {
    denied: Option<Vec<DeniedKey>>,
    /// The key with the most requests of each limit, and its share.
    heaviest: HashMap<String, Option<(String, String)>>,
}

impl Kept {
    /// Forgets everything before each fifth rendering.
    pub fn forget_at(&mut self, number: u64) {
        if number.is_multiple_of(5) {
            *self = Self::default();
        }
    }
}

pub(super) async fn page(
    control: &ControlPlane,
    uri: &Uri,
    viewer: Viewer,
) -> Result<Frame, Missing> {
    let view = View::of(uri)?;
    let live = view.link("/live", &view.sort, view.page);
    let head = html! {
        h1 { "Limits" }
        form class="filter" role="search" action="/" {
            label for="q" { "Name contains" }
            input id="q" name="q" value=(view.q) autocomplete="off";
            input type="hidden" name="sort" value=(view.sort);
            button type="submit" { "Filter" }
        }
    };
    Ok(layout(
        "Limits",
        "/",
        Some(&live),
        head,
        changing(control, &view, viewer, &mut Kept::default()).await,
    ))
}

/// The part that is updated each second.
pub(super) async fn changing(
    control: &ControlPlane,
    view: &View,
    viewer: Viewer,
    kept: &mut Kept,
) -> Markup {
    let app = &control.app;
    let most = kept
        .denied
        .get_or_insert_with(|| denied::most(app, &view.q));
    let denied = denied::section(app, most, viewer).await;
    let limits = app.service.limits();
    let recent = |limit: &Limit, seconds| {
        let name = &limit.spec().name;
        let points = app.service.history().of(name, Step::Second, seconds);
        points.as_ref().map(pairs).unwrap_or_default()
    };
    // All limits are sorted by their rates, and only those on the page have a chart.
    let row = |limit| Row {
        limit,
        rates: rates(&recent(limit, RATE)),
    };
    let named = limits
        .limits()
        .iter()
        .filter(|limit| limit.spec().name.contains(&view.q));
    let mut rows: Vec<Row<'_>> = named.map(|limit| row(limit)).collect();
    // Among equals, in the order of the file.
    if let Some((_, _, by)) = COLUMNS.iter().find(|(_, sort, _)| *sort == view.sort) {
        rows.sort_by(|one, other| by(other).total_cmp(&by(one)));
    }
    let pages = rows.len().div_ceil(PAGE).max(1);
    let at = view.page.min(pages);
    let total = |step, most| app.service.history().total(step, most);
    let marks = control.marks_of(None, None);
    let chart = chart::recent(total, ("All limits", false), &None, &marks);
    html! {
        ul class="facts" {
            li { (shown::grouped(rows.len() as u64)) " of " (shown::grouped(limits.limits().len() as u64)) " limits" }
            @if let Some(words) = answers(app) { li { (words) } }
            @if let Some(shared) = app.service.store() {
                li { a href="/servers" { (shown::counted(shared.store().nodes().into(), "server")) } }
            }
        }
        (denied)
        @if let Some(chart) = chart { (chart) }
        table class="limits" role="table" {
            caption class="hidden" { "Limits" }
            thead role="rowgroup" { tr role="row" {
                @for (head, sort, _) in COLUMNS {
                    @let order = (sort == view.sort).then_some(if sort == "file" { "other" } else { "descending" });
                    th role="columnheader" scope="col" aria-sort=[order] class=[(head == "Most requests").then_some("key")] {
                        @if sort.is_empty() { (head) } @else { a href=(view.link("/", sort, 1)) { (head) } }
                    }
                }
            } }
            tbody role="rowgroup" { @for row in rows.iter().skip((at - 1) * PAGE).take(PAGE) { (tr(app, row, &recent(row.limit, RECENT), kept)) } }
        }
        @if pages > 1 {
            nav class="facts" aria-label="Pages of limits" {
                @if at > 1 { a href=(view.link("/", &view.sort, at - 1)) { "Previous page" } }
                span { "Page " (at) " of " (pages) }
                @if at < pages { a href=(view.link("/", &view.sort, at + 1)) { "Next page" } }
            }
        }
    }
}

fn tr(app: &App, row: &Row<'_>, pairs: &[Pair], kept: &mut Kept) -> Markup {
    let Row {
        limit,
        rates: [admitted, denied],
    } = row;
    let (spec, stats) = (limit.spec(), limit.stats());
    let name = &spec.name;
    let most = chart::most(pairs);
    let what = if spec.shadow {
        "would have been denied"
    } else {
        "denied"
    };
    let [admits, denies] = chart::sum(pairs).map(shown::grouped);
    let words = format!(
        "{admits} admitted and {denies} {what} in the last minute, at most {most} a second"
    );
    let heaviest = kept.heaviest.entry(name.clone()).or_insert_with(|| {
        let top = limit.top(1, app.service.now())?;
        let first = top.asked.first()?;
        let share = shown::share(first.count as f64, top.requests.max(first.count) as f64);
        Some((shown::text(&String::from_utf8_lossy(&first.key)), share))
    });
    // A shadow limit denies nothing.
    let kind = if spec.shadow {
        Some("shadow")
    } else {
        (*denied > 0.0).then_some("hurts")
    };
    html! {
        tr role="row" data-row={ "limit " (shown::encoded(name)) } class=[kind] {
            th role="rowheader" scope="row" {
                a id={ "limit-" (shown::encoded(name)) } href={ "/limit?name=" (shown::encoded(name)) } { (shown::text(name)) }
                small { (spec.policy.quota()) " " (spec.policy.algorithm.name())
                    @if spec.shadow { " · shadow" }
                    @if spec.global { " · global" }
                    @if limit.sharing() != "local" { " · " (limit.sharing()) }
                }
            }
            td role="cell" data-head="Admitted/s" { (shown::rate(*admitted)) }
            td role="cell" data-head="Denied/s" {
                @if spec.shadow { small { "would be " } } (shown::rate(*denied))
            }
            td role="cell" data-head="Denied" {
                @if spec.shadow { small { "would be " } } (shown::share(*denied, admitted + denied))
            }
            td role="cell" class="chart" data-head="Last minute" {
                (chart::minute(pairs, &words))
                small { "≤ " (shown::grouped(most)) "/s" }
            }
            td role="cell" class="key" data-head="Most requests" {
                @if let Some((key, share)) = heaviest {
                    (key) " " small { (share) }
                } @else { "–" }
            }
            td role="cell" data-head="Keys" { @if spec.global { "–" } @else { (shown::grouped(stats.keys)) } }
        }
    }
}

/// The latencies of answers in the last minute.
fn answers(app: &App) -> Option<String> {
    let latencies = app.service.history().latency(Step::Second, RECENT)?;
    let sums = latency::sums(&latencies.points);
    let all: u64 = sums.iter().sum();
    Some(format!(
        "{} answers in the last minute, {}",
        shown::grouped(all),
        latency::within(&sums)?
    ))
}
