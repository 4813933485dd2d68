//! Responses with decisions: JSON, and the header fields of the IETF draft
//! `draft-ietf-httpapi-ratelimit-headers`, version 10.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use serde::Serialize;
use tidegate_core::DenialReason;
use tidegate_headers as headers;
use tidegate_service::decide::service::{Answer, JointAnswer, SOFT_EXCEEDED};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// Bytes in which the usual answer fits, and each of its fields.
const USUAL: usize = 256;

/// The response for one limit, with the given status for admissions and denials alike, or the
/// default ones.
pub(super) fn one(answer: &Answer, status: Option<StatusCode>) -> Response<Body> {
    let mut body = Vec::with_capacity(USUAL);
    body.push(b'{');
    push_decision(&mut body, answer, answer.is_allowed());
    body.push(b'}');
    respond(body, answer, std::slice::from_ref(answer), status)
}

/// The response for one limit that took what is available of a cost.
pub(super) fn up_to(answer: &Answer, taken: u64) -> Response<Body> {
    let mut body = Vec::with_capacity(USUAL);
    body.push(b'{');
    push_decision(&mut body, answer, answer.is_allowed());
    push_number(&mut body, ",\"taken\":", Some(taken));
    body.push(b'}');
    respond(body, answer, std::slice::from_ref(answer), None)
}

/// The response for several limits: the decision that bound, and all decisions in `decisions`.
pub(super) fn all(joint: &JointAnswer, status: Option<StatusCode>) -> Response<Body> {
    let mut body = Vec::with_capacity(USUAL * (1 + joint.answers.len()));
    body.push(b'{');
    push_all(&mut body, joint);
    respond(body, &joint.answers[joint.bound], &joint.answers, status)
}

