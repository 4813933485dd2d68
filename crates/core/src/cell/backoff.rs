//! How a thread waits for another one that is in the middle of a decision.

use crate::sync::{spin_loop, yield_now};

/// Spins for exponentially longer, then yields the thread: the holder of the cell may have lost its
/// core.
///
/// A longer pause also makes a contended cell faster: the other core makes many decisions in the
/// meantime, with the line in its own cache.
#[derive(Debug, Default)]
pub struct Backoff {
    round: u32,
}

impl Backoff {
    /// Spins of 2⁰ to 2⁶ turns, then yields.
    const SPIN_ROUNDS: u32 = 7;

    /// The first wait is the shortest.
    #[must_use]
    pub const fn new() -> Self {
        Self { round: 6 }
    }

    /// Waits a little longer than the last time.
    #[cold]
    #[inline(never)]
    pub fn wait(&mut self) {
        if cfg!(loom) || self.round >= Self::SPIN_ROUNDS {
            yield_now();
            return;
        }
        for _ in 0..1_u32 << self.round {
            spin_loop();
        }
        self.round += 1;
    }
}
