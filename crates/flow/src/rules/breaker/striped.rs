//! The good calls of a busy resource, counted without waiting for other threads.
//!
//! As long as nothing bad is in view, a good call changes nothing about a breaker. So threads may count good calls in stripes of
//! their own, and the breaker adds the stripes up when there is something bad:
//!
//! - A good call adds to its stripe and then looks for bad calls.
//! - A bad call is counted and then changes each stripe's count (without adding to it). So of the two, at least one sees the
//!   other: the good call finds the bad one and adds up, or the bad call's sum contains the good one.
//! - Everybody who adds up issues a `SeqCst` fence between counting and adding up. So of two of them, at least one sees the
//!   other.

use std::sync::OnceLock;

use tidegate_core::{
    Nanos,
    stats::{Layout, Ring, Trailing},
};

use crate::sync::{AtomicU64, Ordering, fence};

/// The stripe of a call, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe {
    pub(crate) at: usize,
    pub(crate) of: usize,
}

/// Good calls in stripes. They are made when the first call has a stripe.
pub(super) struct StripedCalls {
    made: OnceLock<Box<[Calls]>>,
    /// 1 once good calls may count in stripes.
    ready: AtomicU64,
}

/// Aligned to two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Calls {
    ring: Ring<1, 0>,
    used: Trailing,
}

impl StripedCalls {
    pub(super) fn new() -> Self {
        Self { made: OnceLock::new(), ready: AtomicU64::new(0) }
    }

    /// Counts a good call in a stripe. False if there are no stripes yet.
    #[inline]
    pub(super) fn count(&self, at: usize, now: Nanos) -> bool {
        // Acquire: see `make`.
        if self.ready.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Some(calls) = self.made.get().and_then(|made| made.get(at)) else { return false };
        calls.ring.turn_to(now);
        calls.ring.add(0, 1);
        // Acquire: if a bad call changed the count before, it is visible now.
        fence(Ordering::Acquire);
        true
    }

    /// Makes stripes. `touch` changes the count of bad calls without adding to it. Bad calls before that change are visible to
    /// everybody who counts in a stripe, and later ones see the stripes.
    #[cold]
    pub(super) fn make(&self, of: usize, layout: Layout, touch: impl FnOnce()) {
        let calls = |_| Calls { ring: Ring::new(layout), used: Trailing::new(layout.whole()) };
        self.made.get_or_init(|| (0..of).map(calls).collect());
        touch();
        // Acquire and Release: the threads that see this see the bad calls before `touch`.
        fence(Ordering::AcqRel);
        self.ready.store(1, Ordering::Release);
    }

    fn each(&self) -> impl Iterator<Item = &Calls> {
        self.made.get().into_iter().flatten()
    }

    /// Called after a bad call was counted, and before anything is added up.
    pub(super) fn part(&self) {
        // Acquire: if stripes were made before the bad call was counted, they are visible now.
        fence(Ordering::Acquire);
        for calls in self.each() {
            calls.ring.add(0, 0);
        }
    }

    /// Returns how many calls in all stripes are in view at a time, which is asked for if there are any.
    #[inline]
    pub(super) fn in_view(&self, now: impl FnOnce() -> Nanos) -> u64 {
        if self.made.get().is_none() {
            return 0;
        }
        let now = now();
        self.each()
            .map(|calls| {
                calls.ring.turn_to(now);
                loop {
                    let (tally, head) = calls.ring.standing(0);
                    if let Some(used) = calls.used.used(&calls.ring, 0, tally, head) {
                        return used;
                    }
                }
            })
            .sum()
    }

    /// Counts only what comes later from now on.
    pub(super) fn forget(&self, now: Nanos) {
        for calls in self.each() {
            calls.ring.turn_to(now);
            calls.used.forget(calls.ring.tally(0));
        }
    }
}
