//! Findings as one self-contained page: no scripts, no fonts, no external pictures.

use std::io::{self, Write};

use super::{
    BusiestWindow, Report,
    chart::{heat_row, over_time},
    escape::{html, printable},
    format::{grouped, moment, percent, span},
    shared,
    style::CSS,
    table::note,
};
use crate::replay::{Findings, Row};

/// Writes the page. Text from a log is shown as text and never interpreted, and the page forbids scripts.
///
/// # Errors
/// The errors of the writer.
pub fn write_html(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some(first) = report.findings.first() else { return Ok(()) };
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Tidegate simulation: {source}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n\
         <h1>Who would have been denied</h1>\n<p class=\"dim source\">{source}</p>\n",
        source = html(&printable(&report.source, 300)),
    )?;
    write_conclusions(out, report)?;
    write_tiles(out, report, first)?;
    write_suggested(out, report, first)?;
    write_comparison(out, report)?;
    write_shared(out, report)?;
    for (trial, findings) in report.findings.iter().enumerate() {
        write_trial(out, report, trial, findings)?;
    }
    writeln!(
        out,
        "<footer>Each decision is compared with that of an exact sliding log which runs beside the algorithm on \
         admissions of its own. Once the two have decided differently their pasts differ, so a “wrong” decision is \
         not a breach of the limit; the worst window shows that: the most requests of one key admitted in any window \
         of the limit’s length.</footer>\n</main>\n</body>\n</html>"
    )
}

/// Writes the conclusions, the warnings, and how the findings were made.
fn write_conclusions(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "<div class=\"card conclusions\">")?;
    for said in report.conclusions() {
        writeln!(out, "<p>{}</p>", html(&printable(&said, 400)))?;
    }
    for warning in &report.warnings {
        writeln!(out, "<p class=\"warning\">{}</p>", html(&printable(warning, 600)))?;
    }
    if !report.command.is_empty() || !report.date.is_empty() {
        let (command, date) = (printable(&report.command, 500), printable(&report.date, 60));
        writeln!(out, "<p class=\"dim made\"><code>{}</code> {}</p>", html(&command), html(&date))?;
    }
    writeln!(out, "</div>")
}

fn write_tiles(out: &mut impl Write, report: &Report, first: &Findings) -> io::Result<()> {
    let (timeline, (start, end)) = (&first.timeline, first.span);
    let length = span(std::time::Duration::from_nanos(end - start));
    let range = format!("{} to {}", moment(timeline, start), moment(timeline, end));
    let zone = if timeline.has_dates { " UTC" } else { "" };
    let mut tiles = vec![
        (grouped(first.requests), "requests".to_owned()),
        (grouped(first.keys), format!("keys, by {}", printable(&report.by, 60))),
        (length, format!("{range}{zone}")),
    ];
    if report.lines > 0 {
        let share = percent(report.unparsed, report.lines);
        tiles.push((grouped(report.unparsed), format!("lines that are not requests ({share})")));
    }
    writeln!(out, "<div class=\"tiles\">")?;
    for (number, what) in tiles {
        writeln!(out, "<div class=\"card\"><b>{}</b><span>{}</span></div>", html(&number), html(&what))?;
    }
    writeln!(out, "</div>")
}

