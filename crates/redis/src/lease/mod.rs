//! What this node holds of leased and reported limits: a lease for each key, bounded, and the errands that keep them.

mod hot;

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use rapidhash::fast::RandomState;
use tidegate_core::lease::{Answer, Lease, Request, Taken, Terms};
use tidegate_core::{Decision, Nanos};
use tokio::sync::Notify;

pub use hot::Counts;
use hot::{Hot, Recent};

use crate::{
    Deadline,
    health::{Monitor, Wait},
    script::{Plan, Script},
};

/// Where there are many keys, so many maps: threads that look for different keys rarely meet, and a key that comes in keeps
/// only a part of the others waiting.
const SECTIONS: usize = 64;
/// Fewer keys than this are one map.
const FEW: usize = 1 << 10;
/// A key that comes into a full map looks at so many others for one that was not used of late.
const LOOKS: usize = 8;

/// The lease of one key.
pub struct Held {
    pub lease: Lease,
    /// The whole key in Redis.
    pub key: Vec<u8>,
    /// Used since somebody last looked for a key to let go of.
    used: AtomicBool,
    /// Among the leases that are asked what there is to send.
    listed: AtomicBool,
    closed: AtomicBool,
}

impl Held {
    /// Let go of: whatever still comes for it goes back.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self, now: Nanos) -> Vec<Request> {
        self.closed.store(true, Ordering::Release);
        self.lease.close(now)
    }
}

/// What came of a question.
pub enum Asked {
    /// Decided here.
    Decided(Decision),
    /// Decided here; the request is to be sent meanwhile.
    Renew(Decision, Arc<Held>, Request),
    /// The store must be asked.
    Refill(Arc<Held>, Request),
}

/// What was taken from an allotment for a decision over several limits.
pub struct TakenFrom {
    pub held: Arc<Held>,
    pub taken: Taken,
}

#[derive(Default)]
struct Map {
    by_key: HashMap<Box<[u8]>, Arc<Held>, RandomState>,
    /// In the order in which they came, or were last found used.
    order: VecDeque<Box<[u8]>>,
}

/// On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Section {
    map: RwLock<Map>,
    /// Decisions made from allotments; and denials remembered with them.
    decided: AtomicU64,
    remembered: AtomicU64,
}

impl Section {
    #[inline]
    fn count(&self, asked: Asked) -> Asked {
        match &asked {
            Asked::Decided(denied) if denied.is_denied() => self.remembered.fetch_add(1, Ordering::Relaxed),
            Asked::Decided(_) | Asked::Renew(..) => self.decided.fetch_add(1, Ordering::Relaxed),
            Asked::Refill(..) => 0,
        };
        asked
    }
}

/// The leases of one limit.
pub struct Leases {
    pub terms: Terms,
    pub plan: Arc<Plan>,
    pub script: Arc<Script>,
    pub numbers: Vec<u8>,
    /// How long a request may take.
    wait: Arc<Wait>,
    prefix: Vec<u8>,
    hash: RandomState,
    hot: Hot,
    sections: Vec<Section>,
    keys_a_section: usize,
    /// Those that may hold something, or have something to say: at most twice as many as there is room for keys (and as many
    /// again while a sweep goes through them).
    active: Mutex<Vec<Arc<Held>>>,
    closed: AtomicBool,
    /// Requests that are out.
    out: AtomicUsize,
    none_out: Notify,
}

impl Leases {
    pub fn new(
        terms: Terms,
        plan: Arc<Plan>,
        script: Arc<Script>,
        prefix: Vec<u8>,
        keys: usize,
        wait: Arc<Wait>,
    ) -> Self {
        let sections = if keys < FEW { 1 } else { SECTIONS };
        Self {
            terms,
            numbers: plan.lease_numbers(),
            plan,
            script,
            wait,
            prefix,
            hash: RandomState::new(),
            hot: Hot::new(),
            sections: (0..sections).map(|_| Section::default()).collect(),
            keys_a_section: (keys / sections).max(1),
            active: Mutex::default(),
            closed: AtomicBool::new(false),
            out: AtomicUsize::new(0),
            none_out: Notify::new(),
        }
    }

    /// When a request that is sent now is to be answered.
    pub fn deadline(&self, monitor: &Monitor) -> Deadline {
        Deadline::after(self.wait.get(monitor))
    }

