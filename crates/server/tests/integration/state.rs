//! The state file across a restart, and state files that cannot be used.

use crate::harness;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use harness::{PATIENCE, Resp, Running, scratch};
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{
    Ended, Options, Order, check_and_restore, limits::Limits, rules, service::Service,
    throttle::Throttle,
};

const RULES: &str = "
limits:
  - {name: log, limit: 3/1m, algorithm: sliding-log, overrides: {admin: 9/1m}, deny: [mallory]}
  - {name: bucket, limit: 60/1m, algorithm: token-bucket, burst: 4}
  - {name: everyone, limit: 10/1h, algorithm: fixed-window, global: true}
  - {name: month, limit: 10/month, algorithm: fixed-window, time_zone: Europe/Berlin}
";

const START: Nanos = Nanos::from_secs(1_700_049_600);

fn options(directory: &Path, rules: &str) -> Options {
    let path = directory.join("rules.yaml");
    fs::write(&path, rules).unwrap();
    Options {
        rules: Some(path),
        state: Some(directory.join("state")),
        state_interval: Duration::from_secs(1_000_000),
        max_keys: 1_000,
        ..Options::default()
    }
}

/// Uses every kind of state, and stops the server.
fn used(directory: &Path) {
    let server = Running::start_at(options(directory, RULES), START);
    let mut client = Resp::connect(server.resp);
    for command in [
        "ACQUIRE log alice 2",
        "ACQUIRE log admin 4",
        "ACQUIRE bucket alice 3",
        "ACQUIRE everyone '' 6",
        "CHARGE month alice 12",
        "BLOCK log eve 3600000",
        "CL.THROTTLE bob 15 30 60 10",
    ] {
        assert!(!client.ask(command).contains("ERR"), "{command}");
    }
    assert_eq!(server.stop(), Ended::Complete);
}

fn asks(server: &Running, expected: &[(&str, &str)]) {
    let mut client = Resp::connect(server.resp);
    for (command, reply) in expected {
        assert_eq!(client.ask(command), *reply, "{command}");
    }
}

#[test]
fn limits_survive_a_restart() {
    let directory = scratch("state-restart");
    used(&directory);
    let server = Running::start_at(
        options(&directory, RULES),
        START.saturating_add(Nanos::from_secs(1)),
    );
    asks(
        &server,
        &[
            ("PEEK log alice", "[0 3 1 -1 59000]"),
            ("PEEK log admin", "[0 9 5 -1 59000]"),
            ("PEEK log mallory", "[1 3 0 -1 -1]"),
            ("PEEK log eve", "[1 3 0 3599000 3599000]"),
            ("PEEK bucket alice", "[0 4 2 -1 2000]"),
            ("PEEK everyone", "[0 10 4 -1 3599000]"),
            // Until the first of December 2023 in Berlin, from one second after START.
            ("PEEK month alice", "[1 10 0 1335599000 1335599000]"),
            ("CL.THROTTLE bob 15 30 60 0", "[0 16 6 -1 19]"),
        ],
    );
}

