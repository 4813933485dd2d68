//! The promises of the HTTP interface, over real sockets.

#[allow(dead_code, reason = "the test calls `run`")]
#[path = "../../examples/embed.rs"]
mod embed;
use crate::harness;

use std::{collections::BTreeSet, time::Duration};

use harness::{Http, Response, Running};
use serde_json::{Value, json};
use tidegate_redis_servers::eventually;
use tidegate_server::http::{MAX_ALL, MAX_BODY, Plane, ROUTES};

const RULES: &str = "
limits:
  - {name: per-user, limit: 3/1m, algorithm: sliding-log}
  - {name: bucket, limit: 60/1m, algorithm: token-bucket, burst: 2}
  - {name: seats, limit: 2, algorithm: concurrency}
  - {name: paced, limit: 2/1s, algorithm: leaky-bucket, max_wait: 500ms}
  - {name: everyone, limit: 4/500ms, algorithm: fixed-window, global: true}
  - {name: trial, limit: 1/1m, algorithm: sliding-log, shadow: true}
  - name: logins
    limit: 1/10m
    algorithm: sliding-log
    overrides: {admin: 5/1m}
    deny: [mallory]
";

fn acquire(server: &Running, body: &str) -> Response {
    server.post("/v1/acquire", body)
}

#[test]
fn an_admission_is_200_with_the_decision_and_the_header_fields_of_the_draft() {
    let server = Running::with_rules("http-admission", RULES);
    let response = acquire(&server, r#"{"limit":"per-user","key":"alice","cost":1}"#);
    assert_eq!(response.status, 200);
    assert_eq!(
        response.json(),
        json!({"allowed": true, "limit_name": "per-user", "limit": 3, "remaining": 2, "retry_after_ms": null,
               "reset_after_ms": 60_000, "delay_ms": 0})
    );
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(
        response.header("ratelimit-policy"),
        Some("\"per-user\";q=3;w=60")
    );
    assert_eq!(response.header("ratelimit"), Some("\"per-user\";r=2;t=60"));
    assert_eq!(response.header("retry-after"), None);
}

#[test]
fn at_most_takes_what_is_available() {
    let server = Running::with_rules("http-at-most", RULES);
    let ask = |body: &str| acquire(&server, body);
    let first = ask(r#"{"limit":"per-user","key":"alice","at_most":2}"#);
    assert_eq!(first.status, 200);
    assert_eq!(
        first.json(),
        json!({"allowed": true, "limit_name": "per-user", "limit": 3, "remaining": 1, "retry_after_ms": null,
               "reset_after_ms": 60_000, "delay_ms": 0, "taken": 2})
    );
    for (taken, status) in [(1, 200), (0, 429)] {
        let response = ask(r#"{"limit":"per-user","key":"alice","at_most":9}"#);
        assert_eq!(
            (response.status, &response.json()["taken"]),
            (status, &taken.into())
        );
    }
    // The client may use all of a shadow limit.
    for _ in 0..2 {
        let response = ask(r#"{"limit":"trial","key":"alice","at_most":9}"#);
        assert_eq!(
            (response.status, &response.json()["taken"]),
            (200, &9.into())
        );
    }
    for body in [
        r#"{"limit":"per-user","key":"bob","at_most":2,"cost":2}"#,
        r#"{"limit":"per-user","key":"bob","at_most":2,"id":"one"}"#,
        r#"{"all":[{"limit":"per-user","key":"bob"}],"at_most":2}"#,
    ] {
        let response = ask(body);
        assert_eq!(
            (response.status, &response.json()["pointer"]),
            (400, &"#/at_most".into()),
            "{body}"
        );
    }
    let peek = server.post(
        "/v1/peek",
        r#"{"limit":"per-user","key":"bob","at_most":2}"#,
    );
    assert_eq!(peek.status, 400);
    let peek = server.post("/v1/peek", r#"{"limit":"per-user","key":"bob"}"#);
    assert_eq!(peek.json()["remaining"], 3);
}

#[test]
fn the_first_of_several_limits_that_admits_takes_the_cost() {
    let server = Running::with_rules("http-any", RULES);
    let asks = r#"[{"limit":"per-user","key":"alice"},{"limit":"logins","key":"admin"},{"limit":"trial","key":"alice"}]"#;
    let ask = |path: &str| {
        let response = server.post(path, &format!(r#"{{"any":{asks}}}"#));
        let told = response.json();
        let names = told["decisions"].as_array().unwrap().iter();
        let names: Vec<_> = names
            .map(|one| one["limit_name"].as_str().unwrap().to_owned())
            .collect();
        (response.status, told["limit_name"].clone(), names)
    };
    for (count, limit) in [(3, "per-user"), (5, "logins")] {
        for _ in 0..count {
            let (status, name, names) = ask("/v1/acquire");
            assert_eq!((status, name), (200, limit.into()));
            // A shadow limit counts what others admit, and never takes their place.
            assert_eq!(names, [limit, "trial"]);
        }
    }
    // The denial that ends first decides how long to wait.
    let (status, name, names) = ask("/v1/acquire");
    assert_eq!((status, name), (429, "per-user".into()));
    assert_eq!(names, ["per-user", "logins", "trial"]);
    assert_eq!(ask("/v1/peek").0, 200, "a peek is no denied request");
    server.advance(Duration::from_mins(1));
    let (status, name, _) = ask("/v1/peek");
    assert_eq!((status, name), (200, "per-user".into()));
    assert_eq!(ask("/v1/acquire").1, "per-user");
    let counted = |limit: &str, outcome: &str| {
        server.metric(&format!(
            "tidegate_decisions_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(
        (
            counted("per-user", "allowed"),
            counted("per-user", "denied")
        ),
        (4, 1)
    );
    assert_eq!(
        (counted("logins", "allowed"), counted("logins", "denied")),
        (5, 1)
    );
    // Two questions about one key are decided each by itself.
    let same = r#"{"any":[{"limit":"bucket","key":"bob","cost":3},{"limit":"bucket","key":"bob","cost":2}]}"#;
    assert_eq!(acquire(&server, same).json()["remaining"], 0);
    for (body, place) in [
        (r#"{"any":[],"key":"a"}"#, "#"),
        (r#"{"any":[]}"#, "#/any"),
        (r#"{"any":[{"limit":"none","key":"a"}]}"#, "#/any/0/limit"),
        (r#"{"any":[{"limit":"everyone"}],"id":"one"}"#, "#/id"),
        (r#"{"any":[{"limit":"everyone"}],"at_most":1}"#, "#/at_most"),
        (
            r#"{"any":[{"limit":"everyone"}],"all":[{"limit":"everyone"}]}"#,
            "#/any",
        ),
    ] {
        assert_eq!(acquire(&server, body).json()["pointer"], place, "{body}");
    }
}

#[test]
fn an_answer_ends_with_a_line_feed_and_the_root_leads_to_the_dashboard() {
    let server = Running::with_rules("http-line", RULES);
    let key = r#"{"limit":"per-user","key":"alice"}"#;
    let both = r#"{"all":[{"limit":"trial","key":"a"},{"limit":"everyone"}]}"#;
    for (path, body) in [
        ("/v1/acquire", key),
        ("/v1/acquire", both),
        ("/v1/acquire", "{"),
        ("/v1/peek", key),
        ("/v1/refund", key),
        (
            "/v1/reserve",
            r#"{"ttl":"1m","all":[{"limit":"bucket","key":"a","cost":1}]}"#,
        ),
        ("/v1/block", key),
        ("/v1/reset", key),
    ] {
        let answer = server.post(path, body).body;
        assert!(answer.ends_with("}\n"), "{path} {body}: {answer}");
    }
    for path in [
        "/v1/limits",
        "/v1/rules",
        "/healthz",
        "/openapi.json",
        "/nowhere",
    ] {
        let answer = server.get(path).body;
        assert!(answer.ends_with("}\n"), "{path}: {answer}");
    }
    let mut data = Http::connect(server.http);
    let root = data.send("GET", "/", "");
    let detail = root.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(root.status, 404);
    assert!(
        detail.contains(&format!("the dashboard is at http://{}/", server.admin)),
        "{detail}"
    );
}

#[test]
fn a_denial_is_429_and_its_retry_after_is_exact_and_rounded_up() {
    let server = Running::with_rules("http-denial", RULES);
    let ask = r#"{"limit":"bucket","key":"alice"}"#;
    assert_eq!(
        [acquire(&server, ask).status, acquire(&server, ask).status],
        [200, 200]
    );
    server.advance(Duration::from_nanos(1));
    let denied = acquire(&server, ask);
    assert_eq!(denied.status, 429);
    let body = denied.json();
    assert_eq!(
        (&body["allowed"], &body["remaining"]),
        (&json!(false), &json!(0))
    );
    // 999,999,999 ns become 1,000 ms and 1 s: a wait is never too short.
    assert_eq!(
        (&body["retry_after_ms"], denied.header("retry-after")),
        (&json!(1_000), Some("1"))
    );
    server.advance(Duration::from_nanos(999_999_998));
    assert_eq!(acquire(&server, ask).status, 429);
    server.advance(Duration::from_nanos(1));
    assert_eq!(acquire(&server, ask).status, 200);
}

#[test]
fn a_cost_that_can_never_fit_is_denied_without_a_time() {
    let server = Running::with_rules("http-never", RULES);
    let denied = acquire(&server, r#"{"limit":"per-user","key":"alice","cost":4}"#);
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(denied.json()["retry_after_ms"], json!(null));
}

#[test]
fn several_limits_all_admit_or_none_is_charged() {
    let server = Running::with_rules("http-all", RULES);
    let both = r#"{"all":[{"limit":"per-user","key":"alice"},{"limit":"everyone","cost":2}]}"#;
    let first = acquire(&server, both);
    assert_eq!(first.status, 200);
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"per-user\";q=3;w=60, \"everyone\";q=4")
    );
    // Both have two left, so the first is named.
    assert_eq!(first.json()["limit_name"], "per-user");
    assert_eq!(acquire(&server, both).json()["limit_name"], "everyone");
    let denied = acquire(&server, both);
    assert_eq!(denied.status, 429);
    let body = denied.json();
    assert_eq!(
        (&body["limit_name"], &body["allowed"]),
        (&json!("everyone"), &json!(false))
    );
    assert_eq!(body["decisions"].as_array().unwrap().len(), 2);
    assert_eq!(
        (
            &body["decisions"][0]["allowed"],
            &body["decisions"][1]["allowed"]
        ),
        (&json!(true), &json!(false))
    );
    assert_eq!(denied.header("retry-after"), Some("1"));
    // Alice was not charged for the request that `everyone` denied.
    let alice = server
        .post("/v1/peek", r#"{"limit":"per-user","key":"alice"}"#)
        .json();
    assert_eq!(alice["remaining"], 1);
}

#[test]
fn a_peek_takes_nothing_and_says_what_is_left() {
    let server = Running::with_rules("http-peek", RULES);
    let peek = |cost: u32| {
        let response = server.post(
            "/v1/peek",
            &format!(r#"{{"limit":"per-user","key":"alice","cost":{cost}}}"#),
        );
        assert_eq!(response.status, 200);
        let body = response.json();
        (
            body["allowed"].as_bool().unwrap(),
            body["remaining"].as_u64().unwrap(),
        )
    };
    assert_eq!(
        [peek(1), peek(3), peek(4)],
        [(true, 3), (true, 3), (false, 3)]
    );
    let taken = acquire(&server, r#"{"limit":"per-user","key":"alice","cost":3}"#).json();
    assert_eq!(taken["remaining"], 0);
    assert_eq!([peek(0), peek(1)], [(true, 0), (false, 0)]);
    let all = r#"{"all":[{"limit":"per-user","key":"alice"},{"limit":"everyone"}]}"#;
    let both = server.post("/v1/peek", all);
    assert_eq!(
        (both.status, &both.json()["limit_name"]),
        (200, &json!("per-user"))
    );
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="per-user",outcome="allowed"}"#),
        1
    );
}

#[test]
fn a_refund_returns_units_and_frees_a_permit_for_the_next_request() {
    let server = Running::with_rules("http-refund", RULES);
    let seat = r#"{"limit":"seats","key":"room"}"#;
    assert_eq!(
        [acquire(&server, seat).status, acquire(&server, seat).status],
        [200, 200]
    );
    let full = acquire(&server, seat);
    assert_eq!((full.status, full.header("retry-after")), (429, None));
    assert_eq!(
        full.header("ratelimit-policy"),
        Some("\"seats\";q=2;qu=\"concurrent-requests\"")
    );
    // The time until a permit is given back is unknown.
    assert_eq!(
        (full.header("ratelimit"), &full.json()["reset_after_ms"]),
        (Some("\"seats\";r=0"), &json!(null))
    );
    let refunded = server.post("/v1/refund", seat);
    assert_eq!(
        (refunded.status, &refunded.json()["remaining"]),
        (200, &json!(1))
    );
    assert_eq!(acquire(&server, seat).status, 200);
    // A refund never exceeds the use.
    server.post("/v1/refund", r#"{"limit":"seats","key":"room","cost":100}"#);
    let rest = server.post("/v1/peek", seat).json();
    assert_eq!(rest["remaining"], 2);
}

#[test]
fn a_blocked_key_is_denied_for_its_time_or_until_it_is_unblocked() {
    let server = Running::with_rules("http-block", RULES);
    let ask = r#"{"limit":"per-user","key":"eve"}"#;
    let block = server.post(
        "/v1/block",
        r#"{"limit":"per-user","key":"eve","for":"30s"}"#,
    );
    assert_eq!(
        (block.status, block.json()),
        (200, json!({"blocked": true}))
    );
    let denied = acquire(&server, ask);
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, Some("30"))
    );
    assert_eq!(
        acquire(&server, r#"{"limit":"per-user","key":"alice"}"#).status,
        200
    );
    server.advance(Duration::from_secs(30));
    assert_eq!(acquire(&server, ask).status, 200);
    server.post("/v1/block", r#"{"limit":"per-user","key":"eve"}"#);
    server.advance(Duration::from_secs(1_000_000));
    let denied = acquire(&server, ask);
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    let unblock = || server.post("/v1/unblock", ask).json();
    assert_eq!(
        [unblock(), unblock()],
        [json!({"unblocked": true}), json!({"unblocked": false})]
    );
    assert_eq!(acquire(&server, ask).status, 200);
}

#[test]
fn a_key_on_the_deny_list_is_always_denied_and_only_the_rules_can_change_that() {
    let server = Running::with_rules("http-deny", RULES);
    let mallory = r#"{"limit":"logins","key":"mallory"}"#;
    assert_eq!(acquire(&server, mallory).status, 429);
    let refused = server.post("/v1/unblock", mallory);
    assert_eq!(refused.status, 409);
    assert!(
        refused
            .body
            .contains("deny list of limit `logins`: remove it from the rules"),
        "{}",
        refused.body
    );
    // A block by request does not shorten it, and the answer says so.
    let block = r#"{"limit":"logins","key":"mallory","for":"1s"}"#;
    let blocked = server.post("/v1/block", block);
    assert_eq!(
        (blocked.status, blocked.json()),
        (200, json!({"blocked": true, "deny_listed": true}))
    );
    server.advance(Duration::from_secs(2));
    assert_eq!(acquire(&server, mallory).status, 429);
}

/// The key's quota and what is left of it, by the header fields.
fn told(server: &Running, limit: &str, key: &str) -> (String, u64) {
    let peek = server.post(
        "/v1/peek",
        &format!(r#"{{"limit":"{limit}","key":"{key}"}}"#),
    );
    let policy = peek
        .header("ratelimit-policy")
        .unwrap_or_default()
        .to_owned();
    (
        policy.split_once(';').unwrap().1.to_owned(),
        peek.json()["remaining"].as_u64().unwrap(),
    )
}

#[test]
fn an_operators_quota_for_a_key_keeps_what_it_used_and_ends_in_time_or_by_request() {
    let server = Running::with_rules("http-runtime-override", RULES);
    let alice = r#"{"limit":"per-user","key":"alice"}"#;
    assert_eq!(acquire(&server, alice).status, 200);
    let body = r#"{"limit":"per-user","key":"alice","quota":"10/1m","for":"30s"}"#;
    let done = server.post("/v1/override", body);
    assert_eq!(
        (done.status, done.json()),
        (200, json!({"overridden": true}))
    );
    assert_eq!(told(&server, "per-user", "alice"), ("q=10;w=60".into(), 9));
    assert_eq!(told(&server, "per-user", "bob"), ("q=3;w=60".into(), 3));
    for _ in 0..5 {
        assert_eq!(acquire(&server, alice).status, 200);
    }
    let rules = server.get("/v1/rules").json();
    let until = 1_700_049_600 + 30;
    assert_eq!(
        rules["limits"][0]["runtime_overrides"],
        json!({"alice": {"quota": "10/1m", "until": until}})
    );
    // One key may have an override in the rules, and another quota by an operator for a while.
    server.post(
        "/v1/override",
        r#"{"limit":"logins","key":"admin","quota":"7/2m"}"#,
    );
    assert_eq!(told(&server, "logins", "admin"), ("q=7;w=120".into(), 7));
    server.advance(Duration::from_secs(30));
    // The server looks once a second, by the machine's clock; what is due then is over.
    eventually("the override ends", || {
        told(&server, "per-user", "alice") == ("q=3;w=60".into(), 0)
    });
    assert_eq!(
        acquire(&server, alice).status,
        429,
        "what it used still counts"
    );
    assert_eq!(
        told(&server, "logins", "admin"),
        ("q=7;w=120".into(), 7),
        "it has no end"
    );
    let end = || {
        server
            .post(
                "/v1/override",
                r#"{"limit":"logins","key":"admin","end":true}"#,
            )
            .json()
    };
    assert_eq!(
        [end(), end()],
        [json!({"ended": true}), json!({"ended": false})]
    );
    assert_eq!(
        told(&server, "logins", "admin"),
        ("q=5;w=60".into(), 5),
        "the rules' own override is back"
    );
}

#[test]
fn an_operators_quota_goes_with_blocks_and_joint_decisions() {
    let server = Running::with_rules("http-override-pairs", RULES);
    server.post("/v1/block", r#"{"limit":"per-user","key":"eve"}"#);
    server.post(
        "/v1/override",
        r#"{"limit":"per-user","key":"eve","quota":"10/1m"}"#,
    );
    let eve = r#"{"limit":"per-user","key":"eve"}"#;
    assert_eq!(
        acquire(&server, eve).status,
        429,
        "a block goes before a quota"
    );
    server.post("/v1/unblock", eve);
    let both = r#"{"all":[{"limit":"per-user","key":"eve","cost":9},{"limit":"seats","key":"room","cost":3}]}"#;
    assert_eq!(acquire(&server, both).status, 429);
    assert_eq!(
        told(&server, "per-user", "eve").1,
        10,
        "what another limit denies is not spent"
    );
    // A quota that is none is refused, and the one before holds on.
    assert_eq!(
        server
            .post(
                "/v1/override",
                r#"{"limit":"per-user","key":"eve","quota":"0"}"#
            )
            .status,
        400
    );
    assert_eq!(told(&server, "per-user", "eve").1, 10);
    server.post(
        "/v1/override",
        r#"{"limit":"per-user","key":"eve","quota":"0/1m"}"#,
    );
    assert_eq!(acquire(&server, eve).status, 429);
    // Operators may override a thousand keys of a limit, and no more.
    let ask = |key: u32| format!(r#"{{"limit":"logins","key":"k{key}","quota":"9/1m"}}"#);
    let mut connection = server.connect_for("/v1/override");
    for key in 0..1_000 {
        assert_eq!(
            connection.send("POST", "/v1/override", &ask(key)).status,
            200
        );
    }
    let full = connection.send("POST", "/v1/override", &ask(1_000));
    assert!(
        full.status == 409 && full.body.contains("overridden already"),
        "{}",
        full.body
    );
    assert_eq!(
        connection.send("POST", "/v1/override", &ask(7)).status,
        200,
        "one that is there may change"
    );
}

#[test]
fn an_override_has_its_own_quota_in_the_decision_and_the_headers() {
    let server = Running::with_rules("http-override", RULES);
    let admin = acquire(&server, r#"{"limit":"logins","key":"admin"}"#);
    assert_eq!(
        (&admin.json()["limit"], &admin.json()["remaining"]),
        (&json!(5), &json!(4))
    );
    assert_eq!(
        admin.header("ratelimit-policy"),
        Some("\"logins\";q=5;w=60")
    );
    let other = acquire(&server, r#"{"limit":"logins","key":"bob"}"#);
    assert_eq!(
        (&other.json()["limit"], other.header("ratelimit-policy")),
        (&json!(1), Some("\"logins\";q=1;w=600"))
    );
}

#[test]
fn a_calendar_limit_counts_down_to_the_end_of_its_period_also_with_an_override() {
    let rules = "
limits:
  - name: plan
    algorithm: fixed-window
    limit: 2/month
    time_zone: Europe/Berlin
    overrides: {admin: 5/month, bob: {limit: 1/week}}
";
    // `w` of a month is the mean of all months. It is noon of Wednesday, the 15th of November 2023,
    // in UTC. In Berlin it is an hour later, in winter.
    let server = Running::with_rules("http-calendar", rules);
    let fields = |key: &str| {
        let response = acquire(&server, &format!(r#"{{"limit":"plan","key":"{key}"}}"#));
        let field = |name| response.header(name).unwrap_or_default().to_owned();
        (
            response.status,
            field("ratelimit-policy"),
            field("ratelimit"),
            field("retry-after"),
        )
    };
    let told = |policy: &str, state: &str| {
        (
            200,
            format!("\"plan\";{policy}"),
            format!("\"plan\";{state}"),
            String::new(),
        )
    };
    let until_december = 15 * 86_400 + 11 * 3_600;
    assert_eq!(
        fields("ada"),
        told("q=2;w=2629746", &format!("r=1;t={until_december}"))
    );
    assert_eq!(
        fields("admin"),
        told("q=5;w=2629746", &format!("r=4;t={until_december}"))
    );
    let until_monday = 4 * 86_400 + 11 * 3_600;
    assert_eq!(
        fields("bob"),
        told("q=1;w=604800", &format!("r=0;t={until_monday}"))
    );
    let denied = fields("bob");
    assert_eq!((denied.0, denied.3), (429, until_monday.to_string()));
    server.advance(Duration::from_secs(until_monday));
    assert_eq!(fields("bob"), told("q=1;w=604800", "r=0;t=604800"));
    assert_eq!(
        fields("admin"),
        told(
            "q=5;w=2629746",
            &format!("r=3;t={}", until_december - until_monday)
        )
    );
    server.advance(Duration::from_secs(until_december - until_monday));
    assert_eq!(
        fields("admin"),
        told("q=5;w=2629746", &format!("r=4;t={}", 31 * 86_400))
    );
}

#[test]
fn a_shadow_limit_counts_and_reports_but_never_denies() {
    let server = Running::with_rules("http-shadow", RULES);
    let ask = r#"{"limit":"trial","key":"alice"}"#;
    let within = acquire(&server, ask).json();
    assert_eq!(
        (&within["allowed"], &within["shadow"]["would_deny"]),
        (&json!(true), &json!(false))
    );
    let beyond = acquire(&server, ask);
    assert_eq!((beyond.status, beyond.header("retry-after")), (200, None));
    let body = beyond.json();
    assert_eq!(
        (&body["allowed"], &body["retry_after_ms"]),
        (&json!(true), &json!(null))
    );
    assert_eq!(
        body["shadow"],
        json!({"would_deny": true, "retry_after_ms": 60_000, "reason": "quota"})
    );
    // It does not veto the other limits, which are charged.
    let all = r#"{"all":[{"limit":"trial","key":"alice"},{"limit":"per-user","key":"alice"}]}"#;
    let together = acquire(&server, all);
    assert_eq!(
        (together.status, &together.json()["allowed"]),
        (200, &json!(true))
    );
    let alice = server
        .post("/v1/peek", r#"{"limit":"per-user","key":"alice"}"#)
        .json();
    assert_eq!(alice["remaining"], 2);
    assert_eq!(
        server.metric(r#"tidegate_shadow_denials_total{limit="trial"}"#),
        2
    );
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="trial",outcome="denied"}"#),
        0
    );
}

#[test]
fn a_denial_says_why_and_is_counted_by_reason() {
    let rules = format!(
        "{RULES}  - {{name: small, limit: 1/1h, algorithm: sliding-log, max_keys: 8, when_full: deny}}\n"
    );
    let server = Running::with_rules("http-reasons", &rules);
    let denied = |limit: &str, key: &str, cost: u32| {
        let response = acquire(
            &server,
            &format!(r#"{{"limit":"{limit}","key":"{key}","cost":{cost}}}"#),
        );
        if response.status == 429 {
            Some(response.json()["reason"].as_str().unwrap().to_owned())
        } else {
            None
        }
    };
    let reason = |limit, key, cost| denied(limit, key, cost).expect("a denial");
    let count = |limit: &str, reason: &str| {
        server.metric(&format!(
            r#"tidegate_denials_total{{limit="{limit}",reason="{reason}"}}"#
        ))
    };

    assert_eq!(denied("per-user", "alice", 3), None);
    assert_eq!(
        (
            reason("per-user", "alice", 1),
            reason("per-user", "alice", 4)
        ),
        ("quota".into(), "too-large".into())
    );
    assert_eq!(denied("seats", "alice", 2), None);
    assert_eq!(
        (reason("seats", "alice", 1), reason("seats", "alice", 3)),
        ("in-flight".into(), "too-large".into())
    );
    server.post("/v1/block", r#"{"limit":"per-user","key":"bob"}"#);
    server.post("/v1/block", r#"{"limit":"logins","key":"bob","for":"60s"}"#);
    assert_eq!(
        (reason("per-user", "bob", 1), reason("logins", "bob", 1)),
        ("blocked".into(), "blocked".into())
    );
    assert_eq!(
        (
            reason("logins", "mallory", 1),
            reason("logins", "mallory", 1)
        ),
        ("deny-listed".into(), "deny-listed".into())
    );
    let full = (0..100)
        .find_map(|key| denied("small", &format!("k{key}"), 1))
        .expect("the table fills");
    assert_eq!(full, "table-full");

    assert_eq!(
        (
            count("per-user", "quota"),
            count("per-user", "too-large"),
            count("per-user", "blocked")
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (
            count("logins", "deny-listed"),
            count("logins", "blocked"),
            count("small", "table-full")
        ),
        (2, 1, 1)
    );
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="per-user",outcome="denied"}"#),
        3
    );

    // Of several limits, each has its own reason, and the answer that of the limit that bound.
    let all = r#"{"all":[{"limit":"per-user","key":"alice"},{"limit":"logins","key":"mallory"}]}"#;
    let joint = acquire(&server, all).json();
    assert_eq!(
        (&joint["reason"], &joint["limit_name"]),
        (&json!("deny-listed"), &json!("logins"))
    );
    assert_eq!(
        (
            &joint["decisions"][0]["reason"],
            &joint["decisions"][1]["reason"]
        ),
        (&json!("quota"), &json!("deny-listed"))
    );
}

#[test]
fn a_client_that_sends_nothing_more_gets_its_answer() {
    let server = Running::with_rules("http-half-close", RULES);
    for (address, path, body) in [
        (
            server.http,
            "/v1/peek",
            r#"{"limit":"per-user","key":"alice"}"#,
        ),
        // Another thread makes these answers.
        (server.admin, "/v1/rules/check", "limits: []"),
        (server.admin, "/v1/reset", r#"{"limit":"per-user"}"#),
    ] {
        for _ in 0..20 {
            let mut client = Http::connect(address);
            let length = body.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
            );
            client.write(format!("{head}{body}").as_bytes());
            client.stream().shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(client.read().status, 200, "{path}");
            assert!(client.ends(), "the server closes its side, too");
        }
    }
}

#[test]
fn answers_to_clients_that_have_gone_are_counted() {
    const UNAWAITED: &str = "tidegate_http_answers_unawaited_total";
    let server = Running::with_rules("http-unawaited", RULES);
    let body = r#"{"limit":"per-user","key":"alice"}"#;
    for _ in 0..20 {
        assert_eq!(server.post("/v1/peek", body).status, 200);
    }
    assert_eq!(server.metric(UNAWAITED), 0, "these clients wait");
    // The answer may be written before the server's system knows that the client has gone.
    let mut gone = 0;
    eventually("a client goes before its answer", || {
        let mut client = Http::connect(server.http);
        let length = body.len();
        let head = format!(
            "POST /v1/peek HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
        );
        client.write(format!("{head}{body}").as_bytes());
        drop(client);
        gone += 1;
        server.metric(UNAWAITED) > 0
    });
    assert!(server.metric(UNAWAITED) <= gone);
}

#[test]
fn a_leaky_bucket_returns_the_delay() {
    let server = Running::with_rules("http-leaky", RULES);
    let ask = r#"{"limit":"paced","key":"alice"}"#;
    let delays: Vec<_> = (0..2)
        .map(|_| acquire(&server, ask).json()["delay_ms"].clone())
        .collect();
    assert_eq!(delays, [json!(0), json!(500)]);
    assert_eq!(acquire(&server, ask).status, 429);
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="paced",outcome="delayed"}"#),
        1
    );
    server.advance(Duration::from_millis(500));
    let peek = server.post("/v1/peek", ask).json();
    assert_eq!(
        (&peek["allowed"], &peek["delay_ms"]),
        (&json!(true), &json!(500))
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of mistakes")]
fn errors_name_their_position_and_what_to_do() {
    let server = Running::with_rules("http-refusals", RULES);
    let long = format!(r#"{{"limit":"per-user","key":"{}"}}"#, "x".repeat(1025));
    let fits = format!(r#"{{"limit":"per-user","key":"{}"}}"#, "é".repeat(512));
    assert_eq!(acquire(&server, &fits).status, 200);
    let many = format!(
        "{{\"all\":[{}]}}",
        vec![r#"{"limit":"a"}"#; MAX_ALL + 1].join(",")
    );
    for (path, body, status, told) in [
        (
            "/v1/acquire",
            r#"{"limit":"per-user""#,
            400,
            "the body is not JSON: EOF",
        ),
        (
            "/v1/acquire",
            r#"{"limit":"a"} x"#,
            400,
            "the body is not JSON: trailing",
        ),
        ("/v1/acquire", "", 400, "the body is empty"),
        ("/v1/acquire", "[1]", 400, "expected"),
        (
            "/v1/acquire",
            r#"{"key":"k"}"#,
            400,
            "missing field `limit`",
        ),
        ("/v1/acquire", r#"{"limit":5}"#, 400, "#/limit"),
        ("/v1/acquire", r#"{"limit":"a","key":5}"#, 400, "#/key"),
        (
            "/v1/acquire",
            r#"{"limit":"a","cost":1.5}"#,
            400,
            "`1.5`, expected a whole number",
        ),
        (
            "/v1/acquire",
            r#"{"limit":"a","cost":9007199254740992}"#,
            400,
            "`9007199254740992`, expected a whole number",
        ),
        ("/v1/acquire", r#"{"limit":"a","cost":"3"}"#, 400, "#/cost"),
        (
            "/v1/acquire",
            r#"{"limit":"a","costs":3}"#,
            400,
            "unknown field `costs`, expected one of `limit`, `key`, `cost`",
        ),
        ("/v1/acquire", r#"{"all":[]}"#, 400, "at least one"),
        (
            "/v1/acquire",
            r#"{"all":[{"limit":"a"},{"limit":"b","cost":-1}]}"#,
            400,
            "#/all/1/cost",
        ),
        ("/v1/acquire", r#"{"all":[3]}"#, 400, "#/all/0"),
        ("/v1/acquire", r#"{"all":[{"key":"a"}]}"#, 400, "#/all/0"),
        (
            "/v1/acquire",
            r#"{"all":[{"limit":"a"}],"limit":"b"}"#,
            400,
            "belong inside the objects of `all`",
        ),
        ("/v1/acquire", &many, 400, "at most 32"),
        // No form takes a field twice.
        (
            "/v1/acquire",
            r#"{"limit":"a","cost":1,"cost":2}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/acquire",
            r#"{"limit":"a","limit":"b"}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/acquire",
            r#"{"all":[{"limit":"a","key":"k","key":"l"}]}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/acquire",
            r#"{"all":[{"limit":"a"}],"all":[{"limit":"b"}]}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/block",
            r#"{"limit":"a","key":"k","for":"1s","for":"2s"}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/unblock",
            r#"{"limit":"a","limit":"a"}"#,
            400,
            "duplicate field",
        ),
        (
            "/v1/acquire",
            r#"{"limit":"per-usr","key":"a"}"#,
            404,
            "the nearest names are: per-user",
        ),
        ("/v1/acquire", r#"{"limit":"per-user"}"#, 400, "give a key"),
        (
            "/v1/acquire",
            r#"{"limit":"per-user","key":null}"#,
            400,
            "give a key",
        ),
        (
            "/v1/acquire",
            r#"{"limit":"per-user","key":"a","cost":-1}"#,
            400,
            "`-1`, expected a whole number from 0 to 9007199254740991",
        ),
        (
            "/v1/acquire",
            &long,
            400,
            "the key has 1025 bytes; at most 1024",
        ),
        (
            "/v1/acquire",
            r#"{"all":[{"limit":"everyone"},{"limit":"x"}]}"#,
            404,
            "#/all/1/limit",
        ),
        (
            "/v1/peek",
            r#"{"all":[{"limit":"everyone"},{"limit":"seats"}]}"#,
            400,
            "#/all/1/key",
        ),
        ("/v1/refund", r#"{"all":[]}"#, 400, "unknown field `all`"),
        (
            "/v1/block",
            r#"{"limit":"everyone","key":"a"}"#,
            400,
            "is global",
        ),
        (
            "/v1/block",
            r#"{"limit":"per-user","key":"a","for":60}"#,
            400,
            "expected a duration such as",
        ),
        (
            "/v1/block",
            r#"{"limit":"per-user","key":"a","for":"400000d"}"#,
            400,
            "a duration is at most 213503d",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a","quota":60}"#,
            400,
            "expected a text such as",
        ),
        (
            "/v1/block",
            r#"{"limit":"per-user","key":"a","for":"soon"}"#,
            400,
            "#/for",
        ),
        (
            "/v1/unblock",
            r#"{"limit":"per-user","key":"a","for":"1s"}"#,
            400,
            "unknown field `for`",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a"}"#,
            400,
            "missing field `quota`",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a","quota":"9/1m","end":true}"#,
            400,
            "not both",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a","end":true,"for":"1s"}"#,
            400,
            "#/for",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a","quota":"9"}"#,
            400,
            "as in 10/500ms, 100/1m",
        ),
        (
            "/v1/override",
            r#"{"limit":"per-user","key":"a","quota":9}"#,
            400,
            "#/quota",
        ),
        (
            "/v1/override",
            r#"{"limit":"seats","key":"a","quota":"9/1m"}"#,
            400,
            "concurrency counts permits",
        ),
        (
            "/v1/override",
            r#"{"limit":"everyone","key":"a","quota":"9/1m"}"#,
            400,
            "is global",
        ),
        (
            "/v1/override",
            r#"{"limit":"logins","key":"mallory","quota":"9/1m"}"#,
            409,
            "deny list",
        ),
    ] {
        let response = server.post(path, body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        assert_eq!(
            response.header("content-type"),
            Some("application/problem+json")
        );
        let problem = response.json();
        assert!(response.body.contains(told), "{body}: {}", response.body);
        assert_eq!(problem["status"], status);
    }
    let unknown = acquire(&server, r#"{"limit":"nope"}"#).json();
    assert!(
        unknown["nearest_limits"]
            .as_array()
            .is_some_and(|names| names.len() == 3),
        "{unknown}"
    );
    assert_eq!(server.get("/v1/acquire").header("allow"), Some("POST"));
    assert_eq!(server.get("/v1/acquire").status, 405);
    for route in ROUTES {
        let path = route.path.replace("{limit}", "logins");
        for (plane, address) in [(Plane::Data, server.http), (Plane::Admin, server.admin)] {
            let status = |path: &str| Http::connect(address).send("DELETE", path, "").status;
            let there = ROUTES
                .iter()
                .any(|other| other.path == route.path && other.is_on(plane));
            let mut expected = [if there { 405 } else { 404 }, 404];
            if plane == Plane::Data && route.path.starts_with("/v1/check/") {
                // Behind the limit is the path of a proxy's client, with any method: it lacks a key.
                expected = [if route.method == "any" { 400 } else { 405 }, 400];
            }
            assert_eq!(
                [status(&path), status(&format!("{path}/"))],
                expected,
                "{path} {plane:?}"
            );
        }
    }
    // A variable part is one segment, and not empty.
    for path in ["/v1/check/", "/v1/check", "/v1/check//b", "/v1/checks/a"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let mut head = Http::connect(server.http);
    head.write(b"HEAD /healthz HTTP/1.1\r\nhost: a\r\n\r\nHEAD /v1/acquire HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut told = String::new();
    std::io::Read::read_to_string(&mut head.stream(), &mut told).unwrap();
    assert_eq!(
        (
            told.matches("HTTP/1.1 200").count(),
            told.matches("HTTP/1.1 405").count()
        ),
        (1, 1),
        "{told}"
    );
    let nowhere = server.get("/v2/acquire");
    assert!(
        nowhere.status == 404 && nowhere.body.contains("POST /v1/acquire"),
        "{}",
        nowhere.body
    );
}

#[test]
fn a_body_above_the_bound_is_refused_with_and_without_a_declared_length() {
    let server = Running::with_rules("http-body", RULES);
    let body = format!(
        r#"{{"limit":"per-user","key":"a"{}}}"#,
        " ".repeat(MAX_BODY)
    );
    let declared = acquire(&server, &body);
    assert_eq!(
        (declared.status, &declared.json()["title"]),
        (413, &json!("Body too large"))
    );
    let mut chunked = Http::connect(server.http);
    chunked.write(b"POST /v1/acquire HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..=MAX_BODY / 1024 {
        chunked.write(format!("400\r\n{}\r\n", " ".repeat(1024)).as_bytes());
    }
    assert_eq!(chunked.read().status, 413);
    let largest: Vec<_> = (0..MAX_ALL)
        .map(|at| json!({"limit": "per-user", "key": format!("k{at}")}))
        .collect();
    assert_eq!(
        acquire(&server, &json!({"all": largest}).to_string()).status,
        200
    );
}

#[test]
fn health_readiness_and_metrics_are_served() {
    let server = Running::with_rules("http-health", RULES);
    assert_eq!(server.get("/healthz").json(), json!({"status": "ok"}));
    assert_eq!(server.get("/readyz").json(), json!({"status": "ready"}));
    let plain = server.get("/metrics");
    assert_eq!(
        plain.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(
        plain
            .body
            .contains("\n# TYPE tidegate_http_requests_total counter\n")
    );
    assert!(
        plain
            .body
            .contains("\n# TYPE tidegate_build_info gauge\ntidegate_build_info{"),
        "{}",
        plain.body
    );
    assert!(!plain.body.contains("# EOF") && !plain.body.contains("# UNIT"));
    let mut http = Http::connect(server.admin);
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    http.write(
        format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n").as_bytes(),
    );
    let metrics = http.read();
    assert_eq!(
        metrics.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    assert!(
        metrics
            .body
            .contains("\n# TYPE tidegate_http_requests counter\n")
    );
    let mut numbers: Vec<_> = ROUTES.iter().map(|route| route.endpoint as usize).collect();
    numbers.sort_unstable();
    assert_eq!(
        numbers,
        (0..ROUTES.len()).collect::<Vec<_>>(),
        "each route has counters of its own"
    );
    assert!(server.metric("process_resident_memory_bytes") > 1_000_000);
    assert!(server.metric("process_open_fds") > 5 && server.metric("process_threads") > 1);
    assert_eq!(
        server.metric(r#"tidegate_http_requests_total{route="/healthz",status="200"}"#),
        1
    );
    assert_eq!(server.metric("tidegate_rules_limits"), 7);
}

#[test]
fn the_number_of_metrics_depends_on_the_rules_and_never_on_the_keys() {
    let server = Running::with_rules("http-cardinality", RULES);
    let mut http = Http::connect(server.http);
    let mut series = |from: u32| {
        for key in from..from + 200 {
            http.send(
                "POST",
                "/v1/acquire",
                &format!(r#"{{"limit":"per-user","key":"k{key}"}}"#),
            );
            http.send("POST", &format!("/made/up/{key}"), "");
        }
        server.get("/metrics").body.lines().count()
    };
    // At the first request, /metrics itself has not been counted yet.
    series(0);
    let before = series(200);
    assert_eq!(series(400), before);
    assert_eq!(server.metric(r#"tidegate_keys{limit="per-user"}"#), 600);
}

#[test]
fn the_wait_in_the_header_field_is_one_that_no_client_misreads() {
    let rules = "limits: [{name: monthly, limit: 1/31d, algorithm: sliding-log}]";
    let server = Running::with_rules("http-long-wait", rules);
    let body = r#"{"limit":"monthly","key":"alice"}"#;
    assert_eq!(acquire(&server, body).status, 200);
    let denied = acquire(&server, body);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("2000000"));
    assert_eq!(
        denied.json()["retry_after_ms"],
        31 * 86_400_000_u64,
        "exact in the document"
    );
}

#[test]
fn a_limits_name_in_a_path_is_decoded() {
    let server = Running::with_rules("http-check-decoded", RULES);
    assert_eq!(server.get("/v1/check/%70er%2Duser?key=a").status, 200);
    assert_eq!(server.get("/v1/check/%65veryone").status, 200);
    assert_eq!(server.get("/v1/check/%ff?key=a").status, 404);
    assert_eq!(server.get("/v1/check/per%00user?key=a").status, 404);
}

#[test]
fn a_check_by_a_proxy_gets_200_or_429_with_the_header_fields() {
    let server = Running::with_rules("http-check", RULES);
    let admitted = server.get("/v1/check/per-user?key=alice&cost=2");
    assert_eq!(admitted.status, 200);
    assert!(
        admitted
            .header("ratelimit")
            .unwrap()
            .starts_with("\"per-user\";r="),
        "{admitted:?}"
    );
    assert!(
        admitted.header("ratelimit-policy").is_some() && admitted.header("retry-after").is_none()
    );
    let mut denied = server.get("/v1/check/per-user?key=alice");
    while denied.status == 200 {
        denied = server.get("/v1/check/per-user?key=alice");
    }
    assert_eq!(denied.status, 429);
    assert!(
        denied.header("retry-after").is_some() && denied.body.is_empty(),
        "{denied:?}"
    );
    // It is the same limit for all paths.
    let (status, _) = harness::acquire(&server, "per-user", "alice");
    assert_eq!(status, 429);
    assert_eq!(
        server.get("/v1/check/everyone").status,
        200,
        "a global limit needs no key"
    );
    assert_eq!(server.get("/v1/check/per-user").status, 400);
    assert_eq!(server.get("/v1/check/unknown?key=a").status, 404);
    // For nginx a denial must be 403, and a mistake of the operator must not stop its requests.
    let denied = server.get("/v1/check/per-user?key=alice&denied=403&errors=admit");
    assert!(
        denied.status == 403 && denied.header("retry-after").is_some(),
        "{denied:?}"
    );
    for path in [
        "per-user?errors=admit",
        "unknown?key=a&errors=admit",
        "per-user?key=a&errors=admit&cost=x",
    ] {
        assert_eq!(
            server.get(&format!("/v1/check/{path}")).status,
            204,
            "{path}"
        );
    }
    assert_eq!(server.get("/v1/check/per-user?errors=deny").status, 400);
}

#[test]
fn what_is_behind_the_limit_is_the_path_of_envoy_s_client_and_changes_nothing() {
    let server = Running::with_rules("http-ext-authz", RULES);
    let ask = |method: &str, target: &str, fields: &str| {
        let path = format!("/v1/check/{target}");
        let mut proxy = server.connect_for(&path);
        proxy.write(
            format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{fields}\r\n")
                .as_bytes(),
        );
        proxy.read().status
    };
    let key = "x-tidegate-key: 192.0.2.7\r\n";
    // Whatever the client's path and query say, the key, the cost and the status are the proxy's.
    for (method, target) in [
        ("GET", "per-user/"),
        ("POST", "per-user/a/b?key=another&cost=0&denied=403"),
        ("DELETE", "per-user//everyone?errors=admit"),
    ] {
        assert_eq!(ask(method, target, key), 200, "{method} {target}");
    }
    assert_eq!(ask("PUT", "per-user/x?key=new", key), 429);
    assert_eq!(
        ask("GET", "per-user/x?key=new", ""),
        400,
        "the query is not the proxy's"
    );
    assert_eq!(ask("GET", "unknown/x?errors=admit", key), 404);
    let admit = format!("{key}x-tidegate-errors: admit\r\n");
    assert_eq!(
        ask("GET", "unknown/x", &admit),
        200,
        "Envoy takes a 204 for a denial"
    );
}

#[test]
fn the_key_can_be_an_address_of_x_forwarded_for() {
    let server = Running::with_rules("http-behind", RULES);
    let ask = |query: &str, fields: &str| {
        let path = format!("/v1/check/per-user?{query}");
        let mut proxy = server.connect_for(&path);
        proxy.write(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes());
        proxy.read()
    };
    let remaining = |query: &str, fields: &str| {
        let answer = ask(query, fields);
        answer
            .header("ratelimit")
            .map(|state| state.contains(";r=2;"))
    };
    // What a client writes in front changes nothing.
    let field = "x-forwarded-for: 198.51.100.1, 192.0.2.7\r\n";
    assert_eq!(remaining("behind=1", field), Some(true));
    assert_eq!(
        remaining(
            "behind=1&cost=0",
            "x-forwarded-for: x, ::ffff:192.0.2.7\r\n"
        ),
        Some(true)
    );
    assert_eq!(
        remaining("key=192.0.2.7&cost=0", ""),
        Some(true),
        "it is the same key"
    );
    assert_eq!(
        remaining("behind=2&cost=0", field),
        Some(false),
        "another client"
    );
    let many = "x-forwarded-for: 2001:db8::1\r\nx-forwarded-for: 10.0.0.1\r\n";
    assert_eq!(remaining("behind=2", many), Some(true));
    assert_eq!(remaining("key=2001:db8::/64&cost=0", ""), Some(true));
    for (query, fields, why) in [
        ("behind=1", "", "no address at place 1"),
        ("behind=3", field, "no address at place 3"),
        (
            "behind=1",
            "x-forwarded-for: unknown\r\n",
            "no address at place 1",
        ),
        ("behind=0", field, "from 1 to 100"),
        ("behind=x", field, "from 1 to 100"),
        ("behind=1&key=a", field, "give no other"),
    ] {
        let refused = ask(query, fields);
        assert!(
            refused.status == 400 && refused.body.contains(why),
            "{query}: {refused:?}"
        );
    }
    assert_eq!(ask("behind=1&errors=admit", "").status, 204);
}

#[test]
fn a_proxy_can_use_the_query_or_header_fields_and_each_once() {
    let server = Running::with_rules("http-in-head", RULES);
    let ask = |target: &str, fields: &str| {
        let path = format!("/v1/check/{target}");
        let mut proxy = server.connect_for(&path);
        // One byte for each character.
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        proxy.write(
            &head
                .chars()
                .map(|c| u8::try_from(c).unwrap())
                .collect::<Vec<_>>(),
        );
        proxy.read()
    };
    // A key is any bytes, and an empty one is a key.
    for (target, fields, remaining) in [
        ("per-user?key=x%20%FF+y&cost=3", "", 0),
        ("per-user?cost=0", "x-tidegate-key: x \u{ff}+y\r\n", 0),
        ("per-user?key=", "x-tidegate-cost: 2\r\n", 1),
        ("per-user?key=&cost=0", "", 1),
        ("per-user", "x-tidegate-key: 10.0.0.1\r\n", 2),
        ("per-user?key=10.0.0.1&cost=0", "", 2),
    ] {
        let told = ask(target, fields);
        let state = format!("\"per-user\";r={remaining};");
        assert!(
            told.header("ratelimit")
                .is_some_and(|told| told.starts_with(&state)),
            "{target}: {told:?}"
        );
    }
    for (query, fields, why) in [
        ("key=b&key=c", "", "`key` twice"),
        ("key=b", "x-tidegate-key: c\r\n", "keep one"),
        ("keys=b", "", "no field `keys`"),
        ("cost=-1", "", "whole number"),
        ("cost=9007199254740992", "", "whole number"),
        ("denied=200", "", "403 or 429"),
        ("errors=deny", "", "`admit`"),
    ] {
        let refused = ask(&format!("per-user?{query}"), fields);
        assert!(
            refused.status == 400 && refused.body.contains(why),
            "{query}: {refused:?}"
        );
    }
}

#[test]
fn a_proxy_that_forwards_its_client_s_header_fields_is_answered_for_the_key_that_it_names() {
    let server = Running::with_rules("http-forward", RULES);
    // What Caddy's forward_auth and Traefik's ForwardAuth send, after what docs/src/envoy.md tells
    // them to remove.
    let forwarded = "host: shop.example\r\nuser-agent: curl/8\r\naccept: */*\r\naccept-encoding: gzip\r\n\
        cookie: session=1\r\nauthorization: Bearer the-client-s-own\r\nx-forwarded-for: 192.0.2.7\r\n\
        x-forwarded-host: shop.example\r\nx-forwarded-method: POST\r\nx-forwarded-proto: https\r\n\
        x-forwarded-uri: /cart?key=another\r\n";
    for (path, field) in [
        ("/v1/check/per-user?key=192.0.2.7", ""),
        ("/v1/check/per-user", "x-tidegate-key: 192.0.2.8\r\n"),
    ] {
        let mut proxy = server.connect_for(path);
        let mut ask = || {
            proxy.write(format!("GET {path} HTTP/1.1\r\n{forwarded}{field}\r\n").as_bytes());
            proxy.read()
        };
        let statuses: Vec<u16> = std::iter::repeat_with(|| ask().status).take(4).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{path}");
        let denied = ask();
        assert!(
            denied.header("retry-after").is_some() && denied.header("ratelimit-policy").is_some(),
            "{denied:?}"
        );
    }
    let mut proxy = server.connect_for("/v1/check/per-user");
    proxy.write(
        format!("GET /v1/check/per-user?key=a HTTP/1.1\r\n{forwarded}origin: https://shop.example\r\n\r\n")
            .as_bytes(),
    );
    assert_eq!(
        proxy.read().status,
        403,
        "the origin of the client's page has to be removed"
    );
}

#[test]
fn the_openapi_description_matches_every_path_and_response() {
    let server = Running::with_rules("http-openapi", RULES);
    let description = server.get("/openapi.json").json();
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
    let described: BTreeSet<String> = description["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .keys()
                .map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let real: BTreeSet<String> = ROUTES
        .iter()
        // One method stands for all.
        .map(|route| format!("{} {}", route.method.replace("any", "GET"), route.path))
        .collect();
    assert_eq!(described, real);
    let all = r#"{"all":[{"limit":"trial","key":"a"},{"limit":"everyone"}]}"#;
    for (method, path, body) in [
        ("POST", "/v1/acquire", r#"{"limit":"per-user","key":"a"}"#),
        (
            "POST",
            "/v1/acquire",
            r#"{"limit":"per-user","key":"a","cost":9}"#,
        ),
        ("POST", "/v1/acquire", all),
        ("POST", "/v1/acquire", "{"),
        ("POST", "/v1/acquire", r#"{"limit":"x"}"#),
        (
            "POST",
            "/throttle",
            r#"{"key":"a","max_burst":10,"count_per_period":100,"period":60}"#,
        ),
        ("POST", "/throttle", r#"{"key":"a","max_burst":0}"#),
        ("POST", "/v1/peek", all),
        ("POST", "/v1/peek", r#"{"limit":"seats"}"#),
        ("POST", "/v1/refund", r#"{"limit":"per-user","key":"a"}"#),
        ("POST", "/v1/block", r#"{"limit":"per-user","key":"b"}"#),
        ("POST", "/v1/unblock", r#"{"limit":"per-user","key":"b"}"#),
        (
            "POST",
            "/v1/unblock",
            r#"{"limit":"logins","key":"mallory"}"#,
        ),
        (
            "POST",
            "/v1/override",
            r#"{"limit":"per-user","key":"b","quota":"9/1m","for":"1h"}"#,
        ),
        (
            "POST",
            "/v1/override",
            r#"{"limit":"per-user","key":"c","end":true}"#,
        ),
        (
            "POST",
            "/v1/override",
            r#"{"limit":"logins","key":"mallory","quota":"9/1m"}"#,
        ),
        ("GET", "/v1/overrides", ""),
        ("GET", "/v1/blocks?limit=per-user", ""),
        ("GET", "/v1/blocks?limit=x", ""),
        ("GET", "/v1/explain?limit=per-user&key=b", ""),
        ("GET", "/v1/explain?limit=per-user", ""),
        ("GET", "/v1/explain?limit=everyone", ""),
        ("POST", "/v1/reset", r#"{"limit":"per-user","key":"b"}"#),
        ("GET", "/v1/rules", ""),
        ("GET", "/v1/audit", ""),
        ("GET", "/v1/denied?n=5", ""),
        ("GET", "/v1/denied?n=0", ""),
        ("POST", "/v1/reload", ""),
        ("GET", "/v1/top?limit=per-user", ""),
        ("GET", "/v1/top?limit=x", ""),
        ("GET", "/v1/top?limit=everyone", ""),
        ("GET", "/v1/limits?recent=5", ""),
        ("GET", "/v1/limits?recent=x", ""),
        ("GET", "/v1/servers", ""),
        ("GET", "/v1/history?limit=per-user", ""),
        ("GET", "/v1/history", ""),
        ("GET", "/v1/history?limit=x", ""),
        ("GET", "/healthz", ""),
        ("GET", "/readyz", ""),
    ] {
        let response = server.connect_for(path).send(method, path, body);
        let operation =
            &description["paths"][path.split('?').next().unwrap()][method.to_lowercase()];
        let documented = resolve(
            &description,
            &operation["responses"][response.status.to_string()],
        );
        let kind = response.header("content-type").unwrap();
        let schema = &documented["content"][kind]["schema"];
        assert!(
            schema.is_object(),
            "{method} {path} {} {kind} is not described",
            response.status
        );
        fits(
            &description,
            schema,
            &response.json(),
            &format!("{method} {path} {body}"),
        );
        for header in response
            .headers
            .iter()
            .filter(|(name, _)| name.starts_with("ratelimit"))
        {
            let names = documented["headers"].as_object().unwrap().keys();
            assert!(
                names
                    .map(|name| name.to_lowercase())
                    .any(|name| name == header.0),
                "{path} {header:?}"
            );
        }
    }
}

/// Resolves a `$ref`.
fn resolve<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => description.pointer(&reference[1..]).unwrap(),
        None => value,
    }
}

/// Whether a value matches its schema: all required members, no undescribed member, the right
/// types.
fn fits(description: &Value, schema: &Value, value: &Value, what: &str) {
    let schema = resolve(description, schema);
    if let Some(members) = value.as_object() {
        for required in schema["required"].as_array().into_iter().flatten() {
            assert!(
                members.contains_key(required.as_str().unwrap()),
                "{what}: {required} is missing in {value}"
            );
        }
        for (name, member) in members {
            let known = schema["properties"].get(name);
            let property = known.unwrap_or(&schema["additionalProperties"]);
            assert!(property.is_object(), "{what}: `{name}` is not described");
            fits(description, property, member, what);
        }
    }
    for item in value.as_array().into_iter().flatten() {
        fits(description, &schema["items"], item, what);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = &schema["type"];
    let listed = allowed
        .as_array()
        .is_some_and(|kinds| kinds.iter().any(|allowed| allowed == kind));
    assert!(
        listed || allowed == kind || schema["const"] == *value,
        "{what}: {value} is not {allowed}"
    );
}

#[tokio::test]
async fn the_example_serves_its_limit_inside_another_program() {
    assert_eq!(embed::run().await.unwrap(), ["200", "200", "429"]);
}
