//! Charts as SVG. The page's style sheet sets the colours, so they suit light and dark. Each
//! interval shows its numbers on hover.

use maud::{Markup, html};

use tidegate_chart::{Chart, Layer, rate};

use super::format::{grouped, moment, percent, percentage};
use crate::{
    escape::printable,
    input::write_time,
    replay::{Findings, Row, Timeline},
    suggest::{CurvePoint, Recommendation},
};

/// Narrow enough that its text stays readable if several charts are side by side, or on a phone.
const WIDTH: f64 = 480.0;

/// The intervals of one key: a cell for each, transparent without requests.
pub(super) fn heat_row(name: &str, steps: &[(u64, u64)]) -> Markup {
    // Never so faint that a denial is invisible.
    let opacity = |denied: u64, requests: u64| {
        format!("{:.2}", 0.25 + 0.75 * denied as f64 / requests as f64)
    };
    html! {
        svg viewBox={ "0 0 " (steps.len() * 10) " 10" } preserveAspectRatio="none" role="img"
            aria-label=(printable(name, 60)) xmlns="http://www.w3.org/2000/svg" {
            @for (at, &(requests, denied)) in steps.iter().enumerate().filter(|(_, (requests, _))| *requests > 0) {
                g {
                    title { (grouped(denied)) " of " (grouped(requests)) " denied" }
                    rect x=(at * 10) y="0" width="9.5" height="10" class="idle" {}
                    @if denied > 0 {
                        rect x=(at * 10) y="0" width="9.5" height="10" class="denied"
                            fill-opacity=(opacity(denied, requests)) {}
                    }
                }
            }
        }
    }
}

/// The admissions and denials of one algorithm in each interval, on a scale up to `most`.
pub(super) fn over_time(findings: &Findings, row: &Row, most: u64) -> Markup {
    let timeline = &findings.timeline;
    let pairs = findings.requests_over_time.iter().copied();
    let pairs: Vec<_> = pairs.zip(row.denied_over_time.iter().copied()).collect();
    // The limit of each key does not hold for all of them together.
    let limit = (findings.keys == 1).then(|| line_of(findings));
    let words = format!(
        "{}: {} denied ({})",
        row.algorithm,
        grouped(row.denied),
        percent(row.denied, findings.requests)
    );
    drawn(
        timeline,
        timeline.step,
        &pairs,
        &words,
        limit.flatten(),
        most,
    )
}

/// The requests and denials of one key in parts of the timeline, with the limit as a line.
pub(super) fn of_key(findings: &Findings, name: &str, step: u64, parts: &[(u64, u64)]) -> Markup {
    let denied: u64 = parts.iter().map(|(_, denied)| denied).sum();
    let words = format!("{}: {} denied", printable(name, 60), grouped(denied));
    drawn(
        &findings.timeline,
        step,
        parts,
        &words,
        line_of(findings),
        0,
    )
}

/// Requests and denials in steps of this length, from the beginning of the timeline on.
fn drawn(
    timeline: &Timeline,
    step: u64,
    pairs: &[(u64, u64)],
    words: &str,
    limit: Option<(f64, String)>,
    scale: u64,
) -> Markup {
    let layer = |class, counts: Vec<u64>| Layer {
        class,
        name: class.to_owned(),
        counts,
    };
    let layers = [
        layer(
            "admitted",
            pairs
                .iter()
                .map(|(all, denied)| all.saturating_sub(*denied))
                .collect(),
        ),
        layer("denied", pairs.iter().map(|(_, denied)| *denied).collect()),
    ];
    Chart {
        words,
        start: timeline.start,
        step,
        steps: pairs.len(),
        layers: &layers,
        scale,
        limit,
        marks: &[],
        lists_marks: false,
        time: &|time, spacing| written(timeline, time, spacing),
        hover: true,
    }
    .figure()
}

/// The rate that the limit permits a key, with its words.
fn line_of(findings: &Findings) -> Option<(f64, String)> {
    let window = findings.quota.window().as_secs_f64();
    let per_second = findings.quota.limit() as f64 / window;
    let words = || format!("limit {} ({})", findings.quota, rate(per_second));
    per_second.is_finite().then(|| (per_second, words()))
}

