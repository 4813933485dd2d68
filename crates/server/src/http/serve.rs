//! The connections: how many, how slow they may be, and how they end.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::metrics::Events;

/// How long a client may take to send a request's head, and how long a connection may wait between requests.
const HEAD_TIME: Duration = Duration::from_mins(1);
/// What a connection may hold of a head, or of a body on its way.
const BUFFER: usize = 16 * 1024;
/// When the system has no descriptor to give, how long until it is asked again.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// How the listener behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpConfig {
    /// Further clients wait until one has left.
    pub max_connections: usize,
}

/// Serves until `stop` says so, and then until every request that has begun is answered. Dropped, it cuts off all
/// connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    events: Arc<Events>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(config.max_connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(BUFFER);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = Arc::clone(&room).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            // Takes note of those that have ended.
            Some(_) = connections.join_next() => continue,
            // An error means that whoever could stop the server is gone: then it stops, too.
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept HTTP connections; trying again in a second (are the open files used up?)");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection dropped");
            continue;
        }
        events.http_accepted.fetch_add(1, Ordering::Relaxed);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let events = Arc::clone(&events);
        connections.spawn(async move {
            events.http_connections.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            events.http_connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
