//! The result of asking a limit.

use core::{fmt, hint::select_unpredictable, ops::Deref, time::Duration};

use crate::write_duration;

/// Whether the work may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Go ahead now; the cost has been taken.
    Allow,
    /// Go ahead after this time; the cost has been taken. Leaky buckets return it, and limits
    /// with `oversize_wait` for a cost above the limit.
    Delay(Duration),
    /// Do not go ahead; nothing has been taken.
    Deny {
        /// Without other traffic, the same request is admitted after exactly this time, and denied
        /// one nanosecond earlier. `None` if no such time exists: the cost can never fit, or (for
        /// permits without a maximum hold time) only the release of a permit makes room.
        retry_after: Option<Duration>,
    },
}

/// Why work was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DenialReason {
    /// The quota is used up. Time makes room.
    Quota,
    /// The cost is above the limit or the burst. Waiting does not help.
    TooLarge,
    /// As many permits are held as the limit has. The end of other work makes room.
    InFlight,
    /// The key is blocked.
    Blocked,
    /// The configuration denies the key for good.
    DenyListed,
    /// The table of keys has no room for a new key.
    TableFull,
    /// The shared store did not reply, and the limit denies without it.
    StoreDown,
}

impl DenialReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Quota,
        Self::TooLarge,
        Self::InFlight,
        Self::Blocked,
        Self::DenyListed,
        Self::TableFull,
        Self::StoreDown,
    ];

    /// The name in answers, metrics and logs, such as `too-large`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::TooLarge => "too-large",
            Self::InFlight => "in-flight",
            Self::Blocked => "blocked",
            Self::DenyListed => "deny-listed",
            Self::TableFull => "table-full",
            Self::StoreDown => "store-down",
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `wait` of a denial for which waiting does not help.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecisionKind {
    Allow,
    Delay,
    Deny(DenialReason),
}

/// The state of a limit after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The quota's limit, or the burst if there is one.
    pub limit: u64,
    /// The room left, in parts of a unit: [`Decision::remaining`] is `room / unit`.
    pub room: u64,
    /// The parts of a unit; 1 if `room` counts units.
    pub unit: u64,
    /// The nanoseconds until the limit is unused again; `u64::MAX` if it never is.
    pub reset_after: u64,
}

/// The result of asking one limit: the outcome, and the state of the limit as the caller sees it.
///
/// A denial is a result, not an error. [`into_result`](Self::into_result) turns it into an error,
/// for callers that use `?`.
///
/// ```
/// use tidegate_core::{Algorithm, Denied, Nanos, Policy};
///
/// fn serve(policy: &Policy, state: &mut [u64], now: Nanos) -> Result<&'static str, Denied> {
///     policy.decide(state, now, 1).into_result()?;
///     Ok("served")
/// }
///
/// let policy: Policy = "1/1s".parse()?;
/// let mut state = vec![0; policy.words()];
/// assert_eq!(serve(&policy, &mut state, Nanos::ZERO)?, "served");
/// let denied = serve(&policy, &mut state, Nanos::ZERO).unwrap_err();
/// assert_eq!(denied.to_string(), "denied, 0 of 1 left, try again in 1s100ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The algorithms create decisions. The constructors are for tests, and for stores that decide
/// elsewhere with a translation of the algorithms.
#[derive(Clone, Copy, Debug)]
#[must_use = "an unread decision limits nothing"]
pub struct Decision {
    verdict: DecisionKind,
    limit: u64,
    wait: u64,
    // `remaining` is `room / unit`, divided only on request: a division costs as much as the rest
    // of a token bucket's decision.
    room: u64,
    unit: u64,
    reset_after: u64,
}

impl Decision {
    #[inline]
    const fn new(verdict: DecisionKind, wait: u64, standing: Standing) -> Self {
        let Standing {
            limit,
            room,
            unit,
            reset_after,
        } = standing;
        Self {
            verdict,
            limit,
            wait,
            room,
            unit,
            reset_after,
        }
    }

    /// Admitted now.
    #[inline]
    pub const fn allow(standing: Standing) -> Self {
        Self::new(DecisionKind::Allow, 0, standing)
    }

    /// Admitted after `delay` nanoseconds.
    #[inline]
    pub const fn delayed(standing: Standing, delay: u64) -> Self {
        Self::new(
            if delay == 0 {
                DecisionKind::Allow
            } else {
                DecisionKind::Delay
            },
            delay,
            standing,
        )
    }

    /// Denied; the request would be admitted after `retry_after` nanoseconds.
    #[inline]
    pub const fn deny(standing: Standing, retry_after: u64) -> Self {
        Self::new(
            DecisionKind::Deny(DenialReason::Quota),
            retry_after,
            standing,
        )
    }

    /// Denied without a retry time (see [`Outcome::Deny`]).
    #[inline]
    pub const fn deny_for_good(standing: Standing) -> Self {
        Self::new(DecisionKind::Deny(DenialReason::Quota), NEVER, standing)
    }

    /// Denied, because the cost is above the limit (see [`exceeds_limit`](Self::exceeds_limit)).
    #[inline]
    pub const fn too_large(standing: Standing) -> Self {
        Self::new(DecisionKind::Deny(DenialReason::TooLarge), NEVER, standing)
    }

    /// [`allow`](Self::allow) or [`deny`](Self::deny), chosen without a branch.
    #[inline]
    pub(crate) fn allow_if(allowed: bool, standing: Standing, retry_after: u64) -> Self {
        let verdict = select_unpredictable(
            allowed,
            DecisionKind::Allow,
            DecisionKind::Deny(DenialReason::Quota),
        );
        Self::new(
            verdict,
            select_unpredictable(allowed, 0, retry_after),
            standing,
        )
    }

