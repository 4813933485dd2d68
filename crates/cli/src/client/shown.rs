//! Answers of a server as text.

use serde_json::{Value, json};
use tidegate_core::{Clock, clock::SystemClock};
use tidegate_server::shown::{span_ms, text, when};

use crate::output;

/// Prints a line about what was decided or done, which the exit code shows even if the line cannot
/// be written.
pub fn print(line: &str) {
    if let Err(error) = output::write(&format!("{line}\n")) {
        output::report(&error);
    }
}

/// Prints a list, which is lost if it cannot be written: this then ends the program.
pub fn print_list(text: &str) {
    if let Err(error) = output::write(&format!("{text}\n")) {
        output::report(&error);
        std::process::exit(3);
    }
}

/// Prints a decision. Returns whether it admits.
pub fn decided(answer: &Value) -> bool {
    let number = |name: &str| answer[name].as_u64();
    let allowed = answer["allowed"].as_bool().unwrap_or(false);
    let reason = answer["reason"].as_str();
    let mut parts = vec![match (allowed, reason) {
        (true, _) => "allowed".to_owned(),
        (false, Some(reason)) => format!("denied ({reason})"),
        (false, None) => "denied".to_owned(),
    }];
    parts.extend(number("remaining").map(|left| format!("remaining {left}")));
    for (name, what) in [("retry_after_ms", "retry after"), ("delay_ms", "delay")] {
        let ms = number(name).filter(|ms| *ms > 0);
        parts.extend(ms.map(|ms| format!("{what} {}", span_ms(ms))));
    }
    print(&parts.join(", "));
    allowed
}

/// Prints a list of objects as columns of these members; those that end in `_ms` are times, except
/// for `for_ms`.
pub fn columns<const N: usize>(list: &Value, names: [&str; N]) -> bool {
    let now = SystemClock::new().now();
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::Number(ms) if name != "for_ms" => when(ms.as_u64().unwrap_or_default(), now),
        Value::Number(ms) => span_ms(ms.as_u64().unwrap_or_default()),
        Value::String(cell) => text(cell),
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
    print_list(crate::check::aligned(&rows).trim_end());
    true
}

/// Prints the facts that the server gives about a key. Returns whether it is admitted.
pub fn explained(answer: &Value) -> bool {
    for fact in answer["facts"].as_array().into_iter().flatten() {
        let part = |name: &str| text(fact[name].as_str().unwrap_or_default());
        print(&format!("{:<12} {}", part("name"), part("text")));
    }
    answer["allowed"] != false
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
        ["options", "sharing", "further"]
            .map(text)
            .into_iter()
            .filter(|more| !more.is_empty())
            .map(str::to_owned),
    );
    // A soft limit is a shadow limit, too.
    let counts_only = if limit["soft"] == true {
        "soft"
    } else {
        "shadow"
    };
    fields.extend(
        ["global", counts_only]
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
    if let Some(shares) = limit["shares"].as_object() {
        let is_set = |value: &Value| !value.is_null() && *value != json!({});
        let set: serde_json::Map<_, _> = shares
            .iter()
            .filter(|(_, value)| is_set(value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        fields.push(format!("shares: {}", Value::from(set)));
    }
    let deny = &limit["deny"];
    if deny.as_array().is_some_and(|deny| !deny.is_empty()) {
        fields.push(format!("deny: {deny}"));
    }
    format!("  - {{{}}}", fields.join(", "))
}