/// A time on the axis of a chart.
fn written(timeline: &Timeline, time: u64, spacing: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    if spacing == 0 || !timeline.has_dates {
        return moment(timeline, time);
    }
    let form = match time {
        _ if time.is_multiple_of(DAY) => "%d %b",
        _ if spacing < SECOND => "%T%.3f",
        _ if spacing < 60 * SECOND => "%T",
        _ => "%R",
    };
    write_time(time, form)
}

/// The shares of requests and of keys that an algorithm denies with each limit. Limits are on a
/// logarithmic scale, and the suggested ones are marked.
pub(super) fn curve(recommended: &Recommendation, all: &Findings) -> Markup {
    const HEIGHT: f64 = 180.0;
    const LEFT: f64 = 62.0;
    const RIGHT: f64 = WIDTH - 24.0;
    const TOP: f64 = 14.0;
    const BOTTOM: f64 = 148.0;
    let points = &recommended.curve;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return html! {};
    };
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let shares = |point: &CurvePoint| {
        [
            share(point.denied, all.requests),
            share(point.denied_keys, all.keys),
        ]
    };
    let most = points.iter().flat_map(shares).fold(0.001, f64::max);
    let log = |limit: u64| (limit as f64).ln();
    let wide = (log(last.limit) - log(first.limit)).max(f64::MIN_POSITIVE);
    let x = |limit: u64| LEFT + (RIGHT - LEFT) * (log(limit) - log(first.limit)) / wide;
    let y = |share: f64| BOTTOM - (BOTTOM - TOP) * share / most;
    let path = |of: usize| {
        let steps: Vec<String> = points
            .iter()
            .map(|point| {
                format!(
                    "{},{}",
                    pixels(x(point.limit)),
                    pixels(y(shares(point)[of]))
                )
            })
            .collect();
        steps.join(" ")
    };
    let milder = recommended.milder.map(|milder| milder.quota.limit());
    let marks = [Some(recommended.quota.limit()), milder];
    let words = format!(
        "Shares denied by {} with limits from {} to {}",
        recommended.algorithm,
        grouped(first.limit),
        grouped(last.limit)
    );
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(words) xmlns="http://www.w3.org/2000/svg" class="curve" {
            @for part in [0.0, 0.5, 1.0] {
                (line((LEFT, y(most * part)), (RIGHT, y(most * part))))
                (text(LEFT - 8.0, y(most * part) + 4.0, "dim end", &percentage(most * part, true)))
            }
            @for limit in marks.into_iter().flatten() {
                line class="limit" x1=(pixels(x(limit))) y1=(pixels(TOP)) x2=(pixels(x(limit))) y2=(pixels(BOTTOM)) {}
                (text(x(limit), TOP - 4.0, "middle", &grouped(limit)))
            }
            @for limit in [first.limit, last.limit] {
                (text(x(limit), BOTTOM + 18.0, "dim middle", &grouped(limit)))
            }
            polyline class="denied" points=(path(0)) {}
            polyline class="keys" points=(path(1)) {}
            @for point in points {
                @let [requests, keys] = shares(point);
                g {
                    title { (grouped(point.limit)) ": denies " (percent(point.denied, all.requests)) " of requests and " (percent(point.denied_keys, all.keys)) " of keys" }
                    circle class="denied" cx=(pixels(x(point.limit))) cy=(pixels(y(requests))) r="3" {}
                    circle class="keys" cx=(pixels(x(point.limit))) cy=(pixels(y(keys))) r="3" {}
                }
            }
        }
    }
}

/// Two decimals are a hundredth of a pixel.
fn pixels(length: f64) -> String {
    format!("{length:.2}")
}

fn text(x: f64, y: f64, class: &str, text: &str) -> Markup {
    html! { text x=(pixels(x)) y=(pixels(y)) class=(class) { (text) } }
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> Markup {
    html! { line x1=(pixels(x1)) y1=(pixels(y1)) x2=(pixels(x2)) y2=(pixels(y2)) {} }
}
