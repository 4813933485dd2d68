//! One atomic decision over a limit for each user and a limit for all users together.
//!
//! `cargo run --example per_user`

use tidegate::{
    Clock as _, KeyedLimiter, Limiter, Policy, Quota, Request, SystemClock, acquire_all_at,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = SystemClock::new();
    let per_user = KeyedLimiter::new(Policy::sliding_log("3/10s".parse()?)?)?;
    let everyone = Limiter::new(Policy::token_bucket(Quota::per_second(5)));
    let names = ["per-user", "everyone"];

    for user in ["alice", "alice", "bob", "alice", "alice", "carol", "bob"] {
        let requests = [
            Request::keyed(&per_user, user.as_bytes(), 1),
            Request::unkeyed(&everyone, 1),
        ];
        let all = acquire_all_at(&requests, clock.now())?;
        let (Some(bound), Some(decision)) = (all.bound(), all.binding()) else {
            continue;
        };
        if all.is_allowed() {
            println!(
                "{user:>6}: go ahead, {} left of {}",
                decision.remaining(),
                names[bound]
            );
        } else {
            let wait = decision.retry_after().unwrap_or_default();
            println!(
                "{user:>6}: denied by {}, again in {:.1} s",
                names[bound],
                wait.as_secs_f64()
            );
        }
    }
    Ok(())
}
