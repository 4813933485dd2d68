//! The store: one connection, its state of health, and what is asked of it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{ErrorKind, ServerErrorKind, Value};
use tidegate_core::{Clock, Decision, Nanos, Policy};
use tidegate_limiter::SystemClock;
use tokio::runtime::Handle;

use crate::{
    Address, LimitBuilder, Plan, Stats, StoreError,
    breaker::Breaker,
    call,
    denials::Denials,
    joint::{self, Request},
    lane::{self, Lane},
    leases::Leases,
    link::Link,
    nodes,
    script::{Script, Scripts},
    slot::{SLOTS, slot},
    stats::Counters,
    sweep,
};

/// How long a decision may take unless a limit says otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
/// The slots of a cluster that share a lane and a breaker.
const SLOTS_A_LANE: usize = 128;

/// A shared store: Redis or Valkey, one server, a master with replicas, or a cluster. Cheap to clone; all clones are one.
///
/// It connects by itself, and again after every failure: opening one never waits and never fails because the store is
/// down.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

pub struct Inner {
    pub link: Link,
    pub scripts: Scripts,
    pub lanes: Vec<Lane>,
    breakers: Vec<Breaker>,
    /// How many of them are open.
    open: AtomicUsize,
    pub clock: SystemClock,
    pub denials: Denials,
    pub counters: Counters,
    pub nodes: AtomicU32,
    pub runtime: Handle,
    pub prefix: String,
    leased: Mutex<Leased>,
}

/// The limits of which this node holds pieces.
#[derive(Default)]
pub struct Leased {
    pub all: Vec<Weak<Leases>>,
    /// Whether somebody takes care of them.
    pub sweeping: bool,
}

/// How a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Up,
    /// A part of a cluster does not answer.
    Partly,
    /// It does not answer; or it has not been reached yet.
    Down,
}

impl Store {
    /// Opens the store at an address, with keys that begin with `tidegate`.
    ///
    /// # Errors
    /// When the address makes no sense; not when nobody answers there.
    ///
    /// # Panics
    /// Outside a Tokio runtime; it needs one with time and I/O.
    pub fn open(address: &str) -> Result<Self, StoreError> {
        Self::at(address.parse()?, "tidegate")
    }

    /// Opens the store at an address, with keys that begin with `prefix`: stores of one prefix share their limits. A short
    /// one is worth it: a tenth of what a decision costs Redis can hang on nine bytes of its key.
    ///
    /// # Errors
    /// When the prefix is empty, or has a `:`, `{` or `}` in it: these part a key.
    ///
    /// # Panics
    /// Outside a Tokio runtime; it needs one with time and I/O.
    pub fn at(address: Address, prefix: &str) -> Result<Self, StoreError> {
        if !is_word(prefix) {
            return Err(StoreError::Prefix);
        }
        let parts = if address.is_cluster() { SLOTS / SLOTS_A_LANE } else { 1 };
        let clock = SystemClock::new();
        let seed = nodes::random();
        let inner = Arc::new(Inner {
            link: Link::new(address),
            scripts: Scripts::new(),
            lanes: (0..parts).map(|_| Lane::default()).collect(),
            breakers: (0..parts).map(|_| Breaker::default()).collect(),
            open: AtomicUsize::new(0),
            clock,
            denials: Denials::new(seed),
            counters: Counters::default(),
            nodes: AtomicU32::new(1),
            runtime: Handle::current(),
            prefix: prefix.into(),
            leased: Mutex::default(),
        });
        nodes::keep_registered(&inner);
        Ok(Self(inner))
    }

    /// A limit in this store, under a name: limits of one name and policy are one limit, on whichever node.
    pub fn limit(&self, name: &str, policy: impl Into<Policy>) -> LimitBuilder {
        LimitBuilder::new(self.clone(), name, policy.into())
    }

