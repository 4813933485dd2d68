//! Heartbeats, metrics and rules of programs with Sentinel. The honest ones here are Rust programs
//! with its protocol; those of Java are in `interop`.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_core::Clock as _;
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{FlowRule, Rules as GateRules},
};
use tidegate_flow_net::sentinel::{CommandApi, Commands};
use tidegate_redis_servers::eventually;
use tidegate_server::Options;

use super::harness::{Http, PATIENCE, Running, scratch};

pub fn options() -> Options {
    Options {
        sentinel_dashboard: Some("127.0.0.1:0".to_owned()),
        ..Options::default()
    }
}

/// A program that sends heartbeats.
fn program(server: &Running) -> (Gate, Commands) {
    let gate = Gate::new();
    let api = CommandApi::new("shop")
        .port(0)
        .dashboard(server.dashboard.to_string());
    let commands = api.serve(&gate).unwrap();
    (gate, commands)
}

pub fn app(server: &Running, name: &str) -> Value {
    server.get(&format!("/v1/flow?app={name}")).json()["apps"][0].clone()
}

pub fn push(server: &Running, rules: &str) {
    let pushed = server.post(
        "/v1/flow/rules",
        &json!({"app": "shop", "rules": rules}).to_string(),
    );
    assert_eq!(pushed.status, 200, "{}", pushed.body);
}

/// Sends a heartbeat, and returns the status and the text of the answer.
fn beat(server: &Running, fields: &str) -> (u16, String) {
    request(
        server,
        &format!(
            "POST /registry/machine HTTP/1.1\r\nHost: x\r\nContent-Length: {}",
            fields.len()
        ),
        fields,
    )
}

fn request(server: &Running, head: &str, body: &str) -> (u16, String) {
    request_over(TcpStream::connect(server.dashboard).unwrap(), head, body)
}

fn request_over(mut stream: TcpStream, head: &str, body: &str) -> (u16, String) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{head}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (
        answer[9..12].parse().unwrap(),
        answer.split_once("\r\n\r\n").unwrap().1.to_owned(),
    )
}

/// A program that answers each request with these bytes, again and again if `endlessly`. Tells when
/// a request came, and when the server has closed the connection.
fn answering(bytes: String, endlessly: bool) -> (SocketAddr, mpsc::Receiver<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = tell.send("asked");
            while stream.write_all(bytes.as_bytes()).is_ok() && endlessly {}
            let _ = tell.send("closed");
        }
    });
    (address, told)
}

#[test]
fn a_program_is_shown_and_has_the_pushed_rules_after_each_restart() {
    let directory: PathBuf = scratch("sentinel-dashboard-rules");
    let options = || Options {
        flow_rules: Some(directory.clone()),
        ..options()
    };
    let server = Running::start(options());
    let (gate, commands) = program(&server);
    let instance = commands.address().to_string();
    eventually("the program is shown", || {
        app(&server, "shop")["instances"][0]["instance"] == *instance
    });
    assert_eq!(app(&server, "shop")["instances"][0]["version"], Value::Null);
    let db = gate.resource("db");
    eventually("what it does is shown", || {
        drop(db.enter());
        let resource = &app(&server, "shop")["resources"][0];
        resource["resource"] == "db" && resource["pass_per_second"].as_f64() > Some(0.0)
    });
    let page = Http::connect(server.admin)
        .send("GET", "/flow?app=shop", "")
        .body;
    assert!(
        page.contains("db") && page.contains(&*instance) && page.contains("has its own rules"),
        "{page}"
    );

    // A push starts from the rules that it has.
    let own = GateRules::from(vec![FlowRule::new("own", 9)]);
    gate.load(own).unwrap();
    eventually("its rules are shown", || {
        let page = Http::connect(server.admin)
            .send("GET", "/flow?app=shop", "")
            .body;
        page.contains("{ resource: &quot;own&quot;, limit: 9/1s }")
    });

    push(
        &server,
        "flow: [{ resource: 'a+b%', limit: 7/1s }]\nisolation: [{ resource: db, in_flight: 3 }]",
    );
    let want = [FlowRule::new("a+b%", 7), FlowRule::in_flight("db", 3)];
    let has_rules = |gate: &Gate| gate.rules().flow == want;
    eventually("the rules arrive", || has_rules(&gate));
    let has_version = |server: &Running| {
        let app = app(server, "shop");
        app["instances"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["version"] == app["rules"]["version"])
    };
    eventually("the server sees them", || has_version(&server));
    // An operator of the program changes them there.
    gate.load(tidegate_flow::rules::Rules::default()).unwrap();
    eventually("they are pushed again", || has_rules(&gate));

    // The program is started again, then the server.
    drop(commands);
    let (gate, commands) = program(&server);
    eventually("they are pushed to the new program", || has_rules(&gate));
    drop(commands);
    server.stop();
    let server = Running::start(options());
    let (gate, _commands) = program(&server);
    eventually("the server kept them", || has_rules(&gate));

    push(&server, "adaptive: [{ resource: db, algorithm: vegas }]");
    eventually("what Sentinel does not have is told", || {
        let told = app(&server, "shop")["instances"].to_string();
        gate.rules().flow.is_empty() && told.contains("Sentinel has no adaptive rules")
    });
}

