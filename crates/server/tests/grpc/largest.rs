//! The largest requests, many at a time, on every path, call and command: what a server's memory
//! grows by.
//!
//! The server runs in a separate process, whose largest resident memory the system measures. The
//! paths come from the table of routes, the commands and the services from the server, so a new one
//! without a request fails here.
//!
//! `TIDEGATE_LONG=1` sends 100 at once. It runs the server in a control group of 512 MiB if this
//! process may make one, and prints how long decisions take meanwhile. `TIDEGATE_PROGRAM=PATH`
//! names the program to serve with.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use prost::Message;
use tidegate_server::{
    Options,
    http::{Endpoint, MAX_BODY, Plane, ROUTES},
    resp::{MAX_BULK, MAX_FRAME},
};

use crate::{
    client::{Client, one, request},
    harness::{Http, PATIENCE, Resp, Running, frame, scratch},
    quota::empty_report,
    rights::methods,
    rls::{CONFIG, START, a_day, options},
};

fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some()
}

/// How many requests are sent at once: 100 if `TIDEGATE_LONG` is set, and otherwise 16, or 3 if
/// each takes a second.
fn at_once(bytes: usize) -> usize {
    match bytes {
        _ if is_long() => 100,
        ..=0x10_0000 => 16,
        _ => 3,
    }
}

/// The bound on the growth of the server's memory, in KiB.
const MOST: u64 = 64 * 1024;
/// The memory of the control group, in bytes.
const ROOM: u64 = 512 << 20;
const RULES: &str = "limits: [{name: a, limit: 1000000000/1h, algorithm: token-bucket}]\n";
/// Set in the server's process: the name of its directory.
const SERVER: &str = "TIDEGATE_TEST_LARGEST";

/// A control group with [`ROOM`] for a server.
struct Group(PathBuf);

impl Group {
    /// `None` if this process may not make one.
    fn new(name: &str) -> Option<Self> {
        // Version 1 and version 2.
        let places = [("memory/", "memory.limit_in_bytes"), ("", "memory.max")];
        places.into_iter().find_map(|(controller, limit)| {
            let path = format!(
                "/sys/fs/cgroup/{controller}tidegate-{name}-{}",
                std::process::id()
            );
            let path = PathBuf::from(path);
            fs::create_dir(&path).ok()?;
            let group = Self(path);
            fs::write(group.0.join(limit), ROOM.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A server in a separate process.
struct Served {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
    resp: SocketAddr,
    grpc: SocketAddr,
    group: Option<Group>,
}

impl Served {
    fn start(name: &str) -> Self {
        let group = is_long().then(|| Group::new(name)).flatten();
        let program = std::env::var_os("TIDEGATE_PROGRAM");
        let mut command = match &group {
            // Before it is another program, the process moves into the group.
            Some(Group(path)) => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
                    .arg(path.join("cgroup.procs"));
                shell.arg(
                    program
                        .clone()
                        .unwrap_or_else(|| std::env::current_exe().unwrap().into()),
                );
                shell
            }
            None => Command::new(
                program
                    .clone()
                    .unwrap_or_else(|| std::env::current_exe().unwrap().into()),
            ),
        };
        if program.is_some() {
            let [rules, envoy] = files(name);
            command
                .arg("serve")
                .arg("--rules")
                .arg(rules)
                .arg("--envoy-config")
                .arg(envoy);
            for listener in ["--http", "--admin", "--resp", "--grpc"] {
                command.args([listener, "127.0.0.1:0"]);
            }
            command.args([
                "--rules-writable",
                "--envoy-consume",
                "all-or-none",
                "--max-keys",
                "1000",
            ]);
            command.args([
                "--trace-keys",
                "100%",
                "--trace-memory",
                "1MiB",
                "--log-level",
                "error",
            ]);
        } else {
            command.args([
                "--exact",
                "largest::server_in_a_separate_process",
                "--nocapture",
            ]);
            command.env(SERVER, name);
        }
        // As the systemd unit does: each of glibc's arenas keeps what its threads have freed, up to
        // 36 MB more in all.
        command.env("MALLOC_ARENA_MAX", "2");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let [http, resp, grpc, admin] = ["HTTP", "RESP", "gRPC", "admin"].map(|listener| {
            let address = lines.find_map(|line| {
                let address = line.trim().strip_prefix(listener)?.trim();
                Some(address.split("://").last()?.split(',').next()?.to_owned())
            });
            address.expect("it starts").parse().unwrap()
        });
        thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            http,
            admin,
            resp,
            grpc,
            group,
        }
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .expect("the server lives");
        line.trim_start_matches(':')
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    /// The largest growth of the resident memory while the function runs, in KiB.
    fn growth(&self, run: impl FnOnce()) -> u64 {
        // Forgets the largest so far.
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
        let before = self.status("VmRSS");
        run();
        self.status("VmHWM").saturating_sub(before)
    }

    fn is_alive(&self) -> bool {
        Resp::connect(self.resp).ask("PING") == "PONG"
    }

    /// How long 99 of 100 decisions take at most while this function runs, in microseconds.
    #[allow(
        clippy::disallowed_methods,
        reason = "measures a server in another process"
    )]
    fn p99_while(&self, run: impl FnOnce()) -> u128 {
        let is_over = AtomicBool::new(false);
        let mut waits = thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (mut http, mut resp) = (Http::connect(self.http), Resp::connect(self.resp));
                let mut waits = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    assert_eq!(
                        http.send("POST", "/v1/acquire", r#"{"limit":"a","key":"k"}"#)
                            .status,
                        200
                    );
                    waits.push(began.elapsed());
                    let began = Instant::now();
                    assert!(resp.ask("ACQUIRE a k").starts_with("[0"));
                    waits.push(began.elapsed());
                }
                waits
            });
            run();
            is_over.store(true, Ordering::Relaxed);
            waits.join().unwrap()
        });
        waits.sort_unstable();
        waits[waits.len() * 99 / 100].as_micros()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The end of its input stops the server of this file.
        drop(self.child.stdin.take());
        if std::env::var_os("TIDEGATE_PROGRAM").is_some() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        // Only an empty group goes.
        self.group = None;
    }
}

