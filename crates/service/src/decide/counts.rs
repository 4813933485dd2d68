//! Decision counters of one limit. Their number depends on the number of limits, never on keys.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, DenialReason};

use crate::observe::heavy::Sampling;

/// Counters of one limit's decisions. Relaxed throughout: they order nothing, and a scrape needs no
/// exact moment.
#[derive(Debug, Default)]
pub struct Counts {
    allowed: AtomicU64,
    delayed: AtomicU64,
    /// By [`DenialReason::ALL`].
    denied: [AtomicU64; DenialReason::ALL.len()],
    shadow_denied: AtomicU64,
    errors: AtomicU64,
    pub sampling: Sampling,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountsRead {
    /// Admitted without delay.
    pub allowed: u64,
    /// Admitted after a delay.
    pub delayed: u64,
    /// Denied.
    pub denied: u64,
    /// Denied for each reason, by [`DenialReason::ALL`].
    pub denied_by: [u64; DenialReason::ALL.len()],
    /// Admitted by a shadow limit that would have denied.
    pub shadow_denied: u64,
    /// Decided without the store because it did not reply. The other counters include these.
    pub errors: u64,
}

impl Counts {
    /// Counts a decision that was enforced. Returns whether it belongs to the sample for heavy
    /// keys.
    #[inline]
    pub fn add(&self, decision: &Decision) -> bool {
        let counter = if let Some(reason) = decision.reason() {
            &self.denied[reason as usize]
        } else if decision.delay().is_zero() {
            &self.allowed
        } else {
            &self.delayed
        };
        self.sampling.takes(counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Like [`add`](Self::add), for a shadow limit.
    #[inline]
    pub fn add_shadow(&self, decision: &Decision) -> bool {
        if decision.is_denied() {
            self.sampling
                .takes(self.shadow_denied.fetch_add(1, Ordering::Relaxed))
        } else {
            self.add(decision)
        }
    }

    /// Counts a decision that was made without the store because it did not reply.
    pub fn add_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the counters.
    pub fn read(&self) -> CountsRead {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let denied_by = self.denied.each_ref().map(read);
        CountsRead {
            allowed: read(&self.allowed),
            delayed: read(&self.delayed),
            denied: denied_by.iter().sum(),
            denied_by,
            shadow_denied: read(&self.shadow_denied),
            errors: read(&self.errors),
        }
    }
}