fn write_suggested(out: &mut impl Write, report: &Report, all: &Findings) -> io::Result<()> {
    let Some(suggested) = &report.suggested else { return Ok(()) };
    writeln!(
        out,
        "<h2>Suggested limits</h2>\n<div class=\"card scroll\" role=\"group\" tabindex=\"0\" aria-label=\"Suggested limits\">\n<p>The smallest that deny at most {}.</p>",
        html(&suggested.goal.to_string())
    )?;
    let head = "<th>keys denied</th><td></td><th>requests denied</th><td></td></tr>";
    writeln!(out, "<table>\n<tr><th>algorithm</th><th>limit</th>{head}")?;
    let denials = |denied: u64, denied_keys: u64| {
        format!(
            "<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            grouped(denied_keys),
            percent(denied_keys, all.keys),
            grouped(denied),
            percent(denied, all.requests),
        )
    };
    for (algorithm, suggestion) in &suggested.found {
        let denials = denials(suggestion.denied, suggestion.denied_keys);
        writeln!(out, "<tr><td>{}</td><td><b>{}</b></td>{denials}", html(algorithm), suggestion.quota)?;
    }
    writeln!(out, "</table>")?;
    for busiest in &suggested.busiest {
        let each = |(share, most): &(u64, u64)| format!("{} {}", BusiestWindow::name(*share), grouped(*most));
        let percentiles: Vec<String> = busiest.percentiles.iter().map(each).collect();
        let window = span(busiest.window);
        writeln!(
            out,
            "<p class=\"dim\">Requests of a key in its busiest {window}: {}.</p>",
            percentiles.join(", ")
        )?;
    }
    writeln!(out, "</div>")?;
    let Some(recommended) = &suggested.recommended else { return Ok(()) };
    writeln!(
        out,
        "<div class=\"card scroll\" role=\"group\" tabindex=\"0\" aria-label=\"The line of a rules file\">\n<p>To begin with, as a line of a rules file:</p>\n<pre>{}</pre>\n\
         <details><summary>{} with other limits</summary>\n<table>\n<tr><th>limit</th>{head}",
        html(&recommended.yaml),
        html(&recommended.algorithm),
    )?;
    for point in &recommended.curve {
        let chosen = if point.limit == recommended.quota.limit() { " class=\"chosen\"" } else { "" };
        writeln!(
            out,
            "<tr{chosen}><td>{}</td>{}",
            grouped(point.limit),
            denials(point.denied, point.denied_keys)
        )?;
    }
    writeln!(out, "</table>\n</details>\n</div>")
}

/// Writes all trials and algorithms, as a chart and as a table with the exact numbers.
fn write_comparison(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let title =
        if report.findings.len() > 1 { String::new() } else { format!(": {}", html(&report.limit(0))) };
    writeln!(out, "<h2>The algorithms side by side{title}</h2>")?;
    write_bars(out, report)?;
    writeln!(
        out,
        "<div class=\"card scroll\" role=\"group\" tabindex=\"0\" aria-label=\"The algorithms side by side\">\n<table>\n<tr><th>limit</th><th class=\"text\">algorithm</th><th>admitted</th>\
         <th>denied</th><td></td><th>keys denied</th><th>wrongly admitted</th><th>wrongly denied</th>\
         <th>worst window</th></tr>"
    )?;
    for (trial, findings, row) in report.rows() {
        let over = if row.worst_window > findings.quota.limit() { " class=\"over\"" } else { "" };
        writeln!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td{over}>{}</td></tr>",
            html(&report.limit(trial)),
            html(&row.algorithm),
            grouped(row.admitted),
            grouped(row.denied),
            percent(row.denied, findings.requests),
            grouped(row.denied_keys),
            grouped(row.wrongly_admitted),
            grouped(row.wrongly_denied),
            grouped(row.worst_window),
        )?;
    }
    writeln!(out, "</table>")?;
    let notes: Vec<String> = report
        .rows()
        .filter_map(|(trial, findings, row)| {
            let (limit, note) = (report.limit(trial), note(findings, row)?);
            Some(format!("<li>{} {}: {}</li>", html(&row.algorithm), html(&limit), html(&note)))
        })
        .collect();
    if !notes.is_empty() {
        writeln!(out, "<ul class=\"notes\">{}</ul>", notes.join(""))?;
    }
    writeln!(out, "</div>")
}

