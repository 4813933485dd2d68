//! A million keys, asked for by Zipf's law.

use std::{hint::black_box, ops::Range};

use tidegate::{Clock as _, HashKeys, SystemClock};

use crate::{
    figure::{Figure, Measure},
    keys::Trace,
    quota::Quota,
    race::Racer,
    stores::{self, GovernorBorrowed, Store, Visit},
    work::Algorithm,
};

/// Keys, and the bound that stores are given: the next round number of a store that is sized for
/// them.
pub const KEYS: usize = 1_000_000;
pub const BOUND: usize = 1 << 20;
/// Requests before the trace starts again.
pub const REQUESTS: usize = 1 << 22;

/// The work that all have in common: fetching the next key, hashing it, reading the time.
pub const FLOOR: &str = "floor";

/// The wanted limiters with all keys loaded.
pub fn racers(
    algorithm: Algorithm,
    quota: Quota,
    trace: &Trace,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Racer<'_>> {
    let mut racers = Vec::new();
    for &(who, how) in stores::contestants(algorithm)
        .iter()
        .filter(|(who, _)| wanted(who))
    {
        racers.extend(stores::open(
            who,
            algorithm,
            quota,
            BOUND,
            Enter { trace, who, how },
        ));
    }
    if algorithm == Algorithm::TokenBucket && wanted(stores::BORROWED) {
        racers.push(borrowed(quota, trace));
    }
    racers.push(floor(trace));
    racers
}

/// One by one, as the batch's rival.
pub const ONE_BY_ONE: &str = "one-by-one";

/// Keys a call.
const BATCH: usize = 32;

/// Tidegate with 32 keys a call, and with one.
pub fn batches(trace: &Trace) -> Vec<Racer<'_>> {
    let load = || {
        let store = stores::tidegate_store(Algorithm::TokenBucket, Quota::ENDLESS_FOR_A_KEY, BOUND);
        trace.keys.iter().for_each(|key| {
            let _ = black_box(store.acquire(key, 1));
        });
        store
    };
    let (one, many) = (load(), load());
    let single = move |stretch: Range<usize>| {
        trace.requests[stretch]
            .iter()
            .filter(|key| one.acquire(key, 1).is_allowed())
            .count()
    };
    let batch = move |stretch: Range<usize>| {
        let mut admitted = 0;
        let mut requests = [("", 1); BATCH];
        for keys in trace.requests[stretch].chunks(BATCH) {
            for (request, key) in requests.iter_mut().zip(keys) {
                request.0 = key;
            }
            let decisions = many.acquire_many(&requests[..keys.len()]);
            admitted += decisions
                .iter()
                .filter(|decision| decision.is_allowed())
                .count();
        }
        admitted
    };
    vec![
        Racer {
            who: stores::TIDEGATE,
            how: "acquire_many, 32 keys a call",
            pass: Box::new(batch),
        },
        Racer {
            who: ONE_BY_ONE,
            how: "Tidegate, acquire",
            pass: Box::new(single),
        },
        floor(trace),
    ]
}

/// Loads a store and makes a racer of it.
struct Enter<'a> {
    trace: &'a Trace,
    who: &'static str,
    how: &'static str,
}

impl<'a> Visit for Enter<'a> {
    type Out = Racer<'a>;

    fn visit(self, store: impl Store) -> Racer<'a> {
        let Self { trace, who, how } = self;
        let admitted = move |keys: &[&str]| {
            let mut hand = Default::default();
            keys.iter()
                .filter(|key| store.admit(&mut hand, key))
                .count()
        };
        admitted(&trace.keys);
        Racer {
            who,
            how,
            pass: Box::new(move |stretch: Range<usize>| admitted(&trace.requests[stretch])),
        }
    }
}

/// governor with keys that it does not own, which no other store could take.
fn borrowed(quota: Quota, trace: &Trace) -> Racer<'_> {
    let store = GovernorBorrowed::open(quota);
    let admitted = move |keys: &[&'static str]| keys.iter().filter(|key| store.admit(key)).count();
    admitted(&trace.keys);
    let pass = move |stretch: Range<usize>| admitted(&trace.requests[stretch]);
    Racer {
        who: stores::BORROWED,
        how: "&'static str keys, DashMap",
        pass: Box::new(pass),
    }
}

pub fn floor(trace: &Trace) -> Racer<'_> {
    let (hash, clock) = (HashKeys::random(), SystemClock::new());
    let pass = move |stretch: Range<usize>| {
        let keys = &trace.requests[stretch];
        for key in keys {
            black_box((hash.tag(key.as_bytes()), clock.now()));
        }
        keys.len()
    };
    Racer {
        who: FLOOR,
        how: "fetch the key, hash it, read the time",
        pass: Box::new(pass),
    }
}

/// The faster of governor's two ways is governor's figure; the other keeps its own name.
pub fn name_governor(figures: &mut [Figure]) {
    let speed = |figure: &Figure| match figure.measure {
        Measure::Speed(speed) => speed.ns_per_op,
        Measure::Memory(_) | Measure::Flood(_) => f64::INFINITY,
    };
    let ways = figures
        .iter_mut()
        .filter(|figure| [stores::BORROWED, stores::OWNED].contains(&&*figure.who));
    if let Some(faster) = ways.min_by(|a, b| speed(a).total_cmp(&speed(b))) {
        "governor".clone_into(&mut faster.who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Speed;

    #[test]
    fn governor_is_the_faster_of_its_two_ways() {
        let figure = |who: &str, ns_per_op| {
            let speed = Speed {
                ns_per_op,
                min: 0.0,
                max: 0.0,
                rounds: 1,
                admitted: 1.0,
                preempted: 0.0,
            };
            let how = String::new();
            Figure {
                work: "w".into(),
                who: who.into(),
                how,
                threads: 1,
                measure: Measure::Speed(speed),
            }
        };
        let mut figures = [
            figure("tidegate", 1.0),
            figure(stores::OWNED, 300.0),
            figure(stores::BORROWED, 200.0),
        ];
        name_governor(&mut figures);
        assert_eq!(
            figures.each_ref().map(|f| &*f.who),
            ["tidegate", stores::OWNED, "governor"]
        );
    }

    #[test]
    fn a_store_twice_as_large_as_needed_holds_all_keys_but_a_few() {
        struct Count<'a>(&'a Trace);
        impl Visit for Count<'_> {
            type Out = Option<u64>;
            fn visit(self, store: impl Store) -> Option<u64> {
                let mut hand = Default::default();
                let admitted = self
                    .0
                    .keys
                    .iter()
                    .filter(|key| store.admit(&mut hand, key))
                    .count();
                assert_eq!(admitted, self.0.keys.len());
                store.held()
            }
        }
        let trace = Trace::zipf(10_000, 1);
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::SlidingWindow,
            Algorithm::SlidingCounter,
        ] {
            for &(who, _) in stores::contestants(algorithm) {
                let held = stores::open(who, algorithm, Quota::LASTING, 20_000, Count(&trace));
                let held = held.expect("every contestant has a store");
                // Tidegate gives a key few places: one may have to give way although others are
                // free.
                assert!(
                    held.is_none_or(|held| held >= 9_990),
                    "{who} holds {held:?}"
                );
            }
        }
    }
}
