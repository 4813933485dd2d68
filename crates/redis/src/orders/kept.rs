//! The orders that this node knows.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::SystemClock;

use super::OrderKind;
use crate::sync::{lock, read, write};

/// Converts this node's time to the store's, by which orders end.
#[derive(Default)]
pub struct StoreTime {
    clock: SystemClock,
    /// How far the store's clock is ahead of this node's, in nanoseconds.
    ahead: AtomicI64,
}

impl StoreTime {
    // Relaxed: it guards no other memory.

    pub fn set(&self, store: Nanos, here: u64) {
        let ahead = i128::from(store.get()) - i128::from(here);
        self.ahead
            .store(i64::try_from(ahead).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub fn now(&self) -> Nanos {
        Nanos::new(
            self.clock
                .now()
                .get()
                .saturating_add_signed(self.ahead.load(Ordering::Relaxed)),
        )
    }
}

/// An order about a key.
struct Given {
    text: Arc<str>,
    /// By the store's clock; [`Nanos::MAX`] for never.
    until: Nanos,
    /// The round in which it was seen.
    round: u64,
}

/// An order in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenOrder {
    /// The key.
    pub key: Box<[u8]>,
    /// The text of an override.
    pub text: Arc<str>,
    /// When it ends by the store's clock, in nanoseconds since the Unix epoch; `None` for never.
    pub until: Option<Nanos>,
}

/// The orders of one kind about a limit's keys.
#[derive(Default)]
struct OrderedKeys {
    /// Whether there are any. Without one, no reader takes the lock.
    any: AtomicBool,
    by_key: RwLock<HashMap<Box<[u8]>, Given>>,
}

impl OrderedKeys {
    fn get(&self, key: &[u8], now: impl FnOnce() -> Nanos) -> Option<(Arc<str>, Nanos)> {
        // Relaxed: a reader may miss an order that is being given. The orders themselves are read
        // under the lock.
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let by_key = read(&self.by_key);
        let given = by_key.get(key)?;
        (given.until > now()).then(|| (Arc::clone(&given.text), given.until))
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Box<[u8]>, Given>)) {
        let mut by_key = write(&self.by_key);
        change(&mut by_key);
        self.any.store(!by_key.is_empty(), Ordering::Relaxed);
    }

    fn list(&self, most: usize, now: Nanos) -> (usize, Vec<GivenOrder>) {
        let by_key = read(&self.by_key);
        let in_force = || by_key.iter().filter(|(_, given)| given.until > now);
        let mut keys: Vec<_> = in_force().collect();
        let all = keys.len();
        if keys.len() > most {
            keys.select_nth_unstable_by_key(most, |(key, _)| *key);
            keys.truncate(most);
        }
        keys.sort_unstable_by_key(|(key, _)| *key);
        let list = keys.into_iter().map(|(key, given)| GivenOrder {
            key: key.clone(),
            text: Arc::clone(&given.text),
            until: (given.until < Nanos::MAX).then_some(given.until),
        });
        (all, list.collect())
    }
}

/// The orders about a limit's keys that a node knows: what any node has
/// [ordered](crate::Store::order), at most a second ago. They end by the store's clock.
pub struct LimitOrders {
    blocks: OrderedKeys,
    overrides: OrderedKeys,
    time: Arc<StoreTime>,
}

impl LimitOrders {
    fn keys(&self, kind: OrderKind) -> &OrderedKeys {
        match kind {
            OrderKind::Block => &self.blocks,
            OrderKind::Override => &self.overrides,
        }
    }

    /// For how long a key is blocked, in nanoseconds; [`Nanos::MAX`] for an unlimited time, and
    /// `None` if it is not blocked.
    #[must_use]
    pub fn blocked_for(&self, key: &[u8]) -> Option<Nanos> {
        let (_, until) = self.blocks.get(key, || self.time.now())?;
        Some(if until == Nanos::MAX {
            until
        } else {
            until.saturating_since(self.time.now())
        })
    }

    /// The order of this kind about a key.
    #[must_use]
    pub fn get(&self, kind: OrderKind, key: &[u8]) -> Option<GivenOrder> {
        let (text, until) = self.keys(kind).get(key, || self.time.now())?;
        Some(GivenOrder {
            key: key.into(),
            text,
            until: (until < Nanos::MAX).then_some(until),
        })
    }

