//! Decisions of shared limits, and who made them.

use tidegate_core::Decision;

use crate::StoreError;

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The store, earlier: it denied the same request, and the wait is not over.
    Remembered,
    /// This node, from its allotment.
    Lease,
    /// No one: the store made no decision, and the limit fails open or closed. See
    /// [`OnError`](crate::OnError).
    Failed(StoreError),
    /// This process alone, because the store made no decision.
    Local(StoreError),
}

/// A decision on a shared limit, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision has no effect unless the caller reads it"]
pub struct SharedDecision {
    /// The decision.
    pub decision: Decision,
    /// Who made it.
    pub source: Source,
}

impl SharedDecision {
    /// Whether the work may start, now or after [`Decision::delay`].
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Whether the request is denied.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        self.decision.is_denied()
    }

    pub(crate) const fn by_store(decision: Decision) -> Self {
        Self {
            decision,
            source: Source::Store,
        }
    }
}
