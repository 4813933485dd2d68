//! The one thing that every edge calls: a limit's name and a key in, a decision or a refusal out. No edge needs to know
//! whether the limits are in this server's memory or in a store.
//!
//! | an edge wants | it calls |
//! |---|---|
//! | one limit, from async code | [`Service::decide`] with an [`Act`]: take, peek or refund |
//! | several limits, all or none | [`Service::acquire_all`], [`Service::peek_all`] |
//! | one limit, from a thread that must not wait | [`resolve`], then [`Limit::decide_in_memory`](crate::limits::Limit::decide_in_memory), and [`Limit::decide`](crate::limits::Limit::decide) elsewhere if that is `None` |
//!
//! Where the limits are in memory none of them waits. The time of a decision is an argument: an edge reads the service's
//! clock once for what it has read from a socket, and passes that on.

mod answer;
mod in_force;
mod joint;
mod question;
mod readiness;
mod recording;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tidegate_core::{Clock, Decision, Nanos};

pub(crate) use self::joint::Part;
use self::question::resolve_keyed;
pub use self::{
    answer::{Answer, JointAnswer, reset_after},
    in_force::{CurrentLimits, InForce},
    question::{Ask, Resolved, resolve},
    readiness::Readiness,
};
use crate::{
    heavy::Top,
    history::History,
    rules::{Keeping, LimitSpec},
    shared::SharedStore,
    throttle::{THROTTLE, Throttle, ThrottleError, ThrottleQuota},
    trace::Trace,
};
pub use crate::{
    limits::Act,
    refusal::{MAX_KEY_BYTES, Refusal},
};

/// The limits at work, and the clock that they run on.
pub struct Service {
    in_force: ArcSwap<InForce>,
    throttle: Throttle,
    clock: Arc<dyn Clock>,
    store: Option<Arc<SharedStore>>,
    history: History,
    trace: Option<Arc<Trace>>,
}

impl Service {
    /// A service with these limits (shared, where they are) and a place for the keys of `CL.THROTTLE`.
    #[must_use]
    pub fn new(limits: impl Into<InForce>, throttle: Throttle, clock: Arc<dyn Clock>) -> Self {
        let in_force = limits.into();
        let store = in_force.limits().shared().cloned();
        let history = History::default();
        Self { in_force: ArcSwap::from_pointee(in_force), throttle, clock, store, history, trace: None }
    }

    /// The same with a history of at most so many bytes.
    #[must_use]
    pub fn with_history(self, max_bytes: u64) -> Self {
        Self { history: History::new(max_bytes), ..self }
    }

    /// The same with the trace that its limits and `CL.THROTTLE` were made to [watch](crate::Watchers).
    #[must_use]
    pub fn with_trace(self, trace: Option<Arc<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// What chosen keys have asked; `None` where no trace is kept.
    #[must_use]
    pub fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// What the limits have decided of late.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The store that the limits are shared over; `None` where they are this server's own.
    #[must_use]
    #[inline]
    pub fn store(&self) -> Option<&Arc<SharedStore>> {
        self.store.as_ref()
    }

    /// The time that decisions asked now should be given.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Where the limits are kept, which says what rules can be served.
    #[must_use]
    pub fn keeping(&self) -> Keeping {
        if self.store.is_some() { Keeping::Store } else { Keeping::Memory }
    }

    /// The limits as they are now.
    #[must_use]
    pub fn limits(&self) -> CurrentLimits {
        CurrentLimits(self.in_force.load())
    }

    /// The limits as they are now with their descriptors, to be held for longer.
    pub(crate) fn in_force(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// Puts other limits in place, all at once.
    pub fn set_limits(&self, limits: impl Into<InForce>) {
        self.in_force.store(Arc::new(limits.into()));
    }

    /// Takes, peeks at or gives back the cost of one limit. Never waits where the limits are in memory.
    ///
    /// # Errors
    /// When the question makes no sense, or what was to be given back cannot be: see [`Refusal`].
    pub async fn decide(&self, ask: Ask<'_>, act: Act, now: Nanos) -> Result<Answer, Refusal> {
        let (limit, key) = {
            let limits = self.limits();
            let resolved = resolve(&limits, ask.limit, ask.key)?;
            (Arc::clone(resolved.limit), resolved.key)
        };
        let decision = limit.decide(act, key, ask.cost, now).await?;
        Ok(Answer { limit, key: key.to_vec(), decision })
    }

    /// Denies a key until a time, or (`None`) until it is unblocked.
    ///
    /// # Errors
    /// As [`decide`](Self::decide); also for a global limit.
    pub fn block(&self, limit: &[u8], key: Option<&[u8]>, span: Option<Duration>) -> Result<(), Refusal> {
        let limits = self.limits();
        let Resolved { limit, key } = resolve_keyed(&limits, limit, key)?;
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
        let limits = self.limits();
        let Resolved { limit, key } = resolve_keyed(&limits, limit, key)?;
        if limit.is_denied(key) {
            return Err(Refusal::DeniedByRules { limit: limit.spec().name.clone() });
        }
        Ok(limit.limiter().unblock_at(key, self.now()))
    }

    /// Forgets what a key has used, or without a key what all keys of the limit have used. Blocks stay, and so does what is
    /// taken meanwhile.
    ///
    /// # Errors
    /// When there is no such limit, or its states are in a store.
    pub fn reset(&self, limit: &[u8], key: Option<&[u8]>) -> Result<(), Refusal> {
        let limits = self.limits();
        let Resolved { limit, key } = match resolve(&limits, limit, key.or(Some(&[])))? {
            Resolved { limit, .. } if limit.store().is_some() => {
                return Err(Refusal::InStore { limit: limit.spec().name.clone() });
            }
            Resolved { limit, .. } if key.is_none() && !limit.spec().global => {
                limit.limiter().reset_all_at(self.now());
                return Ok(());
            }
            resolved => resolved,
        };
        limit.limiter().reset_at(key, self.now());
        Ok(())
    }

    /// The `most` keys of a limit, or of `CL.THROTTLE`, that asked most and that were denied most of late.
    ///
    /// # Errors
    /// When there is no such limit, or no names are kept for it.
    pub fn top(&self, limit: &[u8], most: usize, now: Nanos) -> Result<Top, Refusal> {
        let limits = self.limits();
        let none = |limit: &str, global| Refusal::NoHeavyKeys { limit: limit.to_owned(), global };
        if limit.eq_ignore_ascii_case(THROTTLE.as_bytes()) && limits.limit(limit).is_none() {
            return self.throttle.top(most, now).ok_or_else(|| none(THROTTLE, false));
        }
        let limit = resolve(&limits, limit, Some(&[]))?.limit;
        let LimitSpec { name, global, .. } = limit.spec();
        limit.top(most, now).ok_or_else(|| none(name, *global))
    }

    /// The buckets of `CL.THROTTLE` in this server's memory.
    #[must_use]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Takes from a bucket of `CL.THROTTLE` in memory; `None` when the buckets are in the store.
    #[inline]
    pub(crate) fn throttle_in_memory(
        &self,
        key: &[u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> Option<Result<Decision, ThrottleError>> {
        self.store.is_none().then(|| self.throttle.acquire(key, quota, quantity, now))
    }

    /// Takes from a bucket of `CL.THROTTLE`, wherever the buckets are.
    pub(crate) async fn throttle_in_store(
        &self,
        key: &[u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> Result<Decision, ThrottleError> {
        match &self.store {
            Some(store) => store.throttle(&self.throttle, key, quota, quantity, now).await,
            None => self.throttle.acquire(key, quota, quantity, now),
        }
    }
}
