//! Estimates that are reserved before the work and settled afterwards, through every door.

mod harness;

use std::time::Duration;

use harness::{Running, scratch};
use serde_json::{Value, json};
use tidegate_core::Nanos;
#[cfg(feature = "servers")]
use tidegate_redis_servers::Server;
use tidegate_server::{Ended, Options, Order, Vendor};

const RULES: &str = "
limits:
  - {name: tokens, limit: 1000/1h, algorithm: fixed-window}
  - {name: released, limit: 1000/1h, algorithm: sliding-window, on_expiry: release}
  - {name: requests, limit: 5/1h, algorithm: sliding-log}
  - {name: in-flight, limit: 2, algorithm: concurrency}
  - {name: all, limit: 5000/1h, algorithm: token-bucket, global: true}
";

const START: Nanos = Nanos::from_secs(1_800_000_000);

fn options(directory: &std::path::Path) -> Options {
    let rules = directory.join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    Options { rules: Some(rules), state: Some(directory.join("state")), ..Options::default() }
}

fn left(server: &Running, limit: &str) -> u64 {
    let state = server.post("/v1/peek", &json!({"limit": limit, "key": "alice", "cost": 0}).to_string());
    state.json()["remaining"].as_u64().unwrap()
}

fn post(server: &Running, path: &str, body: &Value) -> (u16, Value) {
    let response = server.post(path, &body.to_string());
    (response.status, response.json())
}

fn reserve(server: &Running, body: &Value) -> String {
    let (status, answer) = post(server, "/v1/reserve", body);
    assert_eq!(status, 200, "{answer}");
    answer["id"].as_str().unwrap().to_owned()
}

/// One request of a model: requests, tokens, permits and everything.
fn of_a_model(tokens: u32) -> Value {
    json!({"ttl": "2m", "all": [
        {"limit": "requests", "key": "alice"},
        {"limit": "tokens", "key": "alice", "cost": tokens},
        {"limit": "in-flight", "key": "alice"},
        {"limit": "all", "cost": tokens},
    ]})
}

#[test]
fn several_limits_are_reserved_in_one_step_and_settled_by_what_was_used() {
    let server = Running::with_rules("reserve-several", RULES);
    let all = || ["requests", "tokens", "in-flight", "all"].map(|limit| left(&server, limit));
    let id = reserve(&server, &of_a_model(800));
    assert_eq!(all(), [4, 200, 1, 4_200]);
    let (status, denied) = post(&server, "/v1/reserve", &of_a_model(201));
    assert_eq!((status, &denied["limit_name"], &denied["id"]), (429, &json!("tokens"), &Value::Null));
    assert_eq!(all(), [4, 200, 1, 4_200], "nothing was taken");

    let settle = |costs: &[u32]| post(&server, "/v1/settle", &json!({"id": id, "costs": costs}));
    let (status, wrong) = settle(&[1, 350]);
    assert_eq!(status, 400);
    assert!(wrong["detail"].as_str().unwrap().contains("give 4 costs"), "{wrong}");
    assert_eq!(settle(&[1, 350, 0, 350]), (200, json!({"settled": true})));
    assert_eq!(all(), [4, 650, 2, 4_650]);
    assert_eq!(settle(&[1, 900, 0, 900]), (200, json!({"settled": false})), "only the first time counts");
    assert_eq!(post(&server, "/v1/cancel", &json!({"id": id})), (200, json!({"cancelled": false})));
    assert_eq!(all(), [4, 650, 2, 4_650]);
    let extended = post(&server, "/v1/extend", &json!({"id": id, "costs": [0, 1, 0, 1]}));
    assert_eq!(extended.0, 409, "{}", extended.1);

    let id = reserve(&server, &of_a_model(600));
    let used = post(&server, "/v1/settle", &json!({"id": id, "costs": [1, 1_600, 1, 1_600]}));
    assert_eq!(used.0, 200);
    let (status, denied) =
        post(&server, "/v1/acquire", &json!({"limit": "tokens", "key": "alice", "cost": 0}));
    assert_eq!((status, denied["remaining"].as_u64()), (429, Some(0)), "950 units of debt");
    assert_eq!(left(&server, "in-flight"), 2);
    assert_eq!(server.metric("tidegate_reservations"), 2);
}

