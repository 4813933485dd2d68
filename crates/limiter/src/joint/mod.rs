//! Several limits in one atomic decision: all admit, or none is charged; or one admits and is
//! charged.

mod any;
mod near;
mod places;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::table::{Full, Joint, Tag, Wanted};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Clock, Decision, Estimate, Nanos, Policy};

use crate::{
    KeyedLimiter, Limiter,
    block::refused_until,
    eras::Site,
    keyed::{Home, step_by},
    limiter::NOTHING,
    version,
    wait::{Ground, Ticket, WaitLine, Wakes},
};

use places::{KeyPlace, Sum, places, sums};

pub use any::{AnyDecision, acquire_any, acquire_any_at};

/// A list with an entry for each request. Most decisions are over two to five limits and allocate
/// nothing.
pub(crate) type Few<T> = SmallVec<[T; 6]>;

/// One part of a decision over several limits.
///
/// All parts have one type of clock. Limiters with different clocks take part as limiters with any
/// clock:
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{Clock, CoarseClock, KeyedLimiter, Limiter, Policy, Quota, Request, SystemClock, acquire_all};
/// # use std::time::Duration;
///
/// let in_all = Limiter::with_clock(Policy::token_bucket(Quota::per_second(1_000)), SystemClock::new());
/// let per_client = KeyedLimiter::builder(Policy::sliding_window(Quota::per_minute(60)))
///     .clock(CoarseClock::new(Duration::from_millis(1))?)
///     .build()?;
/// let requests: [Request<'_, dyn Clock>; 2] =
///     [Request::unkeyed(&in_all, 1), Request::keyed(&per_client, b"alice", 1)];
/// assert!(acquire_all(&requests)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Request<'a, C: ?Sized = crate::SystemClock> {
    /// A key of a keyed limiter.
    Keyed {
        /// The limiter.
        limiter: &'a KeyedLimiter<C>,
        /// The key.
        key: &'a [u8],
        /// The cost.
        cost: u64,
        /// Decides instead of the limiter's policy: see
        /// [`KeyedAt::acquire_with`](crate::KeyedAt::acquire_with).
        policy: Option<&'a Policy>,
    },
    /// A limiter without keys.
    Unkeyed {
        /// The limiter.
        limiter: &'a Limiter<C>,
        /// The cost.
        cost: u64,
    },
}

impl<'a, C: ?Sized> Request<'a, C> {
    /// A request for `cost` of a key of a limiter.
    #[must_use]
    pub const fn keyed(limiter: &'a KeyedLimiter<C>, key: &'a [u8], cost: u64) -> Self {
        Self::Keyed {
            limiter,
            key,
            cost,
            policy: None,
        }
    }

    /// The same request, decided by another policy if one is given, as
    /// [`KeyedAt::acquire_with`](crate::KeyedAt::acquire_with) does. It changes nothing for a limiter
    /// without keys.
    #[must_use]
    pub const fn with_policy(self, own: Option<&'a Policy>) -> Self {
        match self {
            Self::Keyed {
                limiter, key, cost, ..
            } => Self::Keyed {
                limiter,
                key,
                cost,
                policy: own,
            },
            Self::Unkeyed { limiter, cost } => Self::Unkeyed { limiter, cost },
        }
    }

