//! Holds: estimates that Envoy asks for before a call, and corrects by its report after it.

use std::{fs, time::Duration};

use serde_json::json;
use tidegate_envoy::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::{Options, descriptors::Consume};

use crate::{
    client::{Client, hits, metadata, refund, request},
    harness::{Running, scratch},
    interop::random::chain,
    rls::{START, options},
};

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000, hold: 5m, on_expiry: release}}
  - {key: team, rate_limit: {unit: year, requests_per_unit: 1000, hold: 5m}}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 1000, hold: 5m, estimate: 400}}
  - {key: learnt, rate_limit: {unit: year, requests_per_unit: 1_000_000, hold: 5m, estimate: p95}}
  - key: model
    rate_limit: {unit: year, requests_per_unit: 1_000_000, hold: 5m, estimate: p50, estimate_by: model}
    descriptors:
      - {key: of, rate_limit: {unit: year, requests_per_unit: 1_000_000, hold: 5m, estimate: p50, estimate_by: model}}
  - key: backend_name
    descriptors:
      - {key: tenant, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 100, hold: 5m}}
      - {key: all, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 100, hold: 5m}}
";

/// A descriptor that asks.
fn ask(key: &str, cost: u64) -> RateLimitDescriptor {
    hits(cost, chain(&[(key, "ada")]))
}

/// The same for the request with this id.
fn ask_as(id: &str, key: &str, cost: u64) -> RateLimitDescriptor {
    hits(cost, chain(&[(key, "ada"), ("hold_id", id)]))
}

/// A descriptor that reports, without an id or with one.
fn report(id: &str, key: &str, used: u64) -> RateLimitDescriptor {
    hits(
        used,
        chain(&[(key, "ada"), ("hold_report", "1"), ("hold_id", id)]),
    )
}

fn serving(name: &str, consume: Consume, store: Option<&Server>) -> (Running, Client) {
    let server = Running::start_at(
        Options {
            envoy_consume: consume,
            store: store.map(Server::address),
            store_deadline: Duration::from_secs(5).into(),
            ..options(name, CONFIG)
        },
        START,
    );
    if store.is_some() {
        eventually("the store has been reached", || {
            server.get("/readyz").json()["status"] == "ready"
        });
    }
    let client = Client::of(server.grpc);
    (server, client)
}

/// The units left of a key's limit, seen by a question that no report will settle.
fn left(client: &mut Client, key: &str) -> u64 {
    let answer = client.ask(vec![ask(key, 0)]);
    answer.statuses[0].limit_remaining.into()
}

/// The same in memory and over a store.
fn a_hold_counts_until_its_report_corrects_it(client: &mut Client) {
    assert_eq!(client.told(vec![ask_as("1", "user", 800)]), "OK: OK/200");
    assert_eq!(
        client.told(vec![ask_as("2", "user", 300)]),
        "OVER: OVER/0",
        "the rest is held"
    );
    assert_eq!(client.told(vec![report("1", "user", 350)]), "OK: OK/650");
    assert_eq!(client.told(vec![ask_as("2", "user", 300)]), "OK: OK/350");
    assert_eq!(
        client.told(vec![report("2", "user", 500)]),
        "OK: OK/150",
        "more was used"
    );
    // A second report of one request is of other use, and so is one without a question.
    assert_eq!(client.told(vec![report("2", "user", 10)]), "OK: OK/140");
    assert_eq!(client.told(vec![report("3", "user", 40)]), "OK: OK/100");
    // A report never denies, and what it adds is owed.
    assert_eq!(client.told(vec![report("4", "user", 150)]), "OK: OK/0");
    assert_eq!(client.told(vec![ask_as("5", "user", 0)]), "OVER: OVER/0");

    // Without an id the oldest hold of the key is meant.
    assert_eq!(client.told(vec![ask("team", 100)]), "OK: OK/900");
    assert_eq!(client.told(vec![ask("team", 200)]), "OK: OK/700");
    assert_eq!(client.told(vec![ask("team", 300)]), "OK: OK/400");
    let other = hits(50, chain(&[("team", "bob"), ("hold_report", "")]));
    assert_eq!(
        client.told(vec![other]),
        "OK: OK/950",
        "another key has none"
    );
    assert_eq!(client.told(vec![report("", "team", 10)]), "OK: OK/490");
    assert_eq!(client.told(vec![report("", "team", 10)]), "OK: OK/680");
    // Negative hits say how many of them were not used, and are a refund without a hold.
    let unused = |units| refund(hits(units, chain(&[("team", "ada")])));
    assert_eq!(client.told(vec![unused(290)]), "OK: OK/970");
    assert_eq!(client.told(vec![unused(5)]), "OK: OK/975");
    assert_eq!(client.told(vec![ask_as("6", "team", 75)]), "OK: OK/900");
    let unused = refund(hits(100, chain(&[("hold_id", "6"), ("team", "ada")])));
    assert_eq!(
        client.told(vec![unused]),
        "OK: OK/975",
        "no more than was held"
    );
    // A second question with an id takes another hold, so that all use is counted.
    assert_eq!(client.told(vec![ask_as("7", "team", 75)]), "OK: OK/900");
    assert_eq!(client.told(vec![ask_as("7", "team", 100)]), "OK: OK/800");
    assert_eq!(client.told(vec![report("7", "team", 75)]), "OK: OK/800");
    assert_eq!(client.told(vec![report("7", "team", 50)]), "OK: OK/750");
}

