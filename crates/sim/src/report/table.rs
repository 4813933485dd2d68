//! Findings as text tables.

use std::{
    io::{self, Write},
    iter,
};

use tidegate_core::Quota;

use crate::escape::printable;

use super::{
    Report,
    format::{counted, grouped, moment, percent, percentage, span},
    shared, tenants,
};
use crate::{
    algorithm::AlgorithmSpec,
    replay::{Findings, Row},
    suggest::{CurvePoint, Suggestion},
};

/// The maximum length of a key in the table.
const KEY: usize = 48;

/// The maximum length of a sample line.
const SAMPLE: usize = 110;

/// Writes what was replayed, a line for each trial and algorithm, and the `top` most denied keys.
///
/// Text from logs is escaped for terminals.
///
/// # Errors
/// The errors of the writer.
pub fn write_table(out: &mut impl Write, report: &Report, top: usize) -> io::Result<()> {
    if report.findings.is_empty() && report.shares.is_empty() {
        return Ok(());
    }
    writeln!(out, "{}", printable(&report.source, 200))?;
    if let Some(first) = report.findings.first() {
        write_findings(out, report, first, top)?;
    }
    for (said, rows) in tenants::sections(report, top) {
        writeln!(out, "\n{}", printable(&said, 400))?;
        if !rows.is_empty() {
            write_columns(out, &with_heads(tenants::HEADS, rows), "<<>>>>")?;
        }
    }
    Ok(())
}

fn write_findings(
    out: &mut impl Write,
    report: &Report,
    first: &Findings,
    top: usize,
) -> io::Result<()> {
    if report.limits.is_empty() {
        writeln!(out, "{}, {}", traffic(first, &report.by), spanned(first))?;
    } else {
        for (trial, findings) in report.findings.iter().enumerate() {
            writeln!(
                out,
                "{}: {}",
                report.limit(trial),
                traffic(findings, &report.by)
            )?;
        }
        // A limit may concern no request.
        let some = report
            .findings
            .iter()
            .find(|findings| findings.requests > 0);
        writeln!(out, "{}", spanned(some.unwrap_or(first)))?;
    }
    for sample in &report.samples {
        writeln!(out, "  {}", printable(&sample.line, SAMPLE))?;
        writeln!(out, "    {sample}")?;
    }
    writeln!(out)?;
    for said in report.conclusions() {
        writeln!(out, "{}", printable(&said, 400))?;
    }
    writeln!(out)?;
    write_suggested(out, report)?;
    write_trials(out, report)?;
    write_shared(out, report)?;
    write_notes(out, report)?;
    for (trial, findings) in report.findings.iter().enumerate() {
        write_most_denied(out, report, trial, findings, top)?;
    }
    Ok(())
}

fn traffic(findings: &Findings, by: &str) -> String {
    let by = if by.is_empty() {
        String::new()
    } else {
        format!(" ({})", printable(by, KEY))
    };
    format!(
        "{} by {}{by}",
        counted(findings.requests, "request"),
        counted(findings.keys, "key")
    )
}

pub(super) fn spanned(findings: &Findings) -> String {
    let (timeline, (start, end)) = (&findings.timeline, findings.span);
    if findings.requests == 0 {
        return "no requests".to_owned();
    }
    let zone = if timeline.has_dates { " UTC" } else { "" };
    format!(
        "{} to {}{zone}",
        moment(timeline, start),
        moment(timeline, end)
    )
}

fn write_suggested(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let (Some(suggested), Some(all)) = (&report.suggested, report.findings.first()) else {
        return Ok(());
    };
    writeln!(
        out,
        "the smallest limits that deny at most {}:",
        suggested.goal
    )?;
    let denials = |denied: u64, denied_keys: u64| {
        format!(
            "denies {} ({}), {} ({})",
            counted(denied_keys, "key"),
            percent(denied_keys, all.keys),
            counted(denied, "request"),
            percent(denied, all.requests),
        )
    };
    let row = |(algorithm, suggestion): &(AlgorithmSpec, Suggestion)| {
        let denials = denials(suggestion.denied, suggestion.denied_keys);
        vec![
            format!("  {}", algorithm.label()),
            suggestion.quota.to_string(),
            denials,
        ]
    };
    let rows: Vec<Vec<String>> = suggested.found.iter().map(row).collect();
    write_columns(out, &rows, "<><")?;
    for busiest in &suggested.busiest {
        let window = span(busiest.window);
        writeln!(
            out,
            "requests of a key in its busiest {window}: {}",
            busiest.listed()
        )?;
    }
    let Some(recommended) = &suggested.recommended else {
        return writeln!(out);
    };
    writeln!(
        out,
        "\nto begin with, as a line of a rules file:\n  {}",
        recommended.yaml
    )?;
    if !recommended.curve.is_empty() {
        writeln!(out, "\n{} with other limits:", recommended.algorithm)?;
        let row = |point: &CurvePoint| {
            let quota = Quota::new(point.limit, recommended.quota.window());
            let quota = quota.map(|quota| quota.to_string()).unwrap_or_default();
            vec![
                format!("  {quota}"),
                denials(point.denied, point.denied_keys),
            ]
        };
        let rows: Vec<Vec<String>> = recommended.curve.iter().map(row).collect();
        write_columns(out, &rows, "><")?;
    }
    writeln!(out)
}

