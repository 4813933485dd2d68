//! The store: one connection, its state of health, and what is asked of it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::{ErrorKind, ServerErrorKind, Value};
use tidegate_core::{Decision, Nanos, Policy};
use tidegate_limiter::SystemClock;
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    Address, LimitBuilder, Plan, Stats, StoreError,
    breaker::Breaker,
    call,
    deadline::Deadlines,
    denials::Denials,
    joint::{self, Request},
    lane::{self, Lane},
    leases::Leases,
    link::Link,
    nodes,
    parts::SLOTS_A_LANE,
    pulse,
    script::{Script, Scripts},
    slot::SLOTS,
    stats::Counters,
    sweep,
};

/// How long a decision may take unless a limit says otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);

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
    pub breakers: Vec<Breaker>,
    /// Calls for a sign of life.
    pub wake: Arc<Notify>,
    /// What opened a breaker last.
    pub why: Mutex<Option<StoreError>>,
    pub deadlines: Deadlines,
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
            wake: Arc::default(),
            why: Mutex::default(),
            deadlines: Deadlines::default(),
            clock,
            denials: Denials::new(seed),
            counters: Counters::default(),
            nodes: AtomicU32::new(1),
            runtime: Handle::current(),
            prefix: prefix.into(),
            leased: Mutex::default(),
        });
        pulse::keep(&inner);
        Ok(Self(inner))
    }

    /// A limit in this store, under a name: limits of one name and policy are one limit, on whichever node.
    pub fn limit(&self, name: &str, policy: impl Into<Policy>) -> LimitBuilder {
        LimitBuilder::new(self.clone(), name, policy.into())
    }

    /// Counters and state, for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.counters.read(self.nodes(), self.0.link.made());
        let all = sweep::living(&mut self.0.leased());
        for leases in all {
            let counts = leases.counts();
            stats.leased += counts.decided;
            stats.remembered += counts.remembered;
        }
        stats
    }

    /// How the store is, as the latest signs of life show: small writes, every two seconds and whenever a request fails.
    /// Of a cluster those parts count that were asked for.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// How many nodes share the store, as last seen; at least 1.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.0.nodes.load(Ordering::Relaxed)
    }

    /// What the store was found to be down by, unless it is [up](Health::Up).
    #[must_use]
    pub fn trouble(&self) -> Option<StoreError> {
        if self.health() == Health::Up { None } else { self.0.why() }
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
        self.0.count(&answer);
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
        self.0.count(&answer);
        if let Err(error) = &answer
            && error.is_about_the_key()
        {
            let limits: Vec<_> = requests.iter().map(|request| limit_of(&request.key)).collect();
            self.0.counters.tell_of(error, &limits.join(&b' '));
        }
        answer
    }
}

/// Of a whole key the part that names the limit.
fn limit_of(key: &[u8]) -> &[u8] {
    let colons = key.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(at, _)| &key[..=at]).nth(2).unwrap_or_default()
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
    pub fn leased(&self) -> MutexGuard<'_, Leased> {
        lock(&self.leased)
    }

    /// Counts what came of a decision. One that was [not admitted](Self::admit) is counted there.
    fn count<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => self.counters.decided.add(1),
            Err(StoreError::Down) => {}
            Err(error) => self.counters.error(error),
        }
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
        if let Err(error) = &outcome {
            self.failed(at, error);
        }
        outcome
    }

    /// The same, with nothing learned and no deadline.
    pub async fn try_call<K: AsRef<[u8]>, A: AsRef<[u8]>>(
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
            // A cluster's client makes connections to its nodes anew by itself.
            if error.needs_reconnect() && !self.is_cluster() {
                self.link.give_up(number, &self.runtime);
            }
            // A connection may have been closed while it was idle. Asked again, the request may be charged twice, which
            // is on the safe side.
            if !again || !matches!(error, StoreError::Lost(_)) {
                return Err(error);
            }
            again = false;
        }
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