fn a_denied_request_holds_nothing(client: &mut Client, each: bool) {
    let mut both = |id: &str, user, team| {
        client.told(vec![ask_as(id, "user", user), ask_as(id, "team", team)])
    };
    assert_eq!(both("1", 600, 900), "OK: OK/400 OK/100");
    assert_eq!(
        both("2", 300, 200),
        "OVER: OK/400 OVER/0",
        "the user's hold was returned"
    );
    assert_eq!(both("3", 500, 100), "OVER: OVER/0 OK/100");
    assert_eq!(both("4", 400, 100), "OK: OK/0 OK/0");
    client.told(vec![report("1", "user", 0), report("1", "team", 0)]);
    // A rule without holds.
    let with_plain = vec![ask_as("5", "user", 100), ask("plain", 101)];
    assert_eq!(client.told(with_plain), "OVER: OK/600 OVER/0");
    let left = left(client, "plain");
    assert_eq!(left, if each { 0 } else { 100 });
    let with_plain = vec![ask_as("6", "user", 601), ask("plain", 1)];
    let told = client.told(with_plain);
    assert_eq!(
        told,
        if each {
            "OVER: OVER/0 OVER/0"
        } else {
            "OVER: OVER/0 OK/100"
        }
    );
}

/// In quota mode the holds of a group that is over are returned, and the others stay.
fn a_group_that_is_over_holds_nothing(client: &mut Client) {
    let of = |backend: &'static str, id: &'static str, tenant, all| {
        let one = |key, cost| {
            hits(
                cost,
                chain(&[("backend_name", backend), (key, "x"), ("hold_id", id)]),
            )
        };
        [one("tenant", tenant), one("all", all)]
    };
    client.told(of("a", "1", 10, 90).to_vec());
    let asked = [of("a", "2", 20, 20), of("b", "2", 20, 20)].concat();
    assert_eq!(client.told(asked), "OK: OK/90 OVER/0 OK/80 OK/80");
    let asked = [of("a", "3", 0, 0), of("b", "3", 0, 0)].concat();
    assert_eq!(client.told(asked), "OK: OK/90 OK/10 OK/80 OK/80");
    let asked = [of("a", "4", 0, 20), of("b", "4", 90, 0)].concat();
    assert_eq!(client.told(asked), "OVER: OK/90 OVER/0 OVER/0 OK/80");
}

#[test]
fn holds_in_memory() {
    let (_server, mut client) = serving("grpc-holds", Consume::Each, None);
    a_hold_counts_until_its_report_corrects_it(&mut client);
    for consume in [Consume::Each, Consume::AllOrNone] {
        let (_server, mut client) = serving("grpc-holds-denied", consume, None);
        a_denied_request_holds_nothing(&mut client, consume == Consume::Each);
        a_group_that_is_over_holds_nothing(&mut client);
    }
}

#[test]
fn holds_over_a_store() {
    let redis = Server::start(&[]);
    let (_server, mut client) = serving("grpc-holds-store", Consume::Each, Some(&redis));
    a_hold_counts_until_its_report_corrects_it(&mut client);
    for consume in [Consume::Each, Consume::AllOrNone] {
        let redis = Server::start(&[]);
        let (_server, mut client) = serving("grpc-holds-denied-store", consume, Some(&redis));
        a_denied_request_holds_nothing(&mut client, consume == Consume::Each);
        a_group_that_is_over_holds_nothing(&mut client);
    }
}

