//! The heartbeat: one task per store, whose small writes open and close the breakers.
//!
//! A caller's failure that leaves no doubt (nobody listens, loading, a replica, memory full) opens the breaker at once. Any
//! other failure only calls for a heartbeat, which finds out whether it is the store or one request. Nothing but a heartbeat
//! closes a breaker: the denials of a replica, or of a full server, write nothing and prove nothing. And no caller ever waits
//! to see whether a store is back.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Clock, Nanos};
use tokio::time::{sleep, timeout};

use super::{
    Monitor,
    lines::Lines,
    nodes::{Beat, Census, random},
};
use crate::{Deadline, StoreError};

/// How often there is a heartbeat where nobody calls for one; with a share of chance, so that nodes do not keep step.
const EVERY: Duration = Duration::from_secs(2);
/// And how long after another at the earliest, whoever calls.
const SELDOM: Duration = Duration::from_millis(100);
/// Heartbeats in a row that got no answer (rather than a refusal), until the store is down.
const MISSES: u8 = 3;
/// While a breaker is open: the first pause between two heartbeats, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// A store that was well for so long starts with the first pause again.
const WELL: Duration = Duration::from_secs(10);
/// A cluster's client finds dead nodes by itself, but not silent ones: every so many failed rounds there is a new one.
const RENEW: u32 = 5;

/// Watches over the store for as long as the monitor exists.
pub fn keep(monitor: &Arc<Monitor>) {
    let (weak, wake) = (Arc::downgrade(monitor), Arc::clone(&monitor.wake));
    let mut heartbeat = Heartbeat::new(monitor);
    monitor.runner.connector.runtime().spawn(async move {
        while let Some(monitor) = weak.upgrade() {
            heartbeat.round(&monitor).await;
            heartbeat.lines.log(&monitor);
            let (open, doubt, now) = (monitor.any_open(), monitor.is_in_doubt(), monitor.clock.now());
            drop(monitor);
            if !open && !doubt {
                heartbeat.pauses.well(now);
                sleep(SELDOM).await;
                let every = EVERY.mul_f64(0.75 + chance() / 2.0);
                // Whether somebody called or it is time.
                let _ = timeout(every.saturating_sub(SELDOM), wake.notified()).await;
            }
            if weak.upgrade().is_some_and(|monitor| monitor.any_open()) {
                sleep(heartbeat.pauses.next(chance())).await;
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

struct Heartbeat {
    beat: Arc<Beat>,
    /// In a row, of each shard.
    misses: Vec<u8>,
    /// Rounds in a row that left something open.
    failures: u32,
    census: Census,
    /// When measurements were last summed up.
    summed: Nanos,
    pauses: Pauses,
    lines: Lines,
}

impl Heartbeat {
    fn new(monitor: &Monitor) -> Self {
        Self {
            beat: Arc::new(Beat::new(monitor)),
            misses: vec![0; monitor.shards()],
            failures: 0,
            census: Census::default(),
            summed: Nanos::ZERO,
            pauses: Pauses::default(),
            lines: Lines::new(),
        }
    }

    /// A heartbeat wherever one is due: in the shard that counts the nodes, and where there is a doubt.
    async fn round(&mut self, monitor: &Arc<Monitor>) {
        let had = monitor.runner.connector.number();
        let deadline = Deadline::after(monitor.patience.get());
        let beats: Vec<_> = (0..monitor.shards())
            .filter(|&shard| shard == self.beat.home || monitor.breakers[shard].is_in_doubt())
            .map(|shard| {
                let (monitor, beat) = (Arc::clone(monitor), Arc::clone(&self.beat));
                let runtime = monitor.runner.connector.runtime().clone();
                let given = async move {
                    let sent = monitor.clock.now();
                    let given = beat.give(&monitor, shard, deadline).await;
                    if given.is_ok() {
                        monitor.distance.measured(monitor.clock.now().saturating_since(sent));
                    }
                    given
                };
                (shard, runtime.spawn(given))
            })
            .collect();
        let mut failed = false;
        for (shard, given) in beats {
            // The task ends early only with the runtime.
            let error = match given.await.unwrap_or(Err(StoreError::Down)) {
                Ok(counted) => {
                    if shard == self.beat.home {
                        self.census.count(&monitor.nodes, counted, monitor.clock.now());
                    }
                    self.misses[shard] = 0;
                    monitor.close(shard);
                    continue;
                }
                Err(error) => error,
            };
            monitor.counters().count(&error);
            self.misses[shard] = self.misses[shard].saturating_add(1);
            // A server that answers and refuses a plain write leaves no doubt, whatever it says.
            let unanswered = matches!(error, StoreError::TimedOut | StoreError::Lost(_));
            if unanswered && self.misses[shard] < MISSES {
                // A store that was never reached is down until it is; what for is known already.
                if monitor.runner.connector.made() == 0 {
                    monitor.blame(&error);
                }
                monitor.breakers[shard].suspect();
            } else {
                monitor.open(shard, &error);
                failed = true;
            }
        }
        self.sum_up(monitor);
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        // Perhaps only this connection is dead, or leads to a server that is no master any more. One that was made meanwhile
        // has had no chance yet.
        let give_up = failed && (!monitor.is_cluster() || self.failures.is_multiple_of(RENEW));
        if let Some(had) = had.filter(|_| give_up) {
            monitor.runner.connector.give_up(had);
        }
    }

    /// Whether decisions are in time, and how far the store is, for a while in which several have asked.
    fn sum_up(&mut self, monitor: &Monitor) {
        let now = monitor.clock.now();
        if now.saturating_since(self.summed) >= EVERY.into() {
            self.summed = now;
            monitor.punctual.update();
            monitor.distance.turn();
        }
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
