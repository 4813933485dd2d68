//! Charts as SVG. The page's style sheet sets the colours, so they suit light and dark. Each
//! interval shows its numbers on hover.

use maud::{Markup, html};

use crate::escape::printable;

use super::format::{grouped, moment, percent, span};
use crate::{
    input::write_time,
    replay::{Findings, Row, SECONDS, Timeline},
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
