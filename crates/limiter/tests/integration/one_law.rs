//! One law for every change: what was used and what is newly admitted is at most the highest limit
//! that was in force in the window, for any sequence of changes of policy, overrides, table sizes,
//! snapshots, restores, evictions, refunds, settlements and time.
//!
//! 40,000 random steps for each algorithm and way to hold it; `TIDEGATE_LONG=1` makes it
//! 10,000,000.

use std::{collections::BTreeMap, time::Duration};

use tidegate_limiter::{
    Estimate, Forgotten, KeyedLimiter, Limiter, Nanos, Policy, Quota, SnapshotEntry, WhenFull,
    algorithm,
};

const WINDOW: u64 = 60_000_000_000;
const START: Nanos = Nanos::new(1_000 * WINDOW);
const KEYS: [&str; 3] = ["a", "b", "c"];
/// Around the widths of counts in states and records.
const LIMITS: [u64; 14] = [
    1, 2, 5, 10, 100, 126, 127, 128, 253, 254, 255, 256, 300, 1_000,
];
const WIDE: [u64; 6] = [65_533, 65_534, 65_535, 65_536, 70_000, 1_000_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency,
    /// Permits that expire.
    Held,
}

use Kind::{
    Concurrency, FixedWindow, Held, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow,
    TokenBucket,
};

const KINDS: [Kind; 8] = [
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency,
    Held,
];

impl Kind {
    fn policy(self, limit: u64) -> Policy {
        let quota = Quota::new(limit, Duration::from_nanos(WINDOW)).unwrap();
        match self {
            FixedWindow => Policy::fixed_window(quota),
            SlidingLog => Policy::sliding_log(quota).unwrap(),
            SlidingWindow => Policy::sliding_window(quota),
            SlidingCounter => Policy::sliding_counter(quota),
            TokenBucket => Policy::token_bucket(quota),
            LeakyBucket => Policy::leaky_bucket(quota),
            Concurrency => Policy::concurrency(limit as u32),
            Held => algorithm::Concurrency::new(limit as u32)
                .hold(Duration::from_nanos(WINDOW))
                .unwrap()
                .into(),
        }
    }
}

/// The use of one key, and the limits that were in force for it.
#[derive(Default)]
struct Known {
    /// When units started, and how many. Those of a leaky bucket start after their delay.
    used: Vec<(u64, u64)>,
    /// Where the units of each of these count.
    places: Vec<u64>,
    limits: Vec<(u64, u64)>,
}

impl Known {
    fn limit_is(&mut self, limit: u64, now: u64) {
        if self.limits.last().is_none_or(|(_, last)| *last != limit) {
            self.limits.push((now, limit));
        }
    }

    /// The highest limit from `from` on.
    fn highest(&self, from: u64) -> u64 {
        let before = self
            .limits
            .iter()
            .rposition(|(since, _)| *since < from)
            .unwrap_or(0);
        self.limits[before..]
            .iter()
            .map(|(_, limit)| *limit)
            .max()
            .unwrap_or(0)
    }

    fn since(&self, from: u64) -> u64 {
        self.used
            .iter()
            .rev()
            .take_while(|(at, _)| *at >= from)
            .map(|(_, units)| units)
            .sum()
    }

