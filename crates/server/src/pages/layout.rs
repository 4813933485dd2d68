//! The frame of all pages.

use maud::{DOCTYPE, Markup, html};

use super::shown;

/// One page: its title, its entry in the navigation, the source of its updates, and its content.
pub(super) fn layout(title: &str, here: &str, live: Option<&str>, head: &Markup, body: &Markup) -> Markup {
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
                        @for (path, name) in [("/", "Limits"), ("/rules", "Rules"), ("/flow", "Flow")] {
                            a href=(path) aria-current=[(path == here).then_some("page")] { (name) }
                        }
                    }
                    @if live.is_some() {
                        button type="button" id="pause" aria-pressed="false" { "Pause" }
                    }
                }
                main id="main" tabindex="-1" {
                    (head)
                    p role="status" id="status" {}
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
    layout("Not found", "", None, &html! { h1 { "Not found" } p { (shown::text(why)) } }, &body)
}

/// A button that posts these fields after a confirmation.
pub(super) fn post(path: &str, label: &str, question: &str, fields: &[(&str, &str)]) -> Markup {
    html! {
        form method="post" action=(path) data-question=(question) {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button type="submit" aria-label=(question) { (label) }
        }
    }
}