#[test]
fn what_operators_gave_single_keys_survives_a_restart_until_its_time() {
    let directory = scratch("state-override");
    let server = Running::start_at(options(&directory, RULES), START);
    let mut client = Resp::connect(server.resp);
    for command in [
        "OVERRIDE log vip 20/2m 60000",
        "OVERRIDE log admin 30/1m",
        "OVERRIDE bucket soon 99/1m 500",
        "ACQUIRE log vip 6",
        "ACQUIRE log admin 12",
    ] {
        assert!(!client.ask(command).contains("ERR"), "{command}");
    }
    let blanks = r#"{"limit":"log","key":"a key: with blanks","quota":"7/1m"}"#;
    assert_eq!(server.post("/v1/override", blanks).status, 200);
    assert_eq!(server.stop(), Ended::Complete);
    let second = |seconds| START.saturating_add(Nanos::from_secs(seconds));
    let server = Running::start_at(options(&directory, RULES), second(1));
    asks(
        &server,
        &[
            ("PEEK log vip", "[0 20 14 -1 119000]"),
            // It goes before the rules' own override.
            ("PEEK log admin", "[0 30 18 -1 59000]"),
            // Its time came while no server ran.
            ("PEEK bucket soon", "[0 4 4 -1 0]"),
        ],
    );
    let peek = server.post("/v1/peek", r#"{"limit":"log","key":"a key: with blanks"}"#);
    assert_eq!(peek.json()["limit"], 7);
    assert_eq!(server.stop(), Ended::Complete);
    // Rules that no longer have the limit, or with another algorithm.
    let rules = "limits: [{name: log, limit: 5, algorithm: concurrency}]";
    let server = Running::start_at(options(&directory, rules), second(2));
    let mut client = Resp::connect(server.resp);
    for key in ["vip", "admin"] {
        assert_eq!(
            client.ask(&format!("PEEK log {key}")).split(' ').nth(1),
            Some("5"),
            "{key}"
        );
    }
}

#[test]
fn the_file_is_complete_only_its_owner_may_read_it_and_no_other_file_is_left() {
    let directory = scratch("state-file");
    used(&directory);
    let state = directory.join("state");
    assert_eq!(
        fs::metadata(&state).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["rules.yaml", "state"]);
    // No key can be read from it.
    let bytes = fs::read(&state).unwrap();
    assert!(!bytes.windows(5).any(|window| window == b"alice"));
}

#[test]
fn rules_that_changed_meanwhile_keep_the_use_where_possible() {
    let directory = scratch("state-changed");
    used(&directory);
    let rules = "
limits:
  - {name: log, limit: 10/2m, algorithm: sliding-log, overrides: {eve: 2/1m}, max_keys: 77}
  - {name: bucket, limit: 5/1m, algorithm: sliding-log}
  - {name: everyone, limit: 10/1h, algorithm: fixed-window}
  - {name: new, limit: 1/1s}
";
    let server = Running::start_at(options(&directory, rules), START);
    asks(
        &server,
        &[
            ("PEEK log alice", "[0 10 8 -1 120000]"),
            // The override is gone; its use carries over.
            ("PEEK log admin", "[0 10 6 -1 120000]"),
            ("PEEK log mallory", "[0 10 10 -1 0]"),
            ("PEEK log eve", "[1 2 0 3600000 3600000]"),
            // With another algorithm, the units in use count as taken now.
            ("PEEK bucket alice", "[0 5 2 -1 60000]"),
            // The state of a global limit does not become the state of a key.
            ("PEEK everyone alice", "[0 10 10 -1 0]"),
        ],
    );
}

#[test]
fn a_damaged_file_is_renamed_and_the_server_starts_fresh() {
    let directory = scratch("state-damaged");
    used(&directory);
    let state = directory.join("state");
    let good = fs::read(&state).unwrap();
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for (number, bad) in [
        (1, &flipped[..]),
        (2, &good[..good.len() - 1]),
        (3, b""),
        (4, b"TIDE"),
    ] {
        fs::write(&state, bad).unwrap();
        let server = Running::start_at(options(&directory, RULES), START);
        asks(&server, &[("PEEK log alice", "[0 3 3 -1 0]")]);
        assert_eq!(
            fs::read(directory.join(format!("state.damaged-{number}"))).unwrap(),
            bad
        );
        assert_eq!(server.stop(), Ended::Complete);
        assert!(
            fs::read(&state).unwrap().starts_with(b"TIDEGATE"),
            "a good one is in its place"
        );
    }
}

#[test]
fn the_state_is_written_at_intervals_and_the_clock_continues_from_it() {
    let directory = scratch("state-interval");
    let state = directory.join("state");
    let often = Options {
        state_interval: Duration::from_millis(10),
        ..options(&directory, RULES)
    };
    let server = Running::start_at(often, START);
    asks(&server, &[("ACQUIRE log alice 2", "[0 3 1 -1 60000]")]);
    let written = r#"tidegate_state_writes_total{result="ok"}"#;
    let before = server.metric(written);
    // Each check is a separate request. One of the next writes started after Alice was counted.
    while server.metric(written) < before + 2 {}
    assert_eq!(
        server.metric("tidegate_state_bytes"),
        fs::metadata(&state).unwrap().len()
    );
    // As after a crash: the file is copied while the server runs.
    let copy = scratch("state-crashed");
    fs::copy(&state, copy.join("state")).unwrap();
    let server = Running::start_at(options(&copy, RULES), START);
    asks(&server, &[("PEEK log alice", "[0 3 1 -1 60000]")]);
}

#[test]
fn an_unusable_state_path_is_reported_at_the_start() {
    let mut options = options(&scratch("state-nowhere"), RULES);
    options.state = Some("/nonexistent/directory/state".into());
    let error = Running::try_start_at(options, START).err().unwrap();
    assert!(
        error.contains("cannot be kept in /nonexistent/directory/state")
            && error.contains("choose a file"),
        "{error}"
    );
}

#[test]
fn stopping_finishes_requests_in_progress_and_accepts_nothing_new() {
    let directory = scratch("state-stop");
    let server = Running::start_at(options(&directory, RULES), START);
    let mut resp = Resp::connect(server.resp);
    assert_eq!(resp.ask("PING"), "PONG");
    let mut http = harness::Http::connect(server.http);
    http.begin("/v1/acquire", 30);
    http.write(b"{\"limit\":\"log\",");
    assert_eq!(server.get("/readyz").status, 200);
    server.order(Order::Stop);
    // The listeners close, and so does the idle connection.
    assert!(resp.ends());
    while std::net::TcpStream::connect_timeout(&server.http, PATIENCE).is_ok() {}
    http.write(b"\"key\":\"alice\"} ");
    assert_eq!(http.read().status, 200);
    assert!(http.ends());
    assert_eq!(server.ended(), Ended::Complete);
    let server = Running::start_at(options(&directory, RULES), START);
    asks(&server, &[("PEEK log alice", "[0 3 2 -1 60000]")]);
}

#[test]
fn a_draining_server_is_not_ready_and_answers_until_it_stops() {
    let patient = Options {
        drain: Duration::from_secs(1_000_000),
        ..options(&scratch("state-drain"), RULES)
    };
    let server = Running::start_at(patient, START);
    let mut resp = Resp::connect(server.resp);
    assert_eq!(resp.ask("PING"), "PONG");
    server.order(Order::Stop);
    tidegate_redis_servers::eventually("the server is not ready", || {
        server.get("/readyz").status == 503
    });
    // Clients that do not know yet are answered, on old connections and on new ones.
    assert_eq!(resp.ask("ACQUIRE log alice"), "[0 3 2 -1 60000]");
    assert_eq!(server.resp("ACQUIRE log alice"), "[0 3 1 -1 60000]");
    let answer = server.post("/v1/acquire", r#"{"limit":"log","key":"alice"}"#);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection"), Some("close"));
    // A second order ends the wait.
    server.order(Order::Stop);
    assert!(resp.ends());
    assert_eq!(server.ended(), Ended::Complete);
}

/// Waits until the server ends an HTTP/2 connection. The client's last frame may find it closed.
#[cfg(feature = "grpc")]
async fn ends(connection: impl Future<Output = Result<(), h2::Error>>) {
    let ended = tokio::time::timeout(tidegate_redis_servers::PATIENCE, connection).await;
    if let Err(error) = ended.expect("the server ends the connection") {
        assert!(error.is_io() || error.is_go_away(), "{error}");
    }
}

#[cfg(feature = "grpc")]
#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_sends_goaway_and_serves_connections_that_come_later() {
    let directory = scratch("state-goaway");
    let patient = Options {
        drain: Duration::from_secs(1_000_000),
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_config: Some(directory.join("envoy")),
        ..options(&directory, RULES)
    };
    std::fs::create_dir_all(directory.join("envoy")).unwrap();
    std::fs::write(directory.join("envoy/rules.yaml"), "domain: shop\n").unwrap();
    let server = tokio::task::block_in_place(|| Running::start_at(patient, START));
    let begin = async |address: std::net::SocketAddr| {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        h2::client::handshake(stream).await.unwrap()
    };
    let ready = |path: &str, address| {
        let uri = format!("http://{address}{path}");
        axum::http::Request::builder().uri(uri).body(()).unwrap()
    };
    let grpc = server.grpc;
    let mut connections = Vec::new();
    for (address, path) in [(server.http, "/healthz"), (grpc, "/unknown")] {
        let (mut client, connection) = begin(address).await;
        let connection = tokio::spawn(ends(connection));
        let (answer, _) = client.send_request(ready(path, address), true).unwrap();
        answer.await.unwrap();
        connections.push((client, connection));
    }
    tokio::task::block_in_place(|| server.order(Order::Stop));
    for (client, connection) in connections {
        // The client still holds its handle, so only the server ends the connection.
        connection.await.unwrap();
        drop(client);
    }
    // Those that do not know yet, and connect now, are served.
    for _ in 0..3 {
        let asked = harness::http2::ask(server.http, ("GET", "/healthz"), None, "").await;
        assert_eq!(asked.0, 200);
    }
    tokio::task::block_in_place(|| {
        server.order(Order::Stop);
        assert_eq!(server.ended(), Ended::Complete);
    });
}

#[test]
fn a_request_that_never_ends_delays_the_stop_only_for_the_grace() {
    let grace = Options {
        grace: Duration::from_millis(50),
        ..options(&scratch("state-grace"), RULES)
    };
    let server = Running::start_at(grace, START);
    let mut http = harness::Http::connect(server.http);
    http.begin("/v1/acquire", 30);
    http.write(b"{");
    assert_eq!(server.stop(), Ended::Cut);
    assert!(http.ends(), "cut off");
}

#[test]
fn a_second_stop_does_not_wait() {
    let patient = Options {
        grace: Duration::from_secs(1_000_000),
        ..options(&scratch("state-twice"), RULES)
    };
    let server = Running::start_at(patient, START);
    let mut http = harness::Http::connect(server.http);
    http.begin("/v1/acquire", 30);
    http.write(b"{");
    server.order(Order::Stop);
    assert_eq!(server.stop(), Ended::Cut);
}

/// A limit of each algorithm, with everything that a state file can hold of one.
const EVERYTHING: &str = "
limits:
  - {name: log, limit: 3/1h, algorithm: sliding-log, overrides: {admin: 9/1h}, deny: [mallory], max_keys: 4}
  - {name: fixed, limit: 9/1d, algorithm: fixed-window}
  - {name: first, limit: 9/1d, algorithm: fixed-window, first_hit: true}
  - {name: slots, limit: 9/1d, slots: 24}
  - {name: counter, limit: 9/1d, algorithm: sliding-counter}
  - {name: bucket, limit: 60/1h, algorithm: token-bucket, burst: 9}
  - {name: paced, limit: 60/1h, algorithm: leaky-bucket, max_wait: 30m}
  - {name: seats, limit: 9, algorithm: concurrency, hold: 1d}
  - {name: plain, limit: 9, algorithm: concurrency}
  - {name: everyone, limit: 9/1d, algorithm: token-bucket, global: true}
";

const QUESTIONS: [&str; 16] = [
    "PEEK log k1",
    "PEEK log admin",
    "PEEK log mallory",
    "PEEK log eve",
    "PEEK log vip",
    "PEEK fixed a",
    "PEEK first a",
    "PEEK slots a",
    "PEEK counter a",
    "PEEK bucket a",
    "PEEK paced a",
    "PEEK seats a",
    "PEEK plain a",
    "PEEK everyone",
    "PEEK bucket nobody",
    "CL.THROTTLE bob 15 30 3600 0",
];

fn answers(server: &Running) -> String {
    let mut client = Resp::connect(server.resp);
    QUESTIONS
        .map(|question| format!("{question} => {}\n", client.ask(question)))
        .concat()
}

/// `state-1.bin` was written by version 0.1 in format 1, and `state-1.txt` has what that server
/// answered before. Later versions read such a file, or refuse it with a message that names the
/// version of its format.
#[test]
fn a_state_file_of_format_1_is_read_as_it_was_meant() {
    let directory = scratch("state-format-1");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (file, told) = (kept.join("state-1.bin"), kept.join("state-1.txt"));
    if std::env::var_os("TIDEGATE_WRITE_STATE").is_some() {
        let server = Running::start_at(options(&directory, EVERYTHING), START);
        let mut client = Resp::connect(server.resp);
        // More keys than there is room for: some leave a record of what they owe.
        for key in 0..9 {
            client.ask(&format!("ACQUIRE log k{key} 3"));
        }
        for limit in [
            "fixed", "first", "slots", "counter", "bucket", "paced", "seats", "plain", "everyone",
        ] {
            client.ask(&format!("ACQUIRE {limit} a 4"));
        }
        for command in [
            "ACQUIRE log admin 4",
            "BLOCK log eve 7200000",
            "OVERRIDE log vip 20/2h 7200000",
            "ACQUIRE log vip 6",
            "CL.THROTTLE bob 15 30 3600 10",
        ] {
            assert!(!client.ask(command).contains("ERR"), "{command}");
        }
        server.advance(Duration::from_mins(1));
        fs::write(&told, answers(&server)).unwrap();
        assert_eq!(server.stop(), Ended::Complete);
        fs::copy(directory.join("state"), &file).unwrap();
        return;
    }
    fs::copy(&file, directory.join("state")).unwrap();
    let server = Running::start_at(
        options(&directory, EVERYTHING),
        START.saturating_add(Nanos::from_secs(60)),
    );
    assert_eq!(answers(&server), fs::read_to_string(&told).unwrap());
}

#[test]
fn a_file_in_which_any_byte_has_changed_or_is_missing_is_refused() {
    let good = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/state-1.bin")).unwrap();
    let limits = Limits::new(rules::parse(EVERYTHING).unwrap(), 100, |_| None, START).unwrap();
    let throttle = Throttle::new(100, None).unwrap();
    let service = Service::new(limits, throttle, Arc::new(ManualTimer::new(START)));
    let restored =
        |bytes: &[u8]| check_and_restore(bytes, &service, START).map_err(|error| error.to_string());
    assert!(restored(&good).unwrap() > 0);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(restored(&bad).is_err(), "byte {at}");
        assert!(restored(&good[..at]).is_err(), "cut at {at}");
    }
    assert!(restored(&[&good[..], b"x"].concat()).is_err());
    let newer = [&good[..8], &[2], &good[9..]].concat();
    assert!(restored(&newer).unwrap_err().contains("newer"));
}

