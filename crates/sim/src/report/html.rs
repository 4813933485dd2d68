//! Findings as one self-contained page: no scripts, no fonts, no external pictures.

use std::{
    io::{self, Write},
    time::Duration,
};

use maud::{Markup, PreEscaped, html};

use crate::escape::printable;

use super::{
    Recommendation, Report, Suggested,
    chart::{heat_row, of_key, over_time},
    format::{grouped, moment, percent, span},
    shared,
    table::{HEADS, cells, note, spanned},
    tenants,
};
use crate::replay::{Findings, Row};

/// How many tenants of a limit the page shows.
const TENANTS: usize = 20;

/// Light or dark like the reader's system, and for print.
const CSS: &str = include_str!("style.css");

/// Writes the page. Text from a log is shown as text and never interpreted, and the page forbids
/// scripts.
///
/// # Errors
/// The errors of the writer.
pub fn write_html(out: &mut impl Write, report: &Report) -> io::Result<()> {
    if report.findings.is_empty() && report.shares.is_empty() {
        return Ok(());
    }
    let first = report.findings.first();
    let source = printable(&report.source, 300);
    let page = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "Tidegate simulation: " (source) }
                style { (PreEscaped(tidegate_chart::STYLE)) (PreEscaped(CSS)) }
            }
            body {
                main {
                    h1 { "Who would have been denied" }
                    p class="dim source" { (source) }
                    (lead(report))
                    @if let Some(first) = first {
                        (tiles(report, first))
                        (pictures(report))
                    }
                    (conclusions(report))
                    @if let Some(first) = first {
                        @if let Some(suggested) = &report.suggested { (suggestions(suggested, first)) }
                        (comparison(report))
                    }
                    @for (said, rows) in tenants::sections(report, TENANTS) { (shared_by_tenants(&said, rows)) }
                    (sharing(report))
                    @for (trial, findings) in report.findings.iter().enumerate() { (details(report, trial, findings)) }
                    footer {
                        "Each decision is compared with that of an exact sliding log which runs beside the algorithm on \
                         admissions of its own. Once the two have decided differently their pasts differ, so a “wrong” \
                         decision is not a breach of the limit; the worst window shows that: the most requests of one key \
                         admitted in any window of the limit’s length."
                    }
                }
            }
        }
    };
    writeln!(out, "{}", page.0)
}

/// A card whose contents may be wider than the screen; `label` names it for readers who cannot see
/// it.
fn wide_card(label: &str, contents: &Markup) -> Markup {
    html! { div class="card scroll" role="group" tabindex="0" aria-label=(label) { (contents) } }
}

/// How many conclusions stand above the pictures.
const LEADING: usize = 2;

/// The first conclusions, and where the warnings are.
fn lead(report: &Report) -> Markup {
    html! {
        div class="card conclusions" {
            @for said in report.conclusions().iter().take(LEADING) { p { (printable(said, 400)) } }
            @match report.warnings.len() {
                0 => {},
                1 => p class="warning" { "There is a warning below the pictures." },
                _ => p class="warning" { "There are warnings below the pictures." },
            }
        }
    }
}

/// The other conclusions, the warnings, and how the findings were made.
fn conclusions(report: &Report) -> Markup {
    html! {
        div class="card conclusions" {
            @for said in report.conclusions().iter().skip(LEADING) { p { (printable(said, 400)) } }
            @for warning in &report.warnings { p class="warning" { (printable(warning, 600)) } }
            @for sample in &report.samples {
                p class="dim" { code { (printable(&sample.line, 200)) } br; (printable(&sample.to_string(), 400)) }
            }
            @if !report.command.is_empty() || !report.date.is_empty() {
                p class="dim made" { code { (printable(&report.command, 500)) } " " (printable(&report.date, 60)) }
            }
        }
    }
}

fn tiles(report: &Report, first: &Findings) -> Markup {
    // A limit may concern no request.
    let some = report
        .findings
        .iter()
        .find(|findings| findings.requests > 0);
    let spanning = some.unwrap_or(first);
    let (start, end) = spanning.span;
    let mut tiles = vec![
        (grouped(first.requests), "requests".to_owned()),
        (
            grouped(first.keys),
            format!("keys, by {}", printable(&report.by, 60)),
        ),
        (span(Duration::from_nanos(end - start)), spanned(spanning)),
    ];
    if report.lines > 0 {
        let share = percent(report.unparsed, report.lines);
        tiles.push((
            grouped(report.unparsed),
            format!("lines that are not requests ({share})"),
        ));
    }
    html! {
        div class="tiles" {
            @for (number, what) in tiles { div class="card" { b { (number) } span { (what) } } }
        }
    }
}

