//! Services behind a gate, with a manual clock.
#![cfg(feature = "flow")]

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{executor::block_on, future::poll_immediate};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tidegate_core::Nanos;
use tidegate_flow::{
    BreakerState, Gate, ManualTimer, Resource,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, Behaviour, BreakerRule, FlowRule, HotParamRule,
        IsolationRule, ParamKey, Rules, Trip, Vegas,
    },
};
use tidegate_tower::{
    Body, GateBuilder, GateLayer, Gated,
    key::{Fixed, Header, Path},
};
use tower::{Layer, Service, ServiceExt, service_fn};

fn gate(rules: Rules) -> (Gate, ManualTimer) {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate, timer)
}

fn builder(gate: &Gate) -> GateBuilder {
    GateLayer::builder(gate, Fixed::new("r"))
}

fn asked(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).unwrap()
}

/// Responds with the status that the path names.
async fn as_asked(request: Request<()>) -> Result<Response<String>, &'static str> {
    let mut response = Response::new("hello".to_owned());
    *response.status_mut() = match request.uri().path() {
        "/error" => return Err("no"),
        "/500" => StatusCode::INTERNAL_SERVER_ERROR,
        "/404" => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    Ok(response)
}

fn ask<S>(service: &Gated<S>, path: &str) -> Result<Response<Body<String>>, S::Error>
where
    S: Service<Request<()>, Response = Response<String>, Future: Send> + Clone + Send + 'static,
{
    block_on(service.clone().oneshot(asked(path)))
}

fn errors_trip(count: u64) -> Rules {
    let trip = Trip::ErrorCount { count };
    Rules::from(vec![
        BreakerRule::new("r", trip, Duration::from_secs(5)).min_calls(1),
    ])
}

fn state(r: &Resource) -> BreakerState {
    r.breakers()[0].1
}

#[test]
fn an_entry_ends_with_the_response_body_and_its_time_counts_until_then() {
    let (gate, timer) = gate(Rules::from(vec![IsolationRule::new("r", 1)]));
    let (service, r) = (
        builder(&gate).build().layer(service_fn(as_asked)),
        gate.resource("r"),
    );
    let held = ask(&service, "/").unwrap();
    let blocked = ask(&service, "/").unwrap();
    assert_eq!(blocked.status(), 503);
    assert_eq!(
        blocked.headers()["content-type"],
        "application/problem+json"
    );
    assert_eq!((r.node().in_flight(), gate.inbound().in_flight()), (1, 1));
    timer.advance(Duration::from_millis(30));
    assert_eq!(
        block_on(held.into_body().collect()).unwrap().to_bytes(),
        "hello"
    );
    assert_eq!(r.node().in_flight(), 0);
    let totals = r.node().counts(gate.now());
    assert_eq!((totals.success, totals.rt), (1, Duration::from_millis(30)));
}

#[test]
fn failures_are_those_of_the_service_and_statuses_from_500_on() {
    let (gate, _) = gate(errors_trip(1));
    let (service, r) = (
        builder(&gate).build().layer(service_fn(as_asked)),
        gate.resource("r"),
    );
    drop(ask(&service, "/404").unwrap());
    drop(ask(&service, "/500").unwrap());
    assert_eq!(state(&r), BreakerState::Closed);
    assert_eq!(ask(&service, "/error").unwrap_err(), "no");
    assert_eq!(state(&r), BreakerState::Open);
    let refused = ask(&service, "/").unwrap();
    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["retry-after"].to_str().unwrap()
        ),
        (503, "5")
    );
}

#[test]
fn the_caller_says_what_a_failure_is_and_how_a_block_is_answered() {
    let (gate, _) = gate(errors_trip(0));
    let layer = builder(&gate)
        .failed_when(|status: StatusCode, _: &HeaderMap| status == StatusCode::NOT_FOUND)
        .on_block(|blocked, request| {
            let text = format!("{} at {}", blocked.kind(), request.uri.path());
            Response::builder()
                .status(418)
                .header("retry-after", "7")
                .body(text)
                .unwrap()
        })
        .build();
    let (service, r) = (layer.layer(service_fn(as_asked)), gate.resource("r"));
    drop(ask(&service, "/500").unwrap());
    assert_eq!(state(&r), BreakerState::Closed);
    drop(ask(&service, "/404").unwrap());
    let refused = ask(&service, "/here").unwrap();
    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["retry-after"].to_str().unwrap()
        ),
        (418, "7")
    );
    assert_eq!(
        block_on(refused.into_body().collect()).unwrap().to_bytes(),
        "breaker at /here"
    );
}

type Frames = Vec<Result<Frame<Bytes>, &'static str>>;
type Streamed = StreamBody<futures::stream::Iter<<Frames as IntoIterator>::IntoIter>>;

/// A service whose body consists of these frames.
fn streams(
    frames: impl Fn() -> Frames + Clone + Send + 'static,
) -> impl Service<Request<()>, Response = Response<Streamed>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    service_fn(move |_: Request<()>| {
        let mut response = Response::new(StreamBody::new(futures::stream::iter(frames())));
        response
            .headers_mut()
            .insert("content-type", "application/grpc".parse().unwrap());
        std::future::ready(Ok::<_, Infallible>(response))
    })
}

