//! Units that were granted to a request that waits.

use crate::{SharedDecision, SharedEstimate, SharedLimit};

/// An answer that may have taken units. They return unless it is kept.
#[derive(Debug)]
pub struct Grant {
    pub limit: SharedLimit,
    pub key: Vec<u8>,
    pub answer: SharedDecision,
    estimate: Option<SharedEstimate>,
}

impl Grant {
    pub fn new(
        limit: SharedLimit,
        key: Vec<u8>,
        (answer, estimate): (SharedDecision, SharedEstimate),
    ) -> Self {
        Self {
            limit,
            key,
            answer,
            estimate: Some(estimate),
        }
    }

    pub fn keep(mut self) -> (SharedDecision, SharedEstimate) {
        let estimate = self.estimate.take();
        (
            self.answer.clone(),
            estimate.unwrap_or(SharedEstimate::unknown(0)),
        )
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let Some(estimate) = self.estimate.take().filter(|taken| taken.cost() > 0) else {
            return;
        };
        let (limit, key) = (self.limit.clone(), std::mem::take(&mut self.key));
        self.limit.runtime().spawn(async move {
            // After an error, which is counted, the units stay charged.
            let _ = limit.settle(&key[..], estimate, 0).await;
        });
    }
}
