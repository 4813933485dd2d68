//! A control plane that sends the configuration, as Envoy Gateway does, byte by byte.

use std::{net::SocketAddr, sync::Mutex, time::Duration};

use envoy_types::pb::{
    envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
    },
    google::protobuf::Any,
};
use futures_util::stream::BoxStream;
use prost::Message;
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::eventually;
use tidegate_server::{Options, envoy::Consume};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};

use crate::{
    client::{Client, one, request, shown},
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
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<Policy>,
}

#[derive(Clone, PartialEq, Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
}

/// A domain with a rule for each user: so many in an hour.
fn domain(name: &str, requests_per_unit: u32) -> Any {
    of_unit(name, requests_per_unit, 3)
}

fn of_unit(name: &str, requests_per_unit: u32, unit: i32) -> Any {
    let rate_limit = Some(Policy { unit, requests_per_unit });
    let descriptors = vec![Descriptor { key: "user".to_owned(), rate_limit }];
    let config = Config { domain: name.to_owned(), descriptors };
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
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
    type DeltaAggregatedResourcesStream = BoxStream<'static, Result<DeltaDiscoveryResponse, Status>>;

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
        let _ = self.0.send(Stream { headers, requests, answers });
        let outgoing = futures_util::stream::poll_fn(move |context| outgoing.poll_recv(context));
        Ok(Response::new(Box::pin(outgoing)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("no deltas"))
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
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let incoming = futures_util::stream::unfold(listener, async |listener| {
                    Some((listener.accept().await.map(|(stream, _)| stream), listener))
                });
                let service = AggregatedDiscoveryServiceServer::new(Service(service));
                let serving =
                    tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
                tokio::select! {
                    served = serving => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let address = address_of.recv().unwrap();
        Self { address, streams: Mutex::new(streams), stop: Some(stop), thread: Some(thread) }
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
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
            ..DiscoveryResponse::default()
        };
        self.answers.send(Ok(answer)).unwrap();
        let request = self.request();
        assert_eq!(request.response_nonce, format!("nonce of {version}"));
        request
    }

    /// Sends domains that the server puts in force.
    fn accepted(&mut self, version: &str, resources: Vec<Any>) {
        let request = self.send(version, resources);
        assert_eq!((request.version_info.as_str(), request.error_detail), (version, None));
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
    shown(&client.try_ask(request(domain, vec![one("user", "ada")])).unwrap())
}

#[test]
fn what_a_control_plane_sends_is_enforced_and_mistakes_change_nothing() {
    let control_plane = ControlPlane::start(anywhere());
    let server = following(&[control_plane.url("node=envoy-ratelimit&metadata=zone=a&header=x-team:edge")]);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    assert_eq!(stream.headers.get("x-team").unwrap(), "edge");
    let first = stream.request();
    let node = first.node.unwrap();
    assert_eq!((node.id.as_str(), node.metadata.unwrap().fields.len()), ("envoy-ratelimit", 1));
    assert_eq!(
        (first.type_url.as_str(), first.version_info.as_str(), first.response_nonce.as_str()),
        (TYPE, "", "")
    );
    assert!(first.resource_names.is_empty());
    assert_eq!(told(&mut client, "shop"), "OK: OK/0", "without a configuration everything is admitted");

    stream.accepted("1", vec![domain("shop", 2), domain("bank", 1)]);
    assert_eq!([told(&mut client, "shop"), told(&mut client, "shop")], ["OK: OK/1", "OK: OK/0"]);
    assert_eq!(told(&mut client, "bank"), "OK: OK/0");
    // Counts survive a new snapshot, in any order of its resources; a domain that is not sent is gone.
    stream.accepted("2", vec![domain("bank", 1), domain("shop", 4)]);
    assert_eq!(told(&mut client, "shop"), "OK: OK/1");
    assert_eq!(told(&mut client, "bank"), "OVER: OVER/0");
    stream.accepted("3", vec![domain("shop", 4)]);
    assert_eq!(told(&mut client, "bank"), "OK: OK/0");

    // One bad resource refuses all of them.
    let cut = Any { type_url: TYPE.to_owned(), value: vec![0xFF] };
    for (version, resources, says) in [
        ("4", vec![domain("shop", 9), of_unit("bank", 1, 0)], "domain bank"),
        ("5", vec![domain("shop", 9), domain("shop", 9)], "the domain `shop` is already in"),
        ("6", vec![domain("shop", 9), cut], "cannot be decoded"),
    ] {
        let reason = stream.refused(version, resources, "3");
        assert!(reason.contains(says), "{reason}");
    }
    assert_eq!(told(&mut client, "shop"), "OK: OK/0");
    // A control plane that sends the refused version again at once gets the next refusal a second later.
    let clock = SystemClock::new();
    let before = clock.now();
    stream.refused("6", vec![domain("shop", 9)], "3");
    assert!(clock.now().saturating_since(before) >= Nanos::from_secs(1));
    stream.accepted("7", vec![domain("shop", 5)]);
    assert_eq!(told(&mut client, "shop"), "OK: OK/0", "four were counted");
    let labels = format!("{{url=\"http://{}\"}}", control_plane.address);
    let metric = |name: &str| server.metric(&format!("tidegate_xds_{name}{labels}"));
    assert_eq!([metric("up"), metric("updates_total"), metric("refused_total")], [1, 4, 4]);
    assert!(metric("last_answer_timestamp_seconds") > 1_700_000_000);
}

#[test]
fn a_server_that_awaits_rules_is_unready_until_they_are_sent() {
    let control_plane = ControlPlane::start(anywhere());
    let options = Options { envoy_await_rules: true, ..that_follows(&[control_plane.url("")]) };
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let mut stream = control_plane.stream();
    stream.request();
    let mut is_ready = |ready: bool| {
        let answer = server.get("/healthcheck");
        assert_eq!(answer.status, if ready { 200 } else { 503 }, "{}", answer.body);
        let serving = if ready { 1 } else { 2 };
        eventually("gRPC's health says it, too", || client.health("ratelimit").unwrap() == serving);
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
    assert_eq!([told(&mut client, "shop"), told(&mut client, "shop")], ["OK: OK/1", "OK: OK/0"]);
    let labels = format!("{{url=\"http://{address}\"}}");
    let metric = |name: &str| server.metric(&format!("tidegate_xds_{name}{labels}"));
    eventually("the stream is seen to be lost", || metric("up") == 0);
    let since = metric("lost_timestamp_seconds");
    assert!(since >= metric("last_answer_timestamp_seconds"));
    let mut of_ben = || shown(&client.try_ask(request("shop", vec![one("user", "ben")])).unwrap());
    assert_eq!([of_ben(), of_ben()], ["OK: OK/1", "OK: OK/0"]);
    // With TIDEGATE_LONG=1 a minute, in which the server tries again and again.
    let (clock, long) = (SystemClock::new(), std::env::var_os("TIDEGATE_LONG").is_some());
    let (begin, away) = (clock.now(), if long { Nanos::from_secs(60) } else { Nanos::from_millis(200) });
    while clock.now().saturating_since(begin) < away {
        assert_eq!(of_ben(), "OVER: OVER/0");
        assert_eq!([metric("up"), metric("lost_timestamp_seconds")], [0, since]);
    }
    // It comes back, counts its versions from the beginning, and sends other rules under a number that was used before.
    let control_plane = ControlPlane::start(address);
    // After a minute the server's pauses are as long as a minute and a half.
    let mut stream = control_plane.stream_within(if long { Duration::from_secs(100) } else { PATIENCE });
    let first = stream.request();
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    stream.accepted("3", vec![domain("shop", 3)]);
    assert_eq!([told(&mut client, "shop"), told(&mut client, "shop")], ["OK: OK/0", "OVER: OVER/0"]);
    assert_eq!([metric("up"), metric("lost_timestamp_seconds")], [1, 0]);
}

#[test]
fn two_control_planes_and_a_directory_are_followed_together() {
    let planes = [ControlPlane::start(anywhere()), ControlPlane::start(anywhere())];
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
        envoy_xds: planes.iter().map(|plane| plane.url("").parse().unwrap()).collect(),
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
    assert_eq!(domains.map(|domain| told(&mut client, domain)), ["OK: OK/0", "OK: OK/1", "OK: OK/2"]);
    // What one of them sends must not be another's.
    let reason = two.refused("2", vec![domain("shop", 9)], "1");
    assert!(reason.contains("the domain `shop` is already in"), "{reason}");
    let reason = one.refused("2", vec![domain("local", 9)], "1");
    assert!(reason.contains("the domain `local` is already in"), "{reason}");
    // A change of the file keeps what was sent.
    server.reloading(|| replace(&file, config("other")));
    assert_eq!(told(&mut client, "shop"), "OK: OK/0");
    one.accepted("3", vec![domain("local", 9)]);
    assert_eq!(told(&mut client, "local"), "OK: OK/8", "it was gone for a while");
}
