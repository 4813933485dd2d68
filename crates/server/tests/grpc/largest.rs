//! The largest requests, many at a time, on every path, call and command: what a server's memory grows by.
//!
//! The server runs in a separate process, whose largest resident memory the system measures. The paths come from the table of routes,
//! the commands and the services from the server, so a new one without a request fails here.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use prost::Message;
use tidegate_server::{
    Options,
    http::{Endpoint, MAX_BODY, Plane, ROUTES},
    resp::{MAX_BULK, MAX_FRAME},
};

use crate::{
    client::{Client, one, request},
    harness::{PATIENCE, Resp, Running, frame, scratch},
    quota::empty_report,
    rls::{CONFIG, START, options},
};

/// How many requests are sent at once: 100 if `TIDEGATE_LONG` is set, and otherwise 16, or 3 if each takes a second.
fn at_once(bytes: usize) -> usize {
    match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 100,
        None if bytes > 1 << 20 => 3,
        None => 16,
    }
}

/// The bound on the growth of the server's memory, in KiB.
const MOST: u64 = 64 * 1024;
/// Set in the server's process: the name of its directory.
const SERVER: &str = "TIDEGATE_TEST_LARGEST";

/// A server in a separate process.
struct Served {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
    resp: SocketAddr,
    grpc: SocketAddr,
}

impl Served {
    fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "largest::server_in_a_separate_process", "--nocapture"])
            .env(SERVER, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find_map(|line| Some(line.split_once("serves ")?.1.to_owned())).expect("it starts");
        let addresses: Vec<SocketAddr> = line.split(' ').map(|address| address.parse().unwrap()).collect();
        thread::spawn(move || lines.for_each(drop));
        let [http, admin, resp, grpc] = addresses.try_into().unwrap();
        Self { child, http, admin, resp, grpc }
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the server lives");
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
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
}

