//! The store and its public API.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    Address, Deadline, Health, Stats, StoreError,
    batch::{Batcher, Gathering},
    connection::Connector,
    denials::RememberedDenials,
    health::{Monitor, SeenNode, random, seen},
    limit::Lines,
    name::is_word,
    orders::{LimitOrders, Order, OrderKind, Orders, StoredOrder},
    rules::{DifferingRule, Rules},
    script::Runner,
};

/// A shared store in Redis or Valkey: one server, a master with replicas, or a cluster. Cheap to
/// clone; clones are the same store.
///
/// It connects in the background and reconnects after every failure. Opening a store never waits,
/// and never fails because the store is down.
#[derive(Clone)]
pub struct Store(Arc<StoreParts>);

struct StoreParts {
    batcher: Arc<Batcher>,
    denials: RememberedDenials,
    orders: Arc<Orders>,
    /// The slots in which reservations may be open.
    reserved: Mutex<BTreeSet<u16>>,
    lines: Lines,
    rules: Arc<Rules>,
}

impl Store {
    /// Opens the store at an address, with keys that begin with `tidegate`.
    ///
    /// # Errors
    /// When the address is invalid. A store that does not reply is not an error.
    ///
    /// # Panics
    /// Outside a Tokio runtime with time and I/O enabled.
    pub fn open(address: &str) -> Result<Self, StoreError> {
        Self::at(address.parse()?, "tidegate")
    }

    /// Opens the store at an address, with keys that begin with `prefix`. Stores with the same
    /// prefix share their limits. Keep the prefix short: nine bytes of a key can account for a
    /// tenth of what a decision costs Redis.
    ///
    /// # Errors
    /// When the prefix is empty or contains `:`, `{` or `}`.
    ///
    /// # Panics
    /// Outside a Tokio runtime with time and I/O enabled.
    pub fn at(address: Address, prefix: &str) -> Result<Self, StoreError> {
        Self::named(address, prefix, "")
    }

    /// Like [`at`](Self::at), with a name for people, under which [`seen_nodes`](Self::seen_nodes)
    /// shows this node to the others. It need not be unique. Control characters are replaced, and
    /// more than 128 characters are cut.
    ///
    /// # Errors
    /// When the prefix is empty or contains `:`, `{` or `}`.
    ///
    /// # Panics
    /// Outside a Tokio runtime with time and I/O enabled.
    pub fn named(address: Address, prefix: &str, name: &str) -> Result<Self, StoreError> {
        Self::watched(address, prefix, |runner| Monitor::start(runner, name))
    }

    /// Opens the store at an address to [examine](Self::examine) it. It sends no heartbeats, so the
    /// nodes that share the store do not count this one, and go on with their parts of the limits.
    ///
    /// # Errors
    /// When the prefix is empty or contains `:`, `{` or `}`.
    ///
    /// # Panics
    /// Outside a Tokio runtime with time and I/O enabled.
    pub fn to_examine(address: Address, prefix: &str) -> Result<Self, StoreError> {
        Self::watched(address, prefix, |runner| Monitor::silent(runner, ""))
    }

    fn watched(
        address: Address,
        prefix: &str,
        monitor: impl FnOnce(Runner) -> Arc<Monitor>,
    ) -> Result<Self, StoreError> {
        if !is_word(prefix) {
            return Err(StoreError::Prefix);
        }
        let runner = Runner {
            connector: Arc::new(Connector::new(address, prefix)),
            counters: Arc::default(),
        };
        let batcher = Batcher::new(monitor(runner));
        Ok(Self(Arc::new(StoreParts {
            batcher,
            denials: RememberedDenials::new(random()),
            orders: Arc::default(),
            reserved: Mutex::default(),
            lines: Lines::default(),
            rules: Arc::default(),
        })))
    }

