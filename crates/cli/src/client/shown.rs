//! Answers of a server as text.

use std::io::{self, Write};

use serde_json::{Value, json};
use tidegate_core::{Clock, Nanos, clock::SystemClock};

pub fn print(line: &str) {
    // If standard output is closed, the exit code still shows the result.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a decision. Returns whether it admits.
pub fn decided(answer: &Value) -> bool {
    let number = |name: &str| answer[name].as_u64();
    let allowed = answer["allowed"].as_bool().unwrap_or(false);
    let mut parts = vec![if allowed {
        "allowed".to_owned()
    } else {
        "denied".to_owned()
    }];
    for (name, what) in [
        ("remaining", "remaining"),
        ("retry_after_ms", "retry after ms"),
        ("delay_ms", "delay ms"),
    ] {
        if let Some(number) = number(name).filter(|number| name == "remaining" || *number > 0) {
            parts.push(format!("{what} {number}"));
        }
    }
    print(&parts.join(", "));
    allowed
}

/// Prints a list of objects as columns of these members; those that end in `_ms` are times, except
/// for `for_ms`.
pub fn columns<const N: usize>(list: &Value, names: [&str; N]) -> bool {
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::Number(ms) if name != "for_ms" => time(ms.as_u64().unwrap_or_default()),
        Value::Number(ms) => span(ms.as_u64().unwrap_or_default()),
        Value::String(text) => text
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect(),
        other => other.to_string(),
    };
    let head = names.map(|name| {
        name.trim_end_matches("_ms")
            .trim_end_matches("_name")
            .to_uppercase()
    });
    let rows = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| names.map(|name| cell(row, name)));
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    print(crate::check::aligned(&rows).trim_end());
    true
}

fn span(ms: u64) -> String {
    Nanos::from_millis(ms).to_string()
}

/// A time in milliseconds since 1970, as seen from now.
fn time(ms: u64) -> String {
    let now = SystemClock::new().now().get() / 1_000_000;
    let text = span(ms.abs_diff(now) / 1_000 * 1_000);
    if ms > now {
        format!("in {text}")
    } else {
        format!("{text} ago")
    }
}

/// Prints why a key is admitted or denied. Returns whether it is admitted.
pub fn explained(answer: &Value) -> bool {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ms = |name: &str| answer[name].as_u64().map(span);
    let order = |order: &Value| {
        let quota = text(&order["quota"]).map(|quota| format!("{quota}, "));
        let when = |name: &str, word: &str| {
            order[name]
                .as_u64()
                .map(|ms| format!("{word} {}", time(ms)))
        };
        let since = when("since_ms", "given")
            .unwrap_or_else(|| "given before the server's start or at another one".to_owned());
        let until = when("until_ms", "ends").unwrap_or_else(|| "without end".to_owned());
        let by = text(&order["client"]).map(|by| format!(", by {by}"));
        let note = text(&order["note"]).map(|note| format!(": {note}"));
        order.is_object().then(|| {
            [
                quota.unwrap_or_default(),
                format!("{since}, {until}"),
                by.unwrap_or_default(),
                note.unwrap_or_default(),
            ]
            .concat()
        })
    };
    let is_denied = answer["allowed"] == false;
    let reason = text(&answer["reason"]).map_or_else(String::new, |reason| format!(" ({reason})"));
    let verdict = if is_denied { "denied" } else { "admitted" };
    let shadow = if answer["shadow"] == true {
        ", by a limit that only counts"
    } else {
        ""
    };
    for (name, value) in [
        (
            "verdict",
            Some(format!(
                "{verdict}{reason}{shadow}, remaining {} of {}",
                answer["remaining"], answer["limit"]
            )),
        ),
        ("admitted in", ms("retry_after_ms")),
        ("unused in", ms("reset_after_ms")),
        (
            "rule",
            text(&answer["rule"]).map(|rule| {
                format!(
                    "{rule}, from {}",
                    answer["rule_from"].as_str().unwrap_or_default()
                )
            }),
        ),
        ("block", order(&answer["block"])),
        ("override", order(&answer["override"])),
        ("what helps", text(&answer["mend"])),
    ] {
        if let Some(value) = value {
            print(&format!("{name:<12} {value}"));
        }
    }
    if answer["recent"]
        .as_array()
        .is_some_and(|recent| !recent.is_empty())
    {
        columns(&answer["recent"], ["time_ms", "verdict", "reason"]);
    }
    !is_denied
}

/// A limit as in a rules file, on one line.
pub fn written(limit: &Value) -> String {
    let text = |name: &str| limit[name].as_str().unwrap_or_default();
    let mut fields = vec![
        format!("name: {}", text("name")),
        format!("limit: {}", text("limit")),
        format!("algorithm: {}", text("algorithm")),
    ];
    fields.extend(
        ["options", "sharing"]
            .map(text)
            .into_iter()
            .filter(|more| !more.is_empty())
            .map(str::to_owned),
    );
    fields.extend(
        ["global", "shadow"]
            .into_iter()
            .filter(|name| limit[*name] == true)
            .map(|name| format!("{name}: true")),
    );
    let overrides = limit["overrides"].as_object().into_iter().flatten();
    // An override has the algorithm of its limit, which a rules file does not repeat.
    let algorithm = format!("algorithm: {}, ", text("algorithm"));
    let policy = |policy: &Value| {
        policy
            .as_str()
            .unwrap_or_default()
            .replacen(&algorithm, "", 1)
    };
    // A JSON string is also a YAML string, so a key may have any characters.
    let overrides: Vec<_> = overrides
        .map(|(key, own)| format!("{}: {}", json!(key), policy(own)))
        .collect();
    if !overrides.is_empty() {
        fields.push(format!("overrides: {{{}}}", overrides.join(", ")));
    }
    let deny = &limit["deny"];
    if deny.as_array().is_some_and(|deny| !deny.is_empty()) {
        fields.push(format!("deny: {deny}"));
    }
    format!("  - {{{}}}", fields.join(", "))
}
