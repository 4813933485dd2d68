//! Usage that is reported after the work, through every door.

use crate::harness;

use harness::{Resp, Running, frame};
use serde_json::json;
#[cfg(feature = "servers")]
use tidegate_redis_servers::Server;

const RULES: &str = "
limits:
  - {name: tokens, limit: 1000/1d, algorithm: fixed-window}
  - {name: window, limit: 1000/1d, algorithm: sliding-window}
  - {name: bucket, limit: 1000/1d, algorithm: token-bucket}
  - {name: seats, limit: 2, algorithm: concurrency, HOLD}
";

fn rules() -> String {
    RULES.replace("HOLD", "hold: 1h")
}

/// How many of 200 requests pass that ask with a cost of 0 and report this many tokens afterwards.
fn passed_http(server: &Running, limit: &str, key: &str, tokens: u32) -> usize {
    let ask = |cost: u32| json!({"limit": limit, "key": key, "cost": cost}).to_string();
    (0..200)
        .filter(|_| {
            let passes = server.post("/v1/acquire", &ask(0)).status == 200;
            if passes {
                assert_eq!(server.post("/v1/charge", &ask(tokens)).status, 200);
            }
            passes
        })
        .count()
}

fn passed_resp(server: &Running, limit: &str, key: &str, tokens: u32) -> usize {
    (0..200)
        .filter(|_| {
            let passes = server
                .resp(&format!("ACQUIRE {limit} {key} 0"))
                .starts_with("[0");
            if passes {
                server.resp(&format!("CHARGE {limit} {key} {tokens}"));
            }
            passes
        })
        .count()
}

fn every_door_ends_after(server: &Running) {
    for limit in ["tokens", "window", "bucket"] {
        for (tokens, most) in [(100, 11), (300, 4), (1_200, 1)] {
            let key = format!("k{tokens}");
            assert_eq!(
                passed_http(server, limit, &key, tokens),
                most,
                "{limit}, {tokens} over HTTP"
            );
            let key = format!("r{tokens}");
            let passed = passed_resp(server, limit, &key, tokens);
            // A bucket refills while the test runs: a token in 86 s.
            assert_eq!(passed, most, "{limit}, {tokens} over RESP");
        }
        let denied = server.post(
            "/v1/acquire",
            &json!({"limit": limit, "key": "k100", "cost": 0}).to_string(),
        );
        assert_eq!(denied.status, 429, "{limit}");
        assert!(
            denied.json()["retry_after_ms"].as_u64() > Some(0),
            "{limit}: {:?}",
            denied.json()
        );
    }
}

#[test]
fn a_report_after_the_work_is_charged_in_memory() {
    let server = Running::with_rules("charges-memory", &rules());
    every_door_ends_after(&server);
    let count = |outcome: &str| {
        server.metric(&format!(
            "tidegate_decisions_total{{limit=\"tokens\",outcome=\"{outcome}\"}}"
        ))
    };
    // What was reported was done, so it counts as admitted; each question that was turned away
    // counts as denied.
    assert_eq!([count("allowed"), count("denied")], [32, 6 * 200 - 32 + 1]);
}

#[cfg(feature = "servers")]
#[test]
fn a_report_after_the_work_is_charged_in_the_store() {
    let store = Server::start(&[]);
    let server = harness::on_store("charges-store", &store.address(), &rules());
    every_door_ends_after(&server);
}

