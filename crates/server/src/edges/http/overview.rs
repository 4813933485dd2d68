//! `GET /v1/limits`: every limit with its rule, its counts and its recent decisions.

use axum::{
    body::Body,
    http::{Response, Uri},
};
use serde::Serialize;
use serde_json::json;
use tidegate_redis::Health;

use super::{answer, app::App, problem::Refused, query};
use crate::{
    decide::limits::Limit,
    listen::access::Rights,
    observe::history::{Points, Step},
    rules::LimitSpec,
};

/// The number of seconds over which rates are averaged.
const RATE_SECONDS: usize = 10;

/// One limit. Rates and the list of seconds are omitted if the limit has no history, and the heaviest key if no names are
/// kept.
#[derive(Debug, Serialize)]
struct LimitBody<'a> {
    name: &'a str,
    algorithm: &'a str,
    quota: String,
    options: String,
    global: bool,
    shadow: bool,
    /// `local`, or how servers share the limit.
    sharing: &'static str,
    keys: u64,
    max_keys: u64,
    bytes: u64,
    allowed: u64,
    delayed: u64,
    denied: u64,
    shadow_denied: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recent: Option<RecentBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heaviest: Option<HeaviestBody>,
}

/// The latest seconds, oldest first. Requests that a shadow limit would have denied count as denied.
#[derive(Debug, Serialize)]
struct RecentBody {
    end: u64,
    admitted: Vec<u32>,
    denied: Vec<u32>,
}

/// The key with the most requests.
#[derive(Debug, Serialize)]
struct HeaviestBody {
    key: String,
    /// The fraction of all requests to the limit.
    share: f64,
}

impl RecentBody {
    fn new(told: &Points<5>) -> Self {
        let [mut admitted, mut denied] = [const { Vec::new() }; 2];
        for [allowed, delayed, refused, shadow, _] in &told.points {
            admitted.push(allowed.saturating_add(*delayed));
            denied.push(refused.saturating_add(*shadow));
        }
        Self { end: told.end, admitted, denied }
    }
}

/// The recent admissions and denials per second.
fn rates(recent: &RecentBody) -> [f64; 2] {
    [&recent.admitted, &recent.denied].map(|numbers| {
        let last = &numbers[numbers.len().saturating_sub(RATE_SECONDS)..];
        last.iter().map(|number| f64::from(*number)).sum::<f64>() / last.len().max(1) as f64
    })
}

/// The limits that the client's rights cover.
pub(super) fn answer(app: &App, uri: &Uri, rights: Option<&Rights>) -> Result<Response<Body>, Refused> {
    let [recent] = query::fields(uri, ["recent"])?;
    let recent = query::number(recent.as_deref(), "recent", 0, 0..=900)?;
    let service = &app.service;
    let limits = service.limits();
    let body = |limit| limit_body(app, limit, recent);
    let concern = |limit: &Limit| rights.is_some_and(|rights| rights.concern(limit.spec().name.as_bytes()));
    let store = service.store().map(|shared| {
        let store = shared.store();
        json!({
            "address": store.address().to_string(),
            "health": health_name(store.health()),
            "trouble": store.trouble().map(|error| error.to_string()),
            "nodes": store.nodes(),
        })
    });
    Ok(answer::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now_seconds": service.now().get() / 1_000_000_000,
        "store": store,
        "limits": limits.limits().iter().filter(|limit| concern(limit)).map(|limit| body(limit)).collect::<Vec<_>>(),
    })))
}

fn limit_body<'a>(app: &App, limit: &'a Limit, recent: usize) -> LimitBody<'a> {
    let LimitSpec { name, policy, global, shadow, .. } = limit.spec();
    let (counts, stats) = (limit.counts(), limit.limiter().stats());
    let told = app.service.history().of(name, Step::Second, recent.max(RATE_SECONDS));
    let seconds = told.as_ref().map(RecentBody::new);
    let rates = seconds.as_ref().map(rates);
    let top = limit.top(1, app.service.now());
    let heaviest = top.and_then(|top| {
        let first = top.asked.first()?;
        let share = first.count as f64 / top.requests.max(1) as f64;
        Some(HeaviestBody { key: String::from_utf8_lossy(&first.key).into_owned(), share: share.min(1.0) })
    });
    LimitBody {
        name,
        algorithm: policy.algorithm.name(),
        quota: policy.quota(),
        options: policy.options(),
        global: *global,
        shadow: *shadow,
        sharing: limit.sharing(),
        keys: stats.keys,
        max_keys: stats.max_keys,
        bytes: stats.bytes,
        allowed: counts.allowed,
        delayed: counts.delayed,
        denied: counts.denied,
        shadow_denied: counts.shadow_denied,
        errors: counts.errors,
        admitted_per_second: rates.map(|rates| rates[0]),
        denied_per_second: rates.map(|rates| rates[1]),
        recent: seconds.filter(|_| recent > 0),
        heaviest,
    }
}

/// A store's health, as `/readyz` and the overview name it.
pub(crate) fn health_name(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Slow => "slow",
        Health::Partly => "partly down",
        Health::Down => "down",
    }
}
