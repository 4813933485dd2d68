//! Failures that need the program itself: it is killed, its standard error is not read, its disk
//! fails.
//!
//! Short by default; `TIDEGATE_LONG=1` kills the server twenty times instead of three.

#[path = "integration/program/mod.rs"]
mod program;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use program::{PATIENCE, Serving, scratch, tidegate};
use tidegate_core::{Clock, clock::SystemClock};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Takes from a limit until the server is gone. Returns when each reply arrived, in nanoseconds.
fn use_up(resp: &str, clock: &SystemClock) -> Vec<u64> {
    let mut stream = TcpStream::connect(resp).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut answered = Vec::new();
    let mut line = String::new();
    // A reply has six lines: the array's length and five integers.
    while stream.write_all(b"ACQUIRE work alice\r\n").is_ok() {
        for _ in 0..6 {
            line.clear();
            if !matches!(replies.read_line(&mut line), Ok(1..)) {
                return answered;
            }
        }
        answered.push(clock.now().get());
    }
    answered
}

#[test]
fn a_killed_server_loses_at_most_the_use_of_one_interval() {
    // Many limits beside the one in use, because the promise does not depend on their number.
    let directory = scratch("killed");
    let rules = directory.join("rules.yaml");
    let others: Vec<String> = (0..50)
        .map(|at| format!("  - {{name: other-{at}, limit: 5/1h, max_keys: 1000}}\n"))
        .collect();
    let work = "limits:\n  - {name: work, limit: 1000000000/1d, algorithm: fixed-window}\n";
    fs::write(&rules, format!("{work}{}", others.concat())).unwrap();
    let state = directory.join("state");
    let (interval, slack) = (Duration::from_millis(200), Duration::from_secs(2));
    let arguments = [
        "--rules",
        rules.to_str().unwrap(),
        "--state",
        state.to_str().unwrap(),
        "--state-interval",
        "200ms",
    ];
    let clock = SystemClock::new();
    let mut kept = 0;
    let times = if std::env::var_os("TIDEGATE_LONG").is_some() {
        20
    } else {
        3
    };
    for time in 0..times {
        let server = Serving::with(&arguments);
        let (resp, pid) = (server.resp.clone(), server.child.id());
        let (killed, answered) = std::thread::scope(|scope| {
            let using = scope.spawn(|| use_up(&resp, &clock));
            // Several writes have been made by then.
            let written = || {
                let metrics = server.get("/metrics");
                let line = metrics
                    .lines()
                    .find(|line| line.starts_with("tidegate_state_writes_total{result=\"ok\"}"));
                line.and_then(|line| line.rsplit(' ').next()?.trim().parse::<u64>().ok())
                    .unwrap_or(0)
            };
            while written() < 3 {}
            let killed = clock.now().get();
            assert!(
                Command::new("kill")
                    .args(["-9", &pid.to_string()])
                    .status()
                    .unwrap()
                    .success()
            );
            (killed, using.join().unwrap())
        });
        drop(server);
        let restarted = Serving::with(&arguments);
        let reply = restarted.ask("PEEK work alice");
        let remaining: u64 = reply.split(':').nth(3).unwrap().trim().parse().unwrap();
        let used = 1_000_000_000 - remaining;
        let before = killed - (interval + slack).as_nanos() as u64;
        let promised = kept + answered.iter().filter(|at| **at < before).count() as u64;
        // One more request may have been in progress.
        let most = kept + answered.len() as u64 + 1;
        assert!(
            (promised..=most).contains(&used),
            "time {time}: {used} is not within {promised}..={most}"
        );
        assert!(
            used > kept,
            "time {time}: nothing of {} was kept",
            answered.len()
        );
        // After a normal stop, nothing more is lost.
        restarted.signal("TERM");
        assert_eq!(restarted.ended(), Some(0));
        kept = used;
    }
}

#[test]
fn an_unread_standard_error_does_not_stop_the_server() {
    let mut command = tidegate();
    command.args([
        "serve",
        "--http",
        "off",
        "--resp",
        "127.0.0.1:0",
        "--log-level",
        "debug",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "the server ended");
        if let Some((_, address)) = line.split_once("redis://") {
            break address.trim().to_owned();
        }
    };
    // Each logs a line; a pipe holds a few hundred.
    for _ in 0..2_000 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"*x\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("-ERR"), "{reply}");
    }
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "+PONG\r\n+OK\r\n");
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    // Standard error is still open and unread.
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_state_that_could_not_be_written_at_the_end_makes_the_exit_code_1() {
    let state = scratch("unsaved").join("state");
    let server = Serving::with(&["--state", state.to_str().unwrap()]);
    fs::create_dir(&state).unwrap();
    server.signal("TERM");
    server.logs("has become a directory");
    assert_eq!(server.ended(), Some(1));
}

