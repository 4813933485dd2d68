//! Limits that come with requests: every number against every width of a state.
#![cfg(not(loom))]

use std::time::Duration;

use tidegate_limiter::{
    AlgorithmSpec, KeyedLimiter, Nanos, Policy, Quota, Request, acquire_all_at,
    algorithm::SlidingWindow,
};

/// A generator that needs nothing but its seed.
struct Random(u64);

impl Random {
    /// From 0 to below this number.
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % most
    }
}

/// Numbers at which the layouts of states change, and those next to them.
const NUMBERS: [u64; 14] = [
    0,
    1,
    7,
    254,
    255,
    260,
    65_534,
    65_535,
    70_000,
    u32::MAX as u64,
    1 << 32,
    (1 << 50) - 1,
    1 << 50,
    1 << 53,
];

const WINDOWS: [Duration; 3] = [
    Duration::from_nanos(7),
    Duration::from_secs(1),
    Duration::from_hours(24 * 31),
];

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

fn any_policy(random: &mut Random) -> Policy {
    let specs: Vec<_> = AlgorithmSpec::all().collect();
    loop {
        let (spec, limit) = (pick(random, &specs), pick(random, &NUMBERS));
        // The registry refuses some numbers, such as a log of a billion entries.
        let policy = if spec.limits_rate() {
            let quota = Quota::new(limit.min(1_000 << 30), pick(random, &WINDOWS));
            quota
                .map_err(|_| ())
                .and_then(|quota| spec.policy(quota).map_err(|_| ()))
        } else {
            spec.permits(limit).map_err(|_| ())
        };
        let narrow = policy.ok().filter(|policy| words(policy) < 2_000);
        if let Some(policy) = narrow {
            return if random.below(5) == 0 {
                policy.wide()
            } else {
                policy
            };
        }
    }
}

fn words(policy: &Policy) -> usize {
    tidegate_limiter::Algorithm::words(policy)
}

/// A keyed limiter with any policy answers requests by any other policy, through every call that
/// takes one. Afterwards it still decides by its own.
#[test]
fn any_policy_decides_on_states_of_any_other() {
    let mut random = Random(49);
    for round in 0..600 {
        let mine = any_policy(&mut random);
        let limiter = KeyedLimiter::builder(mine)
            .max_keys(64)
            .clock(())
            .build()
            .expect("64 keys have room");
        let mut now = Nanos::from_secs(1_000);
        for step in 0..40 {
            let by = any_policy(&mut random);
            let (key, cost) = (step % 3_u64, pick(&mut random, &NUMBERS));
            match step % 4 {
                0 => drop(limiter.at(now).acquire_with(&by, key, cost)),
                1 => drop(limiter.at(now).charge_with(&by, key, cost)),
                2 => {
                    let key = key.to_le_bytes();
                    let request = Request::keyed(&limiter, &key, cost).with_policy(Some(&by));
                    drop(acquire_all_at(&[request], now).expect("there is room"));
                }
                _ => drop(limiter.at(now).acquire_with(&by, key, 0)),
            }
            let own = limiter.at(now).peek(key, 0);
            assert_eq!(
                own.limit(),
                tidegate_limiter::Algorithm::limit(&mine),
                "{round}"
            );
            let gap = random.below(2_000_000_000);
            now = now.saturating_add(Nanos::new(gap));
        }
    }
}

/// A wide window decides on requests with other limits exactly as if its own limit had changed to
/// theirs: at every limit where a narrower state would need another layout.
#[test]
fn a_wide_window_counts_for_limits_of_any_size() {
    let mut random = Random(7);
    let window = |limit| SlidingWindow::new(Quota::per_second(limit)).balanced();
    for _ in 0..50 {
        let wide = Policy::from(window(10)).wide();
        let build = || KeyedLimiter::builder(wide).max_keys(64).clock(()).build();
        let (by_request, changed) = (build().unwrap(), build().unwrap());
        let mut now = Nanos::from_secs(1_000);
        for step in 0..200 {
            let limit = 10 * (1 + random.below(7_000));
            let cost = 1 + random.below(limit / 4);
            let by = Policy::from(window(limit)).wide();
            changed.at(now).set_policy(by).unwrap().finish_at(now);
            let asked = by_request.at(now).acquire_with(&by, 1_u64, cost);
            assert_eq!(asked, changed.at(now).acquire(1_u64, cost), "step {step}");
            now = now.saturating_add(Nanos::new(random.below(100_000_000)));
        }
    }
}
