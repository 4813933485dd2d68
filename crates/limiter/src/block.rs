//! Denials until a time, for blocked keys and for new keys without room.

use tidegate_core::{Algorithm, Decision, DenialReason, Nanos, Policy, Standing};

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Until(pub Nanos);

impl Until {
    /// No time: the block lasts until it is lifted.
    pub const UNBLOCKED: Self = Self(Nanos::MAX);
}

/// A denial until a time that has not passed.
fn denied(policy: &Policy, until: Nanos, now: Nanos) -> Decision {
    let standing = |reset_after| Standing {
        limit: policy.limit(),
        room: 0,
        unit: 1,
        reset_after,
    };
    match until.saturating_since(now).get() {
        _ if until == Nanos::MAX => Decision::deny_for_good(standing(u64::MAX)),
        left => Decision::deny(standing(left), left),
    }
}

/// The denial of a key that is blocked until a time.
pub(crate) fn denied_until(policy: &Policy, until: Nanos, now: Nanos) -> Option<Decision> {
    (until > now).then(|| denied(policy, until, now).because(DenialReason::Blocked))
}

/// The denial of a new key for which the table has no room until a time
/// ([`WhenFull::Deny`](crate::WhenFull::Deny)).
pub(crate) fn refused_until(policy: &Policy, until: Nanos, now: Nanos) -> Decision {
    let until = until.max(now.saturating_add(Nanos::new(1)));
    denied(policy, until, now).because(DenialReason::TableFull)
}