#[test]
fn the_records_of_evicted_keys_are_kept_and_those_of_a_file_from_the_future_count_from_now_on() {
    // Six keys use a table of four: some are evicted, and the file has what they owe.
    let rules = "limits: [{name: a, limit: 2/1m, algorithm: sliding-log, max_keys: 4}]";
    let denied = |server: &Running| {
        let is_denied = |key: &i32| server.resp(&format!("PEEK a k{key}")).starts_with("[1");
        (0..6).filter(is_denied).count()
    };
    // The server waits for the times of a clock that was set back by a little.
    for (seconds_back, later) in [(0, 0), (240, 6), (600, 0)] {
        let directory = scratch("state-records");
        let server = Running::start_at(options(&directory, rules), START);
        (0..6).for_each(|key| drop(server.resp(&format!("ACQUIRE a k{key} 2"))));
        server.resp("BLOCK a blocked");
        assert_eq!((denied(&server), server.stop()), (6, Ended::Complete));
        let now = START.saturating_since(Nanos::from_secs(seconds_back));
        let server = Running::start_at(options(&directory, rules), now);
        assert_eq!(denied(&server), 6, "{seconds_back}");
        // Records end a little later than states.
        server.advance(Duration::from_secs(70));
        assert_eq!(denied(&server), later, "{seconds_back}");
        assert!(server.resp("PEEK a blocked").starts_with("[1"));
    }
}