/// Another server settles what one has held, by an id and by age.
#[test]
fn servers_that_share_a_store_settle_each_others_holds() {
    let redis = Server::start(&[]);
    let (_one, mut one) = serving("grpc-holds-one", Consume::Each, Some(&redis));
    let (_other, mut other) = serving("grpc-holds-other", Consume::Each, Some(&redis));
    one.told(vec![ask_as("1", "user", 500)]);
    one.told(vec![ask("team", 300)]);
    other.told(vec![ask("team", 200)]);
    assert_eq!(other.told(vec![report("1", "user", 100)]), "OK: OK/900");
    assert_eq!(other.told(vec![report("", "team", 1)]), "OK: OK/799");
    assert_eq!(one.told(vec![report("", "team", 1)]), "OK: OK/998");
}

#[test]
fn a_hold_without_a_report_ends_after_its_time() {
    let (server, mut client) = serving("grpc-holds-expire", Consume::Each, None);
    for key in ["user", "team"] {
        client.told(vec![ask_as("1", key, 400)]);
        client.told(vec![ask(key, 100)]);
    }
    server.advance(Duration::from_secs(299));
    client.told(vec![ask("user", 200)]);
    assert_eq!(left(&mut client, "user"), 300);
    server.advance(Duration::from_secs(1));
    eventually("what is held longer is released", || {
        left(&mut client, "user") == 800
    });
    assert_eq!(left(&mut client, "team"), 500, "it keeps the estimates");
    // A late report corrects its hold. Without an id it cannot mean one that has expired.
    assert_eq!(client.told(vec![report("1", "user", 50)]), "OK: OK/750");
    assert_eq!(client.told(vec![report("1", "team", 50)]), "OK: OK/850");
    assert_eq!(
        client.told(vec![report("", "user", 50)]),
        "OK: OK/900",
        "the third"
    );
    assert_eq!(
        client.told(vec![report("", "team", 50)]),
        "OK: OK/800",
        "a look of 0 units"
    );
}

#[test]
fn a_hold_over_a_store_ends_after_its_time() {
    let redis = Server::start(&[]);
    let config = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000, hold: 1s, on_expiry: release}}
";
    let server = Running::start_at(
        Options {
            store: Some(redis.address()),
            store_deadline: Duration::from_secs(5).into(),
            ..options("grpc-holds-expire-store", config)
        },
        START,
    );
    eventually("the store has been reached", || {
        server.get("/readyz").json()["status"] == "ready"
    });
    let mut client = Client::of(server.grpc);
    client.told(vec![ask_as("1", "user", 400)]);
    client.told(vec![ask("user", 100)]);
    eventually("both are released", || left(&mut client, "user") == 1_000);
    assert_eq!(client.told(vec![report("1", "user", 50)]), "OK: OK/950");
}

#[test]
fn an_estimate_that_a_rule_has_is_held_for_a_question_without_hits() {
    let (_server, mut client) = serving("grpc-holds-fixed", Consume::Each, None);
    let held = |client: &mut Client, descriptor| {
        let answer = client.ask(vec![descriptor]);
        metadata(&answer)["holds"][0].clone()
    };
    let fixed = |units| json!({"units": f64::from(units), "estimate": "fixed"});
    assert_eq!(held(&mut client, ask("fixed", 0)), fixed(400));
    assert_eq!(held(&mut client, ask_as("1", "fixed", 0)), fixed(400));
    assert_eq!(
        held(&mut client, ask("fixed", 0)),
        fixed(400),
        "it is denied"
    );
    // The hits of a question bound the estimate.
    assert_eq!(held(&mut client, ask_as("2", "fixed", 150)), fixed(150));
    assert_eq!(client.told(vec![report("2", "fixed", 100)]), "OK: OK/100");
    // Hits without an id are a report.
    assert_eq!(client.told(vec![ask("fixed", 100)]), "OK: OK/400");
    assert_eq!(client.told(vec![report("1", "fixed", 100)]), "OK: OK/700");

    // Without an estimate the hits are held, and the answers of other requests have no such field.
    let hits = held(&mut client, ask("user", 70));
    assert_eq!(hits, json!({"units": 70.0, "estimate": "hits"}));
    let answer = client.ask(vec![report("", "user", 7), ask("plain", 1)]);
    assert!(answer.dynamic_metadata.is_none());
}

