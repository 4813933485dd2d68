//! Made-up keys by the hundred million, and a thousand real ones among them.
//!
//! Everybody has the same quota, ten an hour, so that each made-up key owes something when it has
//! to give way, and nothing recovers while the flood lasts. Of the real keys,
//!
//! * 500 are busy: they use up their quota at once and are asked for all the time;
//! * 250 sleep: they use up theirs at once, are gone while the flood goes over them, and come back
//!   now and then;
//! * 250 are modest: they ask now and then, fewer times than their quota.
//!
//! A busy or sleeping key that is ever admitted more than its quota was reset. A modest one that is
//! denied was denied wrongly: what a store denies that has forgotten whose debt is whose.

mod ledger;

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    figure::Flood,
    keys::Counting,
    quota::Quota,
    stores::{self, Store, Visit},
    system,
    work::Algorithm,
};
use ledger::Ledger;

/// Whom the flood goes over: whose store has a bound.
pub const CONTESTANTS: &[(&str, &str)] = &[
    ("tidegate", "token bucket"),
    ("rate-net", "token bucket, fail closed"),
];

/// The number of made-up keys between two real ones, if one thread does both.
const MADE_UP_FOR_A_REAL: u64 = 100;

/// How big a flood, and how the real keys come into it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub made_up: u64,
    pub max_keys: u64,
    /// One thread does both in turns. Otherwise one makes up keys and one asks for the real ones,
    /// as fast as they can.
    pub interleaved: bool,
}

impl Plan {
    /// The whole, or a share of it: the bound shrinks with the flood.
    pub fn scaled(scale: f64, interleaved: bool) -> Self {
        let part = |whole: f64| (whole * scale).ceil().max(1.0) as u64;
        // The real keys alone must not fill the store.
        let max_keys = part(1_048_576.0).max(10_000);
        Self {
            made_up: part(100_000_000.0).max(4 * max_keys),
            max_keys,
            interleaved,
        }
    }

    pub const fn threads(&self) -> usize {
        if self.interleaved { 1 } else { 2 }
    }
}

/// Lets the flood go over one store.
pub fn measure(who: &str, plan: Plan) -> Result<Flood, String> {
    stores::open(
        who,
        Algorithm::TokenBucket,
        Quota::FLOOD,
        plan.max_keys as usize,
        plan,
    )
    .ok_or_else(|| format!("{who} has no token bucket"))?
    .map_err(|e| e.to_string())
}

impl Visit for Plan {
    type Out = io::Result<Flood>;

    fn visit(self, store: impl Store) -> Self::Out {
        let mut ledger = Ledger::new(Quota::FLOOD);
        let rss_empty = system::resident()?;
        let begun = Instant::now();
        ledger.begin(&store);
        let made_up = if self.interleaved {
            self.made_up_keys(&store, |done| {
                ledger.ask_a_busy_one(&store);
                ledger.ask_the_others_in_time(&store, done, self.made_up);
            })?
        } else {
            self.two_threads(&store, &mut ledger)?
        };
        let elapsed = begun.elapsed();
        let latency = &ledger.latency;
        let at = |q| latency.value_at_quantile(q);
        Ok(Flood {
            made_up: self.made_up,
            max_keys: self.max_keys,
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: latency.max(),
            decisions: latency.len(),
            ns_per_made_up: made_up.time.as_nanos() as f64 / self.made_up as f64,
            made_up_admitted: made_up.admitted as f64 / self.made_up as f64,
            limited: Ledger::LIMITED as u64,
            resets: ledger.resets(elapsed),
            modest_asked: ledger.modest_asked,
            modest_denied: ledger.modest_denied,
            rss_empty,
            rss_full: made_up.rss_full,
            rss_mid: made_up.rss_mid,
            rss_end: system::resident()?,
            seconds: elapsed.as_secs_f64(),
        })
    }
}

/// The result of the made-up keys.
struct MadeUp {
    admitted: u64,
    time: Duration,
    rss_full: u64,
    rss_mid: u64,
}

impl Plan {
    /// The flood. `between` gets the number of keys so far after every hundred.
    fn made_up_keys(&self, store: &impl Store, mut between: impl FnMut(u64)) -> io::Result<MadeUp> {
        let (mut keys, mut hand) = (Counting::new("made"), Default::default());
        let (mut admitted, mut rss_full, mut rss_mid) = (0, 0, 0);
        let begun = Instant::now();
        for done in 1..=self.made_up {
            admitted += u64::from(store.admit(&mut hand, keys.next()));
            if done % MADE_UP_FOR_A_REAL == 0 {
                between(done);
            }
            if done == 2 * self.max_keys {
                rss_full = system::resident()?;
            }
            if done == self.made_up / 2 {
                rss_mid = system::resident()?;
            }
        }
        Ok(MadeUp {
            admitted,
            time: begun.elapsed(),
            rss_full,
            rss_mid,
        })
    }

    fn two_threads(&self, store: &impl Store, ledger: &mut Ledger) -> io::Result<MadeUp> {
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let result = self.made_up_keys(store, |now| done.store(now, Ordering::Relaxed));
                done.store(u64::MAX, Ordering::Relaxed);
                result
            });
            loop {
                match done.load(Ordering::Relaxed) {
                    u64::MAX => break,
                    now => ledger.ask_the_others_in_time(store, now, self.made_up),
                }
                ledger.ask_a_busy_one(store);
            }
            flood.join().expect("the flood does not panic")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_flood_is_a_hundred_million_through_a_mebi() {
        let plan = Plan::scaled(1.0, false);
        assert_eq!((plan.made_up, plan.max_keys), (100_000_000, 1_048_576));
        let small = Plan::scaled(0.001, true);
        assert!(small.max_keys >= 10_000 && small.made_up >= 4 * small.max_keys);
    }

    #[test]
    fn no_store_is_reset_by_a_small_flood_and_each_ask_is_counted() {
        for (who, _) in CONTESTANTS {
            for interleaved in [false, true] {
                let flood = measure(who, Plan::scaled(0.001, interleaved)).unwrap();
                assert_eq!((flood.resets, flood.limited), (0, 750), "{who}");
                assert_eq!(flood.modest_asked, 250 * 9, "{who}");
                assert!(flood.p50 <= flood.p999 && flood.p999 <= flood.max);
            }
        }
    }
}
