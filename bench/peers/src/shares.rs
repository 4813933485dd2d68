//! A limit that tenants share, beside a limit for each of them.

use std::ops::Range;

use tidegate::{FairLimiter, KeyedLimiter, Policy};

use crate::{keyed, keys::Trace, race::Racer, stores, work::Tenants};

impl Tenants {
    pub const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Thousand => 1_000,
            Self::Million => keyed::KEYS,
        }
    }
}

/// The limiter with a bucket for each tenant.
const KEYED: &str = "keyed";
pub const CONTESTANTS: [&str; 3] = [stores::TIDEGATE, KEYED, keyed::FLOOR];

/// A bucket that is never empty, so that both admit.
fn policy() -> Policy {
    "token-bucket:burst=4000000000 1000000000/1s"
        .parse()
        .expect("the policy is well formed")
}

pub fn racers(tenants: Tenants, trace: &Trace) -> Vec<Racer<'_>> {
    let room = tenants.count().max(1 << 10).next_power_of_two();
    let fair = FairLimiter::builder(policy()).max_tenants(room).build();
    let fair = fair.expect("the policy can be shared");
    let keyed = KeyedLimiter::builder(policy()).max_keys(room).build();
    let keyed = keyed.expect("there is memory for the keys");
    for tenant in &trace.keys {
        assert!(fair.acquire(tenant, 1).is_allowed() && keyed.acquire(tenant, 1).is_allowed());
    }
    let of_fair = move |stretch: Range<usize>| {
        let asked = trace.requests[stretch].iter();
        asked
            .filter(|tenant| fair.acquire(*tenant, 1).is_allowed())
            .count()
    };
    let of_keyed = move |stretch: Range<usize>| {
        let asked = trace.requests[stretch].iter();
        asked
            .filter(|tenant| keyed.acquire(*tenant, 1).is_allowed())
            .count()
    };
    vec![
        Racer {
            who: stores::TIDEGATE,
            how: "FairLimiter",
            pass: Box::new(of_fair),
        },
        Racer {
            who: KEYED,
            how: "KeyedLimiter, a bucket for each",
            pass: Box::new(of_keyed),
        },
        keyed::floor(trace),
    ]
}
