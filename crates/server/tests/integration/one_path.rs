//! Decisions are made and counted in the same way on every edge, with and without a store.

#![cfg_attr(
    not(feature = "servers"),
    allow(dead_code, reason = "what needs a store is left out")
)]

use crate::harness;

use harness::Running;
use serde_json::json;

const RULES: &str = "
limits:
  - {name: a, limit: 3/1h, algorithm: sliding-log, deny: [mallory]}
  - {name: b, limit: 5/1h, algorithm: sliding-log}
  - {name: trial, limit: 1/1h, algorithm: sliding-log, shadow: true}
";

const COUNTED: [(&str, &str); 6] = [
    ("a", "allowed"),
    ("a", "denied"),
    ("b", "allowed"),
    ("b", "denied"),
    ("trial", "allowed"),
    ("trial", "denied"),
];

fn counts(server: &Running) -> Vec<u64> {
    let name = |(limit, outcome)| {
        format!("tidegate_decisions_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}")
    };
    COUNTED
        .into_iter()
        .map(|of| server.metric(&name(of)))
        .collect()
}

/// Requests of every kind over both edges, with the replies that both kinds of server must give.
fn script(server: &Running) -> Vec<String> {
    let mut seen = Vec::new();
    let all = |key: &str, costs: [u32; 3]| {
        let part = |(limit, cost)| json!({"limit": limit, "key": key, "cost": cost});
        let parts: Vec<_> = ["a", "b", "trial"]
            .into_iter()
            .zip(costs)
            .map(part)
            .collect();
        json!({"all": parts}).to_string()
    };
    let one = |cost: u32| json!({"limit": "a", "key": "k", "cost": cost}).to_string();
    for (path, body) in [
        ("/v1/acquire", one(0)),
        ("/v1/acquire", all("k", [0, 0, 0])),
        ("/v1/acquire", all("k", [1, 1, 1])),
        ("/v1/acquire", all("k", [3, 0, 1])),
        ("/v1/acquire", all("mallory", [0, 1, 1])),
        ("/v1/acquire", all("mallory", [1, 1, 1])),
        ("/v1/peek", all("k", [1, 1, 1])),
        ("/v1/acquire", one(2)),
        ("/v1/refund", one(1)),
    ] {
        let response = server.post(path, &body);
        let answer = response.json();
        let allowed: Vec<_> = match answer["decisions"].as_array() {
            Some(decisions) => decisions.iter().map(|one| one["allowed"].clone()).collect(),
            None => vec![answer["allowed"].clone()],
        };
        seen.push(format!(
            "{path} {body}: {} {allowed:?} {}",
            response.status, answer["remaining"]
        ));
    }
    for command in [
        "ACQUIRE a k 0",
        "ACQUIRE a mallory 0",
        "ACQUIRE a mallory",
        "PEEK a mallory",
        "ACQUIRE a k 2",
        "ACQUIRE a k 1",
    ] {
        let reply = server.resp(command);
        // The times differ between the two clocks.
        let three: Vec<&str> = reply.trim_matches(['[', ']']).split(' ').take(3).collect();
        seen.push(format!("{command}: {three:?}"));
    }
    seen
}

#[test]
fn a_cost_of_zero_is_counted_only_if_it_is_denied() {
    let server = Running::with_rules("cost-zero", RULES);
    let zero = |limit: &str, key: &str| json!({"limit": limit, "key": key, "cost": 0});
    server.post("/v1/acquire", &zero("a", "k").to_string());
    server.post(
        "/v1/acquire",
        &json!({"all": [zero("a", "k"), zero("b", "k"), zero("trial", "k")]}).to_string(),
    );
    server.post(
        "/v1/acquire",
        &json!({"all": [zero("a", "mallory"), zero("b", "k")]}).to_string(),
    );
    server.resp("ACQUIRE a k 0");
    server.resp("ACQUIRE a mallory 0");
    // The key `mallory` is on the deny list.
    assert_eq!(counts(&server), [0, 2, 0, 0, 0, 0]);
    server.post(
        "/v1/acquire",
        &json!({"all": [zero("a", "k"), {"limit": "b", "key": "k"}]}).to_string(),
    );
    assert_eq!(counts(&server), [0, 2, 1, 0, 0, 0]);
}

#[cfg(feature = "servers")]
#[test]
fn servers_with_and_without_a_store_decide_and_count_alike() {
    let redis = tidegate_redis_servers::Server::start(&[]);
    let local = Running::with_rules("one-path-local", RULES);
    let shared = harness::on_store("one-path-shared", &redis.address(), RULES);
    assert_eq!(script(&local), script(&shared));
    assert_eq!(counts(&local), counts(&shared));
    assert_ne!(counts(&local), [0; 6]);
}
