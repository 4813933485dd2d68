//! `POST /json`: descriptors in the JSON form of `RateLimitRequest`, answered as by
//! envoyproxy/ratelimit.

use std::fmt;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};
use tidegate_envoy::{
    config::Unit,
    descriptors::{Answer, Descriptor, Override, Question, Status, Unanswered},
};
use tidegate_service::decide::service::Refusal;
use tokio::sync::Semaphore;

use super::{
    answer, ask,
    permit::Caller,
    problem::{Answered, Problem},
};

/// Up to this length in bytes, a body is read at once.
const SMALL: usize = 4 * 1024;
/// The turn of a larger one.
static LARGE: Semaphore = Semaphore::const_new(1);

/// `RateLimitRequest`.
#[derive(Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "an object such as {\"domain\": \"shop\", \"descriptors\": [{\"entries\": []}]}"
)]
struct RequestBody {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<DescriptorBody>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u64>,
}

/// `RateLimitDescriptor`.
#[derive(Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "an object with `entries`"
)]
struct DescriptorBody {
    #[serde(default)]
    entries: Vec<EntryBody>,
    limit: Option<LimitBody>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `key` and `value`")]
struct EntryBody {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "an object with `requestsPerUnit` and `unit`"
)]
struct LimitBody {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: u32,
    /// `SECOND` to `YEAR`.
    #[serde(deserialize_with = "unit")]
    unit: Unit,
}

/// A whole number, which this JSON form may write as a string.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, optionally in quotes")
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Option<u64>, E> {
            Ok(Some(number))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<u64>, E> {
            text.parse()
                .map(Some)
                .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Visitor)
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Unit, D::Error> {
    let name = String::deserialize(deserializer)?;
    let wrong = || de::Error::invalid_value(de::Unexpected::Str(&name), &"one of SECOND to YEAR");
    Unit::from_name(&name).ok_or_else(wrong)
}

/// Decides on the request in a body.
pub(super) async fn decide(caller: &Caller<'_>, body: &[u8]) -> Answered {
    // Reading a body with hundreds of descriptors takes as long as thousands of decisions. So these
    // take turns, and after each the thread looks for other requests.
    let turn = if body.len() > SMALL {
        LARGE.acquire().await.ok()
    } else {
        None
    };
    if turn.is_some() {
        tokio::task::yield_now().await;
    }
    let request = ask::read::<RequestBody>(body)?;
    drop(turn);
    if caller
        .rights
        .as_ref()
        .is_none_or(|rights| !rights.concern_domain(&request.domain))
    {
        return Err(Problem::forbidden("the client may not ask for this domain"));
    }
    let hits = request.hits_addend.unwrap_or(0);
    let descriptors = request
        .descriptors
        .iter()
        .map(DescriptorBody::descriptor)
        .collect();
    let question = Question {
        domain: &request.domain,
        hits,
        descriptors,
        id: None,
    };
    let answer = caller
        .app
        .rates
        .decide(&question, caller.app.service.now())
        .await;
    answer
        .map(|answer| respond(&answer))
        .map_err(|error| refused(&error))
}

impl DescriptorBody {
    fn descriptor(&self) -> Descriptor<'_> {
        let entries = self
            .entries
            .iter()
            .map(|entry| (entry.key.as_str(), entry.value.as_str()));
        Descriptor {
            hits: self.hits_addend,
            is_refund: self.is_negative_hits,
            limit: self.limit.as_ref().map(|limit| {
                Ok(Override {
                    requests_per_unit: limit.requests_per_unit,
                    unit: limit.unit,
                })
            }),
            ..Descriptor::new(entries)
        }
    }
}

fn respond(answer: &Answer) -> Response<Body> {
    let mut body = Map::new();
    body.insert("overallCode".to_owned(), code(answer.is_over));
    body.insert(
        "statuses".to_owned(),
        answer.statuses.iter().map(status).collect(),
    );
    for (name, headers) in [
        ("responseHeadersToAdd", &answer.headers),
        ("requestHeadersToAdd", &answer.request_headers),
    ] {
        if !headers.is_empty() {
            let headers = headers
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value}));
            body.insert(name.to_owned(), headers.collect());
        }
    }
    if !answer.metadata.is_empty() {
        body.insert("dynamicMetadata".to_owned(), answer.metadata.clone().into());
    }
    let mut response = answer::json(&body);
    if answer.is_over {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    response
}

/// In the JSON form of a protobuf message, zero and empty fields are omitted.
fn status(status: &Status) -> Value {
    let mut body = Map::new();
    body.insert("code".to_owned(), code(status.is_over));
    let (requests_per_unit, remaining) = status.in_32_bits();
    if let Some(limit) = &status.limit {
        let mut current = Map::new();
        if !limit.name.is_empty() {
            current.insert("name".to_owned(), limit.name.as_str().into());
        }
        if requests_per_unit > 0 {
            current.insert("requestsPerUnit".to_owned(), requests_per_unit.into());
        }
        current.insert("unit".to_owned(), limit.unit.name().to_uppercase().into());
        body.insert("currentLimit".to_owned(), current.into());
    }
    if remaining > 0 {
        body.insert("limitRemaining".to_owned(), remaining.into());
    }
    if let Some(seconds) = status.reset_after {
        body.insert(
            "durationUntilReset".to_owned(),
            format!("{seconds}s").into(),
        );
    }
    body.into()
}

fn code(is_over: bool) -> Value {
    if is_over { "OVER_LIMIT" } else { "OK" }.into()
}

fn refused(error: &Unanswered) -> Problem {
    let (status, title) = match error {
        Unanswered::Refused(Refusal::NoAnswer { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "No reply from the store")
        }
        Unanswered::Refused(_) => (StatusCode::CONFLICT, "No decision possible"),
        _ => (StatusCode::BAD_REQUEST, "Invalid request"),
    };
    Problem::new(status, title, error.to_string())
}
