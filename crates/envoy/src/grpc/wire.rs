//! Converts Envoy's messages to questions, and answers to Envoy's messages.

use std::borrow::Cow;

use crate::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{
                Code, DescriptorStatus, RateLimit, rate_limit::Unit as LimitUnit,
            },
        },
        r#type::v3::RateLimitUnit,
    },
    google::protobuf::{Duration, ListValue, Struct, Value, value::Kind},
};
use http::HeaderName;
use serde_json::{Map, Value as Json};

use crate::{
    config::Unit,
    descriptors::{Answer, Descriptor, Override, Question, Status, Unanswered},
};

/// The key of a call's metadata that has the id of a request.
const ID: HeaderName = HeaderName::from_static("tidegate-id");

/// The id that makes a call safe to repeat.
pub(super) fn id<M>(request: &tonic::Request<M>) -> Option<Vec<u8>> {
    let id = request.metadata().as_ref().get(ID)?;
    Some(id.as_bytes().to_vec())
}

/// Converts a message to a question, which has the id of its call.
pub(super) fn question<'a>(request: &'a RateLimitRequest, id: Option<&'a [u8]>) -> Question<'a> {
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    Question {
        domain: &request.domain,
        hits: request.hits_addend.into(),
        descriptors,
        id,
    }
}

/// Converts one descriptor.
pub(super) fn descriptor(descriptor: &RateLimitDescriptor) -> Descriptor<'_> {
    let entries = descriptor
        .entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_str()));
    Descriptor {
        hits: descriptor.hits_addend.as_ref().map(|hits| hits.value),
        is_refund: descriptor.is_negative_hits,
        limit: descriptor.limit.map(limit),
        ..Descriptor::new(entries)
    }
}

fn limit(limit: RateLimitOverride) -> Result<Override, Unanswered> {
    let unit = RateLimitUnit::try_from(limit.unit)
        .ok()
        .and_then(|unit| Unit::from_name(unit.as_str_name()));
    let why = || {
        format!(
            "its unit is {}; it must be one of second to year",
            limit.unit
        )
    };
    let unit = unit.ok_or_else(|| Unanswered::Override(why()))?;
    Ok(Override {
        requests_per_unit: limit.requests_per_unit,
        unit,
    })
}

/// Converts an answer to a message.
pub(super) fn response(answer: Answer) -> RateLimitResponse {
    let metadata = (!answer.metadata.is_empty()).then(|| fields(answer.metadata));
    let header = |(key, value): (Cow<'static, str>, String)| HeaderValue {
        key: key.into_owned(),
        value,
        ..HeaderValue::default()
    };
    RateLimitResponse {
        overall_code: code(answer.is_over),
        statuses: answer.statuses.into_iter().map(status).collect(),
        response_headers_to_add: answer.headers.into_iter().map(header).collect(),
        request_headers_to_add: answer.request_headers.into_iter().map(header).collect(),
        dynamic_metadata: metadata,
        ..RateLimitResponse::default()
    }
}

fn fields(fields: Map<String, Json>) -> Struct {
    Struct {
        fields: fields
            .into_iter()
            .map(|(name, json)| (name, value(json)))
            .collect(),
    }
}

fn value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(is_true) => Kind::BoolValue(is_true),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(value).collect(),
        }),
        Json::Object(map) => Kind::StructValue(fields(map)),
    };
    Value { kind: Some(kind) }
}

fn status(status: Status) -> DescriptorStatus {
    let (requests_per_unit, limit_remaining) = status.in_32_bits();
    DescriptorStatus {
        code: code(status.is_over),
        current_limit: status.limit.map(|limit| RateLimit {
            name: limit.name,
            requests_per_unit,
            unit: unit(limit.unit).into(),
        }),
        limit_remaining,
        duration_until_reset: status.reset_after.map(|seconds| Duration {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ..DescriptorStatus::default()
    }
}

fn code(is_over: bool) -> i32 {
    if is_over { Code::OverLimit } else { Code::Ok }.into()
}

fn unit(unit: Unit) -> LimitUnit {
    use LimitUnit::{Day, Hour, Minute, Month, Second, Week, Year};
    // In the order of `Unit::ALL`.
    [Second, Minute, Hour, Day, Week, Month, Year][unit as usize]
}