    /// The same decision with another reason, if it denies. The constructors say
    /// [`DenialReason::Quota`] or [`DenialReason::TooLarge`].
    #[inline]
    pub const fn because(mut self, reason: DenialReason) -> Self {
        if let DecisionKind::Deny(_) = self.verdict {
            self.verdict = DecisionKind::Deny(reason);
        }
        self
    }

    /// Why the work was denied; `None` for admitted work.
    #[must_use]
    pub const fn reason(&self) -> Option<DenialReason> {
        match self.verdict {
            DecisionKind::Deny(reason) => Some(reason),
            DecisionKind::Allow | DecisionKind::Delay => None,
        }
    }

    /// The state of the limit after the decision.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        let &Self {
            limit,
            room,
            unit,
            reset_after,
            ..
        } = self;
        Standing {
            limit,
            room,
            unit,
            reset_after,
        }
    }

    /// Whether the work may proceed, now or after [`delay`](Self::delay).
    #[must_use]
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, DecisionKind::Allow | DecisionKind::Delay)
    }

    /// Whether the work was denied.
    #[must_use]
    #[inline]
    pub const fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Whether the work was denied because its cost is above the limit (or the burst). Waiting does
    /// not help; a smaller cost does.
    #[must_use]
    pub const fn exceeds_limit(&self) -> bool {
        matches!(self.verdict, DecisionKind::Deny(DenialReason::TooLarge))
    }

    /// Returns the decision if the work may proceed, now or after [`delay`](Self::delay).
    ///
    /// # Errors
    /// [`Denied`], which contains the decision, if the work was denied.
    pub const fn into_result(self) -> Result<Admission, Denied> {
        if self.is_allowed() {
            Ok(Admission(self))
        } else {
            Err(Denied(self))
        }
    }

    /// The outcome with its durations.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self.verdict {
            DecisionKind::Allow => Outcome::Allow,
            DecisionKind::Delay => Outcome::Delay(Duration::from_nanos(self.wait)),
            DecisionKind::Deny(_) => Outcome::Deny {
                retry_after: self.retry_after(),
            },
        }
    }

    /// How long admitted work must wait before it starts. Zero for [`Outcome::Allow`] and for
    /// denials.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self.verdict {
            DecisionKind::Delay => Duration::from_nanos(self.wait),
            _ => Duration::ZERO,
        }
    }

    /// For a denial, how long to wait before asking again (see [`Outcome::Deny`]). `None` for
    /// admitted work.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            DecisionKind::Deny(_) if self.wait != NEVER => Some(Duration::from_nanos(self.wait)),
            _ => None,
        }
    }

    /// The limit that decided: the quota's limit, or the burst if there is one.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The highest cost that would be admitted right after this decision, without other traffic.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> u64 {
        match self.room.checked_div(self.unit) {
            Some(units) => units,
            None => 0,
        }
    }

    /// How long until the limit is unused again, with no further traffic. `u64::MAX` nanoseconds if
    /// it never is.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// [`reset_after`](Self::reset_after) in nanoseconds.
    #[must_use]
    pub const fn reset_after_nanos(&self) -> u64 {
        self.reset_after
    }

    /// A sort key for denials: a denial that lasts longer has a higher value. Of several limits,
    /// the highest one decides.
    #[must_use]
    pub const fn severity(&self) -> u64 {
        match self.verdict {
            DecisionKind::Allow => 0,
            DecisionKind::Delay => self.wait / 2,
            DecisionKind::Deny(_) => self.wait | 1 << 63,
        }
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.verdict == other.verdict
            && self.limit == other.limit
            && self.wait == other.wait
            && self.remaining() == other.remaining()
            && self.reset_after == other.reset_after
    }
}

impl Eq for Decision {}

/// For logs: `allowed, 4 of 10 left`, `denied, 0 of 10 left, try again in 1s500ms`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, limit) = (self.remaining(), self.limit);
        match self.verdict {
            DecisionKind::Allow => write!(f, "allowed, {left} of {limit} left"),
            DecisionKind::Delay => {
                f.write_str("allowed after ")?;
                write_duration(f, self.delay())?;
                write!(f, ", {left} of {limit} left")
            }
            DecisionKind::Deny(DenialReason::TooLarge) => {
                write!(f, "denied, the cost is above the limit of {limit}")
            }
            DecisionKind::Deny(reason) => {
                match reason {
                    DenialReason::Quota | DenialReason::InFlight | DenialReason::TooLarge => {
                        write!(f, "denied, {left} of {limit} left")?;
                    }
                    DenialReason::Blocked => f.write_str("denied, the key is blocked")?,
                    DenialReason::DenyListed => {
                        f.write_str("denied, the key is on the deny list")?;
                    }
                    DenialReason::TableFull => f.write_str("denied, no room for another key")?,
                    DenialReason::StoreDown => {
                        f.write_str("denied, the shared store did not reply")?;
                    }
                }
                let Some(wait) = self.retry_after() else {
                    return Ok(());
                };
                f.write_str(", try again in ")?;
                write_duration(f, wait)
            }
        }
    }
}

/// A decision that admits: see [`Decision::into_result`]. Unlike a decision it may be ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission(Decision);

impl Deref for Admission {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error for a denial: see [`Decision::into_result`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(Decision);

impl Denied {
    /// The decision, always a denial.
    pub const fn decision(&self) -> Decision {
        self.0
    }

    /// How long to wait before asking again (see [`Outcome::Deny`]).
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}
