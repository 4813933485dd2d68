//! A limit in a shared store, to hold and call.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{Algorithm, Clock, Decision, Nanos, Policy};
use tidegate_limiter::BuildError as LocalError;

use crate::{Permit, Plan, PlanError, Store, StoreError, joint::Request, local::Local, store::DEADLINE};

/// Where a shared limit is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Every decision in the store, in one atomic step: exact, at the price of a round trip (which callers at the same time
    /// share).
    #[default]
    Exact,
}

/// What to answer while the store gives no decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Admit everything: the limit does not hold.
    Open,
    /// Deny everything: nobody is served.
    Closed,
    /// Decide in memory, with the limit divided by the last known number of nodes (at least 1 for each): the limit holds
    /// about, from scratch.
    #[default]
    Local,
}

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The store, earlier: the same request was denied until a time that has not come.
    Remembered,
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
    local_keys: usize,
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
            local_keys: 1 << 16,
        }
    }

    /// Where to decide (default: [`Mode::Exact`]).
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// What to answer while the store gives no decision (default: [`OnError::Local`]).
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// How long a decision may take (default: 50 ms); then the store counts as failing.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Whether a denial is remembered until its time, so that asking again costs no round trip (default: yes). What a
    /// release or a deletion in the store gives back is then not seen before.
    pub fn remember_denials(self, remember: bool) -> Self {
        Self { remember_denials: remember, ..self }
    }

    /// How many keys [`OnError::Local`] holds at most (default: 65,536).
    pub fn local_keys(self, keys: usize) -> Self {
        Self { local_keys: keys, ..self }
    }

    /// The limit.
    ///
    /// # Errors
    /// When the policy cannot be shared, or there is no memory for local decisions.
    pub fn build(self) -> Result<SharedLimit, LimitError> {
        let plan = Plan::new(self.policy).map_err(LimitError::Plan)?;
        let local = match self.on_error {
            OnError::Local => Some(Local::new(self.policy, self.local_keys).map_err(LimitError::Local)?),
            OnError::Open | OnError::Closed => None,
        };
        let prefix = format!("{}:{}:{}:", self.store.inner().prefix, self.name, plan.shape()).into_bytes();
        // Permits come back before their time.
        let remembers = self.remember_denials && plan.hold().is_none();
        // Denials of one key by limits of other numbers are told apart.
        let salt = self.store.inner().denials.tag(plan.numbers());
        Ok(SharedLimit(Arc::new(Shared {
            store: self.store,
            plan: Arc::new(plan),
            prefix,
            mode: self.mode,
            on_error: self.on_error,
            deadline: self.deadline,
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
    /// The policy cannot be shared.
    Plan(PlanError),
    /// There is no room for local decisions.
    Local(LocalError),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::Local(error) => write!(f, "for on_error = local: {error}"),
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
    plan: Arc<Plan>,
    prefix: Vec<u8>,
    mode: Mode,
    on_error: OnError,
    deadline: Duration,
    remembers: bool,
    salt: u64,
    local: Option<Local>,
}

impl SharedLimit {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.0.plan.policy()
    }

    /// Where it is decided.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The policy as the scripts know it.
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
    pub async fn acquire(&self, key: impl AsRef<[u8]>, cost: u32) -> SharedDecision {
        self.acquire_seen(key.as_ref(), cost).await.0
    }

    /// Also the time as the state sees it, which permits are known by.
    async fn acquire_seen(&self, key: &[u8], cost: u32) -> (SharedDecision, Nanos) {
        let Shared { store, plan, remembers, deadline, salt, .. } = &*self.0;
        let whole = self.redis_key(key);
        let inner = store.inner();
        let denials = remembers.then(|| (inner.denials.tag(&whole) ^ salt, inner.clock.now()));
        if let Some((tag, now)) = denials
            && let Some(decision) = inner.denials.get(tag, cost, now)
        {
            inner.counters.remembered.add(1);
            return (SharedDecision { decision, source: Source::Remembered }, now);
        }
        match store.decide(plan, whole, cost, *deadline).await {
            Ok((decision, seen)) => {
                if let Some((tag, asked)) = denials
                    && decision.is_denied()
                {
                    inner.denials.put(tag, cost, &decision, asked);
                }
                (SharedDecision { decision, source: Source::Store }, seen)
            }
            Err(error) => (self.without_store(key, cost, error), Nanos::ZERO),
        }
    }

    /// Asks for permits (of [`tidegate_core::algorithm::Concurrency`], with a longest hold) that come back when they are
    /// dropped. What the answer is otherwise, [`acquire`](Self::acquire) says.
    ///
    /// # Errors
    /// The denial.
    pub async fn permit(&self, key: impl AsRef<[u8]>, cost: u32) -> Result<Permit, SharedDecision> {
        let key = key.as_ref();
        let (answer, seen) = self.acquire_seen(key, cost).await;
        if answer.is_allowed() { Ok(Permit::new(self.clone(), key, cost, answer, seen)) } else { Err(answer) }
    }

    /// A part of a decision over several limits, for [`Store::decide_all`].
    #[must_use]
    pub fn request(&self, key: impl AsRef<[u8]>, cost: u32) -> Request<'_> {
        Request { plan: &self.0.plan, key: self.redis_key(key), cost }
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    pub(crate) fn local(&self) -> Option<&Local> {
        self.0.local.as_ref()
    }

    /// What to answer when the store gave no decision.
    pub(crate) fn without_store(&self, key: &[u8], cost: u32, error: StoreError) -> SharedDecision {
        let inner = self.0.store.inner();
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

impl fmt::Debug for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimit")
            .field("prefix", &String::from_utf8_lossy(&self.0.prefix))
            .field("policy", self.policy())
            .field("on_error", &self.0.on_error)
            .finish_non_exhaustive()
    }
}
