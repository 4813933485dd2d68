//! The connections of Sentinel's clients, and how they end.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_listen::connections::{Accepted, Acceptor};
use tokio::sync::watch;

use super::{TokenServer, connection::Connection};

/// A connection without a request for this long is closed, as by Sentinel's own server. Its clients
/// connect again.
const IDLE: Duration = Duration::from_mins(10);

/// Serves until `stop` is set, and then until all requests that were read are answered. Dropping
/// the future closes all connections.
pub async fn serve(connections: Acceptor, server: TokenServer, stop: watch::Receiver<bool>) {
    let serve = |Accepted {
                     io, calls, peer, ..
                 }| {
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            let served = Connection::new(&server, Arc::clone(&calls), peer.ip()).converse(io, stop);
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    server.stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection closed for a new one"),
                () = calls.are_absent_for(IDLE) => tracing::debug!(%peer, "idle connection closed"),
            }
        }
    };
    connections.serve(serve).await;
}