    /// Checks the law for all windows that end now, or when the last unit starts.
    fn check(&self, kind: Kind, now: u64) -> Result<(), String> {
        let over = |from: u64, most: u64| {
            let used = self.since(from);
            if used > most {
                Err(format!("{used} of {most} in {} ns", now - from))
            } else {
                Ok(())
            }
        };
        match kind {
            FixedWindow | SlidingCounter => {
                over(now - now % WINDOW, self.highest(now - now % WINDOW))
            }
            SlidingLog | SlidingWindow | Held => {
                over(now - WINDOW + 1, self.highest(now - WINDOW + 1))
            }
            // Units are in flight until they are given back.
            Concurrency => over(0, self.highest(u64::MAX)),
            // Each unit takes an interval of the highest limit, and starts are rounded to
            // nanoseconds.
            LeakyBucket => {
                let [earlier @ .., (start, _)] = &self.used[..] else {
                    return Ok(());
                };
                let mut units = 0;
                for (from, more) in earlier.iter().rev() {
                    units += more;
                    let highest = self.highest(from - WINDOW);
                    let least = u128::from(units) * u128::from(WINDOW);
                    if least > u128::from(highest) * u128::from(start.saturating_sub(*from) + 1) {
                        return Err(format!(
                            "{units} of {highest} within {} ns",
                            start.saturating_sub(*from)
                        ));
                    }
                }
                Ok(())
            }
            TokenBucket => self
                .used
                .iter()
                .rev()
                .take_while(|(at, _)| now - at <= WINDOW)
                .try_for_each(|(from, _)| {
                    let most = self.highest(*from);
                    over(
                        *from,
                        most + (u128::from(most) * u128::from(now - from)).div_ceil(WINDOW.into())
                            as u64,
                    )
                }),
        }
    }

    /// Documented: units of a leaky bucket that are given back after a change take the time of the
    /// new rate.
    fn may_refund(&self, kind: Kind) -> bool {
        kind != LeakyBucket || self.limits.len() == 1
    }

    /// A request whose units go back to the place where they count when it is settled, and the
    /// units that it really used.
    fn settle_one(&mut self, kind: Kind, random: &mut Random) -> Option<(Estimate, u64)> {
        if matches!(kind, LeakyBucket | Concurrency | Held) || self.used.is_empty() {
            return None;
        }
        let at = random.below(self.used.len());
        let (taken, cost) = self.used[at];
        let actual = random.next() % (cost + 1);
        self.used[at].1 = actual;
        Some((
            Estimate {
                cost,
                taken: Nanos::new(taken),
                place: self.places[at],
            },
            actual,
        ))
    }

