//! This node's part of leased and reported limits: a bounded map with a lease for each key, and the
//! requests that keep them filled.

mod hot;

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher,
    mem,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use rapidhash::fast::RandomState;
use tidegate_core::fair::Terms as TenantTerms;
use tidegate_core::lease::{Answer, Lease, Request, Taken, Terms};
use tidegate_core::{Decision, Nanos};
use tokio::sync::Notify;

pub use hot::HotCounts;
use hot::{Hot, Recent};

use crate::{
    Deadline,
    health::{Monitor, Wait},
    script::{Plan, Script},
    sync::{lock, read, write},
};

/// The number of sections of a map with many keys. Threads with different keys then rarely contend,
/// and an insertion blocks only a part of the keys.
const SECTIONS: usize = 64;
/// With fewer keys than this there is one section.
const FEW: usize = 1 << 10;
/// To insert a key into a full section, `LOOKS` keys are checked for one that was not used
/// recently.
const LOOKS: usize = 8;

/// A tenant's terms now, by its name.
type TermsNow = dyn Fn(&[u8]) -> TenantTerms + Send + Sync;

/// The tenants that share a limit.
pub struct LeasedTenants {
    /// The part of a key that names its tenant.
    pub by: fn(&[u8]) -> &[u8],
    pub terms: Box<TermsNow>,
}

/// The lease of one key.
pub struct Held {
    pub lease: Lease,
    /// The prefix of the limit's keys, and the key or the tenant.
    name: Vec<u8>,
    /// The length of the key in Redis: of the whole name, or of the prefix if tenants share the limit.
    key: usize,
    /// Whether the lease was used since the last search for a key to evict.
    used: AtomicBool,
    /// Whether the lease is in the list that sweeps look through.
    listed: AtomicBool,
    closed: AtomicBool,
}

impl Held {
    /// The whole key in Redis.
    pub fn key(&self) -> &[u8] {
        &self.name[..self.key]
    }

    /// Whether the lease was evicted or closed. Units that still arrive are given back.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self, now: Nanos) -> Vec<Request> {
        self.closed.store(true, Ordering::Release);
        self.lease.close(now)
    }
}

/// The result of asking a lease.
pub enum LeaseAnswer {
    /// Decided in memory.
    Decided(Decision),
    /// Decided in memory; the request should be sent in the background.
    Renew(Decision, Arc<Held>, Request),
    /// The store must be asked.
    Refill(Arc<Held>, Request),
}

#[derive(Default)]
struct Map {
    by_key: HashMap<Box<[u8]>, Arc<Held>, RandomState>,
    /// In the order of insertion, or of the last check that found them used.
    order: VecDeque<Box<[u8]>>,
}

/// Aligned so that it shares no cache line.
#[repr(align(128))]
#[derive(Default)]
struct Section {
    map: RwLock<Map>,
    /// Decisions from allotments, and remembered denials.
    decided: AtomicU64,
    remembered: AtomicU64,
}

impl Section {
    #[inline]
    fn count(&self, asked: LeaseAnswer) -> LeaseAnswer {
        match &asked {
            LeaseAnswer::Decided(denied) if denied.is_denied() => {
                self.remembered.fetch_add(1, Ordering::Relaxed)
            }
            LeaseAnswer::Decided(_) | LeaseAnswer::Renew(..) => {
                self.decided.fetch_add(1, Ordering::Relaxed)
            }
            LeaseAnswer::Refill(..) => 0,
        };
        asked
    }
}

/// The leases of one limit.
pub struct Leases {
    pub terms: Terms,
    pub plan: Arc<Plan>,
    pub script: Arc<Script>,
    /// The timeout of a request.
    wait: Arc<Wait>,
    prefix: Vec<u8>,
    /// The tenants that share the limit: each of them has a lease, and not each key.
    tenants: Option<LeasedTenants>,
    hash: RandomState,
    hot: Hot,
    sections: Vec<Section>,
    keys_a_section: usize,
    /// The leases that may hold units or have something to report: at most twice the maximum number
    /// of keys (and as many again during a sweep).
    active: Mutex<Vec<Arc<Held>>>,
    closed: AtomicBool,
    /// The number of requests in flight.
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
            plan,
            script,
            wait,
            prefix,
            tenants: None,
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

    /// The leases of tenants that share the limit.
    pub fn of_tenants(self, tenants: Option<LeasedTenants>) -> Self {
        Self { tenants, ..self }
    }

    /// Whether tenants share the limit.
    pub const fn has_tenants(&self) -> bool {
        self.tenants.is_some()
    }

    /// The plan of requests about a lease of a tenant, with its present terms.
    pub fn plan_of(&self, held: &Held) -> Plan {
        let name = &held.name[self.prefix.len()..];
        let terms = self.tenants.as_ref().map(|tenants| (tenants.terms)(name));
        self.plan.of_tenant(name, terms.unwrap_or_default())
    }

