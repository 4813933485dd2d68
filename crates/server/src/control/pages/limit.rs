//! The page of one limit: its decisions, its heavy keys, a key lookup, its rule.

use axum::http::Uri;
use maud::{Markup, html};
use tidegate_core::Nanos;
use tidegate_service::{
    decide::{
        limits::Limit,
        service::{Act, Ask, Refusal, reset_after, resolve},
    },
    observe::{heavy::TopKey, history::Step},
};

use super::{
    Missing, chart,
    key::{action, block, linked},
    latency,
    layout::layout,
    overview::{pairs, rates},
    shown,
};
use crate::edges::http::{App, permit::Viewer, query};

/// The number of heavy keys to list.
const KEYS: usize = 20;

pub(super) async fn page(app: &App, uri: &Uri, viewer: Viewer) -> Result<Markup, Missing> {
    let [name, key] = query::texts(uri, ["name", "key"])?;
    let name = name
        .ok_or_else(|| Missing("the page needs the name of a limit: /limit?name=...".to_owned()))?;
    let (rule, global) = {
        let limits = app.service.limits();
        let limit = found(&limits, &name)?;
        (limit.spec().yaml(), limit.spec().global)
    };
    let live = format!("/live?name={}", shown::encoded(&name));
    let looked_up = match &key {
        Some(key) if !global => Some(standing(app, &name, key, viewer).await),
        _ => None,
    };
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
            @if let Some(looked_up) = looked_up { (looked_up) }
        }
        details { summary { "Rule" } pre { code { (rule) } } }
    };
    Ok(layout(
        &name,
        "",
        Some(&live),
        &head,
        &changing(app, &name, viewer)?,
    ))
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

/// The state of a key, and the actions on it.
async fn standing(app: &App, name: &str, key: &str, viewer: Viewer) -> Markup {
    let ask = Ask {
        limit: name.as_bytes(),
        key: Some(key.as_bytes()),
        cost: 1,
    };
    let answer: Result<_, Refusal> = app.service.decide(ask, Act::Peek, app.service.now()).await;
    let own = app
        .service
        .limits()
        .limit(name.as_bytes())
        .and_then(|limit| limit.runtime_override(key));
    html! {
        section class="card" aria-label="The key" {
            h2 { (shown::text(key)) }
            @match answer {
                Err(refusal) => p { (refusal.to_string()) },
                Ok(answer) => {
                    @let decision = answer.decision;
                    p {
                        @if let Some(reason) = decision.reason() { strong class="bad" { "Denied" } " (" (reason) ")" } @else { strong { "Admitted" } }
                        ", remaining " (shown::count(decision.remaining())) " of " (shown::count(decision.limit()))
                        @if let Some(wait) = decision.retry_after() { "; admitted again in " (format!("{wait:.1?}")) }
                        @else if decision.is_denied() { "; no time is known" }
                        @if let Some(reset) = reset_after(&decision) { "; full again in " (format!("{reset:.1?}")) }
                    }
                    @if let Some(own) = &own {
                        @let left = own.until.saturating_since(app.service.now()).get() / 1_000_000_000;
                        p {
                            "Its own quota: " (own.policy.quota())
                            @if own.until < Nanos::MAX { ", for another " (left) " s" } @else { ", until it is ended" }
                        }
                    }
                    @if viewer.may_operate { (actions(name, key, own.is_some())) }
                }
            }
        }
    }
}

/// All actions on a key.
fn actions(name: &str, key: &str, has_own: bool) -> Markup {
    let fields = [("limit", name), ("key", key)];
    let units = html! {
        label for="cost" { "Units" }
        input id="cost" name="cost" type="number" min="1" max="9007199254740991" value="1" required;
    };
    let quota = html! {
        label for="quota" { "Own quota" }
        input id="quota" name="quota" placeholder="1000/1m" autocomplete="off" required;
        label for="for" { "for" }
        input id="for" name="for" placeholder="ever, or 2h" autocomplete="off";
    };
    let act = |path: &str, button: &str, [verb, past]: [&str; 2], inputs: Option<&Markup>| {
        action(path, button, [verb, past], (name, key), &fields, inputs)
    };
    html! {
        div class="buttons" {
            (block(name, key))
            (act("/v1/unblock", "Unblock", ["Unblock", "Unblocked"], None))
            (act("/v1/reset", "Reset", ["Reset what was used by", "Reset what was used by"], None))
            @if has_own {
                @let fields = [fields[0], fields[1], ("end", "true")];
                @let words = ["End the own quota of", "Ended the own quota of"];
                (action("/v1/override", "End own quota", words, (name, key), &fields, None))
            }
            (act("/v1/refund", "Refund", ["Refund", "Refunded"], Some(&units)))
            @let words = ["Override the quota of", "Overrode the quota of"];
            (act("/v1/override", "Override", words, Some(&quota)))
        }
    }
}

