//! The thread that drives the connection to the store.

use std::{io, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// A thread with an async runtime of its own, until it is dropped.
///
/// One thread does all of a connection's work. In the server's own runtime a reply may wake one thread that reads it and another
/// that hands it on, and each wakeup costs as much as the decisions of a call.
pub(super) struct StoreThread {
    runtime: Handle,
    /// Dropping it ends the thread.
    _running: oneshot::Sender<()>,
}

impl StoreThread {
    /// # Errors
    /// When the system refuses the thread, or descriptors for its runtime.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("tidegate-store".to_owned()).spawn(move || {
            // An error: the sender was dropped.
            let _ = runtime.block_on(ended);
        })?;
        Ok(Self { runtime: handle, _running: running })
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