    /// The text of a key's [override](crate::Order::Override).
    #[must_use]
    pub fn override_of(&self, key: &[u8]) -> Option<Arc<str>> {
        self.overrides
            .get(key, || self.time.now())
            .map(|(text, _)| text)
    }

    /// Whether any key may have an override.
    #[must_use]
    pub fn any_override(&self) -> bool {
        self.overrides.any.load(Ordering::Relaxed)
    }

    /// How many keys have an order of this kind, and the orders about the first `most` of them,
    /// sorted by key.
    #[must_use]
    pub fn list(&self, kind: OrderKind, most: usize) -> (usize, Vec<GivenOrder>) {
        self.keys(kind).list(most, self.time.now())
    }
}

impl std::fmt::Debug for LimitOrders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitOrders").finish_non_exhaustive()
    }
}

/// The orders of all limits.
#[derive(Default)]
pub struct KeptOrders {
    pub time: Arc<StoreTime>,
    limits: RwLock<HashMap<Box<str>, Arc<LimitOrders>>>,
    /// The texts of overrides, each once: many keys have the same.
    texts: Mutex<HashSet<Arc<str>>>,
}

impl KeptOrders {
    pub fn of(&self, limit: &str) -> Arc<LimitOrders> {
        let known = read(&self.limits).get(limit).cloned();
        known.unwrap_or_else(|| {
            let mut limits = write(&self.limits);
            let new = || {
                let (blocks, overrides) = (OrderedKeys::default(), OrderedKeys::default());
                Arc::new(LimitOrders {
                    blocks,
                    overrides,
                    time: Arc::clone(&self.time),
                })
            };
            Arc::clone(limits.entry(limit.into()).or_insert_with(new))
        })
    }

    /// Takes in an order: its text (empty if it was ended), and when it ends in microseconds (0 for
    /// never).
    pub fn set(
        &self,
        kind: OrderKind,
        limit: &str,
        key: &[u8],
        (text, ends): (&str, u64),
        round: u64,
    ) {
        let until = if ends == 0 {
            Nanos::MAX
        } else {
            Nanos::from_micros(ends)
        };
        let limit = self.of(limit);
        if text.is_empty() || until <= self.time.now() {
            limit.keys(kind).change(|keys| drop(keys.remove(key)));
            return;
        }
        let text = self.text(text);
        limit
            .keys(kind)
            .change(|keys| drop(keys.insert(key.into(), Given { text, until, round })));
    }

    fn text(&self, text: &str) -> Arc<str> {
        let mut texts = lock(&self.texts);
        if let Some(known) = texts.get(text) {
            return Arc::clone(known);
        }
        texts.retain(|text| Arc::strong_count(text) > 1);
        let new: Arc<str> = text.into();
        texts.insert(Arc::clone(&new));
        new
    }

    /// The orders in force that were not seen in this round.
    pub fn not_seen(&self, round: u64) -> Vec<(OrderKind, Box<str>, GivenOrder)> {
        let now = self.time.now();
        let mut found = Vec::new();
        for (limit, orders) in &*read(&self.limits) {
            for kind in [OrderKind::Block, OrderKind::Override] {
                let by_key = read(&orders.keys(kind).by_key);
                let lost = by_key
                    .iter()
                    .filter(|(_, given)| given.round != round && given.until > now);
                found.extend(lost.map(|(key, given)| {
                    let order = GivenOrder {
                        key: key.clone(),
                        text: Arc::clone(&given.text),
                        until: (given.until < Nanos::MAX).then_some(given.until),
                    };
                    (kind, limit.clone(), order)
                }));
            }
        }
        found
    }

    /// Forgets the orders that were not seen in this round, and those that have ended.
    pub fn keep_only(&self, round: u64) {
        let now = self.time.now();
        let limits: Vec<_> = read(&self.limits).values().cloned().collect();
        for keys in limits
            .iter()
            .flat_map(|limit| [&limit.blocks, &limit.overrides])
        {
            keys.change(|keys| keys.retain(|_, given| given.round == round && given.until > now));
        }
    }
}