    pub(crate) fn own_policy(&self) -> Option<&'a Policy> {
        match self {
            Self::Keyed { policy, .. } => *policy,
            Self::Unkeyed { .. } => None,
        }
    }

    /// A request for `cost` of a limiter without keys.
    #[must_use]
    pub const fn unkeyed(limiter: &'a Limiter<C>, cost: u64) -> Self {
        Self::Unkeyed { limiter, cost }
    }

    pub(crate) const fn cost(&self) -> u64 {
        match self {
            Self::Keyed { cost, .. } | Self::Unkeyed { cost, .. } => *cost,
        }
    }

    /// The address of the limiter.
    fn address(&self) -> usize {
        match self {
            Self::Keyed { limiter, .. } => std::ptr::from_ref(*limiter).addr(),
            Self::Unkeyed { limiter, .. } => limiter.address(),
        }
    }

    pub(crate) const fn clock(&self) -> &'a C {
        match self {
            Self::Keyed { limiter, .. } => limiter.clock(),
            Self::Unkeyed { limiter, .. } => limiter.clock(),
        }
    }

    pub(crate) fn key(&self) -> Option<(&'a KeyedLimiter<C>, Tag)> {
        match self {
            Self::Keyed { limiter, key, .. } => Some((limiter, limiter.tag(key))),
            Self::Unkeyed { .. } => None,
        }
    }
}

/// The decision over several limits.
#[derive(Clone, Debug)]
#[must_use = "an unread decision limits nothing"]
pub struct AllDecision {
    decisions: Few<Decision>,
}

impl AllDecision {
    /// Whether all limits admitted. The delay is the longest of their delays.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decisions.iter().all(Decision::is_allowed)
    }

    /// The index of the request that determined the result: of several denials the one that lasts
    /// longest; if all admitted, the longest delay, or else the one with the least remaining.
    /// `None` if there were no requests.
    #[must_use]
    pub fn bound(&self) -> Option<usize> {
        let weight = |at: &usize| {
            (
                self.decisions[*at].severity(),
                u64::MAX - self.decisions[*at].remaining(),
            )
        };
        // The first of equals.
        (0..self.decisions.len()).rev().max_by_key(weight)
    }

    /// The decision of the limit that determined the result.
    #[must_use]
    pub fn binding(&self) -> Option<&Decision> {
        self.decisions.get(self.bound()?)
    }

    /// Each limit's own decision, in the order of the requests. If one limit denied, the others
    /// were not charged; their decisions are what they would have been.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    pub(crate) fn new(decisions: Few<Decision>) -> Self {
        Self { decisions }
    }
}

