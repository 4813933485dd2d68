//! The decisions of limits over time, and the overview of all limits, as clients see them.

mod harness;

use std::time::Duration;

use harness::Running;
use serde_json::{Value, json};
use tidegate_redis_servers::eventually;

const RULES: &str = "
limits:
  - {name: per-user, limit: 2/1h, algorithm: sliding-log, max_keys: 100}
  - {name: trial, limit: 1/1h, shadow: true}
  - {name: all, limit: 1000/1h, global: true}
";

fn sum(list: &Value) -> u64 {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
}

/// A server whose counters have been read once, so that later requests appear in the following seconds.
fn watched(name: &str) -> Running {
    let server = Running::with_rules(name, RULES);
    let begun = || server.get("/v1/history?limit=all").json()["end"] == 1_700_049_600;
    eventually("the history has begun", begun);
    server
}

#[test]
fn the_history_of_a_limit_has_its_decisions_per_second() {
    let server = watched("history-limit");
    for _ in 0..3 {
        server.resp("ACQUIRE per-user alice");
        server.resp("ACQUIRE trial alice");
    }
    server.advance(Duration::from_secs(10));
    let of = |query: &str| server.get(&format!("/v1/history?{query}")).json();
    eventually("the seconds have been looked at", || sum(&of("limit=per-user")["denied"]) == 1);
    let told = of("limit=per-user");
    assert_eq!((sum(&told["allowed"]), sum(&told["denied"]), sum(&told["errors"])), (2, 1, 0));
    assert_eq!((&told["step_seconds"], &told["end"]), (&json!(1), &json!(1_700_049_610)));
    assert_eq!(told["memory"]["max_bytes"], 64 << 20);
    let trial = of("limit=trial");
    assert_eq!((sum(&trial["allowed"]), sum(&trial["shadow_denied"])), (1, 2));
    let steps = of("limit=per-user&step=10");
    assert_eq!((&steps["step_seconds"], sum(&steps["allowed"]), sum(&steps["denied"])), (&json!(10), 2, 1));
    assert_eq!(of("limit=per-user&n=3")["allowed"].as_array().unwrap().len(), 3);
}

#[test]
fn the_time_that_decisions_of_a_limit_took_is_sampled() {
    let server = watched("history-sample");
    server.resp("ACQUIRE per-user alice");
    server.resp("ACQUIRE per-user alice");
    server.resp("ACQUIRE all");
    server.advance(Duration::from_secs(1));
    let sample = |limit: &str| {
        let told = server.get(&format!("/v1/history?limit={limit}")).json();
        let buckets = told["latency_seconds"].as_array().unwrap().len() + 1;
        let points = told["latency_sample"].as_array().unwrap().clone();
        assert!(points.iter().all(|point| point.as_array().unwrap().len() == buckets), "{told}");
        points.iter().map(sum).sum::<u64>()
    };
    eventually("the second has been looked at", || sample("per-user") == 2);
    assert_eq!((sample("all"), sample("trial")), (1, 0), "a global limit is measured, too");
}