#[test]
fn a_stream_takes_more_as_it_runs_on_and_a_cancelled_one_returns_all() {
    let server = Running::with_rules("reserve-extend", RULES);
    let id = reserve(&server, &json!({"limit": "tokens", "key": "alice", "cost": 300}));
    let extend = |cost: u32| post(&server, "/v1/extend", &json!({"id": id, "costs": [cost]})).0;
    assert_eq!((extend(600), left(&server, "tokens")), (200, 100));
    assert_eq!((extend(101), left(&server, "tokens")), (429, 100));
    assert_eq!(post(&server, "/v1/cancel", &json!({"id": id})), (200, json!({"cancelled": true})));
    assert_eq!(left(&server, "tokens"), 1_000);
}

#[test]
fn what_an_expired_reservation_holds_stays_or_goes_as_its_limit_says() {
    let server = Running::with_rules("reserve-expire", RULES);
    let reserved = |ttl: &str| {
        reserve(
            &server,
            &json!({"ttl": ttl, "all": [
                {"limit": "tokens", "key": "alice", "cost": 400},
                {"limit": "released", "key": "alice", "cost": 400},
                {"limit": "in-flight", "key": "alice"},
            ]}),
        )
    };
    let all = || ["tokens", "released", "in-flight"].map(|limit| left(&server, limit));
    let id = reserved("30s");
    assert_eq!(all(), [600, 600, 1]);
    server.advance(Duration::from_secs(31));
    expires(|| all() == [600, 1_000, 2]);
    let settled = post(&server, "/v1/settle", &json!({"id": id, "costs": [100, 100, 1]}));
    assert_eq!(settled, (200, json!({"settled": true})), "late");
    assert_eq!(all(), [900, 900, 2]);
    server.advance(Duration::from_mins(3));
    expires(|| server.metric("tidegate_reservations") == 0);
    let (status, unknown) = post(&server, "/v1/settle", &json!({"id": id, "costs": [1, 1, 1]}));
    assert_eq!(status, 404, "{unknown}");
    assert!(unknown["detail"].as_str().unwrap().contains("Charge its use"), "{unknown}");
}

/// A task of the server ends what has expired once a second.
fn expires(is_so: impl FnMut() -> bool) {
    tidegate_redis_servers::eventually("the reservation expires", is_so);
}

