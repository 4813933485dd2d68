//! The store's one background task for its health: it gives signs of life, and what comes of them opens and closes the
//! breakers.
//!
//! A caller's failure that leaves no doubt (nobody listens; loading; a replica; memory full) opens the breaker at once. Any
//! other failure only calls for a sign of life: whether it is the store or one request is what that finds out. Nothing but
//! a sign of life closes a breaker: what callers are told by a replica, or by a full server, are denials that it need not
//! write. And no caller ever waits to see whether a store is back.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Clock, Nanos, Policy, Quota};
use tidegate_limiter::{Limiter, SystemClock};
use tokio::time::{sleep, timeout};

use crate::{
    Health, StoreError,
    nodes::{SignOfLife, random},
    store::Inner,
};

/// How often there is a sign of life where nobody calls for one; with a share of chance, so that nodes do not keep step.
const EVERY: Duration = Duration::from_secs(2);
/// And how long after another at the earliest, whoever calls.
const SELDOM: Duration = Duration::from_millis(100);
/// Signs of life in a row that got no answer (rather than a refusal), until the store is down.
const MISSES: u8 = 3;
/// While a breaker is open: the first pause between two signs of life, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// A store that was well for so long starts with the first pause again.
const WELL: Duration = Duration::from_secs(10);
/// A cluster's client finds dead nodes by itself, but not silent ones: every so many failed signs of life in a row there is
/// a new one.
const RENEW: u32 = 5;
/// Log lines about the store's health: so many a minute, and at once.
const LINES: u32 = 6;

/// Watches over the store for as long as it exists.
pub fn keep(store: &Arc<Inner>) {
    let (weak, wake) = (Arc::downgrade(store), Arc::clone(&store.wake));
    let mut pulse = Pulse::new(store);
    store.runtime.spawn(async move {
        while let Some(store) = weak.upgrade() {
            pulse.look(&store).await;
            pulse.tell(&store);
            let (open, doubt, now) = (store.any_open(), store.is_in_doubt(), store.clock.now());
            drop(store);
            if !open && !doubt {
                pulse.pauses.well(now);
                sleep(SELDOM).await;
                let every = EVERY.mul_f64(0.75 + chance() / 2.0);
                // Whether somebody called or it is time.
                let _ = timeout(every.saturating_sub(SELDOM), wake.notified()).await;
            }
            if weak.upgrade().is_some_and(|store| store.any_open()) {
                sleep(pulse.pauses.next(chance())).await;
            } else if doubt {
                sleep(PAUSE).await;
            }
        }
    });
}