/// Appends the members of a joint decision's JSON object, and its end.
fn push_all(body: &mut Vec<u8>, joint: &JointAnswer) {
    push_decision(body, &joint.answers[joint.bound], joint.is_allowed());
    for (at, answer) in joint.answers.iter().enumerate() {
        body.extend_from_slice(if at == 0 { b",\"decisions\":[{" } else { b",{" });
        push_decision(body, answer, answer.is_allowed());
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
}

/// The response to a reservation: the decisions, and its id and time to live if all limits
/// admitted.
pub(super) fn reserved(joint: &JointAnswer, id: Option<(&str, Duration)>) -> Response<Body> {
    let mut response = all(joint, None);
    if let Some((id, ttl)) = id {
        let mut body = format!("{{\"id\":\"{id}\",\"ttl_ms\":{},", ceil_ms(ttl)).into_bytes();
        push_all(&mut body, joint);
        *response.body_mut() = Body::from(ended(body));
    }
    response
}

/// Appends the members of a decision's JSON object. Times are rounded up; `null` means unknown.
/// `retry_after_ms`: when a retry of a denied request would be admitted. `reason`: why it is
/// denied, by the names of [`DenialReason`]. `delay_ms`: how long the work must wait
/// before it starts. `shadow`: what a shadow limit would have decided.
///
/// Written by hand, because this is most of an answer: a serializer takes four times as many
/// instructions for it.
fn push_decision(body: &mut Vec<u8>, answer: &Answer, allowed: bool) {
    let (raw, spec) = (&answer.decision, answer.limit.spec());
    body.extend_from_slice(if allowed {
        b"\"allowed\":true"
    } else {
        b"\"allowed\":false"
    });
    body.extend_from_slice(b",\"limit_name\":\"");
    // The names of limits have no character that JSON would escape.
    body.extend_from_slice(spec.name.as_bytes());
    push_number(body, "\",\"limit\":", Some(raw.limit()));
    push_number(body, ",\"remaining\":", Some(raw.remaining()));
    push_number(
        body,
        ",\"retry_after_ms\":",
        answer.retry_after().map(ceil_ms),
    );
    push_number(
        body,
        ",\"reset_after_ms\":",
        answer.reset_after().map(ceil_ms),
    );
    push_number(body, ",\"delay_ms\":", Some(ceil_ms(raw.delay())));
    let reason = |body: &mut Vec<u8>, denied: Option<DenialReason>| {
        if let Some(reason) = denied {
            body.extend_from_slice(b",\"reason\":\"");
            body.extend_from_slice(reason.name().as_bytes());
            body.push(b'"');
        }
    };
    if !spec.shadow {
        reason(body, raw.reason());
    }
    if spec.soft {
        let exceeded: &[u8] = if raw.is_denied() { b"true" } else { b"false" };
        body.extend_from_slice(b",\"soft\":{\"exceeded\":");
        body.extend_from_slice(exceeded);
        body.push(b'}');
    } else if spec.shadow {
        let would_deny = if raw.is_denied() { "true" } else { "false" };
        body.extend_from_slice(b",\"shadow\":{\"would_deny\":");
        body.extend_from_slice(would_deny.as_bytes());
        push_number(body, ",\"retry_after_ms\":", raw.retry_after().map(ceil_ms));
        reason(body, raw.reason());
        body.push(b'}');
    }
}

fn push_number(body: &mut Vec<u8>, before: &str, number: Option<u64>) {
    body.extend_from_slice(before.as_bytes());
    match number {
        Some(number) => body.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        None => body.extend_from_slice(b"null"),
    }
}

fn respond(
    body: Vec<u8>,
    bound: &Answer,
    answers: &[Answer],
    status: Option<StatusCode>,
) -> Response<Body> {
    let usual = if bound.is_allowed() {
        StatusCode::OK
    } else {
        StatusCode::TOO_MANY_REQUESTS
    };
    let mut response = text(ended(body), "application/json");
    *response.status_mut() = status.unwrap_or(usual);
    let headers = response.headers_mut();
    let mut field = String::with_capacity(USUAL);
    for (name, write) in [
        (POLICY, write_policy as fn(&mut _, &_)),
        (STATE, write_state),
    ] {
        field.clear();
        for answer in answers {
            write(&mut field, answer);
        }
        // Limit names are plain ASCII, so the value is always valid.
        if let Ok(value) = HeaderValue::from_str(&field) {
            headers.insert(name, value);
        }
    }
    let exceeds = |answer: &&Answer| answer.limit.spec().soft && answer.decision.is_denied();
    let exceeded: Vec<_> = answers.iter().filter(exceeds).collect();
    if !exceeded.is_empty() {
        let names: Vec<_> = exceeded
            .iter()
            .map(|answer| answer.limit.spec().name.as_str())
            .collect();
        if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
            headers.insert(HeaderName::from_static(SOFT_EXCEEDED), value);
        }
    }
    if !bound.is_allowed()
        && let Some(wait) = bound.retry_after()
    {
        headers.insert(header::RETRY_AFTER, headers::retry_after(wait).into());
    }
    response
}

/// A text with a line feed at its end, so that a terminal shows its prompt on a new line.
pub(super) fn ended(mut text: Vec<u8>) -> Vec<u8> {
    text.push(b'\n');
    text
}

/// A response of this media type.
pub(crate) fn text(text: impl Into<Body>, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(text.into());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Any value as a JSON response.
pub(crate) fn json(body: &impl Serialize) -> Response<Body> {
    let mut written = Vec::with_capacity(USUAL);
    // The bodies are structs of numbers and strings, which always serialize.
    let _ = serde_json::to_writer(&mut written, body);
    text(ended(written), "application/json")
}

/// The value of the field `RateLimit-Policy`.
pub(crate) fn policy_field(answers: &[Answer]) -> String {
    list(answers, write_policy)
}

/// The value of the field `RateLimit`.
pub(crate) fn state_field(answers: &[Answer]) -> String {
    list(answers, write_state)
}

/// The answers as members of a structured list. A limit that was asked for several keys appears
/// once per key.
fn list(answers: &[Answer], write: impl Fn(&mut String, &Answer)) -> String {
    let mut text = String::new();
    for answer in answers {
        write(&mut text, answer);
    }
    text
}

fn write_policy(text: &mut String, answer: &Answer) {
    let spec = answer.limit.policy_of(&answer.key);
    let per = spec
        .window
        .map_or(headers::Per::InFlight, headers::Per::Window);
    headers::write_policy(text, &answer.limit.spec().name, spec.limit, per);
}

fn write_state(text: &mut String, answer: &Answer) {
    headers::write_state(text, &answer.limit.spec().name, &answer.decision);
}

fn ceil_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
