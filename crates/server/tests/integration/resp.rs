//! The promises of the Redis protocol's listener, over real sockets.

use crate::harness;

use std::{
    io::{Read, Write},
    time::Duration,
};

use harness::{PATIENCE, Resp, Running, frame};

const RULES: &str = "
limits:
  - {name: per-user, limit: 3/1m, algorithm: sliding-log}
  - {name: bucket, limit: 60/1m, algorithm: token-bucket, burst: 2}
  - {name: seats, limit: 2, algorithm: concurrency}
  - {name: paced, limit: 2/1s, algorithm: leaky-bucket, max_wait: 500ms}
  - {name: everyone, limit: 4/500ms, algorithm: fixed-window, global: true}
  - {name: trial, limit: 1/1m, algorithm: sliding-log, shadow: true}
  - {name: logins, limit: 1/10m, algorithm: sliding-log, deny: [mallory]}
";

#[test]
fn acquire_answers_five_integers() {
    let server = Running::with_rules("resp-acquire", RULES);
    let mut client = Resp::connect(server.resp);
    // 0 allowed or 1 denied, limit, remaining, retry-after ms or -1, reset-after ms.
    assert_eq!(client.ask("ACQUIRE bucket alice"), "[0 2 1 -1 1000]");
    assert_eq!(client.ask("acquire bucket alice 1"), "[0 2 0 -1 2000]");
    server.advance(Duration::from_nanos(1));
    assert_eq!(client.ask("ACQUIRE bucket alice"), "[1 2 0 1000 2000]");
    server.advance(Duration::from_nanos(999_999_998));
    assert_eq!(client.ask("ACQUIRE bucket alice"), "[1 2 0 1 1001]");
    server.advance(Duration::from_nanos(1));
    assert_eq!(client.ask("ACQUIRE bucket alice"), "[0 2 0 -1 2000]");
    // More than the bucket holds, so no wait helps.
    assert_eq!(client.ask("ACQUIRE bucket bob 3"), "[1 2 2 -1 0]");
    assert_eq!(client.ask("ACQUIRE logins mallory"), "[1 1 0 -1 -1]");
    assert_eq!(client.ask("ACQUIRE bucket alice 0"), "[0 2 0 -1 2000]");
}

#[test]
fn the_first_limit_that_admits_takes_the_cost() {
    let server = Running::with_rules("resp-any", RULES);
    let mut client = Resp::connect(server.resp);
    for (command, reply) in [
        // The integers of a decision, and the limit that took its cost.
        (
            "ACQUIREANY bucket alice 2 per-user alice 1",
            "[0 2 0 -1 2000 bucket]",
        ),
        (
            "acquireany bucket alice 2 per-user alice 1",
            "[0 3 2 -1 60000 per-user]",
        ),
        (
            "ACQUIREANY bucket alice 2 per-user alice 1",
            "[0 3 1 -1 60000 per-user]",
        ),
        ("ACQUIRE per-user alice 1", "[0 3 0 -1 60000]"),
        // The denial that ends first.
        (
            "ACQUIREANY per-user alice 1 bucket alice 2",
            "[1 2 0 2000 2000 nil]",
        ),
        // A shadow limit never takes the place of another.
        (
            "ACQUIREANY trial bob 1 bucket bob 1",
            "[0 2 1 -1 1000 bucket]",
        ),
        (
            "ACQUIREANY seats a 3 everyone - 1",
            "[0 4 3 -1 500 everyone]",
        ),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    for (command, error) in [
        ("ACQUIREANY bucket alice", "wrong number of arguments"),
        (
            "ACQUIREANY bucket alice 1 seats",
            "wrong number of arguments",
        ),
        ("ACQUIREANY none alice 1", "none"),
        ("ACQUIREANY bucket alice -1", "cost"),
    ] {
        let reply = client.ask(command);
        assert!(
            reply.starts_with("ERR ") && reply.contains(error),
            "{command}: {reply}"
        );
    }
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("ACQUIREANY seats a 3 bucket carol 1"), "QUEUED");
    assert_eq!(client.ask("EXEC"), "[[0 2 1 -1 1000 bucket]]");
}

const OVERSIZE: &str = "
limits:
  - {name: bucket, limit: 10/1s, algorithm: token-bucket, oversize_wait: 3s}
  - {name: lumps, limit: 10/1s, algorithm: fixed-window, burst: 10, first_hit: true, oversize_wait: 3s}
  - {name: plain, limit: 10/1s, algorithm: token-bucket}
";

