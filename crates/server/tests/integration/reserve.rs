//! Estimates that are reserved before the work and settled afterwards, through every door.

use crate::harness;

use std::time::Duration;

use harness::{Resp, Running, frame, scratch};
use serde_json::{Value, json};
use tidegate_core::{Clock as _, Nanos};
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
    Options {
        rules: Some(rules),
        state: Some(directory.join("state")),
        ..Options::default()
    }
}

fn left(server: &Running, limit: &str) -> u64 {
    let state = server.post(
        "/v1/peek",
        &json!({"limit": limit, "key": "alice", "cost": 0}).to_string(),
    );
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
    assert_eq!(
        (status, &denied["limit_name"], &denied["id"]),
        (429, &json!("tokens"), &Value::Null)
    );
    assert_eq!(all(), [4, 200, 1, 4_200], "nothing was taken");

    let settle = |costs: &[u32]| post(&server, "/v1/settle", &json!({"id": id, "costs": costs}));
    let (status, wrong) = settle(&[1, 350]);
    assert_eq!(status, 400);
    assert!(
        wrong["detail"].as_str().unwrap().contains("give 4 costs"),
        "{wrong}"
    );
    assert_eq!(settle(&[1, 350, 0, 350]), (200, json!({"settled": true})));
    assert_eq!(all(), [4, 650, 2, 4_650]);
    assert_eq!(
        settle(&[1, 900, 0, 900]),
        (200, json!({"settled": false})),
        "only the first time counts"
    );
    assert_eq!(
        post(&server, "/v1/cancel", &json!({"id": id})),
        (200, json!({"cancelled": false}))
    );
    assert_eq!(all(), [4, 650, 2, 4_650]);
    let extended = post(
        &server,
        "/v1/extend",
        &json!({"id": id, "costs": [0, 1, 0, 1]}),
    );
    assert_eq!(extended.0, 409, "{}", extended.1);

    let id = reserve(&server, &of_a_model(600));
    let used = post(
        &server,
        "/v1/settle",
        &json!({"id": id, "costs": [1, 1_600, 1, 1_600]}),
    );
    assert_eq!(used.0, 200);
    let (status, denied) = post(
        &server,
        "/v1/acquire",
        &json!({"limit": "tokens", "key": "alice", "cost": 0}),
    );
    assert_eq!(
        (status, denied["remaining"].as_u64()),
        (429, Some(0)),
        "950 units of debt"
    );
    assert_eq!(left(&server, "in-flight"), 2);
    assert_eq!(server.metric("tidegate_reservations"), 2);
}