fn suggestions(suggested: &Suggested, all: &Findings) -> Markup {
    let head = html! { th { "keys denied" } td {} th { "requests denied" } td {} };
    let denials = |denied: u64, denied_keys: u64| {
        html! {
            td { (grouped(denied_keys)) }
            td { (percent(denied_keys, all.keys)) }
            td { (grouped(denied)) }
            td { (percent(denied, all.requests)) }
        }
    };
    let found = html! {
        p { "The smallest that deny at most " (suggested.goal.to_string()) "." }
        table {
            tr { th { "algorithm" } th { "limit" } (head) }
            @for (algorithm, suggestion) in &suggested.found {
                tr {
                    td { (algorithm.label()) }
                    td { b { (suggestion.quota.to_string()) } }
                    (denials(suggestion.denied, suggestion.denied_keys))
                }
            }
        }
        @for busiest in &suggested.busiest {
            p class="dim" { "Requests of a key in its busiest " (span(busiest.window)) ": " (busiest.listed()) "." }
        }
    };
    let curve = |recommended: &Recommendation| {
        html! {
            p { "To begin with, as a line of a rules file:" }
            pre tabindex="0" { (recommended.yaml) }
            p { "The share that " (recommended.algorithm) " denies with each limit: " b class="of-requests" { "of requests" } ", " b class="of-keys" { "of keys" } ". The suggestion is marked." }
            (super::chart::curve(recommended, all))
            details {
                summary { (recommended.algorithm) " with other limits" }
                table {
                    tr { th { "limit" } (head) }
                    @for point in &recommended.curve {
                        tr class=[(point.limit == recommended.quota.limit()).then_some("chosen")] {
                            td { (grouped(point.limit)) }
                            (denials(point.denied, point.denied_keys))
                        }
                    }
                }
            }
        }
    };
    html! {
        h2 { "Suggested limits" }
        (wide_card("Suggested limits", &found))
        @if let Some(recommended) = &suggested.recommended {
            (wide_card("The line of a rules file", &curve(recommended)))
        }
    }
}

/// All trials and algorithms, as a chart and as a table with the exact numbers.
fn comparison(report: &Report) -> Markup {
    let notes: Vec<Markup> = report
        .rows()
        .filter_map(|(trial, findings, row)| {
            let note = note(findings, row)?;
            Some(html! { li { (row.algorithm) " " (report.limit(trial)) ": " (note) } })
        })
        .collect();
    let class = |column: usize, is_over: bool| match column {
        1 => Some("text"),
        8 if is_over => Some("over"),
        _ => None,
    };
    let table = html! {
        table {
            tr {
                @for (column, head) in HEADS.iter().enumerate() {
                    // A head without a text is announced as one.
                    @if head.is_empty() { td {} } @else { th class=[class(column, false)] { (head) } }
                }
            }
            @for (trial, findings, row) in report.rows() {
                tr {
                    @for (column, cell) in cells(report, trial, findings, row).iter().enumerate() {
                        td class=[class(column, is_over(findings, row))] { (cell) }
                    }
                }
            }
        }
        @if !notes.is_empty() { ul class="notes" { @for note in notes { (note) } } }
    };
    html! {
        h2 {
            "The algorithms side by side"
            @if report.findings.len() == 1 { ": " (report.limit(0)) }
        }
        (bars(report))
        details {
            summary { "All numbers" }
            (wide_card("The algorithms side by side", &table))
        }
    }
}

fn is_over(findings: &Findings, row: &Row) -> bool {
    row.worst_window > findings.quota.limit()
}

