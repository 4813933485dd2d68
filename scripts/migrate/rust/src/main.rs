//! Rust's limiters on a given clock: `peers RULE` reads schedules as JSON, and prints the decisions of each.

use std::{
    error::Error,
    io,
    num::NonZeroU32,
    time::{Duration, SystemTime},
};

use governor::{Quota, RateLimiter, clock::FakeRelativeClock};

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
        _ => return Err(rule.into()),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let rule = std::env::args().nth(1).ok_or("name a rule")?;
    let schedules: Vec<Vec<(u64, u32)>> = serde_json::from_reader(io::stdin())?;
    let mut decisions = Vec::new();
    for schedule in schedules {
        let (mut ask, mut made) = (limiter(&rule)?, String::new());
        for (at, cost) in schedule {
            made.push(if ask(Duration::from_millis(at), cost)? { '1' } else { '0' });
        }
        decisions.push(made);
    }
    println!("{}", serde_json::to_string(&decisions)?);
    Ok(())
}