#[test]
fn permits_are_not_charged_and_a_bad_question_says_why() {
    let server = Running::with_rules("charges-bad", &rules());
    let charge = |body: &str| server.post("/v1/charge", body);
    let held = charge(r#"{"limit":"seats","key":"a","cost":1}"#);
    assert_eq!(held.status, 409);
    assert!(held.body.contains("counts permits"), "{}", held.body);
    assert!(server.resp("CHARGE seats a 1").contains("counts permits"));
    assert_eq!(charge(r#"{"limit":"tokenz","key":"a"}"#).status, 404);
    assert_eq!(
        charge(r#"{"limit":"tokens","key":"a","cost":-1}"#).status,
        400
    );
    assert!(server.resp("CHARGE tokens a x").contains("whole number"));
    // Nothing was charged, and a charge of nothing is a look.
    let look = charge(r#"{"limit":"tokens","key":"a","cost":0}"#);
    assert_eq!(
        (look.status, &look.json()["remaining"]),
        (200, &json!(1_000))
    );
}

const SOFT: &str = "
limits:
  - {name: warns, limit: 100/360d, algorithm: fixed-window, soft: true}
  - {name: denies, limit: 1000/360d, algorithm: fixed-window}
";

fn a_soft_limit_admits_counts_and_says_so(server: &Running) {
    let ask = |limit: &str, cost: u32| {
        let answer = server.post(
            "/v1/acquire",
            &json!({"limit": limit, "key": "a", "cost": cost}).to_string(),
        );
        let header = answer.header("x-tidegate-soft-exceeded").map(str::to_owned);
        let json = answer.json();
        (
            answer.status,
            json["soft"]["exceeded"].as_bool(),
            json["remaining"].as_u64(),
            header,
        )
    };
    let warned = || Some("warns".to_owned());
    assert_eq!(ask("warns", 60), (200, Some(false), Some(40), None));
    assert_eq!(
        ask("warns", 60),
        (200, Some(true), Some(0), warned()),
        "counted beyond the limit"
    );
    assert_eq!(ask("warns", 0), (200, Some(true), Some(0), warned()));
    assert_eq!(ask("denies", 1), (200, None, Some(999), None));
    assert!(server.resp("ACQUIRE warns a 5").starts_with("[0 100 0 -1 "));
    let both = json!({"all": [{"limit": "denies", "key": "b"}, {"limit": "warns", "key": "b", "cost": 101}]});
    let both = server.post("/v1/acquire", &both.to_string());
    assert_eq!(
        (both.status, both.header("x-tidegate-soft-exceeded")),
        (200, Some("warns"))
    );
    assert_eq!(
        server.metric("tidegate_shadow_denials_total{limit=\"warns\"}"),
        4,
        "counted apart"
    );
    // What is charged beyond the limit returns with a refund.
    server.post(
        "/v1/refund",
        &json!({"limit": "warns", "key": "a", "cost": 30}).to_string(),
    );
    assert_eq!(
        ask("warns", 1),
        (200, Some(false), Some(4), None),
        "125 were used"
    );
}

#[test]
fn a_soft_limit_in_memory_warns() {
    a_soft_limit_admits_counts_and_says_so(&Running::with_rules("soft-memory", SOFT));
}

#[cfg(feature = "servers")]
#[test]
fn a_soft_limit_in_a_store_warns() {
    let store = Server::start(&[]);
    a_soft_limit_admits_counts_and_says_so(&harness::on_store(
        "soft-store",
        &store.address(),
        SOFT,
    ));
}

#[test]
fn a_key_is_reported_once_for_each_threshold_and_period() {
    let rules =
        "limits: [{name: t, limit: 10/1m, algorithm: fixed-window, thresholds: [80%, 100%]}]";
    let server = Running::with_rules("thresholds", rules);
    let take = |key: &str, cost: u32| {
        server
            .post(
                "/v1/charge",
                &json!({"limit": "t", "key": key, "cost": cost}).to_string(),
            )
            .status
    };
    let events = |percent: u32| {
        server.metric(&format!(
            "tidegate_threshold_events_total{{limit=\"t\",threshold=\"{percent}%\"}}"
        ))
    };
    for cost in [7, 1, 1] {
        assert_eq!(take("a", cost), 200);
    }
    assert_eq!(events(80), 1);
    take("a", 50);
    take("b", 10);
    server.resp("ACQUIRE t a 1");
    assert_eq!([events(80), events(100)], [2, 2]);
    server.resp("BLOCK t c");
    server.resp("ACQUIRE t c 9");
    assert_eq!([events(80), events(100)], [2, 2], "a block is no use");
    server.advance(std::time::Duration::from_mins(1));
    take("a", 8);
    assert_eq!([events(80), events(100)], [3, 2], "a new window");
}

#[test]
fn a_flood_of_keys_that_reach_a_threshold_is_bounded_and_ends_with_the_period() {
    const MOST: usize = 1 << 16;
    let rules =
        "limits: [{name: t, limit: 10/1m, algorithm: fixed-window, thresholds: [80%, 100%]}]";
    let server = Running::with_rules("thresholds-flood", rules);
    let mut client = Resp::connect(server.resp);
    let keys: Vec<usize> = (0..MOST + 10).collect();
    for keys in keys.chunks(1_000) {
        let commands: Vec<u8> = keys
            .iter()
            .flat_map(|key| frame(&format!("ACQUIRE t k{key} 8")))
            .collect();
        client.send(&commands);
        for _ in keys {
            assert!(client.reply().starts_with("[0 "));
        }
    }
    let events = || server.metric("tidegate_threshold_events_total{limit=\"t\",threshold=\"80%\"}");
    assert_eq!(events(), MOST as u64);
    server.advance(std::time::Duration::from_mins(1));
    client.ask("ACQUIRE t another 8");
    assert_eq!(events(), MOST as u64 + 1);
}
