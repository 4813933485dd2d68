//! Measures what it costs to limit by what was used. Each line of output is a JSON object, a figure
//! of one round.
//!
//! * Over gRPC: `reserve` (Reserve and Commit) and `charge` (CheckRateLimit and Report) of two
//!   limits, by Tidegate and by a small server around the crate `limitador`, whose own server no
//!   registry has. The servers take turns; the client is the same.
//! * Over RESP, 32 commands in flight: `one` (ACQUIRE of one limit), `five` (RESERVE of five
//!   limits) and its `settle`.
//!
//! `cargo run --release --manifest-path bench/limitador/Cargo.toml --bin spend -- [ROUNDS] [SECONDS]`

#[path = "../messages.rs"]
mod messages;

use std::{
    collections::HashMap,
    convert::Infallible,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    task::{Context as Cx, Poll},
    time::{Duration, Instant},
};

use tidegate_envoy::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    },
    google::protobuf,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use limitador::{
    RateLimiter, RateLimiterBuilder,
    limit::{Context, Limit, Namespace},
    reservation::{ReservationId, ReservationLimits},
    storage::{Storage, in_memory::InMemoryStorage},
};
use messages::{Commit, Committed, Reserve, Reserved};
use prost::Message;
use tidegate_server::{Options, Order, Server};
use tokio::{net::TcpListener, runtime::Runtime, sync::mpsc};
use tonic::{
    Request, Response, Status,
    client::Grpc,
    codegen::{Body, BoxFuture, Service, StdError, http, http::uri::PathAndQuery},
    server::UnaryService,
    transport::Channel,
};
use tonic_prost::ProstCodec;

const SERVICE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/";
const DAY: u64 = 86_400;
/// So high that nothing is denied: only the time counts.
const MOST: u64 = 4_000_000_000;
const USERS: u64 = 1_000;
/// Calls in flight over gRPC, and commands over RESP.
const TASKS: u64 = 32;
const PIPELINE: usize = 32;

/// The calls of Limitador's server, by the crate.
#[derive(Clone)]
struct Theirs(Arc<RateLimiter>);

struct Unary<F>(F);

impl<Q, A, F: Fn(Q) -> A> UnaryService<Q> for Unary<F>
where
    A: Send + 'static,
{
    type Response = A;
    type Future = std::future::Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0(request.into_inner()))))
    }
}

type Answered = BoxFuture<http::Response<tonic::body::Body>, Infallible>;

fn unary<B, Q, A>(
    request: http::Request<B>,
    answer: impl Fn(Q) -> A + Send + Sync + 'static,
) -> Answered
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    Box::pin(async move {
        let mut grpc = tonic::server::Grpc::new(ProstCodec::<A, Q>::default());
        Ok(grpc.unary(Unary(answer), request).await)
    })
}

/// The values of the descriptors.
fn context(descriptors: &[RateLimitDescriptor]) -> Context<'static> {
    let entries = descriptors.iter().flat_map(|one| &one.entries);
    entries
        .map(|entry| (entry.key.clone(), entry.value.clone()))
        .collect::<HashMap<_, _>>()
        .into()
}

fn code(limited: bool) -> i32 {
    if limited {
        Code::OverLimit.into()
    } else {
        Code::Ok.into()
    }
}

impl<B> Service<http::Request<B>> for Theirs
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Cx<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answered {
        let limiter = Arc::clone(&self.0);
        let method = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let namespace: Namespace = "d".into();
        match method.as_str() {
            "Reserve" => unary(request, move |asked: Reserve| {
                let ttl = asked
                    .ttl
                    .map(|ttl| Duration::from_secs(ttl.seconds.cast_unsigned()));
                let told =
                    limiter.reserve(&namespace, &context(&asked.descriptors), asked.amount, ttl);
                let told = told.expect("memory");
                let reservation_id = told
                    .reservation_id
                    .map(|id| id.to_string())
                    .unwrap_or_default();
                Reserved {
                    code: code(told.limited),
                    reservation_id,
                }
            }),
            "Commit" => unary(request, move |asked: Commit| {
                let id = ReservationId::from(asked.reservation_id);
                let of = context(&asked.descriptors);
                let told =
                    limiter.commit_reservation(&namespace, &of, Some(&id), asked.actual_amount);
                Committed {
                    reservation_released: told.expect("memory").reservation_released,
                }
            }),
            "CheckRateLimit" => unary(request, move |asked: RateLimitRequest| {
                let of = context(&asked.descriptors);
                let told = limiter.is_rate_limited(&namespace, &of, asked.hits_addend.into());
                let overall_code = code(told.expect("memory").limited);
                RateLimitResponse {
                    overall_code,
                    ..RateLimitResponse::default()
                }
            }),
            _ => unary(request, move |asked: RateLimitRequest| {
                let of = context(&asked.descriptors);
                limiter
                    .update_counters(&namespace, &of, asked.hits_addend.into())
                    .expect("memory");
                RateLimitResponse {
                    overall_code: code(false),
                    ..RateLimitResponse::default()
                }
            }),
        }
    }
}

