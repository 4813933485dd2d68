//! Denials until a time, for blocked keys and for new keys without room.

use tidegate_core::{Algorithm, Decision, DenialReason, Nanos, Policy, Standing};

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Until(pub Nanos);

impl Until {
    /// No time: the block lasts until it is lifted.
    pub const UNBLOCKED: Self = Self(Nanos::MAX);
}

/// The denial of a key that is blocked until a time.
pub(crate) fn denied_until(policy: &Policy, until: Nanos, now: Nanos) -> Option<Decision> {
    let limit = policy.limit();
    let left = until.saturating_since(now).get();
    let denied = match left {
        0 => return None,
        _ if until == Nanos::MAX => {
            Decision::deny_for_good(Standing { limit, room: 0, unit: 1, reset_after: u64::MAX })
        }
        _ => Decision::deny(Standing { limit, room: 0, unit: 1, reset_after: left }, left),
    };
    Some(denied.because(DenialReason::Blocked))
}

/// The denial of a new key for which the table has no room until a time ([`WhenFull::Deny`](crate::WhenFull::Deny)).
pub(crate) fn refused_until(policy: &Policy, until: Nanos, now: Nanos) -> Decision {
    let until = until.max(now.saturating_add(Nanos::new(1)));
    // The time is later than now, so there is a denial.
    let denied = denied_until(policy, until, now).unwrap_or_else(|| {
        Decision::deny(Standing { limit: policy.limit(), room: 0, unit: 1, reset_after: 1 }, 1)
    });
    denied.because(DenialReason::TableFull)
}
