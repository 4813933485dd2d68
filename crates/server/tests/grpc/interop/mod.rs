//! Sends the same requests to Tidegate and to envoyproxy/ratelimit with the same configuration.
//!
//! These are the differences. The tests fail if there is another one, or if one of these no longer
//! exists:
//!
//! 1. *Joint decisions.* With `--envoy-consume all-or-none`, a denied request charges nothing, and
//!    a hit that a limit denies is not counted. There, and here by default, each limit of a request
//!    is charged whatever the answer.
//! 2. *Statistics.* If a request does not fit as a whole, only the part beyond the limit counts
//!    there as over it, and the rest as near it. Here all of it counts as over the limit.
//! 3. *Quotas.* In the version on Go's module proxy, a rule in quota mode denies nothing, and its
//!    status is OK when it is used up. Tidegate follows the later definition: the status is over
//!    the limit, and a request is denied when all groups of its quotas are used up.
//! 4. *Refunds.* `is_negative_hits` is unknown there: a refund takes the hits once more.
//! 5. *Counters.* Their names there contain neither the limit nor the unit, and join keys and
//!    values with `_`. So different rules may share a counter. Here each has its own.
//! 6. *Wildcards.* They are compared there with the key and the value joined by `_`, so the
//!    wildcard of one key may match another key.

mod control_plane;
mod differences;
mod examples;
mod gateway;
mod grpcurl;
mod metadata;
pub mod random;
mod statsd;
mod theirs;

use std::time::{SystemTime, UNIX_EPOCH};

use theirs::Theirs;
use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::service::ratelimit::v3::{
    RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
};
use tidegate_server::{Options, descriptors::Consume};

use crate::harness::{Running, scratch};

/// Both servers with these files. Ours has a clock that stands at the time of the start, so that
/// the windows are the same.
fn both(name: &str, files: &[String], consume: Consume) -> (Running, Theirs) {
    let theirs = Theirs::start(&format!("{name}-theirs"), files);
    let directory = scratch(&format!("{name}-ours"));
    for (at, text) in files.iter().enumerate() {
        std::fs::write(directory.join(format!("{at}.yaml")), text).unwrap();
    }
    let options = Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_config: Some(directory),
        envoy_consume: consume,
        ..Options::default()
    };
    (
        Running::start_at(options, Nanos::from_secs(seconds())),
        theirs,
    )
}

/// Seconds since 1970, because envoyproxy/ratelimit has no other clock.
#[allow(
    clippy::disallowed_methods,
    reason = "the other server has the real time"
)]
fn seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A request's code, and that of each descriptor, as in `OVER: OVER 0 of 5/DAY, OK 99 of 100/DAY`;
/// `OK 0` if no limit applied.
fn shown(answer: &RateLimitResponse) -> String {
    let statuses: Vec<String> = answer.statuses.iter().map(status).collect();
    format!("{}: {}", code(answer.overall_code), statuses.join(", "))
}

fn status(status: &DescriptorStatus) -> String {
    let limit = status
        .current_limit
        .as_ref()
        .map_or(String::new(), |limit| {
            let unit = Unit::try_from(limit.unit).map_or("?", |unit| unit.as_str_name());
            let name = if limit.name.is_empty() {
                String::new()
            } else {
                format!(" ({})", limit.name)
            };
            format!(" of {}/{unit}{name}", limit.requests_per_unit)
        });
    format!("{} {}{limit}", code(status.code), status.limit_remaining)
}

fn code(code: i32) -> &'static str {
    if code == i32::from(Code::Ok) {
        "OK"
    } else {
        "OVER"
    }
}
