//! The allotment that a node decides from: one word from which all threads spend, and its
//! attributes.
//!
//! ```text
//! word: │ generation (32 bits) │ units left (32 bits) │      until, low, beyond, …: plain words of this generation
//! ```
//!
//! A thread reads the word, then the attributes, and then takes its cost by compare-and-swap. The
//! attributes of an allotment change only between two generations, while the word shows no units,
//! so the exchange fails for a thread that read attributes of two generations. A decision thus
//! takes one atomic operation and three loads from one cache line.

use crate::{Decision, Nanos, Standing};

use super::sync::{AtomicU64, Ordering, fence};

/// An allotment with all its attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenAllotment {
    /// The number of units when the allotment was opened.
    pub units: u32,
    /// When the allotment expires, on the node's clock.
    pub until: Nanos,
    /// Another allotment is requested when the units left fall to this number.
    pub low: u32,
    /// The room that the shared state had left when the allotment was taken.
    pub beyond: u64,
    /// When the shared state recovers completely if nothing more is taken, on the node's clock.
    pub reset_at: Nanos,
    /// The newest denial of any cost. A cost of 0 means none.
    pub refused: RefusedCost,
}

/// A cost that is denied until a time, on the node's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefusedCost {
    pub cost: u64,
    pub until: Nanos,
    pub reset_at: Nanos,
}

impl RefusedCost {
    pub fn decision(&self, limit: u64, left: u32, now: Nanos) -> Decision {
        let reset_after = self.reset_at.saturating_since(now).get();
        let standing = Standing {
            limit,
            room: left.into(),
            unit: 1,
            reset_after,
        };
        Decision::deny(standing, self.until.saturating_since(now).get())
    }
}

/// The allotment as threads see it.
#[derive(Debug, Default)]
// Two cache lines, because processors fetch them in pairs: its neighbours must not slow it down.
#[repr(align(128))]
pub(crate) struct Allotment {
    word: AtomicU64,
    until: AtomicU64,
    low: AtomicU64,
    beyond: AtomicU64,
    reset_at: AtomicU64,
    refused_cost: AtomicU64,
    refused_until: AtomicU64,
    refused_reset: AtomicU64,
}

/// The result of an attempt to spend.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spend {
    Spent {
        decision: Decision,
        /// Whether this call brought the allotment down to its low-water mark.
        low: bool,
        /// The generation that was spent from.
        of: Generation,
    },
    /// The allotment has too few units, or has expired.
    Short,
}

/// A generation of the allotment, as encoded in the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

const fn units(word: u64) -> u32 {
    word as u32
}

const fn generation(word: u64) -> u64 {
    word & !0xFFFF_FFFF
}

impl Allotment {
    /// Takes all of `cost` from the allotment, or nothing.
    #[inline]
    pub fn spend(&self, limit: u64, cost: u64, now: Nanos) -> Spend {
        // Acquire: the attributes of this generation, or of a later one, are visible.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let left = units(word);
            // Relaxed here and below: the exchange fails if the value is of a later generation.
            if u64::from(left) < cost.max(1) || now.get() >= self.until.load(Ordering::Relaxed) {
                return Spend::Short;
            }
            let after = u64::from(left) - cost;
            let low = self.low.load(Ordering::Relaxed);
            let room = after + self.beyond.load(Ordering::Relaxed);
            let reset_at = self.reset_at.load(Ordering::Relaxed);
            // Release: the loads above come before the exchange. The swap that ends this generation
            // acquires, so they also come before any store of the next one. Acquire: as the first
            // load, if it failed.
            let next = word - cost;
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    let reset = reset_at.saturating_sub(now.get());
                    let decision = Decision::allow(Standing {
                        limit,
                        room,
                        unit: 1,
                        reset_after: reset,
                    });
                    let low = after <= low && u64::from(left) > low;
                    return Spend::Spent {
                        decision,
                        low,
                        of: Generation(generation(word)),
                    };
                }
                Err(newer) => word = newer,
            }
        }
    }

    /// Puts back units that were just spent from a generation. If that generation has ended, they
    /// stay spent.
    pub fn put_back(&self, of: Generation, cost: u64) {
        // Relaxed: no other data is read through this value.
        let mut word = self.word.load(Ordering::Relaxed);
        while generation(word) == of.0 {
            // No carry into the generation: these units were in the word before. Release, as any
            // exchange on the word: the swap that ends the generation acquires what the spending
            // threads have read, also through exchanges in between.
            let more = word + cost;
            match self
                .word
                .compare_exchange_weak(word, more, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(newer) => word = newer,
            }
        }
    }

    /// The denial of exactly this cost, if it is the newest denial and still holds. Never waits.
    #[inline]
    pub fn refusal(&self, limit: u64, cost: u64, now: Nanos) -> Option<Decision> {
        // Acquire: as in `spend`.
        let word = self.word.load(Ordering::Acquire);
        let refusal = RefusedCost {
            cost: self.refused_cost.load(Ordering::Relaxed),
            until: Nanos::new(self.refused_until.load(Ordering::Relaxed)),
            reset_at: Nanos::new(self.refused_reset.load(Ordering::Relaxed)),
        };
        // The loads above come before the next: if one of them saw a later generation, the next one
        // does.
        fence(Ordering::Acquire);
        let same = generation(self.word.load(Ordering::Relaxed)) == generation(word);
        // An odd generation is still being written.
        let whole = (word >> 32).is_multiple_of(2);
        let holds = same && whole && cost > 0 && refusal.cost == cost && now < refusal.until;
        holds.then(|| refusal.decision(limit, units(word), now))
    }

    /// The units left in the current allotment.
    pub fn left(&self) -> u32 {
        // Relaxed: only the holder of the lease's lock calls this, opens allotments and closes
        // them.
        units(self.word.load(Ordering::Relaxed))
    }

    /// Ends the generation and begins the next, which `next` creates from the number of units left.
    /// The caller must hold the lease's lock.
    pub fn replace(&self, next: impl FnOnce(u32) -> OpenAllotment) {
        let step = 1 << 32;
        // Relaxed: no other thread begins generations. After the swap no thread can spend.
        let begun = generation(self.word.load(Ordering::Relaxed)).wrapping_add(step);
        // Acquire: see `spend`.
        let left = units(self.word.swap(begun, Ordering::AcqRel));
        // A thread that sees a store below also sees the swap (see `refusal`).
        fence(Ordering::Release);
        let open = next(left);
        self.until.store(open.until.get(), Ordering::Relaxed);
        self.low.store(open.low.into(), Ordering::Relaxed);
        // Bounded, so that `spend` can add the units left: a store may answer with any number.
        self.beyond
            .store(open.beyond.min(u64::MAX >> 1), Ordering::Relaxed);
        self.reset_at.store(open.reset_at.get(), Ordering::Relaxed);
        self.refused_cost
            .store(open.refused.cost, Ordering::Relaxed);
        self.refused_until
            .store(open.refused.until.get(), Ordering::Relaxed);
        self.refused_reset
            .store(open.refused.reset_at.get(), Ordering::Relaxed);
        // Release: a thread that reads the new generation sees its attributes.
        self.word.store(
            begun.wrapping_add(step) | u64::from(open.units),
            Ordering::Release,
        );
    }
}