/// Three lists of bars, each with its own scale: denied, wrongly admitted, and the worst window.
/// They are plain boxes, which wrap on a narrow screen and keep their font size.
fn bars(report: &Report) -> Markup {
    let several = report.findings.len() > 1;
    let rows = |bar: &dyn Fn(&Findings, &Row) -> Bar| -> Vec<(String, Bar)> {
        let row = |(trial, findings, row): (usize, &Findings, &Row)| {
            let limit = if several {
                format!("{} ", report.limit(trial))
            } else {
                String::new()
            };
            (format!("{limit}{}", row.algorithm), bar(findings, row))
        };
        report.rows().map(row).collect()
    };
    let denied = rows(&|_, row| Bar {
        parts: vec![
            ("denied", (row.denied - row.wrongly_denied) as f64),
            ("extra", row.wrongly_denied as f64),
        ],
        text: grouped(row.denied),
        mark: None,
    });
    let missed = rows(&|_, row| Bar {
        parts: vec![("missed", row.wrongly_admitted as f64)],
        text: grouped(row.wrongly_admitted),
        mark: None,
    });
    let worst = rows(&|findings, row| {
        let limit = findings.quota.limit();
        let class = if is_over(findings, row) {
            "denied"
        } else {
            "admitted"
        };
        Bar {
            parts: vec![(class, row.worst_window as f64 / limit.max(1) as f64)],
            text: format!("{} of {}", grouped(row.worst_window), grouped(limit)),
            mark: Some(1.0),
        }
    });
    let of_denied = [
        ("denied", "as the exact log does"),
        ("extra", "though the exact log admits"),
    ];
    let of_worst = [("admitted", "within the limit"), ("denied", "above it")];
    html! {
        div class="multiples" {
            (bar_list("Requests denied", &of_denied, &denied))
            (bar_list("Admitted, though the exact log denies", &[], &missed))
            (bar_list("Most admitted in any window", &of_worst, &worst))
        }
    }
}

