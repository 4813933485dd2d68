//! Whether units that were taken still count where they did, so that their holder may return them.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
    sync::PoisonError,
};

use tidegate_core::{Estimate, Holds, Nanos, Policy};

use crate::{
    marks::TagHasher,
    sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering},
    table::{HashKeys, Tag},
};

/// The place of permits that no reset concerns, the same in every process.
const PERMITS: u64 = 0x7065_726D_6974_7321;

/// Numbers the resets and the changes of rates of a limiter. A place of units is derived from the
/// latest ones that concern them.
///
/// A reset and a change of one key's rate are numbered under the key's lock, and so is a place
/// read: an estimate was taken before a reset and says so, or after it.
pub(crate) struct Eras {
    /// The number of the latest event.
    latest: AtomicU64,
    /// The number of the latest reset of all keys.
    all_reset: AtomicU64,
    /// Set while all keys are being reset: no place is noted until that ends.
    resetting: AtomicBool,
    /// Whether `keys` has an entry.
    any_key: AtomicBool,
    keys: Mutex<KeyEras>,
    /// Whether `holds` says anything.
    any_hold: AtomicBool,
    /// The effect of changes of the general policy on permits.
    holds: Mutex<Holds>,
    /// Differs in each process, so that a number from another one matches nothing.
    own: HashKeys,
}

/// The latest events of single keys.
#[derive(Default)]
struct KeyEras {
    of: HashMap<Tag, KeyEra, BuildHasherDefault<TagHasher>>,
    /// The events, the oldest first. An event that its key no longer has is skipped.
    order: VecDeque<(u64, Tag)>,
    /// The highest number that was forgotten.
    forgotten: u64,
}

/// The numbers of a key's latest reset and latest change of its own rate; 0 if there was none.
#[derive(Clone, Copy, Default)]
struct KeyEra {
    reset: u64,
    rate: u64,
    /// The number of the key's policy.
    own: u64,
    /// The effect of the key's policies on permits.
    holds: Holds,
    /// `Eras::holds` when the latest of them ended.
    general: Holds,
}

impl KeyEra {
    fn latest(&self) -> u64 {
        self.reset.max(self.rate).max(self.own)
    }
}

/// What the place of units in one state depends on besides its policy.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    eras: &'a Eras,
    /// Identifies the policy's time in force.
    rate: u64,
    /// The key; `None` in a limiter without keys.
    tag: Option<Tag>,
}

/// The correction that a holder of an estimate may still make.
enum Correction {
    /// Return this many, which are the latest that were taken.
    Refund(u64),
    /// Settle to this cost.
    To(u64),
}

impl Eras {
    pub fn new() -> Self {
        Self {
            latest: AtomicU64::new(0),
            all_reset: AtomicU64::new(0),
            resetting: AtomicBool::new(false),
            any_key: AtomicBool::new(false),
            keys: Mutex::default(),
            any_hold: AtomicBool::new(false),
            holds: Mutex::default(),
            own: HashKeys::random(),
        }
    }

