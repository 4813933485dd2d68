//! The connections of HAProxy, and how they end.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_listen::{
    connections::{Accepted, Acceptor},
    security::ListenerSecurity,
    tls::{self, Above},
};
use tokio::sync::watch;

use super::{Agent, connection::Connection};

/// How long a client may take from the connection to its first frame.
const FIRST_FRAME: Duration = Duration::from_mins(1);
/// A connection without a frame for this long is closed. HAProxy closes its own earlier, as its
/// `timeout idle` says, and connects again.
const IDLE: Duration = Duration::from_hours(1);

/// Serves until `stop` is set, and then until all frames that were read are answered. Dropping the
/// future closes all connections.
pub(crate) async fn serve(
    connections: Acceptor,
    agent: Agent,
    security: ListenerSecurity,
    stop: watch::Receiver<bool>,
) {
    let serve = |Accepted {
                     io, calls, peer, ..
                 }| {
        let (agent, tls, stop) = (agent.clone(), security.config(Above::Resp), stop.clone());
        async move {
            let served = async {
                let stream = tls::begin(io, tls).await?;
                let names = tls::client_names(&stream);
                Connection::new(&agent, Arc::clone(&calls), names)
                    .converse(stream, stop)
                    .await
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    agent.stats.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%peer, %error, "connection ended");
                },
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection closed for a new one"),
                () = calls.never_begin(FIRST_FRAME) => tracing::debug!(%peer, "connection without a frame"),
                () = calls.are_absent_for(IDLE) => tracing::debug!(%peer, "idle connection closed"),
            }
        }
    };
    connections.serve(serve).await;
}
