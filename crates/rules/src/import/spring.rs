//! The properties of bucket4j-spring-boot-starter and resilience4j, as YAML.

use std::time::Duration;

use tidegate_config::{Complaints, Kind, Node, abridged};
use tidegate_core::{parse_duration, parse_units};

use super::Made;

/// The most parts of a key; the rest is one part.
const MOST_PARTS: usize = 16;

/// Whether two names are the same to Spring, which reads `limitForPeriod` and `limit-for-period`
/// alike.
fn same(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    plain(one) == plain(other)
}

fn entries(node: &Node) -> &[(Node, Node)] {
    match &node.kind {
        Kind::Mapping(entries) => entries,
        _ => &[],
    }
}

fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.kind) {
        Some(Kind::Sequence(items)) => items,
        _ => &[],
    }
}

/// The same properties without keys of several parts: `bucket4j.filters` is an entry of `bucket4j`.
fn nested(node: &Node) -> Node {
    let kind = match &node.kind {
        Kind::Mapping(entries) => {
            let mut all = Vec::new();
            for (key, value) in entries {
                let parts: Vec<&str> = key
                    .text()
                    .unwrap_or_default()
                    .splitn(MOST_PARTS, '.')
                    .collect();
                insert(&mut all, &parts, key.line, nested(value));
            }
            Kind::Mapping(all)
        }
        Kind::Sequence(items) => Kind::Sequence(items.iter().map(nested).collect()),
        scalar @ Kind::Scalar { .. } => scalar.clone(),
    };
    Node {
        line: node.line,
        kind,
    }
}

/// Adds a property to a mapping. Two mappings of one name become one.
fn insert(into: &mut Vec<(Node, Node)>, path: &[&str], line: usize, value: Node) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let value = if rest.is_empty() {
        value
    } else {
        let mut inner = Vec::new();
        insert(&mut inner, rest, line, value);
        let kind = Kind::Mapping(inner);
        Node { line, kind }
    };
    let known = into
        .iter_mut()
        .find(|(key, _)| key.text().is_some_and(|known| same(known, name)));
    if let (Some((_, known)), Kind::Mapping(more)) = (known, &value.kind)
        && let Kind::Mapping(entries) = &mut known.kind
    {
        for (key, value) in more {
            let name = key.text().unwrap_or_default();
            insert(entries, &[name], key.line, value.clone());
        }
        return;
    }
    let text = (*name).to_owned();
    let kind = Kind::Scalar { text, plain: false };
    into.push((Node { line, kind }, value));
}

/// The value of a property.
fn at<'n>(node: &'n Node, path: &[&str]) -> Option<&'n Node> {
    let Some((name, rest)) = path.split_first() else {
        return Some(node);
    };
    let is = |(key, _): &&(Node, Node)| key.text().is_some_and(|known| same(known, name));
    entries(node)
        .iter()
        .find(is)
        .and_then(|(_, value)| at(value, rest))
}

/// A value that must be one of a kind. `None` if it is missing or wrong, which was said.
fn read<T>(
    node: &Node,
    name: &str,
    parse: impl FnOnce(&str) -> Option<T>,
    wants: &str,
    complaints: &Complaints,
) -> Option<T> {
    let value = at(node, &[name])?;
    let read = value.text().and_then(parse);
    if read.is_none() {
        let what = format!("`{name}` is {}", value.describe());
        complaints.at(value.line, what, wants);
    }
    read
}

fn units(node: &Node, name: &str, complaints: &Complaints) -> Option<u64> {
    read(node, name, parse_units, "give a whole number", complaints)
}

pub(super) fn bucket4j(root: &Node, complaints: &Complaints, made: &mut Made) {
    let root = nested(root);
    let filters = items(at(&root, &["bucket4j", "filters"]));
    let methods = items(at(&root, &["bucket4j", "methods"]));
    for filter in filters.iter().chain(methods) {
        let one = at(filter, &["rate-limit"]).into_iter();
        for limit in items(at(filter, &["rate-limits"])).iter().chain(one) {
            for (key, _) in entries(limit) {
                match key.text() {
                    Some(name) if same(name, "bandwidths") => {}
                    Some(name) if same(name, "cache-key") || same(name, "expression") => {
                        made.notes.push(format!(
                            "line {}: `{}` is the key of a request",
                            key.line,
                            abridged(name)
                        ));
                    }
                    _ => made.notes.push(format!(
                        "line {}: {} concerns which requests are asked and their cost, or the answer",
                        key.line,
                        key.describe()
                    )),
                }
            }
            for bandwidth in items(at(limit, &["bandwidths"])) {
                bandwidth_of(bandwidth, complaints, made);
            }
        }
    }
    if made.rules.len() > 1 {
        let note = "several bandwidths of one bucket are one request over all of their rules";
        made.notes.push(note.to_owned());
    }
}

