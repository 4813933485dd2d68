//! Requests with an id, which are safe to repeat over every protocol, in memory and over a store.
#![cfg(feature = "servers")]

use crate::harness;

use std::time::Duration;

use harness::{Resp, Running, on_store};
use serde_json::{Value, json};
use tidegate_redis_servers::{Proxy, Server, eventually};

const RULES: &str = "
limits:
  - {name: calls, limit: 10/1h, algorithm: fixed-window}
  - {name: units, limit: 100/1h, algorithm: token-bucket, burst: 100, deny: [mallory]}
  - {name: leased, limit: 50/1h, algorithm: fixed-window, sharing: leased}
  - {name: everyone, limit: 50/1h, algorithm: fixed-window, global: true}
  - {name: trial, limit: 1/1h, algorithm: fixed-window, shadow: true}
  - {name: softly, limit: 1/1h, algorithm: fixed-window, soft: true}
";

fn post(server: &Running, body: &Value) -> (u16, Value) {
    let response = server.post("/v1/acquire", &body.to_string());
    (response.status, response.json())
}

/// What a key has used of a limit.
fn left(server: &Running, limit: &str, key: &str) -> String {
    let reply = server.resp(&format!("PEEK {limit} {key} 0"));
    reply.split(' ').nth(2).unwrap_or_default().to_owned()
}

/// A reservation over HTTP: the status, its id, and what is left.
fn reserve(server: &Running, body: &Value) -> (u16, Value, Value) {
    let response = server.post("/v1/reserve", &body.to_string());
    let answer = response.json();
    let of = |name: &str| answer[name].clone();
    (response.status, of("id"), of("remaining"))
}

/// A repeated reservation is the first one, at either server, whatever happened to its limits.
fn reserves_once(one: &Running, two: &Running) {
    let body = json!({"limit": "units", "key": "r", "cost": 30, "id": "job-1"});
    let (status, id, remaining) = reserve(one, &body);
    assert_eq!((status, &remaining), (200, &json!(70)));
    assert_eq!(reserve(two, &body), (200, id.clone(), json!(70)));
    // Another cost is another reservation, and so is another id.
    let other = json!({"limit": "units", "key": "r", "cost": 20, "id": "job-1"});
    let (_, other_id, remaining) = reserve(two, &other);
    assert_eq!(remaining, 50);
    assert_ne!(other_id, id);
    // Over RESP it is the same reservation, also if the key was blocked in between.
    assert_eq!(one.resp("BLOCK units r"), "OK");
    let again = one.resp("RESERVE 60000 units r 30 ID job-1");
    assert!(
        again.starts_with("[0 100 0 ") && again.ends_with(&format!(" {}]", id.as_str().unwrap())),
        "{again}"
    );
    assert!(
        one.resp("RESERVE 60000 units r 30 ID job-2")
            .starts_with("[1 100 ")
    );
    assert_eq!(one.resp("UNBLOCK units r"), "1");
    // It is settled once. A repeat after that finds the same reservation.
    let id_text = id.as_str().unwrap();
    assert_eq!(two.resp(&format!("SETTLE {id_text} 10")), "1");
    assert_eq!(left(one, "units", "r"), "70");
    assert_eq!(reserve(one, &body), (200, id.clone(), json!(70)));
    assert_eq!(one.resp(&format!("SETTLE {id_text} 10")), "0");
    assert_eq!(left(two, "units", "r"), "70");
    // What was denied took nothing, so it may be admitted later.
    let large = json!({"id": "job-3", "all": [
        {"limit": "units", "key": "r", "cost": 80}, {"limit": "calls", "key": "r"},
    ]});
    assert_eq!(reserve(one, &large).0, 429);
    let cancel = format!("CANCEL {}", other_id.as_str().unwrap());
    assert_eq!(one.resp(&cancel), "1");
    let (status, id, _) = reserve(two, &large);
    assert_eq!(status, 200);
    assert_eq!(reserve(one, &large).1, id);
    assert_eq!(left(two, "calls", "r"), "9");
    // A store's clock goes on between the calls, and a part of a unit may be missing.
    let units = left(one, "units", "r");
    assert!(["9", "10"].contains(&units.as_str()), "{units}");
}

