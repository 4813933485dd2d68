use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use throttlecrab::{PeriodicStore, RateLimiter};

use super::Store;
use crate::quota::Quota;

pub const NAME: &str = "throttlecrab";

/// Its store is for one thread, so a mutex protects it. It gets the number of keys in advance, and
/// cleans up rarely.
pub struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    quota: Quota,
}

pub fn open(quota: Quota, bound: usize) -> Throttlecrab {
    let store = PeriodicStore::builder()
        .capacity(bound)
        .cleanup_interval(Duration::from_hours(1))
        .build();
    Throttlecrab {
        limiter: Mutex::new(RateLimiter::new(store)),
        quota,
    }
}

impl Store for Throttlecrab {
    type Hand = ();

    #[inline]
    fn admit(&self, (): &mut (), key: &str) -> bool {
        let limit = i64::from(self.quota.limit);
        let period = self.quota.per.as_secs().cast_signed();
        // The caller reads the time, so it is not read under the lock.
        let now = SystemTime::now();
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        limiter
            .rate_limit(key, limit, limit, period, 1, now)
            .is_ok_and(|(allowed, _)| allowed)
    }

    fn held(&self) -> Option<u64> {
        None
    }
}
