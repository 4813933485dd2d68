//! JSON as Sentinel's reader (fastjson 1.2.83) takes it, written as usual JSON: strings in single
//! quotes, names without quotes, and field names in another case or with `_` and `-`.

/// The fields that are read or refused, as Sentinel writes them.
const FIELDS: [&str; 58] = [
    "app",
    "avgRt",
    "burst",
    "burstCount",
    "classType",
    "clusterConfig",
    "clusterMode",
    "controlBehavior",
    "count",
    "durationInSec",
    "fallbackToLocalWhenFail",
    "flowId",
    "grade",
    "highMemUsageThreshold",
    "highestCpuUsage",
    "highestSystemLoad",
    "id",
    "interval",
    "intervalSec",
    "intervalUnit",
    "limitApp",
    "lowMemUsageThreshold",
    "maxAllowedRtMs",
    "maxQueueingTimeMs",
    "maxQueueingTimeoutMs",
    "maxThread",
    "memHighWaterMarkBytes",
    "memLowWaterMarkBytes",
    "metricType",
    "minRequestAmount",
    "object",
    "paramFlowItemList",
    "paramIdx",
    "paramIndex",
    "paramItem",
    "paramKey",
    "qps",
    "refResource",
    "regex",
    "relationStrategy",
    "resource",
    "resourceMode",
    "retryTimeoutMs",
    "rule",
    "sampleCount",
    "slowRatioThreshold",
    "specificItems",
    "statIntervalInMs",
    "statIntervalMs",
    "strategy",
    "threshold",
    "thresholdType",
    "timeWindow",
    "tokenCalculateStrategy",
    "triggerCount",
    "warmUpColdFactor",
    "warmUpPeriodSec",
    "windowIntervalMs",
];

/// The same text as usual JSON. Lines stay where they are, and so do comments.
pub(super) fn usual(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' => string(rest, first),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            _ if is_in_name(first) => rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, behind) = rest.split_at(length);
        let is_name = behind.trim_start().starts_with(':');
        match first {
            '"' | '\'' => {
                let ended = part.len() > 1 && part.ends_with(first);
                let inner = if ended {
                    &part[1..part.len() - 1]
                } else {
                    part
                };
                match () {
                    () if !ended => out.push_str(part),
                    () if is_name => write(&mut out, field(inner)),
                    () => write(&mut out, inner),
                }
            }
            _ if is_in_name(first) && is_name => write(&mut out, field(part)),
            _ => out.push_str(part),
        }
        rest = behind;
    }
    out
}

fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// The length of the string at the beginning of a text, with its quotes.
fn string(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A field's name as Sentinel writes it. Other names stay.
fn field(name: &str) -> &str {
    let letters = |name: &str| -> Vec<char> {
        let letters = name.chars().filter(|c| !matches!(c, '_' | '-'));
        letters.map(|c| c.to_ascii_lowercase()).collect()
    };
    if FIELDS.contains(&name) {
        return name;
    }
    let plain = letters(name);
    let known = FIELDS.iter().find(|known| letters(known) == plain);
    known.copied().unwrap_or(name)
}

/// Writes what stands between quotes as a usual string.
fn write(out: &mut String, inner: &str) {
    out.push('"');
    let mut letters = inner.chars();
    while let Some(c) = letters.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => match letters.next() {
                Some('\'') => out.push('\''),
                Some('x') => out.push_str("\\u00"),
                Some('v') => out.push_str("\\u000b"),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            c => out.push(c),
        }
    }
    out.push('"');
}
