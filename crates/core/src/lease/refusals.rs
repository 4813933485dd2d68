//! Remembered denials: asking the authority again before their time would change nothing.

use crate::{Decision, Nanos};

use super::allotment::RefusedCost;

/// How many costs are remembered. Callers of one limit rarely have more.
const KEPT: usize = 8;

/// One denial per cost, the newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    kept: Vec<RefusedCost>,
}

impl Refusals {
    /// Remembers a denial that was asked for at `sent`, and is not older. A denial without a retry
    /// time is not remembered.
    pub fn remember(&mut self, cost: u64, denied: &Decision, sent: Nanos) -> Option<RefusedCost> {
        let wait = denied.retry_after()?;
        let until = sent.saturating_add(wait.into());
        let refusal = RefusedCost {
            cost,
            until,
            reset_at: sent.saturating_add(denied.reset_after().into()),
        };
        self.kept.retain(|kept| kept.cost != cost);
        self.kept.truncate(KEPT - 1);
        self.kept.insert(0, refusal);
        Some(refusal)
    }

    /// The denial of exactly this cost, if it still holds.
    pub fn find(&self, cost: u64, now: Nanos) -> Option<RefusedCost> {
        self.kept
            .iter()
            .copied()
            .find(|kept| kept.cost == cost && now < kept.until)
    }

    /// Whether the authority gave this denial.
    pub fn has(&self, refusal: &RefusedCost) -> bool {
        self.kept.contains(refusal)
    }

    /// Drops the denials of an admitted cost and of all lower costs.
    pub fn admitted(&mut self, cost: u64) {
        self.kept.retain(|kept| kept.cost > cost);
    }
}
