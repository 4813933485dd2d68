//! What one limit says, and what several say together.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use tidegate_core::Decision;

use crate::limits::Limit;

/// What one limit says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Which limit.
    pub limit: Arc<Limit>,
    /// The key that was asked; empty for a global limit.
    pub key: Vec<u8>,
    /// The decision as the algorithm took it. A shadow limit's denial is no denial: see
    /// [`is_allowed`](Self::is_allowed).
    pub decision: Decision,
}

impl Answer {
    /// Whether the work may go ahead as far as this limit is concerned.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed() || self.limit.spec().shadow
    }

    /// When asking again would be admitted; `None` for admitted work, and where no wait can be named.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() { None } else { self.decision.retry_after() }
    }

    /// When the limit is as good as new; `None` where no time can be named.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        reset_after(&self.decision)
    }
}

/// When a decision's limit is as good as new; `None` where no time can be named.
#[must_use]
pub fn reset_after(decision: &Decision) -> Option<Duration> {
    (decision.reset_after_nanos() != u64::MAX).then(|| decision.reset_after())
}

/// What several limits say together.
#[derive(Clone, Debug)]
pub struct JointAnswer {
    /// One answer for each limit that was asked, in that order.
    pub answers: Vec<Answer>,
    /// Which of them bound: the one that denies longest, or of those that all admit the one with the least remaining.
    pub bound: usize,
}

impl JointAnswer {
    /// Whether all limits that are enforced admitted, and so consumed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answers[self.bound].is_allowed()
    }

    /// # Panics
    /// When `answers` is empty.
    pub(super) fn new(answers: Vec<Answer>) -> Self {
        let strictness = |answer: &Answer| {
            let severity = if answer.is_allowed() { 0 } else { answer.decision.severity() };
            (severity, Reverse(answer.decision.remaining()))
        };
        let bound = (0..answers.len())
            // The first of equals.
            .max_by_key(|at| (strictness(&answers[*at]), Reverse(*at)))
            .expect("at least one limit is asked");
        Self { answers, bound }
    }
}
