//! Pacing: a worker waits for its turn. It works on any async runtime; this example uses a bare
//! executor.
//!
//! `cargo run --example pace`

use std::time::Duration;

use tidegate::{Clock as _, Limiter, Quota, SystemClock, algorithm::LeakyBucket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = SystemClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(5)).max_wait(Duration::from_secs(2))?;
    let pace = Limiter::with_clock(bucket, clock.clone());
    let start = clock.now();
    futures::executor::block_on(async {
        for call in 1..=8 {
            let deadline = clock.now().saturating_add(Duration::from_secs(1).into());
            match pace.wait(1, Some(deadline)).await {
                Ok(_) => {
                    let at: Duration = clock.now().saturating_since(start).into();
                    println!("call {call} at {:.2} s", at.as_secs_f64());
                }
                Err(e) => println!("call {call} given up: {e}"),
            }
        }
    });
    Ok(())
}
