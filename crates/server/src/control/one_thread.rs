//! Threads for long work: one for the rules that clients send, whose tree takes up to 40 MB, and one
//! for the metrics.

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
pub(crate) struct OneThread {
    jobs: mpsc::Sender<Job>,
    /// Held by the job: it goes on when its client has gone.
    free: Arc<Semaphore>,
}

/// How much the threads give way to those that decide: at this value of `nice`, a thread gets about
/// a tenth of a processor that others want, too.
const NICE: i32 = 10;

impl OneThread {
    /// A thread with this name.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let (jobs, next) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // On Linux the value is a thread's own. A thread that may not change it works at
                // the usual one.
                #[cfg(target_os = "linux")]
                let _ = rustix::process::nice(NICE);
                for job in next {
                    // The panic hook has reported it, and the job's client gets no result.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            })?;
        Ok(Self {
            jobs,
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
        let thread = OneThread::start("test").unwrap();
        let here = || thread::current().id();
        let first = thread.run(here).await.unwrap();
        assert_eq!(thread.run(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(thread.run(here).await, Some(first));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_the_thread_itself_gives_way() {
        let nice = || rustix::process::nice(0).unwrap();
        let before = nice();
        let thread = OneThread::start("test").unwrap();
        assert_eq!(thread.run(nice).await, Some((before + NICE).min(19)));
        assert_eq!(nice(), before);
    }

    #[tokio::test]
    async fn a_job_whose_client_has_gone_is_finished_before_the_next_begins() {
        let thread = OneThread::start("test").unwrap();
        let (release, wait) = mpsc::channel::<()>();
        let mut gone = Box::pin(thread.run(move || wait.recv().unwrap()));
        assert!(futures_util::poll!(&mut gone).is_pending());
        drop(gone);
        assert_eq!(thread.free.available_permits(), 0);
        release.send(()).unwrap();
        assert_eq!(thread.run(|| 7).await, Some(7));
    }
}
