//! The connections: how many, how slow they may be, and how they end.

use std::{convert::Infallible, sync::Arc, sync::atomic::Ordering, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, Version, header},
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use super::{
    problem::Problem,
    slots::{Admission, Slot, Slots},
    write_deadline::WriteDeadline,
};
use crate::{metrics::HttpStats, once_a_minute::OnceAMinute, service::Service};

/// How long a client may take to send a request's head, and how long a connection may wait between requests.
const HEAD_TIME: Duration = Duration::from_mins(1);
/// The same on a spare slot, which is for whoever asks at once.
const SPARE_HEAD_TIME: Duration = Duration::from_secs(5);
/// What a connection may hold of a head, or of a body on its way.
const BUFFER: usize = 16 * 1024;
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
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
}

/// Serves until `stop` says so, and then until every request that has begun is answered. Dropped, it cuts off all
/// connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    service: Arc<Service>,
    stats: Arc<HttpStats>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let slots = Slots::new(config.max_connections);
    let full = OnceAMinute::default();
    let builder = |head_time| {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(BUFFER);
        http
    };
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
        let http = if slot.is_spare { &spare_http } else { &http };
        let slot = Arc::new(slot);
        let give_up = |stream: &TcpStream| {
            // What the client has not taken is dropped with the connection, not kept by the system for it.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        let io = TokioIo::new(WriteDeadline::new(stream, config.write_timeout, stop.clone(), give_up));
        let connection = http.serve_connection(io, edge(router.clone(), Arc::clone(&slot)));
        let connection = graceful.watch(connection);
        let stats = Arc::clone(&stats);
        connections.spawn(async move {
            stats.connections.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = slot.must_give_way() => tracing::debug!(%peer, "idle connection gives way to a new one"),
            }
            stats.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// What each request passes before it reaches its route.
fn edge(
    router: Router,
    slot: Arc<Slot>,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Send {
    let router = TowerToHyperService::new(router);
    service_fn(move |request: Request<Incoming>| {
        let (router, slot) = (router.clone(), Arc::clone(&slot));
        async move {
            let _busy = slot.busy();
            let mut response = match refuse(&request, slot.is_spare) {
                Some(problem) => problem.into_response(),
                None => router.call(request).await?,
            };
            if slot.is_spare {
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
