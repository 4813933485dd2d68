//! RESP clients that occupy slots, guess passwords, or send excessive requests.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_server::{
    Ended,
    throttle::{ThrottleAllowed, ThrottleQuota},
};

use crate::{
    RULES,
    harness::{PATIENCE, Resp, Running, frame, scratch},
    size,
};

#[test]
fn the_resp_connection_that_was_idle_longest_is_closed_for_a_new_one() {
    let server = Running::with_rules_and("attack-resp-idle", RULES, |options| {
        options.max_connections = 2;
    });
    let [mut one, mut two] = [Resp::connect(server.resp), Resp::connect(server.resp)];
    for client in [&mut one, &mut two] {
        assert_eq!(client.ask("PING"), "PONG");
    }
    server.clock.advance(Nanos::from_millis(1));
    assert_eq!(one.ask("PING"), "PONG");
    assert_eq!(Resp::connect(server.resp).ask("PING"), "PONG");
    assert!(two.ends());
    assert_eq!(one.ask("PING"), "PONG");
    assert_eq!(
        server.metric(r#"tidegate_connections_evicted_total{protocol="resp"}"#),
        1
    );
}

#[test]
fn slowly_sent_frames_keep_no_client_out() {
    let server = Running::with_rules_and("attack-resp-loris", RULES, |options| {
        options.max_connections = 8;
    });
    let mut slow: Vec<_> = (0..40).map(|_| Resp::connect(server.resp)).collect();
    for client in &mut slow {
        let _ = client.try_send(b"*2\r\n$4\r\nECHO\r\n$5\r\nhel");
    }
    server.clock.advance(Nanos::from_millis(1));
    for _ in 0..3 {
        assert_eq!(server.resp("PING"), "PONG");
    }
}

/// The server of the clients in [`many_idle_connections_are_all_served_and_make_room_for_more`],
/// and their number.
const CLIENTS_OF: &str = "TIDEGATE_TEST_CLIENTS_OF";

#[test]
fn many_idle_connections_are_all_served_and_make_room_for_more() {
    let many = size(300, 10_000);
    let _ = tidegate_server::raise_open_files(many + 100, 1);
    let server = Running::with_rules_and("attack-many", RULES, |options| {
        options.max_connections = many;
    });
    // In a separate process: both ends of 10,000 connections need more descriptors than one process
    // may have.
    let mut clients = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "resp::clients_in_a_separate_process",
            "--nocapture",
        ])
        .env(CLIENTS_OF, format!("{} {many}", server.resp))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe stays open, because the clients' process writes its test result to it at the end.
    let mut lines = BufReader::new(clients.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains("all are served")),
        "the clients failed"
    );
    server.clock.advance(Nanos::from_millis(1));
    let late: Vec<_> = (0..100)
        .map(|_| Resp::connect(server.resp))
        .map(|mut late| (late.ask("PING"), late))
        .collect();
    assert!(late.iter().all(|(reply, _)| reply == "PONG"));
    assert_eq!(
        server.metric(r#"tidegate_connections_evicted_total{protocol="resp"}"#),
        100
    );
    assert_eq!(
        server.metric(r#"tidegate_connections{protocol="resp"}"#),
        many as u64
    );
    drop(clients.stdin.take());
    assert!(lines.any(|line| line.contains("test result: ok")));
    assert!(clients.wait().unwrap().success());
}

/// Does nothing unless the test above runs it.
#[test]
fn clients_in_a_separate_process() {
    let Ok(whose) = std::env::var(CLIENTS_OF) else {
        return;
    };
    let (address, many) = whose.split_once(' ').unwrap();
    let (address, many) = (address.parse().unwrap(), many.parse().unwrap());
    let _ = tidegate_server::raise_open_files(many, 1);
    let mut clients: Vec<_> = (0..many).map(|_| Resp::connect(address)).collect();
    for client in &mut clients {
        assert_eq!(client.ask("PING"), "PONG");
    }
    println!("all are served");
    // The connections stay open until the test that runs this is done.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn wrong_passwords_are_delayed_more_and_more_counted_and_finally_close_the_connection() {
    let server = Running::with_rules_and("attack-auth", RULES, |options| {
        options.resp_password = Some("sesame".to_owned());
    });
    let mut client = Resp::connect(server.resp);
    client
        .stream()
        .set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    for (failures, delay) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_600)] {
        client.send(&frame("AUTH wrong"));
        while server.metric("tidegate_resp_auth_failures_total") < failures {}
        server.advance(Duration::from_millis(delay - 1));
        assert!(client.is_silent(), "answered after {} ms", delay - 1);
        server.advance(Duration::from_millis(1));
        client.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(client.reply().starts_with("WRONGPASS"));
        client
            .stream()
            .set_read_timeout(Some(Duration::from_millis(30)))
            .unwrap();
    }
    client.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(client.ends(), "after the fifth");
    assert_eq!(server.metric("tidegate_resp_auth_failures_total"), 5);
    let mut other = Resp::connect(server.resp);
    assert_eq!(other.ask("AUTH sesame"), "OK", "others do not wait");
}

