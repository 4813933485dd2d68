//! Units that may return: taken before the work, and corrected after it.

use tidegate_core::{Key, Nanos, Parameters};
use tidegate_limiter::Estimate;

use super::{
    Part, SharedDecision, SharedLimit, Source,
    joint::{all_without_store, decide_by_all},
};
use crate::{Store, StoreError, script::Plan};

/// Units of a shared limit that were taken for work whose cost is not known yet, for
/// [`SharedLimit::settle`]. It remembers where the units count.
#[derive(Debug)]
#[must_use = "units that are not settled stay taken"]
pub struct SharedEstimate {
    cost: u64,
    taken: TakenUnits,
}

/// Where units count.
#[derive(Debug)]
enum TakenUnits {
    /// In the store, at this time of its clock. For a leaky bucket, the bucket's time after them.
    Store { at: Nanos, place: [u8; 8] },
    /// In the memory of this process, which decided alone, with this charge for each unit.
    Local { estimate: Estimate, unit: u64 },
    /// Nowhere: the request was denied, or a limit failed open.
    Nothing,
}

impl SharedEstimate {
    const fn nothing() -> Self {
        Self {
            cost: 0,
            taken: TakenUnits::Nothing,
        }
    }

    /// The units that a decision of the store took.
    pub(super) fn of(answer: &SharedDecision, cost: u64, at: Nanos, plan: &Plan) -> Self {
        if answer.source != Source::Store || !answer.is_allowed() {
            return Self::nothing();
        }
        let at = match plan.policy().parameters() {
            Parameters::LeakyBucket { .. } => {
                at.saturating_add(Nanos::new(answer.decision.reset_after_nanos()))
            }
            _ => at,
        };
        let place = plan.place();
        let taken = TakenUnits::Store { at, place };
        Self { cost, taken }
    }

    /// The units that a decision in memory took, if there was one.
    pub(super) fn of_local(cost: u64, local: Option<(Estimate, u64)>) -> Self {
        local.map_or(Self::nothing(), |(estimate, unit)| Self {
            cost,
            taken: TakenUnits::Local { estimate, unit },
        })
    }

    /// The units in the store, when they were taken, and where they count.
    pub(super) const fn in_store(&self) -> (u64, Nanos, [u8; 8]) {
        match self.taken {
            TakenUnits::Store { at, place } => (self.cost, at, place),
            _ => (self.cost, Nanos::ZERO, [0; 8]),
        }
    }

    /// The units that were taken: 0 if the request was denied, or a limit failed open.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl SharedLimit {
    /// Asks for `cost` like [`acquire`](Self::acquire), for units that may return. The second value
    /// is what was taken, for [`settle`](Self::settle). As for a reservation, the store decides in
    /// every [mode](Self::mode): units that nodes hold count as used there.
    ///
    /// While a change of the limit's rule is rolled out, unused units return by this limit's rule,
    /// and stay taken by the other one.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_estimate(
        &self,
        key: impl Key,
        cost: u64,
    ) -> (SharedDecision, SharedEstimate) {
        match self.ask_store(&key, cost, self.deadline()).await {
            Ok((answer, seen)) => {
                let estimate = SharedEstimate::of(&answer, cost, seen, self.plan_for(cost));
                (answer, estimate)
            }
            Err(error) => {
                let (answer, local) =
                    key.with_bytes(|key| self.take_without_store(key, cost, error));
                (answer, SharedEstimate::of_local(cost, local))
            }
        }
    }

    /// Corrects an estimate to the `actual` cost: unused units return to where they count, and
    /// units beyond the estimate are charged, whether they fit or not. Units that have left the
    /// window, or were forgotten by a [`reset`](Self::reset), do not return, so that the limit is
    /// never exceeded. A start time of a leaky bucket returns only if it is the last one. Permits
    /// all return, whatever was used.
    ///
    /// # Errors
    /// When the store does not reply. The correction then was either made, or the estimate stays.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn settle(
        &self,
        key: impl Key,
        estimate: SharedEstimate,
        actual: u64,
    ) -> Result<(), StoreError> {
        let SharedEstimate { cost, taken } = estimate;
        // Permits return for any use: the work is over.
        if cost == actual && self.plan().hold().is_none() {
            return Ok(());
        }
        match taken {
            // Permits cannot be charged.
            TakenUnits::Nothing if actual == 0 || self.plan().hold().is_some() => Ok(()),
            TakenUnits::Nothing => match self.charge(key, actual).await.source {
                Source::Failed(error) => Err(error),
                _ => Ok(()),
            },
            TakenUnits::Local { estimate, unit } => {
                if let Some(local) = self.local() {
                    key.with_bytes(|key| local.settle(key, estimate, actual, unit));
                }
                Ok(())
            }
            TakenUnits::Store { at, place } => {
                let settled = self.settle_in_store(&key, (cost, at, place), actual).await;
                settled.inspect_err(|error| self.monitor().counters().outcome(error))
            }
        }
    }

    async fn settle_in_store(
        &self,
        key: &impl Key,
        taken: (u64, Nanos, [u8; 8]),
        actual: u64,
    ) -> Result<(), StoreError> {
        if actual > taken.0 && self.may_be_bound() {
            Box::pin(self.charge_formers(key, actual - taken.0)).await?;
        }
        let whole = self.redis_key(key);
        let batcher = self.store().batcher();
        batcher
            .settle_units(self.plan(), &whole, taken, actual, self.deadline())
            .await?;
        self.forget_denial(key);
        self.settle_share(key, taken.0, actual).await;
        Ok(())
    }
}

impl Store {
    /// Decides on several requests in one step like [`acquire_all`](Self::acquire_all), for units
    /// that may return. The second value is what was taken of each limit, for
    /// [`SharedLimit::settle`]. As for a reservation, the store decides in every mode.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_all_estimates(
        &self,
        parts: &[Part<'_>],
    ) -> Result<(Vec<SharedDecision>, Vec<SharedEstimate>), StoreError> {
        if let [part] = parts {
            let (answer, estimate) =
                Box::pin(part.limit.acquire_estimate(part.key, part.cost)).await;
            return Ok((vec![answer], vec![estimate]));
        }
        let Some(deadline) = parts.iter().map(|part| part.limit.deadline()).min() else {
            return Ok((Vec::new(), Vec::new()));
        };
        let requests: Vec<_> = parts
            .iter()
            .map(|part| part.limit.request(part.key, part.cost))
            .collect();
        match decide_by_all(self, parts, &requests, deadline).await {
            Ok(decided) => {
                let is_admitted = decided.iter().all(|(decision, _)| decision.is_allowed());
                let each = |(request, (decision, seen)): (&super::joint::JointRequest<'_>, _)| {
                    let answer = SharedDecision::by_store(decision);
                    let cost = if is_admitted { request.cost } else { 0 };
                    let estimate = SharedEstimate::of(&answer, cost, seen, &request.plan);
                    (answer, estimate)
                };
                Ok(requests.iter().zip(decided).map(each).unzip())
            }
            Err(error @ (StoreError::CrossSlot | StoreError::OneKey)) => Err(error),
            Err(error) => Ok(all_without_store(parts, |_| true, &error)),
        }
    }
}
