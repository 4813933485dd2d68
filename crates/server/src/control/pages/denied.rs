//! The keys with the most denials of all limits: who is limited now, how much, and why.

use std::time::Duration;

use maud::{Markup, html};
use tidegate_service::decide::service::DeniedKey;

use super::{
    key::{against, linked},
    shown,
};
use crate::edges::http::{App, permit::Viewer};

/// How many keys are shown.
const KEYS: usize = 5;

/// The keys of these limits with the most denials in the last minutes.
pub(super) fn most(app: &App, q: &str) -> Vec<DeniedKey> {
    let now = app.service.now();
    app.service.denied_most(|name| name.contains(q), KEYS, now)
}

/// The table of these keys; empty without any.
pub(super) async fn section(app: &App, all: &[DeniedKey], viewer: Viewer) -> Markup {
    let mut rows = Vec::with_capacity(all.len());
    for denied in all {
        rows.push(row(app, denied, viewer).await);
    }
    html! {
        @if !rows.is_empty() {
            section aria-labelledby="denied-now" {
                h2 id="denied-now" { "Denied now" }
                table class="keys denied" role="table" {
                    thead role="rowgroup" { tr role="row" {
                        @for head in ["Key", "Limit", "Denials", "Next request"] {
                            th role="columnheader" scope="col" { (head) }
                        }
                        @if viewer.may_operate { th role="columnheader" scope="col" { "Action" } }
                    } }
                    tbody role="rowgroup" { @for row in &rows { (row) } }
                }
            }
        }
    }
}

async fn row(app: &App, denied: &DeniedKey, viewer: Viewer) -> Markup {
    let spec = denied.limit.spec();
    let name = &spec.name;
    let (link, named) = linked(name, &denied.key.key);
    let standing = app.service.standing(denied).await;
    let reason = standing.and_then(|standing| standing.reason());
    let seconds = denied.span.get() / 1_000_000_000;
    let since = shown::when(denied.key.since.get() / 1_000_000, app.service.now());
    html! {
        tr role="row" data-row={ "denied " (shown::encoded(name)) " " (shown::encoded(&String::from_utf8_lossy(&denied.key.key))) } {
            th role="rowheader" scope="row" { (link) }
            td role="cell" {
                a href={ "/limit?name=" (shown::encoded(name)) } { (shown::text(name)) }
                @if spec.shadow { small { " shadow: lets all pass" } }
            }
            td role="cell" {
                (shown::grouped(denied.key.count))
                small { " in " (shown::span(Duration::from_secs(seconds))) ", " (shown::rate(denied.key.count as f64 / seconds.max(1) as f64)) "/s, since " (since) }
            }
            td role="cell" {
                @match (standing, reason) {
                    (None, _) => { "not known: the rules have changed" },
                    (Some(_), Some(reason)) => { "denied: " (reason) },
                    (Some(_), None) => { "admitted" },
                }
            }
            @if viewer.may_operate {
                td role="cell" { @if let (Some(_), Some(key)) = (standing, named) { (against(app, &denied.limit, key, reason)) } }
            }
        }
    }
}