/// Writes three lists of bars, each with its own scale: denied, wrongly admitted, and the worst window. They are plain
/// boxes, which wrap on a narrow screen and keep their font size.
fn write_bars(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let several = report.findings.len() > 1;
    let bars = |value: &dyn Fn(&Findings, &Row) -> Bar| {
        let rows: Vec<(String, Bar)> = report
            .rows()
            .map(|(trial, findings, row)| {
                let limit = if several { format!("{} ", report.limit(trial)) } else { String::new() };
                (format!("{limit}{}", row.algorithm), value(findings, row))
            })
            .collect();
        rows
    };
    let denied = bars(&|_, row| Bar {
        parts: vec![
            ("denied", (row.denied - row.wrongly_denied) as f64),
            ("extra", row.wrongly_denied as f64),
        ],
        text: grouped(row.denied),
        mark: None,
    });
    let missed = bars(&|_, row| Bar {
        parts: vec![("missed", row.wrongly_admitted as f64)],
        text: grouped(row.wrongly_admitted),
        mark: None,
    });
    let worst = bars(&|findings, row| {
        let limit = findings.quota.limit().max(1) as f64;
        let class = if row.worst_window > findings.quota.limit() { "denied" } else { "admitted" };
        Bar {
            parts: vec![(class, row.worst_window as f64 / limit)],
            text: format!("{} of {}", grouped(row.worst_window), grouped(findings.quota.limit())),
            mark: Some(1.0),
        }
    });
    writeln!(out, "<div class=\"multiples\">")?;
    let legend = [("denied", "as the exact log does"), ("extra", "though the exact log admits")];
    write_bar_list(out, "Requests denied", &legend, &denied)?;
    write_bar_list(out, "Admitted, though the exact log denies", &[], &missed)?;
    let legend = [("admitted", "within the limit"), ("denied", "above it")];
    write_bar_list(out, "Most admitted in any window", &legend, &worst)?;
    writeln!(out, "</div>")
}

