//! The keys with the most denials of all limits: who is limited now, and why.

use maud::{Markup, html};

use super::{
    key::{block, linked},
    shown,
};
use crate::edges::http::{App, permit::Viewer};

/// How many keys are shown.
const KEYS: usize = 5;

/// Nothing if no key of these limits was denied in the last minutes.
pub(super) fn section(app: &App, q: &str, viewer: Viewer) -> Markup {
    let now = app.service.now();
    let all = app.service.denied_most(|name| name.contains(q), KEYS, now);
    html! {
        @if !all.is_empty() {
            section aria-labelledby="denied-now" {
                h2 id="denied-now" { "Denied now" }
                table class="keys denied" role="table" {
                    thead role="rowgroup" { tr role="row" {
                        th role="columnheader" scope="col" { "Key" } th role="columnheader" scope="col" { "Limit" } th role="columnheader" scope="col" { "Denials" } th role="columnheader" scope="col" { "Next request" }
                        @if viewer.may_operate { th role="columnheader" scope="col" { "Block" } }
                    } }
                    tbody role="rowgroup" { @for denied in &all {
                        @let name = &denied.limit.spec().name;
                        @let (link, named) = linked(name, &denied.key.key);
                        tr role="row" data-row={ "denied " (shown::encoded(name)) " " (shown::encoded(&String::from_utf8_lossy(&denied.key.key))) } {
                            th role="rowheader" scope="row" { (link) }
                            td role="cell" {
                                a href={ "/limit?name=" (shown::encoded(name)) } { (shown::text(name)) }
                                @if denied.limit.spec().shadow { small { " shadow: lets all pass" } }
                            }
                            td role="cell" { (shown::count(denied.key.count)) small { " in " (denied.span.get() / 1_000_000_000) " s" } }
                            td role="cell" {
                                @match denied.standing(now).map(|standing| standing.reason()) {
                                    Some(Some(reason)) => { "denied: " (reason) },
                                    Some(None) => { "admitted" },
                                    None => { "by the store" },
                                }
                            }
                            @if viewer.may_operate {
                                td role="cell" { @if let Some(key) = named { div class="buttons" { (block(name, key)) } } }
                            }
                        }
                    } }
                }
            }
        }
    }
}