#[test]
fn a_stream_takes_more_as_it_runs_on_and_a_cancelled_one_returns_all() {
    let server = Running::with_rules("reserve-extend", RULES);
    let id = reserve(
        &server,
        &json!({"limit": "tokens", "key": "alice", "cost": 300}),
    );
    let extend = |cost: u32| post(&server, "/v1/extend", &json!({"id": id, "costs": [cost]})).0;
    assert_eq!((extend(600), left(&server, "tokens")), (200, 100));
    assert_eq!((extend(101), left(&server, "tokens")), (429, 100));
    assert_eq!(
        post(&server, "/v1/cancel", &json!({"id": id})),
        (200, json!({"cancelled": true}))
    );
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
    let settled = post(
        &server,
        "/v1/settle",
        &json!({"id": id, "costs": [100, 100, 1]}),
    );
    assert_eq!(settled, (200, json!({"settled": true})), "late");
    assert_eq!(all(), [900, 900, 2]);
    server.advance(Duration::from_mins(3));
    expires(|| server.metric("tidegate_reservations") == 0);
    let (status, unknown) = post(
        &server,
        "/v1/settle",
        &json!({"id": id, "costs": [1, 1, 1]}),
    );
    assert_eq!(status, 404, "{unknown}");
    assert!(
        unknown["detail"]
            .as_str()
            .unwrap()
            .contains("Charge its use"),
        "{unknown}"
    );
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

    let server = Running::start_at(
        options(&directory),
        START.saturating_add(Nanos::from_secs(5)),
    );
    assert_eq!(left(&server, "tokens"), 500);
    let settle =
        |id: &str, costs: &[u32]| post(&server, "/v1/settle", &json!({"id": id, "costs": costs})).1;
    assert_eq!(settle(&done, &[1]), json!({"settled": false}));
    assert_eq!(settle(&open, &[1, 20, 1, 20]), json!({"settled": true}));
    assert_eq!(
        (left(&server, "tokens"), left(&server, "in-flight")),
        (980, 2)
    );
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn a_reservation_is_settled_after_a_change_of_the_rules() {
    let directory = scratch("reserve-reload");
    let mut server = Running::start_at(options(&directory), START);
    let id = reserve(&server, &of_a_model(500));
    let orders = server.orders();
    let changed = RULES.replace("tokens, limit: 1000/1h", "tokens, limit: 600/1h");
    let changed = changed.replace(
        "  - {name: requests, limit: 5/1h, algorithm: sliding-log}\n",
        "",
    );
    server.reloading(|| {
        harness::replace(&directory.join("rules.yaml"), changed);
        orders.blocking_send(Order::Reload).unwrap();
    });
    assert_eq!(left(&server, "tokens"), 100);
    post(
        &server,
        "/v1/settle",
        &json!({"id": id, "costs": [1, 50, 1, 50]}),
    );
    assert_eq!(
        left(&server, "tokens"),
        550,
        "the limit that is gone has nothing to correct"
    );
}

#[test]
fn the_commands_of_redis_clients_reserve_and_settle() {
    let server = Running::with_rules("reserve-resp", RULES);
    let reserved = server.resp("RESERVE 60000 tokens alice 700 all - 700");
    assert!(reserved.starts_with("[0 1000 300 -1 "), "{reserved}");
    let id = id_of(&reserved);
    assert_eq!(id.len(), 32, "{reserved}");
    assert!(
        server
            .resp("RESERVE 60000 tokens alice 301 all - 1")
            .starts_with("[1 1000 300 ")
    );
    let upper = id.to_ascii_uppercase();
    assert!(
        server
            .resp(&format!("EXTEND {upper} 200 200"))
            .starts_with("[0 1000 100 ")
    );
    assert!(
        server
            .resp(&format!("EXTEND {id} 101 0"))
            .starts_with("[1 1000 100 ")
    );
    assert_eq!(server.resp(&format!("SETTLE {id} 10 10")), "1");
    assert_eq!(server.resp(&format!("SETTLE {id} 10 10")), "0");
    assert_eq!(
        (left(&server, "tokens"), left(&server, "all")),
        (990, 4_990)
    );
    for (command, error) in [
        ("RESERVE 0 tokens alice 1", "milliseconds is '0'"),
        (
            "RESERVE 60000 tokens alice 1 all",
            "wrong number of arguments",
        ),
        ("RESERVE 60000 tokens alice -1", "cost is '-1'"),
        ("RESERVE 60000 toks alice 1", "no limit is named `toks`"),
        ("SETTLE '' 1", "32 hexadecimal digits"),
        ("SETTLE 12 1", "32 hexadecimal digits"),
        (
            "SETTLE +0123456789abcdef0123456789abcde 1",
            "32 hexadecimal digits",
        ),
        (
            "SETTLE 0123456789abcdef0123456789abcdeg 1",
            "32 hexadecimal digits",
        ),
        (
            "SETTLE 000000000000000000000000000000000 1",
            "32 hexadecimal digits",
        ),
        (
            "SETTLE 00000000000000000000000000000000 1",
            "no reservation has this id",
        ),
    ] {
        let reply = server.resp(command);
        assert!(reply.contains(error), "{command}: {reply}");
    }
}

#[test]
fn more_reservations_than_the_server_keeps_are_refused_and_take_nothing() {
    let server = Running::with_rules_and("reserve-many", RULES, |options| {
        options.max_reservations = 200;
    });
    let body = json!({"ttl": "1s", "limit": "released", "key": "alice", "cost": 2});
    for _ in 0..200 {
        reserve(&server, &body);
    }
    let (status, refused) = post(&server, "/v1/reserve", &body);
    assert_eq!(status, 503);
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("--max-reservations"),
        "{refused}"
    );
    assert_eq!(left(&server, "released"), 600);
    // Those that have expired are remembered for a minute.
    server.advance(Duration::from_secs(1));
    expires(|| left(&server, "released") == 1_000);
    assert_eq!(post(&server, "/v1/reserve", &body).0, 503);
    server.advance(Duration::from_mins(1));
    expires(|| post(&server, "/v1/reserve", &body).0 == 200);
}

