//! Quotas, with which Envoy itself decides.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_redis_servers::{eventually, free_port};

use crate::{
    envoy::{Envoy, program, route, typed},
    program::Serving,
    rls::{grpc, serving_config},
    web::{Client, backend},
};

/// The limit of `shop.second`.
const A_SECOND: usize = 60;
/// The limit of a year. No test runs long enough to see two windows.
const A_YEAR: usize = 300;
const CONFIG: &str = "
domain: shop
descriptors:
  - {key: plan, value: second, rate_limit: {unit: second, requests_per_unit: 60}}
  - {key: plan, value: busy, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: plan, value: year, rate_limit: {unit: year, requests_per_unit: 300}}
";

fn serving(name: &str, address: &str) -> Serving {
    serving_config(name, CONFIG, &["--grpc", address])
}

/// One bucket for each value of `x-plan`. Without an assignment, requests are denied.
fn filter() -> Value {
    let plan = json!({
        "name": "plan",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
            "header_name": "x-plan",
        },
    });
    let deny = json!({ "fallback_rate_limit": { "blanket_rule": "DENY_ALL" } });
    let settings = typed(
        "filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
        json!({
            "bucket_id_builder": { "bucket_id_builder": { "plan": { "custom_value": plan } } },
            "reporting_interval": "5s",
            "no_assignment_behavior": deny,
            "expired_assignment_behavior": {
                "expired_assignment_behavior_timeout": "60s",
                "fallback_rate_limit": { "blanket_rule": "DENY_ALL" },
            },
            "deny_response_settings": { "http_status": { "code": "TooManyRequests" } },
        }),
    );
    let matcher = json!({
        "predicate": { "single_predicate": {
            "input": plan,
            "value_match": { "safe_regex": { "google_re2": {}, "regex": ".+" } },
        } },
        "on_match": { "action": { "name": "quota", "typed_config": settings } },
    });
    let message = typed(
        "filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        json!({
            "rlqs_server": { "envoy_grpc": { "cluster_name": "tidegate" } },
            "domain": "shop",
            "bucket_matchers": { "matcher_list": { "matchers": [matcher] } },
        }),
    );
    json!({ "name": "envoy.filters.http.rate_limit_quota", "typed_config": message })
}

fn envoy(name: &str, tidegate: &str, backend: u16) -> Envoy {
    Envoy::start(
        name,
        &filter(),
        &json!([route("/", json!({}))]),
        tidegate,
        backend,
    )
}

/// Sends requests for about a second, far more than the limit allows. Returns how many were
/// admitted.
#[allow(clippy::disallowed_methods, reason = "clients ask at a real pace")]
fn a_second_of(client: &mut Client, plan: &str) -> usize {
    let start = Instant::now();
    let mut admitted = 0;
    while start.elapsed() < Duration::from_secs(1) {
        match client.get("/", &[&format!("x-plan: {plan}")]).status {
            200 => admitted += 1,
            429 => {}
            other => panic!("status {other}"),
        }
        thread::park_timeout(Duration::from_millis(3));
    }
    admitted
}

#[test]
fn three_envoys_never_admit_more_than_the_limit_of_a_long_window() {
    if program().is_none() {
        return;
    }
    let server = serving("quota-year", "127.0.0.1:0");
    let (address, backend) = (grpc(&server), backend());
    let envoys =
        ["quota-year-a", "quota-year-b", "quota-year-c"].map(|name| envoy(name, &address, backend));
    let mut clients = envoys.each_ref().map(|envoy| Client::of(envoy.port));
    let mut admitted = 0;
    eventually("most of the limit is admitted", || {
        thread::scope(|scope| {
            let asked = clients
                .each_mut()
                .map(|client| scope.spawn(|| a_second_of(client, "year")));
            admitted += asked
                .into_iter()
                .map(|asked| asked.join().unwrap())
                .sum::<usize>();
        });
        assert!(admitted <= A_YEAR, "{admitted}");
        admitted >= A_YEAR * 9 / 10
    });
    // Little is left, and no more than that is admitted.
    for _ in 0..3 {
        admitted += clients
            .iter_mut()
            .map(|client| a_second_of(client, "year"))
            .sum::<usize>();
    }
    assert!(admitted <= A_YEAR, "{admitted}");
    assert!(
        server
            .get("/metrics")
            .contains("\ntidegate_grpc_quota_streams 3\n")
    );
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the limit is one of real time")]
fn a_limit_per_second_follows_the_load_between_two_envoys() {
    if program().is_none() {
        return;
    }
    let server = serving("quota-second", "127.0.0.1:0");
    let (address, backend) = (grpc(&server), backend());
    let [one, other] =
        ["quota-second-a", "quota-second-b"].map(|name| envoy(name, &address, backend));
    let (mut first, mut second) = (Client::of(one.port), Client::of(other.port));
    let (start, mut admitted) = (Instant::now(), 0);
    let mut all_of_it = |what: &str, client: &mut Client| {
        eventually(what, || {
            let now = a_second_of(client, "second");
            admitted += now;
            now >= A_SECOND * 3 / 4
        });
        // The limit in each second, plus what is left in both buckets: at most one second's shares.
        let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 2;
        assert!(
            admitted <= A_SECOND * (seconds + 1),
            "{admitted} in {seconds} s"
        );
    };
    all_of_it("the first has nearly all of the limit", &mut first);
    all_of_it("the load moves to the second", &mut second);
    all_of_it("the load moves back", &mut first);
    // When an Envoy dies, its share is free after its time to live.
    drop(one);
    all_of_it("the second is alone", &mut second);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the limit is one of real time")]
fn a_busy_envoy_next_to_a_quiet_one_gets_nearly_all_of_a_limit_within_ten_seconds() {
    if program().is_none() {
        return;
    }
    let server = serving("quota-busy", "127.0.0.1:0");
    let (address, backend) = (grpc(&server), backend());
    let [one, other] = ["quota-busy-a", "quota-busy-b"].map(|name| envoy(name, &address, backend));
    let (mut busy, mut quiet) = (Client::of(one.port), Client::of(other.port));
    let mut a_second = || {
        let _ = quiet.get("/", &["x-plan: busy"]);
        a_second_of(&mut busy, "busy")
    };
    // Both have shares before the measured time begins.
    eventually("both have an assignment", || a_second() > 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        a_second();
    }
    let admitted: Vec<usize> = (0..6).map(|_| a_second()).collect();
    let mean = admitted.iter().sum::<usize>() / admitted.len();
    assert!((95..=100).contains(&mean), "{admitted:?}");
}

#[test]
fn envoys_without_tidegate_use_their_assignment_until_it_ends_and_then_the_fallback() {
    if program().is_none() {
        return;
    }
    let address = format!("127.0.0.1:{}", free_port());
    let server = serving("quota-restart", &address);
    let envoy = envoy("quota-restart", &address, backend());
    let mut client = Client::of(envoy.port);
    eventually("it has an assignment", || {
        a_second_of(&mut client, "second") > 0
    });
    server.signal("KILL");
    assert_eq!(server.ended(), None, "killed");
    assert!(
        a_second_of(&mut client, "second") > 0,
        "the assignment goes on"
    );
    eventually("the assignment has ended", || {
        a_second_of(&mut client, "second") == 0
    });
    let _again = serving("quota-restart", &address);
    eventually("it has an assignment again", || {
        a_second_of(&mut client, "second") >= A_SECOND * 3 / 4
    });
}
