//! Hot keys: `cargo run -p tidegate-flow --example hot_keys`.
//!
//! Ten thousand users send requests, a few of them far more often than the rest. A hot-parameter
//! rule admits at most five requests a second for each user. It holds back the busy users, and the
//! others hardly notice.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{HotParamRule, ParamKey, Rules},
};

/// A small random number generator with the same sequence in each run.
struct Dice(u64);

impl Dice {
    /// Returns a number from 0 to below 1.
    fn roll(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1_u64 << 31) as f64
    }
}

/// Returns a random user by the inverse of Zipf's law: user `k` sends about `1/k` as many requests
/// as the first.
fn user(dice: &mut Dice, users: u32) -> u32 {
    let rank = f64::from(users).powf(dice.roll());
    // The rank is from 1 to the number of users.
    #[allow(clippy::cast_sign_loss)]
    let rank = rank as u32;
    rank
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USERS: u32 = 10_000;
    const SECONDS: u32 = 10;
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let rule = HotParamRule::new("search", ParamKey::Name("user".into()), 5).exception(3_u32, 50);
    gate.load(Rules::from(vec![rule.max_values(USERS as usize)]))?;
    let search = gate.resource("search");

    let mut dice = Dice(7);
    let mut calls: HashMap<u32, (u32, u32)> = HashMap::new();
    for _ in 0..SECONDS * 2_000 {
        let user = user(&mut dice, USERS);
        let (asked, passed) = calls.entry(user).or_default();
        *asked += 1;
        *passed += u32::from(search.entry().attach("user", user).enter().is_ok());
        timer.advance(Duration::from_micros(500));
    }

    println!(
        "2000 calls a second for {SECONDS} s; at most 5 a second for each user, 50 for user 3\n"
    );
    println!("{:>6} {:>10} {:>10}", "user", "asked/s", "passed/s");
    for user in 1..=8 {
        let (asked, passed) = calls.get(&user).copied().unwrap_or_default();
        let bar = "#".repeat((passed / SECONDS) as usize);
        println!(
            "{user:>6} {:>10.1} {:>10.1} {bar}",
            f64::from(asked) / 10.0,
            f64::from(passed) / 10.0
        );
    }
    let others = calls.iter().filter(|(user, _)| **user > 100);
    let (asked, passed) = others.fold((0, 0), |sum, (_, calls)| (sum.0 + calls.0, sum.1 + calls.1));
    println!(
        "\nusers beyond 100: {passed} of {asked} calls passed ({:.1} %)",
        f64::from(passed) * 100.0 / f64::from(asked)
    );
    println!("values forgotten for lack of room: {}", search.crowded());

    // Each busy user asked for more than passed, and at most five passed in each second.
    let is_held = |user, most: u32| {
        calls
            .get(&user)
            .is_some_and(|&(asked, passed)| asked > passed && passed <= most * (SECONDS + 1))
    };
    if !([1, 2, 4, 5].iter().all(|&user| is_held(user, 5))
        && is_held(3, 50)
        && passed * 100 > asked * 99)
    {
        return Err("the rule did not hold back the busy users, or it held back the others".into());
    }
    Ok(())
}