/// Decides on all requests in one atomic step: all admit and are charged, or none is.
///
/// Two requests for the same key of the same limiter add up. If callers wait for one of the limits,
/// that limit denies until they have been served, as
/// [`KeyedAt::acquire`](crate::KeyedAt::acquire) does.
///
/// # Panics
/// If the policy of a request has another algorithm than its limiter, or states of another width.
///
/// # Errors
/// [`Full`] if a limiter is too small to hold all requested keys at the same time.
pub fn acquire_all_at<C: ?Sized>(
    requests: &[Request<'_, C>],
    now: Nanos,
) -> Result<AllDecision, Full> {
    let (tags, mut all) = (tags(requests), AllDecision::new(Few::new()));
    if near::decide(requests, &tags, now, &mut all.decisions, None) {
        return Ok(all);
    }
    let decisions = with_tags(requests, &tags, now, false, |states, blocked, wakes| {
        states.decide(blocked, &[], now, wakes)
    })?;
    Ok(AllDecision::new(decisions))
}

/// The decisions of [`acquire_all_at`] if a limit beside these has denied: nothing is taken, and
/// each limit that denies has denied, which counts for its [`Penalty`](tidegate_core::Penalty).
///
/// # Panics
/// As [`acquire_all_at`].
///
/// # Errors
/// The same as [`acquire_all_at`].
pub fn deny_all_at<C: ?Sized>(
    requests: &[Request<'_, C>],
    now: Nanos,
) -> Result<AllDecision, Full> {
    let decisions = with_all(requests, now, false, |states, blocked, wakes| {
        let mut decisions = states.answers(blocked, &[], now, wakes);
        states.count_denials(blocked, &mut decisions, now, wakes);
        decisions
    })?;
    Ok(AllDecision::new(decisions))
}

/// [`acquire_all_at`] for units that may return. The second value is what each request has taken,
/// for [`LimiterAt::settle`](crate::LimiterAt::settle) and
/// [`KeyedAt::settle`](crate::KeyedAt::settle); it is empty if a limit denied.
///
/// # Panics
/// As [`acquire_all_at`].
///
/// # Errors
/// The same as [`acquire_all_at`].
pub fn acquire_all_estimates_at<C: ?Sized>(
    requests: &[Request<'_, C>],
    now: Nanos,
) -> Result<(AllDecision, Vec<Estimate>), Full> {
    let (tags, mut all) = (tags(requests), AllDecision::new(Few::new()));
    let mut estimates = Vec::with_capacity(requests.len());
    let noted = Some(&mut estimates);
    if near::decide(requests, &tags, now, &mut all.decisions, noted) {
        return Ok((all, estimates));
    }
    let (decisions, noted) = with_tags(requests, &tags, now, true, |states, blocked, wakes| {
        states.decide_and_note(blocked, &[], now, wakes)
    })?;
    estimates.extend(noted);
    Ok((AllDecision::new(decisions), estimates))
}

fn time_of<C: Clock + ?Sized>(requests: &[Request<'_, C>]) -> Nanos {
    let first = requests.first();
    first.map_or(Nanos::ZERO, |request| request.clock().now())
}

/// The tags of the requests' keys. Their states are fetched into the cache in parallel.
fn tags<C: ?Sized>(requests: &[Request<'_, C>]) -> Few<Option<Tag>> {
    requests
        .iter()
        .map(|request| match request {
            Request::Keyed { limiter, key, .. } => {
                let tag = limiter.tag(key);
                limiter.prefetch_tag(tag);
                Some(tag)
            }
            Request::Unkeyed { .. } => None,
        })
        .collect()
}

/// One step on the states of all requests, locked together. A step that `notes` places of units is
/// not made while all keys of a limiter are being reset.
pub(crate) fn with_all<C: ?Sized, R>(
    requests: &[Request<'_, C>],
    now: Nanos,
    notes: bool,
    step: impl FnMut(&mut States<'_, '_, C>, &[Option<Decision>], &mut Wakes) -> R,
) -> Result<R, Full> {
    with_tags(requests, &tags(requests), now, notes, step)
}

/// [`with_all`] for keys with these tags.
fn with_tags<C: ?Sized, R>(
    requests: &[Request<'_, C>],
    tags: &[Option<Tag>],
    now: Nanos,
    notes: bool,
    mut step: impl FnMut(&mut States<'_, '_, C>, &[Option<Decision>], &mut Wakes) -> R,
) -> Result<R, Full> {
    let keys: Few<Option<(&KeyedLimiter<C>, Tag)>> = requests
        .iter()
        .zip(tags)
        .map(|(request, tag)| match (request, *tag) {
            (Request::Keyed { limiter, .. }, Some(tag)) => Some((*limiter, tag)),
            _ => None,
        })
        .collect();
    // A blocked limit denies without any lock.
    let blocked: Few<Option<Decision>> = requests
        .iter()
        .zip(&keys)
        .map(|(request, key)| match (request, key) {
            (_, Some((limiter, tag))) => limiter.blocked_tag(*tag, now),
            (Request::Unkeyed { limiter, .. }, None) => limiter.denied_by_block(now),
            (Request::Keyed { .. }, None) => None,
        })
        .collect();
    loop {
        let generations: Few<Option<(Home, Tag)>> = keys
            .iter()
            .map(|key| key.map(|(limiter, tag)| (limiter.generation_of(tag), tag)))
            .collect();
        // Declared before all locks, so that it is dropped after them: no task is woken under a
        // lock.
        let mut wakes = Wakes::default();
        let stepped = attempt(requests, &generations, now, notes, |states| {
            step(states, &blocked, &mut wakes)
        })?;
        if let Some(result) = stepped {
            return Ok(result);
        }
        // One of the generations was retired, or all keys are being reset: that ends in a moment.
        crate::sync::yield_now();
    }
}

/// [`acquire_all_at`] at the current time of the first limiter's clock.
///
/// # Errors
/// The same as [`acquire_all_at`].
pub fn acquire_all<C: Clock + ?Sized>(requests: &[Request<'_, C>]) -> Result<AllDecision, Full> {
    acquire_all_at(requests, time_of(requests))
}

/// One attempt; `None` if a generation was retired, or places cannot be noted.
fn attempt<C: ?Sized, R>(
    requests: &[Request<'_, C>],
    generations: &[Option<(Home, Tag)>],
    now: Nanos,
    notes: bool,
    step: impl FnOnce(&mut States<'_, '_, C>) -> R,
) -> Result<Option<R>, Full> {
    // A state that is still in an older generation is moved before anything else is locked.
    for (generation, tag) in generations.iter().flatten() {
        if generation.bring(*tag, now).is_err() {
            return Ok(None);
        }
    }
    // The order of locks: unkeyed limiters by address, then the tables' buckets by limiter, by
    // generation (the newest first, because states move in that order), and by address.
    let mut unkeyed: Few<&Limiter<C>> = requests
        .iter()
        .filter_map(|request| match request {
            Request::Unkeyed { limiter, .. } => Some(*limiter),
            Request::Keyed { .. } => None,
        })
        .collect();
    unkeyed.sort_unstable_by_key(|limiter| limiter.address());
    unkeyed.dedup_by_key(|limiter| limiter.address());
    let mut cells: Few<_> = unkeyed.iter().map(|limiter| limiter.lock()).collect();
    let homes: Few<_> = requests
        .iter()
        .zip(generations)
        .filter_map(|(request, generation)| match (request, generation) {
            (Request::Keyed { limiter, .. }, Some((generation, tag))) => {
                Some((*limiter, generation, *tag))
            }
            _ => None,
        })
        .collect();
    let wanted: Few<Wanted<'_, Policy>> = homes
        .iter()
        .map(|&(limiter, generation, tag)| Wanted {
            table: &generation.table,
            algorithm: generation.policy(),
            tag,
            rank: (std::ptr::from_ref(limiter).addr(), generation.rank()),
        })
        .collect();
    let mut joint = Joint::lock(&wanted, now)?;
    for &(limiter, generation, tag) in &homes {
        let must_wait = notes && limiter.eras.is_resetting();
        if must_wait || generation.is_retired() || !limiter.is_home(tag, generation) {
            return Ok(None);
        }
    }

    let places = places(requests, &unkeyed);
    let mut sums = sums(requests, &places, &homes);
    // The locks stay where they are: a decision over five limits has a kilobyte of them.
    let mut states = States {
        requests,
        places: &places,
        sums: &mut sums,
        homes: &homes,
        unkeyed: &unkeyed,
        cells: &mut cells,
        joint: &mut joint,
    };
    let result = step(&mut states);
    joint.close(&wanted, now);
    Ok(Some(result))
}

/// The states of a joint decision, all locked.
pub(crate) struct States<'l, 'r, C: ?Sized> {
    requests: &'r [Request<'r, C>],
    places: &'l [KeyPlace],
    sums: &'l mut [Sum],
    homes: &'l [(&'r KeyedLimiter<C>, &'r Home, Tag)],
    unkeyed: &'l [&'r Limiter<C>],
    cells: &'l mut [version::LockedVersion<'r>],
    joint: &'l mut Joint<'r>,
}

impl<'r, C: ?Sized> States<'_, 'r, C> {
    /// A request's state, and the policy of its words; or the time until which its key is refused.
    fn state(&mut self, at: usize) -> Result<(&Policy, &mut [u64]), Nanos> {
        match self.places[at] {
            KeyPlace::Keyed(k) => {
                let (state, _) = self.joint.state(k)?;
                Ok((self.homes[k].1.policy(), state))
            }
            KeyPlace::Unkeyed(u) => Ok(self.cells[u].parts()),
        }
    }

    /// The policy in force for a request's state.
    pub fn policy(&mut self, at: usize) -> &Policy {
        match self.places[at] {
            KeyPlace::Keyed(k) => self.homes[k].1.policy(),
            KeyPlace::Unkeyed(u) => self.cells[u].parts().0,
        }
    }

    /// The first request for the same state, and the cost of the requests for it up to this one.
    pub fn of_state(&self, at: usize) -> Sum {
        self.sums[at]
    }

    /// Decides on all requests, and takes them if all are admitted. `tickets` are the places of a
    /// caller that waits.
    pub fn decide(
        &mut self,
        blocked: &[Option<Decision>],
        tickets: &[Option<Arc<Ticket>>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> Few<Decision> {
        let mut decisions = self.answers(blocked, tickets, now, wakes);
        if decisions.iter().all(Decision::is_allowed) {
            (0..decisions.len()).for_each(|at| self.take(at, now));
        } else {
            self.count_denials(blocked, &mut decisions, now, wakes);
        }
        decisions
    }

    /// The decisions, without taking anything.
    fn answers(
        &mut self,
        blocked: &[Option<Decision>],
        tickets: &[Option<Arc<Ticket>>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> Few<Decision> {
        let mut decisions = Few::new();
        for (at, denied) in blocked.iter().enumerate() {
            decisions.push(match denied {
                Some(denied) => *denied,
                None => self.answer(at, tickets, now, wakes),
            });
        }
        decisions
    }

    /// Takes the cost of an admitted request.
    fn take(&mut self, at: usize, now: Nanos) {
        let request = &self.requests[at];
        let (own, cost) = (request.own_policy(), request.cost());
        // Admitted, so the key was not refused.
        if cost > 0
            && let Ok((general, state)) = self.state(at)
        {
            let by = own.unwrap_or(general);
            step_by(general, by, state, now, |state| by.record(state, now, cost));
        }
    }

    /// Counts the denials, each state's once, and blocks the keys whose rules say so.
    fn count_denials(
        &mut self,
        blocked: &[Option<Decision>],
        decisions: &mut [Decision],
        now: Nanos,
        wakes: &mut Wakes,
    ) {
        let mut counted: Few<usize> = Few::new();
        for (at, request) in self.requests.iter().enumerate() {
            let Sum { first, cost } = self.of_state(at);
            let counts = request.cost() > 0 && decisions[at].is_denied() && blocked[at].is_none();
            if !counts || counted.contains(&first) {
                continue;
            }
            counted.push(first);
            let Ok((general, state)) = self.state(at) else {
                continue;
            };
            let by = request.own_policy().unwrap_or(general);
            let blocks = step_by(general, by, state, now, |state| {
                by.count_denial(state, now)
                    .then(|| by.peek(state, now, cost))
            });
            if let Some(blocks) = blocks {
                decisions[at] = blocks;
                self.on_line(at, false, now, |line, ground| line.changed(ground, wakes));
            }
        }
    }

    /// [`decide`](Self::decide), and the estimates of what was taken.
    pub fn decide_and_note(
        &mut self,
        blocked: &[Option<Decision>],
        tickets: &[Option<Arc<Ticket>>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> (Few<Decision>, Few<Estimate>) {
        let decisions = self.decide(blocked, tickets, now, wakes);
        let mut estimates = Few::new();
        if decisions.iter().all(Decision::is_allowed) {
            estimates.extend((0..decisions.len()).map(|at| self.note(at, now)));
        }
        (decisions, estimates)
    }

    /// The decisions at the places of a caller that has just entered its lines, and was denied
    /// before. They do not count as denials.
    pub fn decide_at_places(
        &mut self,
        blocked: &[Option<Decision>],
        tickets: &[Option<Arc<Ticket>>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> (Few<Decision>, Few<Estimate>) {
        let decisions = self.answers(blocked, tickets, now, wakes);
        let mut estimates = Few::new();
        if decisions.iter().all(Decision::is_allowed) {
            (0..decisions.len()).for_each(|at| self.take(at, now));
            estimates.extend((0..decisions.len()).map(|at| self.note(at, now)));
        }
        (decisions, estimates)
    }

    /// The estimate of what an admitted request has taken.
    fn note(&mut self, at: usize, now: Nanos) -> Estimate {
        let cost = self.requests[at].cost();
        let site = self.site(at);
        match self.state(at) {
            Ok((policy, state)) if cost > 0 => site.note(policy, state, cost, now),
            _ => NOTHING,
        }
    }

    /// What the place of a request's units depends on.
    fn site(&self, at: usize) -> Site<'r> {
        match self.places[at] {
            KeyPlace::Keyed(k) => {
                let (limiter, home, tag) = self.homes[k];
                limiter.site(home, tag)
            }
            KeyPlace::Unkeyed(u) => {
                let limiter: &'r Limiter<C> = self.unkeyed[u];
                limiter.site(&self.cells[u])
            }
        }
    }

    fn answer(
        &mut self,
        at: usize,
        tickets: &[Option<Arc<Ticket>>],
        now: Nanos,
        wakes: &mut Wakes,
    ) -> Decision {
        let own = self.requests[at].own_policy();
        let Sum { first, cost } = self.of_state(at);
        let ticket = tickets.get(first).and_then(Option::as_deref);
        let behind = if cost == 0 {
            None
        } else {
            self.on_line(at, false, now, |line, ground| {
                line.answer_to(ground, cost, ticket, wakes)
            })
            .flatten()
        };
        match self.state(at) {
            Ok((general, state)) => {
                let by = own.unwrap_or(general);
                behind.unwrap_or_else(|| {
                    step_by(general, by, state, now, |state| by.peek(state, now, cost))
                })
            }
            Err(until) => {
                let KeyPlace::Keyed(k) = self.places[at] else {
                    unreachable!("only keys are refused")
                };
                let by = own.unwrap_or(self.homes[k].1.policy());
                if cost == 0 {
                    // A look needs no place.
                    return by.peek(&vec![0; by.words()], now, 0);
                }
                refused_until(by, until, now)
            }
        }
    }

    /// A step on the line of a request, if it has one or if it is `announced`.
    pub fn on_line<R>(
        &mut self,
        at: usize,
        announced: bool,
        now: Nanos,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>) -> R,
    ) -> Option<R> {
        let place = self.places[at];
        let keyed = match place {
            KeyPlace::Keyed(k) => Some((self.homes[k].0, self.homes[k].2)),
            KeyPlace::Unkeyed(_) => None,
        };
        let unkeyed = self.unkeyed;
        // Most states have no line.
        let may_have_line = match (place, keyed) {
            (_, Some((limiter, tag))) => limiter.may_have_line(tag),
            (KeyPlace::Unkeyed(u), _) => unkeyed[u].has_line(),
            (KeyPlace::Keyed(_), None) => false,
        };
        if !announced && !may_have_line {
            return None;
        }
        let site = self.site(at);
        let (policy, state) = self.state(at).ok()?;
        let mut ground = Ground {
            policy,
            state,
            site,
            blocked: Nanos::ZERO,
            now,
        };
        match (place, keyed) {
            (_, Some((limiter, tag))) if announced => {
                Some(limiter.with_line(tag, &mut ground, step))
            }
            (_, Some((limiter, tag))) => limiter.find_line(tag, &mut ground, step),
            (KeyPlace::Unkeyed(u), _) if announced => Some(unkeyed[u].with_line(&mut ground, step)),
            (KeyPlace::Unkeyed(u), _) => unkeyed[u].find_line(&mut ground, step),
            (KeyPlace::Keyed(_), None) => None,
        }
    }
}
