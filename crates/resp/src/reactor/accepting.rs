//! The connections that a thread accepts, within the bounds of the listener.

use std::{
    io::{self, Write as _},
    sync::{Arc, atomic::Ordering},
};

use mio::{Interest, Token};
use tidegate_listen::tls::Above;

use super::Reactor;
use crate::{
    connection::Connection,
    session::Session,
    socket::{Socket, Stream},
};

/// The maximum number of connections accepted in one turn. Existing ones wait for the accepting.
pub(super) const ACCEPTS_A_TURN: usize = 4;

/// When to accept connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accept {
    OnEvent,
    /// In the next turn, because more connections may wait.
    NextTurn,
    /// In a moment, when idle connections have given way to new ones.
    Soon,
    /// At the next tick, because the system had no free descriptor.
    NextTick,
}

impl Reactor {
    pub(super) fn accept(&mut self) {
        self.accept = Accept::OnEvent;
        for _ in 0..ACCEPTS_A_TURN {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.admit(stream, peer) {
                        tracing::debug!(%peer, %error, "connection dropped");
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The client disconnected before it was accepted.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(_) if self.shared.descriptors.make_room() => {
                    self.accept = Accept::Soon;
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept RESP connections; retrying every second (is the limit on open files reached?)");
                    self.accept = Accept::NextTick;
                    return;
                }
            }
        }
        self.accept = Accept::NextTurn;
    }

    fn admit(&mut self, mut stream: Stream, peer: std::net::SocketAddr) -> io::Result<()> {
        let stats = Arc::clone(&self.shared.stats);
        let Ok(of_peer) = self.shared.peers.enter(peer.ip()) else {
            stats.connections.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let most = self.shared.config.max_connections;
        let room = |open: usize| (open < most).then_some(open + 1);
        let take = || {
            stats
                .connections
                .open
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok()
        };
        if !take() {
            if stats.full_warning.is_due(self.shared.service.now()) {
                tracing::warn!(
                    max_connections = most,
                    "all RESP connections are in use: each new one closes the one that was idle longest; raise \
                     --max-connections, or find out which clients hold them",
                );
            }
            // Another thread may have taken the slot first.
            if !self.evict() || !take() {
                stats.connections.refused.fetch_add(1, Ordering::Relaxed);
                if self.shared.tls.is_some() {
                    return Ok(());
                }
                return stream.write_all(b"-ERR max number of clients reached\r\n");
            }
        }
        stats.connections.accepted.fetch_add(1, Ordering::Relaxed);
        let tls = self.shared.tls.as_ref().map(|tls| tls.config(Above::Resp));
        let registered = stream.prepare().and_then(|()| {
            let mut stream = Socket::new(stream, tls)?;
            let token = Token(self.connections.vacant_key());
            self.poll
                .registry()
                .register(stream.stream(), token, Interest::READABLE)?;
            Ok(stream)
        });
        let stream = match registered {
            Ok(stream) => stream,
            Err(error) => {
                self.shared
                    .stats
                    .connections
                    .open
                    .fetch_sub(1, Ordering::Relaxed);
                return Err(error);
            }
        };
        let session = Session::new(&self.shared, peer, of_peer);
        self.connections
            .insert(Connection::new(stream, session, self.shared.service.now()));
        Ok(())
    }

    /// Closes the connection that has been idle longest. Returns whether any was idle.
    pub(super) fn evict(&mut self) -> bool {
        let connections = &self.connections;
        let idle_since = |at: usize| connections.get(at)?.idle_since();
        let Some(at) = self
            .longest_idle
            .next(connections.iter().map(|(at, _)| at), idle_since)
        else {
            return false;
        };
        self.shared
            .stats
            .connections
            .evicted
            .fetch_add(1, Ordering::Relaxed);
        self.remove(at);
        true
    }
}