#[test]
fn a_reservation_outlives_a_restart() {
    let directory = scratch("reserve-restart");
    let server = Running::start_at(options(&directory), START);
    let open = reserve(&server, &of_a_model(500));
    let done = reserve(&server, &json!({"limit": "requests", "key": "alice"}));
    post(&server, "/v1/settle", &json!({"id": done, "costs": [0]}));
    assert_eq!(server.stop(), Ended::Complete);

    let server = Running::start_at(options(&directory), START.saturating_add(Nanos::from_secs(5)));
    assert_eq!(left(&server, "tokens"), 500);
    let settle = |id: &str, costs: &[u32]| post(&server, "/v1/settle", &json!({"id": id, "costs": costs})).1;
    assert_eq!(settle(&done, &[1]), json!({"settled": false}));
    assert_eq!(settle(&open, &[1, 20, 1, 20]), json!({"settled": true}));
    assert_eq!((left(&server, "tokens"), left(&server, "in-flight")), (980, 2));
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn a_reservation_is_settled_after_a_change_of_the_rules() {
    let directory = scratch("reserve-reload");
    let mut server = Running::start_at(options(&directory), START);
    let id = reserve(&server, &of_a_model(500));
    let orders = server.orders();
    let changed = RULES.replace("tokens, limit: 1000/1h", "tokens, limit: 600/1h");
    let changed = changed.replace("  - {name: requests, limit: 5/1h, algorithm: sliding-log}\n", "");
    server.reloading(|| {
        harness::replace(&directory.join("rules.yaml"), changed);
        orders.blocking_send(Order::Reload).unwrap();
    });
    assert_eq!(left(&server, "tokens"), 100);
    post(&server, "/v1/settle", &json!({"id": id, "costs": [1, 50, 1, 50]}));
    assert_eq!(left(&server, "tokens"), 550, "the limit that is gone has nothing to correct");
}

#[test]
fn the_commands_of_redis_clients_reserve_and_settle() {
    let server = Running::with_rules("reserve-resp", RULES);
    let reserved = server.resp("RESERVE 60000 tokens alice 700 all - 700");
    assert!(reserved.starts_with("[0 1000 300 -1 "), "{reserved}");
    let id = reserved.trim_end_matches(']').rsplit(' ').next().unwrap().trim_matches('"').to_owned();
    assert_eq!(id.len(), 32, "{reserved}");
    assert!(server.resp("RESERVE 60000 tokens alice 301 all - 1").starts_with("[1 1000 300 "));
    assert!(server.resp(&format!("EXTEND {id} 200 200")).starts_with("[0 1000 100 "));
    assert!(server.resp(&format!("EXTEND {id} 101 0")).starts_with("[1 1000 100 "));
    assert_eq!(server.resp(&format!("SETTLE {id} 10 10")), "1");
    assert_eq!(server.resp(&format!("SETTLE {id} 10 10")), "0");
    assert_eq!((left(&server, "tokens"), left(&server, "all")), (990, 4_990));
    for (command, error) in [
        ("RESERVE 0 tokens alice 1", "milliseconds is '0'"),
        ("RESERVE 60000 tokens alice 1 all", "wrong number of arguments"),
        ("RESERVE 60000 tokens alice -1", "cost is '-1'"),
        ("RESERVE 60000 toks alice 1", "no limit is named `toks`"),
        ("SETTLE 12 1", "32 hexadecimal digits"),
        ("SETTLE 00000000000000000000000000000000 1", "no reservation has this id"),
    ] {
        let reply = server.resp(command);
        assert!(reply.contains(error), "{command}: {reply}");
    }
}

#[test]
fn more_reservations_than_the_server_keeps_are_refused_and_take_nothing() {
    let server = Running::with_rules_and("reserve-many", RULES, |options| options.max_reservations = 2);
    for _ in 0..2 {
        reserve(&server, &json!({"limit": "tokens", "key": "alice", "cost": 10}));
    }
    let (status, refused) =
        post(&server, "/v1/reserve", &json!({"limit": "tokens", "key": "alice", "cost": 10}));
    assert_eq!(status, 503);
    assert!(refused["detail"].as_str().unwrap().contains("--max-reservations"), "{refused}");
    assert_eq!(left(&server, "tokens"), 980);
}

#[test]
fn a_thousand_streams_at_once_never_exceed_the_limit() {
    let server = Running::with_rules("reserve-streams", "limits: [{name: tokens, limit: 10000/1h}]");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = harness::Http::connect(server.http);
                for turn in 0..125 {
                    let body = json!({"limit": "tokens", "key": "alice", "cost": 100}).to_string();
                    let answer = client.send("POST", "/v1/reserve", &body).json();
                    assert!(answer["remaining"].as_u64() <= Some(10_000));
                    if let Some(id) = answer["id"].as_str() {
                        let costs = json!({"id": id, "costs": [turn % 101]}).to_string();
                        assert_eq!(client.send("POST", "/v1/settle", &costs).status, 200);
                    }
                }
            });
        }
    });
    let used = 10_000 - left(&server, "tokens");
    let settled: u64 = 8 * (0..125).map(|turn| turn % 101).sum::<u64>();
    assert!(used <= settled.min(10_000), "{used} of {settled}");
}

#[test]
fn the_books_example_reserves_and_settles() {
    let server = Running::with_rules("reserve-book", RULES);
    let page = include_str!("../../../docs/src/charge.md");
    let mut answers = Vec::new();
    for call in page.split("curl -s localhost:8080").skip(1) {
        let (path, rest) = call.split_once(" -d '").unwrap();
        let (body, _) = rest.split_once('\'').unwrap();
        let id = answers.first().and_then(|answer: &Value| answer["id"].as_str()).unwrap_or_default();
        let (status, answer) =
            post(&server, path, &serde_json::from_str(&body.replace("9f0c…", id)).unwrap());
        assert_eq!(status, 200, "{path}: {answer}");
        answers.push(answer);
    }
    assert_eq!((&answers[0]["ttl_ms"], &answers[1]), (&json!(120_000), &json!({"settled": true})));
    assert_eq!((left(&server, "requests"), left(&server, "tokens")), (4, 650));
}

