//! The connections: their number, their time limits, and how they end.

use std::{
    convert::Infallible,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, Request, Response, StatusCode, Version, header},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use hyper::{
    body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tidegate_headers::retry_after;
use tidegate_listen::{
    connections::{Accepted, Acceptor, Call, Calls, ControlFrames, Responses},
    credentials::Certificate,
    security::ListenerSecurity,
    strangers::Strangers,
    tls::{self, Above},
};
use tidegate_service::observe::metrics::ConnectionStats;
use tokio::sync::watch;

use super::{MAX_BODY, problem::Problem, routes::Paths};

/// How long a client may take to send the head of a request, and how long a connection may wait
/// between requests.
const HEAD_TIME: Duration = Duration::from_mins(1);
/// The same on a spare slot, which is for clients that send their request immediately.
const SPARE_HEAD_TIME: Duration = Duration::from_secs(5);
/// The buffer of a connection for a head, or for a body in progress.
const BUFFER: usize = 16 * 1024;
/// The maximum number of concurrent requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 100;
/// The maximum number of streams that a client may open and reset before they are served. Above it,
/// the connection is closed.
const MAX_RESETS: usize = 20;
/// The maximum size of a request's header fields over HTTP/2, in bytes.
const MAX_HEADERS: u32 = 16 * 1024;
/// How many bytes of all bodies of an HTTP/2 connection are buffered before they are read.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How often the client of an HTTP/2 connection is pinged, and how long the reply may take.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(20);
/// The paths that are served on a spare slot.
const ON_SPARE_SLOTS: [&str; 4] = ["/healthcheck", "/healthz", "/readyz", "/metrics"];

/// Serves until `stop` is set, and then until every request in progress is answered. Dropping the
/// future closes all connections.
pub(crate) async fn serve(
    connections: Acceptor,
    paths: Paths,
    security: ListenerSecurity,
    stats: Arc<ConnectionStats>,
    stop: watch::Receiver<bool>,
) {
    let paths = Arc::new(paths);
    let (http, spare_http) = (builder(HEAD_TIME), builder(SPARE_HEAD_TIME));
    let strangers = Arc::new(Strangers::new(connections.bounds.name));
    let serve = |accepted| {
        let Accepted {
            io,
            calls,
            responses,
            peer,
        } = accepted;
        let (http, idle_time) = if calls.slot.is_spare {
            (spare_http.clone(), SPARE_HEAD_TIME)
        } else {
            (http.clone(), HEAD_TIME)
        };
        let (paths, tls) = (Arc::clone(&paths), security.config(Above::Http));
        let (stats, strangers, mut stop) =
            (Arc::clone(&stats), Arc::clone(&strangers), stop.clone());
        async move {
            let (its, frames) = (Arc::clone(&calls), Arc::new(ControlFrames::default()));
            let served = async {
                let stream = tls::begin(io, tls).await.inspect_err(|_| {
                    stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                })?;
                let certificate = tls::client_names(&stream).map(Certificate);
                // One reference for each connection: its requests then change a count that no other
                // thread changes.
                let of = Arc::new(Connection {
                    paths,
                    calls: its,
                    responses,
                    certificate,
                    strangers,
                    client: peer.ip(),
                    is_http2: AtomicBool::new(false),
                });
                let its = Arc::clone(&of);
                let answer = service_fn(move |request| answer(Arc::clone(&its), request));
                let mut connection =
                    pin!(http.serve_connection(TokioIo::new(frames.watch(stream)), answer));
                // From before the first answer on, as its client may order the stop.
                let leaves = of.leaves();
                // In a list, as below.
                let mut ends = FuturesUnordered::from_iter([async {
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => {}
                        () = leaves => {}
                    }
                }]);
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => return ended.map_err(io::Error::other),
                    Some(()) = ends.next() => {}
                }
                connection.as_mut().graceful_shutdown();
                connection.await.map_err(io::Error::other)
            };
            // In a list, which polls it when it was woken. To ask it at each request takes a
            // fiftieth of a request's instructions.
            let mut closed = FuturesUnordered::from_iter([async {
                tokio::select! {
                    () = calls.slot.must_give_way() => "idle connection closed for a new one",
                    // HTTP/1 has its own idle timeout. The phase that selects the version, and
                    // HTTP/2, have none.
                    () = calls.are_absent_for(idle_time) => "connection was idle for too long",
                    () = frames.are_too_many() => "too many HTTP/2 frames without a request",
                }
            }]);
            tokio::select! {
                biased;
                ended = served => if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended");
                },
                Some(why) = closed.next() => tracing::debug!(%peer, why, "connection closed"),
            }
        }
    };
    connections.serve(serve).await;
}

/// Serves HTTP/1.1 or HTTP/2, as the client begins, within the bounds of a connection.
fn builder(head_time: Duration) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(BUFFER)
        // A client may say that it sends nothing more, and still waits for its answer.
        .half_close(true)
        // Answers are short: to copy a body behind its head costs less than a vectored write.
        .writev(false);
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