async fn serve_theirs() -> SocketAddr {
    let limits = ReservationLimits {
        max_fraction: 1.0,
        max_ttl: Duration::from_secs(DAY),
    };
    let storage = Storage::with_counter_storage(Box::new(InMemoryStorage::new(10_000)));
    let limiter = RateLimiterBuilder::with_storage(storage)
        .reservation_limits(limits)
        .build();
    let none: [limitador::limit::Predicate; 0] = [];
    for name in ["user", "team"] {
        let variable = name.try_into().expect("an expression");
        limiter.add_limit(Limit::new("d", MOST, DAY, none.clone(), [variable]));
    }
    let theirs = Theirs(Arc::new(limiter));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it listens");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(theirs.clone());
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Tidegate's listeners for gRPC and RESP.
fn serve_ours(runtime: &Runtime) -> (SocketAddr, SocketAddr, mpsc::Sender<Order>) {
    let directory = std::env::temp_dir().join(format!("tidegate-spend-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (config, rules) = (directory.join("envoy.yaml"), directory.join("rules.yaml"));
    let rate = format!("rate_limit: {{unit: day, requests_per_unit: {MOST}}}");
    let descriptors =
        format!("domain: d\ndescriptors:\n  - {{key: user, {rate}}}\n  - {{key: team, {rate}}}\n");
    std::fs::write(&config, descriptors).expect("a file");
    let limit = |name: &str, how: &str| format!("  - {{name: {name}, limit: {MOST}{how}}}\n");
    let window = "/1h, algorithm: fixed-window";
    let limits: String = ["requests", "input", "output"]
        .map(|name| limit(name, window))
        .concat();
    let month = limit("month", "/month, algorithm: fixed-window")
        + &limit("in-flight", ", algorithm: concurrency");
    std::fs::write(&rules, format!("limits:\n{limits}{month}")).expect("a file");
    let options = Options {
        envoy_config: Some(config),
        rules: Some(rules),
        grpc: Some("127.0.0.1:0".to_owned()),
        resp: Some("127.0.0.1:0".to_owned()),
        max_reservations: 10_000_000,
        ..Options::default()
    };
    let server = runtime.block_on(Server::start(options)).expect("a server");
    let _ = std::fs::remove_dir_all(directory);
    let address = |name| server.address(name).expect("it listens");
    let (grpc, resp) = (address("grpc"), address("resp"));
    let (orders, receiver) = mpsc::channel(1);
    runtime.spawn(server.run(receiver));
    (grpc, resp, orders)
}

#[derive(Clone)]
struct Client(Grpc<Channel>);

impl Client {
    async fn call<Q, A>(&mut self, method: &str, message: Q) -> A
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path: PathAndQuery = format!("{SERVICE}{method}").parse().expect("a path");
        self.0.ready().await.expect("the server is there");
        let told = self
            .0
            .unary(Request::new(message), path, ProstCodec::<Q, A>::default())
            .await;
        told.unwrap_or_else(|status| panic!("{method} fails: {status}"))
            .into_inner()
    }

    async fn reserve(&mut self, descriptors: Vec<RateLimitDescriptor>) {
        let (domain, ttl) = (
            "d".to_owned(),
            Some(protobuf::Duration {
                seconds: 60,
                nanos: 0,
            }),
        );
        let asked = Reserve {
            domain: domain.clone(),
            descriptors: descriptors.clone(),
            amount: 8,
            ttl,
        };
        let Reserved {
            code,
            reservation_id,
        } = self.call("Reserve", asked).await;
        assert_eq!(code, i32::from(Code::Ok));
        let told: Committed = self
            .call(
                "Commit",
                Commit {
                    domain,
                    descriptors,
                    reservation_id,
                    actual_amount: 3,
                },
            )
            .await;
        assert!(told.reservation_released);
    }

    async fn charge(&mut self, descriptors: Vec<RateLimitDescriptor>) {
        let asked = |hits_addend| RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: descriptors.clone(),
            hits_addend,
        };
        for (method, hits) in [("CheckRateLimit", 1), ("Report", 3)] {
            let told: RateLimitResponse = self.call(method, asked(hits)).await;
            assert_eq!(told.overall_code, i32::from(Code::Ok));
        }
    }
}

fn descriptors(user: u64) -> Vec<RateLimitDescriptor> {
    let one = |key: &str, value: u64| RateLimitDescriptor {
        entries: vec![Entry {
            key: key.to_owned(),
            value: value.to_string(),
        }],
        ..RateLimitDescriptor::default()
    };
    vec![one("user", user), one("team", user % 10)]
}

/// Pairs of calls a second.
async fn over_grpc(address: SocketAddr, reserves: bool, length: Duration) -> f64 {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let client = Client(Grpc::new(
        channel.connect().await.expect("the server accepts"),
    ));
    let begun = Instant::now();
    let task = |number: u64| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut pairs = 0;
            while begun.elapsed() < length {
                let of = descriptors((number * 31 + pairs) % USERS);
                if reserves {
                    client.reserve(of).await
                } else {
                    client.charge(of).await
                }
                pairs += 1;
            }
            pairs
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await.expect("no task panics");
    }
    pairs as f64 / begun.elapsed().as_secs_f64()
}