const SHARED: &str = "
limits:
  - {name: rate, limit: 100/1s, algorithm: token-bucket, shares: {weights: {acme: 3}, guarantee: {beta: 20%}, ceiling: 90%}}
  - {name: window, limit: 200/1m, algorithm: fixed-window, shares: {}}
  - {name: seats, limit: 10, algorithm: concurrency, shares: {}}
";

/// What operators see of a tenant.
fn standing(server: &Running, limit: &str, tenant: &str) -> serde_json::Value {
    let path = format!("/v1/explain?limit={limit}&key={tenant}/key");
    let standing = server.get(&path).json()["tenant"].clone();
    assert_eq!(standing["name"], tenant);
    standing
}

/// What a server answers the tenants of each limit, and what it does about them next.
fn serves(server: &Running) -> Vec<String> {
    let mut client = Resp::connect(server.resp);
    let mut replies = Vec::new();
    for limit in ["rate", "window", "seats"] {
        for tenant in ["acme", "beta", "gamma", "delta"] {
            replies.push(client.ask(&format!("PEEK {limit} {tenant}")));
            replies.push(client.ask(&format!("ACQUIRE {limit} {tenant}/key 1")));
            replies.push(standing(server, limit, tenant).to_string());
        }
    }
    replies
}

/// A server whose tenants have used their shares unequally.
fn shared(directory: &Path) -> Running {
    let server = Running::start_at(options(directory, SHARED), START);
    let mut client = Resp::connect(server.resp);
    for round in 0..200 {
        for (limit, tenant, cost) in [
            ("rate", "acme", 2),
            ("rate", "beta", 1),
            ("rate", "gamma", 1 + round % 2),
            ("window", "acme", 1),
            ("window", "gamma", 3),
        ] {
            let reply = client.ask(&format!("ACQUIRE {limit} {tenant}/{round} {cost}"));
            if reply.starts_with("[0") && limit == "rate" && tenant == "gamma" {
                client.ask(&format!("CHARGE rate gamma/{round} 1"));
            }
        }
        server.advance(Duration::from_millis(15));
    }
    for (tenant, cost) in [("acme", 7), ("beta", 3), ("gamma", 1)] {
        client.ask(&format!("ACQUIRE seats {tenant}/1 {cost}"));
    }
    server
}