#[test]
fn answers_also_have_the_header_fields_of_a_vendor_if_that_is_chosen() {
    let vendor = |options: &mut Options| options.vendor_headers = Some(Vendor::OpenAi);
    let server = Running::with_rules_and("reserve-vendor", RULES, vendor);
    let answer = server.post("/v1/reserve", &of_a_model(100).to_string());
    let fields = |answer: &harness::Response| {
        let names = ["limit", "remaining"]
            .map(|what| ["requests", "tokens"].map(|kind| format!("x-ratelimit-{what}-{kind}")));
        names.concat().iter().map(|name| answer.header(name).unwrap_or("none").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(fields(&answer), ["5", "1000", "4", "900"]);
    assert!(answer.header("ratelimit").is_some());
    let body = json!({"limit": "tokens", "key": "alice", "cost": 901}).to_string();
    let denied = server.post("/v1/acquire", &body);
    assert_eq!(
        (denied.status, fields(&denied)),
        (429, ["none", "1000", "none", "900"].map(str::to_owned).to_vec())
    );
    let reset = denied.header("x-ratelimit-reset-tokens").unwrap();
    assert!(reset.ends_with('s') && reset.contains('m'), "{reset}");
}

#[cfg(feature = "servers")]
#[test]
fn servers_that_share_a_store_settle_what_another_reserved() {
    let store = Server::start(&[]);
    // No window ends during the test. A bucket would lose the refill while it is held, once for each extension.
    let rules = RULES.replace("concurrency}", "concurrency, hold: 1h}").replace("/1h", "/360d");
    let rules = rules.replace("token-bucket", "fixed-window");
    let on_store = |name| harness::on_store(name, &store.address(), &rules);
    let (one, two) = (on_store("reserve-one"), on_store("reserve-two"));
    let all = || ["requests", "tokens", "in-flight", "all"].map(|limit| left(&two, limit));
    let id = reserve(&one, &of_a_model(800));
    assert_eq!(all(), [4, 200, 1, 4_200]);
    let (status, denied) = post(&two, "/v1/reserve", &of_a_model(201));
    assert_eq!((status, &denied["limit_name"], &denied["id"]), (429, &json!("tokens"), &Value::Null));
    assert_eq!(post(&two, "/v1/extend", &json!({"id": id, "costs": [0, 100, 0, 100]})).0, 200);
    assert_eq!(all(), [4, 100, 1, 4_100]);
    let (status, wrong) = post(&two, "/v1/settle", &json!({"id": id, "costs": [1]}));
    assert_eq!((status, wrong["detail"].as_str().unwrap().contains("give 4 costs")), (400, true), "{wrong}");
    assert_eq!(two.resp(&format!("SETTLE {id} 1 350 0 350")), "1");
    assert_eq!(all(), [4, 650, 2, 4_650]);
    assert_eq!(post(&one, "/v1/cancel", &json!({"id": id})), (200, json!({"cancelled": false})));

    let reserved = two.resp("RESERVE 60000 tokens alice 600 all - 600");
    assert!(reserved.starts_with("[0 1000 50 -1 "), "{reserved}");
    let id = reserved.trim_end_matches(']').rsplit(' ').next().unwrap().trim_matches('"').to_owned();
    assert!(two.resp("RESERVE 60000 tokens alice 51").starts_with("[1 1000 50 "));
    assert_eq!(one.resp(&format!("CANCEL {id}")), "1");
    assert_eq!(all(), [4, 650, 2, 4_650]);
    let unknown = "00000000000000000000000000000000";
    assert!(one.resp(&format!("SETTLE {unknown} 1")).contains("no reservation has this id"));
    assert_eq!(post(&one, "/v1/settle", &json!({"id": unknown, "costs": [1]})).0, 404);
    assert!(one.resp("RESERVE 1000 tokens alice 1 tokens alice 2").contains("add up its costs"));
}

#[cfg(feature = "servers")]
#[test]
fn a_server_releases_what_a_dead_one_reserved_by_the_stores_clock() {
    let store = Server::start(&[]);
    let rules = RULES.split("  - {name: in").next().unwrap().replace("/1h", "/360d");
    let on_store = |name| harness::on_store(name, &store.address(), &rules);
    let one = on_store("reserve-dead");
    for limit in ["tokens", "released"] {
        reserve(&one, &json!({"ttl": "1ms", "limit": limit, "key": "alice", "cost": 400}));
    }
    assert_eq!(one.stop(), Ended::Complete);
    let two = on_store("reserve-alive");
    expires(|| left(&two, "released") == 1_000);
    assert_eq!(left(&two, "tokens"), 600, "its limit keeps");
}

#[cfg(feature = "servers")]
#[test]
fn nothing_is_reserved_without_the_store() {
    let store = Server::start(&[]);
    let server =
        harness::on_store("reserve-down", &store.address(), RULES.split("  - {name: in").next().unwrap());
    let id = reserve(&server, &json!({"limit": "tokens", "key": "alice", "cost": 10}));
    drop(store);
    let (status, refused) = post(&server, "/v1/reserve", &json!({"limit": "tokens", "key": "alice"}));
    assert_eq!((status, &refused["title"]), (503, &json!("No reply from the store")), "{refused}");
    assert_eq!(post(&server, "/v1/settle", &json!({"id": id, "costs": [1]})).0, 503);
}