/// A connection over RESP.
struct Resp(BufReader<TcpStream>);

impl Resp {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        Self(BufReader::new(stream))
    }

    /// The last text of a reply, which is the id of a reservation, or the first number.
    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" => {
                let count: usize = rest.parse().expect("a count");
                (0..count).map(|_| self.reply()).last().unwrap_or_default()
            }
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut text).expect("the server answers");
                String::from_utf8_lossy(&text[..text.len() - 2]).into_owned()
            }
            "-" => panic!("{rest}"),
            _ => rest.to_owned(),
        }
    }

    /// Nanoseconds for each command, of which `PIPELINE` are in flight. Passes the replies on. The
    /// commands are in the protocol's form before the time begins.
    fn batch(&mut self, commands: &[String]) -> (f64, Vec<String>) {
        let bytes = encode(commands);
        let mut replies = Vec::with_capacity(commands.len());
        let begun = Instant::now();
        self.0
            .get_mut()
            .write_all(&bytes)
            .expect("the server reads");
        replies.extend((0..commands.len()).map(|_| self.reply()));
        (
            begun.elapsed().as_nanos() as f64 / commands.len() as f64,
            replies,
        )
    }
}

fn encode(commands: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        write!(bytes, "*{}\r\n", words.len()).expect("memory");
        words
            .iter()
            .for_each(|word| write!(bytes, "${}\r\n{word}\r\n", word.len()).expect("memory"));
    }
    bytes
}

/// Medians of the times for one limit, for five in one reservation, and for its settlement.
fn over_resp(address: SocketAddr, length: Duration) -> [f64; 3] {
    let mut client = Resp::connect(address);
    let (begun, mut times, mut number) = (Instant::now(), [vec![], vec![], vec![]], 0);
    while begun.elapsed() < length {
        let user = |at: usize| format!("user-{}", (number + at) % 1_000);
        let one: Vec<_> = (0..PIPELINE)
            .map(|at| format!("ACQUIRE requests {} 1", user(at)))
            .collect();
        let limits = [
            ("requests", 1),
            ("input", 20),
            ("output", 400),
            ("month", 420),
            ("in-flight", 1),
        ];
        let five = |at: usize| {
            let parts = limits.map(|(limit, cost)| format!(" {limit} {} {cost}", user(at)));
            format!("RESERVE 60000{}", parts.concat())
        };
        let five: Vec<_> = (0..PIPELINE).map(five).collect();
        times[0].push(client.batch(&one).0);
        let (time, ids) = client.batch(&five);
        times[1].push(time);
        let settle: Vec<_> = ids
            .iter()
            .map(|id| format!("SETTLE {id} 1 20 100 120 0"))
            .collect();
        times[2].push(client.batch(&settle).0);
        number += PIPELINE;
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|word| word.parse::<u32>().expect("a number"));
    let (rounds, seconds) = (numbers.next().unwrap_or(5), numbers.next().unwrap_or(3));
    let length = Duration::from_secs(seconds.into());
    let (ours, theirs) = (
        Runtime::new().expect("a runtime"),
        Runtime::new().expect("a runtime"),
    );
    let client = Runtime::new().expect("a runtime");
    let (grpc, resp, _orders) = serve_ours(&ours);
    let limitador = theirs.block_on(serve_theirs());
    for round in 0..rounds {
        for (work, reserves) in [("reserve", true), ("charge", false)] {
            for (who, address) in [("tidegate", grpc), ("limitador", limitador)] {
                let pairs = client.block_on(over_grpc(address, reserves, length));
                println!(
                    r#"{{"work":"{work}","who":"{who}","round":{round},"pairs_per_second":{pairs:.0}}}"#
                );
            }
        }
        let [one, five, settle] = over_resp(resp, length);
        println!(
            r#"{{"work":"five","round":{round},"one_ns":{one:.0},"reserve_ns":{five:.0},"settle_ns":{settle:.0},"ratio":{:.2}}}"#,
            five / one
        );
    }
}
