//! Measures waiting and changes of policy.
//! `cargo run --release -p tidegate-limiter --example waiting`
#![allow(clippy::disallowed_methods)] // Figures are of the wall clock.

use std::{
    hint::black_box,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Waker},
    time::Instant,
};

use tidegate_limiter::{
    Admission, Clock, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Until, WaitError,
};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + Send + 'a>>;

const START: Nanos = Nanos::from_secs(1_000);

fn limiter(policy: Policy, max_keys: usize) -> (ManualTimer, KeyedLimiter<ManualTimer>) {
    let timer = ManualTimer::new(START);
    (
        timer.clone(),
        KeyedLimiter::builder(policy)
            .max_keys(max_keys)
            .clock(timer)
            .build()
            .expect("memory"),
    )
}

fn join(limiter: &KeyedLimiter<ManualTimer>, how_many: usize) -> Vec<Waiting<'_>> {
    let mut line: Vec<Waiting<'_>> = (0..how_many)
        .map(|_| Box::pin(limiter.wait("a", 1, None)) as Waiting<'_>)
        .collect();
    for waiting in &mut line {
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    line
}

/// Nanoseconds a decision on one of a thousand other keys.
fn others(limiter: &KeyedLimiter<ManualTimer>, now: Nanos) -> f64 {
    let rounds = 3_000_u64;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        for _ in 0..rounds {
            for key in 0..1_000_u64 {
                black_box(limiter.at(now).acquire(key, 1).is_allowed());
            }
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / (rounds as f64 * 1_000.0));
    }
    best
}

/// Kibibytes of this process that are resident; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Ten thousand changes of policy while another thread decides.
fn change_under_load(limiter: &KeyedLimiter<ManualTimer>) {
    let changing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while changing.load(Ordering::Relaxed) {
                for key in 0..1_000_u64 {
                    black_box(limiter.at(START).acquire(key, 1).is_allowed());
                }
            }
        });
        for round in 0..10_000_u64 {
            let quota = Quota::per_second(1_000 + round % 2);
            let policy = if round % 3 == 0 {
                Policy::fixed_window(quota)
            } else {
                Policy::token_bucket(quota)
            };
            limiter.at(START).set_policy(policy).expect("memory");
        }
        limiter
            .at(START)
            .set_policy(Policy::token_bucket(Quota::per_second(1_000)))
            .expect("memory")
            .finish_at(START);
        changing.store(false, Ordering::Relaxed);
    });
}

fn main() {
    let empty: Vec<_> = (0..11)
        .map(|_| limiter(Policy::token_bucket(Quota::per_second(1)), 1 << 20).1)
        .collect();
    let begun = Instant::now();
    for limiter in &empty {
        limiter
            .at(START)
            .snapshot(|_| unreachable!("there is no key"));
    }
    println!(
        "snapshots of 11 empty limiters              {:8.1?}",
        begun.elapsed()
    );
    drop(empty);

    let bucket = Policy::token_bucket(Quota::per_second(1_000));
    let (_, one) = limiter(bucket, 10_000);
    println!(
        "a decision on other keys, nobody waits      {:8.1} ns",
        others(&one, START)
    );
    let _ = one.acquire_up_to("a", 1_000);
    let first = join(&one, 1);
    println!(
        "  one waits                                 {:8.1} ns",
        others(&one, START)
    );
    drop(first);
    one.at(START)
        .block("b", Until(Nanos::from_secs(1_001)))
        .expect("room");
    println!(
        "  after a block that has passed             {:8.1} ns",
        others(&one, Nanos::from_secs(1_002))
    );
    let (_, one) = limiter(bucket, 10_000);
    let (fresh, before) = (others(&one, START), resident());
    change_under_load(&one);
    let changed = others(&one, START);
    println!(
        "  before and after 10,000 changes under load{fresh:8.1} ns {changed:8.1} ns; resident {before} KiB, {} KiB",
        resident()
    );

    println!(
        "the future of one who waits {:30} bytes",
        size_of_val(&one.wait("a", 1, None))
    );
    for policy in [
        bucket,
        Policy::sliding_log(Quota::per_second(1_000)).expect("a short log"),
        Policy::sliding_window(Quota::per_second(1_000)),
    ] {
        let (timer, one) = limiter(policy, 10_000);
        let _ = one.acquire_up_to("a", 1_000);
        let begun = Instant::now();
        let mut line = join(&one, 100_000);
        let joined = begun.elapsed();
        line.truncate(10_000);
        let begun = Instant::now();
        for _ in 0..1_000 {
            assert!(one.acquire("a", 1).is_denied());
        }
        let asked = begun.elapsed() / 1_000;
        let mut longest = std::time::Duration::ZERO;
        let mut served = 0;
        let begun = timer.now();
        // A millisecond at a time, as a real timer would wake the front.
        while !line.is_empty() {
            timer.advance(Nanos::from_micros(1_000));
            let asked = Instant::now();
            assert!(one.acquire("a", 1).is_denied() || line.len() < 4);
            longest = longest.max(asked.elapsed());
            let before = line.len();
            let front = line.len().min(1_100);
            let mut at = 0;
            line.retain_mut(|waiting| {
                at += 1;
                at > front
                    || waiting
                        .as_mut()
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
            });
            served += before - line.len();
        }
        let rate = served as f64 / (timer.now().saturating_since(begun).get() as f64 / 1e9);
        println!(
            "{:15} 100,000 join in {joined:9.1?}; an acquire behind 10,000 {asked:7.0?}, the longest {longest:7.0?}; {rate:6.1}/s of 1,000/s",
            policy.name()
        );
    }

    let (_, many) = limiter(bucket, 1 << 20);
    for key in 0..1_000_000_u64 {
        let _ = many.at(START).acquire(key, 1);
    }
    let begun = Instant::now();
    let _unfinished = many
        .at(START)
        .set_policy(Policy::token_bucket(Quota::per_second(2_000)))
        .expect("memory");
    let changed = begun.elapsed();
    let again = Instant::now();
    let second = many
        .at(START)
        .set_policy(Policy::token_bucket(Quota::per_second(3_000)))
        .expect("memory");
    let changed_again = again.elapsed();
    second.finish_at(START);
    println!(
        "set_policy on 1,000,000 keys {changed:7.0?}, a second one at once {changed_again:7.0?}, all moved after {:7.0?}",
        begun.elapsed()
    );

    let one = Limiter::with_clock(bucket, ManualTimer::new(START));
    let begun = Instant::now();
    for round in 0..10_000_u64 {
        one.at(START)
            .set_policy(Policy::token_bucket(Quota::per_second(1_000 + round % 2)));
    }
    println!(
        "set_policy of a limiter without keys {:7.0?}",
        begun.elapsed() / 10_000
    );
}