#[test]
fn latencies_are_returned_by_bucket() {
    let server = watched("history-latency");
    server.resp("ACQUIRE per-user alice");
    server.post("/v1/acquire", r#"{"limit":"per-user","key":"alice"}"#);
    server.advance(Duration::from_secs(1));
    let answers = || {
        let told = server.get("/v1/history").json();
        let buckets = told["latency_seconds"].as_array().unwrap().len() + 1;
        let points = told["answers"].as_array().unwrap().clone();
        assert!(points.iter().all(|point| point.as_array().unwrap().len() == buckets));
        points.iter().map(sum).sum::<u64>()
    };
    eventually("both answers are in the history", || answers() == 2);
}

#[test]
fn the_overview_has_each_limit_with_its_rule_and_its_counts() {
    let server = watched("history-overview");
    for key in ["alice", "alice", "alice", "bob"] {
        server.resp(&format!("ACQUIRE per-user {key}"));
    }
    server.advance(Duration::from_secs(10));
    let limit = || server.get("/v1/limits?recent=20").json()["limits"][0].clone();
    eventually("the rates are known", || limit()["denied_per_second"] == 0.1);
    let told = limit();
    let expected = json!({
        "name": "per-user", "algorithm": "sliding-log", "quota": "2/1h", "options": "", "global": false, "shadow": false,
        "sharing": "local", "keys": 2, "max_keys": told["max_keys"], "bytes": told["bytes"], "allowed": 3, "delayed": 0,
        "denied": 1, "shadow_denied": 0, "errors": 0, "admitted_per_second": 0.3, "denied_per_second": 0.1,
        "recent": told["recent"], "heaviest": {"key": "alice", "share": 0.75},
    });
    assert_eq!(told, expected);
    assert_eq!((sum(&told["recent"]["admitted"]), sum(&told["recent"]["denied"])), (3, 1));
    let all = server.get("/v1/limits").json();
    let names: Vec<_> = all["limits"].as_array().unwrap().iter().map(|limit| &limit["name"]).collect();
    assert_eq!(names, ["per-user", "trial", "all"]);
    assert_eq!((&all["store"], &all["limits"][0]["recent"]), (&Value::Null, &Value::Null));
    assert_eq!(all["limits"][2]["heaviest"], Value::Null, "a global limit has no keys");
}

#[cfg(feature = "servers")]
#[test]
fn decisions_without_the_store_count_as_errors_for_single_and_joint_decisions() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let server = harness::on_store("history-errors-store", &store.address(), RULES);
    let limit = |at: usize| server.get("/v1/limits").json()["limits"][at].clone();
    assert_eq!(server.resp("ACQUIRE per-user alice"), "[0 2 1 -1 3600000]");
    assert_eq!((&limit(0)["errors"], &limit(0)["sharing"]), (&json!(0), &json!("exact")));
    assert_eq!(server.get("/v1/limits").json()["store"]["health"], "up");
    drop(store);
    eventually("it is known to be down", || server.get("/v1/limits").json()["store"]["health"] == "down");
    server.resp("ACQUIRE per-user bob");
    let both = r#"{"all":[{"limit":"per-user","key":"bob"},{"limit":"all"}]}"#;
    assert_eq!(server.post("/v1/acquire", both).status, 200);
    assert_eq!((&limit(0)["errors"], &limit(2)["errors"]), (&json!(2), &json!(1)));
    assert_eq!(
        (&limit(0)["allowed"], &limit(2)["allowed"]),
        (&json!(3), &json!(1)),
        "these are counted as ever"
    );
}

#[test]
fn an_invalid_request_is_answered_with_advice() {
    let server = Running::with_rules("history-errors", RULES);
    for (path, status, why) in [
        ("/v1/history?limit=per-usr", 404, "the limits are: per-user"),
        ("/v1/history?limit=per-user&step=5", 400, "`step` must be 1 or 10"),
        ("/v1/history?limit=per-user&n=0", 400, "`n` must be a whole number"),
        ("/v1/limits?recent=901", 400, "from 0 to 900"),
        ("/v1/limits?all=1", 400, "no field `all`: recent"),
        ("/v1/limits?recent=", 400, "from 0 to 900"),
        ("/v1/limits?recent=-1", 400, "from 0 to 900"),
        ("/v1/limits?recent=x", 400, "from 0 to 900"),
        ("/v1/history?n=1&n=2", 400, "`n` twice"),
        ("/v1/history?limit=%FF", 400, "not UTF-8"),
    ] {
        let refused = server.get(path);
        assert!(refused.status == status && refused.body.contains(why), "{path}: {refused:?}");
    }
    for path in
        ["/v1/history?limit=per%2Duser&n=3", "/v1/history?&n=1&limit=per-user", "/v1/limits?recent=900"]
    {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let off = Running::with_rules_and("history-off", RULES, |options| options.history_memory = 0);
    for path in ["/v1/history", "/v1/history?limit=all"] {
        let refused = off.get(path);
        assert!(refused.status == 409 && refused.body.contains("--history-memory"), "{refused:?}");
    }
    let limit = &off.get("/v1/limits").json()["limits"][0];
    assert_eq!((&limit["allowed"], &limit["denied_per_second"]), (&json!(0), &Value::Null));
}
