//! An overloaded axum service, unguarded and guarded:
//! `cargo run --release -p tidegate-flow --example axum_overload [goodput.svg]`. With `--short`
//! instead of a file it runs only the highest load.
//!
//! The service can do 200 units of work a second: it has four workers that take 20 ms each, and an
//! unbounded queue. Clients wait 300 ms for an answer. Unguarded, the queue grows until every
//! client gives up before its answer, and nearly all work is wasted. With an adaptive rule, the
//! gate rejects calls that would have to wait too long, and the service answers the others in time.
//! Goodput is the rate of successful answers in time.

use std::{fmt::Write as _, fs, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tidegate_flow::{
    Gate, Resource,
    rules::{AdaptiveAlgorithm, AdaptiveRule, Rules, Vegas},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

const CAPACITY: u32 = 200;
const PATIENCE: Duration = Duration::from_millis(300);
const SECONDS: u32 = 3;
const OFFERED: [u32; 7] = [50, 100, 150, 200, 300, 450, 600];

#[derive(Clone)]
struct Service {
    workers: Arc<Semaphore>,
    /// The resource that guards the service, if any.
    guard: Option<Resource>,
}

async fn answer(State(service): State<Service>) -> StatusCode {
    let guard = match &service.guard {
        None => None,
        Some(resource) => match resource.entry().inbound().enter_async().await {
            Ok(guard) => Some(guard),
            Err(_blocked) => return StatusCode::SERVICE_UNAVAILABLE,
        },
    };
    // The service does queued work whether or not its client still waits.
    let work = tokio::spawn(async move {
        let worker = service.workers.acquire().await;
        sleep(Duration::from_millis(20)).await;
        drop((worker, guard));
    });
    if work.await.is_ok() {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    }
}

async fn start(guard: Option<Resource>) -> io::Result<SocketAddr> {
    let service = Service {
        workers: Arc::new(Semaphore::new(4)),
        guard,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let app = Router::new().route("/", get(answer)).with_state(service);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(at)
}

/// Sends one request and returns the status of the answer.
async fn ask(at: SocketAddr) -> io::Result<u16> {
    let mut stream = TcpStream::connect(at).await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other("no status line"))
}

/// The outcome of the calls of a run, in calls a second.
#[derive(Clone, Copy, Default)]
struct Outcome {
    good: u32,
    turned_away: u32,
    too_late: u32,
}

/// Sends `rate` requests a second for some seconds, however long the answers take.
async fn offer(at: SocketAddr, rate: u32, seconds: u32) -> Outcome {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = JoinSet::new();
    for _ in 0..rate * seconds {
        ticks.tick().await;
        calls.spawn(timeout(PATIENCE, ask(at)));
    }
    let mut outcome = Outcome::default();
    while let Some(call) = calls.join_next().await {
        match call {
            Ok(Ok(Ok(200))) => outcome.good += 1,
            Ok(Ok(Ok(_))) => outcome.turned_away += 1,
            _ => outcome.too_late += 1,
        }
    }
    let Outcome {
        good,
        turned_away,
        too_late,
    } = outcome;
    Outcome {
        good: good / seconds,
        turned_away: turned_away / seconds,
        too_late: too_late / seconds,
    }
}

async fn guarded() -> Result<(Gate, SocketAddr), Box<dyn std::error::Error>> {
    let gate = Gate::new();
    let rule =
        AdaptiveRule::new("orders", AdaptiveAlgorithm::Vegas(Vegas::default())).bounds(4, 50);
    gate.load(Rules::from(vec![rule]))?;
    let at = start(Some(gate.resource("orders"))).await?;
    Ok((gate, at))
}

/// Runs the same load unguarded and guarded. Each run has its own service, so no queue remains from
/// the previous run.
async fn compare(
    rate: u32,
    seconds: u32,
) -> Result<(Outcome, Outcome), Box<dyn std::error::Error>> {
    let bare = offer(start(None).await?, rate, seconds).await;
    let (_gate, at) = guarded().await?;
    Ok((bare, offer(at, rate, seconds).await))
}

/// Checks that the guard helps at the highest load. It tries several times, because a busy machine
/// may fail the first try.
async fn short() -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..5 {
        let (bare, safe) = compare(600, 2).await?;
        println!(
            "600/s offered, good: {}/s unguarded, {}/s guarded",
            bare.good, safe.good
        );
        if safe.good > bare.good {
            return Ok(());
        }
    }
    Err("the guard did not increase the answers in time".into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    if path.as_deref() == Some("--short") {
        return short().await;
    }
    println!("capacity {CAPACITY}/s; all figures are calls a second\n");
    println!("offered | unguarded: good  too late | guarded: good  turned away  too late");
    let mut runs = Vec::new();
    for rate in OFFERED {
        let (bare, safe) = compare(rate, SECONDS).await?;
        println!(
            "{rate:7} | {:15} {:9} | {:13} {:12} {:9}",
            bare.good, bare.too_late, safe.good, safe.turned_away, safe.too_late
        );
        runs.push((rate, bare.good, safe.good));
    }
    println!("\ngoodput, # guarded, - unguarded, one sign for 5/s");
    for (rate, bare, safe) in &runs {
        println!("{rate:4} {}", "#".repeat((safe / 5) as usize));
        println!("     {}", "-".repeat((bare / 5) as usize));
    }
    if let Some(path) = path {
        fs::write(&path, svg(&runs))?;
        println!("\nplotted in {path}");
    }
    Ok(())
}

/// Draws both curves of goodput over offered load.
fn svg(runs: &[(u32, u32, u32)]) -> String {
    let x = |rate: u32| 50 + rate;
    let y = |good: u32| 320 - good;
    let line = |of: fn(&(u32, u32, u32)) -> u32| {
        runs.iter().fold(String::new(), |mut points, run| {
            // Writing to a string does not fail.
            let _ = write!(points, "{},{} ", x(run.0), y(of(run)));
            points
        })
    };
    let (bare, safe) = (line(|run| run.1), line(|run| run.2));
    let capacity = y(CAPACITY);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 370" font-family="sans-serif" font-size="13">
<rect width="700" height="370" fill="white"/>
<path d="M50 30V320H670" fill="none" stroke="black"/>
<path d="M50 {capacity}H670" stroke="gray" stroke-dasharray="4"/><text x="560" y="{}">capacity 200/s</text>
<polyline points="{bare}" fill="none" stroke="#c33" stroke-width="2"/><text x="560" y="50" fill="#c33">unguarded</text>
<polyline points="{safe}" fill="none" stroke="#26a" stroke-width="2"/><text x="560" y="70" fill="#26a">guarded</text>
<text x="300" y="350">offered, calls a second</text><text x="20" y="20">answered well and in time, calls a second</text>
</svg>
"##,
        capacity - 6
    )
}