    /// Decides on `cost` for a key, or says what to send. `evicted` takes what a key that had to make room gives back.
    #[inline]
    pub fn ask(&self, key: &[u8], cost: u32, now: Nanos, evicted: impl FnMut(&Arc<Held>, Request)) -> Asked {
        let hash = self.hash.hash_one(key);
        let mut wanted = false;
        if let Some(mut place) = self.hot.slot(hash) {
            let Recent { held, counts, .. } = &mut *place;
            if let Some((of, held)) = held
                && *of == hash
                && held.key[self.prefix.len()..] == *key
                && !held.is_closed()
            {
                let asked = self.ask_held(held, cost, now);
                match &asked {
                    Asked::Decided(denied) if denied.is_denied() => counts.remembered += 1,
                    Asked::Decided(_) | Asked::Renew(..) => counts.decided += 1,
                    Asked::Refill(..) => {}
                }
                return asked;
            }
            wanted = place.missed();
        }
        let section = self.section(hash);
        let known = {
            let map = section.map.read().unwrap_or_else(PoisonError::into_inner);
            match map.by_key.get(key) {
                // Without touching its count of owners, which others may be touching.
                Some(held) if !wanted => return section.count(self.ask_held(held, cost, now)),
                held => held.cloned(),
            }
        };
        let held = known.unwrap_or_else(|| self.insert(section, key, now, evicted));
        let asked = section.count(self.ask_held(&held, cost, now));
        if wanted && let Some(mut place) = self.hot.slot(hash) {
            place.held = Some((hash, held));
        }
        asked
    }

    /// Decides on `cost` where the key's allotment, or a denial that is remembered with it, is enough; `send` takes what is to
    /// be sent meanwhile. `None` says nothing.
    #[inline]
    pub fn ask_quickly(
        &self,
        key: &[u8],
        cost: u32,
        now: Nanos,
        send: impl FnOnce(&Arc<Held>, Request),
    ) -> Option<Decision> {
        let section = self.section(self.hash.hash_one(key));
        let map = section.map.read().unwrap_or_else(PoisonError::into_inner);
        let held = map.by_key.get(key)?;
        let (decision, request) = held.lease.ask_quickly(cost, now)?;
        self.note_use(held);
        let count = if decision.is_denied() { &section.remembered } else { &section.decided };
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(request) = request {
            send(held, request);
        }
        Some(decision)
    }

    /// Takes `cost` from a key's allotment, or nothing where there is none of that size. `send` takes what is to be sent
    /// meanwhile.
    pub fn take(
        &self,
        key: &[u8],
        cost: u32,
        now: Nanos,
        mut send: impl FnMut(&Arc<Held>, Request),
    ) -> Option<TakenFrom> {
        let section = self.section(self.hash.hash_one(key));
        let known = {
            let map = section.map.read().unwrap_or_else(PoisonError::into_inner);
            map.by_key.get(key).cloned()
        };
        let held = known.unwrap_or_else(|| self.insert(section, key, now, &mut send));
        let taken = held.lease.take(cost, now);
        self.note_use(&held);
        let (taken, request) = match taken {
            Ok(mut taken) => {
                let request = taken.renew.take();
                (Some(taken), request)
            }
            Err(request) => (None, request),
        };
        if let Some(request) = request {
            send(&held, request);
        }
        taken.map(|taken| TakenFrom { held, taken })
    }

    /// Counts what was taken, and is used.
    pub fn count_taken(&self, key: &[u8]) {
        self.section(self.hash.hash_one(key)).decided.fetch_add(1, Ordering::Relaxed);
    }

    fn section(&self, hash: u64) -> &Section {
        &self.sections[(hash >> 48) as usize % self.sections.len()]
    }

    #[inline]
    fn ask_held(&self, held: &Arc<Held>, cost: u32, now: Nanos) -> Asked {
        let answer = held.lease.ask(cost, now);
        self.note_use(held);
        match answer {
            Answer::Decided(decision) => Asked::Decided(decision),
            Answer::Renew(decision, request) => Asked::Renew(decision, Arc::clone(held), request),
            Answer::Refill(request) => Asked::Refill(Arc::clone(held), request),
        }
    }

    #[inline]
    fn note_use(&self, held: &Arc<Held>) {
        // Relaxed, here and below: a lease that a sweep has just found idle and that is missed for that is listed by its
        // next use; until then it holds what one that is out of touch with the store would hold.
        if !held.used.load(Ordering::Relaxed) {
            held.used.store(true, Ordering::Relaxed);
        }
        if !held.listed.load(Ordering::Relaxed) {
            self.list(held);
        }
    }

    #[cold]
    fn list(&self, held: &Arc<Held>) {
        if !held.listed.swap(true, Ordering::AcqRel) {
            let mut active = lock(&self.active);
            // Keys come and go faster than sweeps. At least half of these were let go of: what they hold is on its way back, and
            // is charged until the algorithm forgets it where it does not arrive; a report that fails is not made again.
            if active.len() >= 2 * self.keys_a_section * self.sections.len() {
                active.retain(|held| {
                    let stays = !held.is_closed();
                    if !stays {
                        held.listed.store(false, Ordering::SeqCst);
                    }
                    stays
                });
            }
            active.push(Arc::clone(held));
        }
    }

