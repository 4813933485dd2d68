use std::time::Instant;

use clock_lib::{Clock, Monotonic, SystemClock, Wall};
use rate_net::{Algorithm as RateNetAlgorithm, Eviction, RateLimiter};

use super::Store;
use crate::{quota::Quota, work::Algorithm};

pub const NAME: &str = "rate-net";
/// The same, given the clock that Tidegate and governor come with: what of a difference is the
/// clock's.
pub const ON_TSC: &str = "rate-net-tsc";

/// rate-net's algorithm of this name; its sliding counter where it has none.
pub fn algorithm(algorithm: Algorithm) -> RateNetAlgorithm {
    match algorithm {
        Algorithm::TokenBucket => RateNetAlgorithm::TokenBucket,
        Algorithm::SlidingWindow | Algorithm::SlidingCounter => {
            RateNetAlgorithm::SlidingWindowCounter
        }
    }
}

pub struct RateNet<C: Clock + Clone>(RateLimiter<C>);

impl RateNet<SystemClock> {
    pub fn open(algorithm: Algorithm, quota: Quota, bound: usize) -> Self {
        Self::on(SystemClock::new(), algorithm, quota, bound)
    }
}

impl<C: Clock + Clone> RateNet<C> {
    pub fn on(clock: C, of: Algorithm, quota: Quota, bound: usize) -> Self {
        let builder = RateLimiter::builder()
            .algorithm(algorithm(of))
            .quota(quota.limit, quota.per)
            .eviction(Eviction::capacity(bound))
            .clock(clock);
        Self(
            builder
                .try_build()
                .expect("a quota within rate-net's bounds"),
        )
    }
}

impl<C: Clock + Clone + Send + Sync + 'static> Store for RateNet<C> {
    type Hand = ();

    #[inline]
    fn admit(&self, (): &mut (), key: &str) -> bool {
        self.0.check_bytes(key).is_allow()
    }

    fn held(&self) -> Option<u64> {
        Some(self.0.tracked_keys() as u64)
    }
}

/// rate-net's kind of time, from the processor's time stamp counter.
#[derive(Clone)]
pub struct TscClock {
    source: quanta::Clock,
    start: quanta::Instant,
    origin: Instant,
}

impl TscClock {
    pub fn new() -> Self {
        let source = quanta::Clock::new();
        Self {
            start: source.now(),
            source,
            origin: Instant::now(),
        }
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Monotonic {
        Monotonic::from(self.origin + self.source.now().duration_since(self.start))
    }

    fn wall(&self) -> Wall {
        Wall::now()
    }
}
