//! A question about one key, for the store or the denials that are remembered.

use std::{borrow::Cow, sync::Arc};

use tidegate_core::{Clock, Decision, DenialReason, Nanos};

use super::{JointRequest, SharedDecision, Source, decide_joint_seen};
use crate::{Deadline, Plan, Store, StoreError};

/// A request for the store, unless a remembered denial answers it.
pub struct Ask<'a> {
    pub plan: &'a Arc<Plan>,
    /// The whole key in Redis.
    pub key: Vec<u8>,
    pub cost: u64,
    /// The hash under which denials of the key are remembered, if they are.
    pub tag: Option<u64>,
    pub deadline: Deadline,
}

impl Store {
    /// The remembered denial of this cost, if it still holds.
    pub(super) fn remembered(&self, tag: u64, cost: u64, now: Nanos) -> Option<SharedDecision> {
        let decision = self.denials().get(tag, cost, now)?;
        self.batcher().monitor.counters().remembered.add(1);
        Some(SharedDecision {
            decision,
            source: Source::Remembered,
        })
    }

    /// Remembers a denial that was asked for at this time, if the limit's denials are remembered.
    pub(super) fn remember(&self, tag: Option<u64>, cost: u64, decision: &Decision, asked: Nanos) {
        if let Some(tag) = tag.filter(|_| decision.is_denied()) {
            self.denials().put(tag, cost, decision, asked);
        }
    }

    /// Decides on one request, unless a remembered denial applies. Also returns the time that the
    /// state uses, or this node's time.
    pub(crate) async fn decide(&self, ask: Ask<'_>) -> Result<(SharedDecision, Nanos), StoreError> {
        let Ask {
            plan,
            key,
            cost,
            tag,
            deadline,
        } = ask;
        let asked = self.batcher().monitor.clock.now();
        if let Some(remembered) = tag.and_then(|tag| self.remembered(tag, cost, asked)) {
            return Ok((remembered, asked));
        }
        self.in_time(deadline)?;
        if plan.is_joint() {
            let request = JointRequest {
                plan: Cow::Borrowed(plan),
                key,
                cost,
            };
            // Boxed: few rules block or have lines.
            let decided = Box::pin(decide_joint_seen(self, &[request], true, deadline)).await?;
            let (decision, seen) = *decided.first().ok_or(StoreError::BadReply)?;
            // Other denials count in the store.
            if decision.reason() == Some(DenialReason::Blocked) {
                self.remember(tag, cost, &decision, asked);
            }
            return Ok((SharedDecision::by_store(decision), seen));
        }
        let (decision, seen) = self.batcher().decide(plan, key, cost, deadline).await?;
        self.remember(tag, cost, &decision, asked);
        Ok((SharedDecision::by_store(decision), seen))
    }
}
