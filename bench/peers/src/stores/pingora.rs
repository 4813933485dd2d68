use pingora_limits::rate::Rate;

use super::Store;
use crate::quota::Quota;

pub const NAME: &str = "pingora-limits";

/// Counts in a sketch of a fixed size, and starts again in each interval: an estimate that errs
/// upwards, of a fixed window. The other stores here promise more.
pub struct Pingora {
    rate: Rate,
    limit: isize,
}

pub fn open(quota: Quota) -> Pingora {
    Pingora {
        rate: Rate::new(quota.per),
        limit: (quota.limit as usize).cast_signed(),
    }
}

impl Store for Pingora {
    type Hand = ();

    #[inline]
    fn admit(&self, (): &mut (), key: &str) -> bool {
        self.rate.observe(&key, 1) <= self.limit
    }

    fn held(&self) -> Option<u64> {
        None
    }
}
