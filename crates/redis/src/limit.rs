//! A limit in a shared store, to hold and call.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::lease::{Mode as Agreed, Terms};
use tidegate_core::{Algorithm, Clock, Decision, Nanos, Policy};
use tidegate_limiter::BuildError as LocalError;

use crate::{
    Mode, OnError, Permit, Plan, PlanError, Store, StoreError,
    deadline::Deadline,
    exchange,
    joint::Request,
    leases::{Asked, Leases},
    local::Local,
    store::{DEADLINE, is_word},
    sweep,
};

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The store, earlier: the same request was denied until a time that has not come.
    Remembered,
    /// This node, from the piece of the quota that it holds.
    Lease,
    /// Nobody: the store gave no decision, and the limit fails open or closed. See [`OnError`].
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
}

/// Options of a [`SharedLimit`]; from [`Store::limit`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimitBuilder {
    store: Store,
    name: String,
    policy: Policy,
    mode: Mode,
    on_error: OnError,
    deadline: Duration,
    remember_denials: bool,
    local_keys: Option<usize>,
    slack: Duration,
    unreported: Option<u32>,
    leases: usize,
}

impl LimitBuilder {
    pub(crate) fn new(store: Store, name: &str, policy: Policy) -> Self {
        Self {
            store,
            name: name.into(),
            policy,
            mode: Mode::default(),
            on_error: OnError::default(),
            deadline: DEADLINE,
            remember_denials: true,
            local_keys: None,
            slack: Terms::SLACK.into(),
            unreported: None,
            leases: 1 << 16,
        }
    }

    /// Where to decide (default: [`Mode::Exact`]). What cannot be leased or reported is exact: leaky buckets, permits,
    /// and leased buckets of less than 16; [`SharedLimit::mode`] tells. All nodes should have the same mode and slack.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// What to answer while the store gives no decision (default: [`OnError::Local`]).
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// How long a decision may take (default: 50 ms); then [`OnError`] decides. A store that is slower than the shortest of its
    /// limits' deadlines (but those under 50 ms) counts as down.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Whether a denial is remembered until its time, so that asking again costs no round trip (default: yes). What a
    /// release or a deletion in the store gives back is then not seen before.
    pub fn remember_denials(self, remember: bool) -> Self {
        Self { remember_denials: remember, ..self }
    }

    /// How long units of a leased limit are kept before they must be used or given back, and how long the report of a
    /// reported one waits (default: 100 ms). A leased sliding log looks back for so much longer, a token bucket is smaller by
    /// what refills in it, each by a sixteenth at most. Where a round trip takes half of it, nothing is taken ahead.
    pub fn slack(self, slack: Duration) -> Self {
        Self { slack, ..self }
    }

    /// How much of a reported limit this node may have used without the store knowing (default: a twentieth of the limit, at
    /// least 1). With 0 the limit is exact.
    pub fn unreported(self, units: u32) -> Self {
        Self { unreported: Some(units), ..self }
    }

    /// How many keys of a leased or reported limit are held in memory at most (default: 65,536, of somewhat over half a
    /// kilobyte each and twice the key). One that has to make room gives back what it holds, and its next request asks the store.
    pub fn leases(self, keys: usize) -> Self {
        Self { leases: keys, ..self }
    }

    /// How many keys [`OnError::Local`] holds at most (default: 65,536, or as many as have room in half a gigabyte, which is
    /// fewer for logs of more than about 1,000 entries).
    pub fn local_keys(self, keys: usize) -> Self {
        Self { local_keys: Some(keys), ..self }
    }

