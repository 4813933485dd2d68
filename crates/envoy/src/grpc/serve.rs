//! The connections: their number, their bounds, and how they end.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use hyper::{
    body::Incoming, http::Request, rt::Executor, server::conn::http2, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_listen::{
    connections::{Accepted, Acceptor, ControlFrames},
    security::ListenerSecurity,
    strangers::Strangers,
    tls::{self, Above},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    Shared, health,
    rlqs::{self, Quotas},
    routes::{Caller, Routes},
};

/// The maximum number of concurrent calls of a connection.
const MAX_STREAMS: u32 = 1_000;
/// The maximum number of streams that a client may open and reset before they are served. Above it,
/// the connection is closed.
const MAX_RESETS: usize = 20;
/// The maximum size of a call's header fields, in bytes.
const MAX_HEADERS: u32 = 16 * 1024;
/// How many bytes of a call, and of all calls of a connection, are buffered before they are read.
const CALL_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The maximum number of bytes of an answer that wait for the client.
const SEND_BUFFER: usize = 64 * 1024;
/// How often the client is pinged, and how long the reply may take.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(20);
/// How long a client may take from the connection to its first call. Later it may be silent as long
/// as it answers the above: proxies keep their connections.
const FIRST_CALL: Duration = Duration::from_secs(15);

/// How old a connection may become before the client is asked for another one, and how long the
/// calls in progress may then take.
#[derive(Clone, Copy, Debug)]
pub struct MaxAge {
    pub age: Duration,
    pub grace: Duration,
}

impl MaxAge {
    /// Waits up to a tenth less or more, so that connections which began together do not end
    /// together.
    async fn reached(max: Option<Self>, peer: SocketAddr) -> Duration {
        let Some(Self { age, grace }) = max else {
            return std::future::pending().await;
        };
        let part = (RandomState::new().hash_one(peer) % 1_000) as u32;
        tokio::time::sleep((age / 10 * 9).saturating_add(age / 5_000 * part)).await;
        grace
    }
}

/// Serves until `stop` is set, and then until every call in progress is answered. Dropping the
/// future closes all connections.
pub async fn serve(
    connections: Acceptor,
    shared: Shared,
    security: ListenerSecurity,
    max_age: Option<MaxAge>,
    stop: watch::Receiver<bool>,
) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let service = Arc::clone(shared.rates.service());
    let its_service = Arc::clone(&service);
    let mut serving = JoinSet::new();
    serving.spawn(health::report(reporter, Arc::clone(&service), stop.clone()));
    let stats = Arc::clone(&shared.stats);
    let (events, reports) = mpsc::channel(rlqs::EVENTS);
    serving.spawn(rlqs::assign(
        service,
        Arc::clone(&stats),
        reports,
        stop.clone(),
    ));
    let routes = Arc::new(Routes::new(
        shared,
        Quotas::new(events),
        health,
        Strangers::new(connections.bounds.name),
    ));
    let http = builder();
    let serve = |Accepted {
                     io, calls, peer, ..
                 }| {
        let (routes, http, tls) = (
            Arc::clone(&routes),
            http.clone(),
            security.config(Above::Grpc),
        );
        let (stats, mut stop) = (Arc::clone(&stats), stop.clone());
        // From before the first answer on, as its client may order the stop.
        let stops = its_service.stops();
        async move {
            let (its, frames) = (Arc::clone(&calls), Arc::new(ControlFrames::default()));
            let served = async {
                let stream = tls::begin(io, tls).await?;
                let names = tls::client_names(&stream);
                let call = service_fn(move |request: Request<Incoming>| {
                    let (routes, calls, names) =
                        (Arc::clone(&routes), Arc::clone(&its), names.clone());
                    async move {
                        let _under_way = calls.begin();
                        let (is_spare, names) = (calls.slot.is_spare, names.as_deref());
                        routes
                            .call(
                                request,
                                Caller {
                                    is_spare,
                                    names,
                                    client: peer.ip(),
                                },
                            )
                            .await
                    }
                });
                let mut connection =
                    pin!(http.serve_connection(TokioIo::new(frames.watch(stream)), call));
                // In a list, which polls it when it was woken, and not at each call.
                let mut ends = FuturesUnordered::from_iter([async move {
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => Duration::MAX,
                        // With GOAWAY the client opens its next connection at another server.
                        () = stops => Duration::MAX,
                        grace = MaxAge::reached(max_age, peer) => grace,
                    }
                }]);
                let grace = tokio::select! {
                    ended = connection.as_mut() => return ended.map_err(io::Error::other),
                    Some(grace) = ends.next() => grace,
                };
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(grace, connection)
                    .await
                    .unwrap_or(Ok(()))
                    .map_err(io::Error::other)
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection closed for a new one"),
                () = frames.are_too_many() => {
                    stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, "too many HTTP/2 frames without a call");
                }
                () = calls.never_begin(FIRST_CALL) => tracing::debug!(%peer, "connection without a call"),
            }
        }
    };
    connections.serve(serve).await;
}

/// Polls each call once before it gets a task: where the limits are in memory that is all it takes.
/// The second poll, in the task, registers the wakers that count.
#[derive(Clone, Copy, Debug)]
struct OnceAtOnce;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OnceAtOnce {
    fn execute(&self, future: F) {
        let mut future = Box::pin(future);
        if future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            tokio::spawn(future);
        }
    }
}

fn builder() -> http2::Builder<OnceAtOnce> {
    let mut http = http2::Builder::new(OnceAtOnce);
    http.timer(TokioTimer::new())
        // Clients of gRPC do not read the date.
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIME);
    http
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::Response;
    use tidegate_listen::connections::{Calls, Slots};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_without_a_word_is_found_out_within_a_minute() {
        // Time jumps to the next deadline as soon as nothing else is left to do.
        let (mut client, server) = duplex(1 << 16);
        let answer =
            |_: Request<Incoming>| async { Ok::<_, Infallible>(Response::new(String::new())) };
        let served =
            tokio::spawn(builder().serve_connection(TokioIo::new(server), service_fn(answer)));
        let began = Instant::now();
        // The beginning of HTTP/2, and then nothing: no answer to a ping either.
        client
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await
            .unwrap();
        assert!(served.await.unwrap().is_err());
        assert!((KEEP_ALIVE..=KEEP_ALIVE + 2 * KEEP_ALIVE_TIME).contains(&began.elapsed()));
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert!(!heard.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_call_ends_and_one_with_a_call_may_be_silent() {
        let slots = Slots::new(2);
        let calls = || Arc::new(Calls::new(slots.admit().unwrap().slot));
        let (silent, asked) = (calls(), calls());
        drop(asked.begin());
        tokio::select! {
            () = silent.never_begin(FIRST_CALL) => {}
            () = asked.never_begin(FIRST_CALL) => panic!("it has asked"),
        }
    }
}
