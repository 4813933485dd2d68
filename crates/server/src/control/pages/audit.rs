//! Operators' actions, the newest first.

use maud::html;

use super::{
    key::linked,
    layout::{Frame, layout},
    shown,
};
use crate::edges::http::App;

pub(super) fn page(app: &App) -> Frame {
    let actions = app.service.audit.recent();
    let now = app.service.now();
    let text = |value: &Option<String>| value.as_deref().map(shown::text);
    let body = html! {
        @if actions.is_empty() {
            p { "No operator has changed anything since this server started. Actions are logged, and --audit FILE keeps them." }
        } @else {
            ul class="actions" { @for action in &actions {
                li {
                    (shown::when(action.time_ms, now)) ": " (shown::text(&action.client)) " · " strong { (action.action) }
                    @match (&action.key, &action.limit) {
                        (Some(key), Some(limit)) => { " " (linked(limit, key.as_bytes()).0) },
                        (Some(key), None) => { " " code { (shown::text(key)) } },
                        (None, _) => {},
                    }
                    @if let Some(limit) = &action.limit {
                        " in " a href={ "/limit?name=" (shown::encoded(limit)) } { (shown::text(limit)) }
                    }
                    @if let Some(value) = text(&action.value) { " · " (value) }
                    @if let Some(ms) = action.for_ms { " · for " (shown::span(std::time::Duration::from_millis(ms))) }
                    @if let Some(note) = text(&action.note) { " · “" (note) "”" }
                }
            } }
        }
    };
    let head = html! { h1 { "Operators' actions" } };
    layout("Audit", "/audit", None, head, body)
}
