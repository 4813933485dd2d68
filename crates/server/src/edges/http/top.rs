//! `GET /v1/top`: the keys of a limit with the most requests and the most denials. `GET /v1/denied`: those with the most denials of all
//! limits.

use axum::{
    body::Body,
    http::{Response, Uri},
};
use serde::Serialize;
use serde_json::json;

use super::{
    answer,
    app::App,
    problem::{Problem, Refused},
    query,
};
use crate::observe::heavy::TopKey;

/// The default number of keys.
const USUAL: usize = 10;

#[derive(Debug, Serialize)]
struct TopBody<'a> {
    limit_name: &'a str,
    /// How long the keys have been counted.
    seconds: f64,
    /// The sampling rate: one decision in `one_in` was counted.
    one_in: u64,
    /// The number of names that each count remembers.
    names: usize,
    requests: u64,
    denials: u64,
    asked_most: Vec<KeyBody>,
    denied_most: Vec<KeyBody>,
}

#[derive(Debug, Serialize)]
struct KeyBody {
    key: String,
    /// The key has bytes that are not UTF-8, shown as U+FFFD.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_utf8: bool,
    count: u64,
    at_least: u64,
    at_most: u64,
}

impl From<TopKey> for KeyBody {
    fn from(top: TopKey) -> Self {
        let key = String::from_utf8_lossy(&top.key);
        Self {
            not_utf8: matches!(&key, std::borrow::Cow::Owned(_)),
            key: key.into_owned(),
            count: top.count,
            at_least: top.at_least,
            at_most: top.at_most,
        }
    }
}

/// `permitted` says whether the client's rights cover a limit.
pub(super) fn answer(
    app: &App,
    uri: &Uri,
    permitted: &impl Fn(&str) -> Result<(), Problem>,
) -> Result<Response<Body>, Refused> {
    let [limit, n] = query::fields(uri, ["limit", "n"])?;
    let limit = query::needed(limit.as_ref(), "limit")?;
    permitted(limit)?;
    let most = query::number(n.as_deref(), "n", USUAL, 1..=100_000)?;
    let top = app.service.top(limit.as_bytes(), most, app.service.now());
    let top = top.map_err(|refusal| Problem::from_refusal(refusal, "#"))?;
    Ok(answer::json(&TopBody {
        limit_name: limit,
        seconds: top.span.get() as f64 / 1e9,
        one_in: top.one_in,
        names: top.capacity,
        requests: top.requests,
        denials: top.denials,
        asked_most: top.asked.into_iter().map(KeyBody::from).collect(),
        denied_most: top.denied.into_iter().map(KeyBody::from).collect(),
    }))
}

#[derive(Debug, Serialize)]
struct DeniedBody<'a> {
    limit_name: &'a str,
    shadow: bool,
    /// How long the denials have been counted.
    seconds: f64,
    #[serde(flatten)]
    key: KeyBody,
    /// Whether a request of the key would be denied now, and why; null if only the store knows.
    denied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// `permitted` says whether the client's rights cover a limit.
pub(super) fn denied(
    app: &App,
    uri: &Uri,
    permitted: &impl Fn(&str) -> Result<(), Problem>,
) -> Result<Response<Body>, Refused> {
    let [n] = query::fields(uri, ["n"])?;
    let most = query::number(n.as_deref(), "n", USUAL, 1..=1_000)?;
    let now = app.service.now();
    let all = app.service.denied_most(|limit| permitted(limit).is_ok(), most, now);
    let keys: Vec<DeniedBody<'_>> = all
        .iter()
        .map(|denied| {
            let (spec, standing) = (denied.limit.spec(), denied.standing(now));
            DeniedBody {
                limit_name: &spec.name,
                shadow: spec.shadow,
                seconds: denied.span.get() as f64 / 1e9,
                key: denied.key.clone().into(),
                denied: standing.map(|standing| standing.is_denied()),
                reason: standing.and_then(|standing| Some(standing.reason()?.name())),
            }
        })
        .collect();
    Ok(answer::json(&json!({"keys": keys})))
}