/// A bar of several parts, and the number after it.
struct Bar {
    parts: Vec<(&'static str, f64)>,
    text: String,
    /// The position of a line on the scale.
    mark: Option<f64>,
}

fn bar_list(title: &str, entries: &[(&str, &str)], rows: &[(String, Bar)]) -> Markup {
    let length = |bar: &Bar| {
        bar.parts
            .iter()
            .map(|part| part.1)
            .sum::<f64>()
            .max(bar.mark.unwrap_or(0.0))
    };
    let longest = rows
        .iter()
        .map(|(_, bar)| length(bar))
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let percent = |part: f64| format!("{:.2}%", 100.0 * part / longest);
    html! {
        figure class="card" {
            figcaption { h3 { (title) } }
            @if !entries.is_empty() { (legend(entries)) }
            @for (label, bar) in rows {
                div class="bar-row" {
                    span class="name" { (printable(label, 60)) }
                    span class="track" {
                        @for (class, part) in bar.parts.iter().filter(|(_, part)| *part > 0.0) {
                            i class=(class) style={ "width:" (percent(*part)) } {}
                        }
                        @if let Some(mark) = bar.mark { i class="mark" style={ "left:" (percent(mark)) } {} }
                    }
                    b { (bar.text) }
                }
            }
        }
    }
}

/// What sharing costs, if nodes share the limits.
fn sharing(report: &Report) -> Markup {
    let Some((fleet, rows)) = shared::rows(report) else {
        return Markup::default();
    };
    let class = |column: usize| (1..3).contains(&column).then_some("text");
    let table = html! {
        p { (shared::describe(&fleet)) "." }
        table {
            tr { @for (column, head) in shared::HEADS.iter().enumerate() { th class=[class(column)] { (head) } } }
            @for row in rows {
                tr { @for (column, cell) in row.iter().enumerate() { td class=[class(column)] { (cell) } } }
            }
        }
        p class="dim" { (shared::LEGEND) }
    };
    html! {
        h2 { "Shared by nodes" }
        (wide_card("Shared by nodes", &table))
    }
}

/// A limit that tenants share.
fn shared_by_tenants(said: &str, rows: Vec<[String; 6]>) -> Markup {
    let class = |column: usize| (column < 2).then_some("text");
    let table = html! {
        p { (said) }
        table {
            tr { @for (column, head) in tenants::HEADS.iter().enumerate() { th class=[class(column)] { (head) } } }
            @for row in rows {
                tr { @for (column, cell) in row.iter().enumerate() { td class=[class(column)] { (cell) } } }
            }
        }
    };
    html! {
        h2 { "Shared by tenants" }
        (wide_card("Shared by tenants", &table))
    }
}

/// One trial: over time, and whom it denies most. The page is an overview, and a reader opens the
/// limits of interest.
fn details(report: &Report, trial: usize, findings: &Findings) -> Markup {
    let is_suggested = findings
        .rows
        .iter()
        .any(|row| report.is_suggested(findings, &row.algorithm));
    let is_shown = trial == shown_trial(report);
    let limit = report.limit(trial) + if is_suggested { " (suggested)" } else { "" };
    let most = findings
        .requests_over_time
        .iter()
        .copied()
        .max()
        .unwrap_or(0);
    html! {
        details class="trial" {
            summary { (limit) " in detail" }
            // The page has opened with the first algorithm of the shown one.
            @let others = findings.rows.get(usize::from(is_shown)..).unwrap_or_default();
            @if !others.is_empty() {
                h2 { (limit) ": over time" }
                div class="multiples" { @for row in others { div class="card" { (over_time(findings, row, most)) } } }
            }
            h2 { (limit) ": who is denied most" }
            @if findings.most_denied.is_empty() {
                p class="card" { "Nobody is denied." }
            } @else {
                (wide_card("Who is denied most", &most_denied(report, trial, findings)))
                @if !is_shown { (heat(report, trial, findings)) }
            }
        }
    }
}

/// The trial with whose pictures the page opens: the first that denies.
fn shown_trial(report: &Report) -> usize {
    let denies = report.rows().find(|(.., row)| row.denied > 0);
    denies.map_or(0, |(trial, ..)| trial)
}

/// What one limit does over time: to all requests, to the key that it denies most, and to each of
/// the most denied keys.
fn pictures(report: &Report) -> Markup {
    let trial = shown_trial(report);
    let Some((findings, row)) = report
        .findings
        .get(trial)
        .and_then(|findings| Some((findings, findings.rows.first()?)))
    else {
        return Markup::default();
    };
    let heat_map = report.heat.get(trial);
    let worst = heat_map.and_then(|heat| {
        let (name, _) = report.most_denied(trial).next()?;
        Some((name, heat.step, heat.keys.first()?))
    });
    html! {
        h2 { (report.limit(trial)) " over time" }
        div class="card" { (over_time(findings, row, 0)) }
        (heat(report, trial, findings))
        @if let Some((name, step, parts)) = worst.filter(|_| findings.keys > 1) {
            div class="card" {
                h3 { "The key that is denied most" }
                (of_key(findings, name, step, parts))
            }
        }
    }
}

fn most_denied(report: &Report, trial: usize, findings: &Findings) -> Markup {
    html! {
        p class="dim" { "How many of a key’s requests each algorithm denies; the bar is their share." }
        table {
            tr {
                th { (printable(&report.by, 60)) }
                th { "requests" }
                @for row in &findings.rows { th { (row.algorithm) } }
            }
            @for (name, key) in report.most_denied(trial) {
                tr {
                    td class="key" title=(printable(name, 500)) { (printable(name, 60)) }
                    td { (grouped(key.requests)) }
                    @for &denied in &key.denied {
                        @let part = 100.0 * denied as f64 / key.requests.max(1) as f64;
                        td class="bar" style=(format!("--part:{part:.1}%")) { (grouped(denied)) }
                    }
                }
            }
        }
    }
}

/// A row of cells for each of the most denied keys: the more of an interval's requests are denied,
/// the redder the cell.
fn heat(report: &Report, trial: usize, findings: &Findings) -> Markup {
    let Some(heat) = report.heat.get(trial).filter(|heat| !heat.keys.is_empty()) else {
        return Markup::default();
    };
    let (start, end) = findings.span;
    html! {
        figure class="card" {
            figcaption {
                h3 { "When they are denied" }
                " by " (heat.algorithm) ", " (moment(&findings.timeline, start)) " to " (moment(&findings.timeline, end))
                "; a cell is grey where the key asks and is admitted, and redder the larger the share of its requests that \
                 is denied"
            }
            "\n"
            @for ((name, _), steps) in report.most_denied(trial).zip(&heat.keys) {
                div class="heat-row" { span class="name" { (printable(name, 60)) } (heat_row(name, steps)) }
                "\n"
            }
        }
    }
}

fn legend(entries: &[(&str, &str)]) -> Markup {
    html! {
        div class="legend" {
            @for (class, text) in entries {
                span {
                    svg viewBox="0 0 10 10" aria-hidden="true" { rect width="10" height="10" rx="2" class=(class) {} }
                    (text)
                }
            }
        }
    }
}
