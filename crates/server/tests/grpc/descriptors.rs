//! The descriptors that the server returns over reflection are those of the generated types. The
//! program in `proto` at the root of the checkout compares both with the proto files.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use tidegate_envoy::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::{
            rate_limit_quota::v3::{
                BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
                rate_limit_quota_response::{
                    BucketAction,
                    bucket_action::{AbandonAction, BucketAction as Action, QuotaAssignmentAction},
                },
                rate_limit_quota_usage_reports::BucketQuotaUsage,
            },
            ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{
                    DescriptorStatus, Quota, RateLimit, quota::ExpirationSpecifier,
                },
            },
        },
        r#type::v3::{
            RateLimitStrategy, TokenBucket,
            rate_limit_strategy::{RequestsPerTimeUnit, Strategy},
        },
    },
    google::protobuf::{
        Duration, ListValue, Struct, Timestamp, UInt32Value, UInt64Value, Value, value,
    },
};

use crate::kuadrant::{CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};

/// What the server tells about its services.
const DESCRIPTORS: &[u8] = include_bytes!("../../../envoy/src/grpc/reflection/descriptors.bin");

fn files() -> FileDescriptorSet {
    FileDescriptorSet::decode(DESCRIPTORS).unwrap()
}

/// All messages, by their full names.
fn described() -> BTreeMap<String, DescriptorProto> {
    fn add(all: &mut BTreeMap<String, DescriptorProto>, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        message
            .nested_type
            .iter()
            .for_each(|nested| add(all, &name, nested));
        all.insert(name, message.clone());
    }
    let mut all = BTreeMap::new();
    for file in files().file {
        file.message_type
            .iter()
            .for_each(|message| add(&mut all, &format!(".{}", file.package()), message));
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    number
}

/// Reads what the generated types wrote by the descriptors, and notes which fields there were.
fn read(
    mut bytes: &[u8],
    name: &str,
    all: &BTreeMap<String, DescriptorProto>,
    seen: &mut BTreeSet<String>,
) {
    let message = all
        .get(name)
        .unwrap_or_else(|| panic!("{name} is not described"));
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = message
            .field
            .iter()
            .find(|field| field.number().cast_unsigned() == (key >> 3) as u32);
        let field = field
            .unwrap_or_else(|| panic!("{name} has a field {} that is not described", key >> 3));
        seen.insert(format!("{name} {}", field.name()));
        let wire = match field.r#type() {
            Type::String | Type::Bytes | Type::Message => 2,
            Type::Double => 1,
            _ => 0,
        };
        assert_eq!(key & 7, wire, "{name} {}", field.name());
        let size = match wire {
            2 => usize::try_from(varint(&mut bytes)).unwrap(),
            1 => 8,
            _ => {
                varint(&mut bytes);
                0
            }
        };
        let (value, rest) = bytes.split_at(size);
        if field.r#type() == Type::Message {
            read(value, field.type_name(), all, seen);
        }
        bytes = rest;
    }
}

