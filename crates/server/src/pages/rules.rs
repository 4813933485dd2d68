//! The rules in force, and the result of the last attempt to load them.

use std::{fmt::Write, sync::atomic::Ordering};

use maud::{Markup, html};
use serde_json::json;

use super::{
    layout::{layout, post},
    shown,
};
use crate::{http::App, limits::Limit};

/// A limit in the form of a rules file.
pub(super) fn yaml(limit: &Limit) -> String {
    let spec = limit.spec();
    let mut text = format!("- name: {}\n", spec.name);
    // Writing to a `String` does not fail.
    let _ = writeln!(text, "  limit: {}\n  algorithm: {}", spec.policy.quota(), spec.policy.algorithm.name());
    for options in [spec.policy.options(), spec.sharing.options()] {
        options.split(", ").filter(|option| !option.is_empty()).for_each(|option| {
            let _ = writeln!(text, "  {option}");
        });
    }
    for (name, on) in [("global", spec.global), ("shadow", spec.shadow)] {
        if on {
            let _ = writeln!(text, "  {name}: true");
        }
    }
    if let Some(max_keys) = spec.max_keys {
        let _ = writeln!(text, "  max_keys: {max_keys}");
    }
    // A JSON string is also a YAML string, with any characters.
    if !spec.overrides.is_empty() {
        text.push_str("  overrides:\n");
        for (key, policy) in &spec.overrides {
            let options = policy.options();
            let options = if options.is_empty() { options } else { format!(", {options}") };
            let _ = writeln!(text, "    {}: {{limit: {}{options}}}", json!(key), policy.quota());
        }
    }
    if !spec.deny.is_empty() {
        let _ = writeln!(text, "  deny: {}", json!(spec.deny));
    }
    text
}

pub(super) fn page(app: &App) -> Markup {
    let limits = app.service.limits();
    let loaded = app.events.rules_loaded_at.load(Ordering::Relaxed) / 1_000_000_000;
    let ago = (app.service.now().get() / 1_000_000_000).saturating_sub(loaded);
    let rejected = app.events.rejected();
    let rules: String = limits.limits().iter().map(|limit| yaml(limit)).collect();
    let head = html! { h1 { "Rules" } };
    let body = html! {
        p { (limits.limits().len()) " limits, loaded " (ago) " s ago." }
        @if rejected.is_empty() { } @else {
            section class="card" aria-label="Mistakes" {
                h2 class="bad" { "The file has changed since, and was rejected" }
                p { "These rules stay active until the file is fixed:" }
                ul { @for problem in &rejected { li { (shown::text(problem)) } } }
            }
        }
        div class="buttons" { (post("/v1/reload", "Reload the file", "Reload the file?", &[])) }
        pre tabindex="0" aria-label="The rules in force" { code { "limits:\n" (rules) } }
    };
    layout("Rules", "/rules", None, &head, &body)
}

#[cfg(test)]
mod tests {
    use tidegate_core::Nanos;

    use super::*;
    use crate::{limits::Limits, rules};

    #[test]
    fn the_displayed_rules_are_those_in_force() {
        let text = "limits:
            - {name: a, limit: 5/1m, algorithm: token-bucket, burst: 7, overrides: {\"x: y\": {limit: 9/1m}}, deny: [eve, \"a b\"]}
            - {name: b, limit: 100/1h, algorithm: sliding-window, slots: 60, shadow: true, max_keys: 100}
            - {name: c, limit: 3, algorithm: concurrency, global: true}
            - {name: d, limit: 3/1s, sharing: leased, slack: 2s, on_error: closed}";
        let parsed = rules::parse(text).unwrap();
        let limits = Limits::new(parsed.clone(), 10, |_| None, Nanos::ZERO).unwrap();
        let shown: String = limits.limits().iter().map(|limit| yaml(limit)).collect();
        assert_eq!(rules::parse(&format!("limits:\n{shown}")).unwrap(), parsed, "{shown}");
    }
}
