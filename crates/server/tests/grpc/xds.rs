//! A control plane that sends the configuration, as Envoy Gateway does, byte by byte.

use std::{net::SocketAddr, process::Command, sync::Mutex, time::Duration};

use futures_util::stream::BoxStream;
use prost::Message;
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_envoy::pb::{
    envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::discovery::v3::{
            DiscoveryRequest, DiscoveryResponse,
            aggregated_discovery_service_server::{
                AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
            },
        },
    },
    google::protobuf::{Any, Struct, Value, value::Kind},
};
use tidegate_redis_servers::eventually;
use tidegate_server::{
    Options, XdsSource,
    descriptors::{Consume, Modes},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};

use crate::{
    client::{Client, hits, metadata, one, request, shown},
    harness::{PATIENCE, Running, replace, scratch},
    rls::START,
};

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    descriptors: Vec<Self>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
    #[prost(message, optional, tag = "8")]
    metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    unlimited: bool,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    replaces: Vec<Replace>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Replace {
    #[prost(string, tag = "1")]
    name: String,
}

/// A domain with a rule for each user: so many in an hour.
fn domain(name: &str, requests_per_unit: u32) -> Any {
    of_unit(name, requests_per_unit, 3)
}

fn of_unit(name: &str, requests_per_unit: u32, unit: i32) -> Any {
    let rate_limit = Some(Policy {
        unit,
        requests_per_unit,
        ..Policy::default()
    });
    resource(
        name,
        vec![Descriptor {
            rate_limit,
            ..Descriptor::of("user", "")
        }],
    )
}

fn resource(domain: &str, descriptors: Vec<Descriptor>) -> Any {
    let config = Config {
        domain: domain.to_owned(),
        descriptors,
    };
    Any {
        type_url: TYPE.to_owned(),
        value: config.encode_to_vec(),
    }
}

impl Descriptor {
    fn of(key: &str, value: &str) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_owned(),
            ..Self::default()
        }
    }
}

/// A stream as the control plane sees it.
struct Stream {
    headers: MetadataMap,
    requests: mpsc::UnboundedReceiver<DiscoveryRequest>,
    answers: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
}

#[derive(Clone)]
struct Service(mpsc::UnboundedSender<Stream>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = BoxStream<'static, Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let headers = request.metadata().clone();
        let mut incoming = request.into_inner();
        let (forward, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                let _ = forward.send(request);
            }
        });
        let (answers, mut outgoing) = mpsc::unbounded_channel();
        let _ = self.0.send(Stream {
            headers,
            requests,
            answers,
        });
        let outgoing = futures_util::stream::poll_fn(move |context| outgoing.poll_recv(context));
        Ok(Response::new(Box::pin(outgoing)))
    }
}

