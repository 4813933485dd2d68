//! Warns the operator when a limit runs out of room for keys.

use std::{collections::HashMap, time::Duration};

use tidegate_limiter::Stats;

use crate::{
    decide::{service::Service, throttle::THROTTLE},
    observe::once_a_minute::OnceAMinute,
};

/// How often the tables are checked.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The last observations of each limit.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    seen: HashMap<String, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// A warning said that the table is nearly full, and it still is.
    is_full: bool,
    forgotten: u64,
    forgetting: OnceAMinute,
}

impl Occupancy {
    /// Checks all limits, and logs what is new. Call this every [`EVERY`].
    pub fn look(&mut self, service: &Service) {
        let limits = service.limits();
        let keyed = limits.limits().iter().filter(|limit| !limit.spec().global);
        let stats = keyed.map(|limit| (limit.spec().name.as_str(), limit.limiter().stats()));
        let throttle = (THROTTLE, service.throttle().limiter().stats());
        for (name, stats) in stats.chain([throttle]) {
            if !self.seen.contains_key(name) {
                self.seen.insert(name.to_owned(), Seen::default());
            }
            if let Some(seen) = self.seen.get_mut(name) {
                seen.look(name, &stats, service);
            }
        }
        // Drops limits that no longer exist, so there are never more entries than limits.
        self.seen.retain(|name, _| name == THROTTLE || limits.limit(name.as_bytes()).is_some());
    }
}

impl Seen {
    fn look(&mut self, limit: &str, stats: &Stats, service: &Service) {
        let share = |tenths: u64| stats.max_keys.saturating_mul(tenths) / 10;
        if !self.is_full && stats.keys > share(9) {
            self.is_full = true;
            tracing::warn!(
                limit,
                keys = stats.keys,
                max_keys = stats.max_keys,
                "the limit has nearly reached its max_keys; raise it if these keys are real users",
            );
        } else if self.is_full && stats.keys < share(8) {
            self.is_full = false;
        }
        let forgotten = stats.forgotten.total();
        if forgotten > self.forgotten && self.forgetting.is_due(service.now()) {
            tracing::warn!(
                limit,
                forgotten = forgotten - self.forgotten,
                exhausted = stats.forgotten.exhausted,
                max_keys = stats.max_keys,
                "keys are forgotten before their limits have recovered, the least used first, and can use that share again: raise \
                 max_keys, find out which client sends so many keys, or deny new keys with `when_full: deny`",
            );
            // Keys that are forgotten between two messages count in the next one.
            self.forgotten = forgotten;
        }
        // A change of the policy resets the counter.
        self.forgotten = self.forgotten.min(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Clock, ManualClock};

    use super::*;
    use crate::{
        decide::{limits::Limits, throttle::Throttle},
        observe::captured_log::captured,
        rules,
    };

    #[test]
    fn a_full_table_is_reported_once_and_forgotten_keys_at_most_once_a_minute() {
        let clock = Arc::new(ManualClock::default());
        let rules = rules::parse("limits: [{name: a, limit: 1/1h, algorithm: sliding-log}]").unwrap();
        let limits = Limits::new(rules, 8, |_| None, clock.now()).unwrap();
        let service = Service::new(limits, Throttle::new(8, None).unwrap(), Arc::clone(&clock) as _);
        let mut occupancy = Occupancy::default();
        let mut key = 0_u64;
        let mut use_keys = |count: u64| {
            let limits = service.limits();
            for _ in 0..count {
                key += 1;
                let _ = limits.limits()[0].limiter().acquire_at(key.to_le_bytes(), 1, service.now());
            }
        };
        let mut look = || captured(|| occupancy.look(&service));
        use_keys(3);
        assert_eq!(look(), [""; 0], "there is room");
        use_keys(5);
        let full = look();
        assert!(
            matches!(&full[..], [line] if line.starts_with("WARN") && line.contains("limit=\"a\"") && line.contains("max_keys=8")),
            "{full:?}"
        );
        assert_eq!(look(), [""; 0], "it was reported");
        // Each key has used up its limit, so in the end such a key must be forgotten.
        use_keys(1_000);
        let forgotten = look();
        assert!(
            matches!(&forgotten[..], [line] if line.contains("exhausted=") && line.contains("when_full: deny")),
            "{forgotten:?}"
        );
        use_keys(1_000);
        clock.advance(Duration::from_secs(59));
        assert_eq!(look(), [""; 0], "a minute is not over");
        clock.advance(Duration::from_secs(1));
        assert_eq!(look().len(), 1, "what was forgotten meanwhile");
    }
}
