use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};

use super::Store;
use crate::quota::Quota;

/// Keys that live elsewhere, for ever: `&'static str`.
pub const BORROWED: &str = "governor-str";
/// Keys that the limiter owns.
pub const OWNED: &str = "governor-string";

pub fn quota(quota: Quota) -> GovernorQuota {
    let limit = NonZeroU32::new(quota.limit).expect("a limit above 0");
    let interval = quota.per / quota.limit;
    GovernorQuota::with_period(interval)
        .expect("an interval above 0")
        .allow_burst(limit)
}

/// governor wants the key in the form that it stores, and clones it for each decision: for
/// `&'static str` a copy of two words, for which all keys must live as long as the limiter.
pub struct Borrowed(DefaultKeyedRateLimiter<&'static str>);

impl Borrowed {
    pub fn open(of: Quota) -> Self {
        Self(RateLimiter::keyed(quota(of)))
    }

    #[inline]
    pub fn admit(&self, key: &'static str) -> bool {
        self.0.check_key(&key).is_ok()
    }
}

/// For `String` the clone is an allocation. The hand saves the caller a second one.
pub struct Owned(DefaultKeyedRateLimiter<String>);

impl Owned {
    pub fn open(of: Quota) -> Self {
        Self(RateLimiter::keyed(quota(of)))
    }
}

impl Store for Owned {
    type Hand = String;

    #[inline]
    fn admit(&self, hand: &mut String, key: &str) -> bool {
        hand.clear();
        hand.push_str(key);
        self.0.check_key(hand).is_ok()
    }

    fn held(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}
