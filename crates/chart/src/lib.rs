//! Charts of requests over time, as SVG: bars whose colours are the reasons of denials, axes of time
//! and rate, a limit as a line, and numbered marks for events.
//!
//! A chart takes the width that its page has, and its text keeps its size: positions along the time
//! axis are percentages, and only the bars are stretched. Colours come from [`STYLE`], for light and
//! dark. Nothing in a chart needs a script or a style attribute, so that a strict content security
//! policy can show it.

mod axis;
mod bars;

use maud::{Markup, html};

pub use self::{axis::rate, bars::spark};
use self::{
    axis::{Unit, moments},
    bars::areas,
};

/// The style sheet of charts.
pub const STYLE: &str = include_str!("style.css");

/// The height of the bars in pixels, and of the flags above them.
const PLOT: u64 = 120;
const TOP: u64 = 22;
const BOTTOM: u64 = TOP + PLOT;
const HEIGHT: u64 = BOTTOM + 22;
/// Marks that are closer than this share of the width have one flag.
const FLAG: f64 = 4.0;
/// A limit above three times the highest bar would flatten the bars: the legend says it.
const HIGHEST_LIMIT: f64 = 3.0;
const SECOND: f64 = 1e9;

/// A colour of the bars, with the requests in each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The class of the colour: `admitted`, `denied`, `shadow`, `blocked`, `table-full`,
    /// `store-down`.
    pub class: &'static str,
    /// The words in the legend.
    pub name: String,
    /// The requests in each step.
    pub counts: Vec<u64>,
}

/// An event, or something that lasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it happened or began, in nanoseconds, as the chart's times.
    pub from: u64,
    /// When it ended, or the end of the chart, for what lasts.
    pub until: Option<u64>,
    /// Whether decisions were wrong or closed because of it.
    pub is_wrong: bool,
    /// The words for the event.
    pub text: String,
}

/// Writes a time, for an axis whose ticks are this far apart (0: a time on its own, in full). Both are
/// in nanoseconds.
pub type WriteTime<'a> = &'a dyn Fn(u64, u64) -> String;

/// Requests over time.
pub struct Chart<'a> {
    /// Its subject, for the caption and for readers who cannot see it.
    pub words: &'a str,
    /// When the first step began, in nanoseconds.
    pub start: u64,
    /// The length of a step, in nanoseconds.
    pub step: u64,
    /// The steps for which the width stands. Counts for fewer begin at `start`, too.
    pub steps: usize,
    /// From the bottom to the top.
    pub layers: &'a [Layer],
    /// The highest number of requests in a step of charts that have the same scale; 0 for its own.
    pub scale: u64,
    /// The rate that a limit permits, in requests per second, and its words.
    pub limit: Option<(f64, String)>,
    /// Events, in any order.
    pub marks: &'a [Mark],
    /// Whether the words of the marks stand below the chart. One list is enough for charts of the
    /// same time, one below the other.
    pub lists_marks: bool,
    /// Writes the times of the axis and of the marks.
    pub time: WriteTime<'a>,
    /// Whether each step shows its numbers when a pointer is over it. That is long.
    pub hover: bool,
}