    /// The limit.
    ///
    /// # Errors
    /// When the name is empty or has a `:`, `{` or `}` in it, the policy cannot be shared, or there is no memory for local
    /// decisions.
    pub fn build(self) -> Result<SharedLimit, LimitError> {
        if !is_word(&self.name) {
            return Err(LimitError::Name);
        }
        let terms = self.mode.terms(self.policy, self.slack, self.unreported);
        let plan = Arc::new(Plan::new(*terms.policy()).map_err(LimitError::Plan)?);
        let local = match self.on_error {
            OnError::Local => {
                let keys = self.local_keys.unwrap_or_else(|| Local::usual_keys(&self.policy));
                Some(Local::new(self.policy, keys).map_err(LimitError::Local)?)
            }
            OnError::Open | OnError::Closed => None,
        };
        let inner = self.store.inner();
        let prefix = format!("{}:{}:{}:", inner.prefix, self.name, plan.shape()).into_bytes();
        // Permits come back before their time.
        let remembers = self.remember_denials && plan.hold().is_none();
        // Denials of one key by limits of other numbers are told apart.
        let salt = inner.denials.tag(plan.numbers());
        let script = inner.scripts.lease(plan.kind()).filter(|_| terms.mode() != Agreed::Exact);
        let leases = script.map(|script| {
            let (plan, script) = (Arc::clone(&plan), Arc::clone(script));
            Arc::new(Leases::new(terms, plan, script, prefix.clone(), self.leases, self.deadline))
        });
        if let Some(leases) = &leases {
            sweep::take_on(inner, leases);
        }
        let deadline = Deadline::new(&self.store, self.deadline);
        Ok(SharedLimit(Arc::new(Shared {
            store: self.store,
            policy: self.policy,
            plan,
            prefix,
            leases,
            on_error: self.on_error,
            deadline,
            remembers,
            salt,
            local,
        })))
    }
}

/// Why there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A name that is empty, or has a `:`, `{` or `}` in it, which part a key.
    Name,
    /// The policy cannot be shared.
    Plan(PlanError),
    /// There is no room for local decisions.
    Local(LocalError),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str("a limit's name is a word without any of : { and }, which part a key"),
            Self::Plan(error) => error.fmt(f),
            // What the limiter in memory calls max_keys.
            Self::Local(error) => {
                write!(f, "for on_error = local: {}", error.to_string().replace("max_keys", "local_keys"))
            }
        }
    }
}

impl std::error::Error for LimitError {}

/// A limit for each key, shared by all processes that have one of the same name and policy in the same store. Cheap to
/// clone.
#[derive(Clone)]
pub struct SharedLimit(Arc<Shared>);

struct Shared {
    store: Store,
    policy: Policy,
    plan: Arc<Plan>,
    prefix: Vec<u8>,
    /// Unless every decision is the store's.
    leases: Option<Arc<Leases>>,
    on_error: OnError,
    deadline: Deadline,
    remembers: bool,
    salt: u64,
    local: Option<Local>,
}

