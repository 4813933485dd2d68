//! A limit for each key, shared by all nodes.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use tidegate_core::lease::{self, Mode};
use tidegate_core::{Algorithm, Clock, Decision, DenialReason, Key, Nanos, Policy, Standing};
use tidegate_limiter::{Estimate, KeyedLimit};

use super::{
    OnError, SharedDecision, SharedPermit, Source,
    ask::Ask,
    joint::{JointRequest, decide_joint, strictest},
    local::Local,
    tenants::StoreTenants,
};
use crate::{
    Deadline, Plan, Store, StoreError,
    connection::beside,
    health::{Monitor, Wait, random},
    lease::{Held, LeaseAnswer, Leases},
    orders::{MOMENT, StoredOrder},
    rules::Announcement,
    script::{
        Script,
        call::{self, ShareChange},
    },
};

/// A limit for each key, shared by all processes that use the same name and policy in the same
/// store. Cheap to clone. Keys can be text, bytes, integers and IP addresses: see [`Key`].
#[derive(Clone)]
pub struct SharedLimit(pub(super) Arc<Shared>);

pub struct Shared {
    pub store: Store,
    pub name: String,
    pub policy: Policy,
    pub plan: Arc<Plan>,
    /// For costs that are larger than a leased bucket, of which a part is kept back.
    pub whole: Option<Arc<Plan>>,
    pub prefix: Vec<u8>,
    /// `None` if the store makes every decision.
    pub leases: Option<Arc<Leases>>,
    pub on_error: OnError,
    pub wait: Arc<Wait>,
    pub remembers: bool,
    pub salt: u64,
    pub local: Option<Local>,
    /// The tenants that share the limit; `None` if each key has its own.
    pub tenants: Option<StoreTenants>,
    /// `None` if the limit's rule is not announced.
    pub announcement: Option<Arc<Announcement>>,
}

