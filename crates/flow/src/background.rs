//! Work that is done off the hot path, every now and then, on a thread that ends with its owner.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// A thread that runs one piece of work again and again until this is dropped.
pub(crate) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs `work` after each `pause`.
    pub(crate) fn spawn(
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
                // Work that panics has been reported by the panic hook, and is done again the next time.
                let _ = catch_unwind(AssertUnwindSafe(&mut work));
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Background {
    /// Waits for the work that is under way, if this is not that work itself.
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches the work's panics.
            let _ = thread.join();
        }
    }
}