    /// The key, or its tenant if tenants share the limit.
    #[inline]
    fn name<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match &self.tenants {
            None => key,
            Some(tenants) => (tenants.by)(key),
        }
    }

    /// The deadline of a request that is sent now.
    pub fn deadline(&self, monitor: &Monitor) -> Deadline {
        Deadline::after(self.wait.get(monitor))
    }

    /// Decides on `cost` for a key, or returns the request to send. `evicted` receives the requests
    /// of an evicted key that give its units back.
    #[inline]
    pub fn ask(
        &self,
        key: &[u8],
        cost: u64,
        now: Nanos,
        evicted: impl FnMut(&Arc<Held>, Request),
    ) -> LeaseAnswer {
        let key = self.name(key);
        let hash = self.hash.hash_one(key);
        let mut wanted = false;
        if let Some(mut place) = self.hot.slot(hash) {
            let Recent { held, counts, .. } = &mut *place;
            if let Some((of, held)) = held
                && *of == hash
                && held.name[self.prefix.len()..] == *key
                && !held.is_closed()
            {
                let asked = self.ask_held(held, cost, now);
                match &asked {
                    LeaseAnswer::Decided(denied) if denied.is_denied() => counts.remembered += 1,
                    LeaseAnswer::Decided(_) | LeaseAnswer::Renew(..) => counts.decided += 1,
                    LeaseAnswer::Refill(..) => {}
                }
                return asked;
            }
            wanted = place.missed();
        }
        let section = self.section(hash);
        let known = {
            let map = read(&section.map);
            match map.by_key.get(key) {
                // This avoids the reference count, which other CPUs may be changing.
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

    /// Decides on `cost` if the key's allotment, or a denial remembered with it, suffices. `send`
    /// receives the request to send in the background. `None` means that nothing was decided.
    #[inline]
    pub fn ask_quickly(
        &self,
        key: &[u8],
        cost: u64,
        now: Nanos,
        send: impl FnOnce(&Arc<Held>, Request),
    ) -> Option<Decision> {
        let key = self.name(key);
        let section = self.section(self.hash.hash_one(key));
        let map = read(&section.map);
        let held = map.by_key.get(key)?;
        let (decision, request) = held.lease.ask_quickly(cost, now)?;
        self.note_use(held);
        let count = if decision.is_denied() {
            &section.remembered
        } else {
            &section.decided
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(request) = request {
            send(held, request);
        }
        Some(decision)
    }

    /// Takes `cost` from a key's allotment, or nothing if it does not suffice. `send` receives the
    /// request to send in the background.
    pub fn take(
        &self,
        key: &[u8],
        cost: u64,
        now: Nanos,
        mut send: impl FnMut(&Arc<Held>, Request),
    ) -> Option<(Arc<Held>, Taken)> {
        let key = self.name(key);
        let section = self.section(self.hash.hash_one(key));
        let known = read(&section.map).by_key.get(key).cloned();
        let held = known.unwrap_or_else(|| self.insert(section, key, now, &mut send));
        let taken = held.lease.take(cost, now);
        self.note_use(&held);
        let request = taken
            .as_ref()
            .map_or_else(|request| *request, |taken| taken.renew);
        if let Some(request) = request {
            send(&held, request);
        }
        Some((held, taken.ok()?))
    }

    /// Counts a decision made with units that were taken.
    pub fn count_taken(&self, key: &[u8]) {
        self.section(self.hash.hash_one(self.name(key)))
            .decided
            .fetch_add(1, Ordering::Relaxed);
    }

    fn section(&self, hash: u64) -> &Section {
        &self.sections[(hash >> 48) as usize % self.sections.len()]
    }

    #[inline]
    fn ask_held(&self, held: &Arc<Held>, cost: u64, now: Nanos) -> LeaseAnswer {
        let answer = held.lease.ask(cost, now);
        self.note_use(held);
        match answer {
            Answer::Decided(decision) => LeaseAnswer::Decided(decision),
            Answer::Renew(decision, request) => {
                LeaseAnswer::Renew(decision, Arc::clone(held), request)
            }
            Answer::Refill(request) => LeaseAnswer::Refill(Arc::clone(held), request),
        }
    }

    #[inline]
    fn note_use(&self, held: &Arc<Held>) {
        // Relaxed, here and below. A sweep may have just found the lease idle and miss this use.
        // Then the next use lists it again, and until then it is like a lease without contact to
        // the store.
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
            // Keys come and go faster than sweeps run. At least half of these leases are evicted.
            // Their units are on the way back; units that do not arrive stay charged until the
            // algorithm forgets them, and a report that fails is not repeated.
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
        let mut map = write(&section.map);
        if let Some(held) = map.by_key.get(key) {
            return Arc::clone(held);
        }
        let gone = if map.by_key.len() >= self.keys_a_section {
            map.make_room()
        } else {
            None
        };
        let name = [self.prefix.as_slice(), key].concat();
        let in_redis = if self.has_tenants() {
            &self.prefix
        } else {
            &name
        };
        let held = Arc::new(Held {
            lease: Lease::new(self.terms),
            key: in_redis.len(),
            name,
            used: AtomicBool::new(true),
            listed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        if self.closed.load(Ordering::Acquire) {
            // It has nothing to give back yet, and takes nothing from now on.
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

    /// Collects the requests to send in the background. `may_send` says whether the store can be
    /// asked about a key.
    pub fn sweep(
        &self,
        now: Nanos,
        may_send: impl Fn(&[u8]) -> bool,
        mut send: impl FnMut(&Arc<Held>, Request),
    ) {
        let listed = mem::take(&mut *lock(&self.active));
        let mut kept = Vec::new();
        for held in listed {
            // Reset before the check, so that a use after it lists the lease again.
            held.listed.store(false, Ordering::SeqCst);
            let may_send = may_send(held.key());
            if may_send && let Some(request) = held.lease.returning(now) {
                send(&held, request);
            }
            // While the store is down, evicted leases are not kept for it.
            let keep = !held.lease.is_idle(now) && (may_send || !held.is_closed());
            if keep && !held.listed.swap(true, Ordering::AcqRel) {
                kept.push(held);
            }
        }
        lock(&self.active).append(&mut kept);
    }

    /// The prefix of the keys in Redis.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Ends the lease of a key, because its state in the store was changed. `send` receives the
    /// requests that give its units back and report its use, or else they are dropped.
    pub fn forget(
        &self,
        key: &[u8],
        give_back: bool,
        now: Nanos,
        mut send: impl FnMut(&Arc<Held>, Request),
    ) {
        let key = self.name(key);
        let held = {
            let section = self.section(self.hash.hash_one(key));
            let mut map = write(&section.map);
            let Some(held) = map.by_key.remove(key) else {
                return;
            };
            map.order.retain(|other| **other != *key);
            held
        };
        let requests = held.close(now);
        if give_back {
            for request in requests {
                send(&held, request);
            }
        } else {
            // A sweep would send them.
            lock(&self.active).retain(|other| !Arc::ptr_eq(other, &held));
        }
    }

    /// Gives back everything. From now on the store makes every decision.
    pub fn close(&self, now: Nanos, mut send: impl FnMut(&Arc<Held>, Request)) {
        self.closed.store(true, Ordering::Release);
        for section in &self.sections {
            let all: Vec<_> = read(&section.map).by_key.values().cloned().collect();
            for held in all {
                for request in held.close(now) {
                    send(&held, request);
                }
            }
        }
    }

    /// Decisions from allotments, and remembered denials.
    pub fn counts(&self) -> HotCounts {
        self.sum(|count| count.load(Ordering::Relaxed), |counts| *counts)
    }

    /// The same, and resets the counts: the caller keeps them.
    pub fn take_counts(&self) -> HotCounts {
        self.sum(|count| count.swap(0, Ordering::Relaxed), mem::take)
    }

    fn sum(&self, read: fn(&AtomicU64) -> u64, hot: fn(&mut HotCounts) -> HotCounts) -> HotCounts {
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

    /// Waits until no request is in flight.
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
    /// Evicts a key: the first one in order that was not used since its last check.
    fn make_room(&mut self) -> Option<Arc<Held>> {
        for look in 0..=LOOKS {
            let key = self.order.pop_front()?;
            let used = self
                .by_key
                .get(&key)
                .is_some_and(|held| held.used.swap(false, Ordering::Relaxed));
            if used && look < LOOKS {
                self.order.push_back(key);
            } else {
                return self.by_key.remove(&key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Policy, Quota};

    use super::*;
    use crate::script::Scripts;

    #[test]
    fn a_flood_of_keys_without_sweeps_uses_bounded_memory() {
        for keys in [8, FEW] {
            let (policy, slack) = (
                Policy::sliding_window(Quota::per_hour(1_000)),
                Nanos::from_millis(100),
            );
            for terms in [
                Terms::leased(policy, slack),
                Terms::reported(policy, 50, slack),
            ] {
                let plan = Arc::new(Plan::new(*terms.policy()).expect("it can be shared"));
                let scripts = Scripts::new();
                let script = Arc::clone(scripts.lease(plan.kind()).expect("it can be leased"));
                let leases = Leases::new(
                    terms,
                    plan,
                    script,
                    b"x:".to_vec(),
                    keys,
                    Arc::new(Wait::Auto),
                );
                let now = Nanos::from_secs(1_700_000_000);
                for at in 0..20 * keys {
                    // Each asks for an allotment, and never gets a reply.
                    let asked = leases.ask(format!("{at}").as_bytes(), 1, now, |_, _| ());
                    assert!(matches!(asked, LeaseAnswer::Refill(..)));
                    assert!(lock(&leases.active).len() <= 2 * keys);
                }
                let listed = lock(&leases.active)
                    .iter()
                    .filter(|held| !held.is_closed())
                    .count();
                let held: usize = leases
                    .sections
                    .iter()
                    .map(|section| read(&section.map).by_key.len())
                    .sum();
                assert_eq!(listed, held, "every held lease is listed");
            }
        }
    }
}
