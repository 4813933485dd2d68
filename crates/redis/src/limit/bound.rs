//! Decisions while another rule binds this node, too (see [`rules`](crate::rules)).

use std::sync::Arc;

use tidegate_core::{Decision, Key, Nanos};

use super::{
    SharedDecision, SharedLimit,
    joint::{JointRequest, decide_joint, decide_joint_seen, key_of, of_formers, strictest},
};
use crate::{
    Deadline, StoreError,
    rules::Former,
    script::{
        Script,
        call::{self, ShareChange},
    },
};

impl SharedLimit {
    /// [`acquire_by`](Self::acquire_by) while another rule may bind this node.
    pub(super) async fn acquire_bound(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> SharedDecision {
        let formers = self.formers(key, deadline).await;
        self.acquire_after(formers, key, cost, deadline).await
    }

    /// [`acquire_bound`](Self::acquire_bound) once this node knows the other rules, or why it does
    /// not.
    pub(super) async fn acquire_after(
        &self,
        formers: Result<Vec<Former>, StoreError>,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> SharedDecision {
        let decided = match formers {
            Ok(formers) if formers.is_empty() => {
                return self.acquire_alone(key, cost, deadline).await;
            }
            Ok(formers) => self.take_by_all(key, cost, formers, deadline).await,
            Err(error) => Err(error),
        };
        self.answer(key, cost, decided.map(|(decision, _)| decision))
    }

    /// The store's decision by all rules that bind this node, and the time that the state of this
    /// limit's own rule uses.
    pub(super) async fn ask_store(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> Result<(SharedDecision, Nanos), StoreError> {
        if self.may_be_bound() {
            let formers = Box::pin(self.formers(key, deadline)).await?;
            if !formers.is_empty() {
                let decided = Box::pin(self.take_by_all(key, cost, formers, deadline)).await;
                return decided.map(|(decision, seen)| (SharedDecision::by_store(decision), seen));
            }
        }
        self.ask_store_alone(key, cost, deadline).await
    }

    /// Takes `cost` by this limit's rule and by all others, in one step where a cluster can.
    /// Otherwise the others come first, and get back what this limit's rule denies: so there is
    /// never too little charged. Also returns the time that the state of this limit's own rule uses.
    async fn take_by_all(
        &self,
        key: &impl Key,
        cost: u64,
        formers: Vec<Former>,
        deadline: Deadline,
    ) -> Result<(Decision, Nanos), StoreError> {
        let (near, far) = self.by_slot(key, formers);
        let state = self.state_key(key);
        let mut steps: Vec<_> = of_formers(&far, &state, cost)
            .into_iter()
            .map(|far| vec![far])
            .collect();
        steps.push(
            [self.request(key, cost)]
                .into_iter()
                .chain(of_formers(&near, &state, cost))
                .collect(),
        );
        for (at, requests) in steps.into_iter().enumerate() {
            let decided = decide_joint_seen(&self.0.store, &requests, true, deadline).await;
            let decided = decided.and_then(|decided| {
                let (_, seen) = *decided.first().ok_or(StoreError::BadReply)?;
                let decisions: Vec<_> = decided.iter().map(|(decision, _)| *decision).collect();
                Ok((strictest(&decisions), seen))
            });
            let admits = matches!(&decided, Ok((decision, _)) if !decision.is_denied());
            if admits && at < far.len() {
                continue;
            }
            for former in far.iter().take(at).filter(|_| !admits) {
                self.refund_former(former, &state, cost).await;
            }
            return decided;
        }
        Err(StoreError::BadReply)
    }

    /// Refunds the units that a rule that binds this node has counted. They stay charged if that
    /// fails.
    async fn refund_former(&self, former: &Former, state: &Vec<u8>, cost: u64) {
        let script = self.0.store.batcher().scripts.refund(former.plan.kind());
        let arguments = call::refund_arguments(&former.plan, cost);
        let whole = key_of(former, state);
        let _ = self
            .change_in_store(&former.plan, whole, script, &arguments)
            .await;
    }

    /// The same for all rules that bind this node.
    pub(super) async fn refund_formers(&self, key: &impl Key, cost: u64) {
        let state = self.state_key(key);
        for former in self.formers(key, self.deadline()).await.unwrap_or_default() {
            self.refund_former(&former, &state, cost).await;
        }
    }

    /// The rules whose keys are in the slot of this limit's key, and the others. A cluster decides
    /// only on keys of one slot in one step.
    pub(super) fn by_slot(
        &self,
        key: &impl Key,
        formers: Vec<Former>,
    ) -> (Vec<Former>, Vec<Former>) {
        let (monitor, own) = (self.monitor(), self.redis_key(key));
        let state = self.state_key(key);
        formers
            .into_iter()
            .partition(|former| monitor.slot(&key_of(former, &state)) == monitor.slot(&own))
    }

    /// Whether another rule may bind this node, or this node does not know that yet.
    pub(super) fn may_be_bound(&self) -> bool {
        self.0
            .announcement
            .as_ref()
            .is_some_and(|announcement| !announcement.is_alone())
    }

    /// The other rules that bind decisions about a key, once this node knows them.
    pub(super) async fn formers(
        &self,
        key: &impl Key,
        deadline: Deadline,
    ) -> Result<Vec<Former>, StoreError> {
        let Some(announcement) = self
            .0
            .announcement
            .as_ref()
            .filter(|rules| !rules.is_alone())
        else {
            return Ok(Vec::new());
        };
        let (whole, monitor) = (self.redis_key(key), self.monitor());
        monitor.admit(monitor.shard_of(&whole))?;
        announcement
            .formers(deadline)
            .await
            .inspect_err(|error| monitor.counters().error(error))
    }

    /// The other rules that nodes have, whether they bind this one or not, unless they have the same
    /// keys.
    pub(super) async fn others(&self, key: &impl Key) -> Result<Vec<Former>, StoreError> {
        let Some(announcement) = &self.0.announcement else {
            return Ok(Vec::new());
        };
        let (whole, monitor) = (self.redis_key(key), self.monitor());
        monitor.admit(monitor.shard_of(&whole))?;
        let others = announcement.others(self.deadline()).await;
        others.inspect_err(|error| monitor.counters().error(error))
    }

    /// The decisions on no units, on `cost`, and on `cost` by each other rule that binds this node.
    pub(super) async fn look(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> Result<Vec<Decision>, StoreError> {
        self.0.store.in_time(deadline)?;
        let (near, far) = self.by_slot(key, Box::pin(self.formers(key, deadline)).await?);
        let asked = self.request(key, cost);
        let none = JointRequest {
            plan: asked.plan.clone(),
            key: asked.key.clone(),
            cost: 0,
        };
        let state = self.state_key(key);
        let own = [none, asked];
        let all: Vec<_> = own
            .into_iter()
            .chain(of_formers(&near, &state, cost))
            .collect();
        let mut decisions = decide_joint(&self.0.store, &all, false, deadline).await?;
        for request in of_formers(&far, &state, cost) {
            decisions.extend(decide_joint(&self.0.store, &[request], false, deadline).await?);
        }
        Ok(decisions)
    }

    /// Charges a key by the other rules that bind this node.
    pub(super) async fn charge_formers(&self, key: &impl Key, cost: u64) -> Result<(), StoreError> {
        for former in self.formers(key, self.deadline()).await? {
            // The same key has one charge, by this limit's own rule.
            if let Some(script) = self.0.store.batcher().scripts.charge(former.plan.kind())
                && *former.prefix != *self.0.prefix
            {
                let arguments = call::charge_arguments(&former.plan, cost);
                let _standing = self
                    .change_in_store(
                        &former.plan,
                        key_of(&former, &self.state_key(key)),
                        script,
                        &arguments,
                    )
                    .await?;
            }
        }
        Ok(())
    }

    /// Charges a key, also by the other rules that bind this node.
    pub(super) async fn charge_all(
        &self,
        key: &impl Key,
        cost: u64,
        script: &Arc<Script>,
    ) -> Result<Decision, StoreError> {
        self.charge_formers(key, cost).await?;
        let arguments = call::charge_arguments(self.plan(), cost);
        let standing = self
            .change_in_store(self.plan(), self.redis_key(key), script, &arguments)
            .await?;
        self.follow_in_share(key, ShareChange::Charge(cost)).await;
        Ok(standing)
    }
}
