//! The parts of a store (one; of a cluster many): which one a key has, whether it is up, and what failures say about it.

use crate::{
    Health, StoreError,
    breaker::Breaker,
    slot::slot,
    store::{Inner, lock},
};

/// The slots of a cluster that share a lane and a breaker.
pub const SLOTS_A_LANE: usize = 128;

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

    /// How many parts have a breaker each.
    pub fn parts(&self) -> usize {
        self.breakers.len()
    }

    /// Whether a part of the store was found to be down.
    pub fn is_down(&self, at: usize) -> bool {
        self.breakers[at].is_open()
    }

    /// Whether any was.
    pub fn any_open(&self) -> bool {
        self.breakers.iter().any(Breaker::is_open)
    }

    /// Whether a sign of life is wanted anywhere.
    pub fn is_in_doubt(&self) -> bool {
        self.breakers.iter().any(Breaker::is_in_doubt)
    }

    pub fn health(&self) -> Health {
        let asked = self.breakers.iter().filter(|breaker| breaker.is_asked() || breaker.is_open());
        let (open, all) =
            asked.fold((0, 0), |(open, all), breaker| (open + usize::from(breaker.is_open()), all + 1));
        match open {
            _ if self.link.made() == 0 => Health::Down,
            0 => Health::Up,
            open if open < all => Health::Partly,
            _ => Health::Down,
        }
    }

    /// Whether the store may be asked.
    pub fn admit(&self, at: usize) -> Result<(), StoreError> {
        if self.breakers[at].admits() {
            return Ok(());
        }
        self.counters.count(&StoreError::Down);
        Err(StoreError::Down)
    }

    /// Notes a failure: one that leaves no doubt, or that calls for a sign of life.
    pub fn failed(&self, at: usize, error: &StoreError) {
        if error.is_certain() {
            self.open(at, error);
        } else if !error.is_about_the_key() && self.breakers[at].suspect() {
            self.wake.notify_one();
        }
    }

    /// The part is down.
    pub fn open(&self, at: usize, error: &StoreError) {
        *lock(&self.why) = Some(self.link.explain(error));
        if self.breakers[at].open() {
            self.counters.opened.add(1);
            self.wake.notify_one();
        }
    }

    /// The part takes writes.
    pub fn close(&self, at: usize) {
        if self.breakers[at].close() {
            self.counters.closed.add(1);
        }
    }

    /// What opened a breaker last.
    pub fn why(&self) -> Option<StoreError> {
        lock(&self.why).clone()
    }
}
