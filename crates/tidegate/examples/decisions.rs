//! Decides on schedules as a policy does: `decisions POLICY [CHARGED]` reads a line for each request, of its time in nanoseconds and its cost,
//! and prints 1 for an admission and 0 for a denial. An empty line ends a schedule. `scripts/migrate.py` compares the decisions with
//! those of other limiters.

use std::{error::Error, io};

use tidegate::{Limiter, Nanos, Policy};

fn main() -> Result<(), Box<dyn Error>> {
    let policy = std::env::args()
        .nth(1)
        .ok_or("name a policy, such as \"token-bucket:burst=20 10/1s\"")?;
    let fresh = || policy.parse::<Policy>().map(Limiter::new);
    let charged = std::env::args()
        .nth(2)
        .map_or(Ok(0), |units| units.parse())?;
    let mut limiter = fresh()?;
    let mut is_fresh = true;
    for line in io::stdin().lines() {
        let line = line?;
        if line.is_empty() {
            println!();
            (limiter, is_fresh) = (fresh()?, true);
            continue;
        }
        let (time, cost) = line.split_once(' ').ok_or("a line is TIME COST")?;
        let now = Nanos::new(time.parse()?);
        if std::mem::take(&mut is_fresh) {
            let _ = limiter.at(now).charge(charged);
        }
        let decision = limiter.at(now).acquire(cost.parse()?);
        print!("{}", u8::from(decision.is_allowed()));
    }
    Ok(())
}
