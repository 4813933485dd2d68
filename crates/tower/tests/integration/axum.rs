//! The middleware in a real axum server.
#![cfg(feature = "axum")]

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use axum::{Extension, Router, body::Body, extract::connect_info::MockConnectInfo, routing::get};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
use tidegate_tower::{
    InFlight, RateLimitLayer,
    key::{Client, Fixed, Peer, Route},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt, service_fn};

#[path = "../../examples/axum_limit.rs"]
#[allow(dead_code)]
mod example;

/// Serves on a free local port.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// The full response to a GET.
async fn get_from(address: SocketAddr, from: &str, path: &str) -> String {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::new(from.parse().unwrap(), 0))
        .unwrap();
    let mut stream: TcpStream = socket.connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn status(answer: &str) -> &str {
    &answer["HTTP/1.1 ".len()..][..3]
}

#[tokio::test]
async fn the_peer_address_of_axums_connect_info_is_the_key() {
    let limiter = KeyedLimiter::new(Policy::sliding_log("1/1h".parse().unwrap()).unwrap()).unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    let address = serve(app.layer(RateLimitLayer::new(limiter, Peer::address()))).await;
    let mut statuses = Vec::new();
    // All of 127.0.0.0/8 is this machine.
    for from in ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"] {
        statuses.push(status(&get_from(address, from, "/").await).to_owned());
    }
    assert_eq!(statuses, ["200", "429", "200", "429"]);
}

#[tokio::test]
async fn without_connect_info_a_request_has_no_peer_key() {
    let limiter = KeyedLimiter::new(Policy::sliding_log("1/1h".parse().unwrap()).unwrap()).unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer(RateLimitLayer::new(limiter, Peer::address()));
    let ask = |app: Router| async { app.oneshot(Request::new(Body::empty())).await.unwrap() };
    let refused = ask(app.clone()).await;
    assert_eq!(refused.status(), 500);
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(
        text.contains("could not determine the key of this request"),
        "{text}"
    );
    // Axum's tests set the peer address in this way.
    let peer: SocketAddr = "192.0.2.7:80".parse().unwrap();
    assert_eq!(ask(app.layer(MockConnectInfo(peer))).await.status(), 200);
}

#[tokio::test]
async fn permits_of_a_server_end_with_its_responses() {
    let seats = Limiter::new(Policy::concurrency(2));
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route("/none", get(async || ()));
    let address = serve(app.layer(RateLimitLayer::new(seats, Fixed::new("")))).await;
    for path in ["/", "/none", "/", "/lost", "/none", "/"] {
        let answer = get_from(address, "127.0.0.1", path).await;
        assert_eq!(
            status(&answer),
            if path == "/lost" { "404" } else { "200" },
            "{path}"
        );
    }
}

/// The body in frames of one byte, so that it has no length.
fn streamed(text: &'static str) -> Body {
    let frames = text
        .chars()
        .map(|letter| Ok::<_, Infallible>(Bytes::from(letter.to_string())));
    Body::from_stream(futures::stream::iter(frames))
}

#[tokio::test]
async fn a_layer_of_the_same_body_passes_bodies_on_refuses_and_gives_permits_back() {
    let seats = Arc::new(Limiter::new(Policy::concurrency(1)));
    let layer = RateLimitLayer::new(Arc::clone(&seats), Fixed::new("")).same_body();
    let hello =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(streamed("abc"))));
    let service = layer.layer(hello);
    let ask =
        async || -> Response<Body> { service.clone().oneshot(Request::new(())).await.unwrap() };
    assert_eq!(
        ask().await.into_body().collect().await.unwrap().to_bytes(),
        "abc"
    );
    // A body that is dropped in its middle gives the permit back, and not before.
    let mut body = ask().await.into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "a"
    );
    let denied = ask().await;
    assert_eq!(
        (denied.status().as_u16(), seats.peek(0).remaining()),
        (429, 0)
    );
    assert!(denied.headers().contains_key("ratelimit"));
    let text = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"{\"type\":"), "{text:?}");
    drop(body);
    assert_eq!(seats.peek(0).remaining(), 1);
    // A rate holds nothing.
    let rate = Limiter::new(Policy::sliding_log("1/1h".parse().unwrap()).unwrap());
    let service = RateLimitLayer::new(rate, Fixed::new(""))
        .same_body()
        .layer(hello);
    let passed = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(passed.headers()["ratelimit"], "\"default\";r=0;t=3600");
    assert_eq!(
        passed.into_body().collect().await.unwrap().to_bytes(),
        "abc"
    );
    assert_eq!(
        service.oneshot(Request::new(())).await.unwrap().status(),
        429
    );
}

#[tokio::test]
async fn requests_of_one_route_template_share_a_key() {
    let limiter = KeyedLimiter::new(Policy::sliding_log("2/1h".parse().unwrap()).unwrap()).unwrap();
    let app = Router::new()
        .route("/users/{id}", get(async || "hello"))
        .route("/all", get(async || "all"));
    let app = app.layer(RateLimitLayer::new(limiter, Route));
    let mut statuses = Vec::new();
    for path in [
        "/users/1", "/users/2", "/users/3", "/all", "/lost", "/lost/1", "/lost/2",
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        statuses.push(
            app.clone()
                .oneshot(request)
                .await
                .unwrap()
                .status()
                .as_u16(),
        );
    }
    assert_eq!(statuses, [200, 200, 429, 200, 404, 404, 429]);
}

