//! Decisions on shared limits, and who made them.

use tidegate_core::Decision;

use crate::StoreError;

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The store, earlier: the same request was denied until a time that has not come.
    Remembered,
    /// This node, from the allotment of the quota that it holds.
    Lease,
    /// Nobody: the store gave no decision, and the limit fails open or closed. See [`OnError`](crate::OnError).
    Failed(StoreError),
    /// This process alone, as the store gave no decision.
    Local(StoreError),
}

/// A decision on a shared limit, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision that nobody reads limits nothing"]
pub struct SharedDecision {
    /// The decision.
    pub decision: Decision,
    /// Who made it.
    pub source: Source,
}

impl SharedDecision {
    /// Whether the work may go ahead, now or after [`Decision::delay`].
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Whether the work may not go ahead.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        self.decision.is_denied()
    }

    pub(crate) const fn by_store(decision: Decision) -> Self {
        Self { decision, source: Source::Store }
    }
}
