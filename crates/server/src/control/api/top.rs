//! `GET /v1/top`: the keys of a limit with the most requests and the most denials.
//! `GET /v1/denied`: those with the most denials of all limits.

use std::borrow::Cow;

use axum::http::Uri;
use serde_json::{Value, json};
use tidegate_service::observe::heavy::TopKey;

use crate::edges::http::{answer, permit::Caller, problem::Answered, query};

/// The default number of keys.
const USUAL: usize = 10;

fn key(top: &TopKey) -> Value {
    let key = String::from_utf8_lossy(&top.key);
    let TopKey {
        count,
        at_least,
        at_most,
        ..
    } = top;
    let mut body = json!({
        "key": key,
        "count": count,
        "at_least": at_least,
        "at_most": at_most,
        // Since when it was counted in each five minutes.
        "since_ms": top.since.get() / 1_000_000,
    });
    if matches!(key, Cow::Owned(_)) {
        // Bytes that are not UTF-8 are shown as U+FFFD.
        body["not_utf8"] = json!(true);
    }
    body
}

/// The heavy keys of one limit.
pub(super) fn answer(caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [limit, n] = query::fields(uri, ["limit", "n"])?;
    let limit = query::needed(limit.as_ref(), "limit")?;
    caller.permit(limit)?;
    let most = query::number(n.as_deref(), "n", USUAL, 1..=100_000)?;
    let top = caller
        .app
        .service
        .top(limit.as_bytes(), most, caller.app.service.now())?;
    Ok(answer::json(&json!({
        "limit_name": limit,
        // How long the keys have been counted.
        "seconds": top.span.get() as f64 / 1e9,
        // One decision in so many was counted.
        "one_in": top.one_in,
        // How many names each count remembers.
        "names": top.capacity,
        "requests": top.requests,
        "denials": top.denials,
        "asked_most": top.asked.iter().map(key).collect::<Vec<_>>(),
        "denied_most": top.denied.iter().map(key).collect::<Vec<_>>(),
    })))
}

/// The keys with the most denials of all limits that the client's rights cover.
pub(super) async fn denied(caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [n] = query::fields(uri, ["n"])?;
    let most = query::number(n.as_deref(), "n", USUAL, 1..=1_000)?;
    let now = caller.app.service.now();
    let all = caller
        .app
        .service
        .denied_most(|limit| caller.permit(limit).is_ok(), most, now);
    let mut keys = Vec::with_capacity(all.len());
    for denied in &all {
        let (spec, standing) = (
            denied.limit.spec(),
            caller.app.service.standing(denied).await,
        );
        let mut body = key(&denied.key);
        body["limit_name"] = json!(spec.name);
        body["shadow"] = json!(spec.shadow);
        // How long the denials have been counted.
        body["seconds"] = json!(denied.span.get() as f64 / 1e9);
        // Whether a request of the key would be denied now, and why; null if the store does not say.
        body["denied"] = json!(standing.map(|standing| standing.is_denied()));
        if let Some(reason) = standing.and_then(|standing| standing.reason()) {
            body["reason"] = json!(reason.name());
        }
        keys.push(body);
    }
    Ok(answer::json(&json!({"keys": keys})))
}
