//! Requests that wait in line over HTTP and RESP.

use crate::harness;

use std::{
    net::{Shutdown, TcpStream},
    time::Duration,
};

use harness::{Http, Resp, Response, Running, acquire, frame, replace, scratch};
use serde_json::json;
use tidegate_redis_servers::eventually;
use tidegate_server::{Ended, Options, Order};

const SECOND: Duration = Duration::from_secs(1);

/// One unit comes back in each second.
const RULES: &str = "
limits:
  - {name: a, limit: 10/10s, algorithm: token-bucket}
  - {name: b, limit: 3/10s, algorithm: fixed-window}
  - {name: queue, limit: 1/1s, algorithm: leaky-bucket, max_wait: 4s}
  - {name: jobs, limit: 2, algorithm: concurrency, hold: 1h}
  - {name: trial, limit: 1/1h, shadow: true}
";

fn server(name: &str) -> Running {
    Running::with_rules(&format!("waiting-{name}"), RULES)
}

/// Sends a request that waits, and returns once it is in line.
fn waiting(server: &Running, body: &str) -> Http {
    let (limit, before) = limit_in(server, body);
    let mut client = Http::connect(server.http);
    client.write(post(body).as_bytes());
    eventually("the request waits", || now_waiting(server, &limit) > before);
    client
}

fn limit_in(server: &Running, body: &str) -> (String, u64) {
    let limit = body.split("\"limit\":\"").nth(1).unwrap();
    let limit = limit.split('"').next().unwrap().to_owned();
    let before = now_waiting(server, &limit);
    (limit, before)
}