impl SharedLimit {
    pub(super) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The mode in force: [`Mode::Exact`] if the policy allows no other mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0
            .leases
            .as_ref()
            .map_or(Mode::Exact, |leases| leases.terms.mode())
    }

    /// The policy as the scripts use it. For a leased sliding log or token bucket it differs
    /// slightly from the limit's own (see [`LimitBuilder::slack`](crate::LimitBuilder::slack)).
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.0.plan
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The deadline of a decision that starts now.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.0.wait.get(self.monitor()))
    }

    /// The whole key in Redis for one of this limit's keys: that of the limit, if
    /// [tenants](crate::LimitBuilder::tenants) share it.
    #[must_use]
    pub fn redis_key(&self, key: impl Key) -> Vec<u8> {
        if self.0.tenants.is_some() {
            return self.0.prefix.clone();
        }
        key.with_bytes(|key| [&self.0.prefix[..], key].concat())
    }

    /// The key without the part that all keys of the limit have: empty if tenants share it.
    pub(super) fn state_key(&self, key: &impl Key) -> Vec<u8> {
        if self.0.tenants.is_some() {
            return Vec::new();
        }
        key.with_bytes(<[u8]>::to_vec)
    }

    /// Asks for `cost`. A cost of 0 is a peek. This never fails: if the store makes no decision
    /// within the deadline, [`OnError`] decides.
    ///
    /// If the future is dropped early, the request may still be charged.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire(&self, key: impl Key, cost: u64) -> SharedDecision {
        self.acquire_by(key, cost, self.deadline()).await
    }

    /// Like [`acquire`](Self::acquire), but with a given deadline, for a decision that follows
    /// another one and must be done by the same time. If the deadline has passed, the store is not
    /// asked.
    pub async fn acquire_by(&self, key: impl Key, cost: u64, deadline: Deadline) -> SharedDecision {
        if self.may_be_bound() {
            // Boxed, here and below: a roll-out is rare.
            return Box::pin(self.acquire_bound(&key, cost, deadline)).await;
        }
        self.acquire_alone(&key, cost, deadline).await
    }

    /// [`acquire_by`](Self::acquire_by) by this limit's rule alone.
    pub(super) async fn acquire_alone(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> SharedDecision {
        match &self.0.leases {
            Some(leases) => self.acquire_leased(leases, key, cost, deadline).await,
            None => self.acquire_exact(key, cost, deadline).await.0,
        }
    }

    /// Decides like [`acquire`](Self::acquire) if this node can do so without the store: from an
    /// allotment that it holds, or by a remembered denial. `None` means that nothing was decided or
    /// changed, and that the store must be asked. This never waits, so a thread that serves many
    /// connections can call it before it awaits `acquire`.
    #[must_use = "`None` means that nothing was decided"]
    pub fn acquire_here(&self, key: impl Key, cost: u64) -> Option<SharedDecision> {
        if self.may_be_bound() {
            return None;
        }
        let now = self.monitor().clock.now();
        let Some(leases) = &self.0.leases else {
            if !self.0.store.denials().may_hold_any(now) {
                return None;
            }
            return self
                .0
                .store
                .remembered(self.denial_tag(&self.redis_key(key))?, cost, now);
        };
        let send = |held: &_, request| self.0.store.batcher().send_errand(leases, held, request);
        key.with_bytes(|key| leases.ask_quickly(key, cost, now, send))
            .map(from_lease)
    }

    #[inline]
    async fn acquire_leased(
        &self,
        leases: &Arc<Leases>,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> SharedDecision {
        if self.is_large(cost) {
            return Box::pin(self.acquire_exact(key, cost, deadline)).await.0;
        }
        // A caller that never has to wait must still yield now and then, so that the tasks that
        // renew its lease can run.
        tokio::task::consume_budget().await;
        let batcher = self.0.store.batcher();
        let evicted = |held: &_, request| batcher.send_errand(leases, held, request);
        let asked =
            key.with_bytes(|key| leases.ask(key, cost, batcher.monitor.clock.now(), evicted));
        let decision = match asked {
            LeaseAnswer::Decided(decision) => decision,
            LeaseAnswer::Renew(decision, held, request) => {
                batcher.send_errand(leases, &held, request);
                decision
            }
            LeaseAnswer::Refill(held, request) => {
                // Boxed: decisions from an allotment at hand are the common ones.
                let results =
                    Box::pin(self.ask_for_leases(leases, vec![(held, request)], deadline)).await;
                let result = results
                    .into_iter()
                    .next()
                    .unwrap_or(Err(StoreError::BadReply));
                return self.answer(key, cost, result);
            }
        };
        from_lease(decision)
    }

    /// Asks the store for what this node does not hold, unless the deadline has passed.
    pub(super) async fn ask_for_leases(
        &self,
        leases: &Arc<Leases>,
        requests: Vec<(Arc<Held>, lease::Request)>,
        deadline: Deadline,
    ) -> Vec<Result<Decision, StoreError>> {
        match self.0.store.in_time(deadline) {
            Ok(()) => {
                self.0
                    .store
                    .batcher()
                    .ask_for_leases(leases, requests, deadline)
                    .await
            }
            Err(error) => {
                let failed = |(held, request): (Arc<Held>, _)| {
                    held.lease.failed(request);
                    Err(error.clone())
                };
                requests.into_iter().map(failed).collect()
            }
        }
    }

    /// Also returns the time that the state uses, which identifies permits.
    pub(super) async fn acquire_exact(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> (SharedDecision, Nanos) {
        match self.ask_store(key, cost, deadline).await {
            Ok(result) => result,
            Err(error) => (
                key.with_bytes(|key| self.without_store(key, cost, error)),
                Nanos::ZERO,
            ),
        }
    }

    /// The store's decision, and the time that the state uses.
    pub(super) async fn ask_store(
        &self,
        key: &impl Key,
        cost: u64,
        deadline: Deadline,
    ) -> Result<(SharedDecision, Nanos), StoreError> {
        let whole = self.redis_key(key);
        let tag = self.denial_tag(&whole);
        let of_tenant = self.0.tenants.as_ref();
        let of_tenant = of_tenant.map(|_| Arc::new(self.plan_of(key, cost).into_owned()));
        let ask = Ask {
            plan: of_tenant.as_ref().unwrap_or_else(|| self.plan_for(cost)),
            key: whole,
            cost,
            tag,
            deadline,
        };
        self.0.store.decide(ask).await
    }

    /// Whether `cost` would be admitted. Nothing is taken, and `remaining` is the current value
    /// before the cost. The store is asked: units that nodes have leased count as used there, and
    /// unreported use does not.
    ///
    /// If the store makes no decision and [`OnError`](crate::OnError) decides in memory, a denial
    /// has no wait.
    pub async fn peek(&self, key: impl Key, cost: u64) -> SharedDecision {
        self.peek_by(key, cost, self.deadline()).await
    }

    /// Like [`peek`](Self::peek), with a given deadline (see [`acquire_by`](Self::acquire_by)).
    pub async fn peek_by(&self, key: impl Key, cost: u64, deadline: Deadline) -> SharedDecision {
        let error = match self.look(&key, cost, deadline).await {
            Ok(result) => match &result[..] {
                [standing, asked @ ..] if !asked.is_empty() => {
                    let asked = strictest(asked);
                    let seen = if asked.is_denied() {
                        asked
                    } else {
                        standing_at(standing, asked.delay())
                    };
                    return SharedDecision::by_store(seen);
                }
                _ => StoreError::BadReply,
            },
            Err(error) => error,
        };
        let mut answer = key.with_bytes(|key| self.without_store(key, 0, error));
        let standing = answer.decision;
        let refused = matches!(answer.source, Source::Failed(_));
        if !refused && standing.remaining() < cost {
            answer.decision = Decision::deny_for_good(standing.standing());
        }
        answer
    }

    /// Asks for permits (of [`tidegate_core::algorithm::Concurrency`] with a longest hold) that are
    /// given back when dropped. Otherwise it decides like [`acquire`](Self::acquire). For any other
    /// algorithm nothing is given back.
    ///
    /// # Errors
    /// The denial.
    pub async fn permit(&self, key: impl Key, cost: u64) -> Result<SharedPermit, SharedDecision> {
        // Read before the decision, so that permits granted in memory are refunded with the charge
        // that they had.
        let unit = self.local_unit();
        let (answer, seen) = if self.may_be_bound() {
            (
                Box::pin(self.acquire_bound(&key, cost, self.deadline())).await,
                Nanos::ZERO,
            )
        } else {
            self.acquire_exact(&key, cost, self.deadline()).await
        };
        if answer.is_allowed() {
            let (limit, key) = (self.clone(), key.with_bytes(<[u8]>::to_vec));
            Ok(SharedPermit {
                limit,
                key,
                cost,
                answer,
                holder: seen,
                unit,
            })
        } else {
            Err(answer)
        }
    }

    /// Refunds up to `cost` of a key's use and returns the key's state afterwards. The newest units
    /// are refunded first, whichever node took them. For permits, the oldest are refunded first,
    /// even if a [`SharedPermit`] still holds them. The refund never exceeds the use. A cost of 0 only
    /// returns the state.
    ///
    /// Other nodes remember a denial for a second at most (see
    /// [`remember_denials`](crate::LimitBuilder::remember_denials)), and never one of permits. What
    /// nodes hold of a [leased or reported](Self::mode) limit is given back within a second.
    ///
    /// Permits that were granted in memory while the store was down ([`OnError::Local`]) are
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
                    let change = ShareChange::Refund(cost);
                    self.follow_in_share(&key, change).await;
                    self.announce(StoredOrder::Refund, &key).await?;
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
    /// above the limit are debt, which time repays (see [`Algorithm::charge`]). Of a [leased or
    /// reported](Self::mode) limit, units that this node holds are used if they suffice.
    ///
    /// This never fails: if the store does not reply, [`OnError`] decides. With [`Source::Local`]
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
    /// dropped within a second; what they admit from it until then comes on top.
    /// [Orders](crate::Store::order) about the key stay.
    ///
    /// # Errors
    /// When the store does not reply. The reset then was either made or not.
    pub async fn reset(&self, key: impl Key) -> Result<(), StoreError> {
        if self.0.tenants.is_some() {
            return self.change_share(&key, ShareChange::Reset).await;
        }
        let (store, monitor, whole) = (&self.0.store, self.monitor(), self.redis_key(&key));
        let shard = monitor.shard_of(&whole);
        monitor.admit(shard)?;
        let script = &store.batcher().scripts.reset;
        let block = self.plan().block_key(&whole, monitor.is_cluster());
        let mut keys = vec![whole, self.reset_key(&key)];
        keys.extend(block);
        monitor
            .call(shard, script, &keys, &[] as &[&[u8]], self.deadline(), true)
            .await?;
        self.forget_denial(&key);
        self.announce(StoredOrder::Reset, &key).await
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
        let (monitor, whole) = (self.monitor(), self.redis_key(&key));
        if let Some(local) = self.local() {
            key.with_bytes(|key| local.unblock(key));
        }
        let Some(block) = self.plan().block_key(&whole, monitor.is_cluster()) else {
            return Ok(false);
        };
        let shard = monitor.shard_of(&whole);
        monitor.admit(shard)?;
        let script = &self.0.store.batcher().scripts.unblock;
        let reply = monitor
            .call(
                shard,
                script,
                &[block],
                &[] as &[&[u8]],
                self.deadline(),
                true,
            )
            .await?;
        self.forget_denial(&key);
        redis::from_redis_value(reply).map_err(|_| StoreError::BadReply)
    }

    /// The key that says when a key was last reset.
    pub(super) fn reset_key(&self, key: impl Key) -> Vec<u8> {
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
        if self.0.leases.is_none() {
            return Ok(());
        }
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

    /// A part of a joint decision.
    pub(super) fn request(&self, key: impl Key, cost: u64) -> JointRequest<'_> {
        JointRequest {
            plan: self.plan_of(&key, cost),
            key: self.redis_key(&key),
            cost,
        }
    }

    /// Whether a cost is larger than a leased bucket, of which a part is kept back. The store
    /// decides on it by the full bucket.
    pub(super) fn is_large(&self, cost: u64) -> bool {
        self.0.whole.is_some() && cost > self.0.plan.policy().limit()
    }

    /// The plan for decisions on a cost.
    pub(super) fn plan_for(&self, cost: u64) -> &Arc<Plan> {
        let whole = self.0.whole.as_ref().filter(|_| self.is_large(cost));
        whole.unwrap_or(&self.0.plan)
    }

    /// The plan for decisions on a cost for a key, or for its tenant.
    pub(super) fn plan_of(&self, key: &impl Key, cost: u64) -> Cow<'_, Plan> {
        match &self.0.tenants {
            Some(tenants) => Cow::Owned(key.with_bytes(|key| {
                let name = (tenants.by)(key);
                self.plan_for(cost).of_tenant(name, tenants.terms(name))
            })),
            None => Cow::Borrowed(self.plan_for(cost)),
        }
    }

    /// The hash under which denials of a key are remembered, if they are.
    pub(super) fn denial_tag(&self, whole: &[u8]) -> Option<u64> {
        self.0
            .remembers
            .then(|| self.0.store.denials().tag(whole) ^ self.0.salt)
    }

    pub(super) fn monitor(&self) -> &Monitor {
        &self.0.store.batcher().monitor
    }

    pub(super) fn local(&self) -> Option<&Local> {
        self.0.local.as_ref()
    }

    /// The charge for one unit in memory, with the current number of nodes.
    pub(super) fn local_unit(&self) -> u64 {
        self.local()
            .map_or(1, |local| local.unit(self.monitor().nodes.get()))
    }

    /// The store's decision, or the one when it made none.
    pub(super) fn answer(
        &self,
        key: &impl Key,
        cost: u64,
        result: Result<Decision, StoreError>,
    ) -> SharedDecision {
        match result {
            Ok(decision) => SharedDecision::by_store(decision),
            Err(error) => key.with_bytes(|key| self.without_store(key, cost, error)),
        }
    }

    /// The decision when the store made none.
    pub(super) fn without_store(&self, key: &[u8], cost: u64, error: StoreError) -> SharedDecision {
        self.take_without_store(key, cost, error).0
    }

    /// The same, with what was taken in memory, and the charge for each unit.
    pub(super) fn take_without_store(
        &self,
        key: &[u8],
        cost: u64,
        error: StoreError,
    ) -> (SharedDecision, Option<(Estimate, u64)>) {
        let counters = self.monitor().counters();
        counters.tell_of(&error, &self.0.prefix);
        let (count, decision) = match (self.0.on_error, &self.0.local) {
            (OnError::Local, Some(local)) => {
                counters.local.add(1);
                let unit = self.local_unit();
                let (decision, taken) = local.decide(key, cost, unit);
                let source = Source::Local(error);
                return (SharedDecision { decision, source }, Some((taken, unit)));
            }
            (OnError::Open, _) => (&counters.failed_open, Decision::allow(self.unknown())),
            _ => {
                let denied =
                    Decision::deny_for_good(self.unknown()).because(DenialReason::StoreDown);
                (&counters.failed_closed, denied)
            }
        };
        count.add(1);
        let source = Source::Failed(error);
        (SharedDecision { decision, source }, None)
    }

    /// The standing of a key whose state is unknown.
    fn unknown(&self) -> Standing {
        Standing {
            limit: self.policy().limit(),
            room: 0,
            unit: 1,
            reset_after: 0,
        }
    }
}

/// A decision from an allotment, or a denial remembered with it.
pub(super) fn from_lease(decision: Decision) -> SharedDecision {
    let source = if decision.is_allowed() {
        Source::Lease
    } else {
        Source::Remembered
    };
    SharedDecision { decision, source }
}

/// Admitted after a delay, with the remaining units from before that.
fn standing_at(standing: &Decision, delay: Duration) -> Decision {
    Decision::delayed(standing.standing(), delay.as_nanos() as u64)
}

impl KeyedLimit for SharedLimit {
    async fn decide(&self, key: &[u8], cost: u64) -> Decision {
        self.acquire(key, cost).await.decision
    }

    fn policy(&self) -> Policy {
        *self.policy()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(leases) = &self.leases {
            let batcher = self.store.batcher();
            let (counts, counters) = (leases.take_counts(), batcher.monitor.counters());
            counters.leased.add(counts.decided);
            counters.remembered.add(counts.remembered);
            batcher.close(leases);
        }
    }
}

impl fmt::Debug for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimit")
            .field("prefix", &String::from_utf8_lossy(&self.0.prefix))
            .field("policy", self.policy())
            .field("mode", &self.mode())
            .field("on_error", &self.0.on_error)
            .finish_non_exhaustive()
    }
}
