//! The short path of a joint decision: all keys are known, and nothing but the general policies
//! concerns them.
//!
//! It locks only the bucket in which it finds a key, and in the order of the requests. It never
//! waits for a lock while it holds one, so no order of locks is needed. If it does not get them
//! all, it gives them back, and the long path decides.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Decision, Estimate, Nanos, Policy, cell::Backoff};

use super::{Few, Request};
use crate::{
    eras::Site,
    keyed::NearKey,
    limiter::NOTHING,
    table::{NotNear, Tag},
    version::LockedVersion,
};

/// How often the locks are tried while other threads hold some of them.
const TRIES: usize = if cfg!(loom) { 1 } else { 4 };

/// A request's state, locked.
struct NearState<'a> {
    held: Held<'a>,
    site: Site<'a>,
    by: Option<&'a Policy>,
    cost: u64,
    /// A state of one word, with the cost taken.
    taken: u64,
}

enum Held<'a> {
    Key(NearKey<'a>),
    One(LockedVersion<'a>),
}

/// Decides as [`acquire_all_at`](super::acquire_all_at), and adds what was taken to `estimates`.
/// Returns false, with nothing changed, if the long path must decide.
pub(super) fn decide<C: ?Sized>(
    requests: &[Request<'_, C>],
    tags: &[Option<Tag>],
    now: Nanos,
    decisions: &mut Few<Decision>,
    mut estimates: Option<&mut Vec<Estimate>>,
) -> bool {
    let mut backoff = Backoff::new();
    for _ in 0..TRIES {
        match attempt(requests, tags, now, decisions, estimates.as_deref_mut()) {
            Ok(()) => return true,
            Err(NotNear::Other) => break,
            Err(NotNear::Busy) => {
                decisions.clear();
                backoff.wait();
            }
        }
    }
    decisions.clear();
    false
}

fn attempt<C: ?Sized>(
    requests: &[Request<'_, C>],
    tags: &[Option<Tag>],
    now: Nanos,
    decisions: &mut Few<Decision>,
    estimates: Option<&mut Vec<Estimate>>,
) -> Result<(), NotNear> {
    let mut states: SmallVec<[NearState<'_>; 6]> = SmallVec::new();
    let mut is_allowed = true;
    for (at, (request, tag)) in requests.iter().zip(tags).enumerate() {
        let locked = NearState::lock(request, *tag, now).map_err(|why| {
            // It may be this decision that holds the state.
            let is_own = |other: &Request<'_, C>| other.address() == request.address();
            if requests.iter().take(at).any(is_own) {
                NotNear::Other
            } else {
                why
            }
        });
        states.push(locked?);
        let decision = states
            .last_mut()
            .and_then(|state| state.answer(now))
            .ok_or(NotNear::Other)?;
        is_allowed &= decision.is_allowed();
        decisions.push(decision);
    }
    if is_allowed {
        for state in &mut states {
            state.take(now);
        }
        if let Some(estimates) = estimates {
            estimates.extend(states.iter_mut().map(|state| state.note(now)));
        }
    }
    Ok(())
}

impl<'a> NearState<'a> {
    #[inline]
    fn lock<C: ?Sized>(
        request: &Request<'a, C>,
        tag: Option<Tag>,
        now: Nanos,
    ) -> Result<Self, NotNear> {
        let (held, site) = match (request, tag) {
            (Request::Keyed { limiter, .. }, Some(tag)) => {
                let near = limiter.try_near(tag)?;
                let site = near.site();
                (Held::Key(near), site)
            }
            (Request::Unkeyed { limiter, .. }, _) => {
                let limiter: &'a crate::Limiter<C> = limiter;
                let held = limiter.try_near(now)?;
                let site = limiter.site(&held);
                (Held::One(held), site)
            }
            (Request::Keyed { .. }, None) => return Err(NotNear::Other),
        };
        Ok(Self {
            held,
            site,
            by: request.own_policy(),
            cost: request.cost(),
            taken: 0,
        })
    }

    /// The decision, without taking anything. `None` if the state must be converted for the
    /// request's own policy, or if a denial would count against the key.
    #[inline]
    fn answer(&mut self, now: Nanos) -> Option<Decision> {
        let cost = self.cost;
        let (general, state) = self.held.parts();
        let by = match self.by {
            Some(by) if !by.reads_states_of(general) => return None,
            by => by.unwrap_or(general),
        };
        if let [word] = *state
            && cost > 0
            && !by.counts_denied()
        {
            // A copy is decided on: a second step for the cost would compute the same again.
            let mut taken = [word];
            let decision = by.decide(&mut taken, now, cost);
            [self.taken] = taken;
            return Some(decision);
        }
        let decision = by.peek(state, now, cost);
        (decision.is_allowed() || by.penalty().is_none()).then_some(decision)
    }

    /// Takes the cost, which was admitted.
    #[inline]
    fn take(&mut self, now: Nanos) {
        if self.cost == 0 {
            return;
        }
        let (cost, taken) = (self.cost, self.taken);
        let (general, state) = self.held.parts();
        let by = self.by.unwrap_or(general);
        match state {
            [word] if !by.counts_denied() => *word = taken,
            state => by.record(state, now, cost),
        }
    }

    /// The estimate of what was taken.
    fn note(&mut self, now: Nanos) -> Estimate {
        let (site, cost) = (self.site, self.cost);
        if cost == 0 {
            return NOTHING;
        }
        let (general, state) = self.held.parts();
        site.note(general, state, cost, now)
    }
}

impl Held<'_> {
    #[inline]
    fn parts(&mut self) -> (&Policy, &mut [u64]) {
        match self {
            Self::Key(near) => near.parts(),
            Self::One(held) => held.parts(),
        }
    }
}
