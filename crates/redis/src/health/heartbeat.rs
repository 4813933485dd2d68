//! The heartbeat: one task per store, whose small writes open and close the breakers.
//!
//! A caller's failure that is conclusive (connection refused, loading, a replica, memory full)
//! opens the breaker at once. Any other failure only triggers a heartbeat, which finds out whether
//! the store failed or just one request. Only a heartbeat closes a breaker: a replica or a full
//! server can still deny, because denials write nothing, so a denial proves nothing. And no caller
//! ever waits to see whether a store is up again.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Clock, Nanos};
use tokio::time::{sleep, timeout};

use super::{
    Monitor,
    lines::HealthLog,
    nodes::{Beat, Census, random},
    patience::heartbeat_time,
};
use crate::{Deadline, StoreError};

/// The interval between heartbeats, with jitter so that nodes do not run in step.
const EVERY: Duration = Duration::from_secs(2);
/// The minimum time between two heartbeats.
const SELDOM: Duration = Duration::from_millis(100);
/// The number of consecutive heartbeats without a reply (as opposed to a refusal) after which the
/// store is down.
const MISSES: u8 = 3;
/// While a breaker is open: the first pause between two heartbeats, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_millis(400);
/// After this long without failure, pauses start from the first one again.
const WELL: Duration = Duration::from_secs(10);
/// The number of failed rounds after which a cluster client is replaced: it replaces dead nodes on
/// its own, but not silent ones.
const RENEW: u32 = 5;

/// Runs heartbeats for as long as the monitor exists.
pub fn keep(monitor: &Arc<Monitor>) {
    let (weak, wake) = (Arc::downgrade(monitor), Arc::clone(&monitor.wake));
    let mut heartbeat = Heartbeat::new(monitor);
    monitor.runner.connector.runtime().spawn(async move {
        while let Some(monitor) = weak.upgrade() {
            heartbeat.round(&monitor).await;
            if !monitor.any_open() {
                monitor.examine_if_due();
            }
            heartbeat.lines.log(&monitor);
            let (open, doubt, now) = (
                monitor.any_open(),
                monitor.is_in_doubt(),
                monitor.clock.now(),
            );
            drop(monitor);
            if !open && !doubt {
                heartbeat.pauses.well(now);
                sleep(SELDOM).await;
                let every = EVERY.mul_f64(0.75 + chance() / 2.0);
                // It does not matter whether a caller triggered the heartbeat or the interval is
                // over.
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

/// A random number from 0 to 1.
fn chance() -> f64 {
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

struct Heartbeat {
    beat: Arc<Beat>,
    /// Consecutive misses of each shard.
    misses: Vec<u8>,
    /// Consecutive rounds that left a breaker open.
    failures: u32,
    census: Census,
    /// When the measurements were last evaluated.
    summed: Nanos,
    pauses: Pauses,
    lines: HealthLog,
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
            lines: HealthLog::new(),
        }
    }

    /// Sends the due heartbeats: to the shard that counts the nodes, and to suspected shards.
    async fn round(&mut self, monitor: &Arc<Monitor>) {
        let had = monitor.runner.connector.number();
        let allowed = monitor.distance.allowed();
        let beats: Vec<_> = (0..monitor.shards())
            .filter(|&shard| shard == self.beat.home || monitor.breakers[shard].is_in_doubt())
            .map(|shard| {
                let (monitor, beat) = (Arc::clone(monitor), Arc::clone(&self.beat));
                let deadline = Deadline::after(heartbeat_time(allowed, self.misses[shard]));
                let runtime = monitor.runner.connector.runtime().clone();
                let given = async move {
                    let sent = monitor.clock.now();
                    let given = beat.give(&monitor, shard, deadline).await;
                    if given.is_ok() {
                        monitor
                            .distance
                            .beat(monitor.clock.now().saturating_since(sent));
                    }
                    given
                };
                (shard, runtime.spawn(given))
            })
            .collect();
        let mut failed = false;
        for (shard, given) in beats {
            // The task ends early only when the runtime shuts down.
            let error = match given.await.unwrap_or(Err(StoreError::Down)) {
                Ok(counted) => {
                    if shard == self.beat.home {
                        self.census
                            .count(&monitor.nodes, counted, monitor.clock.now());
                    }
                    self.misses[shard] = 0;
                    monitor.close(shard);
                    continue;
                }
                Err(error) => error,
            };
            monitor.counters().count(&error);
            self.misses[shard] = self.misses[shard].saturating_add(1);
            // A server that replies and refuses a plain write is down, for any reason.
            let unanswered = matches!(error, StoreError::TimedOut | StoreError::Lost(_));
            if unanswered && self.misses[shard] < MISSES {
                // A store that was never reached counts as down already. The reason is known.
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
        self.failures = if failed {
            self.failures.saturating_add(1)
        } else {
            0
        };
        // Perhaps only this connection is dead, or it leads to a server that is no longer the
        // master. A newer connection has not been tried yet.
        let give_up = failed && (!monitor.is_cluster() || self.failures.is_multiple_of(RENEW));
        if let Some(had) = had.filter(|_| give_up) {
            monitor.runner.connector.give_up(had);
        }
    }

    /// Evaluates punctuality and distance once per interval.
    fn sum_up(&mut self, monitor: &Monitor) {
        let now = monitor.clock.now();
        if now.saturating_since(self.summed) >= EVERY.into() {
            self.summed = now;
            monitor.punctual.update();
            monitor.distance.turn();
        }
    }
}

/// Pauses double until the store has been up for a while, so a store that keeps failing is probed
/// less and less often.
#[derive(Debug, Default)]
struct Pauses {
    in_a_row: u32,
    well_since: Option<Nanos>,
}

impl Pauses {
    /// The next pause. `chance` in 0..1 spreads the heartbeats of many nodes.
    fn next(&mut self, chance: f64) -> Duration {
        self.well_since = None;
        let pause = PAUSE
            .saturating_mul(1 << self.in_a_row.min(10))
            .min(LONGEST);
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
    fn pauses_grow_to_two_seconds_and_start_again_after_ten_seconds_without_failure() {
        let mut pauses = Pauses::default();
        assert_eq!((pauses.next(0.0), pauses.next(1.0)), (PAUSE / 2, PAUSE * 2));
        for _ in 0..20 {
            pauses.next(1.0);
        }
        assert_eq!((pauses.next(0.0), pauses.next(1.0)), (LONGEST / 2, LONGEST));
        let at = |second: u64| Nanos::from_secs(1_000 + second);
        // Twice nine seconds without failure are not enough: the pause is still the longest.
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