/// The rules and a configuration of Envoy.
fn files(name: &str) -> [PathBuf; 2] {
    let directory = scratch(&format!("{name}-files"));
    [("rules.yaml", RULES), ("envoy.yaml", CONFIG)].map(|(name, text)| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path
    })
}

/// Does nothing unless a test here runs it.
#[test]
fn server_in_a_separate_process() {
    let Ok(name) = std::env::var(SERVER) else {
        return;
    };
    let [rules, _] = files(&name);
    let server = Running::start_at(
        Options {
            rules: Some(rules),
            rules_writable: true,
            trace_keys: Some("100%".parse().unwrap()),
            trace_memory: 1 << 20,
            max_keys: 1_000,
            ..options(&name, CONFIG)
        },
        START,
    );
    println!(
        "\nHTTP {}\nRESP {}\ngRPC {}\nadmin {}",
        server.http, server.resp, server.grpc, server.admin
    );
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The decisions that are measured go before the attackers of this process.
fn give_way() {
    let _ = rustix::process::setpriority_process(None, 19);
}

/// Sends this request on many connections at once, and reads until each has an answer or ends.
fn send_at_once(address: SocketAddr, bytes: &[u8], patience: Duration) {
    thread::scope(|scope| {
        for _ in 0..at_once(bytes.len()) {
            scope.spawn(|| {
                give_way();
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(patience)).unwrap();
                // The server may answer before it has read everything.
                let _ = stream.write_all(bytes);
                let _ = stream.read(&mut [0; 4096]);
            });
        }
    });
}

