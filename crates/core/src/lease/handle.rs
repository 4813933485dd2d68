//! A node's share of one limit.

use std::fmt;

use crate::{Decision, Nanos};

use super::{
    Answer, Grant, Request, Terms,
    piece::{Generation, Piece, Spend},
    state::LeaseState,
    sync::{Mutex, MutexGuard},
};

/// What one node holds of one limit; threads share it.
///
/// It does no I/O and reads no clock. `now` is the node's own monotonic clock, whatever it counts from. A caller asks;
/// while the piece lasts, the answer is one atomic operation. Otherwise the caller (or whoever drives the lease) sends
/// the [`Request`] to the authority, which answers by [`Terms::serve`], and hands the [`Grant`] to
/// [`granted`](Self::granted).
///
/// See the [crate's page](crate) for an example, and for what is promised.
pub struct Lease {
    piece: Piece,
    terms: Terms,
    limit: u32,
    state: Mutex<LeaseState>,
}

/// What was [taken](Lease::take) from a lease's piece.
#[derive(Debug)]
#[must_use = "what is not used must be put back"]
pub struct Taken {
    /// The decision: it admits.
    pub decision: Decision,
    /// What to send meanwhile; nobody waits for it.
    pub renew: Option<Request>,
    cost: u32,
    of: Generation,
}

impl Lease {
    /// Nothing taken yet: the first request goes to the authority.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            piece: Piece::default(),
            terms,
            limit: terms.limit(),
            state: Mutex::new(LeaseState::default()),
        }
    }

    /// What was agreed on.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Decides on `cost` from the piece, or says what to ask the authority.
    ///
    /// Of a decision made here, `remaining` is what the piece has left and what the shared state had left when the piece
    /// was taken; others may have taken that since. A cost of 0 is a peek.
    #[inline]
    pub fn ask(&self, cost: u32, now: Nanos) -> Answer {
        match self.piece.spend(self.limit, cost, now) {
            Spend::Spent { decision, low: false, .. } => Answer::Decided(decision),
            Spend::Spent { decision, low: true, .. } => self.spent_to_the_mark(decision, now),
            Spend::Short => match self.piece.refusal(self.limit, cost, now) {
                Some(denied) => Answer::Decided(denied),
                None => self.ask_slowly(cost, now),
            },
        }
    }

    /// Takes `cost` from the piece: for a decision over several leases, of which all must admit. Where one of them does not,
    /// [`put_back`](Self::put_back) what the others gave. Meanwhile others find the piece smaller than it might turn out to
    /// be, and may ask the authority.
    ///
    /// # Errors
    /// When the piece has too little; with a request to be sent, where another piece is worth asking for. Nobody waits for
    /// it: the decision is made otherwise.
    pub fn take(&self, cost: u32, now: Nanos) -> Result<Taken, Option<Request>> {
        match self.piece.spend(self.limit, cost, now) {
            Spend::Spent { decision, low, of } => {
                let renew = if low { self.spent_to_the_mark(decision, now).request() } else { None };
                Ok(Taken { decision, renew, cost, of })
            }
            Spend::Short => self.take_slowly(cost, now),
        }
    }

    fn take_slowly(&self, cost: u32, now: Nanos) -> Result<Taken, Option<Request>> {
        if cost > self.limit {
            return Err(None);
        }
        let mut state = self.state();
        if let Some((decision, renew, of)) = self.spend_reserves(&mut state, cost, now) {
            return Ok(Taken { decision, renew, cost, of });
        }
        Err(state.ahead_for(&self.piece, &self.terms, cost, now))
    }

    /// Spends from the piece, which another thread may have opened meanwhile, or from the one in reserve.
    fn spend_reserves(
        &self,
        state: &mut LeaseState,
        cost: u32,
        now: Nanos,
    ) -> Option<(Decision, Option<Request>, Generation)> {
        loop {
            if let Spend::Spent { decision, low, of } = self.piece.spend(self.limit, cost, now) {
                state.look(&self.piece, &self.terms, now);
                let renewal = if low { state.renewal(&self.terms, now) } else { None };
                return Some((decision, renewal, of));
            }
            state.look(&self.piece, &self.terms, now);
            state.end_if_over(&self.piece, &self.terms, now);
            if !state.open_spare(&self.piece, &self.terms, now) {
                return None;
            }
        }
    }

    /// Puts back what was taken. Where the piece has ended meanwhile (its time is over, another was opened, or a denial was
    /// written to it) it stays charged, as if it had been used.
    #[allow(clippy::needless_pass_by_value)] // What was put back is gone.
    pub fn put_back(&self, taken: Taken) {
        self.piece.put_back(taken.of, taken.cost);
    }

    #[cold]
    #[inline(never)]
    fn spent_to_the_mark(&self, decision: Decision, now: Nanos) -> Answer {
        let mut state = self.state();
        state.look(&self.piece, &self.terms, now);
        match state.renewal(&self.terms, now) {
            Some(request) => Answer::Renew(decision, request),
            None => Answer::Decided(decision),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask_slowly(&self, cost: u32, now: Nanos) -> Answer {
        if cost > self.limit {
            return Answer::Decided(Decision::too_large(self.limit, self.piece.left().into(), 1, 0));
        }
        let mut state = self.state();
        if let Some((decision, renewal, _)) = self.spend_reserves(&mut state, cost, now) {
            return renewal.map_or(Answer::Decided(decision), |request| Answer::Renew(decision, request));
        }
        if let Some(denied) = state.refusal(&self.piece, &self.terms, cost, now) {
            return Answer::Decided(denied);
        }
        if let Some(denied) = state.probe(&self.piece, &self.terms, cost, now) {
            return Answer::Decided(denied);
        }
        state.asked_for(cost);
        Answer::Refill(state.request(&self.terms, cost, now))
    }

    /// Takes in the authority's answer; returns the decision for the caller who waits for it, if one does.
    #[must_use = "the decision is the waiting caller's"]
    pub fn granted(&self, request: Request, grant: &Grant, now: Nanos) -> Decision {
        self.state().granted(&self.piece, &self.terms, &request, grant, now);
        grant.decision
    }

    /// No answer came, and nobody knows whether the authority has seen the request. What it may have taken is not used;
    /// it stays charged until the algorithm forgets it. Until an answer comes again callers are told to ask the authority, each
    /// for itself.
    pub fn failed(&self, request: Request) {
        self.state().failed(&self.piece, &request);
    }

    /// What there is to say without anybody asking: units that are no longer needed go back, a report is due. Call it
    /// about every quarter of the [slack](Terms::slack), or whenever something is sent to the authority anyway.
    pub fn returning(&self, now: Nanos) -> Option<Request> {
        self.state().idle(&self.piece, &self.terms, now)
    }

    /// Whether it holds nothing and has nothing to say: nobody need call [`returning`](Self::returning) before the next
    /// [`ask`](Self::ask).
    pub fn is_idle(&self, now: Nanos) -> bool {
        let mut state = self.state();
        state.look(&self.piece, &self.terms, now);
        state.is_idle(&self.terms)
    }

    /// Gives back everything: the node leaves. Whoever still asks is decided by the authority.
    pub fn close(&self, now: Nanos) -> Vec<Request> {
        let mut state = self.state();
        state.close(&self.piece, &self.terms, now);
        std::iter::from_fn(|| state.idle(&self.piece, &self.terms, now)).collect()
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        // Nothing under the lock panics; were it otherwise, a half-counted demand would be no reason to fail.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("terms", &self.terms)
            .field("left", &self.piece.left())
            .finish_non_exhaustive()
    }
}