/// Ids of reservations are what their replies end with.
fn id_of(reply: &str) -> String {
    reply
        .trim_end_matches(']')
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn a_reservation_ends_at_its_time_and_is_forgotten_a_minute_later() {
    let server = Running::with_rules("reserve-time", RULES);
    let begin = server.clock.now();
    let at = |time: Nanos| server.clock.set(time);
    let (ttl, minute) = (Nanos::from_secs(10), Nanos::from_secs(60));
    let id = id_of(&server.resp("RESERVE 10000 released alice 100"));
    let due = Nanos::new(begin.saturating_add(ttl).get() - 1).saturating_add(ttl);
    at(Nanos::new(begin.saturating_add(ttl).get() - 1));
    assert!(server.resp(&format!("EXTEND {id} 200")).starts_with("[0 "));
    at(due);
    assert!(
        server
            .resp(&format!("EXTEND {id} 1"))
            .contains("has expired")
    );
    expires(|| left(&server, "released") == 1_000);
    // A look just before its time frees what another one holds, and forgets nothing.
    let forgotten = due.saturating_add(minute);
    assert!(
        server
            .resp("RESERVE 59999 released bob 1")
            .starts_with("[0 ")
    );
    at(Nanos::new(forgotten.get() - 1));
    let free = json!({"limit": "released", "key": "bob", "cost": 0}).to_string();
    expires(|| server.post("/v1/peek", &free).json()["remaining"] == 1_000);
    assert_eq!(server.metric("tidegate_reservations"), 2);
    at(forgotten);
    expires(|| server.metric("tidegate_reservations") == 1);
    assert!(
        server
            .resp(&format!("SETTLE {id} 1"))
            .contains("no reservation has this id")
    );
}

/// A reservation as the test knows it.
struct Kept {
    id: String,
    ttl: Nanos,
    due: Nanos,
    units: u64,
    is_open: bool,
}

#[test]
fn whatever_its_time_each_reservation_ends_at_the_first_look_after_it() {
    const LIMIT: u64 = 1_000_000;
    let rules = format!(
        "limits: [{{name: t, limit: {LIMIT}/360d, algorithm: fixed-window, on_expiry: release}}]"
    );
    // The clock makes large steps, which must not end the connection.
    let server = Running::with_rules_and("reserve-times", &rules, |options| {
        options.resp_idle_timeout = Duration::ZERO;
    });
    server.clock.set(START);
    let (mut client, mut seed) = (Resp::connect(server.resp), 11_u64);
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut kept, mut now): (Vec<Kept>, _) = (Vec::new(), START);
    for _ in 0..12 {
        let shifts: Vec<u64> = (0..500).map(|_| random(27)).collect();
        let times: Vec<u64> = shifts
            .into_iter()
            .map(|shift| 1 + random(1 << shift) % 86_400_000)
            .collect();
        for ms in &times {
            client.send(&frame(&format!("RESERVE {ms} t alice 1")));
        }
        for ms in times {
            let (reply, ttl) = (client.reply(), Nanos::from_millis(ms));
            assert!(reply.starts_with("[0 "), "{reply}");
            let due = now.saturating_add(ttl);
            kept.push(Kept {
                id: id_of(&reply),
                ttl,
                due,
                units: 1,
                is_open: true,
            });
        }
        for _ in 0..50 {
            let at = random(kept.len() as u64) as usize;
            let Kept {
                id,
                ttl,
                due,
                units,
                is_open,
            } = &mut kept[at];
            let is_extended = client.ask(&format!("EXTEND {id} 1")).starts_with("[0 ");
            assert_eq!(is_extended, *is_open && now < *due);
            if is_extended {
                *due = now.saturating_add(*ttl).max(*due);
                *units += 1;
            }
        }
        // The clock may be set back.
        let shift = random(27);
        let step = Nanos::from_millis(random(1 << shift));
        now = if random(4) == 0 {
            now.saturating_since(step)
        } else {
            now.saturating_add(step)
        };
        server.clock.set(now);
        kept.retain_mut(|one| {
            if one.is_open && one.due <= now {
                one.is_open = false;
                let due = one.due.saturating_add(one.ttl.max(Nanos::from_secs(60)));
                one.due = due.max(now.saturating_add(Nanos::new(1)));
            }
            one.due > now
        });
        let held: u64 = kept
            .iter()
            .filter(|one| one.is_open)
            .map(|one| one.units)
            .sum();
        expires(|| {
            server.metric("tidegate_reservations") == kept.len() as u64
                && LIMIT - left(&server, "t") == held
        });
    }
    assert!(
        kept.len() > 100 && kept.len() < 5_900,
        "{} are left",
        kept.len()
    );
}