#[test]
fn a_failing_body_or_grpc_status_is_a_failure_and_a_dropped_body_is_not() {
    let status = |code: &str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        Ok(Frame::trailers(trailers))
    };
    let data = || Ok(Frame::data(Bytes::from_static(b"piece")));
    let failed = |frames: Frames, read: usize| {
        let (gate, _) = gate(errors_trip(0));
        let frames = std::sync::Arc::new(std::sync::Mutex::new(Some(frames)));
        let service = builder(&gate)
            .build()
            .layer(streams(move || frames.lock().unwrap().take().unwrap()));
        let mut body = block_on(service.oneshot(asked("/"))).unwrap().into_body();
        for _ in 0..read {
            let _ = block_on(body.frame());
        }
        drop(body);
        let r = gate.resource("r");
        assert_eq!(r.node().in_flight(), 0);
        (
            state(&r) == BreakerState::Open,
            r.node().counts(gate.now()).success,
        )
    };
    assert_eq!(failed(vec![data(), status("0")], 3), (false, 1));
    assert!(failed(vec![data(), status("14")], 3).0);
    // `INVALID_ARGUMENT` is the client's mistake.
    assert!(!failed(vec![data(), status("3")], 3).0);
    assert!(failed(vec![data(), Err("cut")], 2).0);
    // One body is dropped in the middle, and the other is never polled.
    assert!(!failed(vec![data(), status("14")], 1).0);
    assert_eq!(failed(vec![data()], 0), (false, 1));
}

#[test]
fn a_cancelled_request_leaves_flight_and_is_not_judged() {
    let (gate, _) = gate(errors_trip(0));
    let hangs =
        service_fn(|_: Request<()>| std::future::pending::<Result<Response<String>, Infallible>>());
    let service = builder(&gate).build().layer(hangs);
    let mut call = Box::pin(service.oneshot(asked("/")));
    assert!(block_on(poll_immediate(&mut call)).is_none());
    let r = gate.resource("r");
    assert_eq!(r.node().in_flight(), 1);
    drop(call);
    assert_eq!((r.node().in_flight(), state(&r)), (0, BreakerState::Closed));
}

#[test]
fn a_throttled_request_waits_for_its_turn_without_holding_a_thread() {
    let paced = FlowRule::new("r", 10).behaviour(Behaviour::Throttle {
        max_wait: Duration::from_secs(1),
    });
    let (gate, timer) = gate(Rules::from(vec![paced]));
    let service = builder(&gate).build().layer(service_fn(as_asked));
    drop(ask(&service, "/").unwrap());
    let mut second = Box::pin(service.clone().oneshot(asked("/")));
    assert!(block_on(poll_immediate(&mut second)).is_none());
    timer.advance(Duration::from_nanos(99_999_999));
    assert!(block_on(poll_immediate(&mut second)).is_none());
    timer.advance(Duration::from_nanos(1));
    assert_eq!(block_on(second).unwrap().status(), 200);
}

#[test]
fn origins_arguments_and_paths_reach_the_rules() {
    let hot = HotParamRule::new("/hot", ParamKey::Index(0), 1).duration(Duration::from_mins(1));
    let (gate, _) = gate(Rules::from(vec![hot]));
    let layer = GateLayer::builder(&gate, Path)
        .origin(Header::named("x-from"))
        .arg(Header::named("x-user"));
    let service = layer.build().layer(service_fn(as_asked));
    let status = |path: &str, user: &str| {
        let request = Request::builder()
            .uri(path)
            .header("x-from", "mobile")
            .header("x-user", user);
        block_on(service.clone().oneshot(request.body(()).unwrap()))
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(
        [
            status("/hot", "a"),
            status("/hot", "a"),
            status("/hot", "b")
        ],
        [200, 429, 200]
    );
    assert_eq!([status("/cold", "a"), status("/cold", "a")], [200, 200]);
    assert!(gate.resource("/hot").origin("mobile").is_some());
}

#[test]
fn rules_loaded_later_apply_and_adaptive_rules_bound_requests_in_flight() {
    let (gate, _) = gate(Rules::default());
    let service = builder(&gate).build().layer(service_fn(as_asked));
    let held: Vec<_> = (0..3).map(|_| ask(&service, "/").unwrap()).collect();
    assert!(held.iter().all(|response| response.status() == 200));
    let few = AdaptiveRule::new("r", AdaptiveAlgorithm::Vegas(Vegas::default().initial(2)));
    gate.load(Rules::from(vec![few])).unwrap();
    assert_eq!(ask(&service, "/").unwrap().status(), 503);
    drop(held);
    let two = [ask(&service, "/").unwrap(), ask(&service, "/").unwrap()];
    assert!(two.iter().all(|response| response.status() == 200));
    assert_eq!(ask(&service, "/").unwrap().status(), 503);
}

#[test]
fn a_request_without_a_resource_is_refused() {
    let (gate, _) = gate(Rules::default());
    let service = GateLayer::new(&gate, Header::named("x-resource")).layer(service_fn(as_asked));
    assert_eq!(ask(&service, "/").unwrap().status(), 500);
}
