//! `tidegate serve --store` as a user runs it: several processes, one store.
#![cfg(feature = "servers")]

#[path = "integration/program/mod.rs"]
mod program;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use program::{PATIENCE, Serving, scratch, tidegate};
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::{Reply, Server, eventually, free_port};

/// A server process with these rules on this store, once it has reached it. Its deadline is long,
/// for busy machines.
fn serve(name: &str, store: &str, limit: &str) -> Serving {
    let rules = scratch(name).join("rules.yaml");
    fs::write(
        &rules,
        format!("limits: [{{name: hot, limit: 5000/12h, {limit}}}]"),
    )
    .unwrap();
    let rules = rules.to_str().unwrap();
    let server = Serving::with(&["--rules", rules, "--store", store, "--store-deadline", "5s"]);
    eventually("the store has been reached", || {
        server.get("/readyz").contains("\"ready\"")
    });
    server
}

/// Sends pipelines on a connection and counts the admissions, until it has sent this many requests
/// or the server is gone.
fn ask(mut stream: TcpStream, requests: usize, admitted: &AtomicUsize) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    for _ in 0..requests / 10 {
        if stream
            .write_all(&b"ACQUIRE hot key\r\n".repeat(10))
            .is_err()
        {
            return;
        }
        for at in 0..10 * 6 {
            line.clear();
            match replies.read_line(&mut line) {
                Ok(1..) if at % 6 == 1 => {
                    admitted.fetch_add(usize::from(line == ":0\r\n"), Ordering::Relaxed);
                }
                Ok(1..) => {}
                // The server was killed.
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Three connections that send requests to one server.
fn hammer(address: &str, requests: usize, admitted: &AtomicUsize) {
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| ask(TcpStream::connect(address).unwrap(), requests, admitted));
        }
    });
}

/// How much two processes admit of 5,000 while both get far more requests. If `kill` is set, one of
/// them is killed and replaced halfway.
fn admitted_by_two(name: &str, limit: &str, kill: bool) -> usize {
    let store = Server::start(&[]);
    let start = |number: u32| serve(&format!("{name}-{number}"), &store.address(), limit);
    let (first, mut second) = (start(1), start(2));
    let admitted = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (address, count) = (first.resp.clone(), &admitted);
        scope.spawn(move || hammer(&address, 4_000, count));
        if kill {
            // Before the server is killed.
            let stream = TcpStream::connect(&second.resp).unwrap();
            scope.spawn(move || ask(stream, 1_000_000, count));
            eventually("some was admitted", || {
                admitted.load(Ordering::Relaxed) > 500
            });
            second.child.kill().unwrap();
            second = start(3);
        }
        hammer(&second.resp, 4_000, &admitted);
    });
    let metrics = first.get("/metrics");
    let leased = metrics
        .lines()
        .find(|line| line.contains("{by=\"lease\"}"))
        .unwrap();
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
fn a_leased_limit_is_never_over_when_a_process_is_killed_and_replaced() {
    let admitted = admitted_by_two("killed", "sharing: leased", true);
    assert!((501..=5_000).contains(&admitted), "{admitted}");
}

#[test]
fn two_processes_exceed_a_reported_limit_by_at_most_their_unreported_use() {
    let admitted = admitted_by_two("reported", "sharing: reported, unreported: 40", false);
    assert!((1..=5_000 + 2 * 40).contains(&admitted), "{admitted}");
}

