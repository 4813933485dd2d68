//! How often one limit said what: bounded by the number of limits, never by their keys.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Decision;

use crate::heavy::Sampling;

/// Counters of one limit's decisions. Relaxed throughout: they order nothing, and a scrape needs no exact instant.
#[derive(Debug, Default)]
pub struct Counts {
    allowed: AtomicU64,
    delayed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    errors: AtomicU64,
    pub(crate) sampling: Sampling,
}

/// The counters read at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountsRead {
    /// Admitted at once.
    pub allowed: u64,
    /// Admitted after a delay.
    pub delayed: u64,
    /// Denied.
    pub denied: u64,
    /// Let through by a shadow limit that would have denied.
    pub shadow_denied: u64,
    /// Decided without the store, which gave no answer. These are among the others, too.
    pub errors: u64,
}

impl Counts {
    /// Counts a decision that was enforced; whether it is one of the sample from which heavy keys are told.
    #[inline]
    pub fn add(&self, decision: &Decision) -> bool {
        let counter = if decision.is_denied() {
            &self.denied
        } else if decision.delay().is_zero() {
            &self.allowed
        } else {
            &self.delayed
        };
        self.sampling.takes(counter.fetch_add(1, Ordering::Relaxed))
    }

    /// As [`add`](Self::add), of a shadow limit.
    #[inline]
    pub fn add_shadow(&self, decision: &Decision) -> bool {
        if decision.is_denied() {
            self.sampling.takes(self.shadow_denied.fetch_add(1, Ordering::Relaxed))
        } else {
            self.add(decision)
        }
    }

    /// Counts a decision that the store did not make, as it gave no answer.
    pub(crate) fn add_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> CountsRead {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CountsRead {
            allowed: read(&self.allowed),
            delayed: read(&self.delayed),
            denied: read(&self.denied),
            shadow_denied: read(&self.shadow_denied),
            errors: read(&self.errors),
        }
    }
}
