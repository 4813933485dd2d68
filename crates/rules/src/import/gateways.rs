//! The limits of Traefik, Kong, APISIX and Cloudflare, wherever they are in the configuration.

use std::time::Duration;

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged};
use tidegate_core::{MAX_LIMIT, Quota, parse_duration, parse_units};

use super::{FIRST_HIT, Made, nginx, note, refuse};

/// Calls `visit` with each entry of each mapping, and the name of the entry in which that mapping
/// is.
fn each_entry(node: &Node, parent: &str, visit: &mut impl FnMut(&str, &str, &Node)) {
    match &node.kind {
        Kind::Scalar { .. } => {}
        Kind::Sequence(items) => items
            .iter()
            .for_each(|item| each_entry(item, parent, visit)),
        Kind::Mapping(entries) => {
            for (key, value) in entries {
                let name = key.text().unwrap_or_default();
                visit(parent, name, value);
                each_entry(value, name, visit);
            }
        }
    }
}

/// The value of a plain entry of a mapping.
fn entry<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Kind::Mapping(entries) = &node.kind else {
        return None;
    };
    let found = entries.iter().find(|(key, _)| key.text() == Some(name));
    found.map(|(_, value)| value)
}

pub(super) fn traefik(root: &Node, complaints: &Complaints, made: &mut Made) {
    // A resource of Kubernetes has its name beside the specification.
    let named = entry(root, "metadata").and_then(|data| entry(data, "name"));
    let named = named.and_then(Node::text).map(str::to_owned);
    each_entry(root, "", &mut |parent, name, node| {
        let of = match name.to_ascii_lowercase().as_str() {
            "ratelimit" => average,
            "inflightreq" => in_flight,
            _ => return,
        };
        let name = named.clone().unwrap_or_else(|| parent.to_owned());
        let _ = of(node, name, complaints, made);
    });
}

fn average(node: &Node, name: String, complaints: &Complaints, made: &mut Made) -> Option<()> {
    const KNOWN: [&str; 5] = ["average", "period", "burst", "sourceCriterion", "redis"];
    let fields = Fields::open(node, "rateLimit", &KNOWN, complaints)?;
    let average = match fields.get("average") {
        Some(_) => fields.units("average", 0..=MAX_LIMIT)?,
        None => 0,
    };
    if average == 0 {
        let what = "an `average` of 0 limits nothing";
        complaints.at(fields.line_of("average"), what, "remove the middleware");
        return None;
    }
    let period = match fields.get("period") {
        None => Duration::from_secs(1),
        Some(node) => {
            let text = node.text().unwrap_or_default();
            // A number alone is in seconds.
            let read = match text.parse() {
                Ok(seconds) => Some(Duration::from_secs(seconds)),
                Err(_) => parse_duration(text).ok(),
            };
            let Some(period) = read.filter(|period| !period.is_zero()) else {
                let what = format!("`period` is {}", node.describe());
                complaints.at(node.line, what, "write it as in 1s or 1m");
                return None;
            };
            period
        }
    };
    let burst = match fields.get("burst") {
        Some(_) => fields.units("burst", 0..=MAX_LIMIT)?.max(1),
        None => 1,
    };
    let why = "is the key of a request: its address by default";
    note(&fields, &["sourceCriterion"], why, &mut made.notes);
    note(&fields, &["redis"], "is `--store`", &mut made.notes);
    made.notes.push(format!(
        "line {}: Traefik lets a request wait that is early by at most half an interval (or 500 ms); here it is denied",
        node.line
    ));
    let algorithm = format!("token-bucket:burst={burst}");
    let amount = (average, Some(period));
    made.add("Traefik", name, &algorithm, amount, (node.line, complaints));
    Some(())
}

