//! The thread that reads rules which clients send: their tree takes up to 40 MB.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
};

use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// One thread, and one job at a time. The system's allocator keeps what a thread has freed for the
/// same thread, so the threads of a pool would each keep as much.
#[derive(Debug)]
pub(crate) struct RulesThread {
    jobs: mpsc::Sender<Job>,
    /// For those who receive a text for it.
    pub readers: Semaphore,
    /// Held by the job: it goes on when its client has gone.
    free: Arc<Semaphore>,
}

impl RulesThread {
    /// # Errors
    /// When the system refuses a thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, next) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("tidegate-rules".to_owned())
            .spawn(move || {
                for job in next {
                    // The panic hook has reported it, and the job's client gets no result.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            })?;
        Ok(Self {
            jobs,
            readers: Semaphore::new(2),
            free: Arc::new(Semaphore::new(1)),
        })
    }

    /// The result of this work; `None` if it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let (tell, receiver) = oneshot::channel();
        let job = move || {
            let _permit = permit;
            // A client that has gone receives nothing.
            drop(tell.send(work()));
        };
        self.jobs.send(Box::new(job)).ok()?;
        receiver.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_on_one_thread_also_after_a_panic() {
        let thread = RulesThread::start().unwrap();
        let here = || thread::current().id();
        let first = thread.run(here).await.unwrap();
        assert_eq!(thread.run(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(thread.run(here).await, Some(first));
    }

    #[tokio::test]
    async fn a_job_whose_client_has_gone_is_finished_before_the_next_begins() {
        let thread = RulesThread::start().unwrap();
        let (release, wait) = mpsc::channel::<()>();
        let mut gone = Box::pin(thread.run(move || wait.recv().unwrap()));
        assert!(futures_util::poll!(&mut gone).is_pending());
        drop(gone);
        assert_eq!(thread.free.available_permits(), 0);
        release.send(()).unwrap();
        assert_eq!(thread.run(|| 7).await, Some(7));
    }
}
