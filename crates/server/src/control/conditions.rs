//! The conditions of a server as a whole: its store, its rules, the clock, forgotten keys, lost
//! orders, certificates and the state file. Each condition has a state, a beginning, an effect and a
//! remedy, which every page and `tidegate top` show.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use serde::Serialize;
use tidegate_core::Nanos;
use tidegate_listen::tls::Tls;
use tidegate_redis::{Health, OnError};
use tidegate_service::{
    decide::service::{Service, health_name},
    observe::metrics::Events,
    shown,
};

/// How long a condition is shown after it was last counted, in milliseconds.
const SHOWN_FOR: u64 = 10 * 60 * 1_000;
/// How long before its end a certificate is shown, in seconds.
const BEFORE_EXPIRY: u64 = 14 * 86_400;
/// Smaller differences of the clocks, in milliseconds, are usual.
const CLOCKS_APART: u64 = 1_000;
/// How many limits a sentence names.
const NAMED: usize = 3;

/// Something that an operator must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Condition {
    /// `store`, `rules`, `other-rules`, `store-clock`, `clock`, `forgotten-keys`, `lost-orders`,
    /// `certificate`, `eviction` or `state-file`.
    pub name: &'static str,
    /// The fact, as a sentence with its subject.
    pub state: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// The effect on decisions.
    pub effect: String,
    /// The remedy.
    pub remedy: String,
    /// Whether decisions are wrong or closed because of it. Otherwise it is a warning.
    pub is_wrong: bool,
}

/// The conditions of a server now, and since when each lasts.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    now: Arc<[Condition]>,
    since: BTreeMap<&'static str, u64>,
    counted: BTreeMap<&'static str, Counted>,
}

/// A counter that grows when something goes wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    count: u64,
    /// When it last grew, in milliseconds since 1970; 0 if it never did.
    at: u64,
}

/// The sources of the conditions.
pub(crate) struct Sources<'a> {
    pub service: &'a Service,
    pub events: &'a Events,
    pub tls: Option<&'a Tls>,
}

impl Conditions {
    /// The conditions at the last look, those first that make decisions wrong.
    pub fn now(&self) -> Arc<[Condition]> {
        Arc::clone(&self.lock().now)
    }

    /// Looks at everything, once a second.
    pub fn look(&self, sources: &Sources<'_>) {
        let now = sources.service.now().get() / 1_000_000;
        let mut seen = self.lock();
        let mut found = sources.lasting(now);
        for (name, count, describe) in sources.counted() {
            let Some(count) = count else { continue };
            // Events before the first look, which a store may have counted, are not new.
            let counted = seen.counted.entry(name).or_insert(Counted { count, at: 0 });
            if count > counted.count {
                *counted = Counted { count, at: now };
            }
            if counted.at > 0 && now.saturating_sub(counted.at) < SHOWN_FOR {
                found.push(describe(sources, count, counted.at, now));
            }
        }
        seen.since
            .retain(|name, _| found.iter().any(|condition| condition.name == *name));
        for condition in &mut found {
            condition.since_ms = *seen.since.entry(condition.name).or_insert(now);
        }
        // Stable: otherwise they are in the order of their importance.
        found.sort_by_key(|condition| !condition.is_wrong);
        seen.now = found.into();
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.0.lock()
    }
}