fn in_flight(node: &Node, name: String, complaints: &Complaints, made: &mut Made) -> Option<()> {
    let fields = Fields::open(
        node,
        "inFlightReq",
        &["amount", "sourceCriterion"],
        complaints,
    )?;
    let amount = fields.units("amount", 1..=u64::from(u32::MAX))?;
    let why = "is the key of a request: its host by default";
    note(&fields, &["sourceCriterion"], why, &mut made.notes);
    let place = (node.line, complaints);
    made.add("Traefik", name, "concurrency", (amount, None), place);
    Some(())
}

pub(super) fn kong(root: &Node, complaints: &Complaints, made: &mut Made) {
    let mut number = 0;
    let mut plugin = |node: &Node| {
        let name = entry(node, "name").and_then(Node::text);
        match (name, entry(node, "config")) {
            (Some("rate-limiting"), Some(config)) => {
                number += 1;
                let _ = periods(config, number, complaints, made);
            }
            (Some(name @ ("rate-limiting-advanced" | "response-ratelimiting")), _) => {
                let what = format!("the plugin `{name}` has no equal rule that is known");
                complaints.at(node.line, what, "remove it, and import again");
            }
            _ => {}
        }
    };
    // One plugin, as the Admin API has it; or lists of them.
    plugin(root);
    each_entry(root, "", &mut |_, name, value| {
        if let (true, Kind::Sequence(items)) = (matches!(name, "plugins" | "data"), &value.kind) {
            items.iter().for_each(&mut plugin);
        }
    });
}

fn periods(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    const PERIODS: [&str; 6] = ["second", "minute", "hour", "day", "month", "year"];
    const OTHERS: [&str; 12] = [
        "error_code",
        "error_message",
        "fault_tolerant",
        "header_name",
        "hide_client_headers",
        "limit_by",
        "path",
        "policy",
        "redis",
        "sync_rate",
        "consumer_groups",
        "enforce_consumer_groups",
    ];
    let known: Vec<&str> = PERIODS.into_iter().chain(OTHERS).collect();
    let fields = Fields::open(node, "rate-limiting", &known, complaints)?;
    let before = made.rules.len();
    for period in PERIODS {
        if fields.get(period).is_none_or(Node::is_null) {
            continue;
        }
        let limit = fields.units(period, 1..=MAX_LIMIT)?;
        let quota: Quota = format!("1/{period}").parse().ok()?;
        // Months and years are those of the calendar, in UTC.
        let amount = (limit, Some(quota.window()));
        let name = format!("limit-{number}-{period}");
        let place = (fields.line_of(period), complaints);
        made.add("Kong's rate-limiting", name, "fixed-window", amount, place);
    }
    refuse(
        &fields,
        "enforce_consumer_groups",
        "false",
        "its groups have limits of their own; write `overrides`",
    );
    note(
        &fields,
        &["limit_by", "header_name", "path"],
        "is the key of a request",
        &mut made.notes,
    );
    note(
        &fields,
        &["policy", "redis"],
        "is where the counts are: --store shares them",
        &mut made.notes,
    );
    let why = "lets Kong's nodes admit more between two reports; the rule counts exactly";
    note(&fields, &["sync_rate"], why, &mut made.notes);
    let answer = ["error_code", "error_message", "hide_client_headers"];
    note(
        &fields,
        &answer,
        "concerns the answer, not the decision",
        &mut made.notes,
    );
    let why = "is `on_error: open` of a limit that servers share";
    note(&fields, &["fault_tolerant"], why, &mut made.notes);
    if made.rules.len() > before + 1 {
        let note = "several periods of one plugin: ask for all of their rules in one request";
        made.notes.push(note.to_owned());
    }
    Some(())
}

pub(super) fn apisix(root: &Node, complaints: &Complaints, made: &mut Made) {
    let mut number = 0;
    each_entry(root, "", &mut |_, name, node| {
        let of = match name {
            "limit-count" => count,
            "limit-req" => pace,
            "limit-conn" => connections,
            _ => return,
        };
        number += 1;
        let _ = of(node, number, complaints, made);
    });
}

/// Settings of all three plugins that concern no decision.
const APISIX: [&str; 7] = [
    "key",
    "key_type",
    "group",
    "rejected_code",
    "rejected_msg",
    "allow_degradation",
    "policy",
];