/// A control plane, until it is dropped.
struct ControlPlane {
    address: SocketAddr,
    streams: Mutex<mpsc::UnboundedReceiver<Stream>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ControlPlane {
    fn start(address: SocketAddr) -> Self {
        let (told, address_of) = std::sync::mpsc::channel();
        let (service, streams) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let incoming = futures_util::stream::unfold(listener, async |listener| {
                    Some((listener.accept().await.map(|(stream, _)| stream), listener))
                });
                let service = AggregatedDiscoveryServiceServer::new(Service(service));
                let serving = tonic::transport::Server::builder()
                    .add_service(service)
                    .serve_with_incoming(incoming);
                tokio::select! {
                    served = serving => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let address = address_of.recv().unwrap();
        Self {
            address,
            streams: Mutex::new(streams),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn url(&self, options: &str) -> String {
        format!("http://{}?first_pause=10ms&{options}", self.address)
    }

    /// The next stream that the server opens.
    fn stream(&self) -> Stream {
        self.stream_within(PATIENCE)
    }

    fn stream_within(&self, time: Duration) -> Stream {
        waited_for(time, self.streams.lock().unwrap().recv())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn waited<T>(future: impl Future<Output = Option<T>>) -> T {
    waited_for(PATIENCE, future)
}

fn waited_for<T>(time: Duration, future: impl Future<Output = Option<T>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime
        .block_on(async { tokio::time::timeout(time, future).await })
        .expect("in time")
        .expect("not at its end")
}

impl Stream {
    fn request(&mut self) -> DiscoveryRequest {
        waited(self.requests.recv())
    }

    /// Sends all domains, and returns what the server says to it.
    fn send(&mut self, version: &str, resources: Vec<Any>) -> DiscoveryRequest {
        let answer = DiscoveryResponse {
            version_info: version.to_owned(),
            nonce: format!("nonce of {version}"),
            type_url: TYPE.to_owned(),
            resources,
        };
        self.answers.send(Ok(answer)).unwrap();
        let request = self.request();
        assert_eq!(request.response_nonce, format!("nonce of {version}"));
        request
    }

    /// Sends domains that the server puts in force.
    fn accepted(&mut self, version: &str, resources: Vec<Any>) {
        let request = self.send(version, resources);
        assert_eq!(
            (request.version_info.as_str(), request.error_detail),
            (version, None)
        );
    }

    /// Sends domains that the server refuses, with `in_force` in force, and returns its reason.
    fn refused(&mut self, version: &str, resources: Vec<Any>, in_force: &str) -> String {
        let request = self.send(version, resources);
        assert_eq!(request.version_info, in_force);
        request.error_detail.unwrap().message
    }
}

fn following(urls: &[String]) -> Running {
    Running::start_at(that_follows(urls), START)
}

fn that_follows(urls: &[String]) -> Options {
    Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_xds: urls.iter().map(|url| url.parse().unwrap()).collect(),
        envoy_consume: Consume::Each,
        ..Options::default()
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn told(client: &mut Client, domain: &str) -> String {
    shown(
        &client
            .try_ask(request(domain, vec![one("user", "ada")]))
            .unwrap(),
    )
}

#[test]
fn what_a_control_plane_sends_is_enforced_and_mistakes_change_nothing() {
    let control_plane = ControlPlane::start(anywhere());
    let server =
        following(&[control_plane.url("node=envoy-ratelimit&metadata=zone=a&header=x-team:edge")]);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    assert_eq!(stream.headers.get("x-team").unwrap(), "edge");
    let first = stream.request();
    let node = first.node.unwrap();
    assert_eq!(
        (node.id.as_str(), node.metadata.unwrap().fields.len()),
        ("envoy-ratelimit", 1)
    );
    assert_eq!(
        (
            first.type_url.as_str(),
            first.version_info.as_str(),
            first.response_nonce.as_str()
        ),
        (TYPE, "", "")
    );
    assert!(first.resource_names.is_empty());
    assert_eq!(
        told(&mut client, "shop"),
        "OK: OK/0",
        "without a configuration everything is admitted"
    );

    stream.accepted("1", vec![domain("shop", 2), domain("bank", 1)]);
    assert_eq!(
        [told(&mut client, "shop"), told(&mut client, "shop")],
        ["OK: OK/1", "OK: OK/0"]
    );
    assert_eq!(told(&mut client, "bank"), "OK: OK/0");
    // Counts survive a new snapshot, in any order of its resources; a domain that is not sent is
    // gone.
    stream.accepted("2", vec![domain("bank", 1), domain("shop", 4)]);
    assert_eq!(told(&mut client, "shop"), "OK: OK/1");
    assert_eq!(told(&mut client, "bank"), "OVER: OVER/0");
    stream.accepted("3", vec![domain("shop", 4)]);
    assert_eq!(told(&mut client, "bank"), "OK: OK/0");

    // One bad resource refuses all of them.
    let cut = Any {
        type_url: TYPE.to_owned(),
        value: vec![0xFF],
    };
    let other = Any {
        type_url: "other".to_owned(),
        value: Vec::new(),
    };
    for (version, resources, says) in [
        (
            "4",
            vec![domain("shop", 9), of_unit("bank", 1, 0)],
            "domain bank",
        ),
        ("4.1", vec![of_unit("bank", 1, 8)], "second, minute"),
        ("4.2", vec![of_unit("bank", 1, -1)], "second, minute"),
        ("4.3", vec![other], "the type other"),
        (
            "5",
            vec![domain("shop", 9), domain("shop", 9)],
            "the domain `shop` is already in",
        ),
        ("6", vec![domain("shop", 9), cut], "cannot be decoded"),
    ] {
        let reason = stream.refused(version, resources, "3");
        assert!(reason.contains(says), "{reason}");
    }
    assert_eq!(told(&mut client, "shop"), "OK: OK/0");
    // A control plane that sends the refused version again at once gets the next refusal a second
    // later.
    let clock = SystemClock::new();
    let before = clock.now();
    stream.refused("6", vec![domain("shop", 9)], "3");
    assert!(clock.now().saturating_since(before) >= Nanos::from_secs(1));
    stream.accepted("7", vec![domain("shop", 5)]);
    assert_eq!(told(&mut client, "shop"), "OK: OK/0", "four were counted");
    let labels = format!("{{url=\"http://{}\"}}", control_plane.address);
    let metric = |name: &str| server.metric(&format!("tidegate_xds_{name}{labels}"));
    assert_eq!(
        [
            metric("up"),
            metric("updates_total"),
            metric("refused_total")
        ],
        [1, 4, 7]
    );
    assert!(metric("last_answer_timestamp_seconds") > 1_700_000_000);
}

/// An answer is small on the wire and large as rules: it is counted before it is built.
#[test]
fn too_many_descriptors_and_foreign_types_are_refused_with_the_reason() {
    let control_plane = ControlPlane::start(anywhere());
    let server = following(&[control_plane.url("")]);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    stream.request();
    stream.accepted("1", vec![domain("shop", 4)]);
    let value = |number| Descriptor::of("user", &format!("{number}"));
    let many = resource("shop", (0..300_000).map(value).collect());
    let reason = stream.refused("2", vec![many], "1");
    assert!(reason.contains("more than 40000 descriptors"), "{reason}");
    let foreign = DiscoveryResponse {
        version_info: "1".to_owned(),
        nonce: "foreign".to_owned(),
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        resources: Vec::new(),
    };
    stream.answers.send(Ok(foreign.clone())).unwrap();
    let request = stream.request();
    assert_eq!(
        (request.type_url, request.response_nonce),
        (foreign.type_url, foreign.nonce)
    );
    let reason = request.error_detail.unwrap().message;
    assert!(reason.contains(TYPE), "{reason}");
    assert_eq!(told(&mut client, "shop"), "OK: OK/3");
}

/// What the chart allows a pod: the peak of this test in a process of its own, which holds the
/// control plane, too.
#[test]
fn too_large_answers_of_a_control_plane_fit_into_half_a_gibibyte() {
    const MARK: &str = "TIDEGATE_TEST_ALONE";
    if std::env::var_os(MARK).is_none() {
        let name = "xds::too_large_answers_of_a_control_plane_fit_into_half_a_gibibyte";
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MARK, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&alone.stdout);
        let errors = String::from_utf8_lossy(&alone.stderr);
        assert!(alone.status.success(), "{said}{errors}");
        let peak = said.split_once("VmHWM:").unwrap().1.split_once("kB");
        let peak: u64 = peak.unwrap().0.trim().parse().unwrap();
        assert!((1..512 * 1_024).contains(&peak), "{peak} kB");
        return;
    }
    let control_plane = ControlPlane::start(anywhere());
    let server = following(&[control_plane.url("")]);
    let mut stream = control_plane.stream();
    stream.request();
    let value = |number| Descriptor::of("user", &format!("{number}"));
    let largest = resource("shop", (0..39_000).map(value).collect());
    stream.accepted("1", vec![largest]);
    let many = resource("shop", (0..300_000).map(value).collect());
    for version in 2..12 {
        let reason = stream.refused(&version.to_string(), vec![many.clone()], "1");
        assert!(reason.contains("more than 40000 descriptors"), "{reason}");
    }
    let mut client = Client::of(server.grpc);
    assert!(told(&mut client, "shop").contains("OK"));
    print!("{}", std::fs::read_to_string("/proc/self/status").unwrap());
}

#[test]
fn of_many_updates_in_a_row_the_last_comes_into_force_and_most_are_left_out() {
    let control_plane = ControlPlane::start(anywhere());
    let server = following(&[control_plane.url("")]);
    let mut stream = control_plane.stream();
    stream.request();
    // Large enough that reading one takes longer than sending the others.
    let value = |number| Descriptor {
        rate_limit: Some(Policy {
            unit: 3,
            requests_per_unit: 5,
            ..Policy::default()
        }),
        ..Descriptor::of("user", &format!("{number}"))
    };
    let large = resource("shop", (0..1_000).map(value).collect());
    for version in 1..=300 {
        let answer = DiscoveryResponse {
            version_info: version.to_string(),
            nonce: version.to_string(),
            type_url: TYPE.to_owned(),
            resources: vec![large.clone()],
        };
        stream.answers.send(Ok(answer)).unwrap();
    }
    let mut accepted = 0;
    loop {
        let request = stream.request();
        assert_eq!(request.error_detail, None);
        accepted += 1;
        if request.version_info == "300" {
            break;
        }
    }
    assert!(accepted < 300, "{accepted}");
    drop(server);
}

/// The limits of a server, and what it answers to some questions, with the metadata of its rules.
fn shown_by(server: &Running) -> (serde_json::Value, Vec<String>) {
    let mut client = Client::of(server.grpc);
    let mut user = one("route", "1.5");
    user.entries.extend(one("user", "ada").entries);
    let questions = [
        vec![user],
        vec![one("free", "x")],
        vec![one("other", "x")],
        vec![one("free", "x"), one("other", "y")],
    ];
    let mut answer = |question: &Vec<RateLimitDescriptor>| {
        let answer = client.ask(question.clone());
        let described = answer.dynamic_metadata.is_some().then(|| metadata(&answer));
        format!(
            "{:?} {:?} {described:?}",
            answer.overall_code, answer.statuses
        )
    };
    let answers = (0..5).flat_map(|_| &questions).map(&mut answer).collect();
    (server.get("/v1/limits").json()["limits"].clone(), answers)
}

#[test]
fn a_resource_means_what_a_file_with_the_same_rules_means() {
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = |fields: &[(&str, Value)]| Struct {
        fields: fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
    };
    let options = fields(&[
        ("algorithm", text("token-bucket")),
        ("charge", text("admitted")),
    ]);
    let options = Value {
        kind: Some(Kind::StructValue(options)),
    };
    let rate_limit = |name: &str, requests_per_unit| Policy {
        unit: 7,
        requests_per_unit,
        name: name.to_owned(),
        ..Policy::default()
    };
    let user = Descriptor {
        rate_limit: Some(rate_limit("", 3)),
        shadow_mode: true,
        metadata: Some(fields(&[("team", text("payments")), ("tidegate", options)])),
        ..Descriptor::of("user", "")
    };
    let replaces = vec![Replace {
        name: "other".to_owned(),
    }];
    let free = Policy {
        unlimited: true,
        replaces,
        unit: 0,
        ..rate_limit("all", 0)
    };
    let descriptors = vec![
        Descriptor {
            descriptors: vec![user],
            ..Descriptor::of("route", "1.5")
        },
        Descriptor {
            rate_limit: Some(free),
            ..Descriptor::of("free", "")
        },
        Descriptor {
            rate_limit: Some(rate_limit("other", 2)),
            ..Descriptor::of("other", "")
        },
    ];
    let file = scratch("xds-same").join("shop.yaml");
    let config = "domain: shop
descriptors:
  - key: route
    value: '1.5'
    descriptors:
      - key: user
        shadow_mode: true
        metadata: {team: payments}
        rate_limit: {unit: week, requests_per_unit: 3, algorithm: token-bucket, charge: admitted}
  - {key: free, rate_limit: {unlimited: true, name: all, replaces: [{name: other}]}}
  - {key: other, rate_limit: {unit: week, requests_per_unit: 2, name: other}}
";
    std::fs::write(&file, config).unwrap();
    let envoy_modes = Modes {
        metadata: true,
        ..Modes::default()
    };
    let options = Options {
        envoy_modes,
        history_memory: 0,
        ..that_follows(&[])
    };
    let by_file = Running::start_at(
        Options {
            envoy_config: Some(file),
            ..options.clone()
        },
        START,
    );
    let control_plane = ControlPlane::start(anywhere());
    let urls = vec![control_plane.url("").parse().unwrap()];
    let by_plane = Running::start_at(
        Options {
            envoy_xds: urls,
            ..options
        },
        START,
    );
    let mut stream = control_plane.stream();
    stream.request();
    stream.accepted("1", vec![resource("shop", descriptors)]);
    let expected = shown_by(&by_file);
    assert!(expected.1[0].contains("payments"), "{expected:?}");
    assert_eq!(shown_by(&by_plane), expected);
}

/// As for the quotas of AI Gateway, whose questions name no number of hits.
#[test]
fn options_of_a_control_planes_address_are_those_of_its_limits() {
    let control_plane = ControlPlane::start(anywhere());
    let url = control_plane.url("option=hold=5m&option=estimate=4");
    let server = Running::start_at(that_follows(&[url]), START);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    stream.request();
    stream.accepted("1", vec![domain("shop", 10)]);
    assert_eq!(told(&mut client, "shop"), "OK: OK/6");
    assert_eq!(told(&mut client, "shop"), "OK: OK/2");
    assert_eq!(told(&mut client, "shop"), "OVER: OVER/0");
    let report = hits(1, one("user", "ada"));
    let answer = client.try_ask(request("shop", vec![report])).unwrap();
    assert_eq!(shown(&answer), "OK: OK/5");
}

#[test]
fn a_server_that_awaits_rules_is_unready_until_they_are_sent() {
    let control_plane = ControlPlane::start(anywhere());
    let options = Options {
        envoy_await_rules: true,
        ..that_follows(&[control_plane.url("")])
    };
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    stream.request();
    let mut is_ready = |ready: bool| {
        let answer = server.get("/healthcheck");
        assert_eq!(
            answer.status,
            if ready { 200 } else { 503 },
            "{}",
            answer.body
        );
        let serving = if ready { 1 } else { 2 };
        eventually("gRPC's health says it, too", || {
            client.health("ratelimit").unwrap() == serving
        });
    };
    is_ready(false);
    stream.accepted("1", vec![domain("shop", 2)]);
    is_ready(true);
    stream.accepted("2", Vec::new());
    is_ready(false);
}

#[test]
fn the_last_rules_stay_in_force_while_the_control_plane_is_away() {
    let control_plane = ControlPlane::start(anywhere());
    let server = following(&[control_plane.url("node=n")]);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    stream.request();
    stream.accepted("3", vec![domain("shop", 2)]);
    let address = control_plane.address;
    drop((stream, control_plane));
    assert_eq!(
        [told(&mut client, "shop"), told(&mut client, "shop")],
        ["OK: OK/1", "OK: OK/0"]
    );
    let labels = format!("{{url=\"http://{address}\"}}");
    let metric = |name: &str| server.metric(&format!("tidegate_xds_{name}{labels}"));
    eventually("the stream is seen to be lost", || metric("up") == 0);
    let since = metric("lost_timestamp_seconds");
    assert!(since >= metric("last_answer_timestamp_seconds"));
    let mut of_ben = || {
        shown(
            &client
                .try_ask(request("shop", vec![one("user", "ben")]))
                .unwrap(),
        )
    };
    assert_eq!([of_ben(), of_ben()], ["OK: OK/1", "OK: OK/0"]);
    // With TIDEGATE_LONG=1 a minute, in which the server tries again and again.
    let (clock, long) = (
        SystemClock::new(),
        std::env::var_os("TIDEGATE_LONG").is_some(),
    );
    let (begin, away) = (
        clock.now(),
        if long {
            Nanos::from_secs(60)
        } else {
            Nanos::from_millis(200)
        },
    );
    while clock.now().saturating_since(begin) < away {
        assert_eq!(of_ben(), "OVER: OVER/0");
        assert_eq!([metric("up"), metric("lost_timestamp_seconds")], [0, since]);
    }
    // It comes back, counts its versions from the beginning, and sends other rules under a number
    // that was used before.
    let control_plane = ControlPlane::start(address);
    // After a minute the server's pauses are as long as a minute and a half.
    let mut stream = control_plane.stream_within(if long {
        Duration::from_secs(100)
    } else {
        PATIENCE
    });
    let first = stream.request();
    assert_eq!(
        (first.version_info.as_str(), first.response_nonce.as_str()),
        ("", "")
    );
    stream.accepted("3", vec![domain("shop", 3)]);
    assert_eq!(
        [told(&mut client, "shop"), told(&mut client, "shop")],
        ["OK: OK/0", "OVER: OVER/0"]
    );
    assert_eq!([metric("up"), metric("lost_timestamp_seconds")], [1, 0]);
}

#[test]
fn two_control_planes_and_a_directory_are_followed_together() {
    let planes = [
        ControlPlane::start(anywhere()),
        ControlPlane::start(anywhere()),
    ];
    let directory = scratch("xds-several");
    let file = directory.join("file.yaml");
    let config = |name: &str| {
        format!(
            "domain: {name}\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: 1}}}}]\n"
        )
    };
    std::fs::write(&file, config("local")).unwrap();
    let options = Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_config: Some(directory),
        envoy_xds: planes
            .iter()
            .map(|plane| plane.url("").parse().unwrap())
            .collect(),
        ..Options::default()
    };
    let mut server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let mut streams = planes.each_ref().map(|plane| {
        let mut stream = plane.stream();
        stream.request();
        stream
    });
    let [one, two] = &mut streams;
    one.accepted("1", vec![domain("shop", 2)]);
    two.accepted("1", vec![domain("bank", 3)]);
    let domains = ["local", "shop", "bank"];
    assert_eq!(
        domains.map(|domain| told(&mut client, domain)),
        ["OK: OK/0", "OK: OK/1", "OK: OK/2"]
    );
    // What one of them sends must not be another's.
    let reason = two.refused("2", vec![domain("shop", 9)], "1");
    assert!(
        reason.contains("the domain `shop` is already in"),
        "{reason}"
    );
    let reason = one.refused("2", vec![domain("local", 9)], "1");
    assert!(
        reason.contains("the domain `local` is already in"),
        "{reason}"
    );
    // A change of the file keeps what was sent.
    server.reloading(|| replace(&file, config("other")));
    assert_eq!(told(&mut client, "shop"), "OK: OK/0");
    one.accepted("3", vec![domain("local", 9)]);
    assert_eq!(
        told(&mut client, "local"),
        "OK: OK/8",
        "it was gone for a while"
    );
}

#[test]
fn an_address_says_what_is_wrong_with_it() {
    let options = "node=n&ca=%2Fca&cert=/c&key=/k&metadata=a=b&header=x:y&server_name=s";
    let source: XdsSource = format!("https://gateway?{options}").parse().unwrap();
    let plain: XdsSource = "http://[::1]:18002?max_message=7&longest_pause=5s"
        .parse()
        .unwrap();
    assert_eq!(
        [source.shown(), plain.shown()],
        ["https://gateway:18001", "http://[::1]:18002"]
    );
    for (text, says) in [
        ("gateway:18001", "write http://"),
        ("ftp://a", "write http://"),
        ("http://a?nod=x", "no option `nod`"),
        ("http://a?ca=/x", "are for https://"),
        ("https://a?cert=/x", "needs cert and key"),
        ("https://a?header=x", "header=NAME:VALUE"),
        ("http://a?max_message=many", "max_message is `many`"),
    ] {
        let said = text.parse::<XdsSource>().unwrap_err().to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
}
