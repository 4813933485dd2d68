//! Changes of a key's state that are no decision on a request: refunds, charges, resets, and the end
//! of a block.

use std::{borrow::Cow, sync::Arc};

use tidegate_core::{Decision, Key};

use super::{
    SharedDecision, SharedLimit, Source,
    joint::{JointRequest, decide_joint, key_of},
    local::Local,
};
use crate::{
    Plan, StoreError,
    connection::beside,
    health::random,
    orders::{MOMENT, StoredOrder},
    script::{
        Script,
        call::{self, ShareChange},
    },
};

impl SharedLimit {
    /// Refunds up to `cost` of a key's use and returns the key's state afterwards. The newest units
    /// are refunded first, whichever node took them. For permits, the oldest are refunded first,
    /// even if a [`SharedPermit`](crate::SharedPermit) still holds them. The refund never exceeds the use. A cost of 0 only
    /// returns the state.
    ///
    /// Other nodes remember a denial for a second at most (see
    /// [`remember_denials`](crate::LimitBuilder::remember_denials)), and never one of permits. What
    /// nodes hold of a [leased or reported](Self::mode) limit is given back within a second. Amid a
    /// roll-out, the units return by the former rule, too.
    ///
    /// Permits that were granted in memory while the store was down ([`OnError::Local`](crate::OnError::Local)) are
    /// refunded first, in memory. While the store is down, everything is refunded in memory.
    ///
    /// # Errors
    /// When the store does not reply. The refund then was either made, or the units stay charged
    /// until the algorithm forgets them. Nothing is refunded twice.
    pub async fn refund(&self, key: impl Key, cost: u64) -> Result<SharedDecision, StoreError> {
        let (local, unit) = (self.local(), self.local_unit());
        let permits = self.plan().hold().is_some();
        let refund = |local: &Local, cost| key.with_bytes(|key| local.refund(key, cost, unit));
        let here = local
            .filter(|_| permits)
            .map_or(0, |local| refund(local, cost));
        let script = self.0.store.batcher().scripts.refund(self.plan().kind());
        let arguments = call::refund_arguments(self.plan(), cost - here);
        let error = match self
            .change_in_store(self.plan(), self.redis_key(&key), script, &arguments)
            .await
        {
            Ok(decision) => {
                if cost > 0 {
                    if self.may_be_bound() {
                        Box::pin(self.refund_formers(&key, cost - here)).await;
                    }
                    let change = ShareChange::Refund(cost);
                    self.follow_in_share(&key, change).await;
                    if self.0.leases.is_some() {
                        self.announce(StoredOrder::Refund, &key).await?;
                    }
                }
                return Ok(SharedDecision::by_store(decision));
            }
            Err(error) => error,
        };
        self.monitor().counters().outcome(&error);
        // Refund in memory only if the store has certainly not done it. In a cluster this is never
        // certain, because its client may try again after a connection broke, and the last error
        // says nothing about the first try.
        let certain = error.is_certain() && !self.monitor().is_cluster();
        let untouched = error == StoreError::Down || certain;
        match local.filter(|_| untouched) {
            Some(local) => {
                refund(local, cost - here);
                let decision = key.with_bytes(|key| local.standing(key, unit));
                Ok(SharedDecision {
                    decision,
                    source: Source::Local(error),
                })
            }
            None => Err(error),
        }
    }

    /// Takes `cost` even if it does not fit: for a cost that is known only after the work. Returns
    /// the decision on a cost of 0 afterwards: a denial if more is in use than the limit. Units
    /// above the limit are debt, which time repays (see [`Algorithm::charge`](tidegate_core::Algorithm::charge)). Of a [leased or
    /// reported](Self::mode) limit, units that this node holds are used if they suffice.
    ///
    /// This never fails: if the store does not reply, [`OnError`](crate::OnError) decides. With [`Source::Local`]
    /// the charge was made in memory. With [`Source::Failed`] it is unknown whether it was made;
    /// permits cannot be charged ([`StoreError::Held`]).
    pub async fn charge(&self, key: impl Key, cost: u64) -> SharedDecision {
        if cost == 0 {
            return self.acquire(key, 0).await;
        }
        // A tenant's share learns from charges what the next ones will be.
        if self.0.leases.is_some()
            && self.0.tenants.is_none()
            && let Some(held) = self
                .acquire_here(&key, cost)
                .filter(SharedDecision::is_allowed)
        {
            return held;
        }
        let Some(script) = self.0.store.batcher().scripts.charge(self.plan().kind()) else {
            let decision = Decision::deny_for_good(self.unknown());
            return SharedDecision {
                decision,
                source: Source::Failed(StoreError::Held),
            };
        };
        let error = match Box::pin(self.charge_all(&key, cost, script)).await {
            Ok(decision) => return SharedDecision::by_store(decision),
            Err(error) => error,
        };
        self.monitor().counters().outcome(&error);
        key.with_bytes(|key| match self.local() {
            Some(local) => {
                let decision = local.charge(key, cost, self.local_unit());
                SharedDecision {
                    decision,
                    source: Source::Local(error),
                }
            }
            None => self.without_store(key, cost, error),
        })
    }