    /// A place that depends on these numbers and on the process.
    fn own_place(&self, numbers: [u64; 4], units: &[u64]) -> u64 {
        let mut bytes = [0; 32];
        for (part, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        units.iter().fold(self.own.tag(&bytes), |place, unit| {
            bytes[..8].copy_from_slice(&place.to_le_bytes());
            bytes[8..16].copy_from_slice(&unit.to_le_bytes());
            self.own.tag(&bytes)
        })
    }

    /// A number that no earlier event has: for a policy that comes into force.
    pub fn next(&self) -> u64 {
        // Relaxed, here and below: the locks of the states order what belongs together.
        self.latest.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records a reset of the only state. The caller holds its lock.
    pub fn reset(&self) {
        self.all_reset.store(self.next(), Ordering::Relaxed);
    }

    /// Runs a reset of all keys, which takes each key's lock in turn.
    pub fn reset_all(&self, reset: impl FnOnce()) {
        // A holder that notes a place does so under its key's lock. One that came before the reset
        // got there has an earlier number; one that comes later sees this flag.
        self.resetting.store(true, Ordering::Relaxed);
        reset();
        self.reset();
        // Release: who sees that the reset is over sees its number.
        self.resetting.store(false, Ordering::Release);
    }

    /// Whether all keys are being reset, so that no place may be noted.
    pub fn is_resetting(&self) -> bool {
        self.resetting.load(Ordering::Acquire)
    }

    /// Records a reset of a key. The caller holds the key's lock. The latest resets of up to `most`
    /// keys are remembered.
    pub fn reset_key(&self, tag: Tag, most: usize) {
        let number = self.next();
        self.change_key(tag, most, number, |era| era.reset = number);
    }

    /// Records that a key's own policy `from` has ended, and that the general one applies to it.
    /// The caller holds the key's lock.
    pub fn end_own(&self, tag: Tag, most: usize, (from, to): (&Policy, &Policy), now: Nanos) {
        let number = self.next();
        let general = self.general_holds();
        self.change_key(tag, most, number, |era| {
            era.rate = number;
            era.holds = era.holds.after(from, to, now);
            era.general = general;
        });
    }

    /// Records that a key has its own policy `to`, with this number, after another one. The caller
    /// holds the key's lock.
    pub fn begin_own(
        &self,
        tag: Tag,
        most: usize,
        (rate, number): (u64, u64),
        (from, to): (&Policy, &Policy),
        now: Nanos,
    ) {
        // Only permits are asked about.
        if !from.is_concurrency() && !to.is_concurrency() {
            return;
        }
        let (era, _) = self.of_key(tag);
        let holds = self.holds_of(rate, &era).after(from, to, now);
        self.change_key(tag, most, number, |era| {
            era.own = number;
            era.holds = holds;
        });
    }

    /// Records a change of the general policy, just before it.
    pub fn change_policy(&self, from: &Policy, to: &Policy, now: Nanos) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let after = holds.after(from, to, now);
        if after != *holds {
            *holds = after;
            self.any_hold.store(true, Ordering::Relaxed);
        }
    }

    /// The effect of changes of policy on permits of a key in the policy with this number.
    fn holds_of(&self, rate: u64, key: &KeyEra) -> Holds {
        if key.own > 0 && key.own == rate {
            return key.holds;
        }
        self.general_holds().since(key.general).join(key.holds)
    }

    fn general_holds(&self) -> Holds {
        if !self.any_hold.load(Ordering::Relaxed) {
            return Holds::default();
        }
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_key(&self, tag: Tag, most: usize, number: u64, change: impl FnOnce(&mut KeyEra)) {
        let keys = &mut *self.keys();
        change(keys.of.entry(tag).or_default());
        keys.order.push_back((number, tag));
        while keys.of.len() > most || keys.order.len() > 2 * most.max(32) {
            let Some((number, tag)) = keys.order.pop_front() else {
                break;
            };
            let is_latest = |era: &KeyEra| era.latest() == number;
            if keys.of.get(&tag).is_some_and(is_latest) {
                keys.of.remove(&tag);
                keys.forgotten = number;
            }
        }
        self.any_key.store(true, Ordering::Relaxed);
    }

    fn keys(&self) -> MutexGuard<'_, KeyEras> {
        // Nothing panics while the lock is held and the map is half changed.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key's entry, and the number that stands for events that were forgotten.
    fn of_key(&self, tag: Tag) -> (KeyEra, u64) {
        if !self.any_key.load(Ordering::Relaxed) {
            return (KeyEra::default(), 0);
        }
        let keys = self.keys();
        (
            keys.of.get(&tag).copied().unwrap_or_default(),
            keys.forgotten,
        )
    }

    /// A state's site. `rate` identifies the policy's time in force.
    pub const fn site(&self, rate: u64, tag: Option<Tag>) -> Site<'_> {
        Site {
            eras: self,
            rate,
            tag,
        }
    }
}

impl Site<'_> {
    /// Whether an admission must wait: its place could not be noted.
    pub fn is_resetting(self) -> bool {
        self.eras.is_resetting()
    }

