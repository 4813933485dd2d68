//! Log lines about the store's health.

use std::time::Duration;

use tidegate_core::{Clock, Nanos, Policy, Quota};
use tidegate_limiter::{Limiter, SystemClock};

use super::{
    Health, Monitor,
    store_clock::{APART, StoreClock},
};

/// The maximum number of lines per minute, and in a burst.
const LINES: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Down,
    Slow,
    Partly,
    Back,
    /// The store went down and came back between two looks.
    WasDown,
}

/// Logs one line per change until there are too many. Then it logs the latest state as soon as a
/// line is allowed again.
pub struct HealthLog {
    limiter: Limiter<SystemClock>,
    /// Whether a line has said that the store is too far away for the limits' deadlines.
    far: bool,
    logged: Health,
    opened: u64,
    /// For the lines about the store's clock: that it differs from this node's, that it went back,
    /// and that an implausible time is ignored.
    clock: [Limiter<SystemClock>; 3],
}

impl HealthLog {
    pub fn new() -> Self {
        let a_minute = |lines| Limiter::new(Policy::token_bucket(Quota::per_minute(lines)));
        let clock = [a_minute(1), a_minute(1), a_minute(1)];
        Self {
            limiter: a_minute(LINES),
            logged: Health::Up,
            opened: 0,
            far: false,
            clock,
        }
    }

    fn next(&mut self, health: Health, any_open: bool, opened: u64, now: Nanos) -> Option<Line> {
        let line = match health {
            Health::Up if self.logged != Health::Up => Line::Back,
            Health::Up if opened != self.opened => Line::WasDown,
            // A store that has not been reached yet is reported as down only once a breaker opens.
            Health::Down if self.logged != Health::Down && any_open => Line::Down,
            Health::Slow if self.logged != Health::Slow => Line::Slow,
            Health::Partly if self.logged != Health::Partly => Line::Partly,
            _ => return None,
        };
        if self.limiter.at(now).acquire(1).is_denied() {
            return None;
        }
        (self.logged, self.opened) = (health, opened);
        Some(line)
    }

    /// Logs what has changed.
    pub fn log(&mut self, monitor: &Monitor) {
        self.log_distance(monitor);
        self.log_clock(monitor);
        let (opened, now) = (monitor.counters().opened.get(), monitor.clock.now());
        let refuses = monitor.examination.verdict();
        let is_down = monitor.any_open() || refuses.is_some();
        let Some(line) = self.next(monitor.health(), is_down, opened, now) else {
            return;
        };
        let store = monitor.runner.connector.address();
        let why = refuses.or_else(|| monitor.why());
        let error = why.as_ref().map(tracing::field::display);
        match line {
            Line::Back => tracing::info!(%store, "the shared store is up again"),
            Line::WasDown => {
                tracing::warn!(%store, error, "the shared store was down for a moment");
            }
            Line::Partly => {
                tracing::warn!(%store, error, "a part of the shared store's cluster is down");
            }
            Line::Slow => {
                tracing::warn!(%store, "the shared store replies to most decisions after their deadline");
            }
            Line::Down => match monitor.nodes.assumed() {
                None => tracing::warn!(%store, error, "the shared store is down"),
                Some(nodes) => tracing::warn!(
                    %store,
                    error,
                    "the shared store is down and has not been reached since the start, so the number of nodes that share it is not \
                     known; each limit that is decided in memory admits 1/{nodes} of its units until then"
                ),
            },
        }
    }

    fn log_clock(&self, monitor: &Monitor) {
        let ((ahead, went_back), now) = (monitor.store_clock(), monitor.clock.now());
        let store = monitor.runner.connector.address();
        let [apart, back, implausible] = &self.clock;
        if went_back && back.at(now).acquire(1).is_allowed() {
            tracing::warn!(
                %store,
                "the shared store's clock went back; until it has caught up, what was used in its future counts from now on"
            );
        }
        let ignored = monitor.clocks.iter().filter_map(StoreClock::take_ignored);
        if let Some(time) = ignored.max()
            && implausible.at(now).acquire(1).is_allowed()
        {
            let time_ms = time.get() / 1_000_000;
            tracing::warn!(
                %store,
                time_ms,
                "ignored a time that the shared store's clock does not show, in a reply or in the store, from which it was removed; \
                 if this line repeats, update the servers of an earlier version that share the store"
            );
        }
        if let Some(ahead_ms) = ahead
            && is_apart(ahead_ms)
            && apart.at(now).acquire(1).is_allowed()
        {
            let advice =
                "synchronize both clocks, because the store's clock decides when limits recover";
            tracing::warn!(%store, ahead_ms, "the shared store's clock differs from this machine's; {advice}");
        }
    }