#[test]
fn a_thousand_streams_at_once_never_exceed_the_limit() {
    let server = Running::with_rules(
        "reserve-streams",
        "limits: [{name: tokens, limit: 10000/1h}]",
    );
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
    let page = include_str!("../../../../docs/src/charge.md");
    let mut answers = Vec::new();
    for call in page.split("curl -s localhost:8080").skip(1) {
        let (path, rest) = call.split_once(" -d '").unwrap();
        let (body, _) = rest.split_once('\'').unwrap();
        let id = answers
            .first()
            .and_then(|answer: &Value| answer["id"].as_str())
            .unwrap_or_default();
        let (status, answer) = post(
            &server,
            path,
            &serde_json::from_str(&body.replace("9f0c…", id)).unwrap(),
        );
        assert_eq!(status, 200, "{path}: {answer}");
        answers.push(answer);
    }
    assert_eq!(
        (&answers[0]["ttl_ms"], &answers[1]),
        (&json!(120_000), &json!({"settled": true}))
    );
    assert_eq!(
        (left(&server, "requests"), left(&server, "tokens")),
        (4, 650)
    );
}

#[test]
fn answers_also_have_the_header_fields_of_a_vendor_if_that_is_chosen() {
    let vendor = |options: &mut Options| options.vendor_headers = Some(Vendor::OpenAi);
    let server = Running::with_rules_and("reserve-vendor", RULES, vendor);
    let answer = server.post("/v1/reserve", &of_a_model(100).to_string());
    let fields = |answer: &harness::Response| {
        let names = ["limit", "remaining"]
            .map(|what| ["requests", "tokens"].map(|kind| format!("x-ratelimit-{what}-{kind}")));
        names
            .concat()
            .iter()
            .map(|name| answer.header(name).unwrap_or("none").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(&answer), ["5", "1000", "4", "900"]);
    assert!(answer.header("ratelimit").is_some());
    let body = json!({"limit": "tokens", "key": "alice", "cost": 901}).to_string();
    let denied = server.post("/v1/acquire", &body);
    assert_eq!(
        (denied.status, fields(&denied)),
        (
            429,
            ["none", "1000", "none", "900"].map(str::to_owned).to_vec()
        )
    );
    let reset = denied.header("x-ratelimit-reset-tokens").unwrap();
    assert!(reset.ends_with('s') && reset.contains('m'), "{reset}");
    // An hour is more than these clients wait.
    assert_eq!(denied.header("x-should-retry"), Some("false"));
    assert_eq!(denied.header("retry-after-ms"), None);
    let body = json!({"limit": "tokens", "key": "alice", "cost": 100_000}).to_string();
    let hopeless = server.post("/v1/acquire", &body);
    assert_eq!(hopeless.header("x-should-retry"), Some("false"));
    assert_eq!(answer.header("x-should-retry"), None, "it was admitted");
}

#[cfg(feature = "servers")]
#[test]
fn servers_that_share_a_store_settle_what_another_reserved() {
    let store = Server::start(&[]);
    // No window ends during the test. A bucket would lose the refill while it is held, once for
    // each extension.
    let rules = RULES
        .replace("concurrency}", "concurrency, hold: 1h}")
        .replace("/1h", "/360d");
    let rules = rules.replace("token-bucket", "fixed-window");
    let on_store = |name| harness::on_store(name, &store.address(), &rules);
    let (one, two) = (on_store("reserve-one"), on_store("reserve-two"));
    let all = || ["requests", "tokens", "in-flight", "all"].map(|limit| left(&two, limit));
    let id = reserve(&one, &of_a_model(800));
    assert_eq!(all(), [4, 200, 1, 4_200]);
    let (status, denied) = post(&two, "/v1/reserve", &of_a_model(201));
    assert_eq!(
        (status, &denied["limit_name"], &denied["id"]),
        (429, &json!("tokens"), &Value::Null)
    );
    assert_eq!(
        post(
            &two,
            "/v1/extend",
            &json!({"id": id, "costs": [0, 100, 0, 100]})
        )
        .0,
        200
    );
    assert_eq!(all(), [4, 100, 1, 4_100]);
    let (status, wrong) = post(&two, "/v1/settle", &json!({"id": id, "costs": [1]}));
    assert_eq!(
        (
            status,
            wrong["detail"].as_str().unwrap().contains("give 4 costs")
        ),
        (400, true),
        "{wrong}"
    );
    assert_eq!(two.resp(&format!("SETTLE {id} 1 350 0 350")), "1");
    assert_eq!(all(), [4, 650, 2, 4_650]);
    assert_eq!(
        post(&one, "/v1/cancel", &json!({"id": id})),
        (200, json!({"cancelled": false}))
    );

    let reserved = two.resp("RESERVE 60000 tokens alice 600 all - 600");
    assert!(reserved.starts_with("[0 1000 50 -1 "), "{reserved}");
    let id = id_of(&reserved);
    assert!(
        two.resp("RESERVE 60000 tokens alice 51")
            .starts_with("[1 1000 50 ")
    );
    assert_eq!(one.resp(&format!("CANCEL {id}")), "1");
    assert_eq!(all(), [4, 650, 2, 4_650]);
    let unknown = "00000000000000000000000000000000";
    assert!(
        one.resp(&format!("SETTLE {unknown} 1"))
            .contains("no reservation has this id")
    );
    assert_eq!(
        post(&one, "/v1/settle", &json!({"id": unknown, "costs": [1]})).0,
        404
    );
    assert!(
        one.resp("RESERVE 1000 tokens alice 1 tokens alice 2")
            .contains("add up its costs")
    );
}

#[cfg(feature = "servers")]
#[test]
fn a_server_releases_what_a_dead_one_reserved_by_the_stores_clock() {
    let store = Server::start(&[]);
    let rules = RULES
        .split("  - {name: in")
        .next()
        .unwrap()
        .replace("/1h", "/360d");
    let on_store = |name| harness::on_store(name, &store.address(), &rules);
    let one = on_store("reserve-dead");
    for limit in ["tokens", "released"] {
        reserve(
            &one,
            &json!({"ttl": "1ms", "limit": limit, "key": "alice", "cost": 400}),
        );
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
    let server = harness::on_store(
        "reserve-down",
        &store.address(),
        RULES.split("  - {name: in").next().unwrap(),
    );
    let id = reserve(
        &server,
        &json!({"limit": "tokens", "key": "alice", "cost": 10}),
    );
    drop(store);
    let (status, refused) = post(
        &server,
        "/v1/reserve",
        &json!({"limit": "tokens", "key": "alice"}),
    );
    assert_eq!(
        (status, &refused["title"]),
        (503, &json!("No reply from the store")),
        "{refused}"
    );
    assert_eq!(
        post(&server, "/v1/settle", &json!({"id": id, "costs": [1]})).0,
        503
    );
}