/// The heads of the columns of [`cells`].
pub(super) const HEADS: [&str; 9] = [
    "limit",
    "algorithm",
    "admitted",
    "denied",
    "",
    "keys denied",
    "wrongly admitted",
    "wrongly denied",
    "worst window",
];

/// The numbers of one algorithm in one trial.
pub(super) fn cells(report: &Report, trial: usize, findings: &Findings, row: &Row) -> [String; 9] {
    [
        report.limit(trial),
        row.algorithm.clone(),
        grouped(row.admitted),
        grouped(row.denied),
        percent(row.denied, findings.requests),
        grouped(row.denied_keys),
        grouped(row.wrongly_admitted),
        grouped(row.wrongly_denied),
        grouped(row.worst_window),
    ]
}

fn write_trials(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let rows = report
        .rows()
        .map(|(trial, findings, row)| cells(report, trial, findings, row));
    write_columns(out, &with_heads(HEADS, rows), "<<>>>>>>>")
}

fn with_heads<const N: usize>(
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Vec<Vec<String>> {
    iter::once(heads.map(str::to_owned))
        .chain(rows)
        .map(Vec::from)
        .collect()
}

/// Writes what sharing costs, if nodes share the limits.
fn write_shared(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Some((fleet, rows)) = shared::rows(report) else {
        return Ok(());
    };
    writeln!(out, "\n{}:", shared::describe(&fleet))?;
    let rows = with_heads(shared::HEADS, rows);
    write_columns(out, &rows, "<<<>>>>>>")
}

/// Writes the notes that do not fit into a column.
fn write_notes(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let notes = report
        .rows()
        .filter_map(|(trial, findings, row)| Some((trial, row, note(findings, row)?)));
    for (at, (trial, row, note)) in notes.enumerate() {
        if at == 0 {
            writeln!(out)?;
        }
        writeln!(out, "{} {}: {note}", row.algorithm, report.limit(trial))?;
    }
    Ok(())
}

/// A note on an algorithm besides its numbers.
pub(super) fn note(findings: &Findings, row: &Row) -> Option<String> {
    if let Some(delays) = row.delays {
        return Some(format!(
            "{} of those admitted have to wait, {} on average and {} at most",
            grouped(delays.delayed),
            span(delays.mean()),
            span(delays.longest),
        ));
    }
    row.estimate.map(|estimate| {
        format!(
            "on the traffic as it came its estimate is {} off the true rate on average, and on the wrong side of the \
             limit at {} requests ({}); {} keys over the limit go unseen, {} are taken to be over it and are not",
            percentage(estimate.mean_difference(), false),
            grouped(estimate.wrong_requests),
            percent(estimate.wrong_requests, findings.requests),
            grouped(estimate.missed_keys),
            grouped(estimate.falsely_limited_keys),
        )
    })
}

fn write_most_denied(
    out: &mut impl Write,
    report: &Report,
    trial: usize,
    findings: &Findings,
    top: usize,
) -> io::Result<()> {
    // With only one key the table above shows everything.
    if top == 0 || findings.keys <= 1 || findings.most_denied.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let heads = ["requests".to_owned()]
        .into_iter()
        .chain(findings.rows.iter().map(|row| row.algorithm.clone()));
    let heads = iter::once(format!("denied most with {}", report.limit(trial)))
        .chain(heads)
        .collect();
    let row = |(name, key): (&str, &crate::replay::DeniedKey)| {
        iter::once(format!("  {}", printable(name, KEY)))
            .chain(iter::once(grouped(key.requests)))
            .chain(key.denied.iter().map(|&denied| grouped(denied)))
            .collect()
    };
    let rows: Vec<Vec<String>> = iter::once(heads)
        .chain(report.most_denied(trial).take(top).map(row))
        .collect();
    write_columns(
        out,
        &rows,
        &format!("<>{}", ">".repeat(findings.rows.len())),
    )
}

/// Writes two blanks between columns, and none at the end of a line. `sides` has for each column
/// the side of its texts, `<` or `>`.
fn write_columns(out: &mut impl Write, rows: &[Vec<String>], sides: &str) -> io::Result<()> {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..sides.len()).map(width).collect();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .zip(sides.chars())
            .map(|((cell, &width), side)| match side {
                '<' => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