#[test]
fn a_second_server_on_one_state_is_refused_with_the_pid_of_the_first() {
    let state = scratch("two").join("state");
    let server = Serving::with(&["--state", state.to_str().unwrap()]);
    let second = tidegate()
        .args([
            "serve",
            "--http",
            "off",
            "--resp",
            "127.0.0.1:0",
            "--state",
            state.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let told = text(&second.stderr);
    assert!(
        told.contains(&format!(
            "the server with process id {} keeps",
            server.child.id()
        )),
        "{told}"
    );
    // The lock of a killed server is released.
    assert!(
        Command::new("kill")
            .args(["-9", &server.child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    server.ended();
    let third = Serving::with(&["--state", state.to_str().unwrap()]);
    third.signal("TERM");
    assert_eq!(third.ended(), Some(0));
}

#[test]
fn the_limit_on_open_files_is_raised_or_a_warning_logged() {
    let program = env!("CARGO_BIN_EXE_tidegate");
    let serve =
        format!("ulimit -Sn 256; exec {program} serve --http 127.0.0.1:0 --resp 127.0.0.1:0");
    let server = Serving::run(Command::new("sh").args(["-c", &serve]));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let allowed: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    if allowed < 20_000 {
        assert!(server.logs("too few open files").contains("LimitNOFILE"));
    }
    assert!(allowed > 256, "{line}");
}

/// What a process has used of a processor so far, in hundredths of a second.
#[cfg(target_os = "linux")]
fn processor_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The program's name, in parentheses, may have blanks.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A server with gRPC, and the address of that.
#[cfg(target_os = "linux")]
fn with_grpc(name: &str) -> (Serving, String) {
    let envoy = scratch(name).join("envoy.yaml");
    let rate = "rate_limit: {unit: second, requests_per_unit: 9}";
    fs::write(
        &envoy,
        format!("domain: d\ndescriptors: [{{key: k, {rate}}}]\n"),
    )
    .unwrap();
    let server = Serving::with(&[
        "--grpc",
        "127.0.0.1:0",
        "--envoy-config",
        envoy.to_str().unwrap(),
    ]);
    let grpc = server
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("gRPC"))
        .unwrap();
    let grpc = grpc.trim().split(',').next().unwrap().to_owned();
    (server, grpc)
}

/// Lets a process have this many descriptors. Only from outside: a server that starts with root's
/// rights raises its limit again.
#[cfg(target_os = "linux")]
fn limit_descriptors(pid: u32, most: usize) {
    // The hard limit stays, so that the next call may raise it.
    let most = format!("--nofile={most}:");
    assert!(
        Command::new("prlimit")
            .args(["--pid", &pid.to_string(), &most])
            .status()
            .unwrap()
            .success()
    );
}

#[cfg(target_os = "linux")]
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Whether a gRPC listener greets a new connection.
fn greets(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).is_ok() && head[3] == 4
}

#[test]
#[cfg(target_os = "linux")]
fn idle_connections_of_any_listener_give_way_when_descriptors_run_out() {
    let (server, grpc) = with_grpc("crowded");
    let pid = server.child.id();
    limit_descriptors(pid, 256);
    // All on one listener, and then spread over all of them.
    for listeners in [&[&server.resp][..], &[&server.http, &server.resp, &grpc]] {
        let idle: Vec<_> = (0..300)
            .map(|at| TcpStream::connect(listeners[at % listeners.len()]).unwrap())
            .collect();
        for _ in 0..3 {
            assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
            assert!(server.get("/metrics").starts_with("HTTP/1.1 200"));
            assert_eq!(server.ask("PING"), "+PONG");
            assert!(greets(&grpc));
        }
        assert!(descriptors(pid) <= 256);
        drop(idle);
    }
    server.signal("TERM");
    let lines: Vec<String> = server
        .log
        .iter()
        .filter(|line| line.contains("cannot accept"))
        .collect();
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_without_file_descriptors_does_not_spin_and_recovers() {
    let (server, grpc) = with_grpc("starved");
    let pid = server.child.id();
    // Fewer than it has: no idle connection can give way.
    limit_descriptors(pid, descriptors(pid) / 2);
    let addresses = [&server.http, &server.resp, &grpc];
    let clients: Vec<_> = addresses
        .iter()
        .map(|address| TcpStream::connect(address).unwrap())
        .collect();
    // Each listener says each second that it is starved: so many lines take three seconds, whatever
    // the machine does meanwhile.
    let mut told = [0; 3];
    let mut began = None;
    let clock = SystemClock::new();
    let (used, took) = loop {
        let line = server.logs("cannot accept");
        let names = ["listener=\"http\"", "RESP", "listener=\"grpc\""];
        let listener = names.iter().position(|name| line.contains(name)).unwrap();
        told[listener] += 1;
        if began.is_none() && told.iter().all(|lines| *lines >= 1) {
            began = Some((told, processor_time(pid), clock.now()));
        }
        if let Some((first, used, at)) = began
            && (0..3).all(|listener| told[listener] >= first[listener] + 3)
        {
            break (processor_time(pid) - used, clock.now().saturating_since(at));
        }
    };
    // Less than a tenth of one processor. One thread that spins takes all of it.
    assert!(
        used * 100_000_000 < took.get(),
        "{used} hundredths of a second in {took:?}"
    );
    assert!(
        told.iter().all(|lines| *lines < 100),
        "a line for each turn: {told:?}"
    );
    limit_descriptors(pid, 1024);
    assert_eq!(server.ask("PING"), "+PONG");
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(greets(&grpc));
    drop(clients);
}

#[test]
fn connections_that_are_all_in_use_are_reported_once_a_minute() {
    let server = Serving::with(&["--max-connections", "2"]);
    // An idle RESP connection is closed; an HTTP request in progress is not.
    let idle: Vec<_> = (0..12)
        .map(|_| TcpStream::connect(&server.resp).unwrap())
        .collect();
    let begin = || {
        let mut stream = TcpStream::connect(&server.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head =
            b"POST /v1/acquire HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).unwrap();
        (stream, reply)
    };
    let busy: Vec<_> = (0..2).map(|_| begin()).collect();
    assert!(busy.iter().all(|(_, reply)| reply == b"HTTP/1.1 100"));
    for _ in 0..3 {
        assert_eq!(&begin().1, b"HTTP/1.1 503");
    }
    server.signal("TERM");
    let lines: Vec<String> = server
        .log
        .iter()
        .filter(|line| line.contains("connections are in use"))
        .collect();
    assert_eq!(lines.len(), 2, "one for each protocol: {lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("WARN") && line.contains("max_connections=2")),
        "{lines:?}"
    );
    drop(idle);
}

#[test]
#[cfg(feature = "grpc")]
fn hostile_traffic_on_every_listener_logs_at_most_a_hundred_lines() {
    let directory = scratch("hostile");
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let digest = "0".repeat(64);
    let access = file(
        "access.yaml",
        &format!("access: [{{name: a, roles: [decide], tokens: ['sha256:{digest}']}}]\n"),
    );
    let envoy = file(
        "envoy.yaml",
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 9}}]\n",
    );
    let sentinel = r#"[{"resource":"r","count":9,"clusterMode":true,"clusterConfig":{"flowId":1,"thresholdType":1}}]"#;
    let sentinel = file("sentinel.json", sentinel);
    let free = "127.0.0.1:0";
    let server = Serving::with(&[
        "--access",
        &access,
        "--grpc",
        free,
        "--envoy-config",
        &envoy,
        "--spoe",
        free,
        "--sentinel-token",
        free,
        "--sentinel-rules",
        &sentinel,
        "--sentinel-dashboard",
        free,
    ]);
    let address = |name: &str| {
        let line = server
            .told
            .lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .unwrap();
        line.trim().split(',').next().unwrap().to_owned()
    };
    let listeners = [
        server.http.clone(),
        server.resp.clone(),
        server.admin.clone(),
        address("gRPC"),
        address("SPOE"),
        address("tokens"),
        address("beats"),
    ];
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let frames = |frame: &[u8]| [greeting, &*frame.repeat(2_000)].concat();
    let wrong_token = "POST /v1/acquire HTTP/1.1\r\nhost: a\r\nauthorization: Bearer wrong\r\ncontent-length: 2\r\n\r\n{}";
    let attacks = [
        b"\xff".repeat(4_000),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"*1\r\n$99999999999\r\n".to_vec(),
        b"AUTH a wrong\r\n".to_vec(),
        wrong_token.into(),
        // PING, its acknowledgement, which nobody asked for, and a stream that is reset before it
        // begins.
        frames(b"\0\0\x08\x06\0\0\0\0\0abcdefgh"),
        frames(b"\0\0\x08\x06\x01\0\0\0\0abcdefgh"),
        frames(b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"),
    ];
    for listener in &listeners {
        for attack in &attacks {
            for _ in 0..60 {
                let mut stream = TcpStream::connect(listener).unwrap();
                // The server may end the connection before it has read everything.
                let _ = stream.write_all(attack);
            }
        }
    }
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(greets(&listeners[3]));
    server.signal("TERM");
    let lines: Vec<String> = server.log.iter().collect();
    assert!(
        (1..=100).contains(&lines.len()),
        "{} lines: {:?}",
        lines.len(),
        &lines[..lines.len().min(200)]
    );
}

#[test]
fn invalid_options_are_refused_with_advice() {
    for (option, value, told) in [
        (
            "--resp-throttle",
            "15:30",
            "max_burst:count:period, as in 15:30:60",
        ),
        ("--http-origin", "*", "https://ops.example.com:8443"),
        (
            "--admin-host",
            "http://limits.internal:8082",
            "without a scheme and a port",
        ),
        ("--resp-max-period", "0s", "greater than zero"),
        ("--max-memory", "lots", "as in 512MiB"),
    ] {
        let output = tidegate().args(["serve", option, value]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(
            text(&output.stderr).contains(told),
            "{}",
            text(&output.stderr)
        );
    }
}