/// At random, 0 to 1.
fn chance() -> f64 {
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

struct Pulse {
    sign: Arc<SignOfLife>,
    /// In a row, of each part.
    misses: Vec<u8>,
    /// Rounds in a row that left something open.
    failures: u32,
    pauses: Pauses,
    lines: Lines,
}

impl Pulse {
    fn new(store: &Inner) -> Self {
        Self {
            sign: Arc::new(SignOfLife::new(store)),
            misses: vec![0; store.parts()],
            failures: 0,
            pauses: Pauses::default(),
            lines: Lines::new(),
        }
    }

    /// Signs of life where one is due: in the part that counts the nodes, and wherever there is a doubt.
    async fn look(&mut self, store: &Arc<Inner>) {
        let had = store.link.number();
        let deadline = store.deadlines.patience();
        let signs: Vec<_> = (0..store.parts())
            .filter(|&at| at == self.sign.home || store.breakers[at].is_in_doubt())
            .map(|at| {
                let (store, sign) = (Arc::clone(store), Arc::clone(&self.sign));
                (at, store.runtime.clone().spawn(async move { sign.give(&store, at, deadline).await }))
            })
            .collect();
        let mut failed = false;
        for (at, sign) in signs {
            // The task ends early only with the runtime.
            let Err(error) = sign.await.unwrap_or(Err(StoreError::Down)) else {
                self.misses[at] = 0;
                store.close(at);
                continue;
            };
            store.counters.count(&error);
            self.misses[at] = self.misses[at].saturating_add(1);
            // A server that answers and refuses a plain write leaves no doubt, whatever it says.
            let unanswered = matches!(error, StoreError::TimedOut | StoreError::Lost(_));
            if unanswered && self.misses[at] < MISSES {
                store.breakers[at].suspect();
            } else {
                store.open(at, &error);
                failed = true;
            }
        }
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        // Perhaps only this connection is dead, or leads to a server that is no master any more. One that was made meanwhile
        // has had no chance yet.
        let give_up = failed && (!store.is_cluster() || self.failures.is_multiple_of(RENEW));
        if let Some(had) = had.filter(|_| give_up) {
            store.link.give_up(had, &store.runtime);
        }
    }

    fn tell(&mut self, store: &Inner) {
        let (opened, now) = (store.counters.opened.get(), store.clock.now());
        let Some(line) = self.lines.next(store.health(), store.any_open(), opened, now) else { return };
        let (store_at, why) = (store.link.address(), store.why());
        let error = why.as_ref().map(tracing::field::display);
        match line {
            Line::Back => tracing::info!(store = %store_at, "the shared store answers again"),
            Line::WasDown => {
                tracing::warn!(store = %store_at, error, "the shared store was down for a moment");
            }
            Line::Partly => {
                tracing::warn!(store = %store_at, error, "a part of the shared store's cluster is down");
            }
            Line::Down => tracing::warn!(store = %store_at, error, "the shared store is down"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Down,
    Partly,
    Back,
    /// It was down since the last line, and is not any more.
    WasDown,
}

/// A line for each change, as long as there are not too many; then for the last one as soon as there may be another.
struct Lines {
    limiter: Limiter<SystemClock>,
    told: Health,
    opened: u64,
}

impl Lines {
    fn new() -> Self {
        let quota = Quota::per_minute(LINES);
        Self { limiter: Limiter::new(Policy::token_bucket(quota)), told: Health::Up, opened: 0 }
    }

    fn next(&mut self, health: Health, any_open: bool, opened: u64, now: Nanos) -> Option<Line> {
        let line = match health {
            Health::Up if self.told != Health::Up => Line::Back,
            Health::Up if opened != self.opened => Line::WasDown,
            // One that has not been reached yet is not down before that is found out.
            Health::Down if self.told != Health::Down && any_open => Line::Down,
            Health::Partly if self.told != Health::Partly => Line::Partly,
            _ => return None,
        };
        if self.limiter.acquire_at(1, now).is_denied() {
            return None;
        }
        (self.told, self.opened) = (health, opened);
        Some(line)
    }
}

/// Pauses that double, until the store has been well for a while: one that comes and goes is asked less and less often.
#[derive(Debug, Default)]
struct Pauses {
    in_a_row: u32,
    well_since: Option<Nanos>,
}

impl Pauses {
    /// The next pause. `chance` in 0..1 spreads the signs of life of many nodes.
    fn next(&mut self, chance: f64) -> Duration {
        self.well_since = None;
        let pause = PAUSE.saturating_mul(1 << self.in_a_row.min(10)).min(LONGEST);
        self.in_a_row = self.in_a_row.saturating_add(1);
        pause.mul_f64(0.5 + chance / 2.0)
    }

    fn well(&mut self, now: Nanos) {
        let since = *self.well_since.get_or_insert(now);
        if now.saturating_since(since) >= WELL.into() {
            self.in_a_row = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_comes_and_goes_is_no_flood_of_lines_and_how_it_is_in_the_end_is_told() {
        let mut lines = Lines::new();
        let at = |ms: u64| Nanos::from_millis(10_000_000 + ms);
        let mut told = Vec::new();
        // Ten minutes, ten changes a second.
        for tick in 0..6_000 {
            let (health, down) = if tick % 2 == 0 { (Health::Down, true) } else { (Health::Up, false) };
            told.extend(lines.next(health, down, tick / 2 + 1, at(tick * 100)));
        }
        assert_eq!(told[..4], [Line::Down, Line::Back, Line::Down, Line::Back]);
        assert!((60..=66).contains(&told.len()), "{} lines", told.len());
        let end = at(600_000);
        let last: Vec<_> = (0..10)
            .filter_map(|s| {
                lines.next(Health::Down, true, 3_001, end.saturating_add(Nanos::from_secs(2 * s)))
            })
            .collect();
        assert_eq!(*last.last().or(told.last()).expect("there were lines"), Line::Down);
        assert_eq!(
            lines.next(Health::Up, false, 3_001, end.saturating_add(Nanos::from_secs(60))),
            Some(Line::Back)
        );
    }

    #[test]
    fn an_outage_between_two_looks_and_a_part_of_a_cluster_are_told_for_what_they_are() {
        let (mut lines, now) = (Lines::new(), Nanos::from_secs(1_000));
        assert_eq!(lines.next(Health::Down, false, 0, now), None, "it has not been reached yet");
        assert_eq!(lines.next(Health::Up, false, 0, now), None);
        assert_eq!(lines.next(Health::Up, false, 1, now), Some(Line::WasDown));
        assert_eq!(lines.next(Health::Up, false, 1, now), None);
        assert_eq!(lines.next(Health::Partly, true, 2, now), Some(Line::Partly));
        assert_eq!(lines.next(Health::Partly, true, 3, now), None);
        assert_eq!(lines.next(Health::Down, true, 4, now), Some(Line::Down));
        assert_eq!(lines.next(Health::Up, false, 4, now), Some(Line::Back));
    }

    #[test]
    fn pauses_grow_to_two_seconds_and_shrink_only_when_the_store_was_well_for_a_while() {
        let mut pauses = Pauses::default();
        assert_eq!((pauses.next(0.0), pauses.next(1.0)), (PAUSE / 2, PAUSE * 2));
        for _ in 0..20 {
            pauses.next(1.0);
        }
        assert_eq!((pauses.next(0.0), pauses.next(1.0)), (LONGEST / 2, LONGEST));
        let at = |second: u64| Nanos::from_secs(1_000 + second);
        // Well for nine seconds, twice: still the longest.
        for begun in [0, 100] {
            pauses.well(at(begun));
            pauses.well(at(begun + 9));
            assert_eq!(pauses.next(1.0), LONGEST);
        }
        pauses.well(at(200));
        pauses.well(at(210));
        assert_eq!(pauses.next(1.0), PAUSE);
    }
}
