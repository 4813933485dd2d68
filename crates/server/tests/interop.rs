//! The same configuration and the same requests for envoyproxy/ratelimit and for this server. Run by `scripts/test.sh --interop`,
//! which builds the other one with Go and names it in `TIDEGATE_RATELIMIT`.
//!
//! What differs on purpose, and so is not among the requests, or is taken out by name below:
//!
//! * Hits that are denied are counted there, and here they take nothing: after a denial of several hits the two know different
//!   numbers (`DENIED_HITS`).
//! * A request that one limit denies is charged to the others there. Here `--envoy-consume each` does the same, and is on.
//! * There `is_negative_hits` is not known, so a refund takes.
//! * There a wildcard and a counter see keys and values joined by `_`, so different descriptors can meet.
//! * There a rule and a limit that the request brought along share a counter.
#![cfg(all(feature = "grpc", feature = "servers"))]

mod harness;

use std::{
    collections::BTreeSet,
    env, fs,
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
            rate_limit_service_client::RateLimitServiceClient,
        },
        r#type::v3::RateLimitUnit,
    },
    google::protobuf::UInt64Value,
};
use harness::{Running, scratch};
use proptest::{
    prelude::Rng,
    test_runner::{RngAlgorithm, TestRng},
};
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::{Server, eventually, free_port};
use tidegate_server::{Options, envoy::Consume};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

const REQUESTS: usize = 20_000;
const CONFIG: &str = r"
domain: mix
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 150, name: users}}
  - {key: user, value: vip, rate_limit: {unlimited: true}}
  - {key: user, value: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - key: tenant
    descriptors:
      - {key: path, value: /api, rate_limit: {unit: day, requests_per_unit: 90}}
      - {key: path, value: /static*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 60}}
      - {key: path, value: /st*, rate_limit: {unit: day, requests_per_unit: 20}}
      - {key: path, rate_limit: {unit: week, requests_per_unit: 40}}
  - key: tenant
    value: big
    rate_limit: {unit: hour, requests_per_unit: 300}
    descriptors:
      - {key: path, rate_limit: {unit: month, requests_per_unit: 200}}
  - {key: base, rate_limit: {unit: day, requests_per_unit: 70, name: base}}
  - {key: gold, rate_limit: {unit: day, requests_per_unit: 200, name: gold, replaces: [{name: base}]}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: pool, value: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: pool, value: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 400}}
  - {key: spend, rate_limit: {unit: hour, requests_per_unit: 60}}
";

/// envoyproxy/ratelimit before its own Redis.
struct Theirs {
    child: Child,
    port: u16,
    _redis: Server,
}

impl Theirs {
    fn start() -> Self {
        let program = env::var_os("TIDEGATE_RATELIMIT");
        let program =
            program.expect("run scripts/test.sh --interop, or name envoyproxy/ratelimit's program here");
        let root = scratch("interop-theirs");
        let config = root.join("ratelimit/config");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("mix.yaml"), CONFIG).unwrap();
        let redis = Server::start(&[]);
        let [port, http, debug] = [free_port(), free_port(), free_port()];
        let child = Command::new(program)
            .env("REDIS_SOCKET_TYPE", "tcp")
            .env("REDIS_URL", format!("127.0.0.1:{}", redis.port()))
            .env("RUNTIME_ROOT", &root)
            .env("RUNTIME_SUBDIRECTORY", "ratelimit")
            .env("RUNTIME_WATCH_ROOT", "false")
            .env("USE_STATSD", "false")
            .env("LOG_LEVEL", "error")
            .envs(["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1")))
            .envs(
                [("GRPC_PORT", port), ("PORT", http), ("DEBUG_PORT", debug)]
                    .map(|(name, port)| (name, port.to_string())),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let theirs = Self { child, port, _redis: redis };
        eventually("envoyproxy/ratelimit listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        theirs
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn descriptor(entries: &[(&str, String)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).to_owned(), value: value.clone() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

struct Random(TestRng);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0.next_u64() % most
    }

    fn one_of<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u64) as usize]
    }

    fn descriptor(&mut self) -> RateLimitDescriptor {
        let number = |random: &mut Self, most| random.below(most).to_string();
        match self.below(12) {
            0 => descriptor(&[("user", number(self, 9))]),
            1 => descriptor(&[("user", self.one_of(&["vip", "none", ""]).to_owned())]),
            2..=4 => {
                let tenant = self.one_of(&["big", "small", "tiny"]).to_owned();
                let path = self
                    .one_of(&["/api", "/static/1", "/static/2", "/stop", "/stay", "/", "/other"])
                    .to_owned();
                match self.below(8) {
                    0 => descriptor(&[("tenant", tenant)]),
                    1 => descriptor(&[("tenant", tenant), ("path", path), ("more", "x".to_owned())]),
                    2 => descriptor(&[("path", path), ("tenant", tenant)]),
                    _ => descriptor(&[("tenant", tenant), ("path", path)]),
                }
            }
            5 => descriptor(&[("base", number(self, 4))]),
            6 => descriptor(&[("gold", number(self, 4))]),
            7 => descriptor(&[("quiet", number(self, 4))]),
            8 => descriptor(&[("pool", self.one_of(&["a", "b", "c"]).to_owned())]),
            9 => {
                let mut spends = descriptor(&[("spend", number(self, 40))]);
                spends.hits_addend = Some(UInt64Value { value: self.below(12) });
                spends
            }
            10 => {
                // The same descriptor always brings the same limit.
                let which = self.below(6) as u32;
                let mut own = descriptor(&[("own", which.to_string())]);
                let unit =
                    [RateLimitUnit::Hour, RateLimitUnit::Day, RateLimitUnit::Year][which as usize % 3].into();
                own.limit = Some(RateLimitOverride { requests_per_unit: 20 * which, unit });
                own
            }
            _ => descriptor(&[(self.one_of(&["unknown", "users"]), number(self, 3))]),
        }
    }

    fn request(&mut self) -> RateLimitRequest {
        let count = 1 + self.below(3);
        let mut descriptors: Vec<RateLimitDescriptor> = Vec::new();
        for _ in 0..count {
            let next = self.descriptor();
            if descriptors.iter().all(|one| one.entries != next.entries) {
                descriptors.push(next);
            }
        }
        let domain = if self.below(50) == 0 { "unknown" } else { "mix" };
        // 0 and 1 are the same.
        RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: self.below(2) as u32 }
    }
}