/// The part that is updated each second.
pub(super) fn changing(app: &App, name: &str, viewer: Viewer) -> Result<Markup, Missing> {
    let limits = app.service.limits();
    let limit = found(&limits, name)?;
    let (counts, stats, history) = (
        limit.counts(),
        limit.limiter().stats(),
        app.service.history(),
    );
    let chart_of = |step, full, title: &str| {
        let seconds = history.of(name, step, full)?;
        let pairs = pairs(&seconds);
        let [admitted, denied] = chart::sum(&pairs).map(shown::count);
        let most = shown::rate(chart::most(&pairs) as f64 / seconds.step as f64);
        let words =
            format!("{title}: {admitted} admitted, {denied} denied, at most {most} a second");
        Some(chart::figure(&pairs, full, 180, &words))
    };
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
    let top = limit.top(KEYS, app.service.now());
    Ok(html! {
        ul class="facts" {
            @if let Some([admitted, denied]) = recent {
                li { (shown::rate(admitted)) " admitted and " (shown::rate(denied)) " denied a second" }
            }
            @if !limit.spec().global { li { (shown::count(stats.keys)) " keys of " (shown::count(stats.max_keys)) } }
            li { "since the start: " (shown::count(counts.allowed + counts.delayed)) " admitted, " (shown::count(counts.denied)) " denied"
                @if limit.spec().shadow { ", " (shown::count(counts.shadow_denied)) " would have been denied" }
                @if counts.errors > 0 { ", " (shown::count(counts.errors)) " without the store" }
            }
            li { span class="swatch admitted" {} " admitted " span class="swatch denied" {} " denied" }
        }
        @match (chart_of(Step::Second, 900, "Last 15 minutes"), chart_of(Step::TenSeconds, 2_160, "Last 6 hours")) {
            (Some(minutes), Some(hours)) => {
                (minutes) (hours)
                @if let Some(latency) = latency { (latency) }
            },
            _ => p { "This limit has no history (--history-memory)." },
        }
        @if let Some(top) = top {
            p {
                "Keys of the last " (format!("{:.0}", top.span.get() as f64 / 1e9)) " s: "
                (shown::count(top.requests)) " requests, " (shown::count(top.denials)) " denials"
                @if top.one_in > 1 { "; one in " (top.one_in) " was counted, so numbers are estimates" }
            }
            div class="columns" {
                (keys(name, "Most denials", &top.denied, viewer))
                (keys(name, "Most requests", &top.asked, viewer))
            }
        }
    })
}

fn keys(name: &str, title: &str, keys: &[TopKey], viewer: Viewer) -> Markup {
    html! {
        section {
            h2 { (title) }
            @if keys.is_empty() { p { "None." } } @else {
                table class="keys" {
                    thead { tr {
                        th scope="col" { "Key" } th scope="col" { "Times" }
                        @if viewer.may_operate { th scope="col" { "Block" } }
                    } }
                    tbody { @for top in keys { (key_row(name, title, top, viewer)) } }
                }
            }
        }
    }
}

fn key_row(name: &str, title: &str, top: &TopKey, viewer: Viewer) -> Markup {
    let (link, named) = linked(name, &top.key);
    html! {
        tr data-row={ (title) " " (shown::encoded(&String::from_utf8_lossy(&top.key))) } {
            th scope="row" { (link) }
            td {
                (shown::count(top.count))
                @if top.at_least != top.at_most {
                    small { " (" (shown::count(top.at_least)) " to " (shown::count(top.at_most)) ")" }
                }
            }
            @if viewer.may_operate {
                td { @if let Some(key) = named { div class="buttons" { (block(name, key)) } } }
            }
        }
    }
}
