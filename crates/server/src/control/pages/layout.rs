//! The frame of all pages.

use maud::{DOCTYPE, Markup, html};

use super::shown;

/// One page: its title, its entry in the navigation, the source of its updates, and its content.
pub(super) fn layout(
    title: &str,
    here: &str,
    live: Option<&str>,
    head: &Markup,
    body: &Markup,
) -> Markup {
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
                script type="module" src="/assets/page.js" {}
            }
            body {
                a class="skip" href="#main" { "Skip to content" }
                header {
                    nav aria-label="Pages" {
                        strong { "Tidegate" }
                        @for (path, name) in [("/", "Limits"), ("/rules", "Rules"), ("/flow", "Flow"), ("/audit", "Audit")] {
                            a href=(path) aria-current=[(path == here).then_some("page")] { (name) }
                        }
                    }
                    @if live.is_some() {
                        button type="button" id="pause" aria-pressed="false" { "Pause" }
                    }
                }
                main id="main" tabindex="-1" {
                    (head)
                    p role="status" id="status" class="status" {}
                    p role="status" id="connection" class="status" {}
                    noscript { p { "Without JavaScript the page shows the time when it was loaded, and keys cannot be blocked." } }
                    div id="live" data-live=[live] { (body) }
                }
                dialog id="ask" aria-labelledby="question" {
                    form method="dialog" {
                        p id="question" {}
                        div class="buttons" {
                            button value="no" { "No" }
                            button value="yes" class="danger" { "Yes" }
                        }
                    }
                }
            }
        }
    }
}

/// The page for a missing limit or path.
pub(super) fn missing(why: &str) -> Markup {
    let body = html! { p { a href="/" { "All limits" } } };
    layout(
        "Not found",
        "",
        None,
        &html! { h1 { "Not found" } p { (shown::text(why)) } },
        &body,
    )
}

/// An action on a key, as its button, its question and its result name it.
#[derive(Clone, Copy)]
pub(super) struct Action<'a> {
    /// `Block`
    pub button: &'a str,
    /// `Block alice in logins?`
    pub question: &'a str,
    /// `Blocked alice in logins`
    pub done: &'a str,
}

/// A form that posts these fields to `path` after the operator has answered the question with yes.
pub(super) fn post(
    path: &str,
    action: Action<'_>,
    fields: &[(&str, &str)],
    inputs: Option<&Markup>,
) -> Markup {
    html! {
        form method="post" action=(path) class=[inputs.is_some().then_some("amount")]
            data-question=(action.question) data-done=(action.done) {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            @if let Some(inputs) = inputs { (inputs) }
            button type="submit" aria-label=(action.question) { (action.button) }
        }
    }
}
