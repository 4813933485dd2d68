//! The connections of a listener of any protocol, accepted within their bounds.
//!
//! `slots` bounds their number and decides which one is closed for a new one. `write_deadline`
//! bounds how long an answer waits for a client that does not read. `responses` counts the answers
//! to clients that have gone. `control_frames` bounds the frames of an HTTP/2 client that are not
//! requests.

mod control_frames;
mod responses;
mod slots;
mod write_deadline;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt as _;
use socket2::SockRef;
use tidegate_core::Clock;
use tidegate_service::observe::{metrics::ConnectionStats, once_a_minute::OnceAMinute};
use tokio::{
    io::{Interest, Ready},
    sync::watch,
    task::JoinSet,
};
use tokio_util::either::Either;

use crate::{
    descriptors::{self, Descriptors},
    peers::{Peer, Peers},
    socket::{Listener, Socket},
};

pub use control_frames::ControlFrames;
pub use responses::{InLine, Responses};
use slots::Admission;
pub use slots::{Call, Calls, Slots};
use write_deadline::Peering;
pub use write_deadline::WriteDeadline;

/// The pause before `accept` is retried when the system has no free descriptor.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// The bounds of a listener.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The listener's name in the log.
    pub name: &'static str,
    /// Above this number, the connection that was idle longest is closed.
    pub max_connections: usize,
    /// Above this number of connections of one client, its new ones are closed; `None` for
    /// [`Peers`]' own bound.
    pub max_per_peer: Option<usize>,
    /// How long a client may read nothing of its answers.
    pub write_timeout: Duration,
    /// The connections of all listeners.
    pub descriptors: Arc<Descriptors>,
}

/// A listener's connections.
pub struct Acceptor {
    listener: Listener,
    pub bounds: Bounds,
    slots: Arc<Slots>,
    peers: Arc<Peers>,
    full: OnceAMinute,
    clock: Arc<dyn Clock>,
    stats: Arc<ConnectionStats>,
    stop: watch::Receiver<bool>,
}

/// A connection that may be served. Dropping it makes room for another.
pub struct Accepted {
    pub io: WriteDeadline<Socket>,
    pub calls: Arc<Calls>,
    pub responses: Arc<Responses>,
    pub peer: SocketAddr,
}

/// An open connection, until it is dropped.
struct OpenConnection {
    stats: Arc<ConnectionStats>,
    _of_peer: Option<Peer>,
}

impl Acceptor {
    pub fn new(
        listener: Listener,
        bounds: Bounds,
        clock: Arc<dyn Clock>,
        stats: Arc<ConnectionStats>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let slots = Slots::new(bounds.max_connections);
        bounds.descriptors.add(&slots);
        let peers = Peers::new(bounds.max_per_peer, bounds.max_connections);
        Self {
            listener,
            bounds,
            slots,
            peers,
            full: OnceAMinute::default(),
            clock,
            stats,
            stop,
        }
    }

    /// Serves each connection in a task, until the server stops and all connections have ended.
    pub async fn serve<S: Future<Output = ()> + Send + 'static>(
        self,
        serve: impl Fn(Accepted) -> S,
    ) {
        let mut serving = self.each(serve).await;
        while serving.join_next().await.is_some() {}
    }

    /// Serves each connection in a task, until the server stops. Returns the tasks that have not
    /// ended.
    pub async fn each<S: Future<Output = ()> + Send + 'static>(
        self,
        serve: impl Fn(Accepted) -> S,
    ) -> JoinSet<()> {
        let (mut serving, mut stop) = (JoinSet::new(), self.stop.clone());
        loop {
            tokio::select! {
                (accepted, open) = self.next() => {
                    let served = serve(accepted);
                    serving.spawn(async move {
                        served.await;
                        drop(open);
                    });
                }
                // Collects connections that have ended.
                Some(_) = serving.join_next() => {}
                // An error means that the sender is gone, so no one can stop the server any more:
                // stop then, too.
                _ = stop.wait_for(|stop| *stop) => return serving,
            }
        }
    }

    /// The next connection. A call that is dropped before it is ready loses none.
    async fn next(&self) -> (Accepted, OpenConnection) {
        loop {
            // One at a time: with many that come at once, those that are open are served in
            // between.
            tokio::task::yield_now().await;
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) if self.bounds.descriptors.make_room() => {
                    tokio::time::sleep(descriptors::PAUSE).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(listener = self.bounds.name, %error, "cannot accept connections; retrying in a second (is the limit on open files reached?)");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            if let Some(accepted) = self.admit(stream, peer) {
                return accepted;
            }
        }
    }

    /// `None` if all slots are taken, or the client has disconnected.
    fn admit(&self, stream: Socket, peer: SocketAddr) -> Option<(Accepted, OpenConnection)> {
        let stats = &self.stats;
        let Ok(of_peer) = self.peers.enter(peer.ip()) else {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let admission = self.slots.admit();
        if admission
            .as_ref()
            .is_none_or(|given| given.evicted || given.slot.is_spare)
            && self.full.is_due(self.clock.now())
        {
            tracing::warn!(
                listener = self.bounds.name,
                max_connections = self.bounds.max_connections,
                "all connections are in use: each new one closes the one that was idle longest, and while all are \
                 busy only health checks are answered; raise --max-connections, or find out which clients hold them",
            );
        }
        let Some(Admission { slot, evicted }) = admission else {
            stats.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        stats
            .evicted
            .fetch_add(u64::from(evicted), Ordering::Relaxed);
        if let Either::Left(tcp) = &stream
            && let Err(error) = tcp.set_nodelay(true)
        {
            tracing::debug!(%peer, %error, "connection dropped");
            return None;
        }
        stats.accepted.fetch_add(1, Ordering::Relaxed);
        stats.open.fetch_add(1, Ordering::Relaxed);
        let open = OpenConnection {
            stats: Arc::clone(stats),
            _of_peer: of_peer,
        };
        let responses = Arc::new(Responses::new(Arc::clone(stats)));
        let io = WriteDeadline::new(
            stream,
            self.bounds.write_timeout,
            self.stop.clone(),
            PEERING,
            Arc::clone(&responses),
        );
        Some((
            Accepted {
                io,
                calls: Arc::new(Calls::new(slot)),
                responses,
                peer,
            },
            open,
        ))
    }
}

const PEERING: Peering<Socket> = Peering {
    give_up: |stream| {
        // Unread data is dropped with the connection instead of being kept by the system.
        if let Either::Left(tcp) = stream {
            let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
        }
    },
    has_gone: |stream| {
        // A stream is nearly always writable, so this is the state that the last poll has left.
        let any = Interest::READABLE | Interest::WRITABLE;
        let ready = match stream {
            Either::Left(tcp) => tcp.ready(any).now_or_never(),
            Either::Right(unix) => unix.ready(any).now_or_never(),
        };
        ready
            .and_then(Result::ok)
            .is_some_and(Ready::is_read_closed)
    },
    watch: |stream, context| {
        // If bytes are unread it is ready already, and the task is not woken.
        let _ = match stream {
            Either::Left(tcp) => tcp.poll_read_ready(context),
            Either::Right(unix) => unix.poll_read_ready(context),
        };
    },
};

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Ordering::Relaxed);
    }
}
