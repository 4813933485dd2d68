//! Charts as SVG. The page's style sheet sets the colours, so they suit light and dark. Each interval shows its numbers
//! on hover.

use std::fmt::Write as _;

use super::{
    escape::{html, printable},
    format::{grouped, moment, percent, span},
};
use crate::{
    input::write_utc,
    replay::{Findings, Row, Timeline},
};

/// Narrow enough that its text stays readable if several charts are side by side, or on a phone.
const WIDTH: f64 = 480.0;

/// The intervals of one key: a cell for each, transparent without requests.
pub(super) fn heat_row(name: &str, steps: &[(u64, u64)]) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\" \
         xmlns=\"http://www.w3.org/2000/svg\">",
        steps.len() * 10,
        html(&printable(name, 60))
    );
    for (at, &(requests, denied)) in steps.iter().enumerate().filter(|(_, (requests, _))| *requests > 0) {
        let x = at as f64 * 10.0;
        let _ = write!(svg, "<g><title>{} of {} denied</title>", grouped(denied), grouped(requests));
        rect(&mut svg, "idle", (x, 0.0, 9.5, 10.0));
        if denied > 0 {
            // Never so faint that a denial is invisible.
            let opacity = 0.25 + 0.75 * denied as f64 / requests as f64;
            let _ = write!(
                svg,
                "<rect x=\"{x:.2}\" y=\"0\" width=\"9.5\" height=\"10\" class=\"denied\" fill-opacity=\"{opacity:.2}\"/>"
            );
        }
        svg.push_str("</g>");
    }
    svg.push_str("</svg>");
    svg
}

/// The admissions and denials of one algorithm in each interval, on a scale up to `most`.
pub(super) fn over_time(findings: &Findings, row: &Row, most: u64) -> String {
    const HEIGHT: f64 = 150.0;
    const LEFT: f64 = 62.0;
    const TOP: f64 = 8.0;
    const BOTTOM: f64 = 124.0;
    let timeline = &findings.timeline;
    let mut svg = open(HEIGHT, &format!("{} over time", row.algorithm));
    let top = most.max(1) as f64;
    let y = |count: u64| BOTTOM - (BOTTOM - TOP) * count as f64 / top;
    for count in ticks(most) {
        line(&mut svg, "", (LEFT, y(count)), (WIDTH, y(count)));
        text(&mut svg, LEFT - 8.0, y(count) + 4.0, "dim end", &grouped(count));
    }
    let width = (WIDTH - LEFT) / timeline.stretches as f64;
    let gap = if width > 3.0 { 0.8 } else { 0.0 };
    for (at, (&requests, &denied)) in
        findings.requests_over_time.iter().zip(&row.denied_over_time).enumerate()
    {
        if requests == 0 {
            continue;
        }
        let x = LEFT + at as f64 * width;
        let start = timeline.start + at as u64 * timeline.step;
        let admitted = requests - denied;
        let tip = format!(
            "{}: {} admitted, {} denied ({})",
            moment(timeline, start),
            grouped(admitted),
            grouped(denied),
            percent(denied, requests)
        );
        let _ = write!(svg, "<g class=\"stretch\"><title>{}</title>", html(&tip));
        rect(&mut svg, "admitted", (x, y(admitted), width - gap, BOTTOM - y(admitted)));
        rect(&mut svg, "denied", (x, y(requests), width - gap, y(admitted) - y(requests)));
        svg.push_str("</g>");
    }
    line(&mut svg, "", (LEFT, BOTTOM), (WIDTH, BOTTOM));
    let end = timeline.start + timeline.stretches as u64 * timeline.step;
    for (time, label) in time_ticks(timeline, end) {
        let x = LEFT + (WIDTH - LEFT) * (time - timeline.start) as f64 / (end - timeline.start) as f64;
        line(&mut svg, "", (x, BOTTOM), (x, BOTTOM + 4.0));
        if x > LEFT + 20.0 && x < WIDTH - 24.0 {
            text(&mut svg, x, BOTTOM + 18.0, "dim middle", &label);
        }
    }
    svg.push_str("</svg>");
    svg
}

/// About three round numbers up to the highest.
fn ticks(most: u64) -> impl Iterator<Item = u64> {
    let rough = (most / 3).max(1);
    let power = 10_u64.pow(rough.ilog10());
    let step =
        [1, 2, 5].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(10 * power);
    (0..=most).step_by(usize::try_from(step).unwrap_or(usize::MAX))
}

/// At most five round moments from the timeline's start to its end, with their labels.
fn time_ticks(timeline: &Timeline, end: u64) -> Vec<(u64, String)> {
    const SECOND: u64 = 1_000_000_000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let round = [
        SECOND,
        2 * SECOND,
        5 * SECOND,
        10 * SECOND,
        30 * SECOND,
        MINUTE,
        2 * MINUTE,
        5 * MINUTE,
        10 * MINUTE,
        30 * MINUTE,
        HOUR,
        2 * HOUR,
        6 * HOUR,
        12 * HOUR,
        DAY,
        2 * DAY,
        7 * DAY,
        30 * DAY,
        90 * DAY,
        365 * DAY,
    ];
    let fits = |step: &u64| end / step - timeline.start / step <= 5;
    let below = std::iter::successors(Some(timeline.step), |step| step.checked_mul(10));
    // Where all is over within seconds, tens of the stretches.
    let candidates = below.take_while(|step| *step < SECOND).chain(round);
    let step = candidates.into_iter().find(fits).unwrap_or(u64::MAX / 2);
    let label = |time: u64| {
        if !timeline.has_dates {
            return span(std::time::Duration::from_nanos(time));
        }
        let utc = write_utc(time);
        if time.is_multiple_of(DAY) {
            format!("{} {}", &utc[8..10], month(&utc[5..7]))
        } else if step < MINUTE {
            utc[11..].to_owned()
        } else {
            utc[11..16].to_owned()
        }
    };
    let first = timeline.start.next_multiple_of(step);
    (0..=5)
        .map(|at| first + at * step)
        .take_while(|time| *time <= end)
        .map(|time| (time, label(time)))
        .collect()
}

fn month(number: &str) -> &'static str {
    const NAMES: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    number.parse().ok().and_then(|number: usize| NAMES.get(number.wrapping_sub(1)).copied()).unwrap_or("")
}

fn open(height: f64, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" xmlns=\"http://www.w3.org/2000/svg\">",
        html(title)
    )
}

// Writing into a string cannot fail; two decimals are a hundredth of a pixel.

fn text(svg: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let _ = write!(svg, "<text x=\"{x:.2}\" y=\"{y:.2}\" class=\"{class}\">{}</text>", html(text));
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        write!(svg, "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" class=\"{class}\"/>");
}

fn rect(svg: &mut String, class: &str, (x, y, width, height): (f64, f64, f64, f64)) {
    if height > 0.0 && width > 0.0 {
        let _ = write!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" class=\"{class}\"/>"
        );
    }
}
