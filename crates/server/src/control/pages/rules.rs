//! The rules: the file, the result of the last attempt to load it, an editor, and the rules in force.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering},
};

use maud::{Markup, html};
use serde_json::json;
use tokio::task::spawn_blocking;

use super::{
    layout::{Action, layout, post},
    shown,
};
use crate::{
    decide::limits::Limit,
    edges::http::{App, Viewer},
    rules::file::Text,
};

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
    for (name, on) in [("global", spec.global), ("shadow", spec.shadow && !spec.soft), ("soft", spec.soft)] {
        if on {
            let _ = writeln!(text, "  {name}: true");
        }
    }
    if !spec.thresholds.is_empty() {
        let percentages: Vec<_> = spec.thresholds.iter().map(|percent| format!("{percent}%")).collect();
        let _ = writeln!(text, "  thresholds: [{}]", percentages.join(", "));
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

pub(super) async fn page(app: &App, viewer: Viewer) -> Markup {
    let limits = app.service.limits();
    let now = app.service.now();
    let seconds = |since: u64| (now.get() / 1_000_000_000).saturating_sub(since / 1_000_000_000);
    let ago = seconds(app.events.rules_loaded_at.load(Ordering::Relaxed));
    let count = limits.limits().len();
    let rules: String = limits.limits().iter().map(|limit| yaml(limit)).collect();
    drop(limits);
    let rejected = app.events.rejected();
    let file = Arc::clone(&app.rules_file);
    // A file system may hang: not on a thread that serves.
    let read = spawn_blocking(move || file.read()).await;
    let file = &app.rules_file;
    let head = html! { h1 { "Rules" } };
    let body = html! {
        p { (count) " limits, loaded " (ago) " s ago"
            @if let Some(path) = file.path() { " from " code { (shown::text(&path.display().to_string())) } }
            "."
            @if let Some((who, at)) = file.last() {
                " Changed here by " (shown::text(&who)) " " (seconds(at.get())) " s ago."
            }
        }
        @if rejected.is_empty() { } @else {
            section class="card" aria-label="Mistakes" {
                h2 class="bad" { "The file has changed since, and was rejected" }
                p { "These rules stay active until the file is fixed:" }
                ul { @for problem in &rejected { li { (shown::text(problem)) } } }
            }
        }
        @if viewer.may_operate {
            @let reload = Action { button: "Reload the file", question: "Reload the file?", done: "Reloaded the file" };
            div class="buttons" { (post("/v1/reload", reload, &[], None)) }
        }
        @match read {
            Ok(Ok(text)) => (editor(app, &text, viewer)),
            Ok(Err(error)) => p class="bad" { (shown::text(&error.to_string())) },
            // The panic has been reported already.
            Err(_) => p class="bad" { "The file cannot be read." },
        }
        details { summary { "The rules in force" }
            pre tabindex="0" aria-label="The rules in force" { code { "limits:\n" (rules) } }
        }
    };
    layout("Rules", "/rules", None, &head, &body)
}

/// The file as it is, to try changes in, and to save them where that is allowed.
fn editor(app: &App, file: &Text, viewer: Viewer) -> Markup {
    let (path, is_writable) = (app.rules_file.path(), app.rules_file.is_writable());
    let path = path.map(|path| path.display().to_string());
    let lines = file.text.lines().count().clamp(8, 40);
    html! {
        form id="rules" data-version=(file.version) data-path=[path.as_deref()] {
            label for="text" {
                @if path.is_some() { "The file" } @else { "The built-in rules" }
            }
            // A line end that comes first is not a part of a text area's text.
            textarea id="text" name="text" rows=(lines) spellcheck="false" autocomplete="off" { "\n" (file.text) }
            p id="checked" role="status" {}
            ul id="mistakes" {}
            div class="buttons" {
                button type="button" id="try" { "Try on the trace" }
                @if is_writable && viewer.may_operate { button type="submit" id="save" disabled { "Save" } }
            }
            @if !viewer.may_operate {
                p { "Changes can be tried here, and not saved: that needs the role " code { "operate" } "." }
            } @else if !is_writable {
                p { "Changes can be tried here, and not saved: start the server with --rules FILE --rules-writable to save them." }
            }
            @if app.service.trace().is_none() {
                p { "The server keeps no trace to try them on: start the server with --trace-keys 10%." }
            }
            pre id="diff" tabindex="0" aria-label="What changes" hidden {}
        }
        div id="tried" aria-live="polite" {}
        script type="module" src="/assets/rules.js" {}
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Nanos;

    use super::*;
    use crate::{decide::limits::Limits, rules};

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