    /// Forgets what a key has used. A tenant that shares the limit starts fresh, and what all have
    /// used stays. What nodes hold of a [leased or reported](Self::mode) limit is
    /// dropped within a second; what they admit from it until then comes on top. Amid a roll-out, the
    /// rules of all nodes forget it.
    /// [Orders](crate::Store::order) about the key stay.
    ///
    /// # Errors
    /// When the store does not reply. The reset then was either made or not.
    pub async fn reset(&self, key: impl Key) -> Result<(), StoreError> {
        if self.0.tenants.is_some() {
            return self.change_share(&key, ShareChange::Reset).await;
        }
        // The keys of other rules come first, so that a repeated reset completes one that failed.
        let others = Box::pin(self.others(&key)).await?;
        for other in &others {
            self.reset_key(key_of(other, &key)).await?;
        }
        self.reset_key(self.redis_key(&key)).await?;
        self.forget_denial(&key);
        // Nodes with another rule may hold units, too.
        if self.0.leases.is_some() || !others.is_empty() {
            self.announce(StoredOrder::Reset, &key).await?;
        }
        Ok(())
    }

    /// Forgets what the key `whole` in Redis has used by the rule that it belongs to.
    async fn reset_key(&self, whole: Vec<u8>) -> Result<(), StoreError> {
        let (batcher, monitor) = (self.0.store.batcher(), self.monitor());
        let shard = monitor.shard_of(&whole);
        monitor.admit(shard)?;
        let block = self.plan().block_key(&whole, monitor.is_cluster());
        let moment = batcher.reset_key(&whole);
        let mut keys = vec![whole, moment];
        keys.extend(block);
        let script = &batcher.scripts.reset;
        let asked = monitor.call(shard, script, &keys, &[] as &[&[u8]], self.deadline(), true);
        asked.await.map(drop)
    }

    /// Ends the block of a key by the policy's [`Penalty`](tidegate_core::Penalty), and forgets the
    /// denials that count. Returns whether the key was blocked. Other nodes notice within a second.
    /// [Orders](crate::Store::order) about the key stay.
    ///
    /// # Errors
    /// When the store does not reply. The block then was either ended or not.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn unblock(&self, key: impl Key) -> Result<bool, StoreError> {
        if let Some(local) = self.local() {
            key.with_bytes(|key| local.unblock(key));
        }
        let mut was_blocked = false;
        for other in Box::pin(self.others(&key)).await? {
            let whole = key_of(&other, &self.state_key(&key));
            was_blocked |= self.unblock_key(&whole).await?;
        }
        was_blocked |= self.unblock_key(&self.redis_key(&key)).await?;
        self.forget_denial(&key);
        Ok(was_blocked)
    }

    /// Ends the block of the key `whole` in Redis. Returns whether it was blocked.
    async fn unblock_key(&self, whole: &[u8]) -> Result<bool, StoreError> {
        let monitor = self.monitor();
        let Some(block) = self.plan().block_key(whole, monitor.is_cluster()) else {
            return Ok(false);
        };
        let shard = monitor.shard_of(whole);
        monitor.admit(shard)?;
        let script = &self.0.store.batcher().scripts.unblock;
        let (keys, arguments): ([_; 1], &[&[u8]]) = ([block], &[]);
        let asked = monitor.call(shard, script, &keys, arguments, self.deadline(), true);
        redis::from_redis_value(asked.await?).map_err(|_| StoreError::BadReply)
    }

    /// The key that says when a key was last reset.
    pub(super) fn moment_key(&self, key: impl Key) -> Vec<u8> {
        self.store().batcher().reset_key(&self.redis_key(key))
    }

    /// Asks the store again about a key, also for those who wait: units may have become free.
    pub(super) fn forget_denial(&self, key: impl Key) {
        if self.plan().has_line() {
            self.0.store.lines().poke(&self.line_key(&key));
        }
        if let Some(tag) = self.denial_tag(&self.redis_key(key)) {
            self.0.store.denials().forget(tag);
        }
    }

    /// Has every node, including this one, give back or drop what it holds for a key.
    async fn announce(&self, kind: StoredOrder, key: &impl Key) -> Result<(), StoreError> {
        let store = &self.0.store;
        let key = key.with_bytes(<[u8]>::to_vec);
        let change = (kind, &self.0.name[..], &key[..]);
        store
            .orders_followed()
            .give(store.batcher(), change, "1", Some(MOMENT))
            .await
            .map(drop)
    }

    /// Runs a script that refunds or charges the key `whole` in Redis.
    pub(super) async fn change_in_store(
        &self,
        plan: &Plan,
        whole: Vec<u8>,
        script: &Arc<Script>,
        arguments: &[Vec<u8>],
    ) -> Result<Decision, StoreError> {
        let (store, monitor) = (&self.0.store, self.monitor());
        let shard = monitor.shard_of(&whole);
        monitor.admit(shard)?;
        let denials = self.denial_tag(&whole);
        let mut keys = vec![whole];
        if monitor.is_cluster() {
            // The cluster client repeats calls on its own. This key lets the script recognize a
            // repeated call.
            let text = format!("{}:refund:", monitor.runner.connector.prefix());
            let name = format!("{:016x}{:016x}", random(), random());
            keys.push(beside(&keys[0], &text, &name));
        }
        let reply = monitor
            .call(shard, script, &keys, arguments, self.deadline(), false)
            .await?;
        if let Some(tag) = denials {
            store.denials().forget(tag);
        }
        if plan.has_line() {
            let line = Plan::line_key(&keys[0], monitor.is_cluster());
            store.lines().poke(&line);
        }
        let (now, before) = call::parse_one(reply)?;
        let standing = plan.decision(before.as_deref(), now, 0)?;
        if !plan.is_joint() {
            return Ok(standing);
        }
        // These scripts know no blocks.
        let look = JointRequest {
            plan: Cow::Borrowed(plan),
            key: keys.swap_remove(0),
            cost: 0,
        };
        let seen = decide_joint(store, &[look], false, self.deadline()).await?;
        seen.first().copied().ok_or(StoreError::BadReply)
    }
}
