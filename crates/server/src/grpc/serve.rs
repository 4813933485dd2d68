//! The connections: their number, their bounds, and how they end.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Duration,
};

use hyper::{body::Incoming, http::Request, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    Shared, health,
    rlqs::{self, Quotas},
    routes::Routes,
};
use crate::{
    http::{Admission, Calls, Slots, WriteDeadline},
    locks::Locks,
    once_a_minute::OnceAMinute,
    peers::Peers,
    tls::{Above, Stream},
};

/// The maximum number of concurrent calls of a connection.
const MAX_STREAMS: u32 = 1_000;
/// The maximum number of streams that a client may open and reset before they are served. Above it, the connection is closed.
const MAX_RESETS: usize = 100;
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
/// How long a client may take from the connection to its first call. Later it may be silent as long as it answers the above: proxies
/// keep their connections.
const FIRST_CALL: Duration = Duration::from_mins(1);
/// The pause before `accept` is retried when the system has no free descriptor.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// The listener's options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrpcConfig {
    /// Above this number, the connection that was idle longest is closed.
    pub max_connections: usize,
    /// Above this number of connections of one client, its new ones are closed.
    pub max_per_peer: Option<usize>,
    /// How long a client may read nothing of its answers.
    pub write_timeout: Duration,
}

/// Serves until `stop` is set, and then until every call in progress is answered. Dropping the future closes all connections.
pub(crate) async fn serve(
    listener: TcpListener,
    shared: Shared,
    config: GrpcConfig,
    locks: Locks,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let slots = Slots::new(config.max_connections);
    let peers = Peers::new(config.max_per_peer);
    let full = OnceAMinute::default();
    let (reporter, health) = tonic_health::server::health_reporter();
    let service = Arc::clone(shared.rates.service());
    let mut connections = JoinSet::new();
    connections.spawn(health::report(reporter, Arc::clone(&service), stop.clone()));
    let stats = Arc::clone(&shared.stats);
    let (events, reports) = mpsc::channel(rlqs::EVENTS);
    connections.spawn(rlqs::assign(Arc::clone(&service), Arc::clone(&stats), reports, stop.clone()));
    let routes = Arc::new(Routes::new(shared, Quotas::new(events), health));
    let http = builder();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Collects connections that have ended.
            Some(_) = connections.join_next() => continue,
            // An error means that the sender is gone, so no one can stop the server any more: stop then, too.
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept gRPC connections; retrying in a second (is the limit on open files reached?)");
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
                max_connections = config.max_connections,
                "all gRPC connections are in use: each new one closes the one that was idle longest; raise \
                 --max-connections, or find out which clients hold them",
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
        let calls = Arc::new(Calls::new(slot));
        let give_up = |stream: &TcpStream| {
            // Unread data is dropped with the connection instead of being kept by the system.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        let io = WriteDeadline::new(stream, config.write_timeout, stop.clone(), give_up);
        let (routes, http, tls) = (Arc::clone(&routes), http.clone(), locks.config(Above::Grpc));
        let (stats, watcher) = (Arc::clone(&stats), graceful.watcher());
        connections.spawn(async move {
            stats.connections.fetch_add(1, Ordering::Relaxed);
            let its = Arc::clone(&calls);
            let served = async {
                let stream = Stream::begin(io, tls).await?;
                let names = stream.names();
                let call = service_fn(move |request: Request<Incoming>| {
                    let (routes, calls, names) = (Arc::clone(&routes), Arc::clone(&its), names.clone());
                    async move {
                        let _under_way = calls.begin();
                        routes.call(request, calls.slot.is_spare, names.as_deref()).await
                    }
                });
                let connection = http.serve_connection(TokioIo::new(stream), call);
                watcher.watch(connection).await.map_err(io::Error::other)
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection closed for a new one"),
                () = calls.never_begin(FIRST_CALL) => tracing::debug!(%peer, "connection without a call"),
            }
            drop(of_peer);
            stats.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Polls each call once before it gets a task: where the limits are in memory that is all it takes. The second poll, in the
/// task, registers the wakers that count.
#[derive(Clone, Copy, Debug)]
struct OnceAtOnce;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OnceAtOnce {
    fn execute(&self, future: F) {
        let mut future = Box::pin(future);
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(future);
        }
    }
}

fn builder() -> http2::Builder<OnceAtOnce> {
    let mut http = http2::Builder::new(OnceAtOnce);
    http.timer(TokioTimer::new())
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
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_without_a_word_is_found_out_within_a_minute() {
        // Time jumps to the next deadline as soon as nothing else is left to do.
        let (mut client, server) = duplex(1 << 16);
        let answer = |_: Request<Incoming>| async { Ok::<_, Infallible>(Response::new(String::new())) };
        let served = tokio::spawn(builder().serve_connection(TokioIo::new(server), service_fn(answer)));
        let began = Instant::now();
        // The beginning of HTTP/2, and then nothing: no answer to a ping either.
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
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