/// No `..` here: a field that Envoy adds does not compile until it is described.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let text = || "x".to_owned();
    let span = || {
        Some(Duration {
            seconds: 1,
            nanos: 1,
        })
    };
    let header = || HeaderValue {
        key: text(),
        value: text(),
        raw_value: vec![1],
    };
    let request = RateLimitRequest {
        domain: text(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry {
                key: text(),
                value: text(),
            }],
            limit: Some(RateLimitOverride {
                requests_per_unit: 1,
                unit: 1,
            }),
            hits_addend: Some(UInt64Value { value: 1 }),
            is_negative_hits: true,
        }],
        hits_addend: 1,
    };
    let quota = || {
        let valid_until = ExpirationSpecifier::ValidUntil(Timestamp {
            seconds: 1,
            nanos: 1,
        });
        Some(Quota {
            requests: 1,
            id: text(),
            expiration_specifier: Some(valid_until),
        })
    };
    let kinds = [
        value::Kind::NullValue(0),
        value::Kind::NumberValue(1.0),
        value::Kind::StringValue(text()),
        value::Kind::BoolValue(true),
        value::Kind::StructValue(Struct {
            fields: HashMap::new(),
        }),
        value::Kind::ListValue(ListValue {
            values: vec![Value { kind: None }],
        }),
    ];
    let fields = kinds.into_iter().enumerate();
    let fields = fields
        .map(|(at, kind)| (at.to_string(), Value { kind: Some(kind) }))
        .collect();
    let response = RateLimitResponse {
        overall_code: 1,
        statuses: vec![DescriptorStatus {
            code: 1,
            current_limit: Some(RateLimit {
                name: text(),
                requests_per_unit: 1,
                unit: 1,
            }),
            limit_remaining: 1,
            duration_until_reset: span(),
            quota: quota(),
        }],
        response_headers_to_add: vec![header()],
        request_headers_to_add: vec![header()],
        raw_body: vec![1],
        dynamic_metadata: Some(Struct { fields }),
        quota: quota(),
    };
    let bucket_id = || {
        Some(BucketId {
            bucket: [(text(), text())].into(),
        })
    };
    let report = RateLimitQuotaUsageReports {
        domain: text(),
        bucket_quota_usages: vec![BucketQuotaUsage {
            bucket_id: bucket_id(),
            time_elapsed: span(),
            num_requests_allowed: 1,
            num_requests_denied: 1,
        }],
    };
    let strategies = [
        Strategy::BlanketRule(1),
        Strategy::RequestsPerTimeUnit(RequestsPerTimeUnit {
            requests_per_time_unit: 1,
            time_unit: 1,
        }),
        Strategy::TokenBucket(TokenBucket {
            max_tokens: 1,
            tokens_per_fill: Some(UInt32Value { value: 1 }),
            fill_interval: span(),
        }),
    ];
    let actions = strategies.map(|strategy| {
        Action::QuotaAssignmentAction(QuotaAssignmentAction {
            assignment_time_to_live: span(),
            rate_limit_strategy: Some(RateLimitStrategy {
                strategy: Some(strategy),
            }),
        })
    });
    let actions = actions
        .into_iter()
        .chain([Action::AbandonAction(AbandonAction {})]);
    let bucket_action = actions
        .map(|action| BucketAction {
            bucket_id: bucket_id(),
            bucket_action: Some(action),
        })
        .collect();
    let assignments = RateLimitQuotaResponse { bucket_action };
    let descriptors = || request.descriptors.clone();
    let reserve = ReserveRequest {
        domain: text(),
        descriptors: descriptors(),
        amount: 1,
        ttl: span(),
    };
    let commit = CommitRequest {
        domain: text(),
        descriptors: descriptors(),
        reservation_id: text(),
        actual_amount: 1,
    };
    let reserved = ReserveResponse {
        code: 1,
        reservation_id: text(),
    };
    let kuadrants = [
        ("ReserveRequest", reserve.encode_to_vec()),
        ("ReserveResponse", reserved.encode_to_vec()),
        ("CommitRequest", commit.encode_to_vec()),
        (
            "CommitResponse",
            CommitResponse {
                reservation_released: true,
            }
            .encode_to_vec(),
        ),
    ];
    let kuadrants = kuadrants
        .into_iter()
        .map(|(name, bytes)| (".kuadrant.service.ratelimit.v1", name, bytes));
    let (rls, rlqs) = (
        ".envoy.service.ratelimit.v3",
        ".envoy.service.rate_limit_quota.v3",
    );
    vec![
        (rls, "RateLimitRequest", request.encode_to_vec()),
        (rls, "RateLimitResponse", response.encode_to_vec()),
        (rlqs, "RateLimitQuotaUsageReports", report.encode_to_vec()),
        (rlqs, "RateLimitQuotaResponse", assignments.encode_to_vec()),
    ]
    .into_iter()
    .chain(kuadrants)
    .map(|(package, name, bytes)| (&*format!("{package}.{name}").leak(), bytes))
    .collect()
}

#[test]
fn the_descriptors_read_what_the_generated_types_write() {
    let all = described();
    let mut seen = BTreeSet::new();
    for (name, bytes) in samples() {
        read(&bytes, name, &all, &mut seen);
    }
    let envoys = all
        .iter()
        .filter(|(name, _)| !name.starts_with(".google.") && !name.starts_with(".grpc."));
    let fields = envoys.flat_map(|(name, message)| {
        message
            .field
            .iter()
            .map(move |field| format!("{name} {}", field.name()))
    });
    let missing: Vec<_> = fields.filter(|field| !seen.contains(field)).collect();
    assert!(
        missing.is_empty(),
        "described, but never written: {missing:?}"
    );
}

#[test]
fn every_name_is_described_in_the_file_or_in_one_that_it_imports() {
    let all = described();
    let files = files().file;
    for file in &files {
        for import in &file.dependency {
            assert!(files.iter().any(|other| other.name() == import), "{import}");
        }
        let methods = file.service.iter().flat_map(|service| &service.method);
        for name in methods.flat_map(|method| [method.input_type(), method.output_type()]) {
            assert!(all.contains_key(name), "{name}");
        }
    }
}
