//! Charts as SVG. The page's style sheet sets the colours, so they suit light and dark. Each
//! interval shows its numbers on hover.

use maud::{Markup, html};

use crate::escape::printable;

use super::format::{grouped, moment, percent, percentage, span};
use crate::{
    input::write_time,
    replay::{Findings, Row, SECONDS, Timeline},
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
    const HEIGHT: f64 = 150.0;
    const LEFT: f64 = 62.0;
    const TOP: f64 = 8.0;
    const BOTTOM: f64 = 124.0;
    let timeline = &findings.timeline;
    let y = |count: u64| BOTTOM - (BOTTOM - TOP) * count as f64 / most.max(1) as f64;
    let width = (WIDTH - LEFT) / timeline.stretches as f64;
    let gap = if width > 3.0 { 0.8 } else { 0.0 };
    let end = timeline.start + timeline.stretches as u64 * timeline.step;
    let x = |time: u64| {
        LEFT + (WIDTH - LEFT) * (time - timeline.start) as f64 / (end - timeline.start) as f64
    };
    let stretches = findings
        .requests_over_time
        .iter()
        .zip(&row.denied_over_time)
        .enumerate();
    let stretch = |(at, (&requests, &denied)): (usize, (&u64, &u64))| {
        let left = LEFT + at as f64 * width;
        let admitted = requests - denied;
        html! {
            g class="stretch" {
                title {
                    (moment(timeline, timeline.start + at as u64 * timeline.step)) ": " (grouped(admitted)) " admitted, "
                    (grouped(denied)) " denied (" (percent(denied, requests)) ")"
                }
                (rect("admitted", (left, y(admitted), width - gap, BOTTOM - y(admitted))))
                (rect("denied", (left, y(requests), width - gap, y(admitted) - y(requests))))
            }
        }
    };
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label={ (row.algorithm) " over time" }
            xmlns="http://www.w3.org/2000/svg" {
            @for count in ticks(most) {
                (line((LEFT, y(count)), (WIDTH, y(count))))
                (text(LEFT - 8.0, y(count) + 4.0, "dim end", &grouped(count)))
            }
            @for of in stretches.filter(|(_, (requests, _))| **requests > 0) { (stretch(of)) }
            (line((LEFT, BOTTOM), (WIDTH, BOTTOM)))
            @for (time, label) in time_ticks(timeline, end) {
                (line((x(time), BOTTOM), (x(time), BOTTOM + 4.0)))
                @if x(time) > LEFT + 20.0 && x(time) < WIDTH - 24.0 {
                    (text(x(time), BOTTOM + 18.0, "dim middle", &label))
                }
            }
        }
    }
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

/// About three round numbers up to the highest.
fn ticks(most: u64) -> impl Iterator<Item = u64> {
    let rough = (most / 3).max(1);
    let power = 10_u64.pow(rough.ilog10());
    let step = [1, 2, 5]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(10 * power);
    (0..=most).step_by(usize::try_from(step).unwrap_or(usize::MAX))
}

/// At most five round moments from the timeline's start to its end, with their labels.
fn time_ticks(timeline: &Timeline, end: u64) -> Vec<(u64, String)> {
    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    let seconds = SECONDS.into_iter().map(|seconds| seconds * SECOND);
    let days = [2, 7, 30, 90, 365].map(|days| days * DAY);
    let fits = |step: &u64| end / step - timeline.start / step <= 5;
    let below = std::iter::successors(Some(timeline.step), |step| step.checked_mul(10));
    // Where all is over within seconds, tens of the stretches.
    let candidates = below
        .take_while(|step| *step < SECOND)
        .chain(seconds)
        .chain(days);
    let step = candidates.into_iter().find(fits).unwrap_or(u64::MAX / 2);
    let label = |time: u64| {
        if !timeline.has_dates {
            return span(std::time::Duration::from_nanos(time));
        }
        write_time(
            time,
            if time.is_multiple_of(DAY) {
                "%d %b"
            } else if step < 60 * SECOND {
                "%T"
            } else {
                "%R"
            },
        )
    };
    let first = timeline.start.next_multiple_of(step);
    (0..=5)
        .map(|at| first + at * step)
        .take_while(|time| *time <= end)
        .map(|time| (time, label(time)))
        .collect()
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

fn rect(class: &str, (x, y, width, height): (f64, f64, f64, f64)) -> Markup {
    html! {
        @if height > 0.0 && width > 0.0 {
            rect x=(pixels(x)) y=(pixels(y)) width=(pixels(width)) height=(pixels(height)) class=(class) {}
        }
    }
}
