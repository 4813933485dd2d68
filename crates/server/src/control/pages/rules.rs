//! The rules: the file, the result of the last attempt to load it, an editor, and the rules in
//! force.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use maud::{Markup, html};
use tidegate_core::{AlgorithmSpec, Wants};
use tidegate_service::rules::file::Text;
use tokio::task::spawn_blocking;

use super::{
    layout::{Action, Frame, Terms, layout, post},
    shown,
};
use crate::{control::ControlPlane, edges::http::permit::Viewer};

pub(super) async fn page(control: &ControlPlane, viewer: Viewer) -> Frame {
    let limits = control.app.service.limits();
    let now = control.app.service.now();
    let ago = |nanos: u64| shown::when(nanos / 1_000_000, now);
    let loaded = control.events.rules_loaded_at.load(Ordering::Relaxed);
    let count = limits.limits().len();
    let rules: String = limits
        .limits()
        .iter()
        .map(|limit| limit.spec().yaml())
        .collect();
    drop(limits);
    let rejected = control.events.rejected();
    let file = Arc::clone(&control.rules_file);
    // A file system may hang: not on a thread that serves.
    let read = spawn_blocking(move || file.read()).await;
    let file = &control.rules_file;
    let head = html! { h1 { "Rules" } };
    let body = html! {
        p { (shown::counted(count as u64, "limit")) ", loaded " (ago(loaded))
            @if let Some(path) = file.path() { " from " code { (shown::text(&path.display().to_string())) } }
            "."
            @if let Some((who, at)) = file.last() {
                " Changed here by " (shown::text(&who)) " " (ago(at.get())) "."
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
            @let reload = Action { path: "/v1/reload", button: "Reload the file", question: "Reload the file?", done: "Reloaded the file", terms: Terms::Nothing };
            div class="buttons" { (post(reload, &[], None, None)) }
        }
        @match read {
            Ok(Ok(text)) => (editor(control, &text, viewer)),
            Ok(Err(error)) => p class="bad" { (shown::text(&error.to_string())) },
            // The panic has been reported already.
            Err(_) => p class="bad" { "The file cannot be read." },
        }
        details { summary { "The rules in force" }
            pre tabindex="0" aria-label="The rules in force" { code { "limits:\n" (rules) } }
        }
    };
    layout("Rules", "/rules", None, head, body)
}

/// The file as it is, to try changes in, and to save them where that is allowed.
fn editor(control: &ControlPlane, file: &Text, viewer: Viewer) -> Markup {
    let (path, is_writable) = (control.rules_file.path(), control.rules_file.is_writable());
    let path = path.map(|path| path.display().to_string());
    let lines = file.text.lines().count().clamp(8, 40);
    html! {
        div class="columns" {
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
            @if control.app.service.trace().is_none() {
                p { "The server keeps no trace to try them on: start the server with --trace-keys 10%." }
            }
            pre id="diff" tabindex="0" aria-label="What changes" hidden {}
        }
        (limit_form())
        }
        div id="tried" aria-live="polite" {}
        script type="module" src="/assets/rules.js" {}
    }
}

/// The form of one limit: a field for each key that is a word or a number. The options of an
/// algorithm are those of its registry entry.
fn limit_form() -> Markup {
    let default = AlgorithmSpec::default().name();
    let algorithms = AlgorithmSpec::all().map(|algorithm| algorithm.name());
    let names = |algorithm: AlgorithmSpec| [&[algorithm.name()], algorithm.aliases()].concat();
    let mut options: BTreeMap<&str, (Wants, Vec<&str>)> = BTreeMap::new();
    for algorithm in AlgorithmSpec::all() {
        for known in algorithm.known() {
            options
                .entry(known.name)
                .or_insert((known.wants, Vec::new()))
                .1
                .extend(names(algorithm));
        }
    }
    html! {
        form id="limit" aria-label="One limit" {
            div class="buttons" {
                label for="which" { "Limit" }
                select id="which" {}
                button type="button" id="add" { "Add a limit" }
            }
            p id="unreadable" hidden { "This limit is written in a way that only the text can change." }
            (field("name", "in requests and metrics", None, &[]))
            (field("limit", "as in 100/1m, or a number of permits", None, &[]))
            (field("algorithm", "how it counts", Some(html! {
                option value="" data-default=(default) { (default) ", the default" }
                @for name in algorithms { option value=(name) { (name) } }
            }), &[]))
            (field("global", "one count for all, or one for each key", Some(flag("each key", "all together")), &[]))
            (field("shadow", "whether it only counts", Some(flag("denies", "counts, never denies")), &[]))
            (field("by", "the key in a log, for tidegate simulate", None, &[]))
            @for (name, (wants, of)) in options {
                (field(name, &wants.to_string(), match wants {
                    Wants::Flag | Wants::Switch => Some(flag("no", "yes")),
                    Wants::OneOf(words) => Some(html! {
                        option value="" { "the default" }
                        @for word in words { option value=(word) { (word) } }
                    }),
                    _ => None,
                }, &of))
            }
        }
    }
}

/// A key that is missing, which means `false`, or `true`.
fn flag(missing: &str, on: &str) -> Markup {
    html! { option value="" { (missing) } option value="true" { (on) } option value="false" { (missing) " (false)" } }
}

/// A field of a limit, with these choices or for any text; of these algorithms alone, if there are
/// some.
fn field(key: &str, hint: &str, choices: Option<Markup>, of: &[&str]) -> Markup {
    let (id, wrong, about) = (
        format!("limit-{key}"),
        format!("limit-{key}-wrong"),
        format!("limit-{key}-hint"),
    );
    let described = format!("{wrong} {about}");
    let of = (!of.is_empty()).then(|| of.join(" "));
    html! {
        div class="field" {
            label for=(id) { (key) }
            @if let Some(choices) = choices {
                select id=(id) data-key=(key) data-of=[of] aria-describedby=(described) { (choices) }
            } @else {
                input id=(id) data-key=(key) data-of=[of] aria-describedby=(described) autocomplete="off" spellcheck="false";
            }
            small id=(about) { (hint) }
            span id=(wrong) class="bad" {}
        }
    }
}