#[test]
fn problems_of_a_store_are_logged_immediately_without_a_flood() {
    let store = Server::start(&[]);
    let server = serve("log", &store.address(), "on_error: open");
    store.ask(&["FLUSHALL"]);
    assert!(server.ask("ACQUIRE hot key").starts_with("*5 :0"));
    let Reply::Array(keys) = store.ask(&["KEYS", "tidegate:hot:*"]) else {
        panic!("there is a key")
    };
    store.ask(&["SET", keys[0].text(), "another program's"]);
    for _ in 0..20 {
        assert!(server.ask("ACQUIRE hot key").starts_with("*5 :0"));
    }
    let told = server.logs("the shared store made no decision");
    // The log names the limit but not the key, which may be a secret.
    assert!(
        told.contains("tidegate:hot:") && !told.contains(keys[0].text()),
        "{told}"
    );
    assert!(told.contains("choose another prefix or name"), "{told}");
    drop(store);
    // At most once a minute; a busy machine may log one.
    let lines = || {
        server
            .log
            .recv_timeout(PATIENCE)
            .expect("the log says that the store is down")
    };
    let before =
        std::iter::repeat_with(lines).take_while(|line| !line.contains("the shared store is down"));
    assert!(before.count() < 5);

    // Valid addresses without such a store.
    for (address, told) in [
        ("redis+cluster://127.0.0.1:1", "cannot reach the store"),
        (
            "redis+sentinel://127.0.0.1:1/main",
            "cannot reach the store",
        ),
        ("redis+unix:///nowhere/redis.sock", "cannot reach the store"),
    ] {
        let server = Serving::with(&["--store", address]);
        let line = server.logs("the shared store is down");
        assert!(line.contains(told), "{address}: {line}");
        assert!(
            server.get("/readyz").contains("\"down\""),
            "{address}: {}",
            server.get("/readyz")
        );
    }
}

/// A part of the passwords in these tests.
const PART: &str = "Secret99";

#[test]
fn no_part_of_a_password_is_printed_for_an_address_that_is_refused() {
    for (address, told) in [
        ("redis://tg:my?Secret99word@127.0.0.1:1", "--store"),
        ("redis://tg:my/Secret99word@127.0.0.1:1", "--store"),
        ("redis://tg:my#Secret99word@127.0.0.1:1", "--store"),
        ("redis://tg:my Secret99word@127.0.0.1:port", "--store"),
        ("redis://:Secret99@127.0.0.1:99999", "--store"),
        ("tg:Secret99@127.0.0.1:1", "an address begins with redis://"),
        (
            "http://tg:Secret99@127.0.0.1:1",
            "an address begins with redis://",
        ),
        (
            "redis+cluster://:Secret99@127.0.0.1:1,127.0.0.1:x",
            "--store",
        ),
        (
            "redis+sentinel://:Secret99@127.0.0.1:1?sentinel_password=Secret99",
            "--store",
        ),
        (
            "redis+sentinel://127.0.0.1:1/main?sentinel_pasword=Secret99",
            "--store",
        ),
        ("redis+unix:///nowhere?pas=Secret99", "--store"),
        (
            "rediss://:Secret99@127.0.0.1:1/#insecure",
            "#insecure is not supported",
        ),
    ] {
        for by_variable in [false, true] {
            let mut command = tidegate();
            command.args(["serve", "--http", "127.0.0.1:0", "--resp", "off"]);
            if by_variable {
                command.env("TIDEGATE_STORE", address);
            } else {
                command.args(["--store", address]);
            }
            let output = command.output().unwrap();
            let (out, err) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            assert_eq!(output.status.code(), Some(1), "{address}: {out}{err}");
            assert!(err.contains(told), "{address}: {err}");
            assert!(
                !out.contains(PART) && !err.contains(PART),
                "{address}: {out}{err}"
            );
        }
    }
}

