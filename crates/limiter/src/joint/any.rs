//! The first of several limits that admits.

use tidegate_core::{Clock, Decision, Estimate, Nanos};

use super::{Few, Request, States, time_of, with_all};
use crate::{table::Full, wait::Wakes};

/// The decision by the first of several limits that admits.
#[derive(Clone, Debug)]
#[must_use = "an unread decision limits nothing"]
pub struct AnyDecision {
    decisions: Few<Decision>,
    chosen: Option<usize>,
    estimate: Option<Estimate>,
}

impl AnyDecision {
    /// The index of the request that was admitted and took its cost; `None` if all were denied.
    #[must_use]
    pub const fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// What the chosen limit has taken, for [`KeyedAt::settle`](crate::KeyedAt::settle) or
    /// [`LimiterAt::settle`](crate::LimiterAt::settle). A reset or a change of another key leaves it as it
    /// is.
    #[must_use]
    pub const fn estimate(&self) -> Option<Estimate> {
        self.estimate
    }

    /// Each limit's own decision, in the order of the requests. Only the
    /// [chosen](Self::chosen) one has taken its cost; the others are what they would have been.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }
}

/// Takes the cost of the first request that is admitted, in one atomic step. If all are denied, none
/// is charged, and each limit has denied: that counts for its [`Penalty`](tidegate_core::Penalty).
///
/// Two requests for the same key of the same limiter are decided each by itself.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Limiter, Nanos, Policy, Request, acquire_any_at};
///
/// let steady = Limiter::new(Policy::token_bucket("1/1s".parse()?));
/// let reserve = Limiter::new(Policy::fixed_window("2/1h".parse()?));
/// let requests = [Request::unkeyed(&steady, 1), Request::unkeyed(&reserve, 1)];
/// let chosen = |at| Ok::<_, Box<dyn std::error::Error>>(acquire_any_at(&requests, at)?.chosen());
/// let now = Nanos::from_secs(7);
/// for expected in [Some(0), Some(1), Some(1), None] {
///     assert_eq!(chosen(now)?, expected);
/// }
/// assert_eq!(chosen(Nanos::from_secs(8))?, Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// As [`acquire_all_at`](super::acquire_all_at).
///
/// # Errors
/// The same as [`acquire_all_at`](super::acquire_all_at).
pub fn acquire_any_at<C: ?Sized>(
    requests: &[Request<'_, C>],
    now: Nanos,
) -> Result<AnyDecision, Full> {
    with_all(requests, now, false, |states, blocked, wakes| {
        states.decide_any(blocked, now, wakes)
    })
}

/// [`acquire_any_at`] at the current time of the first limiter's clock.
///
/// # Errors
/// The same as [`acquire_all_at`](super::acquire_all_at).
pub fn acquire_any<C: Clock + ?Sized>(requests: &[Request<'_, C>]) -> Result<AnyDecision, Full> {
    acquire_any_at(requests, time_of(requests))
}

impl<C: ?Sized> States<'_, '_, C> {
    /// Takes the first request that is admitted.
    fn decide_any(
        &mut self,
        blocked: &[Option<Decision>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> AnyDecision {
        for (sum, request) in self.sums.iter_mut().zip(self.requests) {
            sum.cost = request.cost();
        }
        let mut decisions = self.answers(blocked, &[], now, wakes);
        let chosen = decisions.iter().position(Decision::is_allowed);
        match chosen {
            Some(at) => self.take(at, now),
            None => self.count_denials(blocked, &mut decisions, now, wakes),
        }
        let estimate = chosen.map(|at| self.note(at, now));
        AnyDecision {
            decisions,
            chosen,
            estimate,
        }
    }
}