/// A bar of several parts, and the number after it.
struct Bar {
    parts: Vec<(&'static str, f64)>,
    text: String,
    /// The position of a line on the scale.
    mark: Option<f64>,
}

fn write_bar_list(
    out: &mut impl Write,
    title: &str,
    legend: &[(&str, &str)],
    rows: &[(String, Bar)],
) -> io::Result<()> {
    let length = |bar: &Bar| bar.parts.iter().map(|part| part.1).sum::<f64>().max(bar.mark.unwrap_or(0.0));
    let longest = rows.iter().map(|(_, bar)| length(bar)).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    writeln!(out, "<figure class=\"card\">\n<figcaption><h3>{title}</h3></figcaption>")?;
    if !legend.is_empty() {
        write_legend(out, legend)?;
    }
    for (label, bar) in rows {
        write!(
            out,
            "<div class=\"bar-row\"><span class=\"name\">{}</span><span class=\"track\">",
            html(&printable(label, 60))
        )?;
        for (class, part) in bar.parts.iter().filter(|(_, part)| *part > 0.0) {
            write!(out, "<i class=\"{class}\" style=\"width:{:.2}%\"></i>", 100.0 * part / longest)?;
        }
        if let Some(mark) = bar.mark {
            write!(out, "<i class=\"mark\" style=\"left:{:.2}%\"></i>", 100.0 * mark / longest)?;
        }
        writeln!(out, "</span><b>{}</b></div>", html(&bar.text))?;
    }
    writeln!(out, "</figure>")
}

/// Writes what sharing costs, if nodes share the limits.
fn write_shared(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some((fleet, rows)) = shared::rows(report) else { return Ok(()) };
    let text = |column: usize| if (1..3).contains(&column) { " class=\"text\"" } else { "" };
    write!(
        out,
        "<h2>Shared by nodes</h2>\n<div class=\"card scroll\" role=\"group\" tabindex=\"0\" aria-label=\"Shared by nodes\">\n<p>{}.</p>\n<table>\n<tr>",
        html(&shared::describe(&fleet))
    )?;
    for (column, head) in shared::HEADS.iter().enumerate() {
        write!(out, "<th{}>{head}</th>", text(column))?;
    }
    writeln!(out, "</tr>")?;
    for row in rows {
        write!(out, "<tr>")?;
        for (column, cell) in row.iter().enumerate() {
            write!(out, "<td{}>{}</td>", text(column), html(cell))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>\n<p class=\"dim\">{}</p>\n</div>", html(shared::LEGEND))
}

fn write_trial(out: &mut impl Write, report: &Report, trial: usize, findings: &Findings) -> io::Result<()> {
    let is_suggested = findings.rows.iter().any(|row| report.is_suggested(findings, &row.algorithm));
    let limit = html(&report.limit(trial)).into_owned();
    let limit = if is_suggested { format!("{limit} (suggested)") } else { limit };
    let each = span(std::time::Duration::from_nanos(findings.timeline.step));
    // The page is an overview, and a reader opens the limits of interest.
    writeln!(
        out,
        "<details class=\"trial\"><summary>{limit} in detail</summary>\n<h2>{limit}: over time</h2>\n<p class=\"dim\">Requests in each {each}.</p>"
    )?;
    write_legend(out, &[("admitted", "admitted"), ("denied", "denied")])?;
    let most = findings.requests_over_time.iter().copied().max().unwrap_or(0);
    writeln!(out, "<div class=\"multiples\">")?;
    for row in &findings.rows {
        writeln!(
            out,
            "<figure class=\"card\"><figcaption><h3>{}</h3> {} denied ({})</figcaption>\n{}\n</figure>",
            html(&row.algorithm),
            grouped(row.denied),
            percent(row.denied, findings.requests),
            over_time(findings, row, most),
        )?;
    }
    writeln!(out, "</div>\n<h2>{limit}: who is denied most</h2>")?;
    if findings.most_denied.is_empty() {
        return writeln!(out, "<p class=\"card\">Nobody is denied.</p>\n</details>");
    }
    write!(
        out,
        "<div class=\"card scroll\" role=\"group\" tabindex=\"0\" aria-label=\"Who is denied most\">\n<p class=\"dim\">How many of a key’s requests each algorithm denies; the bar is \
         their share.</p>\n<table>\n<tr><th>{}</th><th>requests</th>",
        html(&printable(&report.by, 60)),
    )?;
    for row in &findings.rows {
        write!(out, "<th>{}</th>", html(&row.algorithm))?;
    }
    writeln!(out, "</tr>")?;
    for (name, key) in report.most_denied(trial) {
        write!(
            out,
            "<tr><td class=\"key\" title=\"{}\">{}</td><td>{}</td>",
            html(&printable(name, 500)),
            html(&printable(name, 60)),
            grouped(key.requests)
        )?;
        for &denied in &key.denied {
            let part = 100.0 * denied as f64 / key.requests.max(1) as f64;
            write!(out, "<td class=\"bar\" style=\"--part:{part:.1}%\">{}</td>", grouped(denied))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>\n</div>")?;
    write_heat(out, report, trial, findings)?;
    writeln!(out, "</details>")
}

/// A row of cells for each of the most denied keys: the more of an interval's requests are denied, the redder the cell.
fn write_heat(out: &mut impl Write, report: &Report, trial: usize, findings: &Findings) -> io::Result<()> {
    let Some(heat) = report.heat.get(trial) else { return Ok(()) };
    writeln!(
        out,
        "<figure class=\"card\">\n<figcaption><h3>When they are denied</h3> by {}, {} to {}; a cell is grey where the key \
         asks and is admitted, and redder the larger the share of its requests that is denied</figcaption>",
        html(&heat.algorithm),
        moment(&findings.timeline, findings.span.0),
        moment(&findings.timeline, findings.span.1),
    )?;
    for ((name, _), steps) in report.most_denied(trial).zip(&heat.keys) {
        writeln!(
            out,
            "<div class=\"heat-row\"><span class=\"name\">{}</span>{}</div>",
            html(&printable(name, 60)),
            heat_row(name, steps)
        )?;
    }
    writeln!(out, "</figure>")
}

fn write_legend(out: &mut impl Write, entries: &[(&str, &str)]) -> io::Result<()> {
    write!(out, "<div class=\"legend\">")?;
    for (class, text) in entries {
        write!(
            out,
            "<span><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\" rx=\"2\" \
             class=\"{class}\"/></svg>{text}</span>"
        )?;
    }
    writeln!(out, "</div>")
}
