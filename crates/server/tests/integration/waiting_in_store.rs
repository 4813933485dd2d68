//! Requests that wait in line for limits in the store, at two servers.
#![cfg(feature = "servers")]

use crate::harness;

use harness::{Http, Resp, Running, acquire, frame, on_store as on, replace};
use serde_json::json;
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::{Ended, Order};

/// No unit comes back by itself within a test.
const RULES: &str = "
limits:
  - {name: a, limit: 10/10h, algorithm: token-bucket, line: true}
  - {name: jobs, limit: 2, algorithm: concurrency, hold: 20h, line: true}
  - {name: plain, limit: 10/10h}
  - {name: trial, limit: 1/10h, shadow: true, line: true}
  - {name: softly, limit: 1/10h, soft: true, line: true}
  - {name: quick, limit: 2/200ms, line: true}
";

fn servers<const N: usize>(name: &str, store: &Server) -> [Running; N] {
    std::array::from_fn(|at| on(&format!("line-{name}-{at}"), &store.address(), RULES))
}

fn wait(limit: &str, key: &str, cost: u64, wait: &str) -> String {
    json!({"limit": limit, "key": key, "cost": cost, "wait": wait}).to_string()
}

fn post(body: &str) -> String {
    let length = body.len();
    format!("POST /v1/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// How many callers wait for a key at all servers.
fn in_line(server: &Running, limit: &str, key: &str) -> u64 {
    let explained = server.get(&format!("/v1/explain?limit={limit}&key={key}"));
    explained.json()["waiting"].as_u64().unwrap()
}

fn until_in_line(server: &Running, limit: &str, key: &str, callers: u64) {
    eventually("they are in line", || {
        in_line(server, limit, key) == callers
    });
}

/// Sends a request that waits for jobs, and returns once it is in line behind as many.
fn http_behind(server: &Running, cost: u64, before: u64) -> Http {
    let mut client = Http::connect(server.http);
    client.write(post(&wait("jobs", "x", cost, "1h")).as_bytes());
    until_in_line(server, "jobs", "x", before + 1);
    client
}

fn resp_behind(server: &Running, cost: u64, before: u64) -> Resp {
    let mut client = Resp::connect(server.resp);
    client.send(&frame(&format!("ACQUIRE jobs x {cost} WAIT 3600000")));
    until_in_line(server, "jobs", "x", before + 1);
    client
}

fn ended(server: &Running, limit: &str, outcome: &str) -> u64 {
    server.metric(&format!(
        "tidegate_waits_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}"
    ))
}

#[test]
fn callers_at_two_servers_are_served_in_the_order_of_arrival_over_both_protocols() {
    let store = Server::start(&[]);
    let [one, two] = servers("order", &store);
    let at_once = one.post("/v1/acquire", &wait("jobs", "x", 2, "1h"));
    assert_eq!(at_once.status, 200);
    let mut first = http_behind(&one, 2, 0);
    let mut second = resp_behind(&two, 1, 1);
    let mut third = http_behind(&one, 1, 2);
    let explained = two.get("/v1/explain?limit=jobs&key=x").json();
    let line = json!({"name": "waiting", "text": "3 callers in line for it"});
    assert!(explained["facts"].as_array().unwrap().contains(&line));
    assert_eq!(one.metric("tidegate_waiting{limit=\"jobs\"}"), 2);
    // One is free, and belongs to the first, who needs two.
    assert!(two.resp("REFUND jobs x 1").starts_with("[0 2 1 "));
    assert_eq!(acquire(&two, "jobs", "x").0, 429);
    assert_eq!(in_line(&one, "jobs", "x"), 3);
    one.resp("REFUND jobs x 1");
    let answer = first.read();
    assert_eq!(
        (answer.status, &answer.json()["allowed"]),
        (200, &json!(true))
    );
    until_in_line(&one, "jobs", "x", 2);
    two.resp("REFUND jobs x 1");
    assert!(second.reply().starts_with("[0 2 0 "));
    assert_eq!(in_line(&one, "jobs", "x"), 1);
    one.resp("REFUND jobs x 1");
    assert_eq!(third.read().status, 200);
    assert_eq!(
        (
            ended(&one, "jobs", "admitted"),
            ended(&two, "jobs", "admitted")
        ),
        (2, 1)
    );
    assert_eq!(acquire(&two, "jobs", "y").0, 200);
    // Time alone serves, too.
    for _ in 0..6 {
        assert!(
            two.resp("ACQUIRE quick x 1 WAIT 60000")
                .starts_with("[0 2 ")
        );
    }
}

#[test]
fn what_cannot_wait_in_the_store_says_why() {
    let store = Server::start(&[]);
    let [server] = servers("errors", &store);
    let refused = |path: &str, body: &str, why: &str| {
        let answer = server.post(path, body);
        let json = answer.json();
        assert_eq!(
            (answer.status, &json["pointer"]),
            (409, &json!("#/wait")),
            "{json}"
        );
        assert!(json["detail"].as_str().unwrap().contains(why), "{json}");
    };
    let lineless =
        "limit `plain` is in the store and has no line there: add `line: true` to its rule";
    refused("/v1/acquire", &wait("plain", "x", 1, "1s"), lineless);
    let reply = server.resp("ACQUIRE plain x 1 WAIT 1000");
    assert!(reply.starts_with(&format!("ERR {lineless}")), "{reply}");
    let all = r#"{"all":[{"limit":"a","key":"x"},{"limit":"plain","key":"x"}],"wait":"1s"}"#;
    refused("/v1/acquire", all, lineless);
    refused("/v1/reserve", all, lineless);
    let twice = r#"{"all":[{"limit":"a","key":"x"},{"limit":"a","key":"x"}],"wait":"1s"}"#;
    let answer = server.post("/v1/acquire", twice);
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("add up its costs"), "{detail}");
    // These deny nothing.
    for limit in ["trial", "softly"] {
        let reply = server.resp(&format!("ACQUIRE {limit} x 5 WAIT 1000"));
        assert!(reply.starts_with("[0 "), "{reply}");
    }
    // A time that cannot be met, at once; and what never fits.
    assert!(server.resp("ACQUIRE a x 10 WAIT 1").starts_with("[0 10 0 "));
    let late = server.post("/v1/acquire", &wait("a", "x", 1, "59m"));
    let retry = late.json()["retry_after_ms"].as_u64();
    assert_eq!(late.status, 429);
    assert!(
        retry > Some(59 * 60_000) && retry <= Some(3_600_000),
        "{retry:?}"
    );
    let never = server.post("/v1/acquire", &wait("a", "x", 11, "59m"));
    assert_eq!(
        (never.status, &never.json()["retry_after_ms"]),
        (429, &json!(null))
    );
    assert_eq!(in_line(&server, "a", "x"), 0);
    // Commands of a pipeline follow in order.
    let mut client = Resp::connect(server.resp);
    server.resp("ACQUIRE jobs x 2");
    let pipeline = [frame("ACQUIRE jobs x 1 WAIT 3600000"), frame("PING")].concat();
    client.send(&pipeline);
    until_in_line(&server, "jobs", "x", 1);
    server.resp("REFUND jobs x 1");
    assert!(client.reply().starts_with("[0 2 0 "));
    assert_eq!(client.reply(), "PONG");
}

/// A request for jobs and another limit that waits, once it is in line behind as many.
fn both_behind(server: &Running, path: &str, cost: u64, before: u64) -> Http {
    let part = |limit: &str| json!({"limit": limit, "key": "x", "cost": cost});
    let body = json!({"all": [part("a"), part("jobs"), part("trial")], "wait": "1h"}).to_string();
    let length = body.len();
    let text = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
    let mut client = Http::connect(server.http);
    client.write(text.as_bytes());
    until_in_line(server, "jobs", "x", before + 1);
    client
}

#[test]
fn several_limits_are_waited_for_together_at_two_servers() {
    let store = Server::start(&[]);
    let [one, two] = servers("together", &store);
    assert!(one.resp("ACQUIRE jobs x 2").starts_with("[0 2 0 "));
    let mut first = both_behind(&one, "/v1/acquire", 2, 0);
    let mut second = both_behind(&two, "/v1/acquire", 1, 1);
    let mut third = resp_behind(&one, 1, 2);
    let mut fourth = Resp::connect(two.resp);
    fourth.send(&frame("ACQUIRE a x 8 WAIT 3600000"));
    until_in_line(&two, "a", "x", 3);
    // The units of one limit do not suffice, and nobody takes them in the meantime.
    one.resp("REFUND jobs x 1");
    assert_eq!(acquire(&two, "a", "x").0, 429);
    two.resp("REFUND jobs x 1");
    let answer = first.read();
    let json = answer.json();
    assert_eq!(
        (answer.status, &json["allowed"]),
        (200, &json!(true)),
        "{json}"
    );
    assert_eq!(
        json["decisions"].as_array().map(Vec::len),
        Some(3),
        "{json}"
    );
    one.resp("REFUND jobs x 1");
    assert_eq!(second.read().json()["allowed"], true);
    one.resp("REFUND jobs x 1");
    assert!(third.reply().starts_with("[0 2 0 "));
    // 3 of 10 are used.
    one.resp("REFUND a x 1");
    assert!(fourth.reply().starts_with("[0 10 0 "));
    assert_eq!(
        (ended(&one, "a", "admitted"), ended(&two, "a", "admitted")),
        (1, 2)
    );
    // A client that goes away leaves both lines.
    let gone = both_behind(&one, "/v1/acquire", 1, 0);
    assert_eq!(in_line(&two, "a", "x"), 1);
    drop(gone);
    until_in_line(&two, "jobs", "x", 0);
    until_in_line(&two, "a", "x", 0);
    // A block of one key holds up all.
    let mut blocked = both_behind(&one, "/v1/acquire", 1, 0);
    assert_eq!(two.resp("BLOCK a x"), "OK");
    eventually("the other server knows it", || {
        acquire(&one, "a", "x").1["reason"] == "blocked"
    });
    one.resp("REFUND a x 10");
    one.resp("REFUND jobs x 1");
    assert_eq!(in_line(&one, "jobs", "x"), 1);
    assert_eq!(two.resp("UNBLOCK a x"), "1");
    assert_eq!(blocked.read().json()["allowed"], true);
    one.order(Order::Stop);
    assert_eq!(one.ended(), Ended::Complete);
}

#[test]
fn a_reservation_waits_in_the_store_and_any_server_settles_it() {
    let store = Server::start(&[]);
    let [one, two] = servers("reserves", &store);
    let first = one.resp("RESERVE 60000 jobs x 2 WAIT 3600000");
    assert!(first.starts_with("[0 "), "{first}");
    let id = |reply: &str| {
        let words = reply.trim_matches(['[', ']']).split(' ');
        let mut id = words.map(|word| word.trim_matches(['[', ']', '"']));
        id.rfind(|word| word.len() >= 20)
            .unwrap_or_else(|| panic!("no id in {reply}"))
            .to_owned()
    };
    let mut over_http = both_behind(&two, "/v1/reserve", 1, 0);
    let mut over_resp = Resp::connect(one.resp);
    over_resp.send(&frame("RESERVE 60000 jobs x 2 WAIT 3600000"));
    until_in_line(&one, "jobs", "x", 2);
    // Permits return as a whole, and two servers notice it.
    assert_eq!(two.resp(&format!("SETTLE {} 2", id(&first))), "1");
    let answer = over_http.read();
    let json = answer.json();
    assert_eq!(
        (answer.status, &json["allowed"]),
        (200, &json!(true)),
        "{json}"
    );
    let reserved = json["id"].as_str().unwrap_or_else(|| panic!("{json}"));
    let costs = json!({"id": reserved, "costs": [0, 1, 1]}).to_string();
    let settled = one.post("/v1/settle", &costs);
    assert_eq!(settled.json(), json!({"settled": true}), "{settled:?}");
    let reply = over_resp.reply();
    assert!(reply.starts_with("[0 "), "{reply}");
    let peeked = one.resp("PEEK a x 0");
    assert!(peeked.starts_with("[0 10 10 "), "{peeked}");
    assert_eq!(two.resp(&format!("SETTLE {} 2", id(&reply))), "1");
    assert_eq!(
        two.resp("ACQUIRE jobs x 2 WAIT 1000").get(..7),
        Some("[0 2 0 ")
    );
    // A time that cannot be met makes none.
    let late = one.resp("RESERVE 60000 a x 11 WAIT 1000");
    assert!(late.starts_with("[1 "), "{late}");
}

#[test]
fn a_client_that_goes_away_and_a_server_that_stops_leave_the_line() {
    let store = Server::start(&[]);
    let [one, two] = servers("left", &store);
    one.resp("ACQUIRE jobs x 2");
    let gone = http_behind(&one, 2, 0);
    let also_gone = resp_behind(&one, 2, 1);
    let mut stays = resp_behind(&two, 1, 2);
    drop(gone);
    until_in_line(&two, "jobs", "x", 2);
    drop(also_gone);
    until_in_line(&two, "jobs", "x", 1);
    assert_eq!(ended(&one, "jobs", "left"), 2);
    two.resp("REFUND jobs x 1");
    assert!(stays.reply().starts_with("[0 2 0 "));
    let mut stopped = resp_behind(&one, 1, 0);
    one.order(Order::Stop);
    assert!(stopped.reply().contains("the server is stopping"));
    assert_eq!(one.ended(), Ended::Complete);
    // At the latest when its time is over.
    until_in_line(&two, "jobs", "x", 0);
    two.resp("REFUND jobs x 1");
    assert_eq!(acquire(&two, "jobs", "x").0, 200);
}

#[test]
fn blocks_overrides_and_changed_rules_decide_for_those_who_already_wait() {
    let store = Server::start(&[]);
    let [one, mut two] = servers("changes", &store);
    one.resp("ACQUIRE jobs x 2");
    let mut blocked = resp_behind(&one, 1, 0);
    assert_eq!(two.resp("BLOCK jobs x"), "OK");
    // Asked where the block was given, it is denied at once.
    assert!(two.resp("ACQUIRE jobs x 1 WAIT 3600000").starts_with("[1 "));
    eventually("the other server knows it", || {
        acquire(&one, "jobs", "x").1["reason"] == "blocked"
    });
    one.resp("REFUND jobs x 1");
    until_in_line(&two, "jobs", "x", 1);
    assert_eq!(two.resp("UNBLOCK jobs x"), "1");
    assert!(blocked.reply().starts_with("[0 2 0 "));
    // An override for the key.
    let mut overridden = resp_behind(&one, 1, 0);
    assert_eq!(two.resp("OVERRIDE jobs x 3"), "OK");
    assert!(overridden.reply().starts_with("[0 3 0 "));
    assert_eq!(two.resp("OVERRIDE jobs x end"), "1");
    // New rules.
    let directory = format!("tidegate-server-{}-line-changes-1", std::process::id());
    let path = std::env::temp_dir().join(directory).join("rules.yaml");
    let mut waits = resp_behind(&two, 2, 0);
    let rules = RULES.replace(
        "limit: 2, algorithm: concurrency",
        "limit: 9, algorithm: concurrency",
    );
    two.reloading(|| replace(&path, rules));
    assert!(waits.reply().starts_with("[0 9 4 "));
    let mut removed = resp_behind(&two, 9, 0);
    let fewer = "limits: [{name: a, limit: 10/10h, algorithm: token-bucket, line: true}]";
    two.reloading(|| replace(&path, fewer));
    assert!(removed.reply().contains("limit `jobs` was removed"));
    eventually("the place is free", || in_line(&one, "jobs", "x") == 0);
}

#[test]
fn the_death_of_the_store_answers_those_who_wait() {
    let store = Server::start(&[]);
    let rules = RULES.replace("hold: 20h", "hold: 20h, on_error: closed");
    let server = on("line-death", &store.address(), &rules);
    server.resp("ACQUIRE jobs x 2");
    let mut waits = http_behind(&server, 1, 0);
    drop(store);
    let answer = waits.read();
    assert_eq!(
        (answer.status, &answer.json()["reason"]),
        (429, &json!("store-down")),
        "{answer:?}"
    );
    assert_eq!(server.metric("tidegate_waiting{limit=\"jobs\"}"), 0);
}
