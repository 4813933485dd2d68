//! The decisions of one limit and of several together.

use std::{sync::Arc, time::Duration};

use tidegate_core::Decision;

use crate::decide::limits::Limit;

/// The header field of answers that names the soft limits which are exceeded.
pub const SOFT_EXCEEDED: &str = "x-tidegate-soft-exceeded";

/// The decision of one limit.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The key in the request; empty for a global limit.
    pub key: Vec<u8>,
    /// The algorithm's decision. A shadow limit's denial does not count: see
    /// [`is_allowed`](Self::is_allowed).
    pub decision: Decision,
}

impl Answer {
    /// Whether this limit allows the work.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed() || self.limit.spec().shadow
    }

    /// After how long a retry would be admitted; `None` for admitted work, and if the wait is
    /// unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            None
        } else {
            self.decision.retry_after()
        }
    }

    /// When the limit is full again; `None` if the time is unknown.
    pub fn reset_after(&self) -> Option<Duration> {
        reset_after(&self.decision)
    }
}

/// When a decision's limit is full again; `None` if the time is unknown.
pub fn reset_after(decision: &Decision) -> Option<Duration> {
    (decision.reset_after_nanos() != u64::MAX).then(|| decision.reset_after())
}

/// The decision of several limits together.
#[derive(Clone, Debug)]
pub struct JointAnswer {
    /// The answer of each limit, in the order of the request.
    pub answers: Vec<Answer>,
    /// The index of the limit that bound: the one with the longest denial, or if all admit, the one
    /// with the least remaining.
    pub bound: usize,
}

impl JointAnswer {
    /// Whether all enforced limits admitted, and so consumed.
    pub fn is_allowed(&self) -> bool {
        self.answers[self.bound].is_allowed()
    }

    /// The answer of the limit that bound.
    pub fn into_bound(mut self) -> Answer {
        self.answers.swap_remove(self.bound)
    }
}