#[test]
fn an_estimate_follows_what_the_key_or_the_model_has_used() {
    let (_server, mut client) = serving("grpc-holds-learnt", Consume::Each, None);
    let by = |units: u32, estimate: &str| json!({"units": f64::from(units), "estimate": estimate});
    let learnt = |user, cost| hits(cost, chain(&[("learnt", user)]));
    let model = |user, model, cost| hits(cost, chain(&[("model", model), ("of", user)]));
    let held = |client: &mut Client, descriptor| {
        let answer = client.ask(vec![descriptor]);
        metadata(&answer)["holds"][0].clone()
    };
    assert_eq!(
        held(&mut client, learnt("ada", 0)),
        by(0, "hits"),
        "nothing is known"
    );
    (1..=20).for_each(|used| drop(client.ask(vec![learnt("ada", used * 10)])));
    assert_eq!(held(&mut client, learnt("ada", 0)), by(190, "p95"));
    // Of a key about which little is known, the estimate is that of all keys.
    (1..=7).for_each(|_| drop(client.ask(vec![learnt("eve", 1_000)])));
    assert_eq!(held(&mut client, learnt("eve", 0)), by(1_000, "p95"));
    assert_eq!(held(&mut client, learnt("bob", 0)), by(1_000, "p95"));
    assert_eq!(held(&mut client, learnt("ada", 0)), by(190, "p95"));
    (1..=8).for_each(|_| {
        drop(client.ask(vec![model("ada", "small", 30), model("ada", "large", 900)]));
    });
    assert_eq!(held(&mut client, model("bob", "small", 0)), by(30, "p50"));
    assert_eq!(held(&mut client, model("bob", "large", 0)), by(900, "p50"));
    // It is bounded by the hits of a question.
    let bounded = hits(
        100,
        chain(&[("model", "large"), ("of", "bob"), ("hold_id", "1")]),
    );
    assert_eq!(held(&mut client, bounded), by(100, "p50"));
    assert_eq!(
        client.told(vec![hits(
            50,
            chain(&[
                ("model", "large"),
                ("of", "bob"),
                ("hold_id", "1"),
                ("hold_report", "")
            ])
        )]),
        "OK: OK/999050"
    );
}

/// A server that is killed has its holds again, in their order.
#[test]
fn holds_outlive_a_crash() {
    let directory = scratch("grpc-holds-crash");
    let with_state = |name: &str, state: std::path::PathBuf| Options {
        state: Some(state),
        state_interval: Duration::from_millis(10),
        ..options(name, CONFIG)
    };
    let state = directory.join("state");
    let server = Running::start_at(with_state("grpc-holds-before", state.clone()), START);
    let mut client = Client::of(server.grpc);
    for cost in [100, 200, 300] {
        client.told(vec![ask("team", cost)]);
    }
    client.told(vec![report("", "team", 10)]);
    client.told(vec![ask_as("1", "user", 400)]);
    let written = r#"tidegate_state_writes_total{result="ok"}"#;
    let before = server.metric(written);
    eventually("it was written after that", || {
        server.metric(written) >= before + 2
    });
    let copy = directory.join("copy");
    fs::copy(&state, &copy).unwrap();
    let server = Running::start_at(with_state("grpc-holds-after", copy), START);
    let mut client = Client::of(server.grpc);
    assert_eq!(client.told(vec![ask("team", 90)]), "OK: OK/400");
    assert_eq!(client.told(vec![report("", "team", 10)]), "OK: OK/590");
    assert_eq!(client.told(vec![report("", "team", 10)]), "OK: OK/880");
    assert_eq!(client.told(vec![report("", "team", 10)]), "OK: OK/960");
    assert_eq!(client.told(vec![report("1", "user", 10)]), "OK: OK/990");
}

#[test]
fn no_more_is_held_than_there_is_room_for() {
    let server = Running::start_at(
        Options {
            max_reservations: 2,
            ..options("grpc-holds-full", CONFIG)
        },
        START,
    );
    let mut client = Client::of(server.grpc);
    client.told(vec![ask_as("1", "user", 10)]);
    let both = request(
        "shop",
        vec![ask_as("2", "user", 20), ask_as("2", "team", 20)],
    );
    let full = client.try_ask(both).unwrap_err();
    assert_eq!(full.code(), tonic::Code::ResourceExhausted);
    assert!(full.message().contains("--max-reservations"), "{full}");
    // Nothing of the request is held.
    server.advance(Duration::from_secs(1_000));
    eventually("they are forgotten", || {
        client
            .try_ask(request("shop", vec![ask("team", 1)]))
            .is_ok()
    });
    assert_eq!(client.told(vec![report("1", "user", 10)]), "OK: OK/990");
}
