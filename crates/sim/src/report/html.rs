//! Findings as one page that needs nothing else: no scripts, no fonts, no pictures from elsewhere.

use std::io::{self, Write};

use super::{
    Report,
    chart::{Compared, over_time, side_by_side},
    escape::{html, printable},
    format::{grouped, moment, percent, span},
    shared,
    style::CSS,
    table::note,
};
use crate::replay::Findings;

/// Writes the page. Whatever a log holds is shown as text and never obeyed, and the page forbids scripts.
///
/// # Errors
/// Those of the writer.
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
    write_tiles(out, report, first)?;
    write_suggestions(out, report, first)?;
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
         of the limit’s length. Made by <code>tidegate simulate</code>.</footer>\n</main>\n</body>\n</html>"
    )
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
        tiles.push((grouped(report.unparsed), format!("lines that are no requests ({share})")));
    }
    writeln!(out, "<div class=\"tiles\">")?;
    for (number, what) in tiles {
        writeln!(out, "<div class=\"card\"><b>{}</b><span>{}</span></div>", html(&number), html(&what))?;
    }
    writeln!(out, "</div>")
}

fn write_suggestions(out: &mut impl Write, report: &Report, all: &Findings) -> io::Result<()> {
    let Some((goal, suggestions)) = &report.suggestions else { return Ok(()) };
    writeln!(
        out,
        "<h2>Suggested limits</h2>\n<div class=\"card scroll\">\n<p>The smallest that deny at most {}.</p>\n<table>\n\
         <tr><th>algorithm</th><th>limit</th><th>keys denied</th><th></th><th>requests denied</th><th></th></tr>",
        html(&goal.to_string())
    )?;
    for (algorithm, suggestion) in suggestions {
        writeln!(
            out,
            "<tr><td>{}</td><td><b>{}</b></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            html(algorithm),
            suggestion.quota,
            grouped(suggestion.denied_keys),
            percent(suggestion.denied_keys, all.keys),
            grouped(suggestion.denied),
            percent(suggestion.denied, all.requests),
        )?;
    }
    writeln!(out, "</table>\n</div>")
}

/// All trials and algorithms: as a chart, and as a table with the exact numbers.
fn write_comparison(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let rows =
        || report.findings.iter().flat_map(|findings| findings.rows.iter().map(move |row| (findings, row)));
    let several = report.findings.len() > 1;
    let compared = rows().map(|(findings, row)| Compared {
        label: if several { format!("{} {}", findings.quota, row.algorithm) } else { row.algorithm.clone() },
        quota: findings.quota,
        row,
    });
    let title = if several { String::new() } else { format!(": {}", report.findings[0].quota) };
    writeln!(out, "<h2>The algorithms side by side{title}</h2>\n<figure class=\"card\">")?;
    write_legend(
        out,
        &[
            ("denied", "denied, as by the exact log"),
            ("extra", "denied, though the exact log admits"),
            ("missed", "admitted, though the exact log denies"),
        ],
    )?;
    writeln!(out, "{}\n</figure>", side_by_side(&compared.collect::<Vec<_>>()))?;
    writeln!(
        out,
        "<div class=\"card scroll\">\n<table>\n<tr><th>limit</th><th class=\"text\">algorithm</th><th>admitted</th>\
         <th>denied</th><th></th><th>keys denied</th><th>wrongly admitted</th><th>wrongly denied</th>\
         <th>worst window</th></tr>"
    )?;
    for (findings, row) in rows() {
        let over = if row.worst_window > u64::from(findings.quota.limit()) { " class=\"over\"" } else { "" };
        writeln!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td{over}>{}</td></tr>",
            findings.quota,
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
    let notes: Vec<String> = rows()
        .filter_map(|(findings, row)| {
            let note = note(findings, row)?;
            Some(format!("<li>{} {}: {}</li>", html(&row.algorithm), findings.quota, html(&note)))
        })
        .collect();
    if !notes.is_empty() {
        writeln!(out, "<ul class=\"notes\">{}</ul>", notes.join(""))?;
    }
    writeln!(out, "</div>")
}

/// What sharing costs, where nodes share the limits.
fn write_shared(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some((fleet, rows)) = shared::rows(report) else { return Ok(()) };
    let text = |column: usize| if (1..3).contains(&column) { " class=\"text\"" } else { "" };
    write!(
        out,
        "<h2>Shared by nodes</h2>\n<div class=\"card scroll\">\n<p>{}.</p>\n<table>\n<tr>",
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
    let suggested = if is_suggested { " (suggested)" } else { "" };
    writeln!(out, "<h2>{}{suggested}: over time</h2>", findings.quota)?;
    write_legend(out, &[("admitted", "admitted"), ("denied", "denied")])?;
    let most = findings.requests_over_time.iter().copied().max().unwrap_or(0);
    let each = span(std::time::Duration::from_nanos(findings.timeline.step));
    for row in &findings.rows {
        writeln!(
            out,
            "<figure class=\"card\"><figcaption><h3>{}</h3> {} denied ({}); requests in each {each}</figcaption>\n{}\n\
             </figure>",
            html(&row.algorithm),
            grouped(row.denied),
            percent(row.denied, findings.requests),
            over_time(findings, row, most),
        )?;
    }
    writeln!(out, "<h2>{}{suggested}: who is denied most</h2>", findings.quota)?;
    if findings.most_denied.is_empty() {
        return writeln!(out, "<p class=\"card\">Nobody is denied.</p>");
    }
    write!(
        out,
        "<div class=\"card scroll\">\n<p class=\"dim\">How many of a key’s requests each algorithm denies; the bar is \
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
    writeln!(out, "</table>\n</div>")
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
