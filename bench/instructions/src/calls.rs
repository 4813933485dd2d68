//! The calls that are counted. Each is made [`CALLS`] times on a warm state, at one time, so that
//! nothing depends on the clock.

use std::{hint::black_box, time::Duration};

use tidegate_core::{Nanos, Policy, Quota};
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};
use tidegate_limiter::{
    HashKeys, KeyedLimiter, Limiter, Request, acquire_all_at, acquire_all_estimates_at,
};

/// How often a call is made while its instructions are counted. A multiple of [`BATCH`].
pub const CALLS: u32 = 1_024;
const BATCH: usize = 32;
const NOW: Nanos = Nanos::from_secs(1_700_000_000);

pub const NAMES: [&str; 16] = [
    "limiter-token-bucket",
    "limiter-token-bucket-denied",
    "limiter-token-bucket-yes-or-no",
    "limiter-sliding-window",
    "limiter-sliding-window-yes-or-no",
    "limiter-sliding-counter",
    "keyed-token-bucket",
    "keyed-sliding-window",
    "keyed-batch",
    "joint-five",
    "joint-five-denied",
    "joint-five-estimates",
    "estimate-settled",
    "joint-five-settled",
    "entry-exit",
    "entry-exit-four-kinds",
];

/// Makes the calls of a name.
pub fn run(name: &str) -> Result<(), String> {
    match name {
        "limiter-token-bucket" => limiter(Policy::token_bucket(plenty()), true),
        "limiter-token-bucket-denied" => limiter(Policy::token_bucket(Quota::per_hour(5)), false),
        "limiter-token-bucket-yes-or-no" => yes_or_no(Policy::token_bucket(plenty())),
        "limiter-sliding-window-yes-or-no" => yes_or_no(Policy::sliding_window(plenty())),
        "limiter-sliding-window" => limiter(Policy::sliding_window(plenty()), true),
        "limiter-sliding-counter" => limiter(Policy::sliding_counter(plenty()), true),
        "keyed-token-bucket" => keyed(Policy::token_bucket(plenty())),
        "keyed-sliding-window" => keyed(Policy::sliding_window(plenty())),
        "keyed-batch" => batch(),
        "joint-five" => joint(plenty(), false, false),
        "joint-five-denied" => joint(Quota::per_hour(5), false, false),
        "joint-five-estimates" => joint(plenty(), true, false),
        "estimate-settled" => estimate(),
        "joint-five-settled" => joint(plenty(), true, true),
        "entry-exit" => entry(false),
        "entry-exit-four-kinds" => entry(true),
        _ => {
            return Err(format!(
                "{name} is not known; the calls are {}",
                NAMES.join(", ")
            ));
        }
    }
    Ok(())
}

/// Valgrind counts from the beginning of this function to its end.
#[inline(never)]
fn counted(calls: &mut dyn FnMut()) {
    calls();
}

/// So much that nothing is denied.
fn plenty() -> Quota {
    Quota::per_second(1_000_000_000)
}

fn limiter(policy: Policy, admits: bool) {
    let limiter = Limiter::new(policy);
    for _ in 0..10 {
        let _ = limiter.at(NOW).acquire(1);
    }
    assert_eq!(limiter.at(NOW).acquire(1).is_allowed(), admits);
    counted(&mut || {
        for _ in 0..CALLS {
            let _ = black_box(limiter.at(NOW).acquire(black_box(1)));
        }
    });
}

/// As most callers do, who read nothing else of a decision.
fn yes_or_no(policy: Policy) {
    let limiter = Limiter::new(policy);
    counted(&mut || {
        for _ in 0..CALLS {
            let _ = black_box(limiter.at(NOW).acquire(black_box(1)).is_allowed());
        }
    });
}

/// A limiter that knows as many keys as calls are made.
fn known(policy: Policy) -> (KeyedLimiter, Vec<String>) {
    let builder = KeyedLimiter::builder(policy)
        .max_keys(10_000)
        .hash_keys(HashKeys::from_seeds(1, 2));
    let limiter = builder.build().expect("there is memory");
    let keys: Vec<String> = (0..CALLS).map(|at| format!("user:{at:010}")).collect();
    for key in &keys {
        let _ = limiter.at(NOW).acquire(key.as_str(), 1);
    }
    (limiter, keys)
}

fn keyed(policy: Policy) {
    let (limiter, keys) = known(policy);
    counted(&mut || {
        for key in &keys {
            let _ = black_box(limiter.at(NOW).acquire(black_box(key.as_str()), 1));
        }
    });
}

fn batch() {
    let (limiter, keys) = known(Policy::token_bucket(plenty()));
    let requests: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    counted(&mut || {
        for some in requests.chunks(BATCH) {
            limiter.at(NOW).acquire_each(some, |decision| {
                let _ = black_box(decision);
            });
        }
    });
}

/// An estimate for a key, and its settlement.
fn estimate() {
    let (limiter, keys) = known(Policy::token_bucket(plenty()));
    counted(&mut || {
        for key in &keys {
            let key = black_box(key.as_str());
            let (_, taken) = limiter.at(NOW).acquire_estimate(key, 3);
            limiter.at(NOW).settle(key, black_box(taken), 2);
        }
    });
}

/// Five limits in one step: four with keys, and one without, which has this quota. With estimates,
/// as a reservation takes them, and settled, as it ends.
fn joint(quota: Quota, notes: bool, settles: bool) {
    let limit = || known(Policy::token_bucket(plenty()));
    let [(one, keys), (two, _), (three, _), (four, _)] = [limit(), limit(), limit(), limit()];
    let keyed = [&one, &two, &three, &four];
    let all = Limiter::new(Policy::token_bucket(quota));
    for _ in 0..10 {
        let _ = all.at(NOW).acquire(1);
    }
    counted(&mut || {
        for key in &keys {
            let key = black_box(key.as_bytes());
            let requests = [
                Request::keyed(&one, key, 1),
                Request::keyed(&two, key, 1),
                Request::keyed(&three, key, 1),
                Request::keyed(&four, key, 1),
                Request::unkeyed(&all, 1),
            ];
            if !notes {
                let _ = black_box(acquire_all_at(&requests, NOW));
                continue;
            }
            let taken = black_box(acquire_all_estimates_at(&requests, NOW));
            if settles && let Ok((_, estimates)) = taken {
                for (limiter, taken) in keyed.iter().zip(&estimates) {
                    limiter.at(NOW).settle(key, *taken, 0);
                }
                all.at(NOW).settle(estimates[4], 0);
            }
        }
    });
}

/// A resource with one flow rule, or with rules of four kinds. None of them blocks.
fn entry(four_kinds: bool) {
    let (name, most) = ("resource", u32::MAX);
    let mut rules = Rules::from(vec![FlowRule::new(name, most)]);
    if four_kinds {
        rules.isolation = vec![IsolationRule::new(name, most)];
        rules.breakers = vec![BreakerRule::new(
            name,
            Trip::ErrorRatio { ratio: 0.5 },
            Duration::from_secs(5),
        )];
        rules.system = vec![SystemRule::default().qps(most.into())];
    }
    let gate = Gate::builder().timer(ManualTimer::new(NOW)).build();
    gate.load(rules).expect("possible rules");
    let resource = gate.resource(name);
    for _ in 0..10 {
        drop(resource.entry().inbound().enter());
    }
    counted(&mut || {
        for _ in 0..CALLS {
            let _ = black_box(resource.entry().inbound().enter());
        }
    });
}
