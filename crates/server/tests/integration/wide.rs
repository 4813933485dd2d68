//! Limits and costs beyond 32 bits, through every door.

use crate::harness;

use harness::Running;
use serde_json::{Value, json};
use tidegate_core::Nanos;
#[cfg(feature = "servers")]
use tidegate_redis_servers::Server;
use tidegate_server::Options;

const RULES: &str = "
limits:
  - {name: spend, limit: 10_000_000_000/360d, algorithm: fixed-window}
  - {name: small, limit: 1_000/360d, algorithm: fixed-window}
";

fn ask(limit: &str, key: &str, cost: u64) -> String {
    json!({"limit": limit, "key": key, "cost": cost}).to_string()
}

fn large_costs_count_exactly(server: &Running) {
    let post = |path: &str, limit: &str, key: &str, cost: u64| {
        let answer = server.post(path, &ask(limit, key, cost));
        (answer.status, answer.json()["remaining"].clone())
    };
    let left = |units: u64| (200, Value::from(units));
    assert!(
        server
            .resp("ACQUIRE spend alice 5000000000")
            .starts_with("[0 10000000000 5000000000 ")
    );
    assert_eq!(
        post("/v1/acquire", "spend", "alice", 4_999_999_999),
        left(1)
    );
    assert_eq!(post("/v1/acquire", "spend", "alice", 2).0, 429);
    assert!(
        server
            .resp("CHARGE spend alice 5000000000")
            .starts_with("[1 10000000000 0 ")
    );
    assert_eq!(
        post("/v1/acquire", "spend", "alice", 0).0,
        429,
        "14,999,999,999 are in use"
    );
    assert_eq!(post("/v1/refund", "spend", "alice", 5_000_000_000), left(1));
    assert_eq!(
        post("/v1/acquire", "spend", "alice", 10_000_000_001).0,
        429,
        "it can never fit"
    );
    // A lower limit owes what a large charge took.
    assert_eq!(
        post("/v1/charge", "small", "alice", 5_000_000_000).1,
        json!(0)
    );
    assert_eq!(post("/v1/acquire", "small", "alice", 0).0, 429);
    assert_eq!(
        post("/v1/refund", "small", "alice", 1_000_000).1,
        json!(0),
        "no debt is forgotten"
    );
    assert!(
        server
            .resp("ACQUIRE small bob 5000000000")
            .starts_with("[1 1000 1000 -1 ")
    );
    // Both at once, and an estimate that is corrected.
    let both = json!({"all": [{"limit": "spend", "key": "b", "cost": 6_000_000_000_u64}, {"limit": "small", "key": "b"}]});
    assert_eq!(server.post("/v1/acquire", &both.to_string()).status, 200);
    assert_eq!(server.post("/v1/acquire", &both.to_string()).status, 429);
    let reserved = server.post(
        "/v1/reserve",
        &json!({"all": [{"limit": "spend", "key": "c", "cost": 6_000_000_000_u64}]}).to_string(),
    );
    assert_eq!(reserved.status, 200, "{reserved:?}");
    let settled = json!({"id": reserved.json()["id"], "costs": [9_000_000_000_u64]});
    assert_eq!(server.post("/v1/settle", &settled.to_string()).status, 200);
    assert!(
        server.resp("PEEK spend c 1").starts_with("[0 10000000000 "),
        "admitted"
    );
    assert_eq!(post("/v1/acquire", "spend", "c", 1_000_000_000), left(0));
    // A larger number than every double keeps is refused and not rounded.
    let most = "a whole number from 0 to 9007199254740991";
    let refused = server.post("/v1/acquire", &ask("spend", "d", 1 << 53));
    assert!(
        refused.status == 400 && refused.body.contains(most),
        "{refused:?}"
    );
    assert!(
        server
            .resp("ACQUIRE spend d 9007199254740992")
            .contains(most)
    );
    assert_eq!(post("/v1/acquire", "spend", "d", (1 << 53) - 1).0, 429);
    assert_eq!(post("/v1/charge", "spend", "d", (1 << 53) - 1).1, json!(0));
    assert_eq!(post("/v1/charge", "spend", "d", (1 << 53) - 1).1, json!(0));
}

#[test]
fn limits_in_memory_count_beyond_32_bits() {
    large_costs_count_exactly(&Running::with_rules("wide-memory", RULES));
}

#[cfg(feature = "servers")]
#[test]
fn limits_in_a_store_count_beyond_32_bits() {
    let store = Server::start(&[]);
    large_costs_count_exactly(&harness::on_store("wide-store", &store.address(), RULES));
}

#[test]
fn a_store_refuses_a_large_limit_that_its_script_would_round() {
    for algorithm in [
        "sliding-window",
        "sliding-counter",
        "token-bucket",
        "leaky-bucket",
    ] {
        let path = harness::scratch("wide-refused").join("rules.yaml");
        let rules = format!(
            "limits: [{{name: spend, limit: 10_000_000_000/360d, algorithm: {algorithm}}}]"
        );
        std::fs::write(&path, rules).unwrap();
        let store = Some("redis://127.0.0.1:1".to_owned());
        let options = Options {
            rules: Some(path),
            store,
            ..Options::default()
        };
        let refused = Running::try_start_at(options, Nanos::from_secs(1_700_049_600))
            .err()
            .unwrap();
        assert!(
            refused.contains("must be a fixed-window"),
            "{algorithm}: {refused}"
        );
    }
}

#[test]
fn other_rules_are_tried_on_large_costs() {
    let server = Running::with_rules_and("wide-what-if", RULES, |options| {
        options.trace_keys = Some("100%".parse().unwrap());
    });
    for cost in [5_000_000_000, 4_000_000_000] {
        assert_eq!(
            server
                .post("/v1/acquire", &ask("spend", "alice", cost))
                .status,
            200
        );
    }
    let denied = |limit: u64| {
        let rules =
            format!("limits: [{{name: spend, limit: {limit}/360d, algorithm: fixed-window}}]");
        server.post("/v1/what-if", &rules).json()["limits"][0]["would_deny"]["requests"].clone()
    };
    assert_eq!(
        [9_000_000_000, 8_999_999_999, 4_999_999_999, 3_000_000_000].map(denied),
        [0, 1, 1, 2].map(Value::from)
    );
}

#[test]
fn a_state_file_keeps_large_counts() {
    let path = harness::scratch("wide-state").join("state");
    let rules = RULES.replace(
        "small, limit: 1_000/360d, algorithm: fixed-window",
        "small, limit: 5_000_000_000/360d, algorithm: sliding-counter",
    );
    let start = || {
        Running::with_rules_and("wide-state-file", &rules, |options| {
            options.state = Some(path.clone());
        })
    };
    let server = start();
    for limit in ["spend", "small"] {
        assert_eq!(
            server
                .post("/v1/charge", &ask(limit, "alice", 4_500_000_000))
                .status,
            200
        );
    }
    server.stop();
    let server = start();
    assert!(
        server
            .resp("ACQUIRE spend alice 5500000000")
            .starts_with("[0 10000000000 0 ")
    );
    assert!(
        server
            .resp("ACQUIRE small alice 500000000")
            .starts_with("[0 5000000000 0 ")
    );
}
