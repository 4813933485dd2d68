//! The frame of all pages.

use maud::{DOCTYPE, Markup, html};

use super::shown;

/// One page: its title, its entry in the navigation, the source of its updates, and its content.
pub(super) struct Frame {
    title: String,
    here: &'static str,
    live: Option<String>,
    head: Markup,
    body: Markup,
}

/// A page with this title and content. With `live`, the body is replaced by what that path sends.
pub(super) fn layout(
    title: &str,
    here: &'static str,
    live: Option<&str>,
    head: Markup,
    body: Markup,
) -> Frame {
    Frame {
        title: title.to_owned(),
        here,
        live: live.map(str::to_owned),
        head,
        body,
    }
}

const PAGES: [(&str, &str); 5] = [
    ("/", "Limits"),
    ("/orders", "Blocks"),
    ("/rules", "Rules"),
    ("/flow", "Flow"),
    ("/audit", "Audit"),
];

impl Frame {
    /// The whole page, with the state of the server above its content.
    pub fn render(&self, state: &Markup) -> Markup {
        let Self {
            title,
            here,
            live,
            head,
            body,
        } = self;
        // Only the state of the server changes in the others.
        let source = live.as_deref().unwrap_or("/live?state=only");
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " – Tidegate" }
                    link rel="icon" href="/assets/icon.svg";
                    link rel="stylesheet" href="/assets/style.css";
                    link rel="stylesheet" href="/assets/chart.css";
                    script type="module" src="/assets/page.js" {}
                }
                body {
                    a class="skip" href="#main" { "Skip to content" }
                    header {
                        nav aria-label="Pages" {
                            strong { "Tidegate" }
                            @for (path, name) in PAGES {
                                a href=(path) aria-current=[(path == *here).then_some("page")] { (name) }
                            }
                        }
                        @if live.is_some() {
                            button type="button" id="pause" aria-pressed="false" { "Pause" }
                        }
                    }
                    main id="main" tabindex="-1" {
                        div id="state" { (state) }
                        (head)
                        p role="status" id="status" class="status" {}
                        p role="status" id="connection" class="status" {}
                        noscript { p { "Without JavaScript the page shows the time when it was loaded, and keys cannot be blocked." } }
                        div id="live" data-live=(source) { @if live.is_some() { (body) } }
                        @if live.is_none() { (body) }
                    }
                    (dialog())
                }
            }
        }
    }
}

/// The question before an action, with what it needs to know: for how long, and why.
fn dialog() -> Markup {
    html! {
        dialog id="ask" aria-labelledby="question" {
            form method="dialog" {
                p id="question" {}
                div class="field" hidden {
                    label for="ask-for" { "For" }
                    input id="ask-for" name="for" list="spans" placeholder="until it is ended" autocomplete="off";
                    small { "as in 10m, 1h, 1d; empty: until it is ended" }
                    datalist id="spans" { @for span in ["10m", "1h", "1d", "7d"] { option value=(span) {} } }
                }
                div class="field" hidden {
                    label for="ask-note" { "Note" }
                    input id="ask-note" name="note" autocomplete="off";
                    small { "why: for the audit and for others" }
                }
                div class="buttons" {
                    button value="no" autofocus { "No" }
                    button value="yes" class="danger" { "Yes" }
                }
            }
        }
    }
}

/// The page for a missing limit or path.
pub(super) fn missing(why: &str) -> Frame {
    layout(
        "Not found",
        "",
        None,
        html! { h1 { "Not found" } p { (shown::text(why)) } },
        html! { p { a href="/" { "All limits" } } },
    )
}

/// An action on a key, as its button, its question and its result name it.
#[derive(Clone, Copy)]
pub(super) struct Action<'a> {
    pub path: &'a str,
    /// `Block`
    pub button: &'a str,
    /// `Block alice in logins?`
    pub question: &'a str,
    /// `Blocked alice in logins`
    pub done: &'a str,
    /// The fields of the dialog.
    pub terms: Terms<'a>,
}

/// The fields of the dialog of an action.
#[derive(Clone, Copy)]
pub(super) enum Terms<'a> {
    Nothing,
    Note,
    /// A duration, which is this unless it is changed, and a note.
    SpanAndNote(&'a str),
}

/// The request that takes an action back, and the words for its result.
pub(super) struct Undo {
    pub path: &'static str,
    pub fields: serde_json::Value,
    pub done: String,
}

/// A form that posts these fields after the operator has answered the question with yes.
pub(super) fn post(
    action: Action<'_>,
    fields: &[(&str, &str)],
    inputs: Option<&Markup>,
    undo: Option<&Undo>,
) -> Markup {
    let (terms, span) = match action.terms {
        Terms::Nothing => (None, None),
        Terms::Note => (Some("note"), None),
        Terms::SpanAndNote(span) => (Some("for note"), Some(span)),
    };
    let undo = undo.map(|undo| {
        serde_json::json!({"path": undo.path, "fields": undo.fields, "done": undo.done}).to_string()
    });
    html! {
        form method="post" action=(action.path) class=[inputs.is_some().then_some("amount")]
            data-question=(action.question) data-done=(action.done) data-terms=[terms] data-span=[span] data-undo=[undo] {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            @if let Some(inputs) = inputs { (inputs) }
            button type="submit" aria-label=(action.question) { (action.button) }
        }
    }
}
