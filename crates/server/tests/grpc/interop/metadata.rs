//! The metadata of answers, compared where both have it.
//!
//! The version on Go's module proxy has the request's part of it. What rules add came later, and
//! `quotaModeEnabled` and `quotaModeViolations` were removed.

use serde_json::Value;
use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    r#type::v3::RateLimitUnit,
};
use tidegate_server::{
    Options,
    descriptors::{Consume, Modes},
};

use super::{seconds, theirs::Theirs};
use crate::{
    client::{Client, hits, metadata, one, request},
    harness::Running,
    rls::options,
};

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: pool, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// Protobuf's Go library writes one space or two between fields, at random.
fn single_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn a_request_is_described_in_the_same_way() {
    let theirs = Theirs::start_with(
        "interop-metadata",
        &[CONFIG.to_owned()],
        &[("RESPONSE_DYNAMIC_METADATA", "true")],
    );
    let envoy_modes = Modes {
        metadata: true,
        ..Modes::default()
    };
    let ours = Options {
        envoy_modes,
        envoy_consume: Consume::Each,
        ..options("interop-metadata-ours", CONFIG)
    };
    let ours = Running::start_at(ours, Nanos::from_secs(seconds()));
    let mut clients = [Client::of(ours.grpc), Client::of(theirs.grpc)];
    let changed = |number| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: number,
            unit: RateLimitUnit::Day.into(),
        }),
        ..one("user", "a=b \u{e9}")
    };
    let several = || {
        [one("user", ""), one("x", "y")]
            .map(|one| one.entries)
            .concat()
    };
    let several = || RateLimitDescriptor {
        entries: several(),
        ..RateLimitDescriptor::default()
    };
    for (domain, addend, descriptors) in [
        ("shop", 0, vec![one("user", "ada")]),
        (
            "shop",
            7,
            vec![
                one("user", "ada"),
                hits(0, one("pool", "p")),
                hits(5, one("none", "n")),
            ],
        ),
        ("shop", 1, vec![changed(5), changed(0), several()]),
        (
            "other",
            2,
            vec![one("user", "ada"), RateLimitDescriptor::default()],
        ),
    ] {
        let [mut here, mut there] = clients.each_mut().map(|client| {
            let mut asked = request(domain, descriptors.clone());
            asked.hits_addend = addend;
            metadata(&client.try_ask(asked).unwrap())
        });
        for described in there["descriptors"].as_array_mut().unwrap() {
            if let Some(Value::String(limit)) = described.get_mut("limit") {
                *limit = single_spaces(limit);
            }
        }
        let there = there.as_object_mut().unwrap();
        assert!(
            there.remove("quotaModeEnabled").is_some(),
            "a later version: compare what rules add, too"
        );
        there.remove("quotaModeViolations");
        here.as_object_mut().unwrap().remove("passedBackends");
        assert_eq!(here.as_object().unwrap(), there, "{descriptors:?}");
    }
}