#[test]
fn a_heartbeat_is_refused_unless_it_names_its_sender() {
    let server = Running::start(options());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (fields, status, says) in [
        (
            format!("app=shop&ip=192.0.2.7&port={port}"),
            403,
            "names the address 192.0.2.7; set csp.sentinel",
        ),
        (
            format!("app=shop&ip=127.0.0.2&port={port}"),
            403,
            "127.0.0.2",
        ),
        (format!("app=shop&ip=localhost&port={port}"), 400, "`ip`"),
        (format!("app=&ip=127.0.0.1&port={port}"), 400, "`app`"),
        (
            format!("app={}&ip=127.0.0.1&port={port}", "x".repeat(65)),
            400,
            "`app`",
        ),
        ("app=shop&ip=127.0.0.1&port=0".to_owned(), 400, "`port`"),
        ("app=shop&ip=127.0.0.1&port=65536".to_owned(), 400, "`port`"),
        ("app=shop&ip=127.0.0.1".to_owned(), 400, "`port`"),
        (
            format!("app=shop&ip=127.0.0.1&port={port}&x={}", "x".repeat(9_000)),
            413,
            "length limit",
        ),
    ] {
        let (answer, said) = beat(&server, &fields);
        assert!(
            answer == status && said.contains(says),
            "{fields}: {answer} {said}"
        );
    }
    assert_eq!(
        request(&server, "GET /v1/flow HTTP/1.1\r\nHost: x", "").0,
        404
    );
    assert_eq!(
        request(&server, "PUT /registry/machine HTTP/1.1\r\nHost: x", "").0,
        404
    );
    // A page of any site can have a browser on this machine send one.
    for field in [
        "Origin: http://evil.example",
        "Referer: http://evil.example/page",
        "Sec-Fetch-Site: cross-site",
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)",
    ] {
        let head = format!(
            "GET /registry/machine?app=shop&ip=127.0.0.1&port={port}&version=1 HTTP/1.1\r\nHost: x\r\n{field}"
        );
        let (answer, said) = request(&server, &head, "");
        assert!(
            answer == 403 && said.contains("a browser"),
            "{field}: {answer} {said}"
        );
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the server called nobody");
    // The other form of heartbeats, which Sentinel's Netty transport sends; ::ffff:127.0.0.1 is the
    // same address.
    for ip in ["127.0.0.1", "::ffff:127.0.0.1"] {
        let head = format!(
            "GET /registry/machine?app=shop&ip={ip}&port={port}&version=1 HTTP/1.1\r\nHost: x"
        );
        assert_eq!(request(&server, &head, ""), (200, "success".to_owned()));
    }
    eventually("the server calls the program", || listener.accept().is_ok());

    let listed = Running::start(Options {
        sentinel_dashboard_networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..options()
    });
    assert_eq!(
        beat(&listed, &format!("app=shop&ip=127.0.0.2&port={port}")).0,
        200
    );
    assert_eq!(
        beat(&listed, &format!("app=shop&ip=192.0.2.7&port={port}")).0,
        403
    );
}