/// What is compared of an answer, descriptor by descriptor.
fn shown(answer: &RateLimitResponse) -> Vec<String> {
    let code = |code: i32| if code == i32::from(Code::Ok) { "OK" } else { "OVER" };
    answer
        .statuses
        .iter()
        .map(|status| {
            let limit = status.current_limit.as_ref().map_or("no limit".to_owned(), |limit| {
                format!("{} {}/{:?}", limit.name, limit.requests_per_unit, limit.unit())
            });
            format!("{} {limit} left {}", code(status.code), status.limit_remaining)
        })
        .collect()
}

fn hour() -> u64 {
    SystemClock::new().now().get() / Nanos::from_secs(3_600).get()
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn twenty_thousand_random_requests_are_answered_as_by_envoyproxy_ratelimit() {
    // All windows begin with an hour: if one begins meanwhile, the counts are not the same.
    for _ in 0..3 {
        let before = hour();
        let differences = compare();
        if hour() == before {
            assert!(differences.is_empty(), "{} differences, first:\n{}", differences.len(), differences[0]);
            return;
        }
    }
    panic!("it always takes until the next hour");
}

fn compare() -> Vec<String> {
    let theirs = Theirs::start();
    let path = scratch("interop-ours").join("mix.yaml");
    fs::write(&path, CONFIG).unwrap();
    let options = Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_config: Some(path),
        envoy_consume: Consume::Each,
        ..Options::default()
    };
    let ours = Running::start_at(options, SystemClock::new().now());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [mut ours_asked, mut theirs_asked] =
        [ours.grpc.port(), theirs.port].map(|port| client(&runtime, port));

    let mut random = Random(TestRng::from_seed(RngAlgorithm::ChaCha, &[13; 32]));
    let mut differences = Vec::new();
    // Where denied hits were counted there.
    let mut denied_hits = BTreeSet::new();
    let (mut compared, mut left_out, mut over) = (0, 0, 0);
    for number in 0..REQUESTS {
        let request = random.request();
        let (ours, theirs) = runtime.block_on(async {
            let asked = (
                ours_asked.should_rate_limit(request.clone()),
                theirs_asked.should_rate_limit(request.clone()),
            );
            let (ours, theirs) = tokio::join!(asked.0, asked.1);
            (ours.unwrap().into_inner(), theirs.unwrap().into_inner())
        });
        let mut comparable = true;
        for ((descriptor, ours), theirs) in request.descriptors.iter().zip(shown(&ours)).zip(shown(&theirs)) {
            let entries = format!("{:?}", descriptor.entries);
            let hits = descriptor.hits_addend.map_or(1, |hits| hits.value);
            if denied_hits.contains(&entries) {
                (comparable, left_out) = (false, left_out + 1);
                continue;
            }
            if ours != theirs {
                differences
                    .push(format!("request {number}: {request:?}\n  ours   {ours}\n  theirs {theirs}"));
            }
            (compared, over) = (compared + 1, over + u32::from(theirs.starts_with("OVER")));
            if hits > 1 && theirs.starts_with("OVER") {
                denied_hits.insert(entries);
            }
        }
        if comparable && ours.overall_code != theirs.overall_code {
            differences
                .push(format!("request {number}: {request:?}\n  overall: {ours:?}\n  theirs {theirs:?}"));
        }
    }
    eprintln!(
        "{compared} statuses compared, {over} of them over the limit; {left_out} left out (DENIED_HITS)"
    );
    assert!(over > 3_000 && compared > 9 * left_out, "the requests do not show much");
    differences
}

fn client(runtime: &Runtime, port: u16) -> RateLimitServiceClient<Channel> {
    let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    RateLimitServiceClient::new(runtime.block_on(channel.connect()).unwrap())
}
