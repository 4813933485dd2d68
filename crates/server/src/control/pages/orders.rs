//! The blocks and overrides in force, with who gave them, until when and why, and buttons to end
//! them.

use axum::http::Uri;
use maud::{Markup, html};
use serde_json::Value;
use tidegate_core::Nanos;

use super::{
    Missing,
    key::{Named, linked},
    layout::{Frame, layout},
    shown,
};
use crate::{
    control::api::{blocks, overrides},
    edges::http::{App, permit::Viewer, query},
};

/// How many of each are shown.
const MOST: usize = 200;

pub(super) fn page(app: &App, uri: &Uri, viewer: Viewer) -> Result<Frame, Missing> {
    let [q] = query::texts(uri, ["q"])?;
    let q = q.unwrap_or_default();
    let limits = app.service.limits();
    let matches = |order: &Value| {
        ["limit_name", "key"]
            .iter()
            .any(|name| order[name].as_str().is_some_and(|text| text.contains(&q)))
    };
    let found = |of: fn(&App, &tidegate_service::decide::limits::Limit) -> Vec<Value>| {
        let all = limits.limits().iter().flat_map(|limit| of(app, limit));
        all.filter(matches).collect::<Vec<Value>>()
    };
    let (blocked, overridden) = (found(blocks), found(overrides));
    let now = app.service.now();
    let head = html! {
        h1 { "Blocks and overrides" }
        form class="filter" role="search" action="/orders" {
            label for="q" { "Key or limit contains" }
            input id="q" name="q" value=(q) autocomplete="off";
            button type="submit" { "Filter" }
        }
    };
    let refuses = |limit: &str| {
        let of_name = limits.limits().iter().find(|of| of.spec().name == limit);
        of_name.is_some_and(|limit| app.service.refuses_orders(limit))
    };
    let body = html! {
        (table("Blocks", &blocked, viewer, now, refuses))
        (table("Overrides", &overridden, viewer, now, refuses))
        p { small { "A server without a store knows a block by the hash of its key: a block that a state file brought back is in force, and is not listed." } }
    };
    Ok(layout("Blocks and overrides", "/orders", None, head, body))
}

fn table(
    title: &str,
    orders: &[Value],
    viewer: Viewer,
    now: Nanos,
    refuses: impl Fn(&str) -> bool,
) -> Markup {
    let has_quota = title == "Overrides";
    let left_out = orders.len().saturating_sub(MOST);
    html! {
        section {
            h2 { (title) " (" (shown::grouped(orders.len() as u64)) ")" }
            @if orders.is_empty() { p { "None." } } @else {
                div class="wide" tabindex="0" role="region" aria-label=(title) {
                    table class="orders" {
                        thead { tr {
                            th scope="col" { "Key" } th scope="col" { "Limit" }
                            @if has_quota { th scope="col" { "Quota" } }
                            @for head in ["Given", "Ends", "By", "Note"] { th scope="col" { (head) } }
                            @if viewer.may_operate { th scope="col" { "Action" } }
                        } }
                        tbody { @for order in orders.iter().take(MOST) { (row(order, has_quota, viewer, now, &refuses)) } }
                    }
                }
                @if left_out > 0 { p { (shown::grouped(left_out as u64)) " more: filter them." } }
            }
        }
    }
}

fn row(
    order: &Value,
    has_quota: bool,
    viewer: Viewer,
    now: Nanos,
    refuses: impl Fn(&str) -> bool,
) -> Markup {
    let text = |name: &str| order[name].as_str().unwrap_or_default();
    let (limit, key) = (text("limit_name"), text("key"));
    let (link, named) = linked(limit, key.as_bytes());
    let time = |name: &str, none: &str| {
        order[name]
            .as_u64()
            .map_or_else(|| none.to_owned(), |ms| shown::when(ms, now))
    };
    html! {
        tr data-row={ (shown::encoded(limit)) " " (shown::encoded(key)) } {
            th scope="row" { (link) }
            td { a href={ "/limit?name=" (shown::encoded(limit)) } { (shown::text(limit)) } }
            @if has_quota { td { (shown::text(text("quota"))) } }
            td { (time("since_ms", "before the start")) }
            td { (time("until_ms", "when it is ended")) }
            td { (shown::text(order["client"].as_str().unwrap_or("not known"))) }
            td { (shown::text(text("note"))) }
            @if viewer.may_operate {
                td { @if refuses(limit) { small { "not while the store is down" } } @else if let Some(key) = named {
                    @let named = Named { limit, key };
                    div class="buttons" { @if has_quota { (named.end_override(order, now)) } @else { (named.unblock(order, now)) } }
                } }
            }
        }
    }
}
