//! The connections: how many, how slow they may be, and how they end.

use std::{convert::Infallible, io, sync::Arc, sync::atomic::Ordering, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, Version, header},
};
use hyper::{
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use super::{
    MAX_BODY,
    problem::Problem,
    slots::{Admission, Calls, Slots},
    write_deadline::WriteDeadline,
};
use crate::{
    locks::Locks,
    metrics::HttpStats,
    once_a_minute::OnceAMinute,
    peers::Peers,
    service::Service,
    tls::{Above, Stream},
};

/// How long a client may take to send a request's head, and how long a connection may wait between requests.
const HEAD_TIME: Duration = Duration::from_mins(1);
/// The same on a spare slot, which is for whoever asks at once.
const SPARE_HEAD_TIME: Duration = Duration::from_secs(5);
/// What a connection may hold of a head, or of a body on its way.
const BUFFER: usize = 16 * 1024;
/// Requests that one HTTP/2 connection may have under way.
const MAX_STREAMS: u32 = 100;
/// Streams that a client may open and reset before they are served; beyond that the connection is closed.
const MAX_RESETS: usize = 100;
/// Bytes of all header fields of a request over HTTP/2.
const MAX_HEADERS: u32 = 16 * 1024;
/// Bytes of all bodies of an HTTP/2 connection that are taken before they are read.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How often an HTTP/2 connection is asked whether its client is still there, and how long that may take.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(20);
/// When the system has no descriptor to give, how long until it is asked again.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// What is served on a spare slot.
const ON_SPARE_SLOTS: [&str; 4] = ["/healthcheck", "/healthz", "/readyz", "/metrics"];

/// How the listener behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpConfig {
    /// What it is called in the log.
    pub name: &'static str,
    /// Beyond so many the one that has been idle longest gives way.
    pub max_connections: usize,
    /// Beyond so many of one client's its new ones are closed.
    pub max_per_peer: Option<usize>,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
}

/// The names in the certificate of a connection's client, for its requests.
#[derive(Clone, Debug)]
pub(super) struct Certificate(pub Arc<[String]>);

/// Serves until `stop` says so, and then until every request that has begun is answered. Dropped, it cuts off all
/// connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    locks: Locks,
    service: Arc<Service>,
    stats: Arc<HttpStats>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let slots = Slots::new(config.max_connections);
    let peers = Peers::new(config.max_per_peer);
    let full = OnceAMinute::default();
    let (http, spare_http) = (builder(HEAD_TIME), builder(SPARE_HEAD_TIME));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Takes note of those that have ended.
            Some(_) = connections.join_next() => continue,
            // An error means that whoever could stop the server is gone: then it stops, too.
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(listener = config.name, %error, "cannot accept HTTP connections; trying again in a second (are the open files used up?)");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Ok(of_peer) = peers.enter(peer.ip()) else {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let admission = slots.admit();
        if admission.as_ref().is_none_or(|given| given.evicted || given.slot.is_spare)
            && full.is_due(service.now())
        {
            tracing::warn!(
                listener = config.name,
                max_connections = config.max_connections,
                "all HTTP connections are in use: each new one closes the one that has been idle longest, and while all are \
                 busy only health checks and metrics are answered; raise --max-connections, or find out who holds them",
            );
        }
        let Some(Admission { slot, evicted }) = admission else {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        stats.evicted.fetch_add(u64::from(evicted), Ordering::Relaxed);
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection dropped");
            continue;
        }
        stats.accepted.fetch_add(1, Ordering::Relaxed);
        let (http, idle_time) =
            if slot.is_spare { (spare_http.clone(), SPARE_HEAD_TIME) } else { (http.clone(), HEAD_TIME) };
        let calls = Arc::new(Calls::new(slot));
        let give_up = |stream: &TcpStream| {
            // What the client has not taken is dropped with the connection, not kept by the system for it.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        let io = WriteDeadline::new(stream, config.write_timeout, stop.clone(), give_up);
        let (router, tls) = (router.clone(), locks.config(Above::Http));
        let (stats, watcher) = (Arc::clone(&stats), graceful.watcher());
        connections.spawn(async move {
            stats.connections.fetch_add(1, Ordering::Relaxed);
            let its = Arc::clone(&calls);
            let served = async {
                let stream = Stream::begin(io, tls).await.inspect_err(|_| {
                    stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                })?;
                let certificate = stream.names().map(Certificate);
                let connection =
                    http.serve_connection(TokioIo::new(stream), edge(router, its, certificate));
                watcher.watch(connection).await.map_err(io::Error::other)
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection gives way to a new one"),
                // HTTP/1 has this deadline itself. The choice between the versions and HTTP/2 have none.
                () = calls.are_absent_for(idle_time) => tracing::debug!(%peer, "connection was idle for too long"),
            }
            drop(of_peer);
            stats.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// HTTP/1.1 and HTTP/2, whichever the client begins with, and what a client may do to a connection.
fn builder(head_time: Duration) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(BUFFER);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(MAX_BODY as u32)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(BUFFER)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIME);
    http
}

/// What each request passes before it reaches its route.
fn edge(
    router: Router,
    calls: Arc<Calls>,
    certificate: Option<Certificate>,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Send {
    let router = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        let (router, calls) = (router.clone(), Arc::clone(&calls));
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        async move {
            let _under_way = calls.begin();
            let is_spare = calls.slot.is_spare;
            let version = request.version();
            let mut response = match refuse(&request, is_spare) {
                Some(problem) => problem.into_response(),
                None => router.call(request).await?,
            };
            if is_spare && version != Version::HTTP_2 {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
    })
}

/// What is refused whatever the route.
fn refuse(request: &Request<Incoming>, is_spare: bool) -> Option<Problem> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        let detail = "an HTTP/1.1 request must have exactly one Host field";
        return Some(Problem::new(StatusCode::BAD_REQUEST, "Host missing or repeated", detail));
    }
    if is_spare && !ON_SPARE_SLOTS.contains(&request.uri().path()) {
        let detail = "all connections are in use; ask again later, or raise --max-connections";
        return Some(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too many connections", detail));
    }
    None
}
