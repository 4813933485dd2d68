//! The real keys, and what was admitted of each.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{keys::Random, quota::Quota, stores::Store};

const BUSY: usize = 500;
const SLEEPING: usize = 250;
const MODEST: usize = 250;

/// How often the sleeping and the modest ask during the flood. One less than the quota, as the
/// modest have asked once before it.
const RETURNS: u64 = 8;

/// The slowest decision that is distinguished, in nanoseconds.
const SLOWEST: u64 = 10_000_000_000;

pub struct Ledger {
    quota: Quota,
    /// The busy, the sleeping, the modest.
    keys: Vec<String>,
    /// Of each key, how often it was admitted.
    admitted: Vec<u64>,
    random: Random,
    clock: quanta::Clock,
    returns: u64,
    pub latency: Histogram<u64>,
    pub modest_asked: u64,
    pub modest_denied: u64,
}

impl Ledger {
    /// Keys that try to get more than their quota: the busy and the sleeping.
    pub const LIMITED: usize = BUSY + SLEEPING;

    pub fn new(quota: Quota) -> Self {
        let keys: Vec<String> = (0..BUSY + SLEEPING + MODEST)
            .map(|number| format!("real:{number:010}"))
            .collect();
        let admitted = vec![0; keys.len()];
        let latency = Histogram::new_with_bounds(1, SLOWEST, 3).expect("bounds in order");
        let (random, clock) = (Random::new(2), quanta::Clock::new());
        Self {
            quota,
            keys,
            admitted,
            random,
            clock,
            returns: 0,
            latency,
            modest_asked: 0,
            modest_denied: 0,
        }
    }

    fn ask<S: Store>(&mut self, store: &S, hand: &mut S::Hand, number: usize) -> bool {
        let key = &self.keys[number];
        let since = self.clock.now();
        let admitted = store.admit(hand, key);
        let time = self.clock.now().duration_since(since);
        self.latency.saturating_record(time.as_nanos() as u64);
        self.admitted[number] += u64::from(admitted);
        admitted
    }

    /// Before the flood: the busy and the sleeping use up what they have, the modest ask once. Not
    /// part of the latencies: here every key is new.
    pub fn begin(&mut self, store: &impl Store) {
        let mut hand = Default::default();
        for number in 0..Self::LIMITED {
            for _ in 0..2 * self.quota.limit {
                self.ask(store, &mut hand, number);
            }
        }
        self.ask_the_modest(store);
        self.latency.reset();
    }

    pub fn ask_a_busy_one(&mut self, store: &impl Store) {
        let number = self.random.below(BUSY);
        self.ask(store, &mut Default::default(), number);
    }

    /// Brings back the sleeping and the modest, each time another part of the flood has gone
    /// through.
    pub fn ask_the_others_in_time(&mut self, store: &impl Store, done: u64, of: u64) {
        while self.returns < RETURNS && done >= of / (RETURNS + 1) * (self.returns + 1) {
            self.returns += 1;
            let mut hand = Default::default();
            for number in BUSY..Self::LIMITED {
                self.ask(store, &mut hand, number);
            }
            self.ask_the_modest(store);
        }
    }

    fn ask_the_modest(&mut self, store: &impl Store) {
        let mut hand = Default::default();
        for number in Self::LIMITED..self.keys.len() {
            self.modest_asked += 1;
            self.modest_denied += u64::from(!self.ask(store, &mut hand, number));
        }
    }

    /// How many of them got more than their quota and its refill in that time.
    pub fn resets(&self, elapsed: Duration) -> u64 {
        let most = u64::from(self.quota.limit) + self.quota.refilled(elapsed);
        self.admitted[..Self::LIMITED]
            .iter()
            .filter(|&&admitted| admitted > most)
            .count() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::{Mutex, atomic::AtomicBool, atomic::Ordering},
    };

    use super::*;

    /// Admits a number of requests of each key, and forgets everything when `forget` is set.
    #[derive(Default)]
    struct Forgetful {
        seen: Mutex<HashMap<String, u32>>,
        forget: AtomicBool,
    }

    impl Store for Forgetful {
        type Hand = ();

        fn admit(&self, (): &mut (), key: &str) -> bool {
            let mut seen = self.seen.lock().unwrap();
            if self.forget.swap(false, Ordering::Relaxed) {
                seen.clear();
            }
            let count = seen.entry(key.to_owned()).or_default();
            *count += 1;
            *count <= Quota::FLOOD.limit
        }

        fn held(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn a_store_that_forgets_is_found_out() {
        let (store, mut ledger) = (Forgetful::default(), Ledger::new(Quota::FLOOD));
        ledger.begin(&store);
        ledger.ask_the_others_in_time(&store, 0, 900);
        assert_eq!(ledger.resets(Duration::ZERO), 0);
        store.forget.store(true, Ordering::Relaxed);
        ledger.ask_the_others_in_time(&store, 100, 900);
        // The sleeping came back; the busy have not asked yet.
        assert_eq!(ledger.resets(Duration::ZERO), SLEEPING as u64);
        assert_eq!(ledger.resets(Duration::from_mins(6)), 0);
    }

    #[test]
    fn the_modest_stay_below_their_quota() {
        let (store, mut ledger) = (Forgetful::default(), Ledger::new(Quota::FLOOD));
        ledger.begin(&store);
        ledger.ask_the_others_in_time(&store, 900, 900);
        assert_eq!(
            (ledger.modest_asked, ledger.modest_denied),
            (9 * MODEST as u64, 0)
        );
    }
}
