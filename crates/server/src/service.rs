//! The one thing that both protocols call: a name and a key in, a decision or a refusal out.
//!
//! The time of a decision is an argument here too: a protocol reads the service's clock once for what it has read
//! from a socket, and passes that on.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{Clock, Decision, Nanos};
use tidegate_limiter::{Request, acquire_all_at};

pub use crate::refusal::Refusal;
use crate::{
    live::{Limit, LiveRules},
    rules::Keeping,
    shared::SharedStore,
    throttle::Throttle,
};

/// The longest key that a request may carry, in bytes (the library takes any).
pub const MAX_KEY_BYTES: usize = 1024;
/// What `CL.THROTTLE`'s own store is called in metrics and in the state file.
pub const THROTTLE: &str = "CL.THROTTLE";

/// The limits at work, and the clock that they run on.
pub struct Service {
    rules: ArcSwap<LiveRules>,
    throttle: Throttle,
    clock: Arc<dyn Clock>,
    shared: Option<Arc<SharedStore>>,
}

/// What one limit says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Which limit.
    pub limit: Arc<Limit>,
    /// The key that was asked; empty for a global limit.
    pub key: Vec<u8>,
    /// The decision as the algorithm took it. A shadow limit's denial is no denial: see
    /// [`is_allowed`](Self::is_allowed).
    pub decision: Decision,
}

impl Answer {
    /// Whether the work may go ahead as far as this limit is concerned.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed() || self.limit.spec().shadow
    }

    /// When asking again would be admitted; `None` for admitted work, and where no wait can be named.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() { None } else { self.decision.retry_after() }
    }

    /// When the limit is as good as new; `None` where no time can be named.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        reset_after(&self.decision)
    }
}

/// When a decision's limit is as good as new; `None` where no time can be named.
#[must_use]
pub fn reset_after(decision: &Decision) -> Option<Duration> {
    (decision.reset_after_nanos() != u64::MAX).then(|| decision.reset_after())
}

/// What several limits say together.
#[derive(Clone, Debug)]
pub struct JointAnswer {
    /// One answer for each limit that was asked, in that order.
    pub answers: Vec<Answer>,
    /// Which of them bound: the one that denies longest, or of those that all admit the one with the least remaining.
    pub bound: usize,
}

impl JointAnswer {
    /// Whether all limits that are enforced admitted, and so consumed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answers[self.bound].is_allowed()
    }
}

/// One limit that is asked for one key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The limit's name.
    pub limit: &'a [u8],
    /// The key; not needed for a global limit.
    pub key: Option<&'a [u8]>,
    /// How many units.
    pub cost: u32,
}

impl Service {
    /// A service with these limits (shared, where they are) and a place for the keys of `CL.THROTTLE`.
    #[must_use]
    pub fn new(rules: LiveRules, throttle: Throttle, clock: Arc<dyn Clock>) -> Self {
        let shared = rules.shared().cloned();
        Self { rules: ArcSwap::from_pointee(rules), throttle, clock, shared }
    }