#[test]
fn tenants_are_served_after_a_restart_as_if_there_had_been_none() {
    let end = START.saturating_add(Nanos::from_secs(3));
    let directory = scratch("state-tenants");
    let expected = {
        let server = shared(&scratch("state-tenants-without"));
        serves(&server)
    };
    assert_eq!(shared(&directory).stop(), Ended::Complete);
    let server = Running::start_at(options(&directory, SHARED), end);
    assert_eq!(serves(&server), expected);
    assert_eq!(server.stop(), Ended::Complete);
    // Without the file they would be level.
    let server = Running::start_at(options(&scratch("state-tenants-none"), SHARED), end);
    assert_ne!(serves(&server), expected);
}

#[test]
fn tenants_of_other_rules_keep_what_they_can() {
    let end = START.saturating_add(Nanos::from_secs(3));
    let directory = scratch("state-tenants-rules");
    assert_eq!(shared(&directory).stop(), Ended::Complete);
    // One limit no longer has tenants, one has another rate, and one permits no longer.
    let rules = "
limits:
  - {name: rate, limit: 1000/1s, algorithm: token-bucket, shares: {}}
  - {name: window, limit: 200/1m, algorithm: fixed-window}
  - {name: seats, limit: 10/1m, algorithm: fixed-window, shares: {}}
";
    let server = Running::start_at(options(&directory, rules), end);
    // It has used about half of what the limit was, which is a tenth of what it is now.
    let used = standing(&server, "rate", "acme")["used"].as_f64().unwrap();
    assert!((0.02..0.1).contains(&used), "{used}");
    // Permits say nothing about a rate.
    assert_eq!(standing(&server, "seats", "acme")["used"], 0.0);
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn a_clock_that_was_set_back_keeps_what_tenants_have_used() {
    let directory = scratch("state-tenants-clock");
    let expected = {
        let server = shared(&directory);
        let gamma = standing(&server, "rate", "gamma");
        assert_eq!(server.stop(), Ended::Complete);
        gamma
    };
    let before = START.saturating_since(Nanos::from_secs(86_400));
    let server = Running::start_at(options(&directory, SHARED), before);
    let gamma = standing(&server, "rate", "gamma");
    assert_eq!(gamma, expected);
    assert!(gamma["used"].as_f64().unwrap() > 0.1, "{gamma}");
    let mut client = Resp::connect(server.resp);
    let denials = (0..60).filter(|_| client.ask("ACQUIRE rate gamma/1 1").starts_with("[1"));
    assert!(denials.count() > 40);
}
