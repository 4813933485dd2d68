//! Which limits take units back: those that count requests in flight, and those that delay.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Parameters, Policy};
use tidegate_limiter::Timer;

use crate::limit::{Limit, LimitKind};

/// When a policy takes units back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returns {
    /// When the request ends: the policy counts requests in flight.
    AtTheEnd,
    /// If the request is not served after all: the policy delays.
    Unserved,
    /// If another limit refuses the request.
    Refused,
}

impl Returns {
    pub(crate) fn of(policy: &Policy) -> Self {
        match policy.parameters() {
            Parameters::Concurrency { .. } => Self::AtTheEnd,
            Parameters::LeakyBucket { .. } => Self::Unserved,
            _ if policy.waits_for_oversize() => Self::Unserved,
            _ => Self::Refused,
        }
    }
}

/// When the policy of a rule's own limit takes units back, as far as it was looked at last: the
/// policy's version plus one, times four, and the position of the [`Returns`].
#[derive(Default)]
pub(crate) struct KnownReturns(AtomicU64);

impl KnownReturns {
    /// Whether the policy that was looked at last takes back units of a served request, or of one
    /// that gives up.
    #[inline]
    pub(crate) fn took_back(&self) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last != 0 && last & 3 != Returns::Refused as u64
    }

    /// When `limit` takes back what a request for this key has taken. `is_own`: it is the rule's
    /// own limit.
    #[inline]
    pub(crate) fn of<C: Timer + 'static>(
        &self,
        limit: &Limit<C>,
        is_own: bool,
        key: &[u8],
    ) -> Returns {
        if let LimitKind::Keyed(limiter) = &limit.0
            && let Some(own) = limiter.override_of(key)
        {
            return Returns::of(&own);
        }
        // The versions of a limit that was chosen for one request are not the rule's.
        let version = if is_own { limit.policy_version() } else { None };
        let Some(version) = version else {
            return Returns::of(&limit.policy());
        };
        // Relaxed is enough, here and below: the word holds all that belongs together.
        let last = self.0.load(Ordering::Relaxed);
        if last >> 2 == version + 1 {
            return match last & 3 {
                0 => Returns::AtTheEnd,
                1 => Returns::Unserved,
                _ => Returns::Refused,
            };
        }
        // After the version: if the policy changes in between, it is looked at again.
        let returns = Returns::of(&limit.policy());
        self.0
            .store((version + 1) << 2 | returns as u64, Ordering::Relaxed);
        returns
    }
}