impl SharedLimit {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Where it is decided: [`Mode::Exact`] also where something else was asked for that the policy does not admit of.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.leases.as_ref().map_or(Mode::Exact, |leases| Mode::of(&leases.terms))
    }

    /// The policy as the scripts know it: of a leased sliding log or token bucket not quite the limit's own (see
    /// [`LimitBuilder::slack`]).
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.0.plan
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The whole key in Redis of one of this limit's keys.
    #[must_use]
    pub fn redis_key(&self, key: impl AsRef<[u8]>) -> Vec<u8> {
        let key = key.as_ref();
        let mut whole = Vec::with_capacity(self.0.prefix.len() + key.len());
        whole.extend_from_slice(&self.0.prefix);
        whole.extend_from_slice(key);
        whole
    }

    /// Asks for `cost`. A cost of 0 is a peek. Never fails: where the store gives no decision within the deadline, the
    /// answer is what [`OnError`] says.
    ///
    /// Dropped before it is done, the request may still be charged.
    ///
    /// # Panics
    /// When it is polled outside a Tokio runtime; it needs one with time.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, cost: u32) -> SharedDecision {
        self.acquire_after(key, cost, Duration::ZERO).await
    }

    /// The same, after so much of the deadline is spent: for what follows another decision and must be done by the same
    /// time. When none of it is left the store is not asked.
    pub async fn acquire_after(&self, key: impl AsRef<[u8]>, cost: u32, spent: Duration) -> SharedDecision {
        match &self.0.leases {
            Some(leases) => self.acquire_leased(leases, key.as_ref(), cost, spent).await,
            None => self.acquire_seen(key.as_ref(), cost, spent).await.0,
        }
    }

    /// How long the store may take after so much is spent.
    pub(crate) fn left_after(&self, spent: Duration) -> Result<Duration, StoreError> {
        let deadline = self.0.deadline.get().saturating_sub(spent);
        if deadline.is_zero() {
            // Nothing is learned about the store from that.
            self.0.store.inner().counters.error(&StoreError::TimedOut);
            return Err(StoreError::TimedOut);
        }
        Ok(deadline)
    }

    #[inline]
    async fn acquire_leased(
        &self,
        leases: &Arc<Leases>,
        key: &[u8],
        cost: u32,
        spent: Duration,
    ) -> SharedDecision {
        // A caller who never has to wait must let others run now and then all the same: they renew its piece.
        tokio::task::consume_budget().await;
        let store = self.0.store.inner();
        let evicted = |held: &_, request| exchange::send(store, leases, held, request);
        let decision = match leases.ask(key, cost, store.clock.now(), evicted) {
            Asked::Decided(decision) => decision,
            Asked::Renew(decision, held, request) => {
                exchange::send(store, leases, &held, request);
                decision
            }
            Asked::Refill(held, request) => {
                let told = match self.left_after(spent) {
                    Ok(deadline) => exchange::ask(store, leases, &held, request, deadline).await,
                    Err(error) => {
                        held.lease.failed(request);
                        Err(error)
                    }
                };
                return match told {
                    Ok(decision) => SharedDecision { decision, source: Source::Store },
                    Err(error) => self.without_store(key, cost, error),
                };
            }
        };
        let source = if decision.is_allowed() { Source::Lease } else { Source::Remembered };
        SharedDecision { decision, source }
    }

    /// Also the time as the state sees it, which permits are known by.
    async fn acquire_seen(&self, key: &[u8], cost: u32, spent: Duration) -> (SharedDecision, Nanos) {
        let Shared { store, plan, .. } = &*self.0;
        let whole = self.redis_key(key);
        let tag = self.denial_tag(&whole);
        match store.decide_seen(plan, whole, cost, tag, || self.left_after(spent)).await {
            Ok(told) => told,
            Err(error) => (self.without_store(key, cost, error), Nanos::ZERO),
        }
    }

    /// Asks for permits (of [`tidegate_core::algorithm::Concurrency`], with a longest hold) that come back when they are
    /// dropped. What the answer is otherwise, [`acquire`](Self::acquire) says. Of any other limit nothing comes back: what was
    /// used stays used.
    ///
    /// # Errors
    /// The denial.
    pub async fn permit(&self, key: impl AsRef<[u8]>, cost: u32) -> Result<Permit, SharedDecision> {
        let key = key.as_ref();
        let (answer, seen) = self.acquire_seen(key, cost, Duration::ZERO).await;
        if answer.is_allowed() { Ok(Permit::new(self.clone(), key, cost, answer, seen)) } else { Err(answer) }
    }

    /// A part of a decision over several limits, for [`Store::decide_all`].
    #[must_use]
    pub fn request(&self, key: impl AsRef<[u8]>, cost: u32) -> Request<'_> {
        Request { plan: &self.0.plan, key: self.redis_key(key), cost }
    }

    /// What denials of a key are remembered under, if they are.
    pub(crate) fn denial_tag(&self, whole: &[u8]) -> Option<u64> {
        self.0.remembers.then(|| self.0.store.inner().denials.tag(whole) ^ self.0.salt)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.0.deadline.get()
    }

    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        self.0.leases.as_ref()
    }

    pub(crate) fn local(&self) -> Option<&Local> {
        self.0.local.as_ref()
    }

    /// What to answer when the store gave no decision.
    pub(crate) fn without_store(&self, key: &[u8], cost: u32, error: StoreError) -> SharedDecision {
        let inner = self.0.store.inner();
        inner.counters.tell_of(&error, &self.0.prefix);
        let limit = self.policy().limit();
        match (self.0.on_error, &self.0.local) {
            (OnError::Local, Some(local)) => {
                inner.counters.local.add(1);
                let nodes = inner.nodes.load(std::sync::atomic::Ordering::Relaxed);
                SharedDecision { decision: local.decide(key, cost, nodes), source: Source::Local(error) }
            }
            (OnError::Open, _) => {
                inner.counters.failed_open.add(1);
                SharedDecision { decision: Decision::allow(limit, 0, 1, 0), source: Source::Failed(error) }
            }
            _ => {
                inner.counters.failed_closed.add(1);
                let decision = Decision::deny_for_good(limit, 0, 1, 0);
                SharedDecision { decision, source: Source::Failed(error) }
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let inner = self.store.inner();
        if let Some(leases) = &self.leases {
            let counts = leases.take_counts();
            inner.counters.leased.add(counts.decided);
            inner.counters.remembered.add(counts.remembered);
            sweep::close(inner, leases);
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