/// The address that a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub IpAddr);

/// What the requests of a connection share.
struct Connection {
    paths: Arc<Paths>,
    calls: Arc<Calls>,
    responses: Arc<Responses>,
    certificate: Option<Certificate>,
    strangers: Arc<Strangers>,
    client: IpAddr,
    is_http2: AtomicBool,
}

impl Connection {
    /// Waits until the server stops soon, for an HTTP/2 connection: with GOAWAY its client opens
    /// the next one at another server. Over HTTP/1.1 the next response says so.
    fn leaves(&self) -> impl Future<Output = ()> {
        let stops = self.paths.stops();
        async {
            stops.await;
            // Relaxed: a request that comes now is served either way.
            if !self.is_http2.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Handles what all routes have in common before a request reaches its route.
async fn answer(
    of: Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let Connection {
        paths,
        calls,
        responses,
        certificate,
        strangers,
        client,
        is_http2,
    } = &*of;
    if let Some(certificate) = certificate {
        request.extensions_mut().insert(certificate.clone());
    }
    if paths.count_clients() {
        request.extensions_mut().insert(ClientAddress(*client));
    }
    let call = calls.begin();
    let is_spare = calls.slot.is_spare;
    let version = request.version();
    if version == Version::HTTP_2 && !is_http2.load(Ordering::Relaxed) {
        is_http2.store(true, Ordering::Relaxed);
    }
    let has_credentials = request.headers().contains_key(header::AUTHORIZATION);
    let mut response = match refuse(&request, is_spare) {
        Some(problem) => problem.into_response(),
        None => paths.answer(request, responses).await,
    };
    let is_wrong = has_credentials && response.status() == StatusCode::UNAUTHORIZED;
    let guesses = is_wrong.then(|| strangers.failed(*client)).flatten();
    if let Some(wait) = guesses {
        response = Problem::guesses(wait).into_response();
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, retry_after(wait).into());
    }
    let closes = is_spare || guesses.is_some() || paths.is_stopping();
    if closes && version != Version::HTTP_2 {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    responses.ready();
    let is_long = response
        .body()
        .size_hint()
        .exact()
        .is_none_or(|bytes| bytes > BUFFER as u64);
    Ok(if is_long {
        response.map(|body| Body::new(Lasting::new(body, call)))
    } else {
        response
    })
}

/// The body of a response that counts as a request in progress until it is written: a download or a
/// stream. It is handed on in pieces of at most [`BUFFER`], so that not more than two of them are
/// left to write when it ends.
struct Lasting {
    body: Body,
    /// The rest of a frame.
    rest: Bytes,
    _call: Call,
}

impl Lasting {
    fn new(body: Body, call: Call) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _call: call,
        }
    }
}

impl HttpBody for Lasting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context))
                .map(|frame| frame.map(Frame::into_data))
            {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.len().min(BUFFER);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

/// Requests that are refused on every route.
fn refuse(request: &Request<Incoming>, is_spare: bool) -> Option<Problem> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        let detail = "an HTTP/1.1 request must have exactly one Host field";
        return Some(Problem::new(
            StatusCode::BAD_REQUEST,
            "Host missing or repeated",
            detail,
        ));
    }
    if is_spare && !ON_SPARE_SLOTS.contains(&request.uri().path()) {
        let detail = "all connections are in use; retry later or raise --max-connections";
        return Some(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many connections",
            detail,
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use tidegate_listen::connections::Slots;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_download_that_lasts_longer_than_a_connection_may_be_idle_is_complete() {
        const LENGTH: usize = 300 * 1024;
        let calls = Arc::new(Calls::new(Slots::new(1).admit().unwrap().slot));
        let (mut client, server) = duplex(1024);
        let served = tokio::spawn(async move {
            let its = Arc::clone(&calls);
            let answer = service_fn(move |_: Request<Incoming>| {
                let lasting = Lasting::new(Body::from(vec![b'x'; LENGTH]), its.begin());
                async { Ok::<_, Infallible>(Response::new(Body::new(lasting))) }
            });
            let http = builder(HEAD_TIME);
            tokio::select! {
                _ = http.serve_connection(TokioIo::new(server), answer) => {}
                () = calls.are_absent_for(HEAD_TIME) => {}
            }
        });
        let began = Instant::now();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let (mut seen, mut bytes) = (0, [0; 1024]);
        while seen < LENGTH {
            let read = client.read(&mut bytes).await.unwrap();
            assert_ne!(read, 0, "cut after {seen} bytes");
            seen += read;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(began.elapsed() > 4 * HEAD_TIME);
        served.await.unwrap();
        assert!(began.elapsed() < 8 * HEAD_TIME, "it ends once it is idle");
    }
}