fn bandwidth_of(node: &Node, complaints: &Complaints, made: &mut Made) {
    const KNOWN: [&str; 7] = [
        "id",
        "capacity",
        "refill-capacity",
        "time",
        "unit",
        "initial-capacity",
        "refill-speed",
    ];
    for (key, _) in entries(node) {
        if !KNOWN
            .iter()
            .any(|known| key.text().is_some_and(|name| same(name, known)))
        {
            let what = format!("{} is not known of a bandwidth", key.describe());
            complaints.at(key.line, what, "remove it, and import again");
        }
    }
    let missing = |name: &str| {
        if at(node, &[name]).is_none() {
            complaints.at(
                node.line,
                format!("the bandwidth has no `{name}`"),
                "add it",
            );
        }
    };
    ["capacity", "time", "unit"].into_iter().for_each(missing);
    let capacity = units(node, "capacity", complaints);
    let refill = units(node, "refill-capacity", complaints).or(capacity);
    let time = units(node, "time", complaints);
    let unit = read(
        node,
        "unit",
        chrono_unit,
        "give one of nanos, micros, millis, seconds, minutes, hours, half_days and days",
        complaints,
    );
    let initial = units(node, "initial-capacity", complaints);
    if initial.is_some() && initial != capacity {
        let value = at(node, &["initial-capacity"]);
        let what = "`initial-capacity` has no equal rule: a new key has the whole capacity";
        let line = value.map_or(node.line, |value| value.line);
        complaints.at(line, what, "make it the capacity, or remove it");
    }
    let speed = at(node, &["refill-speed"]);
    match speed.map(|speed| (speed, speed.text().map(str::to_ascii_lowercase))) {
        Some((speed, Some(name))) if name == "interval" => {
            let what = "`refill-speed: interval` has no equal rule: its lumps come at times since the bucket was made, and those of `fixed-window` with `burst` when windows of the clock end";
            complaints.at(speed.line, what, "use `greedy`, or write such a rule");
        }
        Some((speed, name)) if name.as_deref() != Some("greedy") => {
            let what = format!("`refill-speed` is {}", speed.describe());
            complaints.at(speed.line, what, "give greedy or interval");
        }
        _ => {}
    }
    let (Some(capacity), Some(refill), Some(time), Some(unit)) = (capacity, refill, time, unit)
    else {
        return;
    };
    let Some(nanos) = time.checked_mul(unit) else {
        return complaints.at(node.line, "the time is too long", "shorten it");
    };
    let id = at(node, &["id"]).and_then(Node::text);
    let name = id.map_or_else(|| format!("limit-{}", made.rules.len() + 1), str::to_owned);
    let amount = (refill, Some(Duration::from_nanos(nanos)));
    let algorithm = format!("token-bucket:burst={capacity}");
    made.add(
        "bucket4j",
        name,
        &algorithm,
        amount,
        (node.line, complaints),
    );
}

/// The nanoseconds of Java's `ChronoUnit`.
fn chrono_unit(text: &str) -> Option<u64> {
    let seconds = 1_000_000_000;
    Some(match text.to_ascii_lowercase().replace('-', "_").as_str() {
        "nanos" => 1,
        "micros" => 1_000,
        "millis" => 1_000_000,
        "seconds" => seconds,
        "minutes" => 60 * seconds,
        "hours" => 3_600 * seconds,
        "half_days" => 12 * 3_600 * seconds,
        "days" => 24 * 3_600 * seconds,
        _ => return None,
    })
}