impl Chart<'_> {
    /// The chart with its caption, its legend, and below it the words of its marks.
    #[must_use]
    pub fn figure(&self) -> Markup {
        let flags = self.flags();
        html! {
            figure class="time-chart" {
                figcaption { (self.words) }
                (self.legend())
                (self.drawn(&flags))
                @if self.lists_marks && !flags.is_empty() {
                    ol class="marks" { @for flag in &flags { li class=[flag.is_wrong().then_some("wrong")] {
                        @for (at, mark) in flag.marks.iter().enumerate() {
                            @if at > 0 { "; " }
                            time { (self.when(mark)) } " " (mark.text)
                        }
                    } } }
                }
            }
        }
    }

    fn end(&self) -> u64 {
        let span = self.step.saturating_mul(self.steps as u64);
        self.start.saturating_add(span)
    }

    /// How far a time is along the axis, in percent.
    fn x(&self, time: u64) -> f64 {
        let span = (self.end() - self.start).max(1) as f64;
        let from_start = time.clamp(self.start, self.end()) - self.start;
        100.0 * from_start as f64 / span
    }

    fn when(&self, mark: &Mark) -> String {
        let write = |time| (self.time)(time, 1_000_000_000);
        match mark.until {
            Some(until) if until >= self.end() => format!("from {}", write(mark.from)),
            Some(until) => format!("{} to {}", write(mark.from), write(until)),
            None => write(mark.from),
        }
    }

    /// The marks within the chart, those that are close together as one.
    fn flags(&self) -> Vec<Flag<'_>> {
        let ends = |mark: &Mark| mark.until.unwrap_or(mark.from);
        let shown = |mark: &&Mark| mark.from <= self.end() && ends(mark) >= self.start;
        let mut marks: Vec<&Mark> = self.marks.iter().filter(shown).collect();
        marks.sort_by_key(|mark| mark.from);
        let mut flags: Vec<Flag<'_>> = Vec::new();
        for mark in marks {
            let at = self.x(mark.from);
            match flags.last_mut() {
                Some(flag) if at - flag.at < FLAG => flag.marks.push(mark),
                _ => flags.push(Flag {
                    at,
                    marks: vec![mark],
                }),
            }
        }
        flags
    }

    fn legend(&self) -> Markup {
        let shown = |layer: &&Layer| layer.counts.iter().any(|count| *count > 0);
        let (_, is_drawn, _) = self.scales();
        html! {
            ul class="legend" {
                @for layer in self.layers.iter().filter(shown) {
                    li { (swatch(layer.class)) (layer.name) }
                }
                @if let Some((_, words)) = &self.limit {
                    li { @if is_drawn { (swatch("limit")) } (words) @if !is_drawn { ", above this chart" } }
                }
            }
        }
    }

    /// The highest rate in requests per second, whether the limit is drawn, and the unit.
    fn scales(&self) -> (f64, bool, Unit) {
        let sums = bars::sums(self.layers);
        let most = sums.iter().copied().max().unwrap_or(0).max(self.scale);
        let per_second = most as f64 * SECOND / self.step.max(1) as f64;
        let limit = self.limit.as_ref().map_or(0.0, |(limit, _)| *limit);
        let is_drawn = limit > 0.0 && (most == 0 || limit <= per_second * HIGHEST_LIMIT);
        let highest = if is_drawn {
            per_second.max(limit * 1.05)
        } else {
            per_second
        };
        // A chart without a request has an axis, too.
        let highest = if highest > 0.0 { highest } else { 1.0 };
        (highest, is_drawn, Unit::fitting(highest))
    }

    fn drawn(&self, flags: &[Flag<'_>]) -> Markup {
        let (highest, has_limit, unit) = self.scales();
        let y = |rate: f64| BOTTOM as f64 - PLOT as f64 * rate / highest;
        let ticks = unit.ticks(highest);
        let limit = self.limit.as_ref().filter(|_| has_limit);
        // The height of the bars stands for the highest rate.
        let full = highest * self.step as f64 / SECOND;
        html! {
            div class="plot" {
                svg class="rates" width="52" height=(HEIGHT) aria-hidden="true" {
                    @for (rate, words) in &ticks { text x="46" y=(pixels(y(*rate) + 4.0)) { (words) } }
                }
                svg class="times" height=(HEIGHT) width="100%" role="img" aria-label=(self.words) {
                    @for (rate, _) in &ticks { (line(("0", "100%"), (y(*rate), y(*rate)), "grid")) }
                    @for mark in flags.iter().flat_map(|flag| &flag.marks) {
                        @if let Some(until) = mark.until {
                            @let (left, right) = (self.x(mark.from), self.x(until));
                            rect class={ "span" @if mark.is_wrong { " wrong" } } x=(percent(left)) width=(percent(right - left)) y=(TOP) height=(PLOT) {}
                        }
                    }
                    svg y=(TOP) width="100%" height=(PLOT) viewBox={ "0 0 " (self.steps) " " (PLOT) } preserveAspectRatio="none" {
                        (areas(self.layers, PLOT, full))
                        @if self.hover { (self.hovered()) }
                    }
                    @if let Some((rate, _)) = limit { (line(("0", "100%"), (y(*rate), y(*rate)), "limit")) }
                    @for (number, flag) in flags.iter().enumerate() {
                        @let x = percent(flag.at);
                        (line((&x, &x), (TOP as f64 - 4.0, BOTTOM as f64), if flag.is_wrong() { "mark wrong" } else { "mark" }))
                        text class=(if flag.is_wrong() { "flag wrong" } else { "flag" }) x=(x) y=(TOP - 8) { (number + 1) }
                    }
                    (line(("0", "100%"), (BOTTOM as f64, BOTTOM as f64), "axis"))
                    @for (time, spacing) in moments(self.start, self.end()) {
                        @let at = self.x(time);
                        @let x = percent(at);
                        (line((&x, &x), (BOTTOM as f64, BOTTOM as f64 + 4.0), "axis"))
                        // The edge would cut a label next to it.
                        @if (4.0..=96.0).contains(&at) { text class="time" x=(x) y=(HEIGHT - 4) { ((self.time)(time, spacing)) } }
                    }
                }
            }
        }
    }

    /// An invisible box for each step that has requests, with its numbers.
    fn hovered(&self) -> Markup {
        let sums = bars::sums(self.layers);
        let numbers = |at: usize| {
            let count = |layer: &Layer| layer.counts.get(at).copied().unwrap_or(0);
            let some = self.layers.iter().filter(|layer| count(layer) > 0);
            let each = some.map(|layer| format!("{} {}", count(layer), layer.class));
            each.collect::<Vec<_>>().join(", ")
        };
        let time = |at: usize| {
            let time = self
                .start
                .saturating_add(self.step.saturating_mul(at as u64));
            (self.time)(time, 0)
        };
        html! {
            @for (at, _) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0) {
                rect class="step" x=(at) y="0" width="1" height=(PLOT) { title { (time(at)) ": " (numbers(at)) } }
            }
        }
    }
}

/// Marks at one place.
struct Flag<'a> {
    at: f64,
    marks: Vec<&'a Mark>,
}

impl Flag<'_> {
    fn is_wrong(&self) -> bool {
        self.marks.iter().any(|mark| mark.is_wrong)
    }
}

/// A small box in a layer's colour, for a legend.
#[must_use]
pub fn swatch(class: &str) -> Markup {
    html! { span class={ "swatch " (class) } {} " " }
}

fn line((x1, x2): (&str, &str), (y1, y2): (f64, f64), class: &str) -> Markup {
    html! { line class=(class) x1=(x1) x2=(x2) y1=(pixels(y1)) y2=(pixels(y2)) {} }
}

fn percent(share: f64) -> String {
    format!("{share:.2}%")
}

fn pixels(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests;
