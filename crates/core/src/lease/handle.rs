//! One node's share of one limit.

use std::fmt;

use crate::{Decision, Nanos, Standing};

use super::{
    Answer, Grant, Request, Terms,
    allotment::{Allotment, Generation, Spend},
    state::LeaseState,
    sync::{Mutex, MutexGuard},
};

/// The units that one node holds of one limit; threads share it.
///
/// A lease does no I/O and reads no clock. `now` is the time of the node's own monotonic clock,
/// with any origin. Callers [`ask`](Self::ask) the lease. While the node holds enough units, the
/// answer takes one atomic operation. Otherwise the caller (or the task that drives the lease)
/// sends the [`Request`] to the authority, which answers with [`Terms::serve`], and passes the
/// [`Grant`] to [`granted`](Self::granted).
///
/// See the [module](crate::lease) for an example and for the guarantees.
pub struct Lease {
    allotment: Allotment,
    terms: Terms,
    limit: u64,
    state: Mutex<LeaseState>,
}

/// Units that were [taken](Lease::take) from a lease.
#[derive(Debug)]
#[must_use = "what is not used must be put back"]
pub struct Taken {
    /// The decision, which is always an admission.
    pub decision: Decision,
    /// A request to send in the background, if there is one.
    pub renew: Option<Request>,
    cost: u64,
    of: Generation,
}