    fn refund(&mut self, kind: Kind, now: u64, mut units: u64) {
        if kind == Held {
            // The permits that were taken first come back first.
            for (_, used) in self.used.iter_mut().filter(|(at, _)| *at > now - WINDOW) {
                let back = units.min(*used);
                (*used, units) = (*used - back, units - back);
            }
            return;
        }
        while units > 0
            && let Some((at, last)) = self.used.pop()
        {
            if last > units {
                self.used.push((at, last - units));
            }
            units = units.saturating_sub(last);
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    fn limit(&mut self, kind: Kind) -> u64 {
        // A log of a million entries takes too long to move.
        if !matches!(kind, SlidingLog | Held) && self.below(4) == 0 {
            WIDE[self.below(6)]
        } else {
            LIMITS[self.below(14)]
        }
    }

    fn cost(&mut self, limit: u64) -> u64 {
        match self.below(4) {
            0 => 1,
            1 => limit.max(1),
            _ => 1 + self.next() % limit.max(1),
        }
    }
}

fn steps() -> usize {
    if std::env::var_os("TIDEGATE_LONG").is_some() {
        10_000_000
    } else {
        40_000
    }
}

#[test]
fn a_keyed_limiter_keeps_the_law() {
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let mut made = 0;
        let mut checked = 0;
        while made < steps() {
            let history = keyed(kind, &mut random, &mut checked);
            made += history.len();
            let Some(Step::Over(what)) = history.last() else {
                continue;
            };
            panic!("{kind:?}: {what} after {history:?}");
        }
        assert!(
            checked > steps() / 50,
            "{kind:?}: only {checked} admissions"
        );
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "shown when the law is broken")]
enum Step {
    Acquire(&'static str, u64, bool),
    UpTo(&'static str, u64, u64),
    Policy(u64, bool),
    Override(&'static str, u64),
    NoOverride(&'static str),
    MaxKeys(usize),
    WhenFull(WhenFull),
    Flood(usize),
    Save,
    Restore,
    Refund(&'static str, u64),
    Settle(&'static str, Estimate, u64),
    Time(u64),
    Over(String),
}

/// A history of up to 60 steps; it ends when the law is broken, or when the table had to forget
/// something.
#[allow(clippy::too_many_lines, reason = "one arm for each step")]
fn keyed(kind: Kind, random: &mut Random, checked: &mut usize) -> Vec<Step> {
    let mut limit = random.limit(kind);
    let limiter = KeyedLimiter::builder(kind.policy(limit))
        .max_keys(64)
        .clock(())
        .build()
        .unwrap();
    let (mut now, mut history) = (START, Vec::new());
    let mut known: BTreeMap<&str, Known> = BTreeMap::new();
    let mut overrides: BTreeMap<&str, u64> = BTreeMap::new();
    let mut saved: Option<(Policy, Vec<SnapshotEntry>)> = None;
    for newcomer in 0..60 {
        let key = KEYS[random.below(3)];
        for key in KEYS {
            let limit = *overrides.get(key).unwrap_or(&limit);
            known.entry(key).or_default().limit_is(limit, now.get());
        }
        let in_force = *overrides.get(key).unwrap_or(&limit);
        let (mut admitted, mut start, mut place) = (0, now, 0);
        history.push(match random.below(21) {
            0..6 => {
                let cost = random.cost(in_force);
                let (decision, estimate) = limiter.at(now).acquire_estimate(key, cost);
                place = estimate.place;
                admitted = if decision.is_allowed() { cost } else { 0 };
                start = now.saturating_add(decision.delay().into());
                Step::Acquire(key, cost, decision.is_allowed())
            }
            6 | 7 => {
                let cost = random.cost(in_force);
                let (taken, decision) = limiter.at(now).acquire_up_to(key, cost);
                (admitted, start) = (taken, now.saturating_add(decision.delay().into()));
                Step::UpTo(key, cost, admitted)
            }
            8 | 9 => {
                limit = random.limit(kind);
                let change = limiter.at(now).set_policy(kind.policy(limit)).unwrap();
                let finish = random.below(2) == 0;
                if finish {
                    change.finish_at(now);
                }
                Step::Policy(limit, finish)
            }
            10 => {
                let own = random.limit(kind);
                limiter.at(now).set_override(key, kind.policy(own)).unwrap();
                overrides.insert(key, own);
                Step::Override(key, own)
            }
            11 => {
                limiter.at(now).remove_override(key);
                overrides.remove(key);
                Step::NoOverride(key)
            }
            12 => {
                let most = [4, 16, 64, 300][random.below(4)];
                let _ = limiter.at(now).set_max_keys(most).unwrap();
                Step::MaxKeys(most)
            }
            13 => {
                let when_full = [WhenFull::Deny, WhenFull::Forget][random.below(2)];
                let _ = limiter.at(now).set_when_full(when_full).unwrap();
                Step::WhenFull(when_full)
            }
            14 => {
                let many = random.below(8);
                for other in 0..many {
                    let _ = limiter
                        .at(now)
                        .acquire(format!("{newcomer} {other}").as_str(), 1);
                }
                Step::Flood(many)
            }
            15 => {
                let mut entries = Vec::new();
                limiter.at(now).snapshot(|entry| entries.push(entry));
                saved = Some((kind.policy(limit), entries));
                Step::Save
            }
            16 => {
                if let Some((policy, entries)) = &saved {
                    for entry in entries {
                        limiter.at(now).restore(policy, entry);
                    }
                }
                Step::Restore
            }
            18 => {
                let settled = known
                    .get_mut(key)
                    .and_then(|known| known.settle_one(kind, random));
                let (estimate, actual) = settled.unwrap_or((
                    Estimate {
                        cost: 0,
                        taken: now,
                        place: 0,
                    },
                    0,
                ));
                limiter.at(now).settle(key, estimate, actual);
                Step::Settle(key, estimate, actual)
            }
            17 => {
                let used = known
                    .get(key)
                    .and_then(|known| known.used.last())
                    .map_or(0, |(_, units)| *units);
                let units = 1 + random.below(used.max(1) as usize) as u64;
                let known = known.entry(key).or_default();
                let units = if known.may_refund(kind) { units } else { 0 };
                limiter.at(now).refund(key, units);
                known.refund(kind, now.get(), units);
                Step::Refund(key, units)
            }
            _ => {
                let by = [
                    1,
                    1_000_000,
                    WINDOW / 20,
                    WINDOW / 10,
                    WINDOW / 3,
                    WINDOW,
                    2 * WINDOW,
                ][random.below(7)];
                now = now.saturating_add(Nanos::new(by));
                Step::Time(by)
            }
        });
        if limiter.stats().forgotten != Forgotten::default() {
            return history; // Documented: beyond the records' room.
        }
        if admitted > 0 {
            let known = known.entry(key).or_default();
            known.used.push((start.get(), admitted));
            known.places.truncate(known.used.len() - 1);
            known.places.push(place);
            *checked += 1;
            if let Err(over) = known.check(kind, now.get()) {
                history.push(Step::Over(format!("{key}: {over}")));
                return history;
            }
        }
    }
    history
}

#[test]
fn a_limiter_without_keys_keeps_the_law() {
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let mut random = Random(100 + seed as u64);
        for _ in 0..steps() / 60 {
            let mut limit = random.limit(kind);
            let limiter = Limiter::with_clock(kind.policy(limit), ());
            let (mut now, mut known, mut saved) = (START, Known::default(), None);
            let mut history = Vec::new();
            for _ in 0..60 {
                known.limit_is(limit, now.get());
                match random.below(13) {
                    0..6 => {
                        let cost = random.cost(limit);
                        let (decision, estimate) = limiter.at(now).acquire_estimate(cost);
                        history.push(Step::Acquire("", cost, decision.is_allowed()));
                        if decision.is_allowed() {
                            let start = now.saturating_add(decision.delay().into());
                            known.used.push((start.get(), cost));
                            known.places.truncate(known.used.len() - 1);
                            known.places.push(estimate.place);
                            if let Err(over) = known.check(kind, now.get()) {
                                panic!("{kind:?}: {over} after {history:?}");
                            }
                        }
                    }
                    6 | 7 => {
                        limit = random.limit(kind);
                        limiter.at(now).set_policy(kind.policy(limit));
                        history.push(Step::Policy(limit, true));
                    }
                    8 => {
                        saved = Some((kind.policy(limit), limiter.snapshot()));
                        history.push(Step::Save);
                    }
                    9 => {
                        if let Some((policy, state)) = &saved {
                            limiter.at(now).restore(policy, state);
                            history.push(Step::Restore);
                        }
                    }
                    11 => {
                        let settled = known.settle_one(kind, &mut random);
                        let (estimate, actual) = settled.unwrap_or((
                            Estimate {
                                cost: 0,
                                taken: now,
                                place: 0,
                            },
                            0,
                        ));
                        limiter.at(now).settle(estimate, actual);
                        history.push(Step::Settle("", estimate, actual));
                    }
                    10 => {
                        let used = known.used.last().map_or(0, |(_, units)| *units);
                        let units = 1 + random.below(used.max(1) as usize) as u64;
                        let units = if known.may_refund(kind) { units } else { 0 };
                        limiter.at(now).refund(units);
                        known.refund(kind, now.get(), units);
                        history.push(Step::Refund("", units));
                    }
                    _ => {
                        let by = [1, 1_000_000, WINDOW / 10, WINDOW / 3, WINDOW][random.below(5)];
                        now = now.saturating_add(Nanos::new(by));
                        history.push(Step::Time(by));
                    }
                }
            }
        }
    }
}