    /// The store that the limits are shared over; `None` where they are this server's own.
    #[must_use]
    #[inline]
    pub fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.shared.as_ref()
    }

    /// The time that decisions asked now should be given.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Where the limits are kept, which says what rules can be served.
    #[must_use]
    pub fn keeping(&self) -> Keeping {
        if self.shared.is_some() { Keeping::Store } else { Keeping::Memory }
    }

    /// The limits as they are now. A guard held over a change of rules keeps the old ones alive.
    #[must_use]
    pub fn rules(&self) -> Guard<Arc<LiveRules>> {
        self.rules.load()
    }

    /// Puts other limits in place, all at once.
    pub fn set_rules(&self, rules: LiveRules) {
        self.rules.store(Arc::new(rules));
    }

    /// `CL.THROTTLE`'s store.
    #[must_use]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Asks one limit, and takes the cost when it admits.
    ///
    /// # Errors
    /// When the question makes no sense: see [`Refusal`].
    pub fn acquire(&self, ask: Ask<'_>, now: Nanos) -> Result<Answer, Refusal> {
        self.answer(ask, |limit, key| limit.acquire(key, ask.cost, now))
    }

    /// Asks one limit without taking anything: `remaining` is what is left now.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn peek(&self, ask: Ask<'_>, now: Nanos) -> Result<Answer, Refusal> {
        self.answer(ask, |limit, key| limit.peek(key, ask.cost, now))
    }

    /// Gives back up to the cost of what was taken, and says where the key stands then.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn refund(&self, ask: Ask<'_>, now: Nanos) -> Result<Answer, Refusal> {
        self.answer(ask, |limit, key| {
            limit.refund(key, ask.cost, now);
            limit.peek(key, 0, now)
        })
    }

    /// Denies a key until a time, or (`None`) until it is unblocked.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); also for a global limit.
    pub fn block(&self, limit: &[u8], key: Option<&[u8]>, span: Option<Duration>) -> Result<(), Refusal> {
        let rules = self.rules();
        let (limit, key) = keyed(&rules, limit, key)?;
        let until = span.map_or(Nanos::MAX, |span| self.now().saturating_add(span.into()));
        // A key that the rules deny for good stays so.
        if limit.is_denied(key) {
            return Ok(());
        }
        let blocked = limit.limiter().block_at(key, until, self.now());
        blocked.map_err(|_| Refusal::TooManyBlocked { limit: limit.spec().name.clone() })
    }

    /// Lets a blocked key ask again; whether it was blocked.
    ///
    /// # Errors
    /// As [`block`](Self::block); also for a key that the rules deny.
    pub fn unblock(&self, limit: &[u8], key: Option<&[u8]>) -> Result<bool, Refusal> {
        let rules = self.rules();
        let (limit, key) = keyed(&rules, limit, key)?;
        if limit.is_denied(key) {
            return Err(Refusal::DeniedByRules { limit: limit.spec().name.clone() });
        }
        Ok(limit.limiter().unblock_at(key, self.now()))
    }

    /// Asks several limits: all of them admit and consume, or none consumes. Shadow limits are asked beside them, and
    /// never veto.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), with the index of the question that was refused.
    ///
    /// # Panics
    /// When `asks` is empty.
    pub fn acquire_all(&self, asks: &[Ask<'_>], now: Nanos) -> Result<JointAnswer, (usize, Refusal)> {
        let rules = self.rules();
        let limits = resolve_all(&rules, asks)?;
        let requests: Vec<Request<'_, ()>> = limits
            .iter()
            .zip(asks)
            .filter(|((limit, _), _)| !limit.spec().shadow)
            .map(|((limit, key), ask)| Request::keyed(limit.limiter(), key, ask.cost))
            .collect();
        let joint = acquire_all_at(&requests, now).map_err(|_| (0, Refusal::TooManyKeys))?;
        let admitted = joint.is_allowed();
        let mut decisions = joint.decisions().iter();
        let answers = limits.into_iter().zip(asks).map(|((limit, key), ask)| {
            let decision = match decisions.as_slice().first() {
                Some(decision) if !limit.spec().shadow => {
                    decisions.next();
                    // A limit that would have admitted what another denied has neither admitted nor denied.
                    if admitted || decision.is_denied() {
                        limit.count(decision);
                    }
                    *decision
                }
                _ if admitted => limit.acquire(key, ask.cost, now),
                // Where the others deny, an enforced limit would consume nothing either.
                _ => limit.look(key, ask.cost, now),
            };
            Answer { limit: Arc::clone(limit), key: key.to_vec(), decision }
        });
        Ok(JointAnswer::new(answers.collect()))
    }

    /// Asks several limits without taking anything.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// When `asks` is empty.
    pub fn peek_all(&self, asks: &[Ask<'_>], now: Nanos) -> Result<JointAnswer, (usize, Refusal)> {
        let rules = self.rules();
        let answers = resolve_all(&rules, asks)?.into_iter().zip(asks).map(|((limit, key), ask)| Answer {
            limit: Arc::clone(limit),
            key: key.to_vec(),
            decision: limit.peek(key, ask.cost, now),
        });
        Ok(JointAnswer::new(answers.collect()))
    }

    fn answer(
        &self,
        ask: Ask<'_>,
        decide: impl FnOnce(&Limit, &[u8]) -> Decision,
    ) -> Result<Answer, Refusal> {
        let rules = self.rules();
        let (limit, key) = resolve(&rules, ask.limit, ask.key)?;
        Ok(Answer { limit: Arc::clone(limit), key: key.to_vec(), decision: decide(limit, key) })
    }
}

impl JointAnswer {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        let strictness = |answer: &Answer| {
            let severity = if answer.is_allowed() { 0 } else { answer.decision.severity() };
            (severity, std::cmp::Reverse(answer.decision.remaining()))
        };
        let bound = (0..answers.len())
            // The first of equals.
            .max_by_key(|at| (strictness(&answers[*at]), std::cmp::Reverse(*at)))
            .expect("at least one limit is asked");
        Self { answers, bound }
    }
}

/// A limit, and the key as it counts there.
pub(crate) type Resolved<'r, 'k> = (&'r Arc<Limit>, &'k [u8]);

/// The limit of this name and the key as it counts there.
///
/// # Errors
/// When there is no such limit, or the key does not fit it.
#[inline]
pub(crate) fn resolve<'r, 'k>(
    rules: &'r LiveRules,
    name: &[u8],
    key: Option<&'k [u8]>,
) -> Result<Resolved<'r, 'k>, Refusal> {
    let Some(limit) = rules.limit(name) else {
        let shown = String::from_utf8_lossy(name).chars().take(64).collect();
        return Err(Refusal::UnknownLimit { name: shown, known: rules.names() });
    };
    match key {
        Some(key) if key.len() > MAX_KEY_BYTES => Err(Refusal::KeyTooLong { bytes: key.len() }),
        _ if limit.spec().global => Ok((limit, &[])),
        Some(key) => Ok((limit, key)),
        None => Err(Refusal::KeyMissing { limit: limit.spec().name.clone() }),
    }
}

/// [`resolve`] for each of several; an error says which.
pub(crate) fn resolve_all<'r, 'k>(
    rules: &'r LiveRules,
    asks: &[Ask<'k>],
) -> Result<Vec<Resolved<'r, 'k>>, (usize, Refusal)> {
    let asks = asks.iter().enumerate();
    asks.map(|(at, ask)| resolve(rules, ask.limit, ask.key).map_err(|refusal| (at, refusal))).collect()
}

fn keyed<'r, 'k>(
    rules: &'r LiveRules,
    name: &[u8],
    key: Option<&'k [u8]>,
) -> Result<Resolved<'r, 'k>, Refusal> {
    let (limit, key) = resolve(rules, name, key)?;
    if limit.spec().global {
        return Err(Refusal::GlobalHasNoKeys { limit: limit.spec().name.clone() });
    }
    Ok((limit, key))
}
