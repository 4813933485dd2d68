use std::sync::Arc;

use trypema::{
    BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize,
    local::LocalRateLimiterProvider,
};

use super::Store;
use crate::quota::Quota;

pub const NAME: &str = "trypema";

/// Ten slots in the window, as Tidegate's sliding window has. Without the thread that clears away
/// keys not seen for ten minutes, which would find nothing.
pub struct Trypema {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

pub fn open(quota: Quota) -> Trypema {
    let slot =
        u64::try_from(quota.per.as_millis() / 10).expect("a window of less than 584 million years");
    let provider = LocalRateLimiterProvider::builder()
        .window_size(WindowSize::seconds_or_panic(quota.per.as_secs()))
        .bucket_size(BucketSize::milliseconds_or_panic(slot))
        .disable_cleanup()
        .build()
        .expect("slots shorter than the window");
    let rate = RateLimit::per_second_or_panic(f64::from(quota.limit) / quota.per.as_secs_f64());
    Trypema { provider, rate }
}

impl Store for Trypema {
    type Hand = ();

    #[inline]
    fn admit(&self, (): &mut (), key: &str) -> bool {
        matches!(
            self.provider.absolute().inc(key, &self.rate, 1),
            RateLimitDecision::Allowed
        )
    }

    fn held(&self) -> Option<u64> {
        None
    }
}