#[test]
fn a_resp_client_that_outlasts_the_grace_is_disconnected_and_the_state_is_written() {
    let state = scratch("attack-outlasts").join("state");
    let server = Running::with_rules_and("attack-outlasts-rules", RULES, |options| {
        options.grace = Duration::from_millis(100);
        options.state = Some(state.clone());
        options.resp_password = Some("sesame".to_owned());
    });
    // The reply to a wrong password is delayed until a time that never comes, because this clock
    // stands still. HTTP has nothing to wait for, and ends long before the grace is over.
    let mut client = Resp::connect(server.resp);
    client.send(&frame("AUTH wrong"));
    while server.metric("tidegate_resp_auth_failures_total") < 1 {}
    assert_eq!(server.stop(), Ended::Cut);
    assert!(std::fs::read(&state).unwrap().starts_with(b"TIDEGATE"));
}

#[test]
fn a_transaction_is_bounded_and_does_not_speed_up_guessing() {
    let server = Running::with_rules("attack-multi", RULES);
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("MULTI"), "OK");
    for _ in 0..1_024 {
        assert_eq!(client.ask("PING"), "QUEUED");
    }
    assert!(client.ask("PING").contains("at most 1024 commands"));
    assert_eq!(client.ask("PING"), "QUEUED", "and forgotten");
    assert!(client.ask("EXEC").starts_with("EXECABORT"));
    let long = "k".repeat(4_000);
    assert_eq!(client.ask("MULTI"), "OK");
    let replies: Vec<_> = (0..20)
        .map(|_| client.ask(&format!("ECHO {long}")))
        .collect();
    assert!(
        replies
            .iter()
            .any(|reply| reply.contains("65536 bytes in all"))
    );
    assert!(client.ask("EXEC").starts_with("EXECABORT"));
    for guess in ["AUTH a wrong", "HELLO 3 AUTH a wrong"] {
        assert_eq!(client.ask("MULTI"), "OK");
        assert!(client.ask(guess).contains("inside MULTI is not allowed"));
        assert!(client.ask("EXEC").starts_with("EXECABORT"));
    }
}

#[test]
fn a_client_cannot_occupy_memory_for_longer_than_the_server_allows() {
    let server = Running::with_rules("attack-period", RULES);
    let mut client = Resp::connect(server.resp);
    for command in [
        "CL.THROTTLE k 2200000000 1 1 2200000000",
        "CL.THROTTLE k 0 1 86401",
        "CL.THROTTLE k 86400 1 1",
    ] {
        let told = client.ask(command);
        assert!(
            told.starts_with("Cell error: this server allows buckets")
                && told.contains("at most 1d"),
            "{told}"
        );
    }
    assert_eq!(client.ask("DBSIZE"), "0");
    assert_eq!(
        client.ask("CL.THROTTLE k 86399 1 1"),
        "[0 86400 86399 -1 1]"
    );
    let with = |name: &str, throttle| {
        Running::with_rules_and(name, RULES, |options| options.throttle = throttle)
    };
    let off = with("attack-period-off", ThrottleAllowed::Nothing);
    assert!(
        off.resp("CL.THROTTLE k 15 30 60")
            .starts_with("Cell error: CL.THROTTLE is off")
    );
    let only = vec![ThrottleQuota {
        max_burst: 15,
        count: 30,
        period: 60,
    }];
    let listed = with("attack-period-list", ThrottleAllowed::Only(only));
    assert_eq!(listed.resp("CL.THROTTLE k 15 30 60"), "[0 16 15 -1 2]");
    assert!(
        listed
            .resp("CL.THROTTLE k 16 30 60")
            .contains("does not allow this bucket")
    );
}

#[test]
fn every_answered_command_is_in_the_histogram_once() {
    let server = Running::with_rules("attack-histogram", RULES);
    let mut client = Resp::connect(server.resp);
    client.send(&frame("ACQUIRE per-user alice").repeat(50));
    (0..50).for_each(|_| drop(client.reply()));
    assert_eq!(client.ask("PING"), "PONG");
    // The turn that wrote the last reply is counted when it ends.
    while server.metric("tidegate_resp_command_seconds_count") < 51 {}
    assert_eq!(server.metric("tidegate_resp_command_seconds_count"), 51);
    assert_eq!(
        server.metric(r#"tidegate_resp_command_seconds_bucket{le="+Inf"}"#),
        51
    );
}

#[test]
fn a_connection_without_a_command_ends_after_an_hour() {
    let server = Running::with_rules("attack-resp-hour", RULES);
    let [mut idle, mut busy] = [Resp::connect(server.resp), Resp::connect(server.resp)];
    assert_eq!([idle.ask("PING"), busy.ask("PING")], ["PONG", "PONG"]);
    server.advance(Duration::from_mins(50));
    assert_eq!(busy.ask("PING"), "PONG");
    server.advance(Duration::from_mins(11));
    assert!(idle.ends());
    assert_eq!(busy.ask("PING"), "PONG");
}
