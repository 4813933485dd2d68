//! The store, and what is asked of it.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Clock, Nanos, Policy};

use crate::{
    AdHoc, Address, Deadline, Health, LimitBuilder, Part, SharedDecision, Source, Stats, StoreError, Timeout,
    batch::{Batcher, Hold},
    connection::Connector,
    health::{Monitor, random},
    limit::{
        Sweeper, acquire_all,
        denials::{Ask, Denials},
    },
    script::Runner,
};

/// A shared store: Redis or Valkey, one server, a master with replicas, or a cluster. Cheap to clone; all clones are one.
///
/// It connects by itself, and again after every failure: opening one never waits and never fails because the store is
/// down.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// Keeps requests to a store back until it is dropped: see [`Store::gather`].
pub struct Gathering<'a> {
    _held: Hold<'a>,
}

struct Inner {
    batcher: Arc<Batcher>,
    denials: Denials,
    sweeper: Sweeper,
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
    /// When the prefix is empty or contains `:`, `{` or `}`.
    ///
    /// # Panics
    /// Outside a Tokio runtime; it needs one with time and I/O.
    pub fn at(address: Address, prefix: &str) -> Result<Self, StoreError> {
        if !is_word(prefix) {
            return Err(StoreError::Prefix);
        }
        let runner = Runner { connector: Connector::new(address, prefix), counters: Arc::default() };
        let batcher = Batcher::new(Monitor::start(runner));
        Ok(Self(Arc::new(Inner { batcher, denials: Denials::new(random()), sweeper: Sweeper::default() })))
    }

    /// A limit in this store, under a name: limits of one name and policy are one limit, on whichever node.
    pub fn limit(&self, name: &str, policy: impl Into<Policy>) -> LimitBuilder {
        LimitBuilder::new(self.clone(), name, policy.into())
    }

    /// Decides by limits that come with each request, each decision within a deadline.
    #[must_use]
    pub fn ad_hoc(&self, deadline: impl Into<Timeout>) -> AdHoc {
        AdHoc::new(self.clone(), deadline.into())
    }

    /// Decides on several requests in one step: all admit and are charged, or none is. Where all of the limits are leased or
    /// reported, and this node holds enough of each, that step is made in memory; else in the store. Where the store gives no decision
    /// within the shortest of the limits' deadlines, each answers as its [`OnError`](crate::OnError) says, and what one
    /// denies no other keeps.
    ///
    /// # Errors
    /// Only for what nobody can decide in one step, now or later: [`StoreError::CrossSlot`], in a cluster, when the keys have
    /// no common hash tag; [`StoreError::OneKey`] when two limits of one name and other numbers are asked about one key.
    pub async fn acquire_all(&self, parts: &[Part<'_>]) -> Result<Vec<SharedDecision>, StoreError> {
        acquire_all(self, parts).await
    }

    /// Whether the other is a clone of this one: their limits can be decided together.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Counters and state, for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let monitor = &self.batcher().monitor;
        let mut stats = monitor.counters().read(self.nodes(), monitor.runner.connector.made());
        let counts = self.sweeper().counts();
        stats.leased += counts.decided;
        stats.remembered += counts.remembered;
        stats
    }

    /// How the store is, as the latest heartbeats show: small writes, every two seconds and whenever a request fails.
    #[must_use]
    pub fn health(&self) -> Health {
        self.batcher().monitor.health()
    }

    /// What is wrong with the store, unless it is [up](Health::Up); `None` too before anything is known.
    #[must_use]
    pub fn trouble(&self) -> Option<StoreError> {
        self.batcher().monitor.trouble()
    }

    /// How many nodes share the store, as last seen; at least 1. A smaller number is believed after it was seen for fifteen
    /// seconds: a store that was emptied counts from one again.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.batcher().monitor.nodes.get()
    }

    /// Says that there are never fewer nodes than so many, whatever is counted: [`OnError::Local`](crate::OnError) divides by
    /// the number of nodes.
    pub fn set_least_nodes(&self, nodes: u32) {
        self.batcher().monitor.nodes.at_least(nodes);
    }

    /// Says how many [nodes](Self::nodes) there were when somebody last counted, before this process started.
    pub fn recall_nodes(&self, nodes: u32) {
        self.batcher().monitor.nodes.recall(nodes);
    }

    /// The shortest round trip to the store of late; `None` before the first answer.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.batcher().monitor.distance.get().map(Duration::from)
    }

    /// Where the store is.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.batcher().monitor.runner.connector.address()
    }

    /// Gives back what this node holds of [leased](crate::Mode::Leased) limits, reports what is not reported yet, and waits
    /// until that is done or has failed, within a few deadlines. From then on the store makes every decision of these limits.
    ///
    /// A limit that is dropped gives back, too, but in the background: at the end of a program wait for this.
    pub async fn close(&self) {
        self.sweeper().close(self.batcher()).await;
    }

    /// Keeps what is asked back until the result is dropped; then it leaves for the store together, in as few calls as
    /// possible. For a thread that polls many requests one after the other. Do not keep it across an `await`, or longer than a
    /// moment: callers on other threads wait, too. A cluster, which has many queues, is asked as ever.
    #[must_use = "nothing is kept back when the result is dropped at once"]
    pub fn gather(&self) -> Gathering<'_> {
        Gathering { _held: self.batcher().hold() }
    }

    pub(crate) fn batcher(&self) -> &Arc<Batcher> {
        &self.0.batcher
    }

    pub(crate) fn denials(&self) -> &Denials {
        &self.0.denials
    }

    pub(crate) fn sweeper(&self) -> &Sweeper {
        &self.0.sweeper
    }

    /// Whether there is time to ask.
    pub(crate) fn in_time(&self, deadline: Deadline) -> Result<(), StoreError> {
        if deadline.left().is_zero() {
            // Nothing is learned about the store from that.
            self.batcher().monitor.counters().error(&StoreError::TimedOut);
            return Err(StoreError::TimedOut);
        }
        Ok(())
    }

    /// The denial of this cost that is remembered and still holds.
    pub(crate) fn remembered(&self, tag: u64, cost: u32, now: Nanos) -> Option<SharedDecision> {
        let decision = self.denials().get(tag, cost, now)?;
        self.batcher().monitor.counters().remembered.add(1);
        Some(SharedDecision { decision, source: Source::Remembered })
    }

    /// Decides on one request, unless the same was denied until a time that has not come. Beside the decision comes the time as
    /// the state sees it, or as this node does.
    pub(crate) async fn decide(&self, ask: Ask<'_>) -> Result<(SharedDecision, Nanos), StoreError> {
        let Ask { plan, key, cost, tag, deadline } = ask;
        let denials = tag.map(|tag| (tag, self.batcher().monitor.clock.now()));
        if let Some((tag, now)) = denials
            && let Some(remembered) = self.remembered(tag, cost, now)
        {
            return Ok((remembered, now));
        }
        self.in_time(deadline)?;
        let (decision, seen) = self.batcher().decide(plan, key, cost, deadline).await?;
        if let Some((tag, asked)) = denials
            && decision.is_denied()
        {
            self.denials().put(tag, cost, &decision, asked);
        }
        Ok((SharedDecision::by_store(decision), seen))
    }
}

/// Whether a part of a key is told apart from the parts behind it, whatever they are, and leaves the hash tag to the key.
pub fn is_word(text: &str) -> bool {
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