    /// Counters and state, for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.counters.read(self.0.nodes.load(Ordering::Relaxed));
        let all = sweep::living(&mut self.0.leased());
        for leases in all {
            let counts = leases.counts();
            stats.leased += counts.decided;
            stats.remembered += counts.remembered;
        }
        stats.connections = self.0.link.made();
        stats
    }

    /// How the store is, as the latest answers (or their absence) show. A store that nobody asks is asked by itself
    /// every two seconds.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.0.open.load(Ordering::Relaxed) {
            0 if self.0.link.made() > 0 => Health::Up,
            open if open > 0 && open < self.0.breakers.len() => Health::Partly,
            _ => Health::Down,
        }
    }

    /// Where the store is.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.0.link.address()
    }

    /// Gives back what this node holds of [leased](crate::Mode::Leased) limits, reports what is not reported yet, and waits
    /// until that is done or has failed, within a few deadlines. From then on the store makes every decision of these limits.
    ///
    /// A limit that is dropped gives back, too, but in the background: at the end of a program wait for this.
    pub async fn close(&self) {
        let all = sweep::living(&mut self.0.leased());
        for leases in &all {
            sweep::close(&self.0, leases);
        }
        for leases in &all {
            leases.all_ended().await;
        }
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Decides on one request in the store, together with whatever else is asked at this moment. `key` is the whole key
    /// in Redis. Beside the decision comes the time as the state sees it.
    ///
    /// # Errors
    /// When the store gave no decision within the deadline. The request may still be charged then.
    pub async fn decide(
        &self,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        cost: u32,
        deadline: Duration,
    ) -> Result<(Decision, Nanos), StoreError> {
        let at = self.0.part_of(&key);
        self.0.admit(at)?;
        let answer = lane::decide(&self.0, at, plan, key, cost, deadline).await;
        match &answer {
            Ok(_) => self.0.counters.decided.add(1),
            Err(error) => self.0.counters.error(error),
        }
        answer
    }

    /// Decides on requests for one key, each by itself and in this order, in one call. Keep them to some hundreds: others wait
    /// meanwhile.
    ///
    /// # Errors
    /// As [`decide`](Self::decide), for each.
    pub async fn decide_in_turn(
        &self,
        plan: &Arc<Plan>,
        key: Vec<u8>,
        costs: &[u32],
        deadline: Duration,
    ) -> Vec<Result<(Decision, Nanos), StoreError>> {
        let at = self.0.part_of(&key);
        let answers = match self.0.admit(at) {
            Ok(()) if costs.is_empty() => Vec::new(),
            Ok(()) => lane::decide_in_turn(&self.0, at, plan, key, costs, deadline).await,
            // Counted already, once.
            Err(error) => return vec![Err(error); costs.len()],
        };
        for answer in &answers {
            match answer {
                Ok(_) => self.0.counters.decided.add(1),
                Err(error) => self.0.counters.error(error),
            }
        }
        answers
    }

    /// Decides on several requests in one step: all admit and are charged, or none is. Two requests for one key of one
    /// plan add up.
    ///
    /// # Errors
    /// As [`decide`](Self::decide); [`StoreError::CrossSlot`] in a cluster when the keys have no common hash tag; and
    /// [`StoreError::OneKey`] when two limits of one name and other numbers are asked about one key.
    pub async fn decide_all(
        &self,
        requests: &[Request<'_>],
        deadline: Duration,
    ) -> Result<(Vec<Decision>, Nanos), StoreError> {
        self.joint(requests, true, deadline).await
    }

    /// The same; or, where it takes nothing, what the answers would have been.
    pub(crate) async fn joint(
        &self,
        requests: &[Request<'_>],
        takes: bool,
        deadline: Duration,
    ) -> Result<(Vec<Decision>, Nanos), StoreError> {
        let answer = joint::decide(&self.0, requests, takes, deadline).await;
        match &answer {
            Ok(_) => self.0.counters.decided.add(1),
            Err(error) => self.0.counters.error(error),
        }
        answer
    }
}

/// Whether a part of a key is told apart from the parts behind it, whatever they are, and leaves the hash tag to the key.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains([':', '{', '}'])
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("address", self.address())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub fn is_cluster(&self) -> bool {
        self.link.address().is_cluster()
    }

    /// The slot that a key has; one for all where there is no cluster.
    pub fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot(key) } else { 0 }
    }

    /// Which lane and breaker a key has.
    pub fn part_of(&self, key: &[u8]) -> usize {
        usize::from(self.slot(key)) / SLOTS_A_LANE
    }

    pub fn leased(&self) -> MutexGuard<'_, Leased> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a part of the store was found to be down.
    pub fn is_down(&self, at: usize) -> bool {
        self.breakers[at].is_open()
    }

    /// Whether the store may be asked.
    pub fn admit(&self, at: usize) -> Result<(), StoreError> {
        // The clock is read only where it matters.
        let breaker = &self.breakers[at];
        if breaker.is_open() && !breaker.admits(self.clock.now()) {
            self.counters.error(&StoreError::Down);
            return Err(StoreError::Down);
        }
        Ok(())
    }

    /// Calls a script, and learns from the outcome how the store is. `may_repeat`: whether to ask again where a connection
    /// broke, which may be after the script ran.
    pub async fn call<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        at: usize,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        deadline: Duration,
        may_repeat: bool,
    ) -> Result<Value, StoreError> {
        let outcome =
            tokio::time::timeout(deadline, self.try_call(script, keys, arguments, may_repeat)).await;
        let outcome = outcome.unwrap_or(Err(StoreError::TimedOut));
        match &outcome {
            Ok(_) => self.succeeded(at),
            Err(error) if error.is_about_the_key() => self.succeeded(at),
            Err(error) => self.failed(at, error),
        }
        outcome
    }

    async fn try_call<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        mut again: bool,
    ) -> Result<Value, StoreError> {
        let command = call::command(script, false, keys, arguments);
        loop {
            let (number, mut connection) = self.link.get(&self.runtime).await?;
            self.counters.calls.add(1);
            let mut reply = connection.query(&command).await;
            if let Err(error) = &reply
                && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
            {
                self.counters.script_loads.add(1);
                reply = connection.query(&call::command(script, true, keys, arguments)).await;
            }
            let error = match reply {
                Ok(reply) => return Ok(reply),
                Err(error) => StoreError::from(error),
            };
            if error.needs_reconnect() {
                self.link.lose(number);
            }
            // A connection may have been closed while it was idle. Asked again, the request may be charged twice, which
            // is on the safe side.
            if !again || !matches!(error, StoreError::Lost(_)) {
                return Err(error);
            }
            again = false;
        }
    }

    fn succeeded(&self, at: usize) {
        if self.breakers[at].succeeded() {
            self.counters.closed.add(1);
            if self.open.fetch_sub(1, Ordering::Relaxed) == 1 {
                tracing::info!(store = %self.link.address(), "the shared store answers again");
            }
        }
    }

    /// Notes a failure.
    pub fn failed(&self, at: usize, error: &StoreError) {
        let chance = (nodes::random() >> 11) as f64 / (1_u64 << 53) as f64;
        if self.breakers[at].failed(self.clock.now(), error.is_certain(), chance) {
            self.counters.opened.add(1);
            if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(store = %self.link.address(), %error, "the shared store is down");
            }
            if self.lanes.len() == 1 {
                // Perhaps only this connection is dead: the one who tries next makes its own.
                self.link.lose_any();
            }
        }
    }
}
