//! Several limits in one atomic decision: all admit, or none is charged.

use crate::table::{Full, Joint, Tag, Wanted};
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Clock, Decision, Nanos, Policy};

use crate::{
    KeyedLimiter, Limiter,
    block::refused_until,
    keyed::{Home, assert_fits},
    wait::{Ground, Wakes},
};

/// A list with an entry for each request. Most decisions are over two or three limits and allocate nothing.
type Few<T> = SmallVec<[T; 4]>;

/// One part of a decision over several limits.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request<'a, C = crate::SystemClock> {
    /// A key of a keyed limiter.
    Keyed {
        /// The limiter.
        limiter: &'a KeyedLimiter<C>,
        /// The key.
        key: &'a [u8],
        /// The cost.
        cost: u32,
        /// Decides instead of the limiter's policy: see [`KeyedLimiter::acquire_with_at`].
        policy: Option<&'a Policy>,
    },
    /// A limiter without keys.
    Unkeyed {
        /// The limiter.
        limiter: &'a Limiter<C>,
        /// The cost.
        cost: u32,
    },
}

impl<'a, C> Request<'a, C> {
    /// A request for `cost` of a key of a limiter.
    #[must_use]
    pub const fn keyed(limiter: &'a KeyedLimiter<C>, key: &'a [u8], cost: u32) -> Self {
        Self::Keyed { limiter, key, cost, policy: None }
    }

    /// The same request, decided by another policy if one is given, as [`KeyedLimiter::acquire_with_at`] does. It changes nothing
    /// for a limiter without keys.
    #[must_use]
    pub const fn with_policy(self, own: Option<&'a Policy>) -> Self {
        match self {
            Self::Keyed { limiter, key, cost, .. } => Self::Keyed { limiter, key, cost, policy: own },
            Self::Unkeyed { limiter, cost } => Self::Unkeyed { limiter, cost },
        }
    }

    fn own_policy(&self) -> Option<&'a Policy> {
        match self {
            Self::Keyed { policy, .. } => *policy,
            Self::Unkeyed { .. } => None,
        }
    }

    /// A request for `cost` of a limiter without keys.
    #[must_use]
    pub const fn unkeyed(limiter: &'a Limiter<C>, cost: u32) -> Self {
        Self::Unkeyed { limiter, cost }
    }

    const fn cost(&self) -> u32 {
        match self {
            Self::Keyed { cost, .. } | Self::Unkeyed { cost, .. } => *cost,
        }
    }
}

/// The decision over several limits.
#[derive(Clone, Debug)]
#[must_use = "a decision that nobody reads limits nothing"]
pub struct AllDecision {
    decisions: Few<Decision>,
    bound: usize,
}

impl AllDecision {
    /// Whether all limits admitted. The delay is the longest of their delays.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decisions.iter().all(Decision::is_allowed)
    }

    /// The index of the request that determined the result: of several denials the one that lasts longest; if all admitted,
    /// the longest delay, or else the one with the least remaining. `None` if there were no requests.
    #[must_use]
    pub fn bound(&self) -> Option<usize> {
        (!self.decisions.is_empty()).then_some(self.bound)
    }

    /// The decision of the limit that determined the result.
    #[must_use]
    pub fn binding(&self) -> Option<&Decision> {
        self.decisions.get(self.bound)
    }

    /// Each limit's own decision, in the order of the requests. If one limit denied, the others were not charged; their
    /// decisions are what they would have been.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    fn new(decisions: Few<Decision>) -> Self {
        let weight = |at: &usize| (decisions[*at].severity(), u64::MAX - decisions[*at].remaining());
        // The first of equals.
        let bound = (0..decisions.len()).rev().max_by_key(weight).unwrap_or(0);
        Self { decisions, bound }
    }
}