/// The promises of one server, or of two that share a store: a repeated request goes to the other.
fn counts_once(one: &Running, two: &Running) {
    for (key, commands) in [
        ("a", ["ACQUIRE calls a 3 ID x", "ACQUIRE calls a 3 id x"]),
        (
            "b",
            [
                "ACQUIRE calls b 3 REASON ID y",
                "ACQUIRE calls b 3 ID y REASON",
            ],
        ),
    ] {
        let [command, again] = commands;
        let first = one.resp(command);
        assert!(first.starts_with("[0 10 7 -1 "), "{first}");
        for server in [one, two, one] {
            assert_eq!(server.resp(again), first, "{again}");
        }
        assert_eq!(left(two, "calls", key), "7");
    }
    // Without a cost, and for a global limit without a key.
    assert!(one.resp("ACQUIRE calls c ID x").starts_with("[0 10 9 "));
    assert!(two.resp("ACQUIRE calls c ID x").starts_with("[0 10 9 "));
    assert!(
        one.resp("ACQUIRE calls c ID z").starts_with("[0 10 8 "),
        "another id"
    );
    assert!(
        one.resp("ACQUIRE calls c 2 ID z").starts_with("[0 10 6 "),
        "another cost"
    );
    // A denial is the first answer, too.
    let denied = one.resp("ACQUIRE calls c 7 ID w REASON");
    assert!(
        denied.starts_with("[1 10 6 ") && denied.ends_with(" quota]"),
        "{denied}"
    );
    assert_eq!(two.resp("ACQUIRE calls c 7 ID w REASON"), denied);

    let body = json!({"limit": "units", "key": "h", "cost": 40, "id": "5f1c"});
    let (status, first) = post(one, &body);
    assert_eq!((status, &first["remaining"]), (200, &json!(60)));
    assert_eq!(post(two, &body), (200, first));
    let body = json!({"limit": "units", "key": "mallory", "id": "5f1c"});
    assert_eq!(post(one, &body).1["reason"], "deny-listed");
    assert_eq!(post(two, &body).0, 429);

    let all = |cost: u64| {
        json!({"id": "joint", "all": [
            {"limit": "calls", "key": "j", "cost": cost},
            {"limit": "units", "key": "j", "cost": cost},
            {"limit": "leased", "key": "j"},
            {"limit": "trial", "key": "j", "cost": 1},
        ]})
    };
    let (status, first) = post(one, &all(4));
    assert_eq!(status, 200, "{first}");
    for server in [two, one] {
        assert_eq!(post(server, &all(4)), (200, first.clone()));
    }
    let (status, denied) = post(two, &all(7));
    assert_eq!(status, 429, "{denied}");
    assert_eq!(post(one, &all(7)), (429, denied));
    for (limit, expected) in [
        ("calls", "6"),
        ("units", "96"),
        ("leased", "49"),
        ("trial", "0"),
    ] {
        assert_eq!(left(one, limit, "j"), expected, "{limit}");
    }

    // A soft limit counts each request beyond the limit, once.
    for id in ["s1", "s2", "s2", "s3", "s3"] {
        assert!(
            one.resp(&format!("ACQUIRE softly s 1 ID {id}"))
                .starts_with("[0 ")
        );
    }
    let used = "ACQUIRE softly s 0";
    assert!(one.resp(used).starts_with("[0 1 0 "), "{}", one.resp(used));

    let repeats = [one, two].map(|server| server.metric("tidegate_repeats_total"));
    assert!(repeats.iter().sum::<u64>() > 10, "{repeats:?}");
    // Repeated requests are no decisions.
    let count = |server: &Running, outcome: &str| {
        let labels = format!("{{limit=\"units\",outcome=\"{outcome}\"}}");
        server.metric(&format!("tidegate_decisions_total{labels}"))
    };
    let of_both = |outcome| {
        count(one, outcome)
            + if std::ptr::eq(one, two) {
                0
            } else {
                count(two, outcome)
            }
    };
    assert_eq!(of_both("allowed"), 2);
}

#[test]
fn an_id_counts_once_in_memory_for_a_minute() {
    let server = Running::with_rules("repeats", RULES);
    counts_once(&server, &server);
    reserves_once(&server, &server);
    server.advance(Duration::from_secs(62));
    assert!(
        server
            .resp("ACQUIRE calls a 3 ID x")
            .starts_with("[0 10 4 "),
        "it is forgotten"
    );

    // A pipeline and a transaction.
    let mut client = Resp::connect(server.resp);
    for _ in 0..2 {
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask("ACQUIRE calls t 1 ID t1"), "QUEUED");
        assert_eq!(client.ask("ACQUIRE calls t 1 ID t2"), "QUEUED");
        let all = client.ask("EXEC");
        assert!(
            all.starts_with("[[0 10 9 ") && all.contains(" [0 10 8 "),
            "{all}"
        );
    }
}