#[test]
fn a_cost_above_the_limit_starts_when_its_rest_has_come() {
    let server = Running::with_rules("resp-oversize", OVERSIZE);
    let mut client = Resp::connect(server.resp);
    for limit in ["bucket", "lumps"] {
        // Allowed, and starts after two seconds.
        let reply = client.ask(&format!("ACQUIRE {limit} alice 30"));
        assert_eq!(reply, "[0 10 0 2000 3000]", "{limit}");
        let reply = client.ask(&format!("ACQUIRE {limit} alice 1 REASON"));
        assert!(
            reply == "[1 10 0 2100 3000 quota]" || reply == "[1 10 0 3000 3000 quota]",
            "{reply}"
        );
        let reply = client.ask(&format!("ACQUIRE {limit} alice 41 REASON"));
        assert!(reply.ends_with("too-large]"), "{reply}");
        // What is there, and no more.
        let reply = client.ask(&format!("ACQUIRE {limit} bob 30 ATMOST"));
        assert_eq!(reply, "[0 10 0 -1 1000 10]", "{limit}");
        // The whole limit must be there.
        let reply = client.ask(&format!("ACQUIRE {limit} bob 30"));
        assert_eq!(reply, "[1 10 0 1000 1000]", "{limit}");
        // A reservation that used less gives the rest back, and nothing of it is owed.
        let reply = client.ask(&format!("RESERVE 60000 {limit} carol 30"));
        let id = reply
            .trim_end_matches(']')
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned();
        assert_eq!(client.ask(&format!("SETTLE {id} 4")), "1", "{reply}");
        assert_eq!(
            client.ask(&format!("ACQUIRE {limit} carol 6 REASON")),
            "[0 10 0 -1 1000 ]"
        );
        let answer = server.post(
            "/v1/acquire",
            &format!(r#"{{"limit":"{limit}","key":"dora","cost":25}}"#),
        );
        assert_eq!(answer.status, 200);
        let delay = if limit == "bucket" { 1_500 } else { 2_000 };
        assert!(
            answer.body.contains(&format!(r#""delay_ms":{delay}"#)),
            "{}",
            answer.body
        );
    }
    assert_eq!(
        client.ask("ACQUIRE plain alice 11 REASON"),
        "[1 10 10 -1 0 too-large]"
    );
}

#[test]
fn at_most_takes_what_is_available() {
    let server = Running::with_rules("resp-at-most", RULES);
    let mut client = Resp::connect(server.resp);
    // The integers of a decision, and then what was taken.
    for (command, reply) in [
        ("ACQUIRE per-user alice 2 ATMOST", "[0 3 1 -1 60000 2]"),
        (
            "acquire per-user alice 9 atmost reason",
            "[0 3 0 -1 60000 1 ]",
        ),
        (
            "ACQUIRE per-user alice 9 REASON ATMOST",
            "[1 3 0 60000 60000 0 quota]",
        ),
        ("ACQUIRE per-user bob ATMOST", "[0 3 2 -1 60000 1]"),
        ("ACQUIRE per-user bob 0 ATMOST", "[0 3 2 -1 60000 0]"),
        ("ACQUIRE bucket alice 100 ATMOST", "[0 2 0 -1 2000 2]"),
        ("ACQUIRE seats alice 3 ATMOST", "[0 2 0 -1 -1 2]"),
        ("ACQUIRE everyone any 9 ATMOST", "[0 4 0 -1 500 4]"),
        ("ACQUIRE logins mallory 1 ATMOST", "[1 1 0 -1 -1 0]"),
        // The client may use all of a shadow limit.
        ("ACQUIRE trial alice 5 ATMOST", "[0 1 0 -1 60000 5]"),
        ("ACQUIRE trial alice 5 ATMOST REASON", "[0 1 0 -1 60000 5 ]"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    for command in [
        "ACQUIRE per-user alice 2 ATMOST ID one",
        "ACQUIRE per-user alice 2 ATMOST ATMOST",
        "PEEK per-user alice 2 ATMOST",
    ] {
        let reply = client.ask(command);
        assert!(reply.starts_with("ERR syntax error"), "{command}: {reply}");
    }
    assert_eq!(client.ask("PEEK per-user alice 1"), "[1 3 0 60000 60000]");
    let allowed = server.metric("tidegate_decisions_total{limit=\"per-user\",outcome=\"allowed\"}");
    assert_eq!(allowed, 3);
}

#[test]
fn increx_counts_in_the_window_of_a_rule() {
    let server = Running::with_rules("resp-increx", RULES);
    let mut client = Resp::connect(server.resp);
    for (command, reply) in [
        ("INCREX per-user:alice EX 60 ENX UBOUND 3", "[1 1]"),
        ("increx per-user:alice byint 3", "[1 0]"),
        (
            "INCREX per-user:alice BYINT 5 SATURATE PX 60000 ENX",
            "[3 2]",
        ),
        ("INCREX per-user:alice SATURATE", "[3 0]"),
        ("INCREX per-user:alice BYINT 0", "[3 0]"),
        // The rest behind the first colon is the key.
        ("INCREX per-user:a:b", "[1 1]"),
        ("PEEK per-user a:b", "[0 3 2 -1 60000]"),
        ("INCREX everyone BYINT 2", "[2 2]"),
        ("INCREX trial:alice BYINT 7", "[0 7]"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    for (command, part) in [
        ("INCREX per-user", "give a key"),
        ("INCREX none:alice", "no limit is named"),
        (
            "INCREX per-user:bob UBOUND 4",
            "UBOUND is 4, and the rule of `per-user` has 3",
        ),
        ("INCREX per-user:bob EX 61 ENX", "is 60000 ms"),
        ("INCREX seats:bob EX 61 ENX", "is none"),
        ("INCREX per-user:bob EX 60", "add ENX"),
        ("INCREX per-user:bob BYINT", "BYINT needs a number"),
        ("INCREX per-user:bob BYINT -1", "cost is '-1'"),
        (
            "INCREX per-user:bob BYFLOAT 1.5",
            "BYFLOAT is not for limits",
        ),
        ("INCREX per-user:bob PERSIST", "PERSIST is not for limits"),
    ] {
        let reply = client.ask(command);
        assert!(
            reply.starts_with("ERR ") && reply.contains(part),
            "{command}: {reply}"
        );
    }
    assert_eq!(client.ask("PEEK per-user bob"), "[0 3 3 -1 0]");
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("INCREX per-user:bob"), "QUEUED");
    assert!(client.ask("INCREX none:bob").starts_with("ERR no limit"));
    assert!(client.ask("EXEC").starts_with("EXECABORT"));
    assert_eq!(client.ask("PEEK per-user bob"), "[0 3 3 -1 0]");
}

#[test]
fn long_numbers_are_read_and_written_in_full() {
    let rules = "limits: [{name: bytes, limit: 9007199254740991/1h, algorithm: fixed-window}]";
    let server = Running::with_rules("resp-long-numbers", rules);
    let mut client = Resp::connect(server.resp);
    // The lengths of keys have one digit to three, and four.
    for digits in 0..4 {
        let key = "k".repeat(4_u32.pow(digits) as usize * 9);
        let reply = client.ask(&format!("ACQUIRE bytes {key} 9007199254740981"));
        assert!(reply.starts_with("[0 9007199254740991 10 -1 "), "{reply}");
    }
    let key = "k".repeat(1_024);
    assert!(
        client
            .ask(&format!("ACQUIRE bytes {key} 10"))
            .starts_with("[0 9007199254740991 9007199254740981 -1 ")
    );
}

#[test]
fn a_client_that_wants_it_gets_the_reason_of_a_denial() {
    let server = Running::with_rules("resp-reason", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(
        client.ask("ACQUIRE bucket alice 2 REASON"),
        "[0 2 0 -1 2000 ]"
    );
    assert_eq!(
        client.ask("ACQUIRE bucket alice 1 reason"),
        "[1 2 0 1000 2000 quota]"
    );
    assert_eq!(
        client.ask("PEEK bucket alice 3 REASON"),
        "[1 2 0 -1 2000 too-large]"
    );
    assert_eq!(
        client.ask("ACQUIRE logins mallory 1 REASON"),
        "[1 1 0 -1 -1 deny-listed]"
    );
    assert_eq!(client.ask("ACQUIRE seats room 2"), "[0 2 0 -1 -1]");
    assert_eq!(
        client.ask("ACQUIRE seats room 1 REASON"),
        "[1 2 0 -1 -1 in-flight]"
    );
    assert_eq!(client.ask("BLOCK per-user eve"), "OK");
    assert_eq!(
        client.ask("ACQUIRE per-user eve 1 REASON"),
        "[1 3 0 -1 -1 blocked]"
    );
    assert_eq!(
        client.ask("ACQUIRE everyone '' 5 REASON"),
        "[1 4 4 -1 0 too-large]"
    );
    // A shadow limit denies nothing.
    assert_eq!(client.ask("ACQUIRE trial alice"), "[0 1 0 -1 60000]");
    assert_eq!(
        client.ask("ACQUIRE trial alice 1 REASON"),
        "[0 1 0 -1 60000 ]"
    );
    assert_eq!(
        client.ask("ACQUIRE per-user alice 1 WHY"),
        "ERR syntax error: after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once"
    );
}

#[test]
fn peek_takes_nothing_and_refund_returns_units() {
    let server = Running::with_rules("resp-peek", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("PEEK per-user alice"), "[0 3 3 -1 0]");
    assert_eq!(client.ask("ACQUIRE per-user alice 3"), "[0 3 0 -1 60000]");
    assert_eq!(client.ask("PEEK per-user alice"), "[1 3 0 60000 60000]");
    assert_eq!(client.ask("REFUND per-user alice 2"), "[0 3 2 -1 60000]");
    assert_eq!(client.ask("PEEK per-user alice 3"), "[1 3 2 60000 60000]");
    assert_eq!(client.ask("ACQUIRE seats room 2"), "[0 2 0 -1 -1]");
    assert_eq!(client.ask("ACQUIRE seats room"), "[1 2 0 -1 -1]");
    assert_eq!(client.ask("REFUND seats room"), "[0 2 1 -1 -1]");
}

#[test]
fn a_global_limit_needs_no_key_and_ignores_one() {
    let server = Running::with_rules("resp-global", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("ACQUIRE everyone"), "[0 4 3 -1 500]");
    assert_eq!(client.ask("ACQUIRE everyone alice"), "[0 4 2 -1 500]");
    assert_eq!(client.ask("ACQUIRE everyone '' 2"), "[0 4 0 -1 500]");
}

#[test]
fn a_delay_is_returned_in_place_of_the_wait_and_a_shadow_limit_never_denies() {
    let server = Running::with_rules("resp-delay", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("ACQUIRE paced alice"), "[0 2 2 -1 500]");
    assert_eq!(client.ask("ACQUIRE paced alice"), "[0 2 0 500 1000]");
    assert_eq!(client.ask("ACQUIRE paced alice"), "[1 2 0 500 1000]");
    assert_eq!(client.ask("ACQUIRE trial alice"), "[0 1 0 -1 60000]");
    assert_eq!(client.ask("ACQUIRE trial alice"), "[0 1 0 -1 60000]");
    assert_eq!(
        server.metric(r#"tidegate_shadow_denials_total{limit="trial"}"#),
        1
    );
}

#[test]
fn a_key_is_blocked_for_milliseconds_or_until_it_is_unblocked() {
    let server = Running::with_rules("resp-block", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("BLOCK per-user eve 1500"), "OK");
    assert_eq!(client.ask("ACQUIRE per-user eve"), "[1 3 0 1500 1500]");
    server.advance(Duration::from_millis(1500));
    assert_eq!(client.ask("ACQUIRE per-user eve"), "[0 3 2 -1 60000]");
    assert_eq!(client.ask("BLOCK per-user eve"), "OK");
    assert_eq!(client.ask("UNBLOCK per-user eve"), "1");
    assert_eq!(client.ask("UNBLOCK per-user eve"), "0");
    assert!(client.ask("UNBLOCK logins mallory").contains("deny list"));
    assert!(client.ask("BLOCK everyone x").contains("is global"));
    assert!(
        client
            .ask("BLOCK per-user eve 0")
            .contains("whole number above 0")
    );
}

#[test]
fn an_operator_gives_a_key_a_quota_for_milliseconds_or_until_its_end() {
    let server = Running::with_rules("resp-override", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("OVERRIDE per-user vip 10/1m"), "OK");
    assert_eq!(client.ask("ACQUIRE per-user vip"), "[0 10 9 -1 60000]");
    assert_eq!(client.ask("OVERRIDE per-user vip END"), "1");
    assert_eq!(client.ask("OVERRIDE per-user vip end"), "0");
    assert_eq!(client.ask("PEEK per-user vip"), "[0 3 2 -1 60000]");
    assert_eq!(client.ask("OVERRIDE per-user vip 5/1m 1500"), "OK");
    assert_eq!(client.ask("PEEK per-user vip"), "[0 5 4 -1 60000]");
    assert!(
        client
            .ask("OVERRIDE per-user vip many")
            .contains("`many` is not a quota for limit `per-user`")
    );
    assert!(
        client
            .ask("OVERRIDE per-user vip 5/1m 0")
            .contains("whole number above 0")
    );
    assert!(
        client
            .ask("OVERRIDE logins mallory 5/1m")
            .contains("deny list")
    );
}

#[test]
fn mistakes_are_answered_as_in_redis_and_the_connection_continues() {
    let server = Running::with_rules("resp-mistakes", RULES);
    let mut client = Resp::connect(server.resp);
    let long = format!("ACQUIRE per-user {}", "x".repeat(1025));
    for (command, told) in [
        (
            "ACQUIRE",
            "ERR wrong number of arguments for 'acquire' command; usage: ACQUIRE limit key [cost] [REASON] [ID id|ATMOST|WAIT milliseconds [PRIORITY level]]",
        ),
        (
            "ACQUIRE per-user",
            "ERR wrong number of arguments for 'acquire' command: limit `per-user` counts per key: give a key (or make the limit `global: true`)",
        ),
        (
            "ACQUIRE a b c d",
            "ERR syntax error: after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once",
        ),
        (
            "ACQUIRE a b c d e f g h i",
            "ERR wrong number of arguments for 'acquire' command; usage: ACQUIRE limit key [cost] [REASON] [ID id|ATMOST|WAIT milliseconds [PRIORITY level]]",
        ),
        (
            "ACQUIRE per-usr alice",
            "ERR no limit is named `per-usr`; the nearest names are: per-user, seats, paced",
        ),
        (
            "ACQUIRE per-user alice -1",
            "ERR cost is '-1'; it must be a whole number from 0 to 9007199254740991",
        ),
        (
            "ACQUIRE per-user alice many",
            "ERR cost is 'many'; it must be a whole number from 0 to 9007199254740991",
        ),
        (
            &long,
            "ERR the key has 1025 bytes; at most 1024 are allowed: send a digest of longer keys",
        ),
        (
            "GET key",
            "ERR unknown command 'GET', with args beginning with: 'key' (COMMAND DOCS lists the commands)",
        ),
        (
            "SELECT 1",
            "ERR DB index is out of range; the only database is 0",
        ),
        (
            "CONFIG SET save x",
            "ERR only CONFIG GET is supported; change settings with the options of `tidegate serve`",
        ),
        (
            "CLIENT KILL 1",
            "ERR unknown subcommand 'KILL'; CLIENT supports GETNAME, ID, INFO, LIST, SETINFO, SETNAME and TRACKING",
        ),
        (
            "CLIENT SETNAME",
            "ERR wrong number of arguments for 'client|setname' command; usage: CLIENT SETNAME name",
        ),
        (
            "AUTH secret",
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        ),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 NOW", "ERR Syntax error in HELLO option 'NOW'"),
    ] {
        assert_eq!(client.ask(command).trim_end(), told.trim_end(), "{command}");
    }
    assert_eq!(client.ask("PING"), "PONG");
}

#[test]
fn the_commands_that_client_libraries_send_are_answered() {
    let server = Running::with_rules("resp-handshake", RULES);
    let mut client = Resp::connect(server.resp);
    for (command, reply) in [
        ("PING hello", "hello"),
        ("ECHO hello", "hello"),
        ("SELECT 0", "OK"),
        ("CLIENT SETINFO LIB-NAME redis-py", "OK"),
        ("CLIENT SETINFO lib-ver 6.0", "OK"),
        ("CLIENT GETNAME", "nil"),
        ("CLIENT SETNAME worker-1", "OK"),
        ("CLIENT GETNAME", "worker-1"),
        ("CLIENT ID", "1"),
        ("CLIENT NO-EVICT ON", "OK"),
        ("CONFIG GET save", "[save ]"),
        ("CONFIG GET append*", "[appendonly no]"),
        ("CONFIG GET nothing", "[]"),
        ("COMMAND COUNT", "36"),
        (
            "COMMAND INFO acquire nothing",
            "[[acquire -2 [fast] 2 2 1 [] [] [] []] nil]",
        ),
        // The denied key needs no entry.
        ("DBSIZE", "0"),
        ("AUTH default anything", "OK"),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }
    assert!(
        client
            .ask("CLIENT LIST")
            .contains("name=worker-1 db=0 resp=2 user=default")
    );
    assert!(
        client
            .ask("COMMAND DOCS acquire")
            .starts_with("[acquire [summary Take a cost")
    );
    assert!(client.ask("COMMAND LIST").contains("cl.throttle peek"));
    client.ask("ACQUIRE per-user alice");
    let info = client.ask("INFO");
    for line in [
        "redis_version:7.",
        "tidegate_version:",
        "connected_clients:1",
        "per-user:keys=1,allowed=1",
        "db0:keys=1",
    ] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    assert!(!client.ask("INFO clients").contains("redis_version"));
    assert_eq!(client.ask("QUIT"), "OK");
    assert!(client.ends());
}

#[test]
fn a_transaction_runs_its_commands_in_order_or_none() {
    let server = Running::with_rules("resp-multi", RULES);
    let mut client = Resp::connect(server.resp);
    let mut other = Resp::connect(server.resp);
    assert_eq!(client.ask("WATCH any key"), "OK");
    assert_eq!(client.ask("MULTI"), "OK");
    for command in ["ACQUIRE per-user alice", "PING", "ACQUIRE per-user alice x"] {
        assert_eq!(client.ask(command), "QUEUED");
    }
    assert_eq!(
        other.ask("PEEK per-user alice 0"),
        "[0 3 3 -1 0]",
        "nothing is taken yet"
    );
    assert_eq!(
        client.ask("EXEC"),
        "[[0 3 2 -1 60000] PONG ERR cost is 'x'; it must be a whole number from 0 to \
         9007199254740991]"
    );
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("EXEC"), "[]");

    // A command that is refused while it is queued, of each kind: nothing is taken.
    for wrong in ["NOSUCH a", "ACQUIRE", "ACQUIRE nosuch alice"] {
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask("ACQUIRE per-user alice"), "QUEUED");
        assert!(client.ask(wrong).starts_with("ERR "), "{wrong}");
        assert_eq!(client.ask("ACQUIRE per-user alice"), "QUEUED");
        assert_eq!(
            client.ask("EXEC"),
            "EXECABORT Transaction discarded because of previous errors."
        );
    }
    assert_eq!(client.ask("MULTI"), "OK");
    assert!(client.ask("MULTI").contains("can not be nested"));
    assert!(client.ask("WATCH a").contains("inside MULTI"));
    assert_eq!(client.ask("UNWATCH"), "QUEUED");
    assert_eq!(client.ask("DISCARD"), "OK");
    assert_eq!(client.ask("DISCARD"), "ERR DISCARD without MULTI");
    assert_eq!(client.ask("EXEC"), "ERR EXEC without MULTI");
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("RESET"), "RESET");
    assert_eq!(client.ask("EXEC"), "ERR EXEC without MULTI");
    assert_eq!(client.ask("PEEK per-user alice 0"), "[0 3 2 -1 60000]");
}

#[test]
fn a_proposed_command_answers_about_the_bucket_in_it() {
    let server = Running::with_rules("resp-gcra", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("GCRA k 2 30 60 TOKENS 0"), "[0 3 3 -1 0]");
    assert_eq!(client.ask("GCRA k 2 30 60 TOKENS 2"), "[0 3 1 -1 4]");
    server.advance(Duration::from_millis(500));
    assert_eq!(client.ask("GCRA k 2 30 60"), "[0 3 0 -1 5.5]");
    assert_eq!(client.ask("GCRA k 2 30 60"), "[1 3 0 1.5 5.5]");
    assert_eq!(client.ask("RL.THROTTLE k 2 30 60"), "[1 3 0 2 6]");
    assert!(
        client
            .ask("GCRA k 2 30 60 TOKENS")
            .starts_with("ERR syntax")
    );
    assert_eq!(client.ask("ROLE"), "[master 0 []]");
    assert!(client.ask("INFO replication").contains("role:master"));
    assert_eq!(client.ask("CLIENT TRACKING ON OPTIN"), "OK");
    assert_eq!(client.ask("CLIENT CACHING YES"), "OK");
}

#[test]
fn version_3_has_maps_and_nulls_and_reset_returns_to_version_2() {
    let server = Running::with_rules("resp-three", RULES);
    let mut client = Resp::connect(server.resp);
    let hello = client.ask("HELLO 3 SETNAME me");
    assert!(
        hello.starts_with("{server tidegate version")
            && hello.contains("proto 3 id 1 mode standalone"),
        "{hello}"
    );
    assert_eq!(client.ask("CLIENT GETNAME"), "me");
    assert_eq!(client.ask("CONFIG GET save"), "{save }");
    assert_eq!(client.ask("ACQUIRE per-user alice"), "[0 3 2 -1 60000]");
    assert!(client.ask("INFO server").starts_with("txt:# Server"));
    assert_eq!(client.ask("RESET"), "RESET");
    assert_eq!(client.ask("CONFIG GET save"), "[save ]");
    assert_eq!(client.ask("CLIENT GETNAME"), "nil");
    assert!(client.ask("HELLO").contains("proto 2"));
}

#[test]
fn many_commands_in_one_piece_are_answered_in_order() {
    let server = Running::with_rules("resp-pipeline", RULES);
    let mut client = Resp::connect(server.resp);
    let mut bytes = Vec::new();
    for at in 0..5_000 {
        bytes.extend(frame(&format!("ECHO {at}")));
        bytes.extend(frame("ACQUIRE per-user alice"));
    }
    let mut writing = client.stream().try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&bytes).unwrap());
    for at in 0..5_000 {
        assert_eq!(client.reply(), at.to_string());
        let decision = client.reply();
        assert_eq!(decision.starts_with("[0"), at < 3, "{at}: {decision}");
    }
    writer.join().unwrap();
}

#[test]
fn commands_of_all_lengths_in_one_piece_are_answered_as_one_by_one() {
    let server = Running::with_rules("resp-lengths", RULES);
    // The most arguments that a command has, 64, are also the most that are parsed in advance.
    let commands: Vec<String> = (0..150_usize)
        .map(|at| format!("COMMAND INFO{}", " nope".repeat(at * 37 % 63)))
        .collect();
    let mut one_by_one = Resp::connect(server.resp);
    let replies: Vec<String> = commands
        .iter()
        .map(|command| one_by_one.ask(command))
        .collect();
    let mut client = Resp::connect(server.resp);
    let mut bytes: Vec<u8> = commands.iter().flat_map(|command| frame(command)).collect();
    bytes.extend(b"*65\r\n");
    client.send(&bytes);
    for reply in replies {
        assert_eq!(client.reply(), reply);
    }
    assert_eq!(client.reply(), "ERR Protocol error: more than 64 arguments");
    assert!(client.ends());
}

#[test]
fn malformed_input_gets_an_error_and_closes_the_connection() {
    let server = Running::with_rules("resp-malformed", RULES);
    for (bytes, told) in [
        (
            &b"*1\r\n:1\r\n"[..],
            "ERR Protocol error: expected '$', got ':'",
        ),
        (b"*99999\r\n", "ERR Protocol error: more than 64 arguments"),
        (
            b"*1\r\n$100000\r\n",
            "ERR Protocol error: an argument longer than 4096 bytes",
        ),
        (
            b"POST /v1/acquire HTTP/1.1\r\nHost: a\r\n\r\n{}",
            "ERR Protocol error: this port speaks the Redis protocol; HTTP has another port",
        ),
    ] {
        let mut client = Resp::connect(server.resp);
        client.send(bytes);
        assert_eq!(client.reply(), told);
        assert!(client.ends());
    }
    let mut endless = Resp::connect(server.resp);
    endless.send(&b"x".repeat(20_000));
    assert!(endless.reply().contains("longer than 16384 bytes"));
    assert_eq!(server.metric("tidegate_resp_protocol_errors_total"), 5);
}

#[test]
fn without_the_password_only_authentication_is_possible() {
    let server = Running::with_rules_and("resp-auth", RULES, |options| {
        options.resp_password = Some("sesame".to_owned());
    });
    let mut client = Resp::connect(server.resp);
    assert_eq!(
        client.ask("ACQUIRE per-user alice"),
        "NOAUTH Authentication required."
    );
    assert_eq!(client.ask("PING"), "NOAUTH Authentication required.");
    assert!(
        client
            .ask("HELLO 3")
            .starts_with("NOAUTH HELLO must be called")
    );
    let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
    for command in [
        "AUTH sesam",
        "AUTH root sesame",
        "HELLO 3 AUTH default wrong",
    ] {
        let before = server.metric("tidegate_resp_auth_failures_total");
        client.send(&frame(command));
        while server.metric("tidegate_resp_auth_failures_total") == before {}
        // The reply is delayed.
        server.advance(Duration::from_secs(1));
        assert_eq!(client.reply(), wrong, "{command}");
    }
    assert_eq!(client.ask("AUTH sesame"), "OK");
    assert_eq!(client.ask("ACQUIRE per-user alice"), "[0 3 2 -1 60000]");
    assert_eq!(client.ask("RESET"), "RESET");
    assert_eq!(client.ask("PING"), "NOAUTH Authentication required.");
    assert!(
        client
            .ask("HELLO 3 AUTH default sesame")
            .starts_with("{server")
    );
    assert_eq!(client.ask("PING"), "PONG");
}

#[test]
fn an_idle_connection_is_closed_if_configured_and_an_unfinished_frame_always() {
    let server = Running::with_rules_and("resp-idle", RULES, |options| {
        options.resp_idle_timeout = Duration::from_mins(1);
    });
    let (mut idle, mut half) = (Resp::connect(server.resp), Resp::connect(server.resp));
    assert_eq!([idle.ask("PING"), half.ask("PING")], ["PONG", "PONG"]);
    half.send(b"*2\r\n$4\r\nECHO\r\n");
    // The listener checks once a second; the clock jumps between the checks.
    while server.metric("tidegate_resp_timeouts_total") < 1 {
        server.advance(Duration::from_secs(1));
    }
    assert!(half.ends());
    while server.metric("tidegate_resp_timeouts_total") < 2 {
        server.advance(Duration::from_secs(1));
    }
    assert!(idle.ends());
}

#[test]
fn the_server_stops_reading_from_a_client_that_does_not_read_and_serves_others() {
    let server = Running::with_rules("resp-slow", RULES);
    let slow = Resp::connect(server.resp);
    slow.stream()
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let asking = frame("COMMAND DOCS").repeat(1_000);
    let mut stream = slow.stream().try_clone().unwrap();
    // The replies are over a hundred times longer than the commands, so the server soon stops
    // reading.
    let taken = (0..10_000)
        .take_while(|_| stream.write_all(&asking).is_ok())
        .count();
    assert!(taken < 10_000, "the server took everything");
    assert_eq!(server.resp("PING"), "PONG");
}

#[test]
fn an_unread_reply_is_overdue_and_a_client_that_reads_a_little_is_not() {
    let server = Running::with_rules_and("resp-unread", RULES, |options| options.resp_threads = 1);
    let asking = frame("COMMAND DOCS").repeat(1_000);
    let [slow, _silent] = [(); 2].map(|()| {
        let client = Resp::connect(server.resp);
        client
            .stream()
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut stream = client.stream().try_clone().unwrap();
        // Until the server reads no more, because the client does not either.
        assert!((0..10_000).any(|_| stream.write_all(&asking).is_err()));
        client
    });
    let mut other = Resp::connect(server.resp);
    // The listener looks for overdue connections after the turn of the first of these.
    let mut pass = |seconds| {
        server.advance(Duration::from_secs(seconds));
        assert_eq!([other.ask("PING"), other.ask("PING")], ["PONG", "PONG"]);
    };
    pass(1);
    // More than is on its way from the server to the client.
    let mut some = vec![0; 16 << 20];
    for second in [15, 30, 45] {
        pass(14);
        let timeouts = server.metric("tidegate_resp_timeouts_total");
        assert_eq!(
            timeouts,
            u64::from(second == 45),
            "the other one has read nothing for 30 seconds"
        );
        slow.stream().read_exact(&mut some).unwrap();
        pass(1);
    }
}

#[test]
fn an_error_is_always_one_line() {
    let server = Running::with_rules("resp-line", RULES);
    let mut client = Resp::connect(server.resp);
    client.send(b"*3\r\n$7\r\nACQUIRE\r\n$5\r\na\r\n+b\r\n$1\r\nk\r\n");
    let told = client.reply();
    assert!(
        told.starts_with("ERR ") && told.contains(r"`a\u{d}\u{a}+b`"),
        "{told}"
    );
    assert_eq!(client.ask("PING"), "PONG");
}

#[test]
fn frames_that_waited_for_output_space_are_answered_without_another_read() {
    let server = Running::with_rules("resp-waiting", RULES);
    let mut client = Resp::connect(server.resp);
    // Read at once, and together far longer when answered than what the server keeps for a client.
    client.send(&frame("COMMAND DOCS").repeat(1_000));
    let first = client.reply();
    assert!((1..1_000).all(|_| client.reply() == first));
}

#[test]
fn a_client_that_closes_its_half_still_gets_its_replies_and_nothing_runs_after_quit() {
    let server = Running::with_rules("resp-half", RULES);
    let mut client = Resp::connect(server.resp);
    client.send(b"PING\r\nPING\r\n*1\r\n$4\r\nPI");
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!([client.reply(), client.reply()], ["PONG", "PONG"]);
    assert!(client.ends());
    let mut client = Resp::connect(server.resp);
    client.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!([client.reply(), client.reply()], ["PONG", "OK"]);
    assert!(client.ends());
}

#[test]
fn several_threads_share_the_connections_and_the_limits() {
    let server = Running::with_rules_and("resp-threads", RULES, |options| options.resp_threads = 3);
    let allowed: usize = (0..12)
        .map(|_| {
            usize::from(
                Resp::connect(server.resp)
                    .ask("ACQUIRE per-user alice")
                    .starts_with("[0"),
            )
        })
        .sum();
    assert_eq!(allowed, 3);
}

#[test]
fn a_redis_client_library_works() {
    let server = Running::with_rules("resp-library", RULES);
    for suffix in ["", "?protocol=resp3"] {
        let client = redis::Client::open(format!("redis://{}/{suffix}", server.resp)).unwrap();
        let mut connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        let key = format!("key{suffix}");
        let five: Vec<i64> = redis::cmd("ACQUIRE")
            .arg("per-user")
            .arg(&key)
            .query(&mut connection)
            .unwrap();
        assert_eq!(five, [0, 3, 2, -1, 60_000]);
        let many: Vec<Vec<i64>> = redis::pipe()
            .cmd("ACQUIRE")
            .arg("per-user")
            .arg(&key)
            .cmd("CL.THROTTLE")
            .arg(&key)
            .arg(15)
            .arg(30)
            .arg(60)
            .query(&mut connection)
            .unwrap();
        assert_eq!(many, [vec![0, 3, 1, -1, 60_000], vec![0, 16, 15, -1, 2]]);
        let error = redis::cmd("ACQUIRE")
            .arg("nope")
            .arg("k")
            .query::<Vec<i64>>(&mut connection)
            .unwrap_err();
        assert!(error.to_string().contains("no limit is named"), "{error}");
    }
}
