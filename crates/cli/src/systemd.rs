//! systemd's protocol for services: socket activation, readiness and the watchdog.
//!
//! It also works with other supervisors that use this protocol. Without a supervisor it does
//! nothing.

use std::{env, io, net::TcpListener, sync::Arc, time::Duration};

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tidegate_server::Order;
use tokio::sync::mpsc;

/// The names of sockets (`FileDescriptorName=`).
const NAMES: [&str; 7] = [
    "http",
    "resp",
    "grpc",
    "spoe",
    "sentinel-token",
    "sentinel-dashboard",
    "admin",
];

/// Why the passed sockets cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    #[error("a socket was passed with the name `{name}`: set FileDescriptorName= to one of {}", NAMES.join(", "))]
    UnknownName { name: String },
    #[error("the passed socket `{name}` does not listen for TCP: {source}")]
    NotTcp { name: String, source: io::Error },
}

/// The passed sockets, with their names.
///
/// # Errors
/// When a socket has another name or is not a listening TCP socket.
pub fn sockets() -> Result<Vec<(String, Arc<TcpListener>)>, SocketsError> {
    let mut passed = ListenFd::from_env();
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = Vec::new();
    for at in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        if !NAMES.contains(&name) {
            return Err(SocketsError::UnknownName {
                name: name.to_owned(),
            });
        }
        match passed.take_tcp_listener(at) {
            Ok(Some(socket)) => sockets.push((name.to_owned(), Arc::new(socket))),
            Ok(None) => {}
            Err(source) => {
                return Err(SocketsError::NotTcp {
                    name: name.to_owned(),
                    source,
                });
            }
        }
    }
    Ok(sockets)
}

/// Reports to the supervisor that the server is ready, and then each order, which it passes on.
pub fn supervised(mut orders: mpsc::Receiver<Order>) -> mpsc::Receiver<Order> {
    notify(&[NotifyState::Ready]);
    let watchdog = sd_notify::watchdog_enabled();
    let (pass, passed) = mpsc::channel(8);
    tokio::spawn(async move {
        // Without a watchdog, the first tick never comes.
        let every = watchdog.map_or(Duration::from_secs(u32::MAX.into()), |within| within / 2);
        let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
        loop {
            let order = tokio::select! {
                order = orders.recv() => order,
                _ = ticks.tick() => {
                    if watchdog.is_some() {
                        notify(&[NotifyState::Watchdog]);
                    }
                    continue;
                }
            };
            let Some(order) = order else { return };
            if order == Order::Stop {
                notify(&[NotifyState::Stopping]);
            }
            if pass.send(order).await.is_err() {
                return;
            }
        }
    });
    passed
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot report the state to the supervisor");
    }
}
