//! Periodic background work on a thread that ends with its owner.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// A thread that runs `work` periodically until this value is dropped.
pub struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs `work` after each `pause`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        name: &str,
        pause: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let run = move || {
            let (stop, changed) = &*stopped;
            loop {
                let waiting = stop.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(waiting, pause, |stop| !*stop);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
                // The panic hook has reported the panic. The work runs again after the next pause.
                let _ = catch_unwind(AssertUnwindSafe(&mut work));
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    /// Waits for the running work to finish, unless the work itself drops this value.
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches panics of the work, so `join` cannot fail.
            let _ = thread.join();
        }
    }
}
