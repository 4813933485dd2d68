//! Divides the memory for limits by use while the server runs.
//!
//! A limit that runs out of room gets twice as much, as long as the budget has memory for the
//! larger table in addition to the one that it replaces. Otherwise, limits that need less than they
//! have shrink first. So the tables, including those being replaced, never reserve more than the
//! bound in total. States move between tables under their keys' locks: no decision is lost, and
//! each waits at most for the move of its key.

use std::{collections::HashMap, time::Duration};

use tidegate_core::Nanos;
use tidegate_limiter::{KeyedLimiter, SnapshotEntry, Stats};

use super::{
    Limits,
    capacity::{LEAST_KEYS, bytes_of, least_keys},
};
use crate::{decide::throttle::Throttle, observe::once_a_minute::OnceAMinute, rules::THROTTLE};

/// How often the limits are checked.
pub const EVERY: Duration = Duration::from_millis(100);

/// After a count, a limit that needs all of its room is not counted again for this long.
const COUNTED_AGAIN: Nanos = Nanos::from_secs(10);

/// The last observations of each limit.
#[derive(Debug, Default)]
pub struct Division {
    seen: HashMap<String, Seen>,
    short: OnceAMinute,
}

#[derive(Debug, Default)]
struct Seen {
    added: u64,
    evicted: u64,
    /// The earliest time to count its keys again in order to shrink it.
    count_again: Nanos,
}

/// A limit whose room follows its use.
struct Member<'a> {
    name: &'a str,
    limiter: &'a KeyedLimiter<()>,
    least: usize,
}

impl Division {
    /// Checks all limits once, and moves memory to where it is needed. Call this every [`EVERY`] on
    /// a thread that may block for a while.
    pub fn look(&mut self, limits: &Limits, throttle: &Throttle, now: Nanos) {
        let Some(max_memory) = limits.max_memory() else {
            return;
        };
        let throttle = throttle.limiter();
        let elastic = limits
            .limits()
            .iter()
            .filter(|limit| limit.max_keys.is_none());
        let mut members: Vec<_> = elastic
            .map(|limit| Member {
                name: &limit.spec().name,
                limiter: limit.limiter(),
                least: least_keys(limit.spec()),
            })
            .collect();
        members.push(Member {
            name: THROTTLE,
            limiter: throttle,
            least: LEAST_KEYS,
        });
        let used = || {
            let all = limits.limits().iter().map(|limit| limit.stats().bytes);
            all.sum::<u64>() + throttle.stats().bytes
        };
        // A reload of the rules may have brought more limits than there was memory for.
        if used() > max_memory {
            self.make_room(&members, &used, max_memory, 0, now);
        }
        for member in &members {
            if !self.runs_out(member) {
                continue;
            }
            let Stats {
                max_keys, bytes, ..
            } = member.limiter.stats();
            let larger = (2 * max_keys as usize).min(limits.capacity.max_keys);
            if larger <= max_keys as usize {
                continue;
            }
            // A table for twice the keys takes at most twice the bytes.
            self.make_room(&members, &used, max_memory, 2 * bytes, now);
            if used() + 2 * bytes > max_memory {
                if self.short.is_due(now) {
                    tracing::warn!(
                        limit = member.name,
                        max_keys,
                        max_memory,
                        "a limit runs out of room for keys, and all of max_memory is in use: raise it, or find out which client sends so many \
                         keys",
                    );
                }
                continue;
            }
            resize(member, larger, now);
        }
        self.seen
            .retain(|name, _| members.iter().any(|member| member.name == name));
    }

    /// Whether new keys arrive at a limit that is nearly full, or it had to evict keys.
    fn runs_out(&mut self, member: &Member<'_>) -> bool {
        let stats = member.limiter.stats();
        let seen = self.seen.entry(member.name.to_owned()).or_default();
        let came = stats.added != seen.added && stats.keys > stats.max_keys / 4 * 3;
        let went = stats.evicted != seen.evicted && stats.evicted > 0;
        (seen.added, seen.evicted) = (stats.added, stats.evicted);
        came || went
    }

    /// Shrinks limits that use little of their room, the largest first, until `wanted` bytes are
    /// free.
    fn make_room(
        &mut self,
        members: &[Member<'_>],
        used: &impl Fn() -> u64,
        max_memory: u64,
        wanted: u64,
        now: Nanos,
    ) {
        let mut by_size: Vec<_> = members.iter().collect();
        by_size.sort_by_key(|member| std::cmp::Reverse(member.limiter.stats().bytes));
        for member in by_size {
            if used() + wanted <= max_memory {
                return;
            }
            let max_keys = member.limiter.stats().max_keys as usize;
            let seen = self.seen.entry(member.name.to_owned()).or_default();
            if max_keys <= member.least || now < seen.count_again {
                continue;
            }
            let enough = (2 * in_use(member.limiter, now))
                .next_power_of_two()
                .max(member.least);
            let fits = bytes_of(member.limiter.policy(), enough).is_ok_and(|bytes| {
                // A server with more limits than before may be over its bound until enough of them
                // have shrunk.
                used() + bytes <= max_memory || wanted == 0
            });
            if enough < max_keys && fits {
                resize(member, enough, now);
                continue;
            }
            if let Some(seen) = self.seen.get_mut(member.name) {
                seen.count_again = now.saturating_add(COUNTED_AGAIN);
            }
        }
    }
}

/// The number of keys and evicted keys that have something in use.
fn in_use(limiter: &KeyedLimiter<()>, now: Nanos) -> usize {
    let mut count = 0;
    limiter.at(now).snapshot(|entry| {
        count += usize::from(matches!(
            entry,
            SnapshotEntry::Key { .. } | SnapshotEntry::Record { .. }
        ));
    });
    count
}

fn resize(member: &Member<'_>, max_keys: usize, now: Nanos) {
    match member.limiter.at(now).set_max_keys(max_keys) {
        Ok(change) => {
            change.finish_at(now);
            tracing::debug!(limit = member.name, max_keys, "room for keys follows use");
        }
        Err(error) => {
            tracing::warn!(limit = member.name, max_keys, %error, "cannot change a limit's room for keys");
        }
    }
}