#[test]
fn a_stores_password_comes_from_a_file_or_a_variable_and_is_never_printed() {
    let store = Server::start(&["--requirepass", "my?Secret99word"]);
    let address = format!("redis://127.0.0.1:{}", store.port());
    let directory = scratch("password");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (
        write("right", "my?Secret99word\r\n"),
        write("wrong", "Secret99\n"),
    );
    let start = |variables: &[(&str, &str)], arguments: &[&str]| {
        let listen = [
            "serve",
            "--http",
            "127.0.0.1:0",
            "--resp",
            "127.0.0.1:0",
            "--store",
            &address,
        ];
        let variables = variables.iter().copied();
        Serving::run(tidegate().args(listen).args(arguments).envs(variables))
    };
    let secret = "my?Secret99word";
    for server in [
        start(&[], &["--store-password-file", &right]),
        start(&[("TIDEGATE_STORE_PASSWORD_FILE", &right)], &[]),
        start(&[("TIDEGATE_STORE_PASSWORD", secret)], &[]),
        start(&[], &["--store-password", secret]),
    ] {
        eventually("it is ready", || {
            server.get("/readyz").contains("\"ready\"")
        });
        assert!(!server.told.contains(PART), "{}", server.told);
    }
    let denied = start(&[], &["--store-password-file", &wrong]);
    let line = denied.logs("the shared store is down");
    assert!(
        line.contains("WRONGPASS") || line.contains("password"),
        "{line}"
    );
    for told in [
        line,
        denied.get("/readyz"),
        denied.get("/metrics"),
        denied.told.clone(),
    ] {
        assert!(!told.contains(PART), "{told}");
    }
    let none = directory.join("none");
    let output = tidegate()
        .args([
            "serve",
            "--store",
            &address,
            "--store-password-file",
            none.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("--store-password-file") && told.contains("none"),
        "{told}"
    );
    // The help must not show the environment's value.
    let help = tidegate()
        .args(["serve", "--help"])
        .env("TIDEGATE_STORE_PASSWORD", "Secret99")
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains(PART));
}

/// The permissions in a text, sorted: the first consecutive words with a plus sign.
fn rights(text: &str) -> Vec<&str> {
    let words = text
        .split(|c: char| c.is_whitespace() || "`,;.!/\\".contains(c))
        .filter(|word| !word.is_empty());
    let is_right =
        |word: &&str| word.starts_with('+') && word[1..].bytes().all(|c| c.is_ascii_lowercase());
    let mut rights: Vec<&str> = words
        .skip_while(|word| *word != "+eval")
        .take_while(is_right)
        .collect();
    rights.sort_unstable();
    rights
}

#[test]
fn every_description_of_the_store_covers_the_same_subjects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let help = |command: &str| {
        let help = tidegate()
            .args([command, "--help"])
            .output()
            .unwrap()
            .stdout;
        String::from_utf8(help).unwrap()
    };
    let places = [
        ("serve --help", help("serve")),
        ("check --help", help("check")),
        ("share.md", page("docs/src/share.md")),
    ];
    // Lost data, persistence, eviction, the clock, and the modes with what they leave unused.
    let subjects = [
        ["admitted", "crash"],
        ["appendonly yes", "second"],
        ["noeviction", "evicted"],
        ["steps forward", "steps back"],
        ["unused", "leased"],
    ];
    let library = page("crates/redis/src/lib.rs");
    let needed = rights(&library);
    assert_eq!(needed.len(), 22, "{needed:?}");
    for (place, text) in &places {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in subjects {
            assert!(
                words.iter().all(|word| line.contains(word)),
                "{place} says nothing of {words:?}"
            );
        }
        assert_eq!(rights(text), needed, "{place}");
    }
}

/// How many requests at even intervals this many servers, and one place, admit according to
/// `tidegate simulate`.
fn simulated(nodes: usize, requests: u32, rate: u32) -> (u64, u64) {
    let log = scratch(&format!("even-{nodes}")).join("log.jsonl");
    let line = |nth: u32| {
        format!(
            "{{\"time\": {:.4}, \"user\": \"key\"}}\n",
            1_700_000_000.0 + f64::from(nth) / f64::from(rate)
        )
    };
    fs::write(&log, (0..requests).map(line).collect::<String>()).unwrap();
    let nodes = nodes.to_string();
    let shape = [
        "--limit",
        "300/2s",
        "--algorithm",
        "token-bucket",
        "--by",
        "user",
    ];
    let shared = ["--nodes", &nodes, "--mode", "leased", "--format", "json"];
    let output = tidegate()
        .args(["simulate", log.to_str().unwrap()])
        .args(shape)
        .args(shared)
        .output()
        .unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    // These names occur only once.
    let number = |name: &str| {
        let (_, rest) = report
            .split_once(&format!("\"{name}\":"))
            .expect("the report has it");
        let digits: String = rest
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().expect("it is a number")
    };
    (number("admitted"), number("admitted_in_one_place"))
}

