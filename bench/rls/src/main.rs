//! Asks a rate limit service over gRPC, or a proxy over HTTP/2, and prints one JSON object: how
//! many answers a second, how long they took, and what they said.
//!
//! ```text
//! rls-load KIND ADDRESS [connections=50] [streams=10] [seconds=10] [values=100000] [rate=REQUESTS_A_SECOND | calls=NUMBER]
//! ```
//!
//! KIND is `envoy`, `five` (the same with five descriptors), `hold` (each stream asks and reports in turns), `held` (only asks),
//! `throttlecrab` or `proxy`. Without a rate each stream asks again as soon as it
//! is answered. With one the streams share it evenly, and the client is h2; without one it is
//! `plain`, which costs the machine less than any server. A latency is counted from when the
//! request is sent. The first second of a run is not counted. With `calls` a run ends after so many answers,
//! which all count.

mod ask;
mod plain;

use std::{
    env, fmt,
    process::exit,
    rc::Rc,
    time::{Duration, Instant},
};

use ask::{Answer, Call, Kind};
use bytes::BytesMut;
use h2::client::SendRequest;
use tokio::{
    net::TcpStream,
    task::{LocalSet, spawn_local},
    time::sleep_until,
};

const WARM: Duration = Duration::from_secs(1);

struct Run {
    kind: Kind,
    address: String,
    connections: u64,
    streams: u64,
    seconds: u64,
    values: u64,
    rate: Option<u64>,
    /// How many requests are sent in all, however long they take.
    calls: Option<u64>,
}

#[derive(Default)]
struct Figures {
    nanos: Vec<u64>,
    denied: u64,
    failed: u64,
}

fn main() {
    let run = match Run::read(env::args().skip(1)) {
        Ok(run) => Rc::new(run),
        Err(what) => {
            eprintln!("rls-load: {what}");
            exit(2);
        }
    };
    let figures = if run.rate.is_none() && run.kind.is_grpc() {
        plain::all(&run).unwrap_or_else(|error| {
            eprintln!("rls-load: {error}");
            exit(1);
        })
    } else {
        paced(run)
    };
    println!("{figures}");
    if figures.nanos.is_empty() {
        exit(1);
    }
}

fn paced(run: Rc<Run>) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, all(run))
}

impl Run {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let kind = match words.next().as_deref() {
            Some("envoy") => Kind::Envoy,
            Some("five") => Kind::Five,
            Some("hold") => Kind::Hold,
            Some("held") => Kind::Held,
            Some("throttlecrab") => Kind::Throttlecrab,
            Some("proxy") => Kind::Proxy,
            other => {
                return Err(format!(
                    "{other:?} is not known; there is envoy, five, hold, held, throttlecrab and proxy"
                ));
            }
        };
        let address = words
            .next()
            .ok_or("name an address, as in 127.0.0.1:8081")?;
        let mut run = Self {
            kind,
            address,
            connections: 50,
            streams: 10,
            seconds: 10,
            values: 100_000,
            rate: None,
            calls: None,
        };
        for word in words {
            let (name, number) = word
                .split_once('=')
                .ok_or_else(|| format!("{word} is no NAME=NUMBER"))?;
            let number: u64 = number
                .parse()
                .map_err(|_| format!("{word} has no number"))?;
            match name {
                "connections" => run.connections = number,
                "streams" => run.streams = number,
                "seconds" => run.seconds = number,
                "values" => run.values = number,
                "rate" => run.rate = Some(number),
                "calls" => run.calls = Some(number),
                _ => return Err(format!("{name} is not known")),
            }
        }
        if run.calls.is_some() && (run.rate.is_some() || !run.kind.is_grpc()) {
            return Err("a number of calls is for gRPC without a rate".to_owned());
        }
        Ok(run)
    }
}

impl Figures {
    fn count(&mut self, asked: Instant, answer: Answer) {
        self.nanos.push(asked.elapsed().as_nanos() as u64);
        self.denied += u64::from(answer == Answer::Denied);
        self.failed += u64::from(answer == Answer::Failed);
    }
}

async fn all(run: Rc<Run>) -> Figures {
    let start = Instant::now();
    let mut streams = Vec::new();
    for connection in 0..run.connections {
        let stream = TcpStream::connect(&run.address)
            .await
            .expect("somebody listens there");
        stream.set_nodelay(true).expect("a TCP socket");
        let (send, task) = h2::client::handshake(stream)
            .await
            .expect("HTTP/2 is spoken there");
        spawn_local(task);
        for stream in 0..run.streams {
            streams.push(spawn_local(one(
                Rc::clone(&run),
                send.clone(),
                connection * run.streams + stream,
                start,
            )));
        }
    }
    let mut sum = Figures::default();
    for stream in streams {
        let figures = stream.await.expect("no stream panics");
        sum.nanos.extend(figures.nanos);
        sum.denied += figures.denied;
        sum.failed += figures.failed;
    }
    sum.nanos.sort_unstable();
    sum
}

/// One stream after another, by a worker with this number.
async fn one(
    run: Rc<Run>,
    mut send: SendRequest<bytes::Bytes>,
    number: u64,
    start: Instant,
) -> Figures {
    let workers = run.connections * run.streams;
    let end = start + WARM + Duration::from_secs(run.seconds);
    let pace = run
        .rate
        .map(|rate| Duration::from_nanos(1_000_000_000 * workers / rate));
    let mut due = start + pace.map_or(Duration::ZERO, |pace| pace * number as u32 / workers as u32);
    let (mut random, mut call) = (number + 1, Call::default());
    let mut figures = Figures::default();
    loop {
        if let Some(pace) = pace {
            sleep_until(due.into()).await;
            due += pace;
        }
        call = call.next(run.kind, &mut random, run.values);
        let (request, body) = run.kind.request(&run.address, call);
        let asked = Instant::now();
        if asked >= end {
            return figures;
        }
        let answer = exchange(&run, &mut send, request, body)
            .await
            .unwrap_or(Answer::Failed);
        if asked < start + WARM {
            continue;
        }
        figures.count(asked, answer);
        if answer == Answer::Failed && figures.failed > 1_000 {
            return figures;
        }
    }
}

async fn exchange(
    run: &Run,
    send: &mut SendRequest<bytes::Bytes>,
    request: http::Request<()>,
    body: Option<bytes::Bytes>,
) -> Result<Answer, h2::Error> {
    *send = send.clone().ready().await?;
    let (answer, mut stream) = send.send_request(request, body.is_none())?;
    if let Some(body) = body {
        stream.send_data(body, true)?;
    }
    let (head, mut data) = answer.await?.into_parts();
    let mut body = BytesMut::new();
    while let Some(chunk) = data.data().await {
        let chunk = chunk?;
        data.flow_control().release_capacity(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    let trailers = data.trailers().await?.unwrap_or_default();
    // An error has no body: its status is in the head.
    let grpc_status = trailers
        .get("grpc-status")
        .or(head.headers.get("grpc-status"));
    Ok(run.kind.answer(
        head.status.as_u16(),
        grpc_status.and_then(|status| status.to_str().ok()),
        &body,
    ))
}

/// xorshift64*: the same values in every run.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound >> 32
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |share: f64| {
            let last = self.nanos.len().saturating_sub(1);
            self.nanos
                .get((last as f64 * share) as usize)
                .map_or(0, |nanos| nanos / 1_000)
        };
        write!(
            f,
            r#""requests":{},"denied":{},"failed":{},"p50_us":{},"p99_us":{},"p999_us":{}"#,
            self.nanos.len(),
            self.denied,
            self.failed,
            at(0.5),
            at(0.99),
            at(0.999)
        )
    }
}
