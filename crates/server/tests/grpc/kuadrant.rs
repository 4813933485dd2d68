//! Kuadrant's rate limit service: check, report, reserve and commit.

use std::time::Duration;

use tidegate_envoy::pb::{
    envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    },
    google::protobuf,
};
use tonic::{Request, Status, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::{
    client::{Client, one, request, shown},
    harness::Running,
    rls::{START, options},
};

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<protobuf::Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitResponse {
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}

impl Client {
    fn call<Q, A>(&self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.call_with(method, Request::new(request))
    }

    /// A call with the id of a request that is safe to repeat.
    fn call_once<Q, A>(&self, method: &str, id: &str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut request = Request::new(request);
        request
            .metadata_mut()
            .insert("tidegate-id", id.parse().unwrap());
        self.call_with(method, request)
    }

    fn call_with<Q, A>(&self, method: &str, request: Request<Q>) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
        let path: PathAndQuery = path.parse().unwrap();
        self.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(self.channel.clone());
            grpc.ready().await.unwrap();
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(request, path, codec)
                .await
                .map(tonic::Response::into_inner)
        })
    }

    fn check(&self, hits: u32) -> String {
        let asked = RateLimitRequest {
            hits_addend: hits,
            ..request("shop", vec![one("user", "alice")])
        };
        shown(
            &self
                .call::<_, RateLimitResponse>("CheckRateLimit", asked)
                .unwrap(),
        )
    }

    fn report(&self, hits: u32) -> String {
        let asked = RateLimitRequest {
            hits_addend: hits,
            ..request("shop", vec![one("user", "alice")])
        };
        shown(&self.call::<_, RateLimitResponse>("Report", asked).unwrap())
    }

    fn reserve_for(
        &self,
        amount: u64,
        descriptor: RateLimitDescriptor,
        ttl: i64,
    ) -> Result<String, Status> {
        let ttl = Some(protobuf::Duration {
            seconds: ttl,
            nanos: 0,
        });
        let asked = ReserveRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor],
            amount,
            ttl,
        };
        let told: ReserveResponse = self.call("Reserve", asked)?;
        let is_denied = told.code == i32::from(Code::OverLimit);
        assert_eq!(is_denied, told.reservation_id.is_empty(), "{told:?}");
        Ok(told.reservation_id)
    }

    fn reserve(&self, amount: u64) -> String {
        self.reserve_for(amount, one("user", "alice"), 60).unwrap()
    }

    fn commit(&self, id: &str, actual_amount: u64) -> bool {
        self.commit_in("shop", id, actual_amount).unwrap()
    }

    fn commit_in(&self, domain: &str, id: &str, actual_amount: u64) -> Result<bool, Status> {
        let (domain, descriptors) = (domain.to_owned(), vec![one("user", "alice")]);
        let asked = CommitRequest {
            domain,
            descriptors,
            reservation_id: id.to_owned(),
            actual_amount,
        };
        self.call("Commit", asked)
            .map(|told: CommitResponse| told.reservation_released)
    }
}

const CONFIG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000}
  - key: job
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: task
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token-bucket, line: true}
";
const OTHER: &str = "
domain: bank
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";

fn serving(name: &str, store: Option<&str>) -> (Running, Client) {
    let mut options = options(name, CONFIG);
    std::fs::write(
        options
            .envoy_config
            .as_ref()
            .unwrap()
            .with_file_name("bank.yaml"),
        OTHER,
    )
    .unwrap();
    options.envoy_config = options
        .envoy_config
        .map(|file| file.parent().unwrap().to_owned());
    options.store_deadline = Duration::from_secs(5).into();
    options.store = store.map(str::to_owned);
    let server = Running::start_at(options, START);
    if store.is_some() {
        let ready = || server.get("/readyz").json()["status"] == "ready";
        tidegate_redis_servers::eventually("the store has been reached", ready);
    }
    let client = Client::of(server.grpc);
    (server, client)
}

/// A repeated reservation is the first one; a report cannot be repeated.
fn a_reservation_with_an_id_is_made_once(client: &Client) {
    let before = client.check(0);
    let asked = |amount| ReserveRequest {
        domain: "shop".to_owned(),
        descriptors: vec![one("user", "alice")],
        amount,
        ttl: None,
    };
    let reserve = |id: &str, amount| {
        let reserved = client.call_once::<_, ReserveResponse>("Reserve", id, asked(amount));
        reserved.unwrap().reservation_id
    };
    let first = reserve("job-1", 5);
    assert_eq!(reserve("job-1", 5), first);
    let other = reserve("job-2", 5);
    assert_ne!(other, first);
    assert!(client.commit(&first, 0));
    assert!(client.commit(&other, 0));
    assert_eq!(reserve("job-1", 5), first, "it is remembered");
    assert!(!client.commit(&first, 0));
    assert_eq!(client.check(0), before);
    let report = request("shop", vec![one("user", "alice")]);
    let refused = client
        .call_once::<_, RateLimitResponse>("Report", "job-3", report)
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            tonic::Code::InvalidArgument,
            "a report cannot be repeated: leave out the metadata `tidegate-id`"
        )
    );
    assert_eq!(client.check(0), before);
}