#[test]
#[ignore = "half a minute of requests in real time; a busy machine makes it fail"]
fn servers_admit_what_the_simulator_predicts_within_two_points() {
    let (rate, seconds) = (240, 8);
    let requests = rate * seconds;
    let redis = Server::start(&[]);
    let clock = SystemClock::new();
    for nodes in 2..=4 {
        let name = format!("even-servers-{nodes}");
        let rules = scratch(&name).join("rules.yaml");
        let limit = "{name: hot, limit: 300/2s, algorithm: token-bucket, sharing: leased}";
        fs::write(&rules, format!("limits: [{limit}]")).unwrap();
        let servers: Vec<Serving> = (0..nodes)
            .map(|_| {
                let (rules, address) = (rules.to_str().unwrap(), redis.address());
                let arguments = [
                    "--rules",
                    rules,
                    "--store",
                    &address,
                    "--store-prefix",
                    &name,
                ];
                let server = Serving::with(&arguments);
                eventually("the store has been reached", || {
                    server.get("/readyz").contains("\"ready\"")
                });
                server
            })
            .collect();
        let mut streams: Vec<_> = servers
            .iter()
            .map(|server| {
                let stream = TcpStream::connect(&server.resp).unwrap();
                stream.set_nodelay(true).unwrap();
                BufReader::new(stream)
            })
            .collect();
        let (mut admitted, mut line) = (0, String::new());
        let begun = clock.now();
        for nth in 0..requests {
            let due = begun.saturating_add(Nanos::from_micros(
                u64::from(nth) * 1_000_000 / u64::from(rate),
            ));
            while clock.now() < due {
                thread::park_timeout(due.saturating_since(clock.now()).into());
            }
            let stream = &mut streams[nth as usize % nodes];
            stream.get_mut().write_all(b"ACQUIRE hot key\r\n").unwrap();
            for at in 0..6 {
                line.clear();
                stream.read_line(&mut line).unwrap();
                admitted += u64::from(at == 1 && line == ":0\r\n");
            }
        }
        let (model, one_place) = simulated(nodes, requests, rate);
        println!(
            "{nodes} servers: {admitted} admitted, {model} simulated, {one_place} in one place"
        );
        assert!(one_place < u64::from(requests) && admitted <= one_place + u64::from(rate) / 10);
        assert!(
            50 * admitted.abs_diff(model) <= one_place,
            "{nodes} servers: {admitted}, not {model}"
        );
    }
}

/// A password changes: first in the file, then at the store; the server hears of it by SIGHUP
/// alone.
#[test]
fn sighup_reads_the_password_of_the_store_again() {
    let store = Server::start(&[]);
    store.ask(&["ACL", "SETUSER", "app", "on", ">one", "~*", "+@all"]);
    let directory = scratch("password");
    let (file, rules) = (directory.join("password"), directory.join("rules.yaml"));
    fs::write(&file, "one\n").unwrap();
    fs::write(
        &rules,
        "limits: [{name: hot, limit: 5000/12h, on_error: closed}]",
    )
    .unwrap();
    let address = format!("redis://app@127.0.0.1:{}", store.port());
    let server = Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--store",
        &address,
        "--store-deadline",
        "5s",
        "--store-password-file",
        file.to_str().unwrap(),
    ]);
    eventually("the store has been reached", || {
        server.get("/readyz").contains("\"ready\"")
    });
    let connections = || {
        let told = store.ask(&["CLIENT", "LIST"]);
        let of_app = |line: &&str| line.contains(" user=app ");
        told.text()
            .lines()
            .filter(of_app)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    let first: Vec<String> = connections().iter().map(id).collect();
    assert_eq!(first.len(), 1);
    store.ask(&["ACL", "SETUSER", "app", ">two"]);
    fs::write(&file, "two\n").unwrap();
    let clock = SystemClock::new();
    let sent = clock.now();
    server.signal("HUP");
    eventually("there is a connection with the new password", || {
        connections().iter().map(id).any(|id| !first.contains(&id))
    });
    let took = clock.now().saturating_since(sent);
    println!("a new connection after {took:?}");
    // The old password no longer counts, and the server decides without a pause.
    store.ask(&["ACL", "SETUSER", "app", "<one"]);
    for at in 1..=100 {
        assert!(
            server
                .ask("ACQUIRE hot key")
                .starts_with(&format!("*5 :0 :5000 :{}", 5_000 - at))
        );
    }
    let failures = server.get("/metrics");
    let failed: u64 = failures
        .lines()
        .filter(|line| line.starts_with("tidegate_shared_store_errors_total"))
        .map(|line| {
            line.rsplit(' ')
                .next()
                .unwrap_or_default()
                .parse::<u64>()
                .unwrap_or(1)
        })
        .sum();
    assert_eq!(failed, 0);
}

