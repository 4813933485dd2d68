//! Priorities of requests that wait in line, over HTTP and RESP, in memory and in a store.

use crate::harness;

use harness::{Http, Resp, Running, frame};
use serde_json::json;
use tidegate_redis_servers::eventually;

const RULES: &str = "
limits:
  - {name: jobs, limit: 10, algorithm: concurrency, hold: 20h, line: true}
  - {name: a, limit: 10/10h, algorithm: token-bucket, line: true}
";

/// A client with a request in line.
enum Caller {
    Http(Http),
    Resp(Resp),
}

impl Caller {
    /// Whether the answer is yes.
    fn is_admitted(&mut self) -> bool {
        match self {
            Self::Http(client) => client.read().status == 200,
            Self::Resp(client) => client.reply().starts_with("[0 10 "),
        }
    }
}

fn in_line(server: &Running) -> u64 {
    let explained = server.get("/v1/explain?limit=jobs&key=x");
    explained.json()["waiting"].as_u64().unwrap()
}

/// Sends a request, and returns once as many are in line at all servers.
fn join(server: &Running, request: &str, callers: u64) -> Caller {
    let caller = match request.split_once(' ') {
        Some((path, body)) if path.starts_with('/') => {
            let mut client = Http::connect(server.http);
            let length = body.len();
            let text = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            client.write(text.as_bytes());
            Caller::Http(client)
        }
        _ => {
            let mut client = Resp::connect(server.resp);
            client.send(&frame(request));
            Caller::Resp(client)
        }
    };
    eventually(request, || in_line(server) == callers);
    caller
}

/// Callers of all protocols at these servers are served by their priorities, and the first to come
/// within one.
fn callers_are_served_by_priority(servers: &[&Running]) {
    let at = |number: usize| servers[number % servers.len()];
    assert!(at(0).resp("ACQUIRE jobs x 10").starts_with("[0 10 0 "));
    let requests = [
        (
            6,
            r#"/v1/acquire {"limit":"jobs","key":"x","cost":10,"wait":"1h"}"#,
        ),
        (
            0,
            r#"/v1/acquire {"limit":"jobs","key":"x","cost":10,"wait":"1h","priority":9}"#,
        ),
        (5, "ACQUIRE jobs x 10 WAIT 3600000 PRIORITY 6"),
        (
            1,
            r#"/v1/acquire {"all":[{"limit":"jobs","key":"x","cost":10}],"wait":"1h","priority":9}"#,
        ),
        (7, "ACQUIRE jobs x 10 REASON WAIT 3600000"),
        (
            9,
            r#"/v1/reserve {"limit":"jobs","key":"x","cost":10,"ttl":"1d","wait":"1h","priority":0}"#,
        ),
        (8, "ACQUIRE jobs x 10 PRIORITY 4 WAIT 3600000 REASON"),
        (2, "RESERVE 86400000 jobs x 10 WAIT 3600000 PRIORITY 9"),
        (4, "RESERVE 86400000 jobs x 10 PRIORITY 7 WAIT 3600000"),
        (
            3,
            r#"/v1/reserve {"all":[{"limit":"jobs","key":"x","cost":10}],"ttl":"1d","wait":"1h","priority":8}"#,
        ),
    ];
    let mut callers: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(number, (turn, request))| {
            (*turn, join(at(number), request, number as u64 + 1), request)
        })
        .collect();
    callers.sort_by_key(|(turn, ..)| *turn);
    let mut left = callers.len() as u64;
    for (turn, caller, request) in &mut callers {
        // One is too few for all of them.
        let refund = |units: u64| at(0).resp(&format!("REFUND jobs x {units}"));
        assert!(refund(1).starts_with("[0 10 1 "));
        assert_eq!(in_line(at(1)), left, "{turn}: {request}");
        assert!(refund(9).starts_with("[0 10 "));
        assert!(caller.is_admitted(), "{turn}: {request}");
        left -= 1;
        eventually("it has left", || in_line(at(1)) == left);
    }
    at(0).resp("REFUND jobs x 10");
}

/// A small cost of a higher priority takes at once what is too little for the first.
fn a_small_cost_of_a_higher_priority_overtakes_a_large_one(servers: &[&Running]) {
    let at = |number: usize| servers[number % servers.len()];
    assert!(at(0).resp("ACQUIRE jobs x 5").starts_with("[0 10 5 "));
    let mut large = join(at(0), "ACQUIRE jobs x 10 WAIT 3600000 PRIORITY 2", 1);
    assert!(at(1).resp("ACQUIRE jobs x 1").starts_with("[1 10 "));
    let urgent = at(1).resp("ACQUIRE jobs x 1 WAIT 3600000 PRIORITY 3");
    assert!(urgent.starts_with("[0 10 4 "), "{urgent}");
    assert_eq!(in_line(at(0)), 1);
    at(1).resp("REFUND jobs x 6");
    assert!(large.is_admitted());
    at(0).resp("REFUND jobs x 10");
    eventually("nobody waits", || in_line(at(0)) == 0);
}

#[test]
fn callers_in_memory_are_served_by_priority() {
    let server = Running::with_rules("priorities-memory", &RULES.replace(", line: true", ""));
    callers_are_served_by_priority(&[&server]);
    a_small_cost_of_a_higher_priority_overtakes_a_large_one(&[&server]);
}

#[cfg(feature = "servers")]
#[test]
fn callers_at_two_servers_with_a_store_are_served_by_priority() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let [one, two] =
        [0, 1].map(|at| harness::on_store(&format!("priorities-{at}"), &store.address(), RULES));
    callers_are_served_by_priority(&[&one, &two]);
    a_small_cost_of_a_higher_priority_overtakes_a_large_one(&[&one, &two]);
}

