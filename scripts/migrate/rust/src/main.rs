//! Rust's limiters on a given clock: `peers RULE` reads schedules as JSON, and prints the decisions of each.

use std::{
    error::Error,
    io,
    future::poll_fn,
    num::NonZeroU32,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use governor::{Quota, RateLimiter, clock::FakeRelativeClock};
use tower::Service;

/// The time of the schedule, in milliseconds.
static NOW: AtomicU64 = AtomicU64::new(0);

/// Stands for the C library's function, for limiters that read the system's clock.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(_: i32, time: *mut [i64; 2]) -> i32 {
    let now = NOW.load(Ordering::Relaxed).cast_signed();
    // SAFETY: the caller has a `timespec`, which is two numbers of this size here.
    unsafe { *time = [now / 1_000, now % 1_000 * 1_000_000] };
    0
}

/// A runtime whose time only `advance` moves.
fn paused() -> io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build()
}

/// A limiter that decides on a cost at a time since 1970.
type Limiter = Box<dyn FnMut(Duration, u32) -> Result<bool, Box<dyn Error>>>;

fn limiter(rule: &str) -> Result<Limiter, Box<dyn Error>> {
    let ten = NonZeroU32::new(10).ok_or("zero")?;
    Ok(match rule {
        "governor" => {
            let clock = FakeRelativeClock::default();
            let limiter = RateLimiter::direct_with_clock(Quota::per_second(ten), clock.clone());
            let mut last = None;
            Box::new(move |at, cost| {
                clock.advance(at - last.unwrap_or(at));
                last = Some(at);
                let cost = NonZeroU32::new(cost).ok_or("a cost of 0")?;
                Ok(matches!(limiter.check_n(cost), Ok(Ok(()))))
            })
        }
        "throttlecrab" => {
            let mut limiter = throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::new());
            Box::new(move |at, cost| {
                let now = SystemTime::UNIX_EPOCH + at;
                let (admitted, _) = limiter.rate_limit("key", 10, 10, 1, cost.into(), now)?;
                Ok(admitted)
            })
        }
        "limitador" => {
            let limiter = limitador::RateLimiter::new(100);
            let (conditions, variables): ([limitador::limit::Predicate; 0], [limitador::limit::Expression; 0]) = ([], []);
            limiter.add_limit(limitador::limit::Limit::new("all", 10, 1, conditions, variables));
            let context = limitador::limit::Context::default();
            Box::new(move |_, cost| {
                let told = limiter.check_rate_limited_and_update(&"all".into(), &context, cost.into())?;
                Ok(!told.limited)
            })
        }
        // An admission that would wait is none.
        "tower" => {
            let (runtime, mut last) = (paused()?, None);
            let accept = tower::service_fn(|()| async { Ok::<_, io::Error>(()) });
            let mut service = runtime.block_on(async { tower::limit::RateLimit::new(accept, tower::limit::rate::Rate::new(10, Duration::from_secs(1))) });
            Box::new(move |at, _| {
                let span = at - last.unwrap_or(at);
                last = Some(at);
                runtime.block_on(async {
                    tokio::time::advance(span).await;
                    if poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await.is_ready() {
                        service.call(()).await?;
                        return Ok(true);
                    }
                    Ok(false)
                })
            })
        }
        "leaky-bucket" => {
            let (runtime, mut last) = (paused()?, None);
            let limiter = runtime.block_on(async {
                leaky_bucket::RateLimiter::builder().max(10).initial(10).refill(10).interval(Duration::from_secs(1)).build()
            });
            Box::new(move |at, cost| {
                // The limiter is made at a whole second.
                let span = at - last.unwrap_or(Duration::from_secs(at.as_secs()));
                last = Some(at);
                runtime.block_on(async {
                    tokio::time::advance(span).await;
                    let acquired = pin!(limiter.acquire(cost as usize));
                    Ok(acquired.poll(&mut Context::from_waker(Waker::noop())).is_ready())
                })
            })
        }
        _ => return Err(rule.into()),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let rule = std::env::args().nth(1).ok_or("name a rule")?;
    let schedules: Vec<Vec<(u64, u32)>> = serde_json::from_reader(io::stdin())?;
    let mut decisions = Vec::new();
    for schedule in schedules {
        NOW.store(schedule.first().map_or(0, |(at, _)| *at), Ordering::Relaxed);
        let (mut ask, mut made) = (limiter(&rule)?, String::new());
        for (at, cost) in schedule {
            NOW.store(at, Ordering::Relaxed);
            made.push(if ask(Duration::from_millis(at), cost)? { '1' } else { '0' });
        }
        decisions.push(made);
    }
    println!("{}", serde_json::to_string(&decisions)?);
    Ok(())
}