#[test]
fn an_id_counts_once_at_servers_that_share_a_store() {
    let store = Server::start(&[]);
    let [one, two] = ["repeats-1", "repeats-2"].map(|name| on_store(name, &store.address(), RULES));
    counts_once(&one, &two);
    reserves_once(&one, &two);
}

#[test]
fn an_id_counts_once_through_connections_to_the_store_that_break() {
    let store = Server::start(&[]);
    let proxy = Proxy::before(store.port());
    let server = on_store("repeats-broken", &proxy.address(), RULES);
    let other = on_store("repeats-whole", &store.address(), RULES);
    let ready = |server: &Running| server.get("/readyz").json()["status"] == "ready";
    for round in 0..3 {
        let command = format!("ACQUIRE calls r 1 ID lost-{round}");
        let asked = format!("[0 10 {} ", 9 - round);
        // The store decides, and the server gets no reply.
        proxy.silence();
        let mut client = Resp::connect(server.resp);
        client.send(&harness::frame(&command));
        eventually("the store has decided", || {
            left(&other, "calls", "r") == (9 - round).to_string()
        });
        drop(client);
        proxy.cut();
        eventually("the server is back", || ready(&server));
        // The client connects again, here and to the other server.
        for server in [&other, &server] {
            let reply = server.resp(&command);
            assert!(reply.starts_with(&asked), "{reply}");
        }
        assert_eq!(left(&other, "calls", "r"), (9 - round).to_string());
    }
}

#[test]
fn a_wrong_id_or_place_of_one_is_refused() {
    let server = Running::with_rules("repeats-wrong", RULES);
    let long = "x".repeat(129);
    for (command, expected) in [
        (
            "ACQUIRE calls a ID".to_owned(),
            "ERR syntax error: ID needs an id",
        ),
        (
            "ACQUIRE calls a 1 ID".to_owned(),
            "ERR syntax error: ID needs an id",
        ),
        (
            "ACQUIRE calls a ID x ID y".to_owned(),
            "ERR syntax error: after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once",
        ),
        (
            "ACQUIRE calls a 1 2".to_owned(),
            "ERR syntax error: after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once",
        ),
        (
            "PEEK calls a 1 ID x".to_owned(),
            "ERR wrong number of arguments for 'peek' command; usage: PEEK limit key [cost [REASON]]",
        ),
        (
            "CHARGE calls a ID x".to_owned(),
            "ERR syntax error: after the cost only REASON is known",
        ),
        (
            format!("ACQUIRE calls a 1 ID {long}"),
            "ERR the id has 129 bytes; it must have 1 to 128, such as a UUID that is new for each request",
        ),
        (
            "RESERVE 1000 calls a 1 ID".to_owned(),
            "ERR wrong number of arguments for 'reserve' command; usage: RESERVE milliseconds limit key cost [limit key cost ...] [ID id|WAIT milliseconds [PRIORITY level]]",
        ),
        (
            format!("RESERVE 1000 calls a 1 ID {long}"),
            "ERR the id has 129 bytes; it must have 1 to 128, such as a UUID that is new for each request",
        ),
        (
            "ACQUIRE calls a 1 ID ''".to_owned(),
            "ERR the id has 0 bytes; it must have 1 to 128, such as a UUID that is new for each request",
        ),
    ] {
        assert_eq!(server.resp(&command), expected, "{command}");
    }
    for (path, body, pointer) in [
        (
            "/v1/acquire",
            json!({"limit": "calls", "key": "a", "id": ""}),
            "#/id",
        ),
        (
            "/v1/acquire",
            json!({"limit": "calls", "key": "a", "id": long}),
            "#/id",
        ),
        (
            "/v1/reserve",
            json!({"limit": "calls", "key": "a", "id": long}),
            "#/id",
        ),
        (
            "/v1/peek",
            json!({"limit": "calls", "key": "a", "id": "x"}),
            "#/id",
        ),
        (
            "/v1/acquire",
            json!({"all": [{"limit": "calls", "key": "a", "id": "x"}]}),
            "#/all/0/id",
        ),
    ] {
        let response = server.post(path, &body.to_string());
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert!(response.body.contains(pointer), "{}", response.body);
    }
    assert_eq!(left(&server, "calls", "a"), "10", "nothing was taken");
}
