//! `tidegate serve --store` as a user runs it: several processes, one store.
#![cfg(feature = "servers")]

mod program;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use program::{PATIENCE, Serving, scratch};
use tidegate_redis_servers::{Reply, Server, eventually};

/// A server process with these rules on this store, once it has reached it; generous, so that a busy machine does not make
/// it fail.
fn serve(name: &str, store: &str, limit: &str) -> Serving {
    let rules = scratch(name).join("rules.yaml");
    fs::write(&rules, format!("limits: [{{name: hot, limit: 5000/12h, {limit}}}]")).unwrap();
    let rules = rules.to_str().unwrap();
    let server = Serving::with(&["--rules", rules, "--store", store, "--store-deadline", "5s"]);
    eventually("the store has been reached", || server.get("/readyz").contains("\"ready\""));
    server
}

/// Sends pipelines on a connection and counts what is admitted, until so much was asked or the server is gone.
fn ask(address: &str, requests: usize, admitted: &AtomicUsize) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    for _ in 0..requests / 10 {
        if stream.write_all(&b"ACQUIRE hot key\r\n".repeat(10)).is_err() {
            return;
        }
        for at in 0..10 * 6 {
            line.clear();
            match replies.read_line(&mut line) {
                Ok(1..) if at % 6 == 1 => {
                    admitted.fetch_add(usize::from(line == ":0\r\n"), Ordering::Relaxed);
                }
                Ok(1..) => {}
                // Killed.
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Three connections that ask one server.
fn hammer(address: &str, requests: usize, admitted: &AtomicUsize) {
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| ask(address, requests, admitted));
        }
    });
}

/// How much two processes admit of 5,000, with far more asked of both, and one of them killed and replaced in the middle if
/// so told.
fn admitted_by_two(name: &str, limit: &str, kill: bool) -> usize {
    let store = Server::start(&[]);
    let start = |number: u32| serve(&format!("{name}-{number}"), &store.address(), limit);
    let (first, mut second) = (start(1), start(2));
    let admitted = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (address, count) = (first.resp.clone(), &admitted);
        scope.spawn(move || hammer(&address, 4_000, count));
        if kill {
            let address = second.resp.clone();
            scope.spawn(move || ask(&address, 1_000_000, count));
            eventually("some was admitted", || admitted.load(Ordering::Relaxed) > 500);
            second.child.kill().unwrap();
            second = start(3);
        }
        hammer(&second.resp, 4_000, &admitted);
    });
    let metrics = first.get("/metrics");
    let leased = metrics.lines().find(|line| line.contains("{by=\"lease\"}")).unwrap();
    assert!(!leased.ends_with(" 0"), "{leased}");
    admitted.into_inner()
}

#[test]
fn two_processes_never_admit_more_than_a_leased_limit() {
    for algorithm in ["sliding-window", "sliding-log"] {
        let limit = format!("sharing: leased, slack: 200ms, algorithm: {algorithm}");
        let admitted = admitted_by_two(algorithm, &limit, false);
        assert!((1..=5_000).contains(&admitted), "{algorithm}: {admitted}");
    }
}

#[test]
fn a_process_that_is_killed_and_replaced_does_not_make_a_leased_limit_admit_more() {
    let admitted = admitted_by_two("killed", "sharing: leased", true);
    assert!((501..=5_000).contains(&admitted), "{admitted}");
}

#[test]
fn two_processes_admit_at_most_what_each_has_not_reported_beyond_the_limit() {
    let admitted = admitted_by_two("reported", "sharing: reported, unreported: 40", false);
    assert!((1..=5_000 + 2 * 40).contains(&admitted), "{admitted}");
}

#[test]
fn what_is_wrong_with_a_store_is_in_the_log_at_once_and_no_flood() {
    let store = Server::start(&[]);
    let server = serve("log", &store.address(), "on_error: open");
    store.ask(&["FLUSHALL"]);
    assert!(server.ask("ACQUIRE hot key").starts_with("*5 :0"));
    let Reply::Array(keys) = store.ask(&["KEYS", "tidegate:hot:*"]) else { panic!("there is a key") };
    store.ask(&["SET", keys[0].text(), "another program's"]);
    for _ in 0..20 {
        assert!(server.ask("ACQUIRE hot key").starts_with("*5 :0"));
    }
    let told = server.logs("the shared store gave no decision");
    // The limit is named, and not the key: that may be a secret.
    assert!(told.contains("tidegate:hot:") && !told.contains(keys[0].text()), "{told}");
    assert!(told.contains("choose another prefix or name"), "{told}");
    drop(store);
    // Once a minute, and a busy machine may take one.
    let lines = || server.log.recv_timeout(PATIENCE).expect("the log says that the store is down");
    let before = std::iter::repeat_with(lines).take_while(|line| !line.contains("the shared store is down"));
    assert!(before.count() < 5);

    // Addresses that can be meant, and where no such store is.
    for (address, told) in [
        ("redis+cluster://127.0.0.1:1", "cannot reach the store"),
        ("redis+sentinel://127.0.0.1:1/main", "cannot reach the store"),
        ("redis+unix:///nowhere/redis.sock", "cannot reach the store"),
    ] {
        let server = Serving::with(&["--store", address]);
        let line = server.logs("the shared store is down");
        assert!(line.contains(told), "{address}: {line}");
        assert!(server.get("/readyz").contains("\"down\""), "{address}: {}", server.get("/readyz"));
    }
}