/// Decides on all requests in one atomic step: all admit and are charged, or none is.
///
/// Two requests for the same key of the same limiter add up. If callers wait for one of the limits, that limit denies until
/// they have been served, as [`KeyedLimiter::acquire_at`] does.
///
/// # Panics
/// If the policy of a request has another algorithm than its limiter, or states of another width.
///
/// # Errors
/// [`Full`] if a limiter is too small to hold all requested keys at the same time.
pub fn acquire_all_at<C>(requests: &[Request<'_, C>], now: Nanos) -> Result<AllDecision, Full> {
    // A blocked limit denies without any lock.
    let blocked: Few<Option<Decision>> = requests.iter().map(|request| blocked_at(request, now)).collect();
    loop {
        let generations: Few<Option<(Home, Tag)>> = requests
            .iter()
            .map(|request| match request {
                Request::Keyed { limiter, key, .. } => {
                    let tag = limiter.tag(key);
                    Some((limiter.generation_of(tag), tag))
                }
                Request::Unkeyed { .. } => None,
            })
            .collect();
        if let Some(decisions) = decide(requests, &blocked, &generations, now)? {
            return Ok(AllDecision::new(decisions));
        }
        // One of the generations was retired; its successor will be there in a moment.
        crate::sync::yield_now();
    }
}

/// [`acquire_all_at`] at the current time of the first limiter's clock.
///
/// # Errors
/// The same as [`acquire_all_at`].
pub fn acquire_all<C: Clock>(requests: &[Request<'_, C>]) -> Result<AllDecision, Full> {
    let now = match requests.first() {
        Some(Request::Keyed { limiter, .. }) => limiter.clock().now(),
        Some(Request::Unkeyed { limiter, .. }) => limiter.clock().now(),
        None => Nanos::ZERO,
    };
    acquire_all_at(requests, now)
}

fn blocked_at<C>(request: &Request<'_, C>, now: Nanos) -> Option<Decision> {
    match request {
        Request::Keyed { limiter, key, .. } => limiter.blocked_tag(limiter.tag(key), now),
        Request::Unkeyed { limiter, .. } => limiter.blocked_at(now),
    }
}

/// One attempt; `None` if a generation was retired.
fn decide<C>(
    requests: &[Request<'_, C>],
    blocked: &[Option<Decision>],
    generations: &[Option<(Home, Tag)>],
    now: Nanos,
) -> Result<Option<Few<Decision>>, Full> {
    // What a key still has in an older generation is moved before anything else is locked.
    // Declared before all locks, so that it is dropped after them: no task is woken under a lock.
    let mut wakes = Wakes::default();
    for (generation, tag) in generations.iter().flatten() {
        if generation.bring(*tag, now).is_err() {
            return Ok(None);
        }
    }
    // The order of locks: unkeyed limiters by address, then the tables' buckets by limiter, by generation (the newest
    // first, because states move in that order), and by address.
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
    let keyed: Few<_> = generations.iter().flatten().collect();
    let homes: Few<_> = requests
        .iter()
        .zip(generations)
        .filter_map(|(request, generation)| match (request, generation) {
            (Request::Keyed { limiter, .. }, Some((generation, tag))) => Some((*limiter, generation, *tag)),
            _ => None,
        })
        .collect();
    let wanted: Few<Wanted<'_, Policy>> = homes
        .iter()
        .map(|&(limiter, generation, tag)| Wanted {
            table: &generation.table,
            algorithm: generation.policy(),
            tag,
            rank: (std::ptr::from_ref(limiter) as usize, generation.rank()),
        })
        .collect();
    let mut joint = Joint::lock(&wanted, now)?;
    for &(limiter, generation, tag) in &homes {
        if generation.is_retired() || !limiter.is_home(tag, generation) {
            return Ok(None);
        }
    }

    let locked = locked(requests, &unkeyed);
    let same = |one: &Locked, other: &Locked| match (one, other) {
        (Locked::Keyed(a), Locked::Keyed(b)) => {
            std::ptr::eq(&raw const *keyed[*a].0, &raw const *keyed[*b].0) && keyed[*a].1 == keyed[*b].1
        }
        (Locked::Unkeyed(a), Locked::Unkeyed(b)) => a == b,
        _ => false,
    };
    let mut decisions = Few::new();
    for (at, request) in requests.iter().enumerate() {
        let earlier: u32 = (0..at)
            .filter(|&other| same(&locked[at], &locked[other]))
            .fold(0, |sum, other| requests[other].cost().saturating_add(sum));
        let cost = request.cost().saturating_add(earlier);
        let decision = match (&blocked[at], &locked[at]) {
            (Some(denied), _) => *denied,
            (None, Locked::Keyed(k)) => {
                let (limiter, generation, tag) = homes[*k];
                let general = generation.policy();
                let own = request.own_policy().inspect(|own| assert_fits(general, own));
                let policy = own.unwrap_or(general);
                match joint.state(*k) {
                    Ok((state, _)) => {
                        let mut ground = Ground { policy: general, state, blocked: Nanos::ZERO, now };
                        let behind = limiter.answer_behind(tag, &mut ground, cost, &mut wakes);
                        behind.unwrap_or_else(|| policy.check(ground.state, now, cost))
                    }
                    Err(until) => refused_until(policy, until, now),
                }
            }
            (None, Locked::Unkeyed(u)) => {
                let (policy, state) = cells[*u].parts();
                let mut ground = Ground { policy, state, blocked: Nanos::ZERO, now };
                let behind = unkeyed[*u].answer_behind(&mut ground, cost, &mut wakes);
                behind.unwrap_or_else(|| policy.check(ground.state, now, cost))
            }
        };
        decisions.push(decision);
    }
    if decisions.iter().all(Decision::is_allowed) {
        for (request, state) in requests.iter().zip(&locked) {
            match state {
                _ if request.cost() == 0 => {}
                Locked::Keyed(k) => {
                    // Admitted, so the key was not refused.
                    if let Ok((state, _)) = joint.state(*k) {
                        let general = keyed[*k].0.policy();
                        request.own_policy().unwrap_or(general).record(state, now, request.cost());
                    }
                }
                Locked::Unkeyed(u) => {
                    let (policy, state) = cells[*u].parts();
                    policy.record(state, now, request.cost());
                }
            }
        }
    }
    Ok(Some(decisions))
}

/// The position of a request's state among the locked ones.
enum Locked {
    Keyed(usize),
    Unkeyed(usize),
}

/// The position of each request among the keyed or the unkeyed ones.
fn locked<C>(requests: &[Request<'_, C>], unkeyed: &[&Limiter<C>]) -> Few<Locked> {
    let mut next_keyed = 0;
    requests
        .iter()
        .map(|request| match request {
            Request::Keyed { .. } => {
                next_keyed += 1;
                Locked::Keyed(next_keyed - 1)
            }
            Request::Unkeyed { limiter, .. } => {
                let at = unkeyed.iter().position(|other| std::ptr::eq(*other, *limiter));
                Locked::Unkeyed(at.unwrap_or_default())
            }
        })
        .collect()
}
