//! Which processors a thread may run on, with the threads and processes that it starts from then
//! on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Those that this program was given.
pub struct Processors(CpuSet);

impl Processors {
    pub fn mine() -> Self {
        Self(sched_getaffinity(None).expect("a thread knows its processors"))
    }

    /// One processor for the server and one for its clients, if this process has two.
    fn pair(&self) -> Option<[CpuSet; 2]> {
        let mut all = (0..CpuSet::MAX_CPU)
            .filter(|&at| self.0.is_set(at))
            .map(|at| {
                let mut one = CpuSet::new();
                one.set(at);
                one
            });
        Some([all.next()?, all.next()?])
    }

    /// Runs `start` on one processor, so that what it starts stays there, and then `work` on
    /// another.
    pub fn apart<S, T>(&self, start: impl FnOnce() -> S, work: impl FnOnce(S) -> T) -> T {
        let Some([server, clients]) = self.pair() else {
            return work(start());
        };
        let to = |set: &CpuSet| {
            // Where it is not allowed, the system chooses.
            let _ = sched_setaffinity(None, set);
        };
        to(&server);
        let started = start();
        to(&clients);
        let result = work(started);
        to(&self.0);
        result
    }
}
