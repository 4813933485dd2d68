//! Operators' actions, the newest first.

use std::time::Duration;

use maud::{Markup, html};

use super::{layout::layout, shown};
use crate::edges::http::App;

pub(super) fn page(app: &App) -> Markup {
    let actions = app.service.audit.recent();
    let now = app.service.now().get() / 1_000_000;
    let ago = |time| {
        format!(
            "{}\u{a0}ago",
            whole_seconds(Duration::from_millis(now.saturating_sub(time)))
        )
    };
    let text = |value: &Option<String>| value.as_deref().map(shown::text);
    let body = html! {
        @if actions.is_empty() {
            p { "No operator has changed anything since this server started. Actions are logged, and --audit FILE keeps them." }
        } @else {
            ul class="actions" { @for action in &actions {
                li {
                    (ago(action.time_ms)) ": " (shown::text(&action.client)) " · " strong { (action.action) }
                    @if let Some(key) = text(&action.key) { " " code { (key) } }
                    @if let Some(limit) = &action.limit {
                        " in " a href={ "/limit?name=" (shown::encoded(limit)) } { (shown::text(limit)) }
                    }
                    @if let Some(value) = text(&action.value) { " · " (value) }
                    @if let Some(ms) = action.for_ms { " · for " (whole_seconds(Duration::from_millis(ms))) }
                    @if let Some(note) = text(&action.note) { " · “" (note) "”" }
                }
            } }
        }
    };
    layout(
        "Audit",
        "/audit",
        None,
        &html! { h1 { "Operators' actions" } },
        &body,
    )
}

/// A time in its two largest units.
fn whole_seconds(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds}\u{a0}s"),
        60..3_600 => format!("{}\u{a0}min {}\u{a0}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}\u{a0}h {}\u{a0}min", seconds / 3_600, seconds / 60 % 60),
        _ => format!(
            "{}\u{a0}d {}\u{a0}h",
            seconds / 86_400,
            seconds / 3_600 % 24
        ),
    }
}
