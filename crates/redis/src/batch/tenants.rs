//! Requests about tenants that share a limit: their allotments, a call for each, in which the tenant's
//! share decides, too; and corrections of what they took.

use std::sync::Arc;

use tidegate_core::lease::{Grant, Request as Asked};
use tidegate_core::{Algorithm as _, Clock as _, Decision, Nanos, Standing};

use super::{Batcher, Collector, GONE, lease::Errand};
use crate::{
    Deadline, StoreError,
    connection::beside,
    health::random,
    lease::{Held, Leases},
    script::{
        Plan,
        call::{self, ShareChange},
    },
};

impl Batcher {
    /// Sends a request about the allotment of a tenant.
    pub(super) fn allot(self: &Arc<Self>, errand: Errand, deadline: Deadline) {
        let batcher = Arc::clone(self);
        self.monitor.runner.connector.runtime().spawn(async move {
            let Some(request) = errand.request else {
                return;
            };
            let asked = batcher.allotted(&errand.leases, &errand.held, &request, deadline);
            match asked.await {
                Ok((grant, decision)) => errand.granted(&batcher, &grant, decision),
                Err(error) => errand.failed(&batcher, &error),
            }
        });
    }

    /// [`ask_for_leases`](Self::ask_for_leases) about tenants.
    pub(super) async fn ask_for_tenants(
        self: &Arc<Self>,
        leases: &Arc<Leases>,
        requests: impl IntoIterator<Item = (Arc<Held>, Asked), IntoIter: ExactSizeIterator>,
        latest: Deadline,
        deadline: Deadline,
    ) -> Vec<Result<Decision, StoreError>> {
        let requests = requests.into_iter();
        let (collector, places) = Collector::new(requests.len());
        let mut shards = Vec::with_capacity(requests.len());
        for ((held, request), place) in requests.zip(places) {
            shards.push(self.monitor.shard_of(held.key()));
            self.allot(Errand::new(leases, held, request, Some(place)), latest);
        }
        let (answers, in_time) = collector.wait(deadline).await;
        let answers = answers.into_iter().zip(shards);
        let answers = answers.map(|(answer, shard)| match answer {
            Some(answer) => answer,
            None if in_time => GONE,
            None => Err(self.timed_out(shard)),
        });
        answers
            .inspect(|answer| self.monitor.decided(answer))
            .map(|answer| Ok(answer?.0))
            .collect()
    }

    /// Asks the store: the grant for the tenant, and the decision for the caller.
    async fn allotted(
        &self,
        leases: &Leases,
        held: &Held,
        request: &Asked,
        deadline: Deadline,
    ) -> Result<(Grant, Decision), StoreError> {
        let (plan, key) = (leases.plan_of(held), held.key());
        if let Some(back) = request.back.filter(|back| back.units > 0) {
            let units = u64::from(back.units);
            let taken = (units, back.taken, plan.place());
            self.settle_units(&plan, key, taken, 0, deadline).await?;
            let change = ShareChange::Refund(units);
            self.follow_in_share(&plan, key, change, deadline).await;
        }
        if request.cost == 0 && request.ahead == 0 {
            let decision = Decision::allow(Standing {
                limit: plan.policy().limit(),
                room: 0,
                unit: 1,
                reset_after: 0,
            });
            let grant = Grant {
                decision,
                units: 0,
                usable_for: Nanos::ZERO,
                now: self.monitor.clock.now(),
            };
            return Ok((grant, decision));
        }
        let shard = self.monitor.shard_of(key);
        self.monitor.admit(shard)?;
        let mut keys = vec![key.to_vec()];
        keys.extend(plan.keys_beside(key, self.monitor.is_cluster()));
        let arguments = call::allot_arguments(&plan, request);
        let script = &self.scripts.allot;
        let call = self
            .monitor
            .call(shard, script, &keys, &arguments, deadline, true);
        let mut reply = call.await?;
        let units = call::pop_number(&mut reply)?;
        let units = u32::try_from(units).map_err(|_| StoreError::BadReply)?;
        let (now, parts) = call::parse(reply, keys.len())?;
        let found = call::found(std::iter::once(&plan), parts)?;
        let found = found.first().ok_or(StoreError::BadReply)?;
        let taken = request.cost.saturating_add(units.into());
        let (decision, seen) = plan.decision_on(found, now, (taken, true))?;
        let alike = plan.counted_alike(found.value.as_deref(), now);
        let by_share = found.share.is_some_and(|share| share.refusal.is_some());
        let grant = Grant {
            // A share's refusal ends as soon as others ask for less, so the node does not remember it.
            decision: if by_share {
                Decision::deny_for_good(decision.standing())
            } else {
                decision
            },
            units,
            usable_for: leases.terms.usable_for(alike.ok_or(StoreError::NotOurs)?),
            now: seen,
        };
        Ok((grant, decision))
    }

    /// Corrects units that were taken at a time of the store's clock to what was used.
    pub async fn settle_units(
        &self,
        plan: &Plan,
        whole: &[u8],
        taken: (u64, Nanos, [u8; 8]),
        actual: u64,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let shard = self.monitor.shard_of(whole);
        self.monitor.admit(shard)?;
        let once = self.once(whole);
        let keys = [whole.to_vec(), self.reset_key(whole), once.clone(), once];
        let arguments = call::settle_units_arguments(plan, taken, actual);
        let script = &self.scripts.correct;
        self.monitor
            .call(shard, script, &keys, &arguments, deadline, false)
            .await?;
        Ok(())
    }

    /// Changes what the plan's tenant has used of its share.
    pub async fn change_share(
        &self,
        plan: &Plan,
        whole: &[u8],
        change: ShareChange,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let is_cluster = self.monitor.is_cluster();
        let keys = plan.share_keys(whole, is_cluster);
        let arguments = call::share_change_arguments(plan, change);
        let (Some(keys), Some(arguments)) = (keys, arguments) else {
            return Ok(());
        };
        let shard = self.monitor.shard_of(whole);
        self.monitor.admit(shard)?;
        let mut keys = Vec::from(keys);
        if is_cluster {
            keys.push(self.once(whole));
        }
        let script = &self.scripts.share_change;
        self.monitor
            .call(shard, script, &keys, &arguments, deadline, false)
            .await?;
        Ok(())
    }

    /// Has a tenant's share follow a change of the limit itself. If the store does not reply, the
    /// share stays as it was: it decides which tenant is served first, never how much in all.
    pub async fn follow_in_share(
        &self,
        plan: &Plan,
        whole: &[u8],
        change: ShareChange,
        deadline: Deadline,
    ) {
        if let Err(error) = self.change_share(plan, whole, change, deadline).await {
            self.monitor.counters().outcome(&error);
        }
    }

    /// A key by which a script recognizes a call that a cluster's client repeats on its own.
    fn once(&self, whole: &[u8]) -> Vec<u8> {
        let text = format!("{}:refund:", self.monitor.runner.connector.prefix());
        let name = format!("{:016x}{:016x}", random(), random());
        beside(whole, &text, &name)
    }

    /// The key that says when a key was last reset.
    pub fn reset_key(&self, whole: &[u8]) -> Vec<u8> {
        let text = format!("{}:reset:", self.monitor.runner.connector.prefix());
        let name = String::from_utf8_lossy(whole).into_owned();
        beside(whole, &text, &name)
    }
}