impl Lease {
    /// A lease that holds nothing: the first request goes to the authority.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            allotment: Allotment::default(),
            terms,
            limit: terms.limit(),
            state: Mutex::new(LeaseState::default()),
        }
    }

    /// The terms that the node and the authority share.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Decides on `cost` from the units that the node holds, or returns a request for the
    /// authority.
    ///
    /// For a decision made here, `remaining` is the number of units that the node still holds plus
    /// what the shared state had left when they were taken. Other nodes may have taken some of that
    /// since. A cost of 0 is a peek.
    #[inline]
    pub fn ask(&self, cost: u64, now: Nanos) -> Answer {
        match self.ask_quickly(cost, now) {
            Some((decision, None)) => Answer::Decided(decision),
            Some((decision, Some(request))) => Answer::Renew(decision, request),
            None => self.ask_slowly(cost, now),
        }
    }

    /// Decides like [`ask`](Self::ask) if one atomic operation suffices. Returns the decision, and
    /// the request to send in the background, if there is one. `None` means that nothing was
    /// decided or changed; then call `ask`.
    #[inline]
    #[must_use = "`None` means that nothing was decided"]
    pub fn ask_quickly(&self, cost: u64, now: Nanos) -> Option<(Decision, Option<Request>)> {
        match self.allotment.spend(self.limit, cost, now) {
            Spend::Spent {
                decision,
                low: false,
                ..
            } => Some((decision, None)),
            Spend::Spent {
                decision,
                low: true,
                ..
            } => Some((decision, self.spent_to_the_mark(now))),
            Spend::Short => self
                .allotment
                .refusal(self.limit, cost, now)
                .map(|denied| (denied, None)),
        }
    }

    /// Takes `cost` from the units that the node holds, for a decision over several leases that
    /// must all admit. If one of them does not, call [`put_back`](Self::put_back) for the others.
    /// In between, other callers see fewer units, and may ask the authority.
    ///
    /// # Errors
    /// If the node holds too few units. The error contains a request to send if it is worth asking
    /// for more units. It is for the background: the decision must be made in another way.
    pub fn take(&self, cost: u64, now: Nanos) -> Result<Taken, Option<Request>> {
        match self.allotment.spend(self.limit, cost, now) {
            Spend::Spent { decision, low, of } => {
                let renew = if low {
                    self.spent_to_the_mark(now)
                } else {
                    None
                };
                Ok(Taken {
                    decision,
                    renew,
                    cost,
                    of,
                })
            }
            Spend::Short => self.take_slowly(cost, now),
        }
    }

    fn take_slowly(&self, cost: u64, now: Nanos) -> Result<Taken, Option<Request>> {
        if cost > self.limit {
            return Err(None);
        }
        let mut state = self.state();
        if let Some((decision, renew, of)) = self.spend_reserves(&mut state, cost, now) {
            return Ok(Taken {
                decision,
                renew,
                cost,
                of,
            });
        }
        Err(state.ahead_for(&self.allotment, &self.terms, cost, now))
    }

    /// Spends from the current allotment, which another thread may just have opened, or from the
    /// spare one.
    fn spend_reserves(
        &self,
        state: &mut LeaseState,
        cost: u64,
        now: Nanos,
    ) -> Option<(Decision, Option<Request>, Generation)> {
        loop {
            if let Spend::Spent { decision, low, of } = self.allotment.spend(self.limit, cost, now)
            {
                state.look(&self.allotment, &self.terms, now);
                let renewal = if low {
                    state.renewal(&self.terms, now)
                } else {
                    None
                };
                return Some((decision, renewal, of));
            }
            state.look(&self.allotment, &self.terms, now);
            state.end_if_over(&self.allotment, &self.terms, now);
            if !state.open_spare(&self.allotment, &self.terms, now) {
                return None;
            }
        }
    }

    /// Puts back units that were taken. If the allotment has ended since (it has expired, another
    /// one was opened, or a denial was written to it), the units stay charged, as if they had been
    /// used.
    #[allow(clippy::needless_pass_by_value)] // What was put back is gone.
    pub fn put_back(&self, taken: Taken) {
        self.allotment.put_back(taken.of, taken.cost);
    }

    #[cold]
    #[inline(never)]
    fn spent_to_the_mark(&self, now: Nanos) -> Option<Request> {
        let mut state = self.state();
        state.look(&self.allotment, &self.terms, now);
        state.renewal(&self.terms, now)
    }

    #[cold]
    #[inline(never)]
    fn ask_slowly(&self, cost: u64, now: Nanos) -> Answer {
        if cost > self.terms.most() {
            let room = self.allotment.left().into();
            let standing = Standing {
                limit: self.limit,
                room,
                unit: 1,
                reset_after: 0,
            };
            return Answer::Decided(Decision::too_large(standing));
        }
        let mut state = self.state();
        if cost > self.limit {
            // Only the authority can decide on it.
            return match state.refusal(&self.allotment, &self.terms, cost, now) {
                Some(denied) => Answer::Decided(denied),
                None => Answer::Refill(state.request_alone(cost, now)),
            };
        }
        if let Some((decision, renewal, _)) = self.spend_reserves(&mut state, cost, now) {
            return renewal.map_or(Answer::Decided(decision), |request| {
                Answer::Renew(decision, request)
            });
        }
        if let Some(denied) = state.refusal(&self.allotment, &self.terms, cost, now) {
            return Answer::Decided(denied);
        }
        if let Some(denied) = state.probe(&self.allotment, &self.terms, cost, now) {
            return Answer::Decided(denied);
        }
        state.asked_for(cost);
        Answer::Refill(state.request(&self.terms, cost, now))
    }

    /// The requests of a caller that has more costs to ask for after that of `first`, a
    /// [`Refill`](Answer::Refill). Send them together: the authority decides on them in this order.
    /// The last one has what is wanted ahead, so that no cost is denied for it.
    #[must_use = "each request must be sent, or recorded as failed"]
    pub fn in_turn(&self, first: Request, more: &[u64]) -> Vec<Request> {
        self.state().in_turn(first, more)
    }

    /// Processes the authority's answer. Returns the decision for the caller who waits for it, if
    /// there is one.
    #[must_use = "the decision is the waiting caller's"]
    pub fn granted(&self, request: Request, grant: &Grant, now: Nanos) -> Decision {
        self.state()
            .granted(&self.allotment, &self.terms, &request, grant, now);
        grant.decision
    }

    /// Records that no answer came, so that the authority may or may not have seen the request. The
    /// units that it may have taken are not used; they stay charged until the algorithm forgets
    /// them. Until the next answer, each caller gets a separate request for the authority.
    pub fn failed(&self, request: Request) {
        self.state().failed(&self.allotment, &request);
    }

    /// A request that no caller waits for, if one is due: it returns units that are no longer
    /// needed, reports use, or renews a small allotment. Call it about every quarter of the
    /// [slack](Terms::slack), or whenever something is sent to the authority anyway.
    pub fn returning(&self, now: Nanos) -> Option<Request> {
        self.state().idle(&self.allotment, &self.terms, now)
    }

    /// Whether the lease holds nothing and has nothing to send. Then [`returning`](Self::returning)
    /// need not be called before the next [`ask`](Self::ask).
    pub fn is_idle(&self, now: Nanos) -> bool {
        let mut state = self.state();
        state.look(&self.allotment, &self.terms, now);
        state.is_idle(&self.terms)
    }

    /// Returns everything, because the node leaves. The authority decides all later requests.
    pub fn close(&self, now: Nanos) -> Vec<Request> {
        let mut state = self.state();
        state.close(&self.allotment, &self.terms, now);
        std::iter::from_fn(|| state.idle(&self.allotment, &self.terms, now)).collect()
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        // Nothing panics under the lock; even if it did, an inexact demand would be no reason to
        // fail.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("terms", &self.terms)
            .field("left", &self.allotment.left())
            .finish_non_exhaustive()
    }
}