/// The same with limits in memory and in a store.
fn a_reservation_counts_until_it_is_committed(server: &Running, client: &Client) {
    assert_eq!(client.check(1_000), "OK: OK/1000", "a check takes nothing");
    assert_eq!(client.check(1_001), "OVER: OVER/1000");
    assert_eq!(client.report(100), "OK: OK/900");
    let id = client.reserve(600);
    assert_eq!(id.len(), 32);
    assert_eq!(
        client.check(0),
        "OK: OK/300",
        "a plain check sees the reservation"
    );
    assert_eq!(client.reserve(301), "");
    assert!(client.commit(&id, 50));
    assert_eq!(client.check(0), "OK: OK/850");
    assert!(!client.commit(&id, 50), "a repeated commit counts once");
    assert_eq!(client.check(0), "OK: OK/850");
    let unknown = "00000000000000000000000000000001";
    assert!(!client.commit(unknown, 50), "is reported");
    assert!(!client.commit("not an id", 100));
    assert_eq!(client.check(0), "OK: OK/700");
    let id = client.reserve(10);
    assert!(client.commit(&id, 2_000));
    assert_eq!(client.check(1), "OVER: OVER/0");
    assert_eq!(client.reserve(0), "", "over the limit");
    let counted =
        |code: &str| server.metric(&format!("tidegate_grpc_requests_total{{code=\"{code}\"}}"));
    assert_eq!([counted("OVER_LIMIT"), counted("error")], [4, 1]);
}

#[test]
fn limits_in_memory_are_reserved_and_committed() {
    let (server, client) = serving("kuadrant", None);
    a_reservation_with_an_id_is_made_once(&client);
    a_reservation_counts_until_it_is_committed(&server, &client);
}

#[cfg(feature = "servers")]
#[test]
fn limits_in_a_store_are_reserved_and_committed() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let (server, client) = serving("kuadrant-store", Some(&store.address()));
    a_reservation_with_an_id_is_made_once(&client);
    a_reservation_counts_until_it_is_committed(&server, &client);
}

/// A reservation that may wait in line.
fn waiting(amount: u64, wait: &str) -> Request<ReserveRequest> {
    waiting_for("job", amount, wait)
}

fn waiting_for(key: &str, amount: u64, wait: &str) -> Request<ReserveRequest> {
    let mut request = Request::new(ReserveRequest {
        domain: "shop".to_owned(),
        descriptors: vec![one(key, "alice")],
        amount,
        ttl: None,
    });
    request
        .metadata_mut()
        .insert("tidegate-wait", wait.parse().unwrap());
    request
}

fn urgent(mut request: Request<ReserveRequest>, level: &str) -> Request<ReserveRequest> {
    let level = level.parse().unwrap();
    request.metadata_mut().insert("tidegate-priority", level);
    request
}

#[test]
fn a_call_of_a_higher_priority_is_answered_first() {
    let (server, client) = serving("kuadrant-priority", None);
    let first = client.reserve_for(1_000, one("job", "alice"), 60).unwrap();
    let wait = |level: &'static str, callers: u64| {
        let other = Client::of(server.grpc);
        let waits = std::thread::spawn(move || {
            let request = urgent(waiting(1_000, "1h"), level);
            let told = other.call_with::<_, ReserveResponse>("Reserve", request);
            told.unwrap()
        });
        tidegate_redis_servers::eventually("it is in line", || {
            let metrics = server.get("/metrics").body;
            let waits = format!(" {callers}");
            let mut lines = metrics.lines();
            lines.any(|line| line.starts_with("tidegate_waiting{") && line.ends_with(&waits))
        });
        waits
    };
    let (low, high) = (wait("4", 1), wait("6", 2));
    assert!(client.commit(&first, 0));
    let high = high.join().unwrap();
    assert_eq!(high.code, i32::from(Code::Ok));
    assert!(!low.is_finished(), "it has the lower priority");
    assert!(client.commit(&high.reservation_id, 0));
    assert_eq!(low.join().unwrap().code, i32::from(Code::Ok));
}

/// Waits until this many are in a line.
fn until_in_line(server: &Running, callers: u64) {
    let waits = format!(" {callers}");
    let has = || {
        let metrics = server.get("/metrics").body;
        let mut lines = metrics.lines();
        lines.any(|line| line.starts_with("tidegate_waiting{") && line.ends_with(&waits))
    };
    tidegate_redis_servers::eventually("as many are in line", has);
}

