//! The page of one limit: its decisions, its heavy keys, a key lookup, its rule.

use axum::http::Uri;
use maud::{Markup, html};
use tidegate_service::{
    decide::{
        limits::{Limit, TenantStanding},
        service::resolve,
    },
    observe::{heavy::TopKey, history::Step},
};

use super::{
    Missing,
    key::{self, Named, against, linked},
    latency,
    layout::{Frame, layout},
    overview::{pairs, rates},
    shown,
};
use crate::{
    control::{ControlPlane, api::explanation, chart},
    edges::http::{App, permit::Viewer, query},
};

/// The number of heavy keys to list.
const KEYS: usize = 20;

pub(super) async fn page(
    control: &ControlPlane,
    uri: &Uri,
    viewer: Viewer,
) -> Result<Frame, Missing> {
    let app = &control.app;
    let [name, key] = query::texts(uri, ["name", "key"])?;
    let name = name
        .ok_or_else(|| Missing("the page needs the name of a limit: /limit?name=...".to_owned()))?;
    let (rule, global) = {
        let limits = app.service.limits();
        let limit = found(&limits, &name)?;
        (limit.spec().yaml(), limit.spec().global)
    };
    let key = key.filter(|_| !global);
    let (mut live, mut title) = (
        format!("/live?name={}", shown::encoded(&name)),
        name.clone(),
    );
    if let Some(key) = &key {
        live = format!("{live}&key={}", shown::encoded(key));
        title = format!("{} in {name}", shown::text(key));
    }
    let head = html! {
        p { a href="/" { "All limits" } }
        h1 { (shown::text(&name)) }
        @if !global {
            form class="filter" action="/limit" {
                input type="hidden" name="name" value=(name);
                label for="key" { "Look up a key" }
                input id="key" name="key" value=[key.as_deref()] autocomplete="off";
                button type="submit" { "Look up" }
            }
        }
        details { summary { "Rule" } pre tabindex="0" { code { (rule) } } }
    };
    let body = changing(control, &name, key.as_deref(), viewer).await?;
    Ok(layout(&title, "", Some(&live), head, body))
}

fn found<'l>(
    limits: &'l tidegate_service::decide::limits::Limits,
    name: &str,
) -> Result<&'l Limit, Missing> {
    let resolved = resolve(limits, name.as_bytes(), Some(&[]));
    resolved
        .map(|resolved| &**resolved.limit)
        .map_err(|refusal| Missing(refusal.to_string()))
}

/// The facts about a key, in the words of `tidegate explain`, and the actions on it.
async fn standing(app: &App, name: &str, key: &str, viewer: Viewer) -> Markup {
    let explained = explanation(app, name, Some(key)).await;
    let now = app.service.now();
    let refuses_orders =
        found(&app.service.limits(), name).is_ok_and(|limit| app.service.refuses_orders(limit));
    html! {
        section class="card" aria-label="The key" {
            h2 { (shown::text(key)) }
            @match &explained {
                Err(refusal) => p { (refusal.to_string()) },
                Ok(explained) => {
                    dl class="about" { @for fact in explained["facts"].as_array().into_iter().flatten() {
                        @let (what, text) = (fact["name"].as_str().unwrap_or_default(), fact["text"].as_str().unwrap_or_default());
                        dt { (what) }
                        dd class=[(what == "verdict" && !explained["reason"].is_null()).then_some("bad")] { (shown::text(text)) }
                    } }
                    @if viewer.may_operate { (Named { limit: name, key }.actions(explained, now, refuses_orders)) }
                }
            }
        }
    }
}

