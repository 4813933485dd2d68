//! systemd's protocol for services: sockets that already listen, readiness and the watchdog.
//!
//! Other supervisors that speak the same protocol are served alike. Without one nothing here does anything.

use std::{env, io, net::TcpListener, sync::Arc, time::Duration};

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidegate_server::Order;
use tokio::sync::mpsc;

/// What a socket may stand for: its `FileDescriptorName=`.
const NAMES: [&str; 4] = ["http", "resp", "grpc", "admin"];

/// Why the sockets that were passed cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    #[error("a socket is passed by the name `{name}`: set FileDescriptorName= to one of {}", NAMES.join(", "))]
    UnknownName { name: String },
    #[error("the socket `{name}` that is passed does not listen for TCP: {source}")]
    NotTcp { name: String, source: io::Error },
}

/// The sockets that were passed, by their names.
///
/// # Errors
/// When one has another name, or is none that listens for TCP.
pub fn sockets() -> Result<Vec<(String, Arc<TcpListener>)>, SocketsError> {
    let mut passed = ListenFd::from_env();
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = Vec::new();
    for at in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        if !NAMES.contains(&name) {
            return Err(SocketsError::UnknownName { name: name.to_owned() });
        }
        match passed.take_tcp_listener(at) {
            Ok(Some(socket)) => sockets.push((name.to_owned(), Arc::new(socket))),
            Ok(None) => {}
            Err(source) => return Err(SocketsError::NotTcp { name: name.to_owned(), source }),
        }
    }
    Ok(sockets)
}

/// Tells the supervisor how the server is.
pub struct Notifier {
    /// Half of the time within which it wants to hear that the server lives.
    every: Option<Duration>,
}

impl Notifier {
    /// Says that the server is ready.
    pub fn begin() -> Self {
        tell(&[NotifyState::Ready]);
        Self { every: sd_notify::watchdog_enabled().map(|within| within / 2) }
    }

    /// Forwards the orders, and reports each to systemd.
    pub fn watch(self, mut orders: mpsc::Receiver<Order>) -> mpsc::Receiver<Order> {
        let (pass, passed) = mpsc::channel(8);
        tokio::spawn(async move {
            // Without a watchdog: no tick for as long as a server can run.
            let every = self.every.unwrap_or(Duration::from_secs(u32::MAX.into()));
            let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
            loop {
                let order = tokio::select! {
                    order = orders.recv() => order,
                    _ = ticks.tick() => {
                        if self.every.is_some() {
                            tell(&[NotifyState::Watchdog]);
                        }
                        continue;
                    }
                };
                let Some(order) = order else { return };
                if order == Order::Stop {
                    tell(&[NotifyState::Stopping]);
                }
                if pass.send(order).await.is_err() {
                    return;
                }
            }
        });
        passed
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the supervisor cannot be told how the server is");
    }
}