fn apisix_notes(fields: &Fields<'_>, made: &mut Made) {
    note(
        fields,
        &["key", "key_type", "group"],
        "is the key of a request",
        &mut made.notes,
    );
    let why = "concerns the answer, not the decision";
    note(
        fields,
        &["rejected_code", "rejected_msg"],
        why,
        &mut made.notes,
    );
    let why = "is `on_error: open` of a limit that servers share";
    note(fields, &["allow_degradation"], why, &mut made.notes);
    note(
        fields,
        &["policy"],
        "is where the counts are: --store shares them",
        &mut made.notes,
    );
}

/// The names that the settings of a store have.
fn is_of_store(name: &str) -> bool {
    name.starts_with("redis_") || matches!(name, "_meta" | "show_limit_quota_header")
}

/// Opens a plugin's settings without those of its store.
fn plugin<'a>(
    node: &'a Node,
    name: &str,
    own: &[&'a str],
    complaints: &'a Complaints,
) -> Option<Fields<'a>> {
    let Kind::Mapping(entries) = &node.kind else {
        complaints.at(
            node.line,
            format!("`{name}` has no settings"),
            "write a mapping",
        );
        return None;
    };
    let of_store = entries.iter().filter_map(|(key, _)| key.text());
    let of_store = of_store.filter(|name| is_of_store(name));
    let known: Vec<&str> = own.iter().copied().chain(APISIX).chain(of_store).collect();
    Fields::open(node, name, &known, complaints)
}

fn count(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    let own = [
        "count",
        "time_window",
        "rules",
        "window_type",
        "sync_interval",
    ];
    let fields = plugin(node, "limit-count", &own, complaints)?;
    let why = "its windows slide, and weigh the former window as one estimate";
    refuse(&fields, "window_type", "fixed", why);
    apisix_notes(&fields, made);
    let mut add = |fields: &Fields<'_>, name: String| {
        let count = fields.units("count", 1..=MAX_LIMIT)?;
        let seconds = fields.units("time_window", 1..=MAX_LIMIT)?;
        let amount = (count, Some(Duration::from_secs(seconds)));
        let place = (fields.line(), complaints);
        made.add("APISIX's limit-count", name, FIRST_HIT, amount, place);
        Some(())
    };
    let rules = fields.list("rules", "write a list of rules");
    if rules.is_empty() {
        return add(&fields, format!("limit-{number}"));
    }
    for (at, rule) in (1..).zip(rules) {
        let known = ["count", "time_window", "key", "header_prefix"];
        let fields = Fields::open(rule, "rule", &known, complaints)?;
        add(&fields, format!("limit-{number}-{at}"))?;
    }
    let note = "several rules of one limit-count: a denial by one counts in those that were asked before; one request over all takes nothing";
    made.notes.push(note.to_owned());
    Some(())
}

/// `limit-req` counts as nginx's `limit_req` does.
fn pace(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    let fields = plugin(node, "limit-req", &["rate", "burst", "nodelay"], complaints)?;
    apisix_notes(&fields, made);
    let Some(rate) = fields.get("rate") else {
        complaints.at(node.line, "`limit-req` has no `rate`", "add it");
        return None;
    };
    let Some(per_second) = rate.text().and_then(decimal) else {
        let what = format!("`rate` is {}", rate.describe());
        complaints.at(
            rate.line,
            what,
            "give requests in a second, as in 10 or 0.5",
        );
        return None;
    };
    let burst = match fields.get("burst") {
        Some(_) => fields.units("burst", 0..=MAX_LIMIT)?,
        None => 0,
    };
    let mut arguments = vec![format!("burst={burst}")];
    if fields.flag("nodelay") == Some(true) {
        arguments.push("nodelay".to_owned());
    }
    match nginx::requests(&arguments, per_second) {
        Ok((algorithm, amount)) => {
            let (name, place) = (format!("limit-{number}"), (node.line, complaints));
            made.add("APISIX's limit-req", name, &algorithm, amount, place);
        }
        Err(error) => complaints.add(Problem::at(node.line, error.to_string())),
    }
    Some(())
}

