//! The directives `limit_req` and `limit_conn` of nginx.

use std::{collections::BTreeMap, time::Duration};

use tidegate_config::{Complaints, Problem, abridged};
use tidegate_core::parse_units;

use super::Made;

/// A directive of nginx with its line.
struct Directive {
    line: usize,
    words: Vec<String>,
}

/// The directives of an nginx configuration, whatever block they are in.
fn directives(text: &str) -> Vec<Directive> {
    let mut all = Vec::new();
    let (mut words, mut word, mut begin) = (Vec::new(), String::new(), 0);
    let mut quote = None;
    for (line, row) in (1..).zip(text.lines()) {
        for c in row.chars().chain(['\n']) {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), c) => word.push(c),
                (None, '#') if word.is_empty() => break,
                (None, '"' | '\'') if word.is_empty() => quote = Some(c),
                (None, ';' | '{' | '}') => {
                    words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                    if !words.is_empty() {
                        let words = std::mem::take(&mut words);
                        all.push(Directive { line: begin, words });
                    }
                }
                (None, c) if c.is_whitespace() => {
                    words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                }
                (None, c) => {
                    if words.is_empty() && word.is_empty() {
                        begin = line;
                    }
                    word.push(c);
                }
            }
        }
    }
    all
}

/// Why a directive has no equal rule.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectiveError {
    #[error("the zone's {0} is missing")]
    Missing(&'static str),
    #[error("`rate={}` is not a rate such as 10r/s or 30r/m", abridged(.0))]
    Rate(String),
    #[error("`burst={}` is not a number", abridged(.0))]
    Burst(String),
    #[error("the burst waits too long")]
    Wait,
    #[error(
        "`delay=` has no equal rule: it delays a part of the burst; choose nodelay, or none of them"
    )]
    Delay,
    #[error("`{}` is not a parameter of limit_req", abridged(.0))]
    Unknown(String),
    #[error("the number of connections is missing")]
    NoConnections,
    #[error("`{0}` names a zone of the other kind")]
    OtherKind(String),
}

/// A zone: its key, and its rate in requests and seconds, if it counts requests.
type Zones = BTreeMap<String, (String, Option<(u64, u64)>)>;

pub(super) fn nginx(text: &str, complaints: &Complaints, made: &mut Made) {
    let all = directives(text);
    let mut zones = Zones::new();
    for directive in &all {
        if matches!(&*directive.words[0], "limit_req_zone" | "limit_conn_zone")
            && let Err(error) = zone(directive, &mut zones)
        {
            complaints.add(Problem::at(directive.line, error.to_string()));
        }
    }
    let mut used: BTreeMap<&str, &[String]> = BTreeMap::new();
    for directive in &all {
        let (line, name) = (directive.line, &*directive.words[0]);
        let arguments = &directive.words[1..];
        let zone = match name {
            "limit_req" => arguments.iter().find_map(|word| word.strip_prefix("zone=")),
            "limit_conn" => arguments.first().map(|word| &**word),
            "limit_req_dry_run" | "limit_conn_dry_run" => {
                if arguments.first().is_some_and(|word| word != "off") {
                    let what = format!("`{name}` concerns the block that it is in");
                    complaints.at(
                        line,
                        what,
                        "remove it, import again, and add `shadow: true` to its rules",
                    );
                }
                continue;
            }
            "limit_req_status"
            | "limit_req_log_level"
            | "limit_conn_status"
            | "limit_conn_log_level" => {
                made.notes.push(format!(
                    "line {line}: `{name}` concerns the answer or the log, not the decision"
                ));
                continue;
            }
            "limit_rate" | "limit_rate_after" => {
                made.notes.push(format!(
                    "line {line}: `{name}` limits bytes, not requests, and stays in nginx"
                ));
                continue;
            }
            "include" => {
                made.notes
                    .push(format!("line {line}: the included files were not read"));
                continue;
            }
            _ => continue,
        };
        let Some((zone, (key, rate))) = zone.and_then(|zone| zones.get_key_value(zone)) else {
            let what = format!("`{name}` names no zone of this file");
            complaints.at(line, what, "import it together with its zone");
            continue;
        };
        if let Some(before) = used.insert(zone, arguments) {
            if before != arguments {
                let what = format!(
                    "the zone `{}` is used in two ways, which share one count",
                    abridged(zone)
                );
                complaints.at(line, what, "import one of them");
            }
            continue;
        }
        let asked = match (name, rate) {
            ("limit_req", Some(rate)) => requests(arguments, *rate),
            ("limit_conn", None) => arguments
                .get(1)
                .and_then(|word| parse_units(word))
                .map(|permits| ("concurrency".to_owned(), (permits, None)))
                .ok_or(DirectiveError::NoConnections),
            _ => Err(DirectiveError::OtherKind(name.to_owned())),
        };
        match asked {
            Ok((algorithm, amount)) => {
                let comment = format!("nginx's zone {zone}; the key is {key}");
                made.add(
                    &comment,
                    zone.clone(),
                    &algorithm,
                    amount,
                    (line, complaints),
                );
            }
            Err(error) => complaints.add(Problem::at(line, error.to_string())),
        }
    }
}

/// Reads `limit_req_zone KEY zone=NAME:SIZE rate=10r/s` or `limit_conn_zone KEY zone=NAME:SIZE`.
fn zone(directive: &Directive, zones: &mut Zones) -> Result<(), DirectiveError> {
    let words = &directive.words;
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let (Some(key), Some(zone)) = (words.get(1), value("zone=")) else {
        return Err(DirectiveError::Missing("key or name"));
    };
    let name = zone.split(':').next().unwrap_or_default().to_owned();
    let rate = if words[0] == "limit_conn_zone" {
        None
    } else {
        let text = value("rate=").ok_or(DirectiveError::Missing("rate"))?;
        let units = |number: &str| parse_units(number).filter(|rate| *rate > 0);
        let rate = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
            (Some(number), _) => units(number).map(|rate| (rate, 1)),
            (_, Some(number)) => units(number).map(|rate| (rate, 60)),
            _ => None,
        };
        Some(rate.ok_or_else(|| DirectiveError::Rate(text.to_owned()))?)
    };
    zones.insert(name, (key.clone(), rate));
    Ok(())
}

/// The algorithm of `limit_req`, and its amount.
pub(super) fn requests(
    arguments: &[String],
    (rate, seconds): (u64, u64),
) -> Result<(String, (u64, Option<Duration>)), DirectiveError> {
    let (mut burst, mut is_delayed) = (0, true);
    for word in arguments {
        match word.split_once('=') {
            Some(("zone", _)) => {}
            Some(("burst", text)) => {
                burst = parse_units(text).ok_or_else(|| DirectiveError::Burst(text.to_owned()))?;
            }
            Some(("delay", _)) => return Err(DirectiveError::Delay),
            None if word == "nodelay" => is_delayed = false,
            _ => return Err(DirectiveError::Unknown(word.clone())),
        }
    }
    let amount = (rate, Some(Duration::from_secs(seconds)));
    if burst == 0 || !is_delayed {
        return Ok((
            format!("token-bucket:burst={}", burst.saturating_add(1)),
            amount,
        ));
    }
    // Rounded up, so that the last request of the burst still waits.
    let nanos = (u128::from(burst) * u128::from(seconds) * 1_000_000_000).div_ceil(rate.into());
    let wait = u64::try_from(nanos).map_err(|_| DirectiveError::Wait)?;
    Ok((format!("leaky-bucket:max_wait={wait}ns"), amount))
}
