//! The promises of servers that share limits over a store: a real one, which the tests disturb.
#![cfg(feature = "servers")]

use crate::harness;

use std::time::Duration;

use harness::{Resp, Running, acquire, admitted, frame, on_store as on};
use serde_json::json;
use tidegate_redis_servers::{Cluster, PATIENCE, Server, eventually};
use tidegate_server::Options;

/// The windows do not end within a test. `local`, `open` and `closed` are named after their
/// `on_error`.
const RULES: &str = "
limits:
  - {name: log, limit: 20/1h, algorithm: sliding-log, overrides: {vip: 30/1h}, deny: [mallory]}
  - {name: bucket, limit: 40/1h, algorithm: token-bucket, burst: 4}
  - {name: everyone, limit: 50/1h, algorithm: sliding-log, global: true}
  - {name: trial, limit: 1/1h, algorithm: sliding-log, shadow: true}
  - {name: opens, limit: 1/1h, algorithm: sliding-log, on_error: open}
";
const CLOSED: &str = "  - {name: closes, limit: 5/1h, algorithm: sliding-log, on_error: closed}\n";

#[test]
fn two_servers_share_a_limit_and_are_never_over_together() {
    let store = Server::start(&[]);
    let servers = ["shared-one", "shared-two"].map(|name| on(name, &store.address(), RULES));
    for (limit, key, most) in [
        ("log", "alice", 20),
        ("log", "vip", 30),
        ("everyone", "-", 50),
    ] {
        let total: usize = std::thread::scope(|scope| {
            let asking = servers.iter().flat_map(|server| [server; 3]);
            let asking: Vec<_> = asking
                .map(|server| scope.spawn(|| admitted(server, limit, key, 20)))
                .collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).sum()
        });
        assert_eq!(total, most, "{limit} {key}");
    }
    let [one, two] = &servers;
    let (status, body) = acquire(one, "log", "alice");
    assert_eq!(
        (status, &body["remaining"], &body["limit"]),
        (429, &json!(0), &json!(20))
    );
    assert!(body["retry_after_ms"].as_u64() > Some(3_000_000), "{body}");
    // The limit's metrics count the decisions of each server separately.
    let count = |server: &Running, outcome: &str| {
        server.metric(&format!(
            "tidegate_decisions_total{{limit=\"log\",outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(count(one, "allowed") + count(two, "allowed"), 50);
    assert!(one.metric("tidegate_shared_store_decisions_total{by=\"store\"}") > 0);
    assert_eq!(one.metric("tidegate_shared_store_up"), 1);
}

#[test]
fn decisions_that_a_server_can_make_alone_do_not_ask_the_store() {
    let store = Server::start(&[]);
    let server = on("shared-own", &store.address(), RULES);
    assert_eq!(acquire(&server, "log", "mallory").0, 429);
    assert_eq!(server.resp("ACQUIRE log mallory"), "[1 20 0 -1 -1]");
    assert_eq!(server.resp("BLOCK log bob"), "OK");
    assert_eq!(acquire(&server, "log", "bob").0, 429);
    assert_eq!(server.resp("UNBLOCK log bob"), "1");
    assert_eq!(acquire(&server, "log", "bob").0, 200);
    // A shadow limit denies nobody, and reports what it would have decided.
    assert_eq!(acquire(&server, "trial", "bob").0, 200);
    let (status, body) = acquire(&server, "trial", "bob");
    assert_eq!((status, &body["shadow"]["would_deny"]), (200, &json!(true)));
    // A peek takes nothing, and returns what remains before its cost.
    for _ in 0..2 {
        assert!(
            server.resp("PEEK bucket bob 3").starts_with("[0 4 4 -1 "),
            "{}",
            server.resp("PEEK bucket bob 3")
        );
    }
    assert!(
        server
            .resp("ACQUIRE bucket bob 3")
            .starts_with("[0 4 1 -1 ")
    );
    assert!(server.resp("PEEK bucket bob 2").starts_with("[1 4 1 "));
    let peek = server.post("/v1/peek", r#"{"limit":"bucket","key":"bob","cost":2}"#);
    assert_eq!((peek.status, &peek.json()["allowed"]), (200, &json!(false)));
    assert!(server.resp("REFUND nowhere bob").contains("no limit"));
    assert!(server.resp("ACQUIRE bucket bob x").contains("whole number"));
}

#[test]
fn joint_decisions_are_one_step_across_servers() {
    let store = Server::start(&[]);
    let servers = ["joint-one", "joint-two"].map(|name| on(name, &store.address(), RULES));
    let ask = r#"{"all":[{"limit":"bucket","key":"alice"},{"limit":"everyone"},{"limit":"trial","key":"alice"}]}"#;
    let statuses: Vec<u16> = (0..6)
        .map(|at| servers[at % 2].post("/v1/acquire", ask).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    // The denials took nothing from the limit that would have admitted.
    assert_eq!(acquire(&servers[0], "everyone", "-").1["remaining"], 45);
    let peek = servers[1].post("/v1/peek", ask).json();
    assert_eq!(
        (&peek["allowed"], &peek["limit_name"]),
        (&json!(false), &json!("bucket"))
    );
    // A key that is blocked on this server is denied before the store is asked.
    servers[0].resp("BLOCK log eve");
    let blocked = r#"{"all":[{"limit":"everyone"},{"limit":"log","key":"eve"}]}"#;
    assert_eq!(servers[0].post("/v1/acquire", blocked).status, 429);
    assert_eq!(acquire(&servers[1], "everyone", "-").1["remaining"], 44);
    let unknown = servers[0].post(
        "/v1/acquire",
        r#"{"all":[{"limit":"everyone"},{"limit":"x"}]}"#,
    );
    assert_eq!(
        (unknown.status, &unknown.json()["pointer"]),
        (404, &json!("#/all/1/limit"))
    );
}

#[test]
fn a_pipeline_is_answered_in_order_whatever_it_contains() {
    let store = Server::start(&[]);
    let server = on("shared-pipeline", &store.address(), RULES);
    let mut client = Resp::connect(server.resp);
    let mut sent = Vec::new();
    let mut expected = Vec::new();
    // Far more than a connection may have in flight, for one key and for many.
    for at in 0..400 {
        sent.extend(frame("ACQUIRE log same"));
        expected.push(format!(
            "[{} 20 {} ",
            u8::from(at >= 20),
            19_usize.saturating_sub(at)
        ));
        sent.extend(frame(&format!("ECHO {at}")));
        expected.push(at.to_string());
        sent.extend(frame(&format!("ACQUIRE bucket k{at} 3")));
        expected.push("[0 4 1 ".to_owned());
        sent.extend(frame(&format!("PEEK bucket k{at} 3")));
        expected.push("[1 4 1 ".to_owned());
    }
    sent.extend(frame("QUIT"));
    expected.push("OK".to_owned());
    std::thread::scope(|scope| {
        let mut stream = client.stream().try_clone().unwrap();
        scope.spawn(move || std::io::Write::write_all(&mut stream, &sent).unwrap());
        for (at, expected) in expected.iter().enumerate() {
            let reply = client.reply();
            assert!(
                reply.starts_with(expected),
                "reply {at}: {reply}, not {expected}"
            );
        }
    });
    assert!(client.ends());
}

#[test]
fn a_transaction_over_the_store_is_answered_in_order() {
    let store = Server::start(&[]);
    let server = on("shared-multi", &store.address(), RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("MULTI"), "OK");
    for command in [
        "PING",
        "ACQUIRE bucket alice 3",
        "ECHO between",
        "ACQUIRE bucket alice 3",
        "GCRA k 2 30 60",
        "ACQUIRE log mallory",
        "ACQUIRE bucket bob 0",
        "PING",
    ] {
        assert_eq!(client.ask(command), "QUEUED");
    }
    let replies = client.ask("EXEC");
    let parts = [
        "[PONG [0 4 1 -1 ",
        "] between [1 4 1 ",
        "] [0 3 2 -1 ",
        "] [1 20 0 -1 -1] [0 4 4 -1 0] PONG]",
    ];
    let mut rest = &replies[..];
    for part in parts {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("no {part} in {replies}"));
        rest = &rest[at + part.len()..];
    }
    assert_eq!(client.ask("ECHO after"), "after");
}

#[test]
fn at_most_takes_what_is_available_in_the_store() {
    let store = Server::start(&[]);
    let servers =
        ["shared-at-most-1", "shared-at-most-2"].map(|name| on(name, &store.address(), RULES));
    let mut clients = servers.each_ref().map(|server| Resp::connect(server.resp));
    for (at, command, reply) in [
        (0, "ACQUIRE log alice 15 ATMOST", "[0 20 5 -1 "),
        (1, "ACQUIRE log alice 15 ATMOST", "[0 20 0 -1 "),
        (0, "ACQUIRE log alice 15 ATMOST REASON", "[1 20 0 "),
        (1, "INCREX log:bob BYINT 15", "[15 15]"),
        (0, "INCREX log:bob BYINT 15", "[15 0]"),
        (0, "INCREX log:bob BYINT 15 SATURATE", "[20 5]"),
        (0, "ACQUIRE log mallory 1 ATMOST", "[1 20 0 -1 -1 0]"),
    ] {
        let told = clients[at].ask(command);
        assert!(told.starts_with(reply), "{command}: {told}, not {reply}");
        let taken = told.trim_end_matches([']', ' ']).rsplit(' ').next();
        match command {
            "ACQUIRE log alice 15 ATMOST REASON" => assert_eq!(taken, Some("quota"), "{told}"),
            "ACQUIRE log alice 15 ATMOST" if at == 1 => assert_eq!(taken, Some("5"), "{told}"),
            "ACQUIRE log alice 15 ATMOST" => assert_eq!(taken, Some("15"), "{told}"),
            _ => {}
        }
    }
    let body = r#"{"limit":"log","key":"carol","at_most":30}"#;
    let taken = servers[1].post("/v1/acquire", body).json();
    assert_eq!(
        (&taken["taken"], &taken["remaining"]),
        (&20.into(), &0.into()),
        "{taken}"
    );
    let taken = servers[0].post("/v1/acquire", body).json();
    assert_eq!(
        (&taken["taken"], &taken["allowed"]),
        (&0.into(), &false.into()),
        "{taken}"
    );
    // In a pipeline, behind other questions about the key.
    clients[0].send(
        &[
            frame("ACQUIRE log dave 18"),
            frame("ACQUIRE log dave 9 ATMOST"),
        ]
        .concat(),
    );
    assert!(clients[0].reply().starts_with("[0 20 2 "));
    let told = clients[0].reply();
    assert!(
        told.starts_with("[0 20 0 -1 ") && told.ends_with(" 2]"),
        "{told}"
    );
}

#[test]
fn the_first_limit_that_admits_takes_the_cost_in_the_store() {
    let store = Server::start(&[]);
    let servers = ["shared-any-1", "shared-any-2"].map(|name| on(name, &store.address(), RULES));
    let ask = |at: usize, keys: [&str; 2]| {
        let [first, second] = keys;
        let body = format!(
            r#"{{"any":[{{"limit":"bucket","key":"{first}","cost":2}},{{"limit":"log","key":"{second}","cost":7}}]}}"#
        );
        let told = servers[at].post("/v1/acquire", &body);
        (told.status, told.json()["limit_name"].clone())
    };
    for (at, limit) in [(0, "bucket"), (1, "bucket"), (0, "log"), (1, "log")] {
        assert_eq!(ask(at, ["alice", "alice"]), (200, limit.into()));
    }
    assert_eq!(ask(1, ["alice", "alice"]).0, 429);
    // An operator's block, and a deny list.
    let blocked = servers[0].post("/v1/block", r#"{"limit":"bucket","key":"bob"}"#);
    assert!(blocked.status < 300, "{}", blocked.body);
    assert_eq!(ask(0, ["bob", "bob"]), (200, "log".into()));
    assert_eq!(ask(0, ["bob", "mallory"]).0, 429);
    assert_eq!(ask(0, ["carol", "mallory"]), (200, "bucket".into()));
    // Over RESP, too.
    let ask = |at: usize| {
        let mut client = Resp::connect(servers[at].resp);
        client.ask("ACQUIREANY bucket dora 2 log dora 7")
    };
    for (at, limit) in [(1, "bucket"), (0, "bucket"), (1, "log"), (0, "log")] {
        let reply = ask(at);
        assert!(
            reply.starts_with("[0 ") && reply.ends_with(&format!(" {limit}]")),
            "{reply}"
        );
    }
    assert!(ask(1).ends_with("nil]"));
}

#[test]
fn a_cost_above_the_limit_starts_at_all_servers_when_its_rest_has_come() {
    const RULES: &str = "
limits:
  - {name: bucket, limit: 10/1h, algorithm: token-bucket, oversize_wait: 3h, sharing: leased}
  - {name: lumps, limit: 10/1h, algorithm: fixed-window, burst: 15, first_hit: true, oversize_wait: 3h, sharing: exact}
  - {name: saved, limit: 10/1h, algorithm: fixed-window, burst: 30}
";
    let store = Server::start(&[]);
    let servers = ["oversize-1", "oversize-2"].map(|name| on(name, &store.address(), RULES));
    let ask = |at: usize, command: &str| {
        let reply = Resp::connect(servers[at].resp).ask(command);
        let numbers: Vec<i64> = reply
            .trim_matches(['[', ']'])
            .split(' ')
            .map_while(|number| number.parse().ok())
            .collect();
        assert!(numbers.len() >= 5, "{command}: {reply}");
        (numbers, reply)
    };
    for (limit, hours) in [("bucket", 2), ("lumps", 2)] {
        let (numbers, reply) = ask(0, &format!("ACQUIRE {limit} alice 30"));
        assert_eq!(
            (numbers[0], numbers[3]),
            (0, hours * 3_600_000),
            "{limit}: {reply}"
        );
        let (numbers, reply) = ask(1, &format!("ACQUIRE {limit} alice 1"));
        assert!(
            numbers[0] == 1 && numbers[3] > 3_500_000,
            "{limit}: {reply}"
        );
        // All of a joint decision, a reservation that gives back, and one more than ever fits.
        let body = format!(
            r#"{{"all":[{{"limit":"{limit}","key":"bob","cost":30}},{{"limit":"saved","key":"bob","cost":30}}]}}"#
        );
        assert_eq!(servers[1].post("/v1/acquire", &body).status, 200, "{limit}");
        let reset = servers[1].post("/v1/reset", r#"{"limit":"saved","key":"bob"}"#);
        assert!(reset.status < 300, "{}", reset.body);
        let (_, reply) = ask(0, &format!("RESERVE 60000 {limit} carol 30"));
        let id = reply
            .trim_end_matches(']')
            .rsplit(' ')
            .next()
            .unwrap_or_default();
        assert_eq!(
            Resp::connect(servers[1].resp).ask(&format!("SETTLE {id} 3")),
            "1"
        );
        let (numbers, reply) = ask(0, &format!("ACQUIRE {limit} carol 7"));
        assert_eq!(numbers[0], 0, "{limit}: {reply}");
        let (_, reply) = ask(1, &format!("ACQUIRE {limit} dora 46 REASON"));
        assert!(reply.ends_with("too-large]"), "{limit}: {reply}");
    }
    // Units that windows leave are saved, and counted by all servers.
    assert_eq!(ask(0, "ACQUIRE saved alice 20").0[0], 0);
    assert_eq!(ask(1, "ACQUIRE saved alice 10").0[0], 0);
    let (numbers, reply) = ask(0, "ACQUIRE saved alice 1");
    assert!(
        numbers[0] == 1 && numbers[3] <= 3_600_000 && numbers[4] > 7_200_000,
        "{reply}"
    );
}

/// The store blocks keys for denials; what the same rule and other ones would have done is computed from
/// the server's trace.
#[test]
fn rules_that_block_keys_in_the_store_are_tried_on_the_trace() {
    let store = Server::start(&[]);
    let rule = "limits: [{name: logins, limit: 3/1h, algorithm: sliding-log, block_for: 1h, block_after: 2, block_within: 30m}]";
    let server = Running::with_rules_and("shared-what-if", rule, |options| {
        options.store_deadline = Duration::from_secs(5).into();
        options.store = Some(store.address());
        options.trace_keys = Some("100%".parse().unwrap());
    });
    let ready = || server.get("/readyz").json()["status"] == "ready";
    tidegate_redis_servers::eventually("the store has been reached", ready);
    let mut client = Resp::connect(server.resp);
    let mut denied = 0;
    for cost in [1, 1, 3, 1, 2, 1, 0, 1] {
        let reply = client.ask(&format!("ACQUIRE logins alice {cost} REASON"));
        denied += u64::from(reply.starts_with("[1"));
    }
    assert_eq!(
        client
            .ask("ACQUIRE logins alice 1 REASON")
            .split(' ')
            .next_back(),
        Some("blocked]")
    );
    denied += 1;
    let told = |rules: &str| server.post("/v1/what-if", rules).json()["limits"][0].clone();
    let same = told(rule);
    assert_eq!(same["denied"]["requests"], denied, "{same}");
    assert_eq!(same["would_deny"]["requests"], denied, "{same}");
    // Without blocks the units that are left pass, and one denial that blocks denies more.
    let plain = told("limits: [{name: logins, limit: 3/1h, algorithm: sliding-log}]");
    let strict = told(&rule.replace("block_after: 2, block_within: 30m", "block_after: 1"));
    let number = |told: &serde_json::Value| told["would_deny"]["requests"].as_u64().unwrap();
    assert!(
        number(&plain) < denied && denied < number(&strict),
        "{plain} {strict}"
    );
    let notes = same["notes"].to_string();
    assert!(notes.contains("this server alone"), "{notes}");
}

#[test]
fn a_pipeline_on_one_key_shares_round_trips_and_keeps_its_order() {
    let store = Server::start(&[]);
    let server = on("shared-hot", &store.address(), RULES);
    let mut client = Resp::connect(server.resp);
    let calls = || server.metric("tidegate_shared_store_calls_total");
    let before = calls();
    // In order: 2 of 20, then 3, then 1, ... A cost that no longer fits is denied, and a later one
    // that fits is admitted.
    let costs = (0..1_000).map(|at| [2_u64, 3, 1, 0][at % 4]);
    let sent: Vec<u8> = costs
        .clone()
        .flat_map(|cost| frame(&format!("ACQUIRE log hot {cost}")))
        .collect();
    client.send(&sent);
    let mut left = 20;
    for (at, cost) in costs.enumerate() {
        let admitted = cost <= left;
        left -= if admitted { cost } else { 0 };
        let expected = format!("[{} 20 {left} ", u8::from(!admitted));
        let reply = client.reply();
        assert!(
            reply.starts_with(&expected),
            "reply {at}: {reply}, not {expected}"
        );
    }
    let calls = calls() - before;
    assert!(calls < 100, "{calls} calls for a thousand commands");
}

#[test]
fn a_pipeline_on_many_keys_shares_calls_and_keeps_the_order_of_each_key() {
    let store = Server::start(&[]);
    let server = on("shared-many-keys", &store.address(), RULES);
    let mut client = Resp::connect(server.resp);
    let calls = || server.metric("tidegate_shared_store_calls_total");
    let before = calls();
    // Every fifth of 100 commands has the same key, so its commands are not neighbours.
    let asked = |at: usize| {
        (
            if at.is_multiple_of(5) { 0 } else { at },
            [3_u64, 2, 1][at % 3],
        )
    };
    let commands: Vec<(usize, u64)> = (0..1_000).map(|at| asked(at % 100)).collect();
    let sent: Vec<u8> = commands
        .iter()
        .flat_map(|(key, cost)| frame(&format!("ACQUIRE log k{key} {cost}")))
        .collect();
    client.send(&sent);
    let mut left = std::collections::HashMap::new();
    for (at, (key, cost)) in commands.iter().enumerate() {
        let left = left.entry(key).or_insert(20);
        let admitted = cost <= left;
        *left -= if admitted { cost } else { &0 };
        let expected = format!("[{} 20 {left} ", u8::from(!admitted));
        let reply = client.reply();
        assert!(
            reply.starts_with(&expected),
            "reply {at}: {reply}, not {expected}"
        );
    }
    let calls = calls() - before;
    assert!(calls < 100, "{calls} calls for a thousand commands");
}

#[test]
fn connections_that_ask_at_once_get_each_its_own_answer() {
    let mut store = Server::start(&[]);
    let server = on("shared-crowd", &store.address(), RULES);
    let mut clients: Vec<Resp> = (0..60).map(|_| Resp::connect(server.resp)).collect();
    let all = |clients: &mut [Resp], command: &dyn Fn(usize) -> String| -> Vec<String> {
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(&[frame(&command(at)), frame(&format!("ECHO {at}"))].concat());
        }
        let replies = clients.iter_mut().enumerate().map(|(at, client)| {
            let reply = client.reply();
            assert_eq!(
                client.reply(),
                at.to_string(),
                "after its own answer: {reply}"
            );
            reply
        });
        replies.collect()
    };
    let ask = |at: usize| match at % 5 {
        0 => format!("ACQUIRE bucket k{at} 3"),
        1 => "ACQUIRE log vip".to_owned(),
        2 => "ACQUIRE trial same".to_owned(),
        3 => "ACQUIRE everyone".to_owned(),
        _ => "ACQUIRE log same 2".to_owned(),
    };
    let mut left = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..2 {
        // A client that disconnects before its answer must not disturb the answers of the others.
        let mut leaver = Resp::connect(server.resp);
        leaver.send(&frame("ACQUIRE bucket leaver"));
        drop(leaver);
        for (at, reply) in all(&mut clients, &ask).iter().enumerate() {
            let starts = match at % 5 {
                0 => ["[0 4 1 ", "[1 4 1 "][round],
                1 => "[0 30 ",
                // A shadow limit admits every request.
                2 => "[0 1 0 ",
                3 => "[0 50 ",
                _ => "[",
            };
            assert!(
                reply.starts_with(starts),
                "{at}, round {round}: {reply}, not {starts}"
            );
            let remaining = || reply.split(' ').nth(2).unwrap().parse::<u32>().unwrap();
            match at % 5 {
                1 => left[0].push(remaining()),
                3 => left[1].push(remaining()),
                4 if reply.starts_with("[0 20 ") => left[2].push(remaining()),
                _ => {}
            }
        }
    }
    // Each unit of a shared key was given once.
    for (left, expected) in left
        .iter_mut()
        .zip([(6..30).collect(), (26..50).collect(), vec![]])
    {
        left.sort_unstable();
        let expected = if expected.is_empty() {
            (0..20).step_by(2).collect::<Vec<u32>>()
        } else {
            expected
        };
        assert_eq!(*left, expected);
    }
    store.kill();
    for reply in all(&mut clients, &|_| "ACQUIRE opens k".to_owned()) {
        assert!(reply.starts_with("[0 1 0 "), "{reply}");
    }
    let local = all(&mut clients, &|at| format!("ACQUIRE log local{}", at % 2));
    assert_eq!(
        local
            .iter()
            .filter(|reply| reply.starts_with("[0 20 "))
            .count(),
        40,
        "{local:?}"
    );
}

#[test]
fn a_stopping_server_answers_the_requests_it_has_received() {
    let store = Server::start(&[]);
    let server = on("shared-stops", &store.address(), RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("PING"), "PONG");
    let sent: Vec<u8> = (0..300)
        .flat_map(|at| frame(&format!("ACQUIRE bucket k{at}")))
        .collect();
    client.send(&sent);
    // When the first reply arrives, all requests have arrived or will be read by then.
    assert!(client.reply().starts_with("[0 4 3 "));
    assert_eq!(server.stop(), tidegate_server::Ended::Complete);
    let mut answered = 1;
    while client.reply().starts_with("[0 4 3 ") {
        answered += 1;
    }
    assert_eq!(answered, 300);
}

#[test]
fn throttle_buckets_are_shared_too() {
    let store = Server::start(&[]);
    let servers = ["cell-one", "cell-two"].map(|name| on(name, &store.address(), RULES));
    let ask = |at: usize| servers[at].resp("CL.THROTTLE bob 2 1 3600");
    assert_eq!(
        [ask(0), ask(1)].map(|reply| reply[..8].to_owned()),
        ["[0 3 2 -", "[0 3 1 -"]
    );
    assert!(ask(0).starts_with("[0 3 0 -1 "));
    assert!(ask(1).starts_with("[1 3 0 "));
    assert!(
        servers[0]
            .resp("CL.THROTTLE bob 2 1 3600 0")
            .starts_with("[0 3 0 ")
    );
    assert!(
        servers[0]
            .resp("CL.THROTTLE bob 2 0 3600")
            .contains("Zero rates")
    );
    // A repeated denial needs no store, and is counted like any other.
    let by = |who: &str| {
        servers[1].metric(&format!(
            "tidegate_shared_store_decisions_total{{by=\"{who}\"}}"
        ))
    };
    let (decided, remembered) = (by("store"), by("remembered"));
    for _ in 0..20 {
        assert!(ask(1).starts_with("[1 3 0 "));
    }
    assert_eq!((by("store"), by("remembered")), (decided, remembered + 20));
    let denied = "tidegate_decisions_total{limit=\"CL.THROTTLE\",outcome=\"denied\"}";
    assert_eq!(servers[1].metric(denied), 21);
    // The same bucket by the command of throttlecrab's server, which counts the request itself.
    assert!(
        servers[0]
            .resp("THROTTLE bob 3 1 3600")
            .starts_with("[0 3 0 ")
    );
    assert!(
        servers[0]
            .resp("THROTTLE carol 1 1 3600")
            .starts_with("[1 1 0 ")
    );
    assert_eq!(
        servers[1].resp("THROTTLE bob 1 0 3600"),
        "ERR Zero rates are not supported"
    );
    let body = r#"{"key":"carol","max_burst":1,"count_per_period":1,"period":3600}"#;
    let response = servers[1].post("/throttle", body);
    assert!(
        response.body.contains("\"allowed\":false"),
        "{}",
        response.body
    );
}

#[test]
fn without_the_store_each_limit_follows_on_error_and_then_recovers() {
    let mut store = Server::start(&[]);
    let address = store.address();
    let (server, strict) = (
        on("outage", &address, RULES),
        on("outage-strict", &address, &format!("{RULES}{CLOSED}")),
    );
    assert_eq!(acquire(&server, "opens", "alice").0, 200);
    assert_eq!(acquire(&strict, "closes", "alice").0, 200);
    store.kill();
    eventually("the servers have noticed", || {
        server.get("/readyz").json()["status"] == "degraded" && strict.get("/readyz").status == 503
    });
    let refused = strict.get("/readyz").json();
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.contains("`closes`") && detail.contains("cannot reach the store"),
        "{refused}"
    );
    let degraded = server.get("/readyz");
    assert_eq!(
        (degraded.status, &degraded.json()["store"]),
        (200, &json!("down"))
    );
    assert!(
        degraded.json()["detail"]
            .as_str()
            .unwrap()
            .contains("cannot reach the store")
    );
    assert_eq!(server.metric("tidegate_shared_store_up"), 0);
    // `open` admits beyond the limit, `closed` denies, and `local` admits a share.
    assert_eq!(
        [(); 3].map(|()| acquire(&server, "opens", "alice").0),
        [200; 3]
    );
    let (status, body) = acquire(&strict, "closes", "bob");
    assert_eq!((status, &body["reason"]), (429, &json!("store-down")));
    assert_eq!(strict.resp("ACQUIRE closes bob"), "[1 5 0 -1 0]");
    let local = admitted(&server, "log", "carol", 40);
    assert!(
        (10..=20).contains(&local),
        "{local}: two servers at most, and a limit of 20"
    );
    assert!(server.resp("CL.THROTTLE bob 5 1 3600").starts_with("[0 "));
    let joint = r#"{"all":[{"limit":"bucket","key":"x"},{"limit":"closes","key":"x"}]}"#;
    assert_eq!(strict.post("/v1/acquire", joint).status, 429);
    assert!(server.metric("tidegate_shared_store_decisions_total{by=\"local\"}") >= 40);
    store.start_again();
    for server in [&server, &strict] {
        eventually("the store is back", || {
            server.get("/readyz").json()["status"] == "ready"
        });
    }
    assert_eq!(acquire(&strict, "closes", "dora").1["remaining"], 4);
    assert_eq!(admitted(&server, "log", "dora", 40), 20);
    assert_eq!(
        server.metric("tidegate_shared_store_outages_total{event=\"back\"}"),
        1
    );
}

#[test]
fn a_change_of_the_rules_keeps_the_use_in_the_store() {
    let store = Server::start(&[]);
    let rules = harness::scratch("shared-reload").join("rules.yaml");
    let write = |limit: &str| {
        harness::replace(
            &rules,
            format!("limits: [{{name: log, limit: {limit}, algorithm: sliding-log}}]"),
        );
    };
    write("3/1h");
    let mut options = Options {
        rules: Some(rules.clone()),
        store: Some(store.address()),
        ..Options::default()
    };
    options.store_deadline = Duration::from_secs(5).into();
    options.reload_interval = Duration::from_millis(10);
    let mut server = Running::start(options);
    eventually("the store has been reached", || {
        server.get("/readyz").json()["status"] == "ready"
    });
    assert_eq!(admitted(&server, "log", "alice", 6), 3);
    server.reloading(|| write("5/1h"));
    assert_eq!(admitted(&server, "log", "alice", 6), 2);
    // A limit that cannot be shared rejects the whole file, and the previous rules stay active.
    server.reloading(|| write("5/1h, count_denied: true"));
    assert_eq!(
        server.metric("tidegate_rules_reloads_total{result=\"failed\"}"),
        1
    );
    assert_eq!(acquire(&server, "log", "bob").1["limit"], 5);
}

#[test]
fn a_cluster_makes_joint_decisions_on_keys_with_a_common_hash_tag() {
    let cluster = Cluster::start(3);
    let server = on(
        "shared-cluster",
        &format!("redis+cluster://{}", cluster.addresses().join(",")),
        RULES,
    );
    let ask = |one: &str, other: &str| {
        let all = json!({"all": [{"limit": "bucket", "key": one}, {"limit": "log", "key": other}]});
        server.post("/v1/acquire", &all.to_string())
    };
    let statuses: Vec<u16> = (0..5).map(|_| ask("{acme}:a", "{acme}:b").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    let scattered = ask("alice", "bob");
    assert_eq!(scattered.status, 409);
    assert!(
        scattered.json()["detail"]
            .as_str()
            .unwrap()
            .contains("{hash tag}")
    );
    // Keys on all nodes.
    let mut client = Resp::connect(server.resp);
    for at in 0..100 {
        client.send(&frame(&format!("ACQUIRE bucket user{at}")));
        client.send(&frame(&format!("PEEK bucket user{at} 4")));
    }
    for at in 0..100 {
        assert!(client.reply().starts_with("[0 4 3 "), "{at}");
        assert!(client.reply().starts_with("[1 4 3 "), "{at}");
    }
}

#[test]
fn a_cluster_without_one_of_its_masters_is_degraded() {
    let mut cluster = Cluster::start(3);
    let address = format!("redis+cluster://{}", cluster.addresses().join(","));
    let server = on("shared-part", &address, &format!("{RULES}{CLOSED}"));
    // The other masters continue to serve, and no replica takes over.
    for node in &cluster.servers {
        node.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        node.ask(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    }
    // Not the node that gets a heartbeat in any case: here the requests must find out.
    let home = cluster.servers[0].ask(&["CLUSTER", "KEYSLOT", "tidegate:nodes"]);
    let dead = (home.text().parse::<usize>().unwrap() * 3 / 16_384 + 1) % 3;
    cluster.servers[dead].kill();
    let readyz = || {
        for at in 0..30 {
            acquire(&server, "closes", &format!("key{at}"));
        }
        let readyz = server.get("/readyz");
        (readyz.status, readyz.json())
    };
    let mut told = (0, json!(null));
    eventually("a part is down", || {
        told = readyz();
        told.1["store"] == "partly down"
    });
    // Most keys are decided normally, whatever the limits' on_error, so the server should get
    // requests.
    assert_eq!(
        (told.0, &told.1["status"]),
        (200, &json!("degraded")),
        "{told:?}"
    );
    let detail = |told: &serde_json::Value| told["detail"].as_str().unwrap_or_default().to_owned();
    eventually("the refused connection is reported", || {
        detail(&readyz().1).contains("Connection refused")
    });
    assert!(server.metric("tidegate_shared_store_errors_total{error=\"refused\"}") > 0);
    assert_eq!(server.metric("tidegate_shared_store_up"), 0);
    let (decided, denied) = (0..60)
        .map(|at| acquire(&server, "closes", &format!("new{at}")).0)
        .fold((0, 0), |(decided, denied), status| {
            (
                decided + u32::from(status == 200),
                denied + u32::from(status == 429),
            )
        });
    assert!(
        decided > 0 && denied > 0,
        "{decided} of 60 keys are decided, {denied} denied"
    );
    cluster.servers[dead].start_again();
    eventually("the master is back", || {
        readyz() == (200, json!({"status": "ready"}))
    });
}

#[test]
fn an_invalid_store_is_refused_at_the_start() {
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = Options {
            store: Some("redis://127.0.0.1:1".to_owned()),
            ..Options::default()
        };
        change(&mut options);
        let started = Running::try_start_at(options, tidegate_core::Nanos::from_secs(1));
        started.err().expect("it should not start")
    };
    let address = refused(&|options| options.store = Some("http://localhost".to_owned()));
    assert!(
        address.contains("--store") && address.contains("redis+cluster://"),
        "{address}"
    );
    assert!(refused(&|options| options.store_prefix = "{a}".to_owned()).contains("--store-prefix"));
    assert!(refused(&|options| options.store_deadline = PATIENCE.into()).contains("at most 5s"));
    let rules = harness::scratch("shared-refused").join("rules.yaml");
    std::fs::write(
        &rules,
        "limits:\n  - name: seats\n    algorithm: concurrency\n    limit: 3\n",
    )
    .unwrap();
    let seats = refused(&|options| options.rules = Some(rules.clone()));
    assert!(
        seats.contains("line 3: limit `seats` cannot be shared"),
        "{seats}"
    );
}