/// The time of a refusal counts only those in front.
fn a_time_counts_those_in_front(server: &Running) {
    assert!(server.resp("ACQUIRE a x 10").starts_with("[0 10 0 "));
    // A unit an hour comes back.
    let mut low = Resp::connect(server.resp);
    low.send(&frame("ACQUIRE a x 1 WAIT 3600000 PRIORITY 2"));
    eventually("it waits", || {
        server.metric("tidegate_waiting{limit=\"a\"}") == 1
    });
    let ms = |reply: &str| reply.split(' ').nth(3).unwrap().parse::<u64>().unwrap();
    let hour = 3_600_000;
    for (level, hours) in [(2, 2), (1, 2), (3, 1), (9, 1)] {
        let denied = server.resp(&format!("ACQUIRE a x 1 WAIT 1000 PRIORITY {level}"));
        let told = ms(&denied);
        let expected = (hours - 1) * hour + 1..=hours * hour;
        assert!(expected.contains(&told), "{level}: {denied}");
    }
    drop(low);
}

#[test]
fn a_refusal_in_memory_counts_those_in_front() {
    let server = Running::with_rules("priorities-time", &RULES.replace(", line: true", ""));
    a_time_counts_those_in_front(&server);
}

#[cfg(feature = "servers")]
#[test]
fn a_refusal_with_a_store_counts_those_in_front() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let server = harness::on_store("priorities-time-store", &store.address(), RULES);
    a_time_counts_those_in_front(&server);
}

#[test]
fn a_priority_without_a_wait_or_out_of_range_is_refused() {
    let server = Running::with_rules("priorities-errors", RULES);
    let alone = "a priority is for a request that waits in line: give `wait`, too";
    let range = "expected a whole number from 0 to 9; 9 is served first";
    for (path, body, why) in [
        ("acquire", r#"{"limit":"a","key":"x","priority":7}"#, alone),
        (
            "acquire",
            r#"{"all":[{"limit":"a","key":"x"}],"priority":7}"#,
            alone,
        ),
        (
            "acquire",
            r#"{"any":[{"limit":"a","key":"x"}],"priority":7}"#,
            alone,
        ),
        ("peek", r#"{"limit":"a","key":"x","priority":7}"#, alone),
        ("reserve", r#"{"limit":"a","key":"x","priority":7}"#, alone),
        (
            "acquire",
            r#"{"limit":"a","key":"x","wait":"1s","priority":10}"#,
            "invalid value: integer `10`, expected a whole number from 0 to 9; 9 is served first",
        ),
        (
            "acquire",
            r#"{"all":[{"limit":"a","key":"x"}],"wait":"1s","priority":7.5}"#,
            range,
        ),
        (
            "reserve",
            r#"{"limit":"a","key":"x","wait":"1s","priority":-1}"#,
            range,
        ),
        (
            "acquire",
            r#"{"limit":"a","key":"x","wait":"1s","priority":"high"}"#,
            range,
        ),
    ] {
        let answer = server.post(&format!("/v1/{path}"), body);
        let told = answer.json();
        assert_eq!(
            (answer.status, &told["pointer"]),
            (400, &json!("#/priority")),
            "{body}: {told}"
        );
        let detail = told["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{body}: {detail}");
    }
    let level = "ERR a priority is a whole number from 0 to 9; 9 is served first";
    for (command, error) in [
        (
            "ACQUIRE a x 1 WAIT 5 PRIORITY",
            "ERR syntax error: PRIORITY needs a level",
        ),
        ("ACQUIRE a x WAIT 5 PRIORITY 10", level),
        ("ACQUIRE a x WAIT 5 PRIORITY high", level),
        ("ACQUIRE a x WAIT 5 PRIORITY 07", level),
        ("ACQUIRE a x WAIT 5 PRIORITY 7 PRIORITY 7", "each once"),
        ("ACQUIRE a x 1 PRIORITY 7", alone),
        ("ACQUIRE a x PRIORITY 7 ID 1", alone),
        ("ACQUIRE a x PRIORITY 7 ATMOST", alone),
        ("PEEK a x 1 PRIORITY", "after the cost only REASON is known"),
        ("RESERVE 1000 a x 1 WAIT 5 PRIORITY 10", level),
        ("RESERVE 1000 a x 1 PRIORITY 9", alone),
        (
            "RESERVE 1000 a x 1 WAIT 5 ID 7 PRIORITY 3",
            "a request that waits has no id",
        ),
        (
            "RESERVE 1000 a x 1 WAIT 5 PRIORITY 3 PRIORITY 4",
            "ERR syntax error: PRIORITY is given twice",
        ),
        ("RESERVE 1000 a x 1 PRIORITY", "wrong number of arguments"),
    ] {
        let reply = server.resp(command);
        assert!(reply.contains(error), "{command}: {reply}");
    }
    // A limit and a key may have the name of an option.
    assert!(
        server
            .resp("RESERVE 1000 a priority 7")
            .starts_with("[0 10 3 ")
    );
    assert!(
        server
            .resp("RESERVE 1000 a wait 1 a priority 1 WAIT 5 PRIORITY 9")
            .starts_with("[0 10 ")
    );
    // A command of a transaction does not wait, so its priority has no effect.
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("ACQUIRE a y 11 WAIT 5 PRIORITY 9"), "QUEUED");
    assert!(client.ask("EXEC").starts_with("[[1 10 "));
}