/// The largest body of an endpoint, with as many parts as there is room for.
fn body(endpoint: Endpoint) -> String {
    let of = |begin: &str, part: &str, end: &str, size: usize| {
        let count = (size - begin.len() - end.len()) / part.len();
        format!("{begin}{}{end}", part.repeat(count))
    };
    match endpoint {
        Endpoint::RulesCheck | Endpoint::RulesSave | Endpoint::WhatIf => {
            of("limits:\n", "- {name: a, limit: 1/1s}\n", "", 4 << 20)
        }
        Endpoint::Acquire | Endpoint::Peek | Endpoint::Reserve => of(
            r#"{"all":["#,
            r#"{"limit":"a","key":"k"},"#,
            r#"{"limit":"a","key":"k"}]}"#,
            MAX_BODY,
        ),
        Endpoint::Json => {
            let begin = r#"{"domain":"shop","descriptors":["#;
            let last = r#"{"entries":[{"key":"user","value":"x"}]}]}"#;
            of(
                begin,
                r#"{"entries":[{"key":"user","value":"x"}]},"#,
                last,
                MAX_BODY,
            )
        }
        Endpoint::FlowReport => {
            let begin = r#"{"app":"a","instance":"i","now":1,"resources":["#;
            let part = r#"{"name":"r","in_flight":1,"seconds":[]},"#;
            of(
                begin,
                part,
                r#"{"name":"r","in_flight":1,"seconds":[]}]}"#,
                MAX_BODY,
            )
        }
        Endpoint::FlowRules => of(r#"{"app":"a","rules":"flow: ["#, "1,", r#"1]"}"#, MAX_BODY),
        // The others name one limit and one key.
        _ => of(r#"{"limit":"a","key":""#, "k", r#""}"#, MAX_BODY),
    }
}

/// The server that is attacked, and what the attacks took.
struct Attacked {
    server: Served,
    /// The same attack on it shows what the attackers cost without a word to the server.
    other: Option<Served>,
    most: (u64, String),
}

impl Attacked {
    fn start(name: &str) -> Self {
        let server = Served::start(name);
        let other = is_long().then(|| Served::start(&format!("{name}-other")));
        if is_long() {
            #[allow(clippy::disallowed_methods, reason = "measures an idle server")]
            let idle = server.p99_while(|| thread::sleep(Duration::from_secs(3)));
            let group = server.group.is_some();
            println!(
                "in a control group: {group}; idle: p99 {idle} us; then memory, p99, p99 if another server is attacked"
            );
        }
        Self {
            server,
            other,
            most: (0, String::new()),
        }
    }

    /// Attacks once for the memory, and then, if the run is long, with `again` for the decisions'
    /// time.
    fn bounded(&mut self, name: &str, attack: &dyn Fn(&Served), again: &dyn Fn(&Served)) {
        let growth = self.server.growth(|| attack(&self.server));
        let again = |of: &Served| self.server.p99_while(|| (0..5).for_each(|_| again(of)));
        let waits = self.other.as_ref().map_or(String::new(), |other| {
            let [p99, elsewhere] = [again(&self.server), again(other)];
            format!(", {p99} us, {elsewhere} us")
        });
        println!("{name}: {growth} KiB{waits}");
        assert!(growth <= MOST, "{name} takes {growth} KiB");
        assert!(self.server.is_alive(), "{name}");
        self.most = std::cmp::max(std::mem::take(&mut self.most), (growth, name.to_owned()));
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        println!("the most: {} KiB for {}", self.most.0, self.most.1);
    }
}

#[test]
fn many_of_the_largest_requests_on_each_path_take_little_memory() {
    let mut attacked = Attacked::start("largest-paths");
    for route in ROUTES {
        let address = |of: &Served| {
            if route.is_on(Plane::Data) {
                of.http
            } else {
                of.admin
            }
        };
        let path = route.path.replace("{limit}", "a");
        // A long query that no path knows, and the longest key that the path with a key takes.
        let filler = "k".repeat(14_000);
        let (query, body) = match route.method {
            "GET" => (format!("?key={filler}"), String::new()),
            _ => ("?version=1".to_owned(), body(route.endpoint)),
        };
        let (method, length) = (route.method, body.len());
        let request = format!(
            "{method} {path}{query} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let attack = |of: &Served| send_at_once(address(of), request.as_bytes(), PATIENCE);
        attacked.bounded(&format!("{method} {}", route.path), &attack, &attack);
    }
}

#[test]
fn many_of_the_largest_commands_take_little_memory() {
    let mut attacked = Attacked::start("largest-commands");
    let listed = Resp::connect(attacked.server.resp).ask("COMMAND LIST");
    for name in listed.trim_matches(['[', ']']).split(' ') {
        // As much as a frame may have.
        let arguments = format!(" {}", "x".repeat(MAX_BULK - 8)).repeat(MAX_FRAME / MAX_BULK - 1);
        let mut asked = frame(&format!("{name}{arguments}"));
        assert!(asked.len() <= MAX_FRAME && asked.len() > MAX_FRAME / 2);
        asked.extend_from_slice(&frame(&format!("{name} a {}", "x".repeat(MAX_BULK - 8))));
        // By the server's clock, which stands still, the answer to a wrong password never comes.
        let patience = if name == "auth" {
            Duration::from_millis(500)
        } else {
            PATIENCE
        };
        let attack = |of: &Served| send_at_once(of.resp, &asked, patience);
        attacked.bounded(name, &attack, &attack);
    }
}

#[test]
fn many_of_the_largest_messages_of_each_call_take_little_memory() {
    let mut attacked = Attacked::start("largest-calls");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for method in runtime.block_on(methods(attacked.server.grpc, None)) {
        let (path, message) = (format!("/{method}"), largest_message(&method));
        let attack = |of: &Served, patience| {
            call_at_once(of.grpc, &path, &message, at_once(message.len()), patience)
        };
        // A debug build takes half a second for a report of 6,600 buckets.
        let patience = PATIENCE * if is_long() { 10 } else { 2 };
        let until_answered =
            |of: &Served| assert!(attack(of, patience), "each {method} is answered");
        // A stream may have no answer until it ends for want of messages.
        let for_a_while = |of: &Served| {
            attack(of, Duration::from_secs(1));
        };
        attacked.bounded(&path, &until_answered, &for_a_while);
    }
}

#[test]
fn quota_reports_with_a_million_buckets_take_little_memory() {
    let server = Served::start("largest-reports");
    let report = empty_report().encode_to_vec();
    assert!((2_000_000..2 << 20).contains(&report.len()));
    for count in [1, at_once(report.len()).min(16)] {
        let growth = server.growth(|| {
            assert!(call_at_once(
                server.grpc,
                QUOTAS,
                &report,
                count,
                2 * PATIENCE
            ));
        });
        println!("{count} reports of a million buckets: {growth} KiB");
        assert!(growth <= MOST, "{count}: {growth} KiB");
    }
    assert!(server.is_alive());
}

const QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The largest message of a method.
fn largest_message(method: &str) -> Vec<u8> {
    // A name of 16,000 bytes as the field with this number.
    let name = |field: u8| [&[field << 3 | 2, 0x80, 0x7d][..], &[b'x'; 16_000]].concat();
    match method.rsplit('/').next().unwrap() {
        "ShouldRateLimit" | "CheckRateLimit" | "Report" | "Reserve" | "Commit" => rls_message(),
        "StreamRateLimitQuotas" => report_message(),
        "Check" | "Watch" => name(1),
        "ServerReflectionInfo" => name(3),
        _ => panic!("give the largest message of {method}"),
    }
}

/// A message of 4 MiB with as many descriptors as are allowed.
fn rls_message() -> Vec<u8> {
    let descriptors = vec![one("user", &"x".repeat(2_020)); 2_048];
    let message = request("shop", descriptors).encode_to_vec();
    assert!(
        (4_000_000..=4 << 20).contains(&message.len()),
        "{}",
        message.len()
    );
    message
}

/// A report of 2 MB with as many buckets as are allowed.
fn report_message() -> Vec<u8> {
    use tidegate_envoy::pb::envoy::service::rate_limit_quota::v3::{
        BucketId, RateLimitQuotaUsageReports, rate_limit_quota_usage_reports::BucketQuotaUsage,
    };
    let usage = |at: usize| BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: [("plan".to_owned(), format!("{at:0>280}"))].into(),
        }),
        ..BucketQuotaUsage::default()
    };
    let usages = (0..6_600).map(usage).collect();
    let report = RateLimitQuotaUsageReports {
        domain: "shop".to_owned(),
        bucket_quota_usages: usages,
    };
    let message = report.encode_to_vec();
    assert!(
        (1_900_000..=2 << 20).contains(&message.len()),
        "{}",
        message.len()
    );
    message
}

