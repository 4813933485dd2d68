//! A limit for each key, shared by all nodes.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use tidegate_core::lease::{self, Mode};
use tidegate_core::{Algorithm, Clock, Decision, DenialReason, Key, Nanos, Policy, Standing};
use tidegate_limiter::{Estimate, KeyedLimit};

use super::{
    OnError, SharedDecision, SharedPermit, Source,
    ask::Ask,
    joint::{JointRequest, strictest},
    local::Local,
    tenants::StoreTenants,
};
use crate::{
    Deadline, Plan, Store, StoreError,
    health::{Monitor, Wait},
    lease::{Held, LeaseAnswer, Leases},
    rules::Announcement,
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
            None => self.acquire_exact(key, cost, deadline).await,
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
            return Box::pin(self.acquire_exact(key, cost, deadline)).await;
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

    async fn acquire_exact(&self, key: &impl Key, cost: u64, deadline: Deadline) -> SharedDecision {
        match self.ask_store_alone(key, cost, deadline).await {
            Ok((answer, _)) => answer,
            Err(error) => key.with_bytes(|key| self.without_store(key, cost, error)),
        }
    }

    /// The store's decision by this limit's rule alone, and the time that the state uses.
    pub(super) async fn ask_store_alone(
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
        // The time that the state uses identifies the permits.
        let (answer, holder, in_memory) = match self.ask_store(&key, cost, self.deadline()).await {
            Ok((answer, holder)) => (answer, holder, None),
            Err(error) => {
                let (answer, taken) =
                    key.with_bytes(|key| self.take_without_store(key, cost, error));
                (answer, Nanos::ZERO, taken)
            }
        };
        if answer.is_allowed() {
            let (limit, key) = (self.clone(), key.with_bytes(<[u8]>::to_vec));
            Ok(SharedPermit {
                limit,
                key,
                cost,
                answer,
                holder,
                in_memory,
            })
        } else {
            Err(answer)
        }
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
    pub(super) fn unknown(&self) -> Standing {
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
