//! Strings of Python's `limits`, and the settings of Flask-Limiter.

use std::time::Duration;

use tidegate_config::{Complaints, abridged};
use tidegate_core::parse_units;

use super::{FIRST_HIT, Made};

pub(super) const MOVING: &str = "sliding-log:closed";

/// Strings such as `10/second; 100 per 5 minutes`.
pub(super) fn strings(text: &str, algorithm: &str, complaints: &Complaints, made: &mut Made) {
    for (line, row) in (1..).zip(text.lines()) {
        each(line, row, algorithm, complaints, made);
    }
    several(made);
}

/// The limits of one line.
fn each(line: usize, text: &str, algorithm: &str, complaints: &Complaints, made: &mut Made) {
    for part in text.split([',', ';', '|']).map(str::trim) {
        if part.is_empty() {
            continue;
        }
        let Some((limit, window)) = limits_string(part) else {
            let what = format!("`{}` is not a limit", abridged(part));
            complaints.at(line, what, "write it as in 10/second or 100 per 5 minutes");
            continue;
        };
        let name = format!("limit-{}", made.rules.len() + 1);
        made.add(
            part,
            name,
            algorithm,
            (limit, Some(window)),
            (line, complaints),
        );
    }
}

fn several(made: &mut Made) {
    if made.rules.len() > 1 {
        let note = "several limits: one request over all of them takes nothing if one denies; `limits` also counts in those that it asked before";
        made.notes.push(note.to_owned());
    }
}

fn limits_string(text: &str) -> Option<(u64, Duration)> {
    let text = text.to_ascii_lowercase();
    let (limit, rest) = text.split_once('/').or_else(|| text.split_once("per"))?;
    let rest = rest.trim();
    let at = rest.find(|c: char| !c.is_ascii_digit())?;
    let (several, unit) = rest.split_at(at);
    let several: u64 = if several.is_empty() {
        1
    } else {
        several.parse().ok()?
    };
    // A month has 30 days there, and a year 360.
    let seconds = match unit.trim().trim_end_matches('s') {
        "econd" | "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        "month" => 30 * 86_400,
        "year" => 360 * 86_400,
        _ => return None,
    };
    let limit = limit.trim();
    let is_number = limit.bytes().all(|byte| byte.is_ascii_digit());
    let limit = parse_units(limit).filter(|_| is_number)?;
    Some((limit, Duration::from_secs(several.checked_mul(seconds)?)))
}

/// Flask-Limiter's settings, a line each: `RATELIMIT_DEFAULT = "200 per day; 50 per hour"`.
pub(super) fn flask(text: &str, complaints: &Complaints, made: &mut Made) {
    let mut limits = Vec::new();
    let mut algorithm = FIRST_HIT;
    for (line, row) in (1..).zip(text.lines()) {
        let row = row.trim();
        let Some(setting) = row.strip_prefix("RATELIMIT_") else {
            continue;
        };
        let Some((name, value)) = setting.split_once(['=', ':']) else {
            let what = format!("`{}` has no value", abridged(row));
            complaints.at(
                line,
                what,
                "write it as in RATELIMIT_DEFAULT = \"50 per hour\"",
            );
            continue;
        };
        let value = value.trim().trim_end_matches(',').trim_matches(['"', '\'']);
        match name.trim() {
            "DEFAULT" | "APPLICATION" | "META" => limits.push((line, value)),
            "STRATEGY" => match value {
                "fixed-window" => {}
                "moving-window" => algorithm = MOVING,
                _ => {
                    let what = format!("the strategy `{}` has no equal rule", abridged(value));
                    complaints.at(
                        line,
                        what,
                        "import it as fixed-window or moving-window, which count otherwise",
                    );
                }
            },
            "DEFAULTS_DEDUCT_WHEN" => {
                let what =
                    "`RATELIMIT_DEFAULTS_DEDUCT_WHEN` has no equal rule: it counts by the outcome";
                complaints.at(
                    line,
                    what,
                    "reserve a unit before the work, and cancel the reservation",
                );
            }
            "DEFAULTS_COST" => made.notes.push(format!(
                "line {line}: `RATELIMIT_DEFAULTS_COST` is the cost of a request"
            )),
            name => made.notes.push(format!(
                "line {line}: `RATELIMIT_{}` changes no decision, and was left out",
                abridged(name)
            )),
        }
    }
    for (line, text) in limits {
        each(line, text, algorithm, complaints, made);
    }
    several(made);
    made.notes.push(
        "the key is what `key_func` returns; of the default limits, with the endpoint".to_owned(),
    );
}