    /// Whether decisions of the limits that were built so far would work in the store: each of their
    /// scripts runs there once. Heartbeats do the same after each connection, and
    /// [`health`](Self::health) and [`trouble`](Self::trouble) show the result.
    ///
    /// # Errors
    /// Why they would not, with what to do about it.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn examine(&self) -> Result<(), StoreError> {
        let monitor = &self.batcher().monitor;
        let (number, _) = monitor.runner.connector.get().await?;
        monitor.examine_now(number).await
    }

    /// Whether the other is a clone of this store, so that their limits can be decided together.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Gives an order about a key of the limit with this name, for a time, or (`None`) until it is
    /// [ended](Self::end_order). It replaces an earlier order of the same kind. Each node that
    /// [asks](Self::orders) for the limit's orders knows it within a second.
    ///
    /// # Errors
    /// When the store does not reply within two seconds, its user may not write orders, or it has
    /// two million of them.
    pub async fn order(
        &self,
        limit: &str,
        key: &[u8],
        order: Order<'_>,
        span: Option<Duration>,
    ) -> Result<(), StoreError> {
        let (kind, text) = match order {
            Order::Block => (OrderKind::Block, "1"),
            Order::Override(text) => (OrderKind::Override, text),
        };
        let order = (StoredOrder::Lasting(kind), limit, key);
        self.orders_followed()
            .give(self.batcher(), order, text, span)
            .await
            .map(drop)
    }

    /// Ends an order about a key. Returns whether it was in force.
    ///
    /// # Errors
    /// As [`order`](Self::order).
    pub async fn end_order(
        &self,
        limit: &str,
        key: &[u8],
        kind: OrderKind,
    ) -> Result<bool, StoreError> {
        let order = (StoredOrder::Lasting(kind), limit, key);
        self.orders_followed()
            .give(self.batcher(), order, "", None)
            .await
    }

    /// The orders about the keys of the limit with this name. They are empty at first; this node
    /// follows the store's from now on.
    #[must_use]
    pub fn orders(&self, limit: &str) -> Arc<LimitOrders> {
        self.orders_followed().of(limit)
    }

    /// The limits whose rule differs at another node, sorted by name. Both nodes must
    /// [announce](crate::LimitBuilder::announced) their rules; it takes two seconds until each knows the
    /// other's.
    #[must_use]
    pub fn differing_rules(&self) -> Vec<DifferingRule> {
        self.0.rules.differing()
    }

    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.0.rules
    }

    pub(crate) fn orders_followed(&self) -> &Arc<Orders> {
        self.0.orders.keep_up(self.batcher());
        &self.0.orders
    }

    /// Counters and state, for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let monitor = &self.batcher().monitor;
        let mut stats = monitor
            .counters()
            .read(self.nodes(), monitor.runner.connector.made());
        let counts = self.batcher().sweeper.counts();
        stats.leased += counts.decided;
        stats.remembered += counts.remembered;
        stats.differing_rules = self.0.rules.differing().len() as u64;
        (stats.clock_ahead_ms, stats.clock_went_back) = monitor.store_clock();
        let remarks = monitor.examination.remarks();
        (stats.evicts, stats.evicted_keys) = (remarks.evicts, remarks.evicted);
        stats.missing_commands = remarks.missing;
        stats
    }

    /// The store's health, from the latest heartbeats: small writes, every two seconds and whenever
    /// a request fails.
    #[must_use]
    pub fn health(&self) -> Health {
        self.batcher().monitor.health()
    }

    /// The store's error, unless it is [up](Health::Up). `None` also before the first heartbeat.
    #[must_use]
    pub fn trouble(&self) -> Option<StoreError> {
        self.batcher().monitor.trouble()
    }

    /// The number of nodes that share the store, at the last count; at least 1. A smaller number is
    /// accepted after fifteen seconds, because an emptied store starts to count from one.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.batcher().monitor.nodes.get()
    }

    /// The nodes that share the store, including this one: those whose heartbeat reached the store
    /// in the last ten seconds, sorted by its time, and at most a thousand. Asks the store, within
    /// two seconds. [`nodes`](Self::nodes) counts a node that left for longer.
    ///
    /// # Errors
    /// When the store does not reply, or its user may not read the list (`+zrange`).
    pub async fn seen_nodes(&self) -> Result<Vec<SeenNode>, StoreError> {
        seen(&self.batcher().monitor).await
    }

    /// Sets a lower bound on the number of nodes, by which [`OnError::Local`](crate::OnError)
    /// divides.
    pub fn set_least_nodes(&self, nodes: u32) {
        self.batcher().monitor.nodes.at_least(nodes);
    }

    /// Sets the number of [nodes](Self::nodes) that applies until the store has been reached or a
    /// number is [restored](Self::recall_nodes); without it that is 1, and nodes that start while
    /// the store is down each admit whole limits.
    pub fn assume_nodes(&self, nodes: u32) {
        self.batcher().monitor.nodes.assume(nodes);
    }

    /// Restores the number of [nodes](Self::nodes) that was counted before this process started.
    pub fn recall_nodes(&self, nodes: u32) {
        self.batcher().monitor.nodes.recall(nodes);
    }

    /// The shortest recent round trip to the store, or `None` before the first reply.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.batcher().monitor.distance.get().map(Duration::from)
    }

    /// The store's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.batcher().monitor.runner.connector.address()
    }

    /// Reads the password and the certificates that the address names in files again, and connects
    /// anew if they have changed. This happens with each connection in any case; call it if they
    /// changed while the connection is well.
    pub fn refresh(&self) {
        self.batcher().monitor.runner.connector.refresh();
    }

    /// Gives back what this node holds of [leased](crate::Mode::Leased) limits, reports unreported
    /// use, and waits until that is done or has failed, for a few deadlines at most. After that the
    /// store makes every decision of these limits.
    ///
    /// A limit that is dropped also gives back, but in the background. At the end of a program,
    /// wait for this method.
    pub async fn close(&self) {
        self.batcher().close_all().await;
    }

    /// Holds requests back until the result is dropped. Then they leave for the store in as few
    /// calls as possible. This is for a thread that polls many requests one after another. Do not
    /// keep the result across an `await` or for long, because callers on other threads wait, too.
    /// It has no effect on a cluster, which has many queues.
    #[must_use = "dropping the result at once holds nothing back"]
    pub fn gather(&self) -> Gathering<'_> {
        self.batcher().gather()
    }

    pub(crate) fn batcher(&self) -> &Arc<Batcher> {
        &self.0.batcher
    }

    pub(crate) fn reserved_slots(&self) -> &Mutex<BTreeSet<u16>> {
        &self.0.reserved
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.0.lines
    }

    pub(crate) fn denials(&self) -> &RememberedDenials {
        &self.0.denials
    }

    /// Fails if the deadline has passed.
    pub(crate) fn in_time(&self, deadline: Deadline) -> Result<(), StoreError> {
        if deadline.left().is_zero() {
            // This says nothing about the store's health.
            self.batcher()
                .monitor
                .counters()
                .error(&StoreError::TimedOut);
            return Err(StoreError::TimedOut);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("address", self.address())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