pub(super) fn resilience4j(root: &Node, complaints: &Complaints, made: &mut Made) {
    const NO_DECISION: [&str; 6] = [
        "register-health-indicator",
        "allow-health-indicator-to-fail",
        "subscribe-for-events",
        "event-consumer-buffer-size",
        "writable-stack-trace-enabled",
        "timeout-duration",
    ];
    let root = nested(root);
    let Some(limiters) = at(&root, &["resilience4j", "ratelimiter"]) else {
        return;
    };
    let config = |name: &str| at(limiters, &["configs", name]);
    let instances = at(limiters, &["instances"]);
    for (name, instance) in instances.map_or(&[][..], entries) {
        let base = at(instance, &["base-config"]).and_then(Node::text);
        let default = config("default");
        let base = match base {
            None => default,
            Some(base) => {
                let found = config(base);
                if found.is_none() {
                    let what = format!("the base `{}` is not in `configs`", abridged(base));
                    complaints.at(instance.line, what, "add it, or name another");
                }
                found
            }
        };
        let layers: Vec<&Node> = [Some(instance), base].into_iter().flatten().collect();
        for (key, _) in layers.iter().flat_map(|layer| entries(layer)) {
            let is = |known: &str| key.text().is_some_and(|name| same(name, known));
            if is("timeout-duration") {
                made.notes.push(format!(
                    "line {}: {} is how long a caller waits; a rule decides at once, and says when a retry is admitted",
                    key.line,
                    key.describe()
                ));
            } else if !NO_DECISION.iter().any(|known| is(known))
                && !is("limit-for-period")
                && !is("limit-refresh-period")
                && !is("base-config")
            {
                let what = format!("{} is not known of a rate limiter", key.describe());
                complaints.at(key.line, what, "remove it, and import again");
            }
        }
        let limit = layers
            .iter()
            .find_map(|layer| units(layer, "limit-for-period", complaints));
        let wants = "write a duration as in 500ms, 1s or PT1S";
        let period = layers.iter().find_map(|layer| {
            read(
                layer,
                "limit-refresh-period",
                spring_duration,
                wants,
                complaints,
            )
        });
        let period = period.unwrap_or(Duration::from_nanos(500));
        let comment = "resilience4j; one count for all callers";
        let amount = (limit.unwrap_or(50), Some(period));
        let name = name.text().unwrap_or_default().to_owned();
        let before = made.rules.len();
        made.add(
            comment,
            name,
            "fixed-window",
            amount,
            (instance.line, complaints),
        );
        made.rules[before..]
            .iter_mut()
            .for_each(|(_, limit)| limit.global = true);
    }
    if !made.rules.is_empty() {
        let note = "windows begin with the clock; resilience4j's begin when its limiter is made. A cost above the limit never fits here, and waits for several periods there";
        made.notes.push(note.to_owned());
    }
}

/// A duration as Spring reads it: a number of milliseconds, a number with a unit, or ISO 8601.
fn spring_duration(text: &str) -> Option<Duration> {
    if let Ok(millis) = text.parse() {
        return Some(Duration::from_millis(millis));
    }
    let text = text.to_ascii_lowercase();
    // ISO 8601: `PT1M30S`.
    let plain = text.strip_prefix("pt").or_else(|| text.strip_prefix('p'));
    parse_duration(plain.unwrap_or(&text))
        .ok()
        .filter(|span| !span.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_several_parts_are_mappings() {
        let text = "a.b.c: 1\na: {b: {d: 2}, B.e: 3}\nA.b: {f: 4}";
        let root = nested(&tidegate_config::parse(text).unwrap().unwrap());
        for (name, value) in [("c", "1"), ("d", "2"), ("e", "3"), ("f", "4")] {
            let found = at(&root, &["a", "b", name]).and_then(Node::text);
            assert_eq!(found, Some(value), "{name}");
        }
        let long = format!("{}: 1", vec!["a"; 100].join("."));
        let root = nested(&tidegate_config::parse(&long).unwrap().unwrap());
        assert!(at(&root, &["a"; MOST_PARTS - 1]).is_some());
    }

    #[test]
    fn durations_are_read_as_spring_reads_them() {
        for (text, nanos) in [
            ("500", 500_000_000),
            ("500ns", 500),
            ("1s", 1_000_000_000),
            ("PT1M30S", 90_000_000_000),
            ("P1D", 86_400_000_000_000),
        ] {
            assert_eq!(
                spring_duration(text),
                Some(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        for text in ["", "fast", "PT", "-1s", "0s", "PT1.5S"] {
            assert_eq!(spring_duration(text), None, "{text}");
        }
    }
}
