//! One limiter without keys, asked again and again by all threads.

use std::ops::Range;

use governor::RateLimiter as Governor;
use rate_net::{DirectLimiter, Quota as RateNetQuota};
use ratelimit::Ratelimiter;
use tidegate::{Limiter, Policy};

use crate::{
    quota::Quota,
    race::Racer,
    stores::{self, Store, Visit},
    work::Algorithm,
};

fn racer(
    who: &'static str,
    how: &'static str,
    admit: impl Fn() -> bool + Sync + 'static,
) -> Racer<'static> {
    Racer {
        who,
        how,
        pass: Box::new(move |stretch: Range<usize>| stretch.filter(|_| admit()).count()),
    }
}

pub fn token_bucket(quota: Quota) -> Vec<Racer<'static>> {
    let tidegate = Limiter::new(Policy::token_bucket(stores::tidegate_quota(quota)));
    let governor = Governor::direct(stores::governor_quota(quota));
    let rate_net = rate_net(Algorithm::TokenBucket, quota);
    let ratelimit = Ratelimiter::builder(quota.limit.into())
        .period(quota.per)
        .initial_available(quota.limit.into())
        .build()
        .expect("a rate within ratelimit's bounds");
    vec![
        racer("tidegate", "token bucket", move || {
            tidegate.acquire(1).is_allowed()
        }),
        racer("governor", "direct", move || governor.check().is_ok()),
        racer("rate-net", "direct token bucket", move || {
            rate_net.check().is_allow()
        }),
        racer("ratelimit", "token bucket", move || {
            ratelimit.try_wait().is_ok()
        }),
    ]
}

pub fn sliding_window(quota: Quota) -> Vec<Racer<'static>> {
    let tidegate = Limiter::new(Policy::sliding_window(stores::tidegate_quota(quota)));
    let rate_net = rate_net(Algorithm::SlidingWindow, quota);
    let one_key = stores::open(
        stores::TRYPEMA,
        Algorithm::SlidingWindow,
        quota,
        1,
        OneHotKey,
    );
    let mut racers = vec![
        racer("tidegate", "sliding window, strict, 10 slots", move || {
            tidegate.acquire(1).is_allowed()
        }),
        racer("rate-net", "direct sliding counter", move || {
            rate_net.check().is_allow()
        }),
    ];
    racers.extend(one_key);
    racers
}

fn rate_net(algorithm: Algorithm, quota: Quota) -> DirectLimiter {
    let quota =
        RateNetQuota::rate(quota.limit, quota.per).expect("a quota within rate-net's bounds");
    DirectLimiter::with_quota(quota).with_algorithm(stores::rate_net_algorithm(algorithm))
}

/// trypema has no limiter without keys.
struct OneHotKey;

impl Visit for OneHotKey {
    type Out = Racer<'static>;

    fn visit(self, store: impl Store) -> Racer<'static> {
        racer(
            stores::TRYPEMA,
            "absolute, 10 slots, one key: may overshoot",
            move || store.admit(&mut Default::default(), "everybody"),
        )
    }
}
