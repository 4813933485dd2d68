//! What a gate reports to a server, which this test is.
#![cfg(feature = "report")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{BreakerRule, FlowRule, Rules, Trip},
};
use tidegate_flow_net::report::{Report, Reporter};

/// A server that answers each report with this status.
struct Server {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    bodies: mpsc::Receiver<String>,
}

impl Server {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let status = Arc::new(AtomicU16::new(status));
        let (its, (tell, bodies)) = (Arc::clone(&status), mpsc::channel());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (mut stream, mut length, mut line) = (BufReader::new(stream), 0, String::new());
                while line != "\r\n" {
                    line.clear();
                    stream.read_line(&mut line).unwrap();
                    let line = line.to_ascii_lowercase();
                    length = line
                        .strip_prefix("content-length:")
                        .map_or(length, |n| n.trim().parse().unwrap());
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let status = its.load(Ordering::Relaxed);
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
                );
                let _ = stream.get_mut().write_all(answer.as_bytes());
                let _ = tell.send(String::from_utf8(body).unwrap());
            }
        });
        Self {
            address,
            status,
            bodies,
        }
    }

    fn follow(&self, gate: &Gate) -> Reporter {
        let report = Report::to(format!("http://{}", self.address), "shop").instance("a-1");
        report.start(gate, |_| ()).unwrap()
    }

    fn body(&self) -> String {
        self.bodies.recv_timeout(Duration::from_mins(1)).unwrap()
    }

    /// The next report whose first resource has seconds like these.
    fn report(&self, is_it: impl Fn(&[Value]) -> bool) -> Value {
        loop {
            let report: Value = serde_json::from_str(&self.body()).unwrap();
            if is_it(seconds(&report)) {
                return report;
            }
        }
    }
}

fn seconds(report: &Value) -> &[Value] {
    report["resources"][0]["seconds"].as_array().unwrap()
}

fn gate() -> (Gate, ManualTimer) {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    (Gate::builder().timer(timer.clone()).build(), timer)
}

#[test]
fn a_second_is_reported_after_it_ended_until_the_server_confirms_it() {
    let (gate, timer) = gate();
    let breaker = BreakerRule::new("db", Trip::ErrorCount { count: 1 }, Duration::from_secs(5));
    gate.load(Rules::from(vec![FlowRule::new("db", 2)]).and(vec![breaker]))
        .unwrap();
    let db = gate.resource("db");
    let held = db.enter().unwrap();
    drop(db.enter().unwrap());
    assert!(db.enter().is_err());
    let server = Server::start(503);
    let _reporter = server.follow(&gate);
    let report: Value = serde_json::from_str(&server.body()).unwrap();
    assert_eq!(
        seconds(&report),
        [] as [Value; 0],
        "the second has not ended"
    );
    timer.advance(Duration::from_secs(1));
    let report = server.report(|seconds| !seconds.is_empty());
    assert_eq!(seconds(&report), [json!([1_000, 2, 1, 0, 1, 0, 2])]);
    let db_of = &report["resources"][0];
    assert_eq!(
        (&db_of["in_flight"], &db_of["breakers"][0][1]),
        (&json!(1), &json!("closed"))
    );
    // The server was away: the next report has the same second again, with those after it.
    timer.advance(Duration::from_secs(2));
    drop(held);
    timer.advance(Duration::from_secs(1));
    let report = server.report(|seconds| seconds.last().is_some_and(|last| last[0] == 1_003));
    let (first, last) = (&seconds(&report)[0], seconds(&report).last().unwrap());
    assert_eq!((&first[0], &last[4]), (&json!(1_000), &json!(1)));
    server.status.store(200, Ordering::Relaxed);
    server.report(<[Value]>::is_empty);
    // More than a minute back is forgotten. A report that was made before is the first of these
    // two.
    drop(db.enter().unwrap());
    timer.advance(Duration::from_secs(90));
    for _ in 0..2 {
        let report: Value = serde_json::from_str(&server.body()).unwrap();
        assert_eq!(seconds(&report), [] as [Value; 0]);
    }
}

#[test]
fn a_full_report_names_the_busiest_resources_and_counts_the_rest() {
    let (gate, timer) = gate();
    for at in 0..2_000 {
        let _ = gate.resource(&format!("resource number {at:04} with a name"));
    }
    let busy = gate.resource("resource number 1999 with a name");
    drop(busy.enter().unwrap());
    timer.advance(Duration::from_secs(1));
    let server = Server::start(200);
    let _reporter = server.follow(&gate);
    let body = server.body();
    assert!(body.len() < 64 * 1024, "{}", body.len());
    let report: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(report["resources"][0]["name"], busy.name());
    let told = report["resources"].as_array().unwrap().len() as u64;
    assert_eq!(told + report["left_out"].as_u64().unwrap(), 2_000);
}