type Describe = fn(&Sources<'_>, u64, u64, u64) -> Condition;

impl Sources<'_> {
    /// The conditions that last for as long as their cause.
    fn lasting(&self, now: u64) -> Vec<Condition> {
        let found = [
            self.store(),
            self.rules(),
            self.other_rules(),
            self.store_clock(),
            self.certificate(now),
        ];
        found.into_iter().flatten().collect()
    }

    /// The counters, in the order of importance, and what they mean.
    fn counted(&self) -> [(&'static str, Option<u64>, Describe); 5] {
        let store = self.service.store().map(|shared| shared.store().stats());
        let store = store.as_ref();
        [
            (
                "forgotten-keys",
                Some(self.forgotten().iter().map(|(_, count)| count).sum()),
                forgotten_keys,
            ),
            (
                "lost-orders",
                store.map(|stats| stats.orders_lost + stats.orders_given_again),
                lost_orders,
            ),
            (
                "eviction",
                store.and_then(|stats| stats.evicts.as_ref().and(stats.evicted_keys)),
                eviction,
            ),
            ("clock", Some(self.service.wall_clock_steps()), clock),
            (
                "state-file",
                Some(self.events.state_writes_failed.load(Ordering::Relaxed)),
                state_file,
            ),
        ]
    }

    fn store(&self) -> Option<Condition> {
        let store = self.service.store()?.store();
        let health = store.health();
        if health == Health::Up {
            return None;
        }
        let why = store.trouble().map_or_else(
            || "it has not been reached yet".to_owned(),
            |error| error.to_string(),
        );
        let limits = self.service.limits();
        let of = |on_error: OnError| -> Vec<&str> {
            let shared = limits
                .limits()
                .iter()
                .filter(|limit| limit.store().is_some());
            let same = shared
                .filter(|limit| limit.spec().sharing.on_error.unwrap_or_default() == on_error);
            same.map(|limit| limit.spec().name.as_str()).collect()
        };
        let (closed, open, local) = (of(OnError::Closed), of(OnError::Open), of(OnError::Local));
        let some = match health {
            Health::Partly => "for keys in that part ",
            Health::Slow => "where the store is too late ",
            _ => "",
        };
        let mut effects = Vec::new();
        for (names, what) in [
            (&closed, "denied (on_error: closed)"),
            (&open, "admitted without a limit (on_error: open)"),
            (
                &local,
                "decided by each server alone, with its part of the limit (on_error: local)",
            ),
        ] {
            if !names.is_empty() {
                effects.push(format!("{some}requests to {} are {what}", named(names)));
            }
        }
        Some(Condition {
            name: "store",
            state: format!("the store is {}: {why}", health_name(health)),
            since_ms: 0,
            effect: if effects.is_empty() {
                "no limit is in the store".to_owned()
            } else {
                effects.join("; ")
            },
            remedy: format!(
                "check the store at {} and the way to it; this server reconnects automatically",
                store.address()
            ),
            is_wrong: !closed.is_empty() || !open.is_empty(),
        })
    }

    fn rules(&self) -> Option<Condition> {
        let problems = self.events.rejected();
        let first = problems.first()?;
        let more = match problems.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Some(Condition {
            name: "rules",
            state: format!("the rules were rejected: {first}{more}"),
            since_ms: 0,
            effect: "the previous rules stay active".to_owned(),
            remedy: "correct the file (page Rules, or tidegate check FILE); it is loaded when it changes"
                .to_owned(),
            is_wrong: false,
        })
    }

    fn other_rules(&self) -> Option<Condition> {
        let differing = self.service.store()?.store().differing_rules();
        let first = differing.first()?;
        let names: Vec<&str> = differing
            .iter()
            .map(|differs| differs.limit.as_str())
            .collect();
        Some(Condition {
            name: "other-rules",
            state: format!(
                "{} has another rule at server {}",
                named(&names),
                first.node
            ),
            since_ms: 0,
            effect: "servers that share the limit decide by different rules".to_owned(),
            remedy: "give all servers the same rules; during a roll-out this is usual".to_owned(),
            is_wrong: false,
        })
    }

    fn store_clock(&self) -> Option<Condition> {
        let stats = self.service.store()?.store().stats();
        let ahead = stats.clock_ahead_ms?;
        let is_apart = ahead.unsigned_abs() >= CLOCKS_APART;
        if !is_apart && !stats.clock_went_back {
            return None;
        }
        let apart = shown::span_ms(ahead.unsigned_abs());
        let direction = if ahead > 0 { "ahead of" } else { "behind" };
        let state = if is_apart {
            format!("the store's clock is {apart} {direction} this machine's")
        } else {
            "the store's clock has shown a later time than now".to_owned()
        };
        Some(Condition {
            name: "store-clock",
            state,
            since_ms: 0,
            effect:
                "shared limits follow the store's clock: windows of a calendar begin at its times"
                    .to_owned(),
            remedy: "synchronize the clocks of the store and of the servers (NTP)".to_owned(),
            is_wrong: false,
        })
    }

    fn certificate(&self, now: u64) -> Option<Condition> {
        let (expires, now) = (self.tls?.expires()?, now / 1_000);
        if expires > now + BEFORE_EXPIRY {
            return None;
        }
        let is_over = expires <= now;
        let when = shown::when(expires * 1_000, Nanos::from_secs(now));
        let (word, effect) = if is_over {
            ("expired", "clients that check it refuse to connect")
        } else {
            ("expires", "until then none; clients then refuse to connect")
        };
        Some(Condition {
            name: "certificate",
            state: format!("the certificate of --tls-cert {word} {when}"),
            since_ms: 0,
            effect: effect.to_owned(),
            remedy: "replace the file; it is loaded when it changes".to_owned(),
            is_wrong: is_over,
        })
    }

    /// The limits that have forgotten exhausted keys, and how many.
    fn forgotten(&self) -> Vec<(String, u64)> {
        let limits = self.service.limits();
        let each = limits.limits().iter().map(|limit| {
            let count = limit.stats().forgotten.exhausted;
            (limit.spec().name.clone(), count)
        });
        each.filter(|(_, count)| *count > 0).collect()
    }
}

fn forgotten_keys(sources: &Sources<'_>, count: u64, at: u64, now: u64) -> Condition {
    let forgotten = sources.forgotten();
    let names: Vec<&str> = forgotten.iter().map(|(name, _)| name.as_str()).collect();
    Condition {
        name: "forgotten-keys",
        state: format!(
            "{} forgotten because the table was full: {} (the last {})",
            counted_were(count, "exhausted key"),
            named(&names),
            when(at, now)
        ),
        since_ms: 0,
        effect: "each of them may use its limit a second time".to_owned(),
        remedy:
            "raise max_keys, or set `when_full: deny`; look for made-up keys under Most requests"
                .to_owned(),
        is_wrong: true,
    }
}

fn lost_orders(sources: &Sources<'_>, _: u64, at: u64, now: u64) -> Condition {
    let stats = sources.service.store().map(|shared| shared.store().stats());
    let (lost, again) = stats.map_or((0, 0), |stats| {
        (stats.orders_lost, stats.orders_given_again)
    });
    Condition {
        name: "lost-orders",
        state: format!(
            "the store had lost blocks and overrides ({}): {again} given again, {lost} lost",
            when(at, now)
        ),
        since_ms: 0,
        effect: if lost > 0 {
            "those that were not hold at this server alone".to_owned()
        } else {
            "none: they hold again".to_owned()
        },
        remedy: "give the store persistence or a replica; see the pages Blocks and Audit"
            .to_owned(),
        is_wrong: lost > 0,
    }
}

fn eviction(_: &Sources<'_>, count: u64, at: u64, now: u64) -> Condition {
    Condition {
        name: "eviction",
        state: format!(
            "the store has evicted {} (the last {})",
            shown::counted(count, "key"),
            when(at, now)
        ),
        since_ms: 0,
        effect: "a limit that is evicted admits its units again".to_owned(),
        remedy: "set its maxmemory-policy to noeviction, or give the limits a store of their own"
            .to_owned(),
        is_wrong: true,
    }
}

fn clock(sources: &Sources<'_>, count: u64, at: u64, now: u64) -> Condition {
    Condition {
        name: "clock",
        state: format!(
            "the system's time was set, or the machine was suspended ({}, the last {}): it is now {} s away from the time \
             at the start",
            shown::counted(count, "time"),
            when(at, now),
            sources.service.wall_clock_off()
        ),
        since_ms: 0,
        effect: "days, weeks, months and years follow it; rates do not depend on it".to_owned(),
        remedy: "check what sets the clock (NTP); restart the server if it was wrong at the start"
            .to_owned(),
        is_wrong: false,
    }
}

fn state_file(_: &Sources<'_>, count: u64, at: u64, now: u64) -> Condition {
    Condition {
        name: "state-file",
        state: format!(
            "the state could not be written ({}, the last {})",
            shown::counted(count, "time"),
            when(at, now)
        ),
        since_ms: 0,
        effect: "after a restart keys have what they had at the last write".to_owned(),
        remedy: "check the disk of --state FILE, and the log".to_owned(),
        is_wrong: false,
    }
}

fn when(at: u64, now: u64) -> String {
    shown::when(at, Nanos::from_millis(now))
}

/// `1 exhausted key was`, `3 exhausted keys were`.
fn counted_were(count: u64, what: &str) -> String {
    let were = if count == 1 { "was" } else { "were" };
    format!("{} {were}", shown::counted(count, what))
}

/// Names in a sentence: the first few, and how many there are.
fn named(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.dedup();
    let first = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_a_few_limits() {
        assert_eq!(named(&["a"]), "a");
        assert_eq!(named(&["a", "b", "c"]), "a, b, c");
        assert_eq!(named(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!(counted_were(1, "key"), "1 key was");
        assert_eq!(counted_were(2, "key"), "2 keys were");
    }
}
