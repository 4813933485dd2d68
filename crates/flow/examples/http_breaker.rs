//! A breaker around an HTTP client: `cargo run -p tidegate-flow --example http_breaker`.
//!
//! A small server answers successfully, then fails for a while, then recovers. While it fails, the
//! breaker blocks the client's calls and sends one probe at a time. When a probe succeeds, the
//! client resumes automatically. The calls are real, but the time between them is simulated, so the
//! example takes no waiting.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    Blocked, BreakerState, Gate, ManualTimer, Resource,
    rules::{BreakerRule, Rules, Trip},
};

/// Why a call to the server failed.
#[derive(Debug)]
enum CallError {
    Blocked(Blocked),
    Failed(io::Error),
}

/// A client that enters its resource first and reports the outcome of the call.
fn guarded_get(server: &Resource, at: SocketAddr) -> Result<String, CallError> {
    let guard = server.enter().map_err(CallError::Blocked)?;
    guard.done(get(at)).map_err(CallError::Failed)
}

/// A minimal HTTP client: it returns the body of a 200 response and an error for any other.
fn get(at: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.into()),
        _ => Err(io::Error::other("the server did not answer with 200")),
    }
}

/// The server's behaviour, and the number of its requests.
#[derive(Default)]
struct Server {
    is_ill: AtomicBool,
    asked: AtomicU32,
}

fn serve(server: Arc<Server>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            server.asked.fetch_add(1, Ordering::Relaxed);
            let status = if server.is_ill.load(Ordering::Relaxed) {
                "500 Ill"
            } else {
                "200 OK"
            };
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
            // Ignore the error: the client may have disconnected.
            let _ = reader.into_inner().write_all(answer.as_bytes());
        }
    });
    Ok(at)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Arc::new(Server::default());
    let at = serve(server.clone())?;

    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let open_time = Duration::from_millis(300);
    let rule = BreakerRule::new("backend", Trip::ErrorRatio { ratio: 0.5 }, open_time).min_calls(5);
    gate.load(Rules::from(vec![rule]))?;
    gate.on_breaker_change(|change| {
        println!("          breaker: {:?} -> {:?}", change.from, change.to);
    });
    let backend = gate.resource("backend");

    println!("time      good failed blocked | requests to the server");
    let mut bothered = 0;
    for tick in 0..20 {
        server
            .is_ill
            .store((4..12).contains(&tick), Ordering::Relaxed);
        let asked = server.asked.load(Ordering::Relaxed);
        let (mut good, mut failed, mut blocked) = (0, 0, 0);
        let mut last = String::new();
        for _ in 0..10 {
            match guarded_get(&backend, at) {
                Ok(_) => good += 1,
                Err(CallError::Failed(error)) => {
                    failed += 1;
                    last = error.to_string();
                }
                Err(CallError::Blocked(answer)) => {
                    blocked += 1;
                    last = answer.to_string();
                }
            }
            // Spread ten calls over the tick.
            timer.advance(Duration::from_millis(10));
        }
        let asked = server.asked.load(Ordering::Relaxed) - asked;
        bothered += if (4..12).contains(&tick) { asked } else { 0 };
        let health = if (4..12).contains(&tick) {
            "ill "
        } else {
            "well"
        };
        println!(
            "{:4} ms {health} {good:3} {failed:6} {blocked:7} | {asked:2} {last}",
            tick * 100
        );
    }
    println!("while it failed, the server received {bothered} requests from 80 calls");
    if bothered > 50 || backend.breakers()[0].1 != BreakerState::Closed {
        return Err(
            "the breaker did not protect the failing server, or did not close again".into(),
        );
    }
    Ok(())
}