    #[cold]
    fn insert(
        &self,
        section: &Section,
        key: &[u8],
        now: Nanos,
        mut evicted: impl FnMut(&Arc<Held>, Request),
    ) -> Arc<Held> {
        let mut map = section.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = map.by_key.get(key) {
            return Arc::clone(held);
        }
        let gone = if map.by_key.len() >= self.keys_a_section { map.make_room() } else { None };
        let whole = [self.prefix.as_slice(), key].concat();
        let held = Arc::new(Held {
            lease: Lease::new(self.terms),
            key: whole,
            used: AtomicBool::new(true),
            listed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        if self.closed.load(Ordering::Acquire) {
            // It has nothing to give back yet, and will take nothing.
            let _nothing = held.close(now);
        }
        map.by_key.insert(key.into(), Arc::clone(&held));
        map.order.push_back(key.into());
        drop(map);
        if let Some(gone) = gone {
            for request in gone.close(now) {
                evicted(&gone, request);
            }
        }
        held
    }

    /// What there is to send without anybody asking. `may_send` says whether the store can be asked about a key.
    pub fn sweep(
        &self,
        now: Nanos,
        may_send: impl Fn(&[u8]) -> bool,
        mut send: impl FnMut(&Arc<Held>, Request),
    ) {
        let listed = mem::take(&mut *lock(&self.active));
        let mut kept = Vec::new();
        for held in listed {
            // Before the look: whoever uses the lease after it lists it again.
            held.listed.store(false, Ordering::SeqCst);
            let may_send = may_send(&held.key);
            if may_send && let Some(request) = held.lease.returning(now) {
                send(&held, request);
            }
            // While the store is down, what was let go of is not kept for it.
            let keep = !held.lease.is_idle(now) && (may_send || !held.is_closed());
            if keep && !held.listed.swap(true, Ordering::AcqRel) {
                kept.push(held);
            }
        }
        lock(&self.active).append(&mut kept);
    }

    /// Gives back everything. From now on the store decides.
    pub fn close(&self, now: Nanos, mut send: impl FnMut(&Arc<Held>, Request)) {
        self.closed.store(true, Ordering::Release);
        for section in &self.sections {
            let all: Vec<_> = {
                let map = section.map.read().unwrap_or_else(PoisonError::into_inner);
                map.by_key.values().cloned().collect()
            };
            for held in all {
                for request in held.close(now) {
                    send(&held, request);
                }
            }
        }
    }

    /// Decisions made from allotments, and denials remembered with them.
    pub fn counts(&self) -> Counts {
        self.sum(|count| count.load(Ordering::Relaxed), |counts| *counts)
    }

    /// The same, which begin again at zero: somebody else keeps them.
    pub fn take_counts(&self) -> Counts {
        self.sum(|count| count.swap(0, Ordering::Relaxed), mem::take)
    }

    fn sum(&self, read: fn(&AtomicU64) -> u64, hot: fn(&mut Counts) -> Counts) -> Counts {
        let mut sum = self.hot.counts(hot);
        for section in &self.sections {
            sum.decided += read(&section.decided);
            sum.remembered += read(&section.remembered);
        }
        sum
    }

    pub fn request_goes_out(&self) {
        self.out.fetch_add(1, Ordering::AcqRel);
    }

    pub fn request_has_ended(&self) {
        if self.out.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none_out.notify_waiters();
        }
    }

    /// Waits until no request is out.
    pub async fn all_ended(&self) {
        loop {
            let ended = self.none_out.notified();
            if self.out.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Map {
    /// Takes a key out, the first in order that was not used since it got its place.
    fn make_room(&mut self) -> Option<Arc<Held>> {
        for look in 0..=LOOKS {
            let key = self.order.pop_front()?;
            let used = self.by_key.get(&key).is_some_and(|held| held.used.swap(false, Ordering::Relaxed));
            if used && look < LOOKS {
                self.order.push_back(key);
            } else {
                return self.by_key.remove(&key);
            }
        }
        None
    }
}

fn lock(active: &Mutex<Vec<Arc<Held>>>) -> MutexGuard<'_, Vec<Arc<Held>>> {
    active.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Policy, Quota};

    use super::*;
    use crate::script::Scripts;

    #[test]
    fn a_flood_of_keys_that_nobody_sweeps_fills_no_memory() {
        for keys in [8, FEW] {
            let (policy, slack) = (Policy::sliding_window(Quota::per_hour(1_000)), Nanos::from_millis(100));
            for terms in [Terms::leased(policy, slack), Terms::reported(policy, 50, slack)] {
                let plan = Arc::new(Plan::new(*terms.policy()).expect("it can be shared"));
                let scripts = Scripts::new();
                let script = Arc::clone(scripts.lease(plan.kind()).expect("it can be leased"));
                let leases = Leases::new(terms, plan, script, b"x:".to_vec(), keys, Arc::new(Wait::Auto));
                let now = Nanos::from_secs(1_700_000_000);
                for at in 0..20 * keys {
                    // Each asks for an allotment, and that is never answered.
                    let asked = leases.ask(format!("{at}").as_bytes(), 1, now, |_, _| ());
                    assert!(matches!(asked, Asked::Refill(..)));
                    assert!(lock(&leases.active).len() <= 2 * keys);
                }
                let listed = lock(&leases.active).iter().filter(|held| !held.is_closed()).count();
                let held: usize = leases
                    .sections
                    .iter()
                    .map(|section| section.map.read().expect("nobody panics").by_key.len())
                    .sum();
                assert_eq!(listed, held, "whatever is held is listed");
            }
        }
    }
}
