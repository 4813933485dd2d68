//! Responses with decisions: JSON, and the header fields of the IETF draft `draft-ietf-httpapi-ratelimit-headers`, version 10.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use serde::Serialize;
use tidegate_tower::headers;

use crate::service::{Answer, JointAnswer};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// Bytes in which the usual answer fits, and each of its fields.
const USUAL: usize = 256;

/// A decision in JSON. Times are rounded up; `null` means unknown.
#[derive(Debug, Serialize)]
pub(super) struct DecisionBody<'a> {
    allowed: bool,
    limit_name: &'a str,
    limit: u64,
    remaining: u64,
    /// For a denial: when a retry would be admitted.
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    /// Leaky bucket: how long to wait before starting.
    delay_ms: u64,
    /// Only for limits in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<ShadowBody>,
}

/// What a shadow limit would have decided.
#[derive(Debug, Serialize)]
struct ShadowBody {
    would_deny: bool,
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct JointBody<'a> {
    #[serde(flatten)]
    bound: DecisionBody<'a>,
    decisions: Vec<DecisionBody<'a>>,
}

impl<'a> DecisionBody<'a> {
    fn new(answer: &'a Answer) -> Self {
        let raw = &answer.decision;
        let shadow = answer.limit.spec().shadow.then(|| ShadowBody {
            would_deny: raw.is_denied(),
            retry_after_ms: raw.retry_after().map(ceil_ms),
        });
        Self {
            allowed: answer.is_allowed(),
            limit_name: &answer.limit.spec().name,
            limit: raw.limit(),
            remaining: raw.remaining(),
            retry_after_ms: answer.retry_after().map(ceil_ms),
            reset_after_ms: answer.reset_after().map(ceil_ms),
            delay_ms: ceil_ms(raw.delay()),
            shadow,
        }
    }
}

/// The response for one limit, with the given status for admissions and denials alike, or the default ones.
pub(super) fn one(answer: &Answer, status: Option<StatusCode>) -> Response<Body> {
    respond(&DecisionBody::new(answer), answer, std::slice::from_ref(answer), status)
}

/// The response for several limits: the decision that bound, and all decisions in `decisions`.
pub(super) fn all(joint: &JointAnswer, status: Option<StatusCode>) -> Response<Body> {
    let bound = &joint.answers[joint.bound];
    let body = JointBody {
        bound: DecisionBody { allowed: joint.is_allowed(), ..DecisionBody::new(bound) },
        decisions: joint.answers.iter().map(DecisionBody::new).collect(),
    };
    respond(&body, bound, &joint.answers, status)
}

fn respond(
    body: &impl Serialize,
    bound: &Answer,
    answers: &[Answer],
    status: Option<StatusCode>,
) -> Response<Body> {
    let usual = if bound.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = json(body);
    *response.status_mut() = status.unwrap_or(usual);
    let headers = response.headers_mut();
    let mut text = String::with_capacity(USUAL);
    for (name, write) in [(POLICY, write_policy as fn(&mut _, &_)), (STATE, write_state)] {
        text.clear();
        answers.iter().for_each(|answer| write(&mut text, answer));
        // Limit names are plain ASCII, so the value is always valid.
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    }
    if !bound.is_allowed()
        && let Some(wait) = bound.retry_after()
    {
        headers.insert(header::RETRY_AFTER, headers::ceil_secs(wait).into());
    }
    response
}

/// Any value as a JSON response.
pub(super) fn json(body: &impl Serialize) -> Response<Body> {
    let mut text = Vec::with_capacity(USUAL);
    // The bodies are structs of numbers and strings, which always serialize.
    let _ = serde_json::to_writer(&mut text, body);
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The value of the field `RateLimit-Policy`.
pub(crate) fn policy_field(answers: &[Answer]) -> String {
    list(answers, write_policy)
}

/// The value of the field `RateLimit`.
pub(crate) fn state_field(answers: &[Answer]) -> String {
    list(answers, write_state)
}

/// The answers as members of a structured list. A limit that was asked for several keys appears once per key.
fn list(answers: &[Answer], write: impl Fn(&mut String, &Answer)) -> String {
    let mut text = String::new();
    for answer in answers {
        write(&mut text, answer);
    }
    text
}

fn write_policy(text: &mut String, answer: &Answer) {
    let spec = answer.limit.policy_of(&answer.key);
    let per = spec.window.map_or(headers::Per::InFlight, headers::Per::Window);
    headers::write_policy(text, &answer.limit.spec().name, spec.limit.into(), per);
}

fn write_state(text: &mut String, answer: &Answer) {
    headers::write_state(text, &answer.limit.spec().name, &answer.decision);
}

fn ceil_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