#[test]
fn check_says_whether_decisions_would_work_in_a_store() {
    let rules = scratch("store-check").join("rules.yaml");
    fs::write(
        &rules,
        "limits: [{name: a, limit: 10/1m}, {name: b, limit: 10/1m, algorithm: token-bucket}]",
    )
    .unwrap();
    let check = |store: &str| {
        let command = ["check", "--store", store, rules.to_str().unwrap()];
        let output = tidegate().args(command).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let server = Server::start(&[]);
    let (good, told, warned) = check(&server.address());
    assert!(good && warned.is_empty(), "{told} {warned}");
    // A look is no server: the others would divide their limits by one more.
    let counted = server.ask(&["EXISTS", "tidegate:nodes"]);
    assert_eq!(counted.text(), "0");
    let user = "ACL SETUSER app on >secret ~tidegate:* +@all";
    server.ask(&user.split(' ').collect::<Vec<_>>());
    let as_app = format!("redis://app:secret@127.0.0.1:{}", server.port());
    for (right, good, says) in [
        (
            "-hdel",
            true,
            "warning: the store does not run HDEL: these limits work",
        ),
        ("-mget", false, "+mget"),
    ] {
        server.ask(&["ACL", "SETUSER", "app", right]);
        let (is_good, told, warned) = check(&as_app);
        assert!(is_good == good && warned.contains(says), "{told} {warned}");
        assert!(!warned.contains("secret"), "{warned}");
    }
    server.ask(&["ACL", "SETUSER", "app", "+@all"]);
    server.ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let (good, told, warned) = check(&as_app);
    let says = "warning: the store may evict limits in force (volatile-ttl)";
    assert!(good && warned.contains(says), "{told} {warned}");
    let port = free_port().to_string();
    let node = Server::start(&["--cluster-enabled", "yes", "--cluster-port", &port]);
    let (good, told, warned) = check(&node.address());
    assert!(
        !good && warned.contains("write redis+cluster://"),
        "{told} {warned}"
    );
    let (good, told, warned) = check("redis://127.0.0.1:1");
    assert!(
        !good && warned.contains("cannot reach the store"),
        "{told} {warned}"
    );
    let left = server.ask(&["KEYS", "tidegate:*"]);
    assert!(
        !format!("{left:?}").contains("rules"),
        "nothing is announced to other servers: {left:?}"
    );
}

#[test]
fn check_says_why_a_limit_is_exact_although_another_mode_is_configured() {
    let rules = scratch("store-modes").join("rules.yaml");
    let limits = [
        (
            "leaky",
            "10/1s, algorithm: leaky-bucket",
            "this algorithm has no other mode",
        ),
        (
            "small",
            "10/1s, algorithm: token-bucket",
            "a leased token bucket needs a burst of at least 16",
        ),
        (
            "slow",
            "100/1d, algorithm: token-bucket",
            "less than one unit is refilled within its slack",
        ),
        ("none", "0/1s", "it admits nothing"),
        (
            "logins",
            "100/1m, block_for: 1h",
            "the store counts each denial",
        ),
    ];
    let line = |(name, limit, _): &(&str, &str, &str)| {
        format!("  - {{name: {name}, limit: {limit}, sharing: leased}}\n")
    };
    let text: String = limits.iter().map(line).collect();
    fs::write(&rules, format!("limits:\n{text}")).unwrap();
    let command = ["check", "--shared", rules.to_str().unwrap()];
    let output = tidegate().args(command).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    for (name, _, why) in limits {
        let row = table.lines().find(|line| line.starts_with(name));
        assert!(row.is_some_and(|row| row.contains(why)), "{name}: {table}");
    }
}
