//! `GET /v1/limits`: every limit with its rule, its counts and its recent decisions.

use axum::http::Uri;
use serde_json::{Value, json};
use tidegate_service::{
    decide::{limits::Limit, service::health_name},
    observe::history::Step,
    rules::LimitSpec,
};

use crate::{
    control::ControlPlane,
    edges::http::{App, answer, permit::Caller, problem::Answered, query},
};

/// The number of seconds over which rates are averaged.
const RATE_SECONDS: usize = 10;

/// The limits that the client's rights cover.
pub(super) fn answer(control: &ControlPlane, caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [recent] = query::fields(uri, ["recent"])?;
    let recent = query::number(recent.as_deref(), "recent", 0, 0..=900)?;
    let service = &caller.app.service;
    let limits = service.limits();
    let seen = limits
        .limits()
        .iter()
        .filter(|limit| caller.concerns(&limit.spec().name));
    let store = service.store().map(|shared| {
        let store = shared.store();
        json!({
            "address": store.address().to_string(),
            "health": health_name(store.health()),
            "trouble": store.trouble().map(|error| error.to_string()),
            "nodes": store.nodes(),
        })
    });
    // They name limits that the client may not see.
    let conditions = caller.concerns_all().then(|| control.conditions.now());
    Ok(answer::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now_seconds": service.now().get() / 1_000_000_000,
        "store": store,
        "conditions": conditions.as_deref().unwrap_or_default(),
        "limits": seen.map(|limit| limit_body(caller.app, limit, recent)).collect::<Vec<_>>(),
    })))
}

/// One limit. `sharing` is `local`, or how servers share it. Rates and the list of seconds are
/// omitted if the limit has no history, and the heaviest key if no names are kept.
fn limit_body(app: &App, limit: &Limit, recent: usize) -> Value {
    let LimitSpec {
        name,
        policy,
        global,
        shadow,
        ..
    } = limit.spec();
    let (counts, stats) = (limit.counts(), limit.stats());
    let waits = limit.memory.waits.counts();
    let mut body = json!({
        "name": name,
        "algorithm": policy.algorithm.name(),
        "quota": policy.quota(),
        "options": policy.options(),
        "global": global,
        "shadow": shadow,
        "sharing": limit.sharing(),
        "keys": stats.keys,
        "max_keys": stats.max_keys,
        "bytes": stats.bytes,
        "allowed": counts.allowed,
        "delayed": counts.delayed,
        "denied": counts.denied,
        "shadow_denied": counts.shadow_denied,
        "errors": counts.errors,
        "waiting": waits.waiting,
        "waited": waits.admitted(),
    });
    if let Some(seconds) = app
        .service
        .history()
        .of(name, Step::Second, recent.max(RATE_SECONDS))
    {
        // The latest seconds, oldest first. Requests that a shadow limit would have denied count as
        // denied.
        let sum = |one: usize, other: usize| -> Vec<u32> {
            seconds
                .points
                .iter()
                .map(|point| point[one].saturating_add(point[other]))
                .collect()
        };
        let (admitted, denied) = (sum(0, 1), sum(2, 3));
        body["admitted_per_second"] = json!(rate(&admitted));
        body["denied_per_second"] = json!(rate(&denied));
        if recent > 0 {
            body["recent"] = json!({"end": seconds.end, "admitted": admitted, "denied": denied});
        }
    }
    if let Some(top) = limit.top(1, app.service.now())
        && let Some(first) = top.asked.first()
    {
        let share = first.count as f64 / top.requests.max(1) as f64;
        body["heaviest"] =
            json!({"key": String::from_utf8_lossy(&first.key), "share": share.min(1.0)});
    }
    body
}

/// The mean of the latest seconds.
fn rate(numbers: &[u32]) -> f64 {
    let last = &numbers[numbers.len().saturating_sub(RATE_SECONDS)..];
    last.iter().map(|number| f64::from(*number)).sum::<f64>() / last.len().max(1) as f64
}
