//! Configurations of other limiters as rules: equal rules, or a refusal that names the line.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged, parse as parse_yaml};
use tidegate_core::{MAX_LIMIT, parse_units};

use super::{LimitSpec, PolicySpec, parse};

/// The configurations that [`import`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The options of a rate-limiter-flexible, as JSON.
    RateLimiterFlexible,
    /// The options of express-rate-limit, as JSON.
    ExpressRateLimit,
    /// Strings of Python's `limits`, counted by its fixed windows.
    LimitsFixed,
    /// Strings of Python's `limits`, counted by its moving windows.
    LimitsMoving,
    /// The directives `limit_req` and `limit_conn` of nginx.
    Nginx,
}

/// Rules, and what to know about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// A rules file.
    pub yaml: String,
    /// Options that concern no decision, or the call instead of the rule.
    pub notes: Vec<String>,
}

const FIRST_HIT: &str = "fixed-window:first_hit:count_denied";

/// Reads another limiter's configuration.
///
/// # Errors
/// Everything that has no counterpart, each with its line. Nothing is approximated.
pub fn import(format: Format, text: &str) -> Result<Imported, Vec<Problem>> {
    let complaints = Complaints::default();
    let mut made = Made::default();
    match format {
        Format::RateLimiterFlexible => options(text, &complaints, |node, number| {
            flexible(node, number, &complaints, &mut made)
        })?,
        Format::ExpressRateLimit => options(text, &complaints, |node, number| {
            express(node, number, &complaints, &mut made)
        })?,
        Format::LimitsFixed => strings(text, FIRST_HIT, &complaints, &mut made),
        Format::LimitsMoving => strings(text, "sliding-log:closed", &complaints, &mut made),
        Format::Nginx => nginx(text, &complaints, &mut made),
    }
    if made.rules.is_empty() {
        complaints.add(Problem::overall("there is no limit to import"));
    }
    let problems = complaints.into_sorted();
    if !problems.is_empty() {
        return Err(problems);
    }
    made.notes.dedup();
    let mut yaml = String::from("limits:\n");
    for (comment, limit) in &made.rules {
        // Writing to a `String` does not fail.
        let _ = writeln!(yaml, "  # {comment}");
        limit.yaml().lines().for_each(|line| {
            let _ = writeln!(yaml, "  {line}");
        });
    }
    // The text is a rules file.
    parse(&yaml)?;
    Ok(Imported {
        yaml,
        notes: made.notes,
    })
}

#[derive(Default)]
struct Made {
    /// Each with a comment.
    rules: Vec<(String, LimitSpec)>,
    notes: Vec<String>,
}

impl Made {
    fn add(
        &mut self,
        comment: &str,
        name: String,
        algorithm: &str,
        (limit, window): (u64, Option<Duration>),
        (line, complaints): (usize, &Complaints),
    ) {
        let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = !name.is_empty() && name.len() <= 64 && name.chars().all(letter);
        if !is_name || self.rules.iter().any(|(_, limit)| limit.name == name) {
            let what = format!("`{}` cannot be the name of a rule", abridged(&name));
            let mend = "use 1 to 64 letters, digits, `.`, `_` or `-`, each name once";
            return complaints.at(line, what, mend);
        }
        let policy = algorithm
            .parse()
            .map(|algorithm| PolicySpec::new(algorithm, limit, window));
        let checked = policy.map_err(|error| error.to_string()).and_then(|spec| {
            let policy = spec.policy().map_err(|error| error.to_string());
            policy.map(|_| spec)
        });
        match checked {
            Ok(policy) => {
                let comment = abridged(comment);
                self.rules.push((comment, LimitSpec::new(name, policy)));
            }
            Err(why) => complaints.add(Problem::at(line, why)),
        }
    }
}