    /// See [`Estimate::place`]. The caller holds the state's lock.
    pub fn place(self, policy: &Policy, state: &[u64]) -> u64 {
        let Self { eras, rate, tag } = self;
        let (key, forgotten) = tag.map_or_else(Default::default, |tag| eras.of_key(tag));
        let all_reset = eras.all_reset.load(Ordering::Relaxed);
        let resets = all_reset.max(key.reset).max(forgotten);
        if let Some(place) = policy.place() {
            // Without a reset it is the same in every process.
            return if resets == 0 {
                place
            } else {
                eras.own_place([0, place, resets, 0], &[])
            };
        }
        // Permits outlast every change of the limit. To take those of a key whose reset was
        // forgotten for void would keep them for ever.
        if policy.is_concurrency() {
            return match all_reset.max(key.reset) {
                0 => PERMITS,
                resets => eras.own_place([1, resets, 0, 0], &[]),
            };
        }
        let key_rate = key.rate.max(forgotten);
        if policy.is_leaky_bucket() {
            // The units can return as long as nothing was queued behind them.
            return eras.own_place([2, rate, key_rate, resets], policy.units_of(state));
        }
        eras.own_place([3, rate, key_rate, resets], &[])
    }

    /// See [`KeyedLimiter::place_in_copy`](crate::KeyedLimiter::place_in_copy).
    pub fn place_in_copy(self, policy: &Policy, state: &[u64], place: u64) -> u64 {
        if self.place(policy, state) != place {
            return 0;
        }
        let permits = policy.is_concurrency().then_some(PERMITS);
        policy.place().or(permits).unwrap_or(place)
    }

    /// The estimate of units that were just taken from a state. The caller holds its lock.
    pub fn note(self, policy: &Policy, state: &[u64], cost: u64, taken: Nanos) -> Estimate {
        Estimate {
            cost,
            taken,
            place: self.place(policy, state),
        }
    }

    /// The effect of changes of the policy on permits in this state.
    #[cold]
    fn holds(self) -> Holds {
        let key = self
            .tag
            .map_or_else(Default::default, |tag| self.eras.of_key(tag).0);
        self.eras.holds_of(self.rate, &key)
    }

    /// Whether units still count in this state, so that their holder may return them. The caller
    /// holds the state's lock.
    pub fn counts(self, policy: &Policy, state: &[u64], estimate: &Estimate, now: Nanos) -> bool {
        self.place(policy, state) == estimate.place
            && !(policy.is_concurrency() && self.holds().has_ended(policy, estimate, now))
    }

    /// [`settle`](Self::settle) of permits: those that do not count return nothing.
    #[cold]
    fn settle_permits(
        self,
        policy: &Policy,
        state: &mut [u64],
        now: Nanos,
        (estimate, actual): (Estimate, u64),
    ) {
        if self.counts(policy, state, &estimate, now) {
            let estimate = self.holds().counted(estimate);
            policy.settle(state, now, estimate, actual);
        }
    }

    fn correction(
        self,
        policy: &Policy,
        state: &[u64],
        estimate: Estimate,
        actual: u64,
    ) -> Correction {
        let is_there = self.place(policy, state) == estimate.place;
        let unused = estimate.cost.saturating_sub(actual);
        if policy.is_leaky_bucket() && unused > 0 && is_there {
            Correction::Refund(unused)
        } else if is_there {
            Correction::To(actual)
        } else {
            Correction::To(actual.max(estimate.cost))
        }
    }

    /// Corrects an estimate at `now` to the `actual` cost. If its units no longer count where they
    /// did, none returns. The latest units return through `refund`. The caller holds the state's
    /// lock.
    pub fn settle(
        self,
        policy: &Policy,
        state: &mut [u64],
        now: Nanos,
        (estimate, actual): (Estimate, u64),
        refund: impl FnOnce(&mut [u64], u64),
    ) {
        if policy.is_concurrency() {
            return self.settle_permits(policy, state, now, (estimate, actual));
        }
        match self.correction(policy, state, estimate, actual) {
            Correction::Refund(units) => refund(state, units),
            Correction::To(actual) => policy.settle(state, now, estimate, actual),
        }
    }
}