/// Calls this method with this message on many connections at once, and waits for the first bytes
/// of each answer, or its end. After `patience` the clients go away. Returns whether each call was
/// answered or ended by then.
fn call_at_once(
    address: SocketAddr,
    path: &str,
    message: &[u8],
    count: usize,
    patience: Duration,
) -> bool {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(message);
    let framed = bytes::Bytes::from(framed);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(1)
        .on_thread_start(give_way)
        .enable_all()
        .build()
        .unwrap();
    let answered = runtime.block_on(async {
        let calls: Vec<_> = (0..count)
            .map(|_| {
                let (path, framed) = (format!("http://{address}{path}"), framed.clone());
                tokio::spawn(async move {
                    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                    // As gRPC's clients do. Without it, each window waits 40 ms for the last one.
                    stream.set_nodelay(true).unwrap();
                    let (client, connection) = h2::client::handshake(stream).await.unwrap();
                    tokio::spawn(connection);
                    let mut client = client.ready().await.unwrap();
                    let request =
                        axum::http::Request::post(path).header("content-type", "application/grpc");
                    let (answer, mut sends) = client
                        .send_request(request.body(()).unwrap(), false)
                        .unwrap();
                    let _ = sends.send_data(framed, true);
                    let answered = async {
                        let Ok(answer) = answer.await else { return };
                        let _ = answer.into_body().data().await;
                    };
                    tokio::time::timeout(patience, answered).await.is_ok()
                })
            })
            .collect();
        let mut answered = true;
        for call in calls {
            answered &= call.await.unwrap();
        }
        answered
    });
    assert_eq!(
        Client::of(address).told(vec![one("unknown", "x")]),
        "OK: OK/0",
        "others are served"
    );
    answered
}

#[test]
fn a_million_override_numbers_take_little_memory() {
    let server = Served::start("largest-overrides");
    let most: u32 = if is_long() { 1_000_000 } else { 20_000 };
    let mut client = Client::of(server.grpc);
    let growth = server.growth(|| {
        // Many numbers in one request, so that the test is quick.
        for first in (1..=most).step_by(100) {
            let descriptors =
                (first..first + 100).map(|number| a_day(number, &format!("c{}", number % 70_000)));
            client.ask(descriptors.collect());
        }
    });
    assert!(growth <= MOST, "{growth} KiB");
}
