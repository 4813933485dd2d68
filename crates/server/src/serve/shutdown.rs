//! Converts signals to orders to the server.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::serve::server::Order;

/// `SIGTERM` and `SIGINT` stop the server, `SIGHUP` reloads. Call it within a tokio runtime.
///
/// # Errors
/// When the system does not allow signal handlers.
pub fn signals() -> io::Result<mpsc::Receiver<Order>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let (orders, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        loop {
            let order = tokio::select! {
                _ = term.recv() => Order::Stop,
                _ = int.recv() => Order::Stop,
                _ = hup.recv() => Order::Reload,
            };
            if orders.send(order).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