#[test]
fn with_an_access_file_only_reporters_send_heartbeats_for_their_applications() {
    let file = scratch("sentinel-dashboard-access").join("access.yaml");
    let server = |client: &str| {
        std::fs::write(&file, format!("access: [{{name: a, {client}}}]")).unwrap();
        Running::start(Options {
            access: Some(file.clone()),
            ..options()
        })
    };
    let status =
        |server: &Running, app: &str| beat(server, &format!("app={app}&ip=127.0.0.1&port=9")).0;
    let reporter = server("roles: [report], limits: [shop], addresses: [127.0.0.1]");
    assert_eq!(
        (status(&reporter, "shop"), status(&reporter, "bank")),
        (200, 403)
    );
    let other = server("roles: [decide, operate], addresses: [127.0.0.1]");
    assert_eq!(status(&other, "shop"), 403);
    let stranger = server("roles: [report], addresses: [192.0.2.7]");
    assert_eq!(status(&stranger, "shop"), 403);
    let open = Options {
        sentinel_dashboard: Some("0.0.0.0:0".to_owned()),
        ..options()
    };
    let Err(why) = Running::try_start_at(open, tidegate_core::Nanos::from_secs(1)) else {
        panic!("without an access file it should not listen to other machines");
    };
    assert!(
        why.contains("--sentinel-dashboard") && why.contains("addresses"),
        "{why}"
    );
}

#[test]
fn a_program_can_neither_redirect_the_server_nor_fill_its_memory() {
    let server = Running::start(options());
    let bystander = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = bystander.local_addr().unwrap();
    let (redirecting, redirected) = answering(
        format!("HTTP/1.1 302 Found\r\nLocation: http://{place}/\r\nContent-Length: 0\r\n\r\n"),
        false,
    );
    let mebibyte = "1700000000000|r|1|0|1|0|0|0|1|0\n".repeat(32 << 10);
    let (endless, closed) = answering(format!("HTTP/1.1 200 OK\r\n\r\n{mebibyte}"), true);
    let (broken, _) = answering("no HTTP".to_owned(), false);
    for address in [redirecting, endless, broken] {
        assert_eq!(
            beat(
                &server,
                &format!("app=bad&ip=127.0.0.1&port={}", address.port())
            )
            .0,
            200
        );
    }
    // Each of them is asked twice, and beside them a program that behaves is shown.
    for _ in 0..4 {
        redirected.recv_timeout(PATIENCE).unwrap();
        closed.recv_timeout(PATIENCE).unwrap();
    }
    let (_gate, commands) = program(&server);
    let instance = commands.address().to_string();
    eventually("the program is shown", || {
        app(&server, "shop")["instances"][0]["instance"] == *instance
    });
    bystander.set_nonblocking(true).unwrap();
    assert!(
        bystander.accept().is_err(),
        "nobody asked the other address"
    );
    assert_eq!(app(&server, "bad"), Value::Null);
}

#[test]
fn a_program_without_heartbeats_is_not_asked_any_more() {
    let server = Running::start(options());
    let (address, asked) = answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
        false,
    );
    let heartbeat = format!("app=quiet&ip=127.0.0.1&port={}", address.port());
    assert_eq!(beat(&server, &heartbeat).0, 200);
    asked.recv_timeout(PATIENCE).unwrap();
    server.advance(std::time::Duration::from_secs(40));
    // The next tick forgets it. A question may be under way.
    eventually("it is forgotten", || {
        let is_gone = asked
            .recv_timeout(std::time::Duration::from_secs(3))
            .is_err();
        is_gone && asked.try_recv().is_err()
    });
    assert_eq!(beat(&server, &heartbeat).0, 200);
    asked
        .recv_timeout(PATIENCE)
        .expect("a new heartbeat brings it back");
}

/// A connection from another address of this machine.
fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let stream = socket.connect(to).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    })
}

#[test]
fn made_up_programs_of_one_address_give_way_to_those_of_others() {
    let server = Running::start(options());
    let status = |from: &str, app: &str, port: u16| {
        let fields = format!("app={app}&ip={from}&port={port}");
        let head = format!(
            "POST /registry/machine HTTP/1.1\r\nHost: x\r\nContent-Length: {}",
            fields.len()
        );
        request_over(connect_from(from, server.dashboard), &head, &fields)
    };
    for port in 1..=1_000 {
        assert_eq!(status("127.0.0.9", "made-up", port).0, 200);
    }
    let (refused, why) = status("127.0.0.9", "made-up", 1_001);
    assert!(
        refused == 503 && why.contains("1000 programs"),
        "{refused} {why}"
    );
    // An honest program has its place, and keeps it.
    let (_gate, commands) = program(&server);
    let instance = commands.address().to_string();
    eventually("the program is shown", || {
        app(&server, "shop")["instances"][0]["instance"] == *instance
    });
    assert_eq!(status("127.0.0.9", "made-up", 1_001).0, 503);
    assert_eq!(status("127.0.0.7", "other", 9).0, 200);
    let metrics = server.get("/metrics").body;
    let has = |line: &str| assert!(metrics.contains(line), "{line}: {metrics}");
    has("tidegate_sentinel_dashboard_heartbeats_total{outcome=\"refused\"} 2");
    has("tidegate_sentinel_dashboard_connections_accepted_total 1");
}

