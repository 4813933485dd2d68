use tidegate::{KeyedLimiter, Policy, Quota as TidegateQuota};

use super::Store;
use crate::{quota::Quota, work::Algorithm};

pub const NAME: &str = "tidegate";

pub fn quota(quota: Quota) -> TidegateQuota {
    TidegateQuota::new(quota.limit.into(), quota.per).expect("a quota within Tidegate's bounds")
}

pub fn open(algorithm: Algorithm, of: Quota, bound: usize) -> KeyedLimiter {
    let policy = match algorithm {
        Algorithm::TokenBucket => Policy::token_bucket(quota(of)),
        Algorithm::SlidingWindow => Policy::sliding_window(quota(of)),
        Algorithm::SlidingCounter => Policy::sliding_counter(quota(of)),
    };
    KeyedLimiter::builder(policy)
        .max_keys(bound)
        .build()
        .expect("memory for the states")
}

impl Store for KeyedLimiter {
    type Hand = ();

    #[inline]
    fn admit(&self, (): &mut (), key: &str) -> bool {
        self.acquire(key, 1).is_allowed()
    }

    fn held(&self) -> Option<u64> {
        Some(self.stats().keys)
    }
}