fn post(body: &str) -> String {
    let length = body.len();
    format!("POST /v1/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A command that waits, and has the line's place when this returns.
fn resp_waiting(server: &Running, command: &str) -> Resp {
    let at = if command.starts_with("RESERVE") { 2 } else { 1 };
    let limit = command.split(' ').nth(at).unwrap();
    let before = now_waiting(server, limit);
    let mut client = Resp::connect(server.resp);
    client.send(&frame(command));
    eventually(command, || now_waiting(server, limit) > before);
    client
}

fn now_waiting(server: &Running, limit: &str) -> u64 {
    server.metric(&format!("tidegate_waiting{{limit=\"{limit}\"}}"))
}

fn ended(server: &Running, limit: &str, outcome: &str) -> u64 {
    server.metric(&format!(
        "tidegate_waits_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}"
    ))
}

fn wait(limit: &str, key: &str, cost: u64, wait: &str) -> String {
    json!({"limit": limit, "key": key, "cost": cost, "wait": wait})
        .to_string()
        .replace(": ", ":")
}

fn is_admitted(response: &Response) -> bool {
    assert_eq!(
        response.status == 200,
        response.json()["allowed"] == true,
        "{response:?}"
    );
    response.status == 200
}

#[test]
fn a_request_is_answered_when_its_units_are_there_over_both_protocols() {
    let server = server("answered");
    // What fits needs no place.
    let body = wait("a", "alice", 10, "30s");
    let first = server.post("/v1/acquire", &body);
    assert!(is_admitted(&first));
    let mut http = waiting(&server, &wait("a", "alice", 2, "30s"));
    let mut resp = resp_waiting(&server, "ACQUIRE a alice 3 WAIT 30000");
    // Others are answered meanwhile.
    assert_eq!(server.resp("PING"), "PONG");
    assert!(is_admitted(
        &server.post("/v1/acquire", &wait("a", "bob", 1, "30s"))
    ));
    server.advance(2 * SECOND);
    let answer = http.read();
    assert!(is_admitted(&answer), "{answer:?}");
    assert_eq!(answer.json()["delay_ms"], 0);
    assert_eq!(now_waiting(&server, "a"), 1);
    server.advance(3 * SECOND);
    assert_eq!(resp.reply(), "[0 10 0 -1 10000]");
    assert_eq!(now_waiting(&server, "a"), 0);
    assert_eq!(ended(&server, "a", "admitted"), 2, "two had to wait");
    let overview = server.get("/v1/limits").json();
    let a = &overview["limits"][0];
    assert_eq!((&a["waiting"], &a["waited"]), (&json!(0), &json!(2)));
    let page = Http::connect(server.admin)
        .send("GET", "/limit?name=a", "")
        .body;
    let told = "in line: 0 now; 2 were admitted, 0 were too late, 0 left, 0 were refused a place";
    assert!(page.contains(told), "{page}");
    // The connections go on.
    assert_eq!(resp.ask("PING"), "PONG");
    let next = http.send(
        "POST",
        "/v1/acquire",
        &json!({"limit": "a", "key": "alice"}).to_string(),
    );
    assert_eq!(next.status, 429);
    let decided = |outcome| {
        server.metric(&format!(
            "tidegate_decisions_total{{limit=\"a\",outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!((decided("allowed"), decided("denied")), (4, 1));
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once_with_the_time_it_would_take() {
    let server = server("deadline");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let answer = server.post("/v1/acquire", &wait("a", "alice", 6, "5s"));
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["retry_after_ms"], 6_000);
    assert_eq!(answer.header("retry-after"), Some("6"));
    assert_eq!(
        server.resp("ACQUIRE a alice 6 WAIT 5000"),
        "[1 10 0 6000 10000]"
    );
    // More than the limit never fits.
    let never = server.post("/v1/acquire", &wait("a", "alice", 11, "5s"));
    assert_eq!(never.status, 429);
    assert_eq!(never.json()["retry_after_ms"], json!(null));
    // Behind one that waits 4 s, 2 more take 6 s.
    let mut first = waiting(&server, &wait("a", "alice", 4, "5s"));
    assert_eq!(
        server.resp("ACQUIRE a alice 2 WAIT 5999"),
        "[1 10 0 6000 10000]"
    );
    let mut second = resp_waiting(&server, "ACQUIRE a alice 2 WAIT 6000");
    server.advance(6 * SECOND);
    assert!(is_admitted(&first.read()));
    assert_eq!(second.reply(), "[0 10 0 -1 10000]");
    // A queue's delay that ends after the deadline counts as a denial, and takes nothing.
    assert_eq!(server.resp("ACQUIRE queue x 1"), "[0 1 1 -1 1000]");
    assert_eq!(
        server.resp("ACQUIRE queue x 1 WAIT 999"),
        "[1 1 1 1000 2000]"
    );
    let mut queued = resp_waiting(&server, "ACQUIRE queue x 1 WAIT 1000");
    server.advance(SECOND);
    assert_eq!(queued.reply(), "[0 1 1 -1 1000]");
}

#[test]
fn the_first_comes_first_and_a_large_cost_is_not_overtaken() {
    let server = server("order");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let mut large = waiting(&server, &wait("a", "alice", 8, "60s"));
    let mut small = resp_waiting(&server, "ACQUIRE a alice 1 WAIT 60000");
    server.advance(7 * SECOND);
    // Seven units are there, and belong to the first.
    assert_eq!(acquire(&server, "a", "alice").0, 429);
    assert_eq!(now_waiting(&server, "a"), 2);
    let explained = server.get("/v1/explain?limit=a&key=alice").json();
    assert_eq!(explained["waiting"], 2);
    assert_eq!(explained["places"], json!([3, 3, 3, 3, 3, 3, 1, 1, 1, 1]));
    let text = "2 callers in line for it; the place of another one: 1 with priority 9, 3 with priority 5, 3 with priority 0";
    let line = json!({"name": "waiting", "text": text});
    assert!(explained["facts"].as_array().unwrap().contains(&line));
    let other = server.get("/v1/explain?limit=a&key=bob").json();
    assert_eq!(
        (&other["waiting"], &other["places"]),
        (&json!(0), &json!(null))
    );
    server.advance(SECOND);
    assert!(is_admitted(&large.read()));
    assert_eq!(now_waiting(&server, "a"), 1);
    server.advance(SECOND);
    assert_eq!(small.reply(), "[0 10 0 -1 10000]");
}

#[test]
fn commands_behind_one_that_waits_follow_in_order_and_other_connections_do_not_wait() {
    let server = server("pipeline");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let mut client = Resp::connect(server.resp);
    let commands = [
        "PING",
        "ACQUIRE a bob 4",
        "ACQUIRE a alice 1 REASON WAIT 30000",
        "ACQUIRE a bob 6",
        "ACQUIRE a alice 1 WAIT 30000",
        "ECHO last",
    ];
    let pipeline: Vec<u8> = commands.iter().flat_map(|command| frame(command)).collect();
    client.send(&pipeline);
    assert_eq!(client.reply(), "PONG");
    assert_eq!(client.reply(), "[0 10 6 -1 4000]");
    eventually("it waits", || now_waiting(&server, "a") == 1);
    // The commands behind have not run.
    assert_eq!(server.resp("PEEK a bob 6"), "[0 10 6 -1 4000]");
    server.advance(SECOND);
    assert_eq!(client.reply(), "[0 10 0 -1 10000 ]");
    assert_eq!(client.reply(), "[0 10 1 -1 9000]");
    eventually("the next waits", || now_waiting(&server, "a") == 1);
    server.advance(SECOND);
    assert_eq!(client.reply(), "[0 10 0 -1 10000]");
    assert_eq!(client.reply(), "last");
}

#[test]
fn a_command_of_a_transaction_does_not_wait() {
    let server = server("multi");
    let mut client = Resp::connect(server.resp);
    for (command, reply) in [
        ("MULTI", "OK"),
        ("ACQUIRE a alice 10 WAIT 30000", "QUEUED"),
        ("ACQUIRE a alice 1 WAIT 30000", "QUEUED"),
        ("EXEC", "[[0 10 0 -1 10000] [1 10 0 1000 10000]]"),
        ("PING", "PONG"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
}

#[test]
fn a_client_that_goes_away_leaves_the_line_at_once() {
    let server = server("left");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let body = wait("a", "alice", 9, "1h");
    let leave: [&dyn Fn(&TcpStream); 2] = [
        &|stream| stream.shutdown(Shutdown::Both).unwrap(),
        // Closes its half only, which looks the same from here.
        &|stream| stream.shutdown(Shutdown::Write).unwrap(),
    ];
    for (at, leave) in leave.into_iter().enumerate() {
        let http = waiting(&server, &body);
        let resp = resp_waiting(&server, "ACQUIRE a alice 9 WAIT 3600000");
        leave(http.stream());
        eventually("HTTP has left", || now_waiting(&server, "a") == 1);
        leave(resp.stream());
        eventually("RESP has left", || now_waiting(&server, "a") == 0);
        assert_eq!(ended(&server, "a", "left"), 2 * (at as u64 + 1));
    }
    // Commands that the client has sent behind do not hide its end, nor keep they its place.
    let mut resp = Resp::connect(server.resp);
    let pipeline = [
        frame("ACQUIRE a alice 9 WAIT 3600000"),
        frame("ACQUIRE a bob 5"),
    ]
    .concat();
    resp.send(&pipeline);
    eventually("it waits", || now_waiting(&server, "a") == 1);
    drop(resp);
    eventually("it has left", || now_waiting(&server, "a") == 0);
    // One that comes and goes in the same moment.
    for _ in 0..20 {
        let mut resp = Resp::connect(server.resp);
        resp.send(&pipeline);
        resp.stream().shutdown(Shutdown::Both).unwrap();
        let http = TcpStream::connect(server.http).unwrap();
        std::io::Write::write_all(&mut &http, post(&body).as_bytes()).unwrap();
    }
    eventually("all have left", || {
        ended(&server, "a", "left") == 5 + 40 && now_waiting(&server, "a") == 0
    });
    // Nothing was taken.
    server.advance(SECOND);
    assert_eq!(
        server.resp("ACQUIRE a alice 1 WAIT 1000"),
        "[0 10 0 -1 10000]"
    );
    assert_eq!(server.resp("PEEK a bob 10"), "[0 10 10 -1 0]");
}

#[test]
fn whatever_makes_or_takes_room_moves_the_line_at_once() {
    let mut server = Running::start(Options {
        rules: Some({
            let path = scratch("waiting-moves").join("rules.yaml");
            std::fs::write(&path, RULES).unwrap();
            path
        }),
        reload_interval: Duration::from_millis(10),
        ..Options::default()
    });
    let path = std::env::temp_dir()
        .join(format!(
            "tidegate-server-{}-waiting-moves",
            std::process::id()
        ))
        .join("rules.yaml");
    let fill = |key: &str| {
        assert_eq!(
            server.resp(&format!("ACQUIRE b {key} 3")),
            "[0 3 0 -1 10000]"
        );
        resp_waiting(&server, &format!("ACQUIRE b {key} 2 WAIT 30000"))
    };
    // A refund; of one unit it is not enough.
    let mut refunded = fill("refund");
    assert_eq!(server.resp("REFUND b refund 1"), "[0 3 1 -1 10000]");
    assert_eq!(now_waiting(&server, "b"), 1);
    assert_eq!(server.resp("REFUND b refund 1"), "[0 3 0 -1 10000]");
    assert_eq!(refunded.reply(), "[0 3 0 -1 10000]");
    // A reset.
    let mut reset = fill("reset");
    let body = json!({"limit": "b", "key": "reset"}).to_string();
    assert_eq!(server.post("/v1/reset", &body).status, 200);
    assert_eq!(reset.reply(), "[0 3 1 -1 10000]");
    // A larger quota, and then one that is below the cost.
    let mut own = fill("own");
    assert_eq!(server.resp("OVERRIDE b own 5/10s"), "OK");
    assert_eq!(own.reply(), "[0 5 0 -1 10000]");
    let mut never = resp_waiting(&server, "ACQUIRE b own 2 WAIT 30000");
    assert_eq!(server.resp("OVERRIDE b own 1/10s"), "OK");
    let reply = never.reply();
    assert!(reply.starts_with("[1 1 0 -1 "), "{reply}");
    // Permits.
    assert_eq!(server.resp("ACQUIRE jobs x 2"), "[0 2 0 -1 3600000]");
    let mut permit = resp_waiting(&server, "ACQUIRE jobs x 1 WAIT 30000");
    assert_eq!(server.resp("REFUND jobs x 1"), "[0 2 0 -1 3600000]");
    assert_eq!(permit.reply(), "[0 2 0 -1 3600000]");
    // A charge delays, to the window after the next.
    let mut charged = fill("charge");
    assert!(server.resp("CHARGE b charge 1").starts_with("[1 3 0 "));
    // A block holds the line up, its end lets it go on. Blocked for longer than a caller waits,
    // its key is refused at once.
    let mut blocked = fill("block");
    assert_eq!(server.resp("BLOCK b block 25000"), "OK");
    let refused = server.resp("ACQUIRE b block 1 REASON WAIT 20000");
    assert!(refused.starts_with("[1 3 0 25000 "), "{refused}");
    assert!(refused.ends_with(" blocked]"), "{refused}");
    server.advance(10 * SECOND);
    assert_eq!(charged.reply(), "[0 3 1 -1 10000]");
    assert_eq!(now_waiting(&server, "b"), 1);
    assert_eq!(server.resp("UNBLOCK b block"), "1");
    assert_eq!(blocked.reply(), "[0 3 1 -1 10000]");
    // A reload keeps the waiters and moves them, or answers them.
    let mut raised = fill("raised");
    let mut gone = resp_waiting(&server, "ACQUIRE jobs x 1 WAIT 30000");
    let rules = RULES.replace("3/10s", "5/10s").replace(
        "  - {name: jobs, limit: 2, algorithm: concurrency, hold: 1h}\n",
        "",
    );
    server.reloading(|| replace(&path, rules));
    assert_eq!(raised.reply(), "[0 5 0 -1 10000]");
    assert_eq!(
        gone.reply(),
        "ERR the wait ended because limit `jobs` was removed from the rules or made another kind of \
         limit: ask again"
    );
    assert_eq!(server.resp("ACQUIRE b later 5"), "[0 5 0 -1 10000]");
    let mut kept = resp_waiting(&server, "ACQUIRE b later 1 WAIT 30000");
    server.reloading(|| replace(&path, RULES.replace("1/1h", "2/1h")));
    assert_eq!(now_waiting(&server, "b"), 1);
    server.advance(10 * SECOND);
    assert_eq!(kept.reply(), "[0 3 2 -1 10000]");
}

#[test]
fn several_limits_are_waited_for_together() {
    let server = server("joint");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    assert_eq!(server.resp("ACQUIRE b alice 3"), "[0 3 0 -1 10000]");
    let body = r#"{"all":[{"limit":"a","key":"alice","cost":4},{"limit":"b","key":"alice"},{"limit":"trial","key":"alice","cost":9}],"wait":"10s"}"#;
    let late = body.replace("10s", "9s");
    let refused = server.post("/v1/acquire", &late);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["limit_name"], "b");
    assert_eq!(refused.json()["retry_after_ms"], 10_000);
    let mut both = waiting(&server, body);
    assert_eq!(now_waiting(&server, "b"), 1, "it waits at both");
    assert_eq!(
        now_waiting(&server, "trial"),
        0,
        "a shadow limit never denies"
    );
    server.advance(10 * SECOND);
    let answer = both.read();
    assert!(is_admitted(&answer), "{answer:?}");
    let each = answer.json()["decisions"].clone();
    assert_eq!(each.as_array().unwrap().len(), 3);
    assert_eq!(server.resp("PEEK a alice"), "[0 10 6 -1 4000]");
    assert_eq!(server.resp("PEEK b alice"), "[0 3 2 -1 10000]");
    // A client that leaves, leaves both lines.
    assert_eq!(server.resp("ACQUIRE b alice 2"), "[0 3 0 -1 10000]");
    let left = waiting(&server, body);
    drop(left);
    eventually("it has left", || {
        now_waiting(&server, "a") + now_waiting(&server, "b") == 0
    });
}

#[test]
fn a_reservation_waits_in_line_and_its_settlement_moves_the_line() {
    let server = server("reserve");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let reserve =
        |all: &str, wait: &str| format!(r#"{{"all":[{all}],"ttl":"10m","wait":"{wait}"}}"#);
    let one = r#"{"limit":"a","key":"alice","cost":8}"#;
    // A time that cannot be met, at once.
    let late = server.post("/v1/reserve", &reserve(one, "7s"));
    assert_eq!(
        (late.status, late.json()["retry_after_ms"].as_u64()),
        (429, Some(8_000))
    );
    let body = reserve(one, "8s");
    let length = body.len();
    let mut first = Http::connect(server.http);
    first.write(
        format!("POST /v1/reserve HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
            .as_bytes(),
    );
    eventually("it waits", || now_waiting(&server, "a") == 1);
    // Of several limits, over RESP, and behind commands of the connection.
    let mut second = Resp::connect(server.resp);
    let pipeline = [
        frame("PING"),
        frame("RESERVE 600000 a alice 4 b alice 1 WAIT 60000"),
        frame("PING"),
    ]
    .concat();
    second.send(&pipeline);
    assert_eq!(second.reply(), "PONG");
    eventually("the second waits", || now_waiting(&server, "a") == 2);
    let left = resp_waiting(&server, "RESERVE 600000 a alice 1 WAIT 60000");
    drop(left);
    eventually("the third has left", || now_waiting(&server, "a") == 2);
    server.advance(8 * SECOND);
    let answer = first.read();
    assert!(is_admitted(&answer), "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(now_waiting(&server, "a"), 1);
    // Four of the eight were used: the second is served, and its commands go on.
    let settle = json!({"id": id, "costs": [4]}).to_string();
    assert_eq!(server.post("/v1/settle", &settle).status, 200);
    let reply = second.reply();
    assert!(reply.starts_with("[0 10 0 -1 10000 "), "{reply}");
    assert_eq!(second.reply(), "PONG");
    assert_eq!(server.resp("PEEK b alice"), "[0 3 2 -1 2000]");
    let id = reply.trim_end_matches(']').rsplit(' ').next().unwrap();
    assert_eq!(second.ask(&format!("CANCEL {id}")), "1");
    assert_eq!(server.resp("PEEK a alice"), "[0 10 4 -1 6000]");
    assert_eq!(server.resp("PEEK b alice"), "[0 3 3 -1 0]");
    // In a transaction it does not wait, and with an id it cannot.
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("RESERVE 600000 a alice 9 WAIT 60000"), "QUEUED");
    assert_eq!(client.ask("EXEC"), "[[1 10 4 5000 6000 nil]]");
    for (command, error) in [
        (
            "RESERVE 1000 a x 1 WAIT 5 ID 7",
            "a request that waits has no id",
        ),
        (
            "RESERVE 1000 a x 1 WAIT 0",
            "`wait` must be between 1ms and 1h",
        ),
        (
            "RESERVE 1000 a x 1 WAIT 5 WAIT 5",
            "ERR syntax error: WAIT is given twice",
        ),
        (
            "RESERVE 1000 nobody x 1 WAIT 5",
            "no limit is named `nobody`",
        ),
    ] {
        let reply = server.resp(command);
        assert!(reply.contains(error), "{command}: {reply}");
    }
    let once = r#"{"limit":"a","key":"x","wait":"1s","id":"7"}"#;
    let refused = server.post("/v1/reserve", once);
    assert_eq!(
        (refused.status, &refused.json()["pointer"]),
        (400, &json!("#/wait"))
    );
}

#[test]
fn too_many_callers_are_refused_with_the_option_to_raise() {
    let server = Running::with_rules_and("waiting-many", RULES, |options| {
        options.max_waiting = 3;
        options.max_waiting_per_key = Some(2);
    });
    for key in ["alice", "bob"] {
        assert_eq!(
            server.resp(&format!("ACQUIRE a {key} 10")),
            "[0 10 0 -1 10000]"
        );
    }
    let first = waiting(&server, &wait("a", "alice", 1, "1h"));
    let _second = resp_waiting(&server, "ACQUIRE a alice 1 WAIT 30000");
    let of_key = "2 callers wait for this key of limit `a` already: ask later, or raise \
                  --max-waiting-per-key";
    assert_eq!(
        server.resp("ACQUIRE a alice 1 WAIT 30000"),
        format!("ERR {of_key}")
    );
    let refused = server.post("/v1/acquire", &wait("a", "alice", 1, "30s"));
    assert_eq!(
        (refused.status, &refused.json()["detail"]),
        (503, &json!(of_key))
    );
    let _third = resp_waiting(&server, "ACQUIRE a bob 1 WAIT 30000");
    let in_all = "3 callers wait already: ask later, or raise --max-waiting";
    assert_eq!(
        server.resp("ACQUIRE a bob 1 WAIT 30000"),
        format!("ERR {in_all}")
    );
    assert_eq!(
        server.metric("tidegate_waits_refused_total{limit=\"a\"}"),
        3
    );
    // What fits, or cannot be met, needs no place.
    assert_eq!(server.resp("ACQUIRE a carol 1 WAIT 1"), "[0 10 9 -1 1000]");
    assert!(server.resp("ACQUIRE a bob 2 WAIT 1").starts_with("[1 "));
    // A place is free again as soon as its caller has gone.
    drop(first);
    eventually("one has left", || now_waiting(&server, "a") == 2);
    let _fourth = resp_waiting(&server, "ACQUIRE a alice 1 WAIT 30000");
}

#[test]
fn a_server_that_stops_answers_every_caller() {
    let server = server("stop");
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let mut http = waiting(&server, &wait("a", "alice", 1, "1h"));
    let mut resp = Resp::connect(server.resp);
    let pipeline = [
        frame("ACQUIRE a alice 1 WAIT 3600000"),
        frame("ACQUIRE a alice 1 WAIT 3600000"),
        frame("PING"),
    ]
    .concat();
    resp.send(&pipeline);
    eventually("it waits", || now_waiting(&server, "a") == 2);
    server.order(Order::Stop);
    let stopped = "the wait ended because the server is stopping: ask another server";
    let answer = http.read();
    assert_eq!(
        (answer.status, &answer.json()["detail"]),
        (503, &json!(stopped))
    );
    assert_eq!(resp.reply(), format!("ERR {stopped}"));
    assert_eq!(resp.reply(), format!("ERR {stopped}"));
    assert_eq!(resp.reply(), "PONG");
    assert_eq!(server.ended(), Ended::Complete);
}

#[test]
fn a_server_that_stops_soon_lets_callers_wait_until_then() {
    let server = Running::with_rules_and("waiting-drain", RULES, |options| {
        options.drain = Duration::from_hours(1);
    });
    assert_eq!(server.resp("ACQUIRE a alice 10"), "[0 10 0 -1 10000]");
    let mut served = resp_waiting(&server, "ACQUIRE a alice 1 WAIT 3600000");
    server.order(Order::Stop);
    eventually("it is not ready", || server.get("/readyz").status == 503);
    let mut cut = resp_waiting(&server, "ACQUIRE a alice 1 WAIT 3600000");
    server.advance(SECOND);
    assert_eq!(served.reply(), "[0 10 0 -1 10000]");
    server.order(Order::Stop);
    assert!(cut.reply().contains("the server is stopping"));
    assert_eq!(server.ended(), Ended::Complete);
}

#[test]
fn requests_that_cannot_wait_say_why() {
    let server = server("errors");
    let http = |path: &str, body: &str| {
        let answer = server.post(path, body);
        let json = answer.json();
        (
            answer.status,
            json["pointer"].clone(),
            json["detail"].as_str().unwrap().to_owned(),
        )
    };
    let range = "`wait` must be between 1ms and 1h (3600000 ms)";
    for span in ["0s", "61m"] {
        let (status, pointer, detail) = http("/v1/acquire", &wait("a", "x", 1, span));
        assert_eq!((status, pointer), (400, json!("#/wait")));
        assert!(detail.contains(range), "{detail}");
    }
    let (status, pointer, _) = http("/v1/acquire", r#"{"limit":"a","key":"x","wait":30}"#);
    assert_eq!((status, pointer), (400, json!("#/wait")));
    let (status, pointer, detail) = http("/v1/peek", &wait("a", "x", 1, "1s"));
    assert_eq!((status, pointer), (400, json!("#/wait")));
    assert!(detail.contains("a peek takes nothing"), "{detail}");
    let once = r#"{"limit":"a","key":"x","wait":"1s","id":"7"}"#;
    let (status, pointer, detail) = http("/v1/acquire", once);
    assert_eq!((status, pointer), (400, json!("#/wait")));
    assert!(detail.contains("has no id"), "{detail}");
    for (body, why) in [
        (
            r#"{"limit":"a","key":"x","at_most":3,"wait":"1s"}"#,
            "does not wait",
        ),
        (
            r#"{"any":[{"limit":"a","key":"x"},{"limit":"b","key":"x"}],"wait":"1s"}"#,
            "not for `any`",
        ),
    ] {
        let (status, pointer, detail) = http("/v1/acquire", body);
        assert_eq!((status, pointer), (400, json!("#/wait")));
        assert!(detail.contains(why), "{detail}");
    }
    let (status, pointer, _) = http("/v1/acquire", &wait("nobody", "x", 1, "1s"));
    assert_eq!((status, pointer), (404, json!("#/limit")));
    for (command, error) in [
        (
            "ACQUIRE a x 1 WAIT",
            "ERR syntax error: WAIT needs milliseconds",
        ),
        ("ACQUIRE a x 1 WAIT 0", range),
        ("ACQUIRE a x 1 WAIT 3600001", range),
        ("ACQUIRE a x WAIT soon", range),
        (
            "ACQUIRE a x WAIT 5 WAIT 5",
            "after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once",
        ),
        ("ACQUIRE a x WAIT 5 ID 7", "a request that waits has no id"),
        (
            "ACQUIRE a x ATMOST WAIT 5",
            "a request with ATMOST does not wait",
        ),
        ("PEEK a x 1 WAIT", "after the cost only REASON is known"),
        ("ACQUIRE nobody x 1 WAIT 5", "no limit is named `nobody`"),
    ] {
        let reply = server.resp(command);
        assert!(reply.contains(error), "{command}: {reply}");
    }
    // These deny nothing, so there is nothing to wait for.
    assert_eq!(server.resp("ACQUIRE trial x 5 WAIT 5")[..3], *"[0 ");
    assert_eq!(server.resp("ACQUIRE a x 0 WAIT 5"), "[0 10 10 -1 0]");
    assert_eq!(server.resp("ACQUIRE a x WAIT 5"), "[0 10 9 -1 1000]");
}
