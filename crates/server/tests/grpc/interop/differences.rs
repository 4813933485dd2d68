//! Shows each difference on the list.

use tidegate_envoy::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::descriptors::Consume;

use super::{both, shown};
use crate::client::{Client, hits, one, refund, request};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: pool, value: a, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: x, descriptors: [{key: y, rate_limit: {unit: year, requests_per_unit: 5}}]}
  - {key: x, value: p_y, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: x, value: p_y_q, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: a, value: b_c*, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: a_b, rate_limit: {unit: year, requests_per_unit: 2}}
";

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn each_difference_on_the_list_exists() {
    let (ours, theirs) = both("interop-list", &[CONFIG.to_owned()], Consume::AllOrNone);
    let (mut ours, mut theirs) = (Client::of(ours.grpc), Client::of(theirs.grpc));
    let mut differ = |descriptors: Vec<RateLimitDescriptor>, here: &str, there: &str| {
        let ask = |client: &mut Client| {
            shown(&client.try_ask(request("d", descriptors.clone())).unwrap())
        };
        assert_eq!(
            [ask(&mut ours), ask(&mut theirs)],
            [here, there],
            "{descriptors:?}"
        );
    };
    let user = |value: &str| one("user", value);
    let same = "OK: OK 2 of 3/YEAR";
    // 1: joint decisions.
    differ(vec![user("a")], same, same);
    differ(
        vec![hits(3, user("a"))],
        "OVER: OVER 0 of 3/YEAR",
        "OVER: OVER 0 of 3/YEAR",
    );
    differ(vec![hits(0, user("a"))], same, "OVER: OVER 0 of 3/YEAR");
    differ(
        vec![user("a")],
        "OK: OK 1 of 3/YEAR",
        "OVER: OVER 0 of 3/YEAR",
    );
    let pair = || vec![user("b"), hits(2, one("path", "b"))];
    differ(
        pair(),
        "OVER: OK 3 of 3/YEAR, OVER 0 of 1/YEAR",
        "OVER: OK 2 of 3/YEAR, OVER 0 of 1/YEAR",
    );
    differ(vec![user("b")], same, "OK: OK 1 of 3/YEAR");
    // 3: quotas.
    differ(
        vec![hits(2, one("pool", "a"))],
        "OVER: OVER 0 of 1/YEAR",
        "OK: OK 0 of 1/YEAR",
    );
    // 4: refunds.
    differ(vec![user("c")], same, same);
    differ(
        vec![refund(user("c"))],
        "OK: OK 3 of 3/YEAR",
        "OK: OK 1 of 3/YEAR",
    );
    // 5: counters. `x` = `p_y_q`, and `x` = `p`, `y` = `q`.
    let nested = RateLimitDescriptor {
        entries: [one("x", "p"), one("y", "q")]
            .into_iter()
            .flat_map(|one| one.entries)
            .collect(),
        ..RateLimitDescriptor::default()
    };
    differ(vec![nested], "OK: OK 4 of 5/YEAR", "OK: OK 4 of 5/YEAR");
    differ(
        vec![one("x", "p_y_q")],
        "OK: OK 4 of 5/YEAR",
        "OK: OK 3 of 5/YEAR",
    );
    // 6: wildcards.
    differ(
        vec![one("a_b", "c")],
        "OK: OK 1 of 2/YEAR",
        "OK: OK 0 of 1/YEAR",
    );
}