/// Reads options as JSON: one mapping, or a list of them.
fn options(
    text: &str,
    complaints: &Complaints,
    mut read: impl FnMut(&Node, usize) -> Option<()>,
) -> Result<(), Vec<Problem>> {
    let root = parse_yaml(text).map_err(|problem| vec![problem])?;
    let nodes = match &root {
        Some(Node {
            kind: Kind::Sequence(items),
            ..
        }) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    for (number, node) in nodes.iter().enumerate() {
        if read(node, number + 1).is_none() && matches!(node.kind, Kind::Scalar { .. }) {
            complaints.at(node.line, "no options", "write them as a JSON object");
        }
    }
    Ok(())
}

/// Complains about an option that changes decisions, unless it has its default.
fn refuse(fields: &Fields<'_>, name: &str, default: &str, why: &str) {
    if let Some(node) = fields.get(name).filter(|node| node.text() != Some(default)) {
        let what = format!("`{name}` has no equal rule: {why}");
        fields
            .complaints()
            .at(node.line, what, "remove it, and import again");
    }
}

fn note(fields: &Fields<'_>, names: &[&str], why: &str, notes: &mut Vec<String>) {
    for name in names {
        if let Some(node) = fields.get(name) {
            notes.push(format!("line {}: `{name}` {why}", node.line));
        }
    }
}

fn flexible(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    const KNOWN: [&str; 10] = [
        "keyPrefix",
        "points",
        "duration",
        "blockDuration",
        "execEvenly",
        "execEvenlyMinDelayMs",
        "inMemoryBlockOnConsumed",
        "inMemoryBlockDuration",
        "rejectIfRedisNotReady",
        "useRedisPackage",
    ];
    let fields = Fields::open(node, "rate-limiter-flexible", &KNOWN, complaints)?;
    let seconds = |name| fields.units(name, 0..=MAX_LIMIT);
    let points = match fields.get("points") {
        Some(_) => fields.units("points", 0..=MAX_LIMIT)?,
        None => 4,
    };
    let duration = match fields.get("duration") {
        Some(_) => seconds("duration")?,
        None => 1,
    };
    if duration == 0 {
        let what = "`duration: 0` has no equal rule: its counts never end";
        complaints.at(fields.line_of("duration"), what, "give it an end");
    }
    let block = match fields.get("blockDuration") {
        Some(_) => seconds("blockDuration")?,
        None => 0,
    };
    if block > 0 && block < duration {
        let what = "`blockDuration` below `duration` has no equal rule: after the block theirs begins with a fresh count, and Tidegate's window goes on";
        complaints.at(
            fields.line_of("blockDuration"),
            what,
            "make it at least the duration",
        );
    }
    refuse(
        &fields,
        "execEvenly",
        "false",
        "it delays a client that keeps to the rate; `leaky-bucket` with `max_wait` delays only early requests",
    );
    refuse(
        &fields,
        "inMemoryBlockDuration",
        "0",
        "it blocks in one process alone",
    );
    note(
        &fields,
        &[
            "execEvenlyMinDelayMs",
            "inMemoryBlockOnConsumed",
            "rejectIfRedisNotReady",
            "useRedisPackage",
        ],
        "changes no decision, and was left out",
        &mut made.notes,
    );
    let name = fields.get("keyPrefix").and_then(Node::text);
    let name = name.map_or_else(|| format!("limit-{number}"), ToOwned::to_owned);
    let algorithm = if block > 0 {
        format!("{FIRST_HIT}:block-for={block}s")
    } else {
        FIRST_HIT.to_owned()
    };
    let amount = (points, Some(Duration::from_secs(duration)));
    let comment = "rate-limiter-flexible; points are the cost of a request";
    made.add(comment, name, &algorithm, amount, (node.line, complaints));
    Some(())
}

fn express(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    const ANSWER: [&str; 7] = [
        "message",
        "statusCode",
        "legacyHeaders",
        "standardHeaders",
        "identifier",
        "requestPropertyName",
        "validate",
    ];
    let known: Vec<&str> = [
        "windowMs",
        "limit",
        "max",
        "ipv6Subnet",
        "passOnStoreError",
        "skipFailedRequests",
        "skipSuccessfulRequests",
    ]
    .into_iter()
    .chain(ANSWER)
    .collect();
    let fields = Fields::open(node, "express-rate-limit", &known, complaints)?;
    let window = match fields.get("windowMs") {
        Some(_) => fields.units("windowMs", 1..=MAX_LIMIT)?,
        None => 60_000,
    };
    let limit = match (fields.get("limit"), fields.get("max")) {
        (Some(_), Some(node)) => {
            let what = "`max` is the former name of `limit`";
            complaints.at(node.line, what, "keep one of them");
            return Some(());
        }
        (Some(_), None) => fields.units("limit", 0..=MAX_LIMIT)?,
        (None, Some(_)) => fields.units("max", 0..=MAX_LIMIT)?,
        (None, None) => 5,
    };
    for name in ["skipFailedRequests", "skipSuccessfulRequests"] {
        let why = "it takes a request back by its outcome; reserve a unit before the work, and cancel the reservation";
        refuse(&fields, name, "false", why);
    }
    note(
        &fields,
        &ANSWER,
        "concerns the answer, not the decision",
        &mut made.notes,
    );
    note(
        &fields,
        &["ipv6Subnet"],
        "concerns the key, which the caller gives: the address's network",
        &mut made.notes,
    );
    note(
        &fields,
        &["passOnStoreError"],
        "is `on_error: open` of a limit that servers share",
        &mut made.notes,
    );
    let amount = (limit, Some(Duration::from_millis(window)));
    let name = format!("limit-{number}");
    made.add(
        "express-rate-limit",
        name,
        FIRST_HIT,
        amount,
        (node.line, complaints),
    );
    Some(())
}

/// Strings such as `10/second; 100 per 5 minutes`.
fn strings(text: &str, algorithm: &str, complaints: &Complaints, made: &mut Made) {
    for (line, row) in (1..).zip(text.lines()) {
        for part in row.split([',', ';', '|']).map(str::trim) {
            if part.is_empty() {
                continue;
            }
            let Some((limit, window)) = limits_string(part) else {
                let what = format!("`{}` is not a limit", abridged(part));
                complaints.at(line, what, "write it as in 10/second or 100 per 5 minutes");
                continue;
            };
            let name = format!("limit-{}", made.rules.len() + 1);
            let amount = (limit, Some(window));
            made.add(part, name, algorithm, amount, (line, complaints));
        }
    }
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

/// A zone: its key, and its rate in requests and seconds, if it counts requests.
type Zones = BTreeMap<String, (String, Option<(u64, u64)>)>;

fn nginx(text: &str, complaints: &Complaints, made: &mut Made) {
    let all = directives(text);
    let mut zones = Zones::new();
    for directive in &all {
        if matches!(&*directive.words[0], "limit_req_zone" | "limit_conn_zone")
            && let Err(what) = zone(directive, &mut zones)
        {
            complaints.add(Problem::at(directive.line, what));
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
                .ok_or_else(|| "the number of connections is missing".to_owned()),
            _ => Err(format!("`{name}` names a zone of the other kind")),
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
            Err(what) => complaints.add(Problem::at(line, what)),
        }
    }
}

/// Reads `limit_req_zone KEY zone=NAME:SIZE rate=10r/s` or `limit_conn_zone KEY zone=NAME:SIZE`.
fn zone(directive: &Directive, zones: &mut Zones) -> Result<(), String> {
    let words = &directive.words;
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let (Some(key), Some(zone)) = (words.get(1), value("zone=")) else {
        return Err("the zone's key or name is missing".to_owned());
    };
    let name = zone.split(':').next().unwrap_or_default().to_owned();
    let rate = if words[0] == "limit_conn_zone" {
        None
    } else {
        let text = value("rate=").ok_or("the zone's rate is missing")?;
        let units = |number: &str| parse_units(number).filter(|rate| *rate > 0);
        let rate = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
            (Some(number), _) => units(number).map(|rate| (rate, 1)),
            (_, Some(number)) => units(number).map(|rate| (rate, 60)),
            _ => None,
        };
        let wrong = || {
            format!(
                "`rate={}` is not a rate such as 10r/s or 30r/m",
                abridged(text)
            )
        };
        Some(rate.ok_or_else(wrong)?)
    };
    zones.insert(name, (key.clone(), rate));
    Ok(())
}

/// The algorithm of `limit_req`, and its amount.
fn requests(
    arguments: &[String],
    (rate, seconds): (u64, u64),
) -> Result<(String, (u64, Option<Duration>)), String> {
    let (mut burst, mut is_delayed) = (0, true);
    for word in arguments {
        match word.split_once('=') {
            Some(("zone", _)) => {}
            Some(("burst", text)) => {
                let wrong = || format!("`burst={}` is not a number", abridged(text));
                burst = parse_units(text).ok_or_else(wrong)?;
            }
            Some(("delay", _)) => {
                return Err("`delay=` has no equal rule: it delays a part of the burst; choose nodelay, or none of them".to_owned());
            }
            None if word == "nodelay" => is_delayed = false,
            _ => {
                return Err(format!(
                    "`{}` is not a parameter of limit_req",
                    abridged(word)
                ));
            }
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
    let wait = u64::try_from(nanos).map_err(|_| "the burst waits too long".to_owned())?;
    Ok((format!("leaky-bucket:max_wait={wait}ns"), amount))
}
