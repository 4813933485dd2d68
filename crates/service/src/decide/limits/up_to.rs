//! Decisions that take what is available of a cost.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::{Decision, Nanos};

use super::{Act, Limit};
use crate::decide::{refusal::Refusal, shared::StoreLimit};

impl Limit {
    /// Takes as much of `cost` as is available, with `spent` of the store's deadline already used.
    /// Returns how much the caller may use and the decision on it: a denial if that is nothing. A
    /// shadow limit counts what is available, and a soft one everything; the caller may use all.
    ///
    /// # Errors
    /// The same as of [`decide`](Self::decide).
    pub async fn take_up_to(
        &self,
        spent: Duration,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Result<(u64, Decision), Refusal> {
        if self.spec.soft {
            let decision = self.decide_after(spent, Act::Take, key, cost, now).await?;
            return Ok((cost, decision));
        }
        if let Some(taken) = self.take_up_to_in_memory(key, cost, now) {
            return Ok(taken);
        }
        let Some(store) = &self.store else {
            unreachable!("without a store, memory always decides")
        };
        Ok(self.take_up_to_in(store, spent, key, cost, now).await)
    }

    fn take_up_to_in<'a>(
        &'a self,
        store: &'a StoreLimit,
        spent: Duration,
        key: &'a [u8],
        cost: u64,
        now: Nanos,
    ) -> BoxFuture<'a, (u64, Decision)> {
        Box::pin(async move {
            let (taken, shared) = store.take_up_to(key, cost, spent).await;
            self.counted_up_to(key, (taken, cost), self.by_store(&shared), now)
        })
    }

    /// [`take_up_to`](Self::take_up_to) in memory. `None` if only the store can decide.
    #[must_use = "`None` means that nothing was decided"]
    pub fn take_up_to_in_memory(
        &self,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Option<(u64, Decision)> {
        // A blocked key, a soft limit, or numbers that no rule has.
        if self.store.is_some() || self.spec.soft || self.own.is_some() {
            let decision = self.decide_in_memory(Act::Take, key, cost, now)?;
            let taken = if decision.is_allowed() { cost } else { 0 };
            return Some((self.usable(taken, cost), decision));
        }
        let (taken, decision) = match self.of_tenant(key) {
            Some(of) => match self.block_of(key, now) {
                Some(blocked) => (0, blocked),
                None => of.take_up_to(cost, now),
            },
            None => self.memory.limiter.at(now).acquire_up_to(key, cost),
        };
        let decision = self.explained(key, decision);
        Some(self.counted_up_to(key, (taken, cost), decision, now))
    }

    fn counted_up_to(
        &self,
        key: &[u8],
        (taken, cost): (u64, u64),
        decision: Decision,
        now: Nanos,
    ) -> (u64, Decision) {
        let asked = if decision.is_allowed() { taken } else { cost };
        self.count(Act::Take, key, asked, &decision, now);
        (self.usable(taken, cost), decision)
    }

    /// The part of a cost that the caller may use.
    const fn usable(&self, taken: u64, cost: u64) -> u64 {
        if self.spec.shadow || self.spec.soft {
            cost
        } else {
            taken
        }
    }
}
