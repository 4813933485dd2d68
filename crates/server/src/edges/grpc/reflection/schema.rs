//! The messages of Envoy's services, and those of Google that they use. Names and numbers are Envoy's; options that only check
//! values are left out.

/// A `.proto` file.
pub struct File {
    pub path: &'static str,
    pub package: &'static str,
    pub imports: &'static [&'static str],
    pub messages: &'static [Message],
    pub enums: &'static [Enum],
    /// Name, its only method, what that takes, what it returns, whether both are streams.
    pub service: Option<(&'static str, &'static str, &'static str, &'static str, bool)>,
}

pub struct Message {
    pub name: &'static str,
    pub fields: &'static [Field],
    pub messages: &'static [Self],
    pub enums: &'static [Enum],
    /// The name of the only choice among fields.
    pub one_of: Option<&'static str>,
    pub is_map_entry: bool,
}

pub type Enum = (&'static str, &'static [(&'static str, i32)]);
pub type Field = (&'static str, i32, Kind);

#[derive(Clone, Copy)]
pub enum Kind {
    Text,
    Bytes,
    Bool,
    Double,
    U32,
    U64,
    I32,
    I64,
    Enum(&'static str),
    Of(&'static str),
    Many(&'static str),
    OneOf(&'static Self),
}
use Kind::{Bool, Bytes, Double, I32, I64, Many, Of, OneOf, Text, U32, U64};

const FILE: File = File { path: "", package: "", imports: &[], messages: &[], enums: &[], service: None };
const NESTED: Message =
    Message { name: "", fields: &[], messages: &[], enums: &[], one_of: None, is_map_entry: false };

const fn message(name: &'static str, fields: &'static [Field]) -> Message {
    Message { name, fields, ..NESTED }
}

pub const FILES: &[File] = &[
    File {
        path: "google/protobuf/duration.proto",
        package: "google.protobuf",
        messages: &[message("Duration", &[("seconds", 1, I64), ("nanos", 2, I32)])],
        ..FILE
    },
    File {
        path: "google/protobuf/timestamp.proto",
        package: "google.protobuf",
        messages: &[message("Timestamp", &[("seconds", 1, I64), ("nanos", 2, I32)])],
        ..FILE
    },
    File {
        path: "google/protobuf/wrappers.proto",
        package: "google.protobuf",
        messages: &[
            message("UInt64Value", &[("value", 1, U64)]),
            message("UInt32Value", &[("value", 1, U32)]),
        ],
        ..FILE
    },
    File {
        path: "google/protobuf/struct.proto",
        package: "google.protobuf",
        messages: &[
            Message {
                messages: &[Message {
                    is_map_entry: true,
                    ..message("FieldsEntry", &[("key", 1, Text), ("value", 2, Of(".google.protobuf.Value"))])
                }],
                ..message("Struct", &[("fields", 1, Many(".google.protobuf.Struct.FieldsEntry"))])
            },
            Message {
                one_of: Some("kind"),
                ..message(
                    "Value",
                    &[
                        ("null_value", 1, OneOf(&Kind::Enum(".google.protobuf.NullValue"))),
                        ("number_value", 2, OneOf(&Double)),
                        ("string_value", 3, OneOf(&Text)),
                        ("bool_value", 4, OneOf(&Bool)),
                        ("struct_value", 5, OneOf(&Of(".google.protobuf.Struct"))),
                        ("list_value", 6, OneOf(&Of(".google.protobuf.ListValue"))),
                    ],
                )
            },
            message("ListValue", &[("values", 1, Many(".google.protobuf.Value"))]),
        ],
        enums: &[("NullValue", &[("NULL_VALUE", 0)])],
        ..FILE
    },
    File {
        path: "envoy/config/core/v3/base.proto",
        package: "envoy.config.core.v3",
        messages: &[message("HeaderValue", &[("key", 1, Text), ("value", 2, Text), ("raw_value", 3, Bytes)])],
        ..FILE
    },
    File {
        path: "envoy/type/v3/ratelimit_unit.proto",
        package: "envoy.type.v3",
        enums: &[(
            "RateLimitUnit",
            &[
                ("UNKNOWN", 0),
                ("SECOND", 1),
                ("MINUTE", 2),
                ("HOUR", 3),
                ("DAY", 4),
                ("MONTH", 5),
                ("YEAR", 6),
            ],
        )],
        ..FILE
    },
    File {
        path: "envoy/type/v3/token_bucket.proto",
        package: "envoy.type.v3",
        imports: &["google/protobuf/duration.proto", "google/protobuf/wrappers.proto"],
        messages: &[message(
            "TokenBucket",
            &[
                ("max_tokens", 1, U32),
                ("tokens_per_fill", 2, Of(".google.protobuf.UInt32Value")),
                ("fill_interval", 3, Of(".google.protobuf.Duration")),
            ],
        )],
        ..FILE
    },
    File {
        path: "envoy/type/v3/ratelimit_strategy.proto",
        package: "envoy.type.v3",
        imports: &["envoy/type/v3/ratelimit_unit.proto", "envoy/type/v3/token_bucket.proto"],
        messages: &[Message {
            one_of: Some("strategy"),
            enums: &[("BlanketRule", &[("ALLOW_ALL", 0), ("DENY_ALL", 1)])],
            messages: &[message(
                "RequestsPerTimeUnit",
                &[
                    ("requests_per_time_unit", 1, U64),
                    ("time_unit", 2, Kind::Enum(".envoy.type.v3.RateLimitUnit")),
                ],
            )],
            ..message(
                "RateLimitStrategy",
                &[
                    ("blanket_rule", 1, OneOf(&Kind::Enum(".envoy.type.v3.RateLimitStrategy.BlanketRule"))),
                    (
                        "requests_per_time_unit",
                        2,
                        OneOf(&Of(".envoy.type.v3.RateLimitStrategy.RequestsPerTimeUnit")),
                    ),
                    ("token_bucket", 3, OneOf(&Of(".envoy.type.v3.TokenBucket"))),
                ],
            )
        }],
        ..FILE
    },
    File {
        path: "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        package: "envoy.extensions.common.ratelimit.v3",
        imports: &["envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"],
        messages: &[Message {
            messages: &[
                message("Entry", &[("key", 1, Text), ("value", 2, Text)]),
                message(
                    "RateLimitOverride",
                    &[("requests_per_unit", 1, U32), ("unit", 2, Kind::Enum(".envoy.type.v3.RateLimitUnit"))],
                ),
            ],
            ..message(
                "RateLimitDescriptor",
                &[
                    ("entries", 1, Many(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry")),
                    (
                        "limit",
                        2,
                        Of(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride"),
                    ),
                    ("hits_addend", 3, Of(".google.protobuf.UInt64Value")),
                    ("is_negative_hits", 4, Bool),
                ],
            )
        }],
        ..FILE
    },
    File {
        path: "envoy/service/ratelimit/v3/rls.proto",
        package: "envoy.service.ratelimit.v3",
        imports: &[
            "envoy/config/core/v3/base.proto",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "google/protobuf/duration.proto",
            "google/protobuf/struct.proto",
            "google/protobuf/timestamp.proto",
        ],
        messages: &[
            message(
                "RateLimitRequest",
                &[
                    ("domain", 1, Text),
                    ("descriptors", 2, Many(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")),
                    ("hits_addend", 3, U32),
                ],
            ),
            Message {
                enums: &[("Code", &[("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)])],
                messages: &[
                    Message {
                        enums: &[(
                            "Unit",
                            &[
                                ("UNKNOWN", 0),
                                ("SECOND", 1),
                                ("MINUTE", 2),
                                ("HOUR", 3),
                                ("DAY", 4),
                                ("MONTH", 5),
                                ("YEAR", 6),
                                ("WEEK", 7),
                            ],
                        )],
                        ..message(
                            "RateLimit",
                            &[
                                ("name", 3, Text),
                                ("requests_per_unit", 1, U32),
                                (
                                    "unit",
                                    2,
                                    Kind::Enum(
                                        ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
                                    ),
                                ),
                            ],
                        )
                    },
                    Message {
                        one_of: Some("expiration_specifier"),
                        ..message(
                            "Quota",
                            &[
                                ("requests", 1, U32),
                                ("valid_until", 2, OneOf(&Of(".google.protobuf.Timestamp"))),
                                ("id", 3, Text),
                            ],
                        )
                    },
                    message(
                        "DescriptorStatus",
                        &[
                            ("code", 1, Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
                            (
                                "current_limit",
                                2,
                                Of(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"),
                            ),
                            ("limit_remaining", 3, U32),
                            ("duration_until_reset", 4, Of(".google.protobuf.Duration")),
                            ("quota", 5, Of(".envoy.service.ratelimit.v3.RateLimitResponse.Quota")),
                        ],
                    ),
                ],
                ..message(
                    "RateLimitResponse",
                    &[
                        ("overall_code", 1, Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
                        (
                            "statuses",
                            2,
                            Many(".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus"),
                        ),
                        ("response_headers_to_add", 3, Many(".envoy.config.core.v3.HeaderValue")),
                        ("request_headers_to_add", 4, Many(".envoy.config.core.v3.HeaderValue")),
                        ("raw_body", 5, Bytes),
                        ("dynamic_metadata", 6, Of(".google.protobuf.Struct")),
                        ("quota", 7, Of(".envoy.service.ratelimit.v3.RateLimitResponse.Quota")),
                    ],
                )
            },
        ],
        service: Some((
            "RateLimitService",
            "ShouldRateLimit",
            ".envoy.service.ratelimit.v3.RateLimitRequest",
            ".envoy.service.ratelimit.v3.RateLimitResponse",
            false,
        )),
        ..FILE
    },
    File {
        path: "envoy/service/rate_limit_quota/v3/rlqs.proto",
        package: "envoy.service.rate_limit_quota.v3",
        imports: &["envoy/type/v3/ratelimit_strategy.proto", "google/protobuf/duration.proto"],
        messages: &[
            Message {
                messages: &[message(
                    "BucketQuotaUsage",
                    &[
                        ("bucket_id", 1, Of(".envoy.service.rate_limit_quota.v3.BucketId")),
                        ("time_elapsed", 2, Of(".google.protobuf.Duration")),
                        ("num_requests_allowed", 3, U64),
                        ("num_requests_denied", 4, U64),
                    ],
                )],
                ..message(
                    "RateLimitQuotaUsageReports",
                    &[
                        ("domain", 1, Text),
                        (
                            "bucket_quota_usages",
                            2,
                            Many(
                                ".envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage",
                            ),
                        ),
                    ],
                )
            },
            Message {
                messages: &[Message {
                    one_of: Some("bucket_action"),
                    messages: &[
                        message(
                            "QuotaAssignmentAction",
                            &[
                                ("assignment_time_to_live", 2, Of(".google.protobuf.Duration")),
                                ("rate_limit_strategy", 3, Of(".envoy.type.v3.RateLimitStrategy")),
                            ],
                        ),
                        message("AbandonAction", &[]),
                    ],
                    ..message(
                        "BucketAction",
                        &[
                            ("bucket_id", 1, Of(".envoy.service.rate_limit_quota.v3.BucketId")),
                            (
                                "quota_assignment_action",
                                2,
                                OneOf(&Of(
                                    ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction",
                                )),
                            ),
                            (
                                "abandon_action",
                                3,
                                OneOf(&Of(
                                    ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction",
                                )),
                            ),
                        ],
                    )
                }],
                ..message(
                    "RateLimitQuotaResponse",
                    &[(
                        "bucket_action",
                        1,
                        Many(".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction"),
                    )],
                )
            },
            Message {
                messages: &[Message {
                    is_map_entry: true,
                    ..message("BucketEntry", &[("key", 1, Text), ("value", 2, Text)])
                }],
                ..message(
                    "BucketId",
                    &[("bucket", 1, Many(".envoy.service.rate_limit_quota.v3.BucketId.BucketEntry"))],
                )
            },
        ],
        service: Some((
            "RateLimitQuotaService",
            "StreamRateLimitQuotas",
            ".envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports",
            ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse",
            true,
        )),
        ..FILE
    },
];