/// The part that is updated each second.
pub(super) async fn changing(
    control: &ControlPlane,
    name: &str,
    key: Option<&str>,
    viewer: Viewer,
) -> Result<Markup, Missing> {
    let app = &control.app;
    let about_key = match key {
        Some(key) => Some(standing(app, name, key, viewer).await),
        None => None,
    };
    let limits = app.service.limits();
    let limit = found(&limits, name)?;
    let (counts, stats, history) = (limit.counts(), limit.stats(), app.service.history());
    // The limit of each key does not hold for all of them together.
    let line = chart::rate_of(&limit.spec().policy).filter(|_| limit.spec().global);
    let title = if limit.spec().global {
        name
    } else {
        "All keys"
    };
    let read = |step, most| history.of(name, step, most);
    let charts = chart::recent(
        read,
        (title, true),
        &line,
        &control.marks_of(Some(name), None),
    );
    let of_key = key.map(|key| {
        let marks = control.marks_of(Some(name), Some(key));
        key::history(app, limit, key, &marks)
    });
    let sample = history
        .latency_of(name, Step::Second, 900)
        .map(|seconds| latency::sums(&seconds.points));
    let latency = sample.and_then(|sums| {
        let title = format!(
            "Time for a decision, {} of the last 15 minutes",
            sums.iter().sum::<u64>()
        );
        latency::histogram(&title, &sums)
    });
    let recent = history
        .of(name, Step::Second, 10)
        .map(|seconds| rates(&pairs(&seconds)));
    let now = app.service.now();
    let top = limit.top(KEYS, now);
    let counted = if limit.spec().shares.is_some() {
        " tenants of "
    } else {
        " keys of "
    };
    let busiest = limit.busiest_tenants(KEYS, now);
    Ok(html! {
        @if let Some(about_key) = about_key { (about_key) }
        @if let Some(of_key) = of_key { (of_key) }
        ul class="facts" {
            @if let Some([admitted, denied]) = recent {
                li { (shown::rate(admitted)) " admitted and " (shown::rate(denied)) " denied a second" }
            }
            @if !limit.spec().global { li { (shown::grouped(stats.keys)) (counted) (shown::grouped(stats.max_keys)) } }
            li { "since the start: " (shown::grouped(counts.allowed + counts.delayed)) " admitted, " (shown::grouped(counts.denied)) " denied"
                @if limit.spec().shadow { ", " (shown::grouped(counts.shadow_denied)) " would have been denied" }
                @if counts.errors > 0 { ", " (shown::grouped(counts.errors)) " without the store" }
            }
            @if let Some(waits) = limit.memory.waits.counts().in_words() { li { (waits) } }
        }
        @match charts {
            Some(charts) => {
                (charts)
                @if let Some(latency) = latency { (latency) }
            },
            _ => p { "This limit has no history (--history-memory)." },
        }
        @if !busiest.is_empty() { (tenants(name, &busiest)) }
        @if let Some(top) = top {
            p {
                "Keys of the last " (shown::span(top.span.into())) ": "
                (shown::counted(top.requests, "request")) ", " (shown::counted(top.denials, "denial"))
                @if top.one_in > 1 { "; one in " (top.one_in) " was counted, so numbers are estimates" }
            }
            div class="columns" {
                (keys(app, limit, "Most denials", &top.denied, viewer))
                (keys(app, limit, "Most requests", &top.asked, viewer))
            }
        }
    })
}

/// Who shares the limit: the busiest tenants.
fn tenants(name: &str, tenants: &[TenantStanding]) -> Markup {
    html! {
        section {
            h2 { "Tenants" }
            table class="keys" {
                thead { tr {
                    th scope="col" { "Tenant" } th scope="col" { "Share" } th scope="col" { "Used" }
                    th scope="col" { "Borrowed" } th scope="col" { "Denied" }
                } }
                tbody { @for tenant in tenants {
                    tr data-row={ "tenant " (shown::encoded(&String::from_utf8_lossy(&tenant.name))) } {
                        th scope="row" { (linked(name, &tenant.name).0) small { " " (tenant.terms.to_string()) } }
                        td { (shown::share(tenant.share, 1.0)) }
                        td { (shown::share(tenant.used, 1.0)) }
                        td { (shown::share(tenant.borrowed(), 1.0)) }
                        td { (shown::grouped(tenant.denials)) " of " (shown::grouped(tenant.requests)) }
                    }
                } }
            }
        }
    }
}

fn keys(app: &App, limit: &Limit, title: &str, keys: &[TopKey], viewer: Viewer) -> Markup {
    html! {
        section {
            h2 { (title) }
            @if keys.is_empty() { p { "None." } } @else {
                table class="keys" {
                    thead { tr {
                        th scope="col" { "Key" } th scope="col" { "Times" }
                        @if viewer.may_operate { th scope="col" { "Action" } }
                    } }
                    tbody { @for top in keys { (key_row(app, limit, title, top, viewer)) } }
                }
            }
        }
    }
}

fn key_row(app: &App, limit: &Limit, title: &str, top: &TopKey, viewer: Viewer) -> Markup {
    let (link, named) = linked(&limit.spec().name, &top.key);
    html! {
        tr data-row={ (title) " " (shown::encoded(&String::from_utf8_lossy(&top.key))) } {
            th scope="row" { (link) }
            td {
                (shown::grouped(top.count))
                @if top.at_least != top.at_most {
                    small { " (" (shown::grouped(top.at_least)) " to " (shown::grouped(top.at_most)) ")" }
                }
            }
            @if viewer.may_operate {
                td { @if let Some(key) = named { (against(app, limit, key, limit.reason_here(&top.key, app.service.now()))) } }
            }
        }
    }
}