/// A decimal above 0 as requests and seconds: 0.5 is 5 in 10 s.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let seconds = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 6 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let requests = parse_units(&format!("{whole}{part}")).filter(|units| *units > 0)?;
    Some((requests, seconds))
}

fn connections(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    let own = [
        "conn",
        "burst",
        "default_conn_delay",
        "only_use_default_delay",
        "key_ttl",
    ];
    let fields = plugin(node, "limit-conn", &own, complaints)?;
    apisix_notes(&fields, made);
    let amount = fields.units("conn", 1..=u64::from(u32::MAX))?;
    refuse(
        &fields,
        "burst",
        "0",
        "it delays requests beyond `conn` by how long others took",
    );
    let why = "changes nothing without a burst";
    note(
        &fields,
        &["default_conn_delay", "only_use_default_delay"],
        why,
        &mut made.notes,
    );
    let (name, place) = (format!("limit-{number}"), (node.line, complaints));
    made.add(
        "APISIX's limit-conn",
        name,
        "concurrency",
        (amount, None),
        place,
    );
    Some(())
}

pub(super) fn cloudflare(root: &Node, complaints: &Complaints, made: &mut Made) {
    let mut number = 0;
    let mut rule = |node: &Node| {
        let Some(limit) = entry(node, "ratelimit") else {
            return;
        };
        number += 1;
        let action = entry(node, "action")
            .and_then(Node::text)
            .unwrap_or("block");
        if action != "block" {
            let what = format!("the action `{}` has no equal rule", abridged(action));
            complaints.at(
                node.line,
                what,
                "make it `block`, and for `log` add `shadow: true`",
            );
        }
        if let Some(expression) = entry(node, "expression") {
            made.notes.push(format!(
                "line {}: `expression` selects the requests that are asked",
                expression.line
            ));
        }
        let _ = period(limit, number, complaints, made);
    };
    rule(root);
    each_entry(root, "", &mut |_, name, value| {
        if let ("rules", Kind::Sequence(items)) = (name, &value.kind) {
            items.iter().for_each(&mut rule);
        }
    });
    if !made.rules.is_empty() {
        let note = "Cloudflare publishes no exact algorithm and counts in each of its data centres; the rules have its numbers, and count in one place";
        made.notes.push(note.to_owned());
    }
}

fn period(node: &Node, number: usize, complaints: &Complaints, made: &mut Made) -> Option<()> {
    const KNOWN: [&str; 6] = [
        "characteristics",
        "counting_expression",
        "mitigation_timeout",
        "period",
        "requests_per_period",
        "requests_to_origin",
    ];
    let fields = Fields::open(node, "ratelimit", &KNOWN, complaints)?;
    let seconds = fields.units("period", 1..=MAX_LIMIT)?;
    let limit = fields.units("requests_per_period", 1..=MAX_LIMIT)?;
    let block = match fields.get("mitigation_timeout") {
        Some(_) => fields.units("mitigation_timeout", 0..=MAX_LIMIT)?,
        None => 0,
    };
    refuse(
        &fields,
        "counting_expression",
        "",
        "it counts other requests than it denies",
    );
    note(
        &fields,
        &["characteristics"],
        "is the key of a request",
        &mut made.notes,
    );
    let why = "counts only what a cache did not answer; ask for those";
    note(&fields, &["requests_to_origin"], why, &mut made.notes);
    let algorithm = if block > 0 {
        format!("sliding-counter:block-for={block}s")
    } else {
        "sliding-counter".to_owned()
    };
    let amount = (limit, Some(Duration::from_secs(seconds)));
    let (name, place) = (format!("limit-{number}"), (node.line, complaints));
    made.add("Cloudflare", name, &algorithm, amount, place);
    Some(())
}
