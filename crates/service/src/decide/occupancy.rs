//! Warns the operator when a limit runs out of room for keys.

use std::{collections::HashMap, time::Duration};

use tidegate_limiter::Stats;

use crate::{decide::service::Service, observe::once_a_minute::OnceAMinute, rules::THROTTLE};

/// How often the tables are checked.
pub const EVERY: Duration = Duration::from_secs(1);

/// The last observations of each limit.
#[derive(Debug, Default)]
pub struct Occupancy {
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
        let stats = keyed.map(|limit| (limit.spec().name.as_str(), limit.stats()));
        let throttle = (THROTTLE, service.throttle().limiter().stats());
        for (name, stats) in stats.chain([throttle]) {
            self.seen
                .entry(name.to_owned())
                .or_default()
                .look(name, &stats, service);
        }
        // Drops limits that no longer exist, so there are never more entries than limits.
        self.seen
            .retain(|name, _| name == THROTTLE || limits.limit(name.as_bytes()).is_some());
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
