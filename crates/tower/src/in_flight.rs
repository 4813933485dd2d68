//! Which limits count requests in flight.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Parameters, Policy};
use tidegate_limiter::Timer;

use crate::limit::{Limit, LimitKind};

/// Whether the policy counts requests in flight, so that units are given back.
pub(crate) fn is_in_flight(policy: &Policy) -> bool {
    matches!(policy.parameters(), Parameters::Concurrency { .. })
}

/// Whether the policy of a rule's own limit counts requests in flight, as far as it was looked at
/// last: the policy's version plus one, times two, and one if it does.
#[derive(Default)]
pub(crate) struct InFlight(AtomicU64);

impl InFlight {
    /// Whether a request for this key holds units of `limit` until it ends. `is_own`: it is the
    /// rule's own limit.
    #[inline]
    pub(crate) fn of<C: Timer + 'static>(
        &self,
        limit: &Limit<C>,
        is_own: bool,
        key: &[u8],
    ) -> bool {
        if let LimitKind::Keyed(limiter) = &limit.0
            && let Some(own) = limiter.override_of(key)
        {
            return is_in_flight(&own);
        }
        // The versions of a limit that was chosen for one request are not the rule's.
        let version = if is_own { limit.policy_version() } else { None };
        let Some(version) = version else {
            return is_in_flight(&limit.policy());
        };
        // Relaxed is enough, here and below: the word holds all that belongs together.
        let last = self.0.load(Ordering::Relaxed);
        if last >> 1 == version + 1 {
            return last & 1 == 1;
        }
        // After the version: if the policy changes in between, it is looked at again.
        let is = is_in_flight(&limit.policy());
        self.0
            .store((version + 1) << 1 | u64::from(is), Ordering::Relaxed);
        is
    }
}
