//! What a limit answers.

use core::{hint::select_unpredictable, time::Duration};

/// Whether the work may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Go ahead now; the cost has been taken.
    Allow,
    /// Go ahead after this long; the cost has been taken (leaky bucket alone).
    Delay(Duration),
    /// Do not go ahead; nothing has been taken.
    Deny {
        /// Asking again after exactly this long, with no other traffic, is admitted, and one nanosecond earlier is not.
        /// `None` where no wait can be named: the cost can never fit, or (for permits without a longest hold) only
        /// another holder's release makes room.
        retry_after: Option<Duration>,
    },
}

/// `wait` of a denial that no wait can mend.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Delay,
    Deny,
}

/// The answer of one limit: the outcome, and where the caller stands.
///
/// A denial is an answer, not an error.
#[derive(Clone, Copy, Debug)]
#[must_use = "a decision that nobody reads limits nothing"]
pub struct Decision {
    verdict: Verdict,
    limit: u32,
    wait: u64,
    // `remaining` is `room / unit`, divided only when somebody asks: a division costs as much as the rest of a token
    // bucket's decision.
    room: u64,
    unit: u64,
    reset_after: u64,
}

impl Decision {
    /// Admitted now. `remaining` = `room / unit`; times in nanoseconds.
    #[inline]
    pub const fn allow(limit: u32, room: u64, unit: u64, reset_after: u64) -> Self {
        Self { verdict: Verdict::Allow, limit, wait: 0, room, unit, reset_after }
    }

    /// Admitted after `delay` nanoseconds.
    #[inline]
    pub const fn delayed(limit: u32, delay: u64, room: u64, unit: u64, reset_after: u64) -> Self {
        let verdict = if delay == 0 { Verdict::Allow } else { Verdict::Delay };
        Self { verdict, limit, wait: delay, room, unit, reset_after }
    }

    /// Denied; asking again after `retry_after` nanoseconds would be admitted.
    #[inline]
    pub const fn deny(limit: u32, retry_after: u64, room: u64, unit: u64, reset_after: u64) -> Self {
        Self { verdict: Verdict::Deny, limit, wait: retry_after, room, unit, reset_after }
    }

    /// Denied, and no wait can be named (see [`Outcome::Deny`]).
    #[inline]
    pub const fn deny_for_good(limit: u32, room: u64, unit: u64, reset_after: u64) -> Self {
        Self { verdict: Verdict::Deny, limit, wait: NEVER, room, unit, reset_after }
    }

    /// [`allow`](Self::allow) or [`deny`](Self::deny), without a branch on which.
    #[inline]
    pub(crate) fn allow_if(
        allowed: bool,
        limit: u32,
        retry_after: u64,
        room: u64,
        unit: u64,
        reset: u64,
    ) -> Self {
        let verdict = select_unpredictable(allowed, Verdict::Allow, Verdict::Deny);
        let wait = select_unpredictable(allowed, 0, retry_after);
        Self { verdict, limit, wait, room, unit, reset_after: reset }
    }

    /// Whether the work may go ahead, now or after [`delay`](Self::delay).
    #[must_use]
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self.verdict, Verdict::Deny)
    }

    /// Whether the work may not go ahead.
    #[must_use]
    #[inline]
    pub const fn is_denied(&self) -> bool {
        matches!(self.verdict, Verdict::Deny)
    }

    /// The outcome with its times.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self.verdict {
            Verdict::Allow => Outcome::Allow,
            Verdict::Delay => Outcome::Delay(Duration::from_nanos(self.wait)),
            Verdict::Deny => Outcome::Deny { retry_after: self.retry_after() },
        }
    }

    /// How long admitted work must wait before it starts; zero for [`Outcome::Allow`] and for denials.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self.verdict {
            Verdict::Delay => Duration::from_nanos(self.wait),
            _ => Duration::ZERO,
        }
    }

    /// For a denial, when asking again would be admitted (see [`Outcome::Deny`]); `None` for admitted work.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Deny if self.wait != NEVER => Some(Duration::from_nanos(self.wait)),
            _ => None,
        }
    }

    /// The limit that decided: the quota's, or the burst where there is one.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// The highest cost that would be admitted right after this decision, with no other traffic.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> u64 {
        match self.room.checked_div(self.unit) {
            Some(units) => units,
            None => 0,
        }
    }

    /// When, with no further traffic, the limit is as good as new. `u64::MAX` nanoseconds where no time can be named.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// [`reset_after`](Self::reset_after) in nanoseconds.
    #[must_use]
    pub const fn reset_after_nanos(&self) -> u64 {
        self.reset_after
    }

    /// Orders denials by how long they last: the index of the worst of several is the limit that bound.
    #[must_use]
    pub const fn severity(&self) -> u64 {
        match self.verdict {
            Verdict::Allow => 0,
            Verdict::Delay => self.wait / 2,
            Verdict::Deny => self.wait | 1 << 63,
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