#[test]
fn the_last_minute_of_a_program_is_shown_again_after_a_restart() {
    let server = Running::start(options());
    let address = server.dashboard.to_string();
    let timer = ManualTimer::new(tidegate_core::Nanos::from_secs(1_700_000_000));
    let gate = Gate::builder().timer(timer.clone()).build();
    let db = gate.resource("db");
    for _ in 0..7 {
        drop(db.enter());
    }
    timer.advance(std::time::Duration::from_secs(40));
    let _commands = CommandApi::new("shop")
        .port(0)
        .dashboard(address.clone())
        .serve(&gate)
        .unwrap();
    let passed = |server: &Running| {
        let passed = app(server, "shop")["resources"][0]["minute"]["pass"].clone();
        passed
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .sum::<u64>()
    };
    eventually("calls of 40 seconds ago are shown", || passed(&server) == 7);
    server.stop();
    let server = Running::start(Options {
        sentinel_dashboard: Some(address),
        ..options()
    });
    eventually("the new server shows them", || passed(&server) == 7);
}

/// A program whose metrics are this text, and which has no rules. Tells when it was asked for
/// metrics.
fn reporting(metrics: &Arc<Mutex<String>>) -> (SocketAddr, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (metrics, (tell, told)) = (Arc::clone(metrics), mpsc::channel());
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap_or(0);
            let is_asked = request[..length].starts_with(b"GET /metric?");
            let body = if is_asked {
                metrics.lock().unwrap().clone()
            } else {
                "[]".to_owned()
            };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
            if is_asked {
                let _ = tell.send(());
            }
        }
    });
    (address, told)
}

#[test]
fn metrics_become_seconds_and_an_idle_resource_is_shown_for_a_minute() {
    let server = Running::start(options());
    let now = server.clock.now().get() / 1_000_000_000;
    let (one, two) = (now - 2, now - 1);
    let metrics = Arc::new(Mutex::new(format!(
        "{one}000|a|3|1|2|1|7|0|5|0\n{one}000|__cpu_usage__|9|0|0|0|0\nbroken\n{one}000|b|1|0|0\n{two}000|a|1|0|1|0|0"
    )));
    let (address, asked) = reporting(&metrics);
    let alive = || {
        assert_eq!(
            beat(
                &server,
                &format!("app=old&ip=127.0.0.1&port={}", address.port())
            )
            .0,
            200
        );
    };
    let resources = || {
        app(&server, "old")["resources"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let again = || {
        while asked.try_recv().is_ok() {}
        (0..2).for_each(|_| asked.recv_timeout(PATIENCE).unwrap());
    };
    alive();
    eventually("the metrics are shown", || resources().len() == 1);
    let told = &resources()[0];
    let last = |what: &str| told["minute"][what].as_array().unwrap()[58..].to_vec();
    assert_eq!(told["resource"], "a");
    assert_eq!(
        ["pass", "block", "exceptions"].map(last),
        [[3, 1], [1, 0], [1, 0]]
    );
    assert!(
        (told["mean_rt_ms"].as_f64().unwrap() - 4.666).abs() < 1e-6,
        "14 ms of three: {told}"
    );

    metrics.lock().unwrap().clear();
    for (seconds, is_shown) in [(30, true), (29, true), (2, false)] {
        server.advance(Duration::from_secs(seconds));
        alive();
        again();
        eventually("the program has reported", || {
            resources().len() == usize::from(is_shown)
        });
        assert!(resources().iter().all(|idle| idle["in_flight"] == 0));
    }
    let newest = now + 60;
    let many = (0..3_000).map(|at| format!("{newest}000|r{at}|1|0|0|0|0\n"));
    *metrics.lock().unwrap() = many.collect();
    eventually("as many as there is room for are shown", || {
        resources().len() == 2_000
    });
}
