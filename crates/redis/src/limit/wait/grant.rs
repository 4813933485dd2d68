//! Units that were granted to a request that waits.

use super::WaitPart;
use crate::{Part, SharedDecision, SharedEstimate};

/// The decisions on a request that may have waited, and the units that it was granted. If it is
/// dropped, the units return.
#[derive(Debug)]
#[must_use = "the units return when it is dropped"]
pub struct SharedGrant {
    parts: Vec<WaitPart>,
    pub(super) answers: Vec<SharedDecision>,
    pub(super) estimates: Vec<SharedEstimate>,
}

impl SharedGrant {
    pub(super) fn new(
        parts: Vec<WaitPart>,
        (answers, estimates): (Vec<SharedDecision>, Vec<SharedEstimate>),
    ) -> Self {
        Self {
            parts,
            answers,
            estimates,
        }
    }

    /// The decisions of a request that has taken nothing.
    pub(super) fn nothing(answers: Vec<SharedDecision>) -> Self {
        Self::new(Vec::new(), (answers, Vec::new()))
    }

    /// The decision of each limit.
    pub fn answers(&self) -> &[SharedDecision] {
        &self.answers
    }

    /// Keeps the units: the decisions, and if all admit, what was taken of each limit, for
    /// [`SharedLimit::settle`](crate::SharedLimit::settle).
    #[must_use]
    pub fn keep(mut self) -> (Vec<SharedDecision>, Vec<SharedEstimate>) {
        (
            std::mem::take(&mut self.answers),
            std::mem::take(&mut self.estimates),
        )
    }

    /// Adds what was taken of another limit for the same work, in front of the limit at this index.
    ///
    /// # Panics
    /// If the request has fewer limits.
    pub fn insert(&mut self, at: usize, part: Part<'_>, taken: (SharedDecision, SharedEstimate)) {
        self.parts.insert(at, WaitPart::owned(&part));
        self.answers.insert(at, taken.0);
        self.estimates.insert(at, taken.1);
    }

    /// The limits and keys, and what was taken of each.
    pub(in crate::limit) fn taken(&self) -> impl Iterator<Item = (Part<'_>, &SharedEstimate)> {
        let parts = self.parts.iter().map(WaitPart::borrowed);
        parts.zip(&self.estimates)
    }
}

impl Drop for SharedGrant {
    fn drop(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        for (part, estimate) in parts.into_iter().zip(self.estimates.drain(..)) {
            if estimate.cost() > 0 {
                let WaitPart { limit, key, .. } = part;
                limit.runtime().clone().spawn(async move {
                    // After an error, which is counted, the units stay charged.
                    let _ = limit.settle(&key[..], estimate, 0).await;
                });
            }
        }
    }
}