    fn log_distance(&mut self, monitor: &Monitor) {
        let (Some(round_trip), Some(deadline)) =
            (monitor.distance.get(), monitor.patience.shortest())
        else {
            return;
        };
        let round_trip = Duration::from(round_trip);
        let far = is_far(round_trip, deadline, self.far);
        if far && !self.far {
            let advice = "set the limits' deadline to at least three round trips, or to `auto`";
            let store = monitor.runner.connector.address();
            tracing::warn!(
                %store,
                ?round_trip,
                ?deadline,
                "a round trip to the shared store takes more than a third of the shortest deadline; {advice}"
            );
        }
        self.far = far;
    }
}

/// Whether the store's clock is too far ahead of this node's, or too far behind.
fn is_apart(ahead_ms: i64) -> bool {
    Nanos::from_millis(ahead_ms.unsigned_abs()) > APART
}

/// Whether a round trip takes more than a third of the deadline. To return to near, it must take
/// less than a quarter.
fn is_far(round_trip: Duration, deadline: Duration, was_far: bool) -> bool {
    round_trip.saturating_mul(if was_far { 4 } else { 3 }) > deadline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_store_does_not_flood_the_log_and_its_final_state_is_logged() {
        let mut lines = HealthLog::new();
        let at = |ms: u64| Nanos::from_millis(10_000_000 + ms);
        let mut logged = Vec::new();
        // Ten minutes with ten changes per second.
        for tick in 0..6_000 {
            let (health, down) = if tick % 2 == 0 {
                (Health::Down, true)
            } else {
                (Health::Up, false)
            };
            logged.extend(lines.next(health, down, tick / 2 + 1, at(tick * 100)));
        }
        assert_eq!(
            logged[..4],
            [Line::Down, Line::Back, Line::Down, Line::Back]
        );
        assert!((60..=66).contains(&logged.len()), "{} lines", logged.len());
        logged.extend(
            (0..10).filter_map(|s| lines.next(Health::Down, true, 3_001, at(600_000 + 2_000 * s))),
        );
        assert_eq!(logged.last(), Some(&Line::Down));
        assert_eq!(
            lines.next(Health::Up, false, 3_001, at(660_000)),
            Some(Line::Back)
        );
    }

    #[test]
    fn brief_outages_and_partial_outages_have_their_own_lines() {
        let (mut lines, now) = (HealthLog::new(), Nanos::from_secs(1_000));
        assert_eq!(
            lines.next(Health::Down, false, 0, now),
            None,
            "it has not been reached yet"
        );
        assert_eq!(lines.next(Health::Up, false, 0, now), None);
        assert_eq!(lines.next(Health::Up, false, 1, now), Some(Line::WasDown));
        assert_eq!(lines.next(Health::Up, false, 1, now), None);
        assert_eq!(lines.next(Health::Partly, true, 2, now), Some(Line::Partly));
        assert_eq!(lines.next(Health::Partly, true, 3, now), None);
        assert_eq!(lines.next(Health::Down, true, 4, now), Some(Line::Down));
        assert_eq!(lines.next(Health::Up, false, 4, now), Some(Line::Back));
    }

    #[test]
    fn a_round_trip_above_a_third_of_the_deadline_is_far() {
        let far = |round_trip, was| {
            is_far(
                Duration::from_millis(round_trip),
                Duration::from_millis(60),
                was,
            )
        };
        assert!(!far(20, false) && far(21, false), "a third");
        assert!(far(16, true) && !far(15, true), "it does not flap");
    }
}