#[tokio::test]
async fn the_key_is_the_client_behind_a_trusted_proxy_and_the_peer_otherwise() {
    let limiter = KeyedLimiter::new(Policy::sliding_log("1/1h".parse().unwrap()).unwrap()).unwrap();
    let client = Client::trusting("10.0.0.0/8".parse().unwrap());
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(limiter, client));
    let ask = |peer: [u8; 4], forwarded: &'static str| {
        let app = app
            .clone()
            .layer(MockConnectInfo(SocketAddr::from((peer, 80))));
        let request = Request::get("/").header("x-forwarded-for", forwarded);
        let request = request.body(Body::empty()).unwrap();
        async { app.oneshot(request).await.unwrap().status().as_u16() }
    };
    assert_eq!(ask([10, 0, 0, 1], "192.0.2.7").await, 200);
    assert_eq!(ask([10, 0, 0, 2], "1.1.1.1, 192.0.2.7").await, 429);
    assert_eq!(ask([192, 0, 2, 8], "1.1.1.1").await, 200);
    assert_eq!(ask([192, 0, 2, 8], "1.1.1.2").await, 429);
}

#[tokio::test]
async fn the_example_limits_each_client() {
    let address = serve(example::app().unwrap()).await;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(status(&get_from(address, "127.0.0.1", "/").await).to_owned());
    }
    assert_eq!(statuses, ["200", "200", "200", "200", "200", "429"]);
    let other = get_from(address, "127.0.0.2", "/").await;
    assert!(
        other.contains("ratelimit-policy: \"client\";q=5;w=10, \"everybody\";q=20;w=10"),
        "{other}"
    );
}

/// Answers with 101 and returns what the connection sends, as long as it is open.
async fn echo(
    in_flight: Option<Extension<InFlight>>,
    mut request: axum::extract::Request,
) -> Response<Body> {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let (mut from, mut to) = tokio::io::split(hyper_util::rt::TokioIo::new(upgraded));
        let _ = tokio::io::copy(&mut from, &mut to).await;
        // The permits end with the connection. (The request has a clone of them as well.)
        drop((request, in_flight));
    });
    let answer = Response::builder().status(101);
    let answer = answer
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    answer.body(Body::empty()).unwrap()
}

/// Opens an upgraded connection. Returns the status, and the connection if it was upgraded.
async fn open(address: SocketAddr) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    if status(&head) != "101" {
        return Err(status(&head).to_owned());
    }
    stream.write_all(b"ping").await.unwrap();
    let mut pong = [0; 4];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"ping");
    Ok(stream)
}

#[tokio::test]
async fn an_upgraded_connection_is_in_flight_until_it_is_closed() {
    let outer = Arc::new(Limiter::new(Policy::concurrency(3)));
    let inner = Arc::new(KeyedLimiter::new(Policy::concurrency(2)).unwrap());
    let requests = Arc::new(Limiter::new(
        "sliding-log 100/1h".parse::<Policy>().unwrap(),
    ));
    let layer = RateLimitLayer::builder(Arc::clone(&inner), Fixed::new("k"))
        .and(Arc::clone(&requests), Fixed::new(""));
    let app = Router::new()
        .route("/", get(echo))
        .layer(layer.build())
        .layer(RateLimitLayer::new(Arc::clone(&outer), Fixed::new("")));
    let address = serve(app).await;
    let free = || [outer.peek(0).remaining(), inner.peek("k", 0).remaining()];
    for used in [2, 4] {
        let connections = [open(address).await.unwrap(), open(address).await.unwrap()];
        assert_eq!(free(), [1, 0]);
        assert_eq!(open(address).await.unwrap_err(), "429");
        assert_eq!(free(), [1, 0]);
        assert_eq!(requests.peek(0).remaining(), 100 - used);
        let [first, second] = connections;
        drop(first);
        until_free(|| free() == [2, 1]).await;
        drop(second);
        until_free(|| free() == [3, 2]).await;
    }
}

#[tokio::test]
async fn without_the_extension_or_an_upgrade_permits_end_with_the_response() {
    let limiter = Arc::new(Limiter::new(Policy::concurrency(1)));
    let handler = async |in_flight: Option<Extension<InFlight>>| in_flight.is_some().to_string();
    let app = Router::new()
        .route("/", get(handler))
        .layer(RateLimitLayer::new(Arc::clone(&limiter), Fixed::new("")));
    let address = serve(app).await;
    let answer = get_from(address, "127.0.0.1", "/").await;
    assert!(answer.ends_with("false"), "{answer}");
    until_free(|| limiter.peek(0).remaining() == 1).await;
    // The handler has it, and drops it.
    assert_eq!(open(address).await.unwrap_err(), "200");
    until_free(|| limiter.peek(0).remaining() == 1).await;
}

async fn until_free(is_free: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_free() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the permits did not return");
}
