//! A starting line.

use std::{
    hint,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Holds threads until all are there. It spins: waking a thread that sleeps takes longer than a
/// stretch may be uneven.
pub struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
}

/// The number of looks after which another thread may need the processor to arrive.
const PATIENCE: u32 = 10_000;

impl Barrier {
    pub const fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
        }
    }

    pub fn wait(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            // Before the others go: they may come back at once.
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation + 1, Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.generation.load(Ordering::Acquire) == generation {
            hint::spin_loop();
            looks += 1;
            if looks == PATIENCE {
                looks = 0;
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_before_all_have_arrived() {
        let (barrier, arrived) = (Barrier::new(3), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for turn in 1..=1_000 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        barrier.wait();
                        assert!(arrived.load(Ordering::SeqCst) >= 3 * turn);
                        barrier.wait();
                    }
                });
            }
        });
    }
}