#[cfg(feature = "servers")]
#[test]
fn a_reservation_waits_in_a_store_if_its_limit_has_a_line_there() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let (server, client) = serving("kuadrant-store-waits", Some(&store.address()));
    let first = client.reserve_for(1_000, one("task", "alice"), 60).unwrap();
    let other = Client::of(server.grpc);
    let waits = std::thread::spawn(move || {
        let asked = waiting_for("task", 500, "1h");
        other.call_with::<_, ReserveResponse>("Reserve", asked)
    });
    until_in_line(&server, 1);
    assert!(client.commit(&first, 0));
    let told = waits.join().unwrap().unwrap();
    assert_eq!(told.code, i32::from(Code::Ok));
    let asked = waiting(1, "1h");
    let refused = client
        .call_with::<_, ReserveResponse>("Reserve", asked)
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("`line: true`"), "{refused:?}");
}

#[test]
fn a_reservation_waits_in_line_until_its_deadline() {
    let (server, client) = serving("kuadrant-waits", None);
    let in_line = |callers| until_in_line(&server, callers);
    let first = client.reserve_for(1_000, one("job", "alice"), 60).unwrap();
    let other = Client::of(server.grpc);
    let waits = std::thread::spawn(move || {
        let told = other.call_with::<_, ReserveResponse>("Reserve", waiting(1_000, "1h"));
        (told.unwrap(), other)
    });
    in_line(1);
    assert!(client.commit(&first, 0));
    let (told, other) = waits.join().unwrap();
    assert_eq!(told.code, i32::from(Code::Ok));
    // The next hour is too far away for the call, or for the client.
    let ask = |request| client.call_with::<_, ReserveResponse>("Reserve", request);
    let mut short = waiting(1, "1h");
    short.set_timeout(Duration::from_secs(30));
    for request in [waiting(1, "30s"), short] {
        let denied = ask(request).unwrap();
        assert_eq!(denied.code, i32::from(Code::OverLimit), "{denied:?}");
    }
    // A client that gives up leaves the line.
    let left = std::thread::spawn(move || {
        let mut late = waiting(1, "1h");
        late.set_timeout(Duration::from_mins(50));
        let path = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
        other.runtime.block_on(async {
            let mut grpc = tonic::client::Grpc::new(other.channel.clone());
            grpc.ready().await.unwrap();
            let codec = ProstCodec::<ReserveRequest, ReserveResponse>::default();
            let asked = grpc.unary(late, path.parse().unwrap(), codec);
            tokio::time::timeout(Duration::from_millis(300), asked)
                .await
                .is_err()
        })
    });
    assert!(left.join().unwrap(), "it still waited");
    in_line(0);
    let mut repeated = waiting(1, "1h");
    let id = "job".parse().unwrap();
    repeated.metadata_mut().insert("tidegate-id", id);
    let mut alone = waiting(1, "1h");
    alone.metadata_mut().remove("tidegate-wait");
    for (request, why) in [
        (
            urgent(waiting(1, "1h"), "10"),
            "tidegate-priority: a priority is a whole number from 0 to 9",
        ),
        (
            urgent(alone, "9"),
            "tidegate-priority: a priority is for a call that waits in line: give `tidegate-wait`, too",
        ),
        (waiting(1, "2h"), "between 1ms and 1h"),
        (waiting(1, "soon"), "tidegate-wait: "),
        (repeated, "a request that waits has no id"),
    ] {
        let refused = ask(request).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains(why), "{refused:?}");
    }
}

#[test]
fn wrong_calls_get_errors_and_change_nothing() {
    let (_server, client) = serving("kuadrant-wrong", None);
    let id = client.reserve(100);
    let code = |told: Result<bool, Status>| told.unwrap_err().code();
    assert_eq!(
        code(client.commit_in("bank", &id, 5)),
        tonic::Code::InvalidArgument
    );
    assert_eq!(
        code(client.commit_in("", &id, 5)),
        tonic::Code::InvalidArgument
    );
    let negative = client.reserve_for(1, one("user", "alice"), -1).unwrap_err();
    assert_eq!(negative.code(), tonic::Code::InvalidArgument);
    let unknown = client
        .call::<_, CommitResponse>("Refund", CommitRequest::default())
        .unwrap_err();
    assert_eq!(
        (
            unknown.code(),
            unknown.message().contains("no method `Refund`")
        ),
        (tonic::Code::Unimplemented, true)
    );
    assert_eq!(client.check(0), "OK: OK/900");
    assert!(client.commit(&id, 100));
}