impl Drop for Served {
    fn drop(&mut self) {
        // The end of its input stops it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Does nothing unless a test here runs it.
#[test]
fn server_in_a_separate_process() {
    let Ok(name) = std::env::var(SERVER) else { return };
    let rules = scratch(&format!("{name}-rules")).join("rules.yaml");
    std::fs::write(&rules, "limits: [{name: a, limit: 1000000/1h}]\n").unwrap();
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
    println!("serves {} {} {} {}", server.http, server.admin, server.resp, server.grpc);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Sends this request on many connections at once, and reads until each has an answer or ends.
fn send_at_once(address: SocketAddr, bytes: &[u8], patience: Duration) {
    thread::scope(|scope| {
        for _ in 0..at_once(bytes.len()) {
            scope.spawn(|| {
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
        Endpoint::Acquire | Endpoint::Peek | Endpoint::Reserve => {
            of(r#"{"all":["#, r#"{"limit":"a","key":"k"},"#, r#"{"limit":"a","key":"k"}]}"#, MAX_BODY)
        }
        Endpoint::Json => {
            let begin = r#"{"domain":"shop","descriptors":["#;
            let last = r#"{"entries":[{"key":"user","value":"x"}]}]}"#;
            of(begin, r#"{"entries":[{"key":"user","value":"x"}]},"#, last, MAX_BODY)
        }
        Endpoint::FlowReport => {
            let begin = r#"{"app":"a","instance":"i","now":1,"resources":["#;
            let part = r#"{"name":"r","in_flight":1,"seconds":[]},"#;
            of(begin, part, r#"{"name":"r","in_flight":1,"seconds":[]}]}"#, MAX_BODY)
        }
        Endpoint::FlowRules => of(r#"{"app":"a","rules":"flow: ["#, "1,", r#"1]"}"#, MAX_BODY),
        // The others name one limit and one key.
        _ => of(r#"{"limit":"a","key":""#, "k", r#""}"#, MAX_BODY),
    }
}

#[test]
fn many_of_the_largest_requests_on_each_path_call_and_command_take_little_memory() {
    let server = Served::start("largest-all");
    let mut most = (0, String::new());
    let mut bounded = |name: String, growth: u64| {
        println!("{name}: {growth} KiB");
        assert!(growth <= MOST, "{name} takes {growth} KiB");
        assert!(server.is_alive(), "{name}");
        most = std::cmp::max(std::mem::take(&mut most), (growth, name));
    };
    for route in ROUTES {
        let address = if route.is_on(Plane::Data) { server.http } else { server.admin };
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
        let growth = server.growth(|| send_at_once(address, request.as_bytes(), PATIENCE));
        bounded(format!("{method} {}", route.path), growth);
    }
    let listed = Resp::connect(server.resp).ask("COMMAND LIST");
    for name in listed.trim_matches(['[', ']']).split(' ') {
        // As much as a frame may have.
        let arguments = format!(" {}", "x".repeat(MAX_BULK - 8)).repeat(MAX_FRAME / MAX_BULK - 1);
        let mut asked = frame(&format!("{name}{arguments}"));
        assert!(asked.len() <= MAX_FRAME && asked.len() > MAX_FRAME / 2);
        asked.extend_from_slice(&frame(&format!("{name} a {}", "x".repeat(MAX_BULK - 8))));
        // By the server's clock, which stands still, the answer to a wrong password never comes.
        let patience = if name == "auth" { Duration::from_millis(500) } else { PATIENCE };
        let growth = server.growth(|| send_at_once(server.resp, &asked, patience));
        bounded(name.to_owned(), growth);
    }
    for service in services(server.grpc) {
        let (method, message) = call(&service);
        // `grpc.reflection` is the beginning of several names.
        let path = if service == "grpc.reflection" {
            format!("/{service}.{method}")
        } else {
            format!("/{service}/{method}")
        };
        let growth = server.growth(|| call_at_once(server.grpc, &path, &message, at_once(message.len())));
        bounded(path, growth);
    }
    println!("the most: {} KiB for {}", most.0, most.1);
}

#[test]
fn quota_reports_with_millions_of_buckets_take_little_memory() {
    let server = Served::start("largest-reports");
    let report = empty_report().encode_to_vec();
    assert!((4_000_000..4 << 20).contains(&report.len()));
    for count in [1, at_once(report.len()).min(16)] {
        let growth = server.growth(|| call_at_once(server.grpc, QUOTAS, &report, count));
        println!("{count} reports of 2 million buckets: {growth} KiB");
        assert!(growth <= MOST, "{count}: {growth} KiB");
    }
    assert!(server.is_alive());
}

const QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The server's services, from its answer about one that it does not have.
fn services(address: SocketAddr) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let message = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = axum::http::Request::post(format!("http://{address}/nothing/Here")).body(()).unwrap();
        let (answer, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
        answer.await.unwrap().headers()["grpc-message"].to_str().unwrap().to_owned()
    });
    let message = percent_encoding::percent_decode_str(&message).decode_utf8().unwrap();
    let listed = message.strip_prefix("the services are ").expect(&message);
    listed.replace(" and ", ", ").split(", ").map(str::to_owned).collect()
}

/// A method of a service, and its largest message.
fn call(service: &str) -> (&'static str, Vec<u8>) {
    // A name of 16,000 bytes as the field with this number.
    let name = |field: u8| [&[field << 3 | 2, 0x80, 0x7d][..], &[b'x'; 16_000]].concat();
    match service {
        "envoy.service.ratelimit.v3.RateLimitService" => ("ShouldRateLimit", rls_message()),
        "kuadrant.service.ratelimit.v1.RateLimitService" => ("Reserve", rls_message()),
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService" => {
            ("StreamRateLimitQuotas", report_message())
        }
        "grpc.health.v1.Health" => ("Check", name(1)),
        "grpc.reflection" => ("v1.ServerReflection/ServerReflectionInfo", name(3)),
        _ => panic!("give the largest message of {service}"),
    }
}

/// A message of 4 MiB with as many descriptors as are allowed.
fn rls_message() -> Vec<u8> {
    let descriptors = vec![one("user", &"x".repeat(2_020)); 2_048];
    let message = request("shop", descriptors).encode_to_vec();
    assert!((4_000_000..=4 << 20).contains(&message.len()), "{}", message.len());
    message
}

/// A report of 4 MB with as many buckets as are allowed.
fn report_message() -> Vec<u8> {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
        BucketId, RateLimitQuotaUsageReports, rate_limit_quota_usage_reports::BucketQuotaUsage,
    };
    let usage = |at: usize| BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket: [("plan".to_owned(), format!("{at:0>600}"))].into() }),
        ..BucketQuotaUsage::default()
    };
    let usages = (0..6_600).map(usage).collect();
    let report = RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: usages };
    let message = report.encode_to_vec();
    assert!((4_000_000..=4 << 20).contains(&message.len()), "{}", message.len());
    message
}

/// Calls this method with this message on many connections at once, and waits for the first bytes of each answer, or its
/// end.
fn call_at_once(address: SocketAddr, path: &str, message: &[u8], count: usize) {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(message);
    let framed = bytes::Bytes::from(framed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let calls: Vec<_> = (0..count)
            .map(|_| {
                let (path, framed) = (format!("http://{address}{path}"), framed.clone());
                tokio::spawn(async move {
                    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                    let (client, connection) = h2::client::handshake(stream).await.unwrap();
                    tokio::spawn(connection);
                    let mut client = client.ready().await.unwrap();
                    let request = axum::http::Request::post(path).header("content-type", "application/grpc");
                    let (answer, mut sends) = client.send_request(request.body(()).unwrap(), false).unwrap();
                    let _ = sends.send_data(framed, true);
                    let Ok(answer) = answer.await else { return };
                    let _ = answer.into_body().data().await;
                })
            })
            .collect();
        for call in calls {
            let ended = tokio::time::timeout(2 * PATIENCE, call).await;
            ended.expect("each call is answered").unwrap();
        }
    });
    assert_eq!(Client::of(address).told(vec![one("unknown", "x")]), "OK: OK/0", "others are served");
}
