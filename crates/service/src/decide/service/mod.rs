//! The service that every edge calls: it takes a limit's name and a key, and returns a decision or
//! a refusal. Edges need not know whether the limits are in this server's memory or in a store.
//!
//! | an edge wants | it calls |
//! |---|---|
//! | one limit, from async code | [`Service::decide`] with an [`Act`]: take, charge, peek or refund |
//! | several limits, all or none | [`Service::acquire_all`], [`Service::peek_all`] |
//! | several limits, waiting in line until they admit | [`Service::acquire_all_waiting`] |
//! | a request with an id, which is safe to repeat | [`Service::acquire_all_once`], [`Service::take_once`] |
//! | an estimate that is corrected after the work | `Service::reserve`, `Service::extend`, `Service::settle` |
//! | one limit, from a thread that must not block | [`resolve`], then [`Limit::decide_in_memory`](crate::decide::limits::Limit::decide_in_memory), and [`Limit::decide`](crate::decide::limits::Limit::decide) on the runtime if that returns `None` |
//!
//! If the limits are in memory, none of these waits. The time of a decision is an argument: an edge
//! reads the service's clock once for everything that it has read from a socket.

mod answer;
mod any;
mod in_force;
mod joint;
mod once;
mod part;
mod question;
mod readiness;
mod recording;
mod reserve;
mod reserve_in_store;
mod shared;
mod waiting;
mod wall_clock;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tidegate_core::{Clock, Decision, DenialReason, Nanos};
use tidegate_limiter::repeats::Repeats;
use tidegate_redis::Health;
use tokio::sync::watch;

pub use self::answer::SOFT_EXCEEDED;
pub use self::once::check_id;
pub use self::part::Part;
pub use self::question::{Sees, refuse_unknown, resolve_operated};
pub use self::readiness::health_name;
pub use self::reserve::Report;
pub use self::waiting::{check_wait, wait_of};
use self::wall_clock::WallClock;
pub use self::{
    answer::{Answer, JointAnswer, reset_after},
    in_force::{Attached, CurrentLimits, InForce},
    question::{Ask, Resolved, resolve},
    readiness::Readiness,
};
pub use crate::decide::{
    limits::{Act, Operation, Operator},
    refusal::Refusal,
};
use crate::{
    decide::{
        limits::Limit,
        reservations::{MOST_RESERVATIONS, Reservations},
        shared::SharedStore,
        throttle::{Throttle, ThrottleError, ThrottleQuota},
        waits::{ServiceClock, ServiceTimer, Waits},
    },
    observe::{
        audit::{Action, Audit},
        heavy::{Top, TopKey},
        history::History,
        trace::Trace,
    },
    rules::{Keeping, LimitSpec, THROTTLE},
};
pub use tidegate_redis::WaitFor;

/// A key that a limit denied a short time ago.
pub struct DeniedKey {
    pub limit: Arc<Limit>,
    /// The key and the number of its denials.
    pub key: TopKey,
    /// How long they have been counted.
    pub span: Nanos,
}

/// The limits in use, and their clock.
pub struct Service {
    in_force: ArcSwap<InForce>,
    throttle: Throttle,
    pub reservations: Reservations,
    /// The first answers to requests with an id.
    pub repeats: Repeats,
    clock: Arc<dyn Clock>,
    /// The same clock, for lines.
    timer: ServiceTimer,
    /// The callers that wait in line.
    pub waits: Waits,
    pub(super) wall_clock: WallClock,
    /// Orders that the store had lost, as far as they are recorded.
    lost_orders: AtomicU64,
    store: Option<Arc<SharedStore>>,
    pub history: History,
    trace: Option<Arc<Trace>>,
    /// Operators' actions.
    pub audit: Audit,
    /// Whether rules suffice for the server to be ready; `None` if any do.
    pub needs: Option<fn(&InForce) -> bool>,
    stopping: AtomicBool,
    stops: watch::Sender<bool>,
}

impl Service {
    /// A service with these limits (shared, if they have a store) and a table for the keys of
    /// `CL.THROTTLE`.
    pub fn new(
        limits: impl Into<InForce>,
        throttle: Throttle,
        clock: Arc<dyn ServiceClock>,
    ) -> Self {
        let in_force = limits.into();
        let store = in_force.limits.shared().cloned();
        let history = History::default();
        let reservations = Reservations::new(MOST_RESERVATIONS);
        Self {
            in_force: ArcSwap::from_pointee(in_force),
            throttle,
            reservations,
            wall_clock: WallClock::new(clock.wall_ahead()),
            lost_orders: AtomicU64::new(0),
            repeats: Repeats::default(),
            timer: ServiceTimer(Arc::clone(&clock)),
            waits: Waits::default(),
            clock,
            store,
            history,
            trace: None,
            audit: Audit::default(),
            needs: None,
            stopping: AtomicBool::new(false),
            stops: watch::Sender::new(false),
        }
    }

    /// The server stops soon, so it should get no more requests. It still answers those that come.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stops.send_replace(true);
    }

    /// Waits until the server [stops](Self::stop) after this call. It never ends if that was so
    /// before: a client that comes then knows it.
    pub fn stops(&self) -> impl Future<Output = ()> + use<> {
        let mut stops = self.stops.subscribe();
        let is_late = *stops.borrow_and_update();
        async move {
            if is_late || stops.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether the server [stops](Self::stop) soon.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The same with room for at most `most` reservations.
    pub fn with_reservations(self, most: usize) -> Self {
        Self {
            reservations: Reservations::new(most),
            ..self
        }
    }

    /// The same service with the trace that its limits and `CL.THROTTLE` report to.
    pub fn with_trace(self, trace: Option<Arc<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// The trace; `None` if none is kept.
    pub fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// The recent decisions of the limits.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The store that the limits are shared over; `None` if they are only this server's.
    #[inline]
    pub fn store(&self) -> Option<&Arc<SharedStore>> {
        self.store.as_ref()
    }

    /// The clock of its decisions.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The time for decisions that are made now.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Where the limits are kept, which determines which rules can be served.
    pub fn keeping(&self) -> Keeping {
        if self.store.is_some() {
            Keeping::Store
        } else {
            Keeping::Memory
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> CurrentLimits {
        CurrentLimits(self.in_force.load())
    }

    /// The limits in force with what is attached to them, for longer use.
    pub fn in_force(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// Replaces all limits at once.
    pub fn set_limits(&self, limits: impl Into<InForce>) {
        self.in_force.store(Arc::new(limits.into()));
        // Limits may be gone, or kept elsewhere.
        self.waits.look_again();
    }

    /// Takes, charges, peeks at or refunds the cost of one limit. It never waits if the limits are
    /// in memory.
    ///
    /// # Errors
    /// When the question is invalid, or a refund or a charge cannot be made: see [`Refusal`].
    pub async fn decide(&self, ask: Ask<'_>, act: Act, now: Nanos) -> Result<Answer, Refusal> {
        let (limit, key) = {
            let limits = self.limits();
            let resolved = resolve(&limits, ask.limit, ask.key)?;
            (Arc::clone(resolved.limit), resolved.key)
        };
        limit.accepts(act)?;
        let decision = limit.decide(act, key, ask.cost, now).await?;
        Ok(Answer {
            limit,
            key: key.to_vec(),
            decision,
        })
    }

    /// Takes as much of the cost of one limit as is available, and returns how much the client may
    /// use: see [`Limit::take_up_to`](crate::decide::limits::Limit::take_up_to).
    ///
    /// # Errors
    /// The same as of [`decide`](Self::decide).
    pub async fn take_up_to(&self, ask: Ask<'_>, now: Nanos) -> Result<(u64, Answer), Refusal> {
        let (limit, key) = {
            let limits = self.limits();
            let resolved = resolve(&limits, ask.limit, ask.key)?;
            (Arc::clone(resolved.limit), resolved.key)
        };
        let (taken, decision) = limit.take_up_to(Duration::ZERO, key, ask.cost, now).await?;
        let answer = Answer {
            limit,
            key: key.to_vec(),
            decision,
        };
        Ok((taken, answer))
    }

    /// Makes an operator's change about a key: for a limit in the store at all servers, within a
    /// second. Without a key, a [reset](Operation::Reset) concerns all keys of a limit in memory.
    /// Returns whether there was something to end, and `true` for the operations that end nothing.
    ///
    /// # Errors
    /// The same as [`decide`](Self::decide); also when the operation makes no sense for the limit
    /// or the key, does not fit into its room, or the store does not reply: see [`Refusal`].
    pub async fn operate(
        &self,
        limit: &[u8],
        key: Option<&[u8]>,
        operation: &Operation,
        by: &Operator<'_>,
    ) -> Result<bool, Refusal> {
        if let Some(done) = self.operate_in_memory(limit, key, operation, by) {
            return done;
        }
        let (limit, key) = {
            let limits = self.limits();
            let resolved = resolve_operated(&limits, limit, key, operation)?;
            if key.is_none() && !resolved.limit.spec().global {
                return Err(Refusal::InStore {
                    limit: resolved.limit.spec().name.clone(),
                });
            }
            (Arc::clone(resolved.limit), resolved.key)
        };
        let name = limit.spec().name.as_bytes();
        match limit.store() {
            Some(store) => {
                let done = limit.operate_in_store(store, key, operation).await;
                self.record(done, name, Some(key), operation, by)
            }
            // The rules have changed.
            None => self
                .operate_in_memory(name, Some(key), operation, by)
                .unwrap_or(Ok(false)),
        }
    }

    /// Like [`operate`](Self::operate), but `None` for a limit in the store: nothing was done.
    pub fn operate_in_memory(
        &self,
        limit: &[u8],
        key: Option<&[u8]>,
        operation: &Operation,
        by: &Operator<'_>,
    ) -> Option<Result<bool, Refusal>> {
        let limits = self.limits();
        let done = match resolve_operated(&limits, limit, key, operation) {
            Ok(resolved) if resolved.limit.store().is_some() => return None,
            // A reset of all keys.
            Ok(Resolved { limit, .. }) if key.is_none() && !limit.spec().global => {
                limit.reset_all_in_memory(self.now());
                Ok(true)
            }
            Ok(Resolved { limit, key }) => limit.operate_in_memory(key, operation, self.now()),
            Err(refusal) => Err(refusal),
        };
        Some(self.record(done, limit, key, operation, by))
    }

    /// Records a refund of what a rate has counted, which only operators make.
    pub fn record_refund(&self, client: &str, limit: &Limit, key: &[u8], cost: u64) {
        if limit.spec().policy.algorithm.limits_rate() {
            let action = Action::new(client, "refund")
                .on(limit.spec().name.as_bytes(), Some(key))
                .with(&cost);
            self.audit.record(self.now(), action);
        }
    }

    /// Records an operation that took effect.
    fn record(
        &self,
        done: Result<bool, Refusal>,
        limit: &[u8],
        key: Option<&[u8]>,
        operation: &Operation,
        by: &Operator<'_>,
    ) -> Result<bool, Refusal> {
        if done == Ok(true) {
            let action = Action::new(by.client, operation.name()).on(limit, key);
            let action = match operation {
                Operation::Block(span) => action.lasting(*span),
                Operation::Override(quota, span) => action.with(quota).lasting(*span),
                Operation::Unblock | Operation::EndOverride | Operation::Reset => action,
            };
            let note = by.note.map(ToOwned::to_owned);
            self.audit.record(self.now(), Action { note, ..action });
        }
        done
    }

    /// Has limits on a calendar in memory follow the system's time, also after somebody set it or
    /// the machine was suspended.
    pub fn follow_wall_clock(&self) {
        let ahead = self.clock.wall_ahead();
        let seconds = self.wall_clock.see(ahead);
        if let Some(seconds) = seconds {
            tracing::warn!(
                seconds,
                "the system's time was set, or the machine was suspended; days, weeks, months and years follow it, rates do not"
            );
        }
        let now = self.now();
        for limit in self.limits().limits() {
            if let Err(error) = limit.limiter().at(now).follow_wall(ahead) {
                let limit = &limit.spec().name;
                tracing::error!(%limit, %error, "the limit's calendar could not follow the system's time; trying again in a second");
            }
        }
    }

    /// Records that the store had lost blocks and overrides, once for each time.
    pub fn record_lost_orders(&self) {
        let Some(shared) = &self.store else { return };
        let stats = shared.store().stats();
        let now = stats.orders_given_again + stats.orders_lost;
        if self.lost_orders.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let value = format!(
            "since the start: {} given again, {} lost",
            stats.orders_given_again, stats.orders_lost
        );
        let action = Action::new("this server", "restore-orders").with(&value);
        self.audit.record(self.now(), action);
    }

    /// Removes the overrides that have expired.
    pub fn end_overrides_due(&self) {
        let now = self.now();
        for limit in self.limits().limits() {
            limit.memory.end_overrides_due(now);
        }
    }

    /// The `most` keys of a limit (or of `CL.THROTTLE`) with the most recent requests, and those
    /// with the most recent denials.
    ///
    /// # Errors
    /// When no limit has this name, or it keeps no names of keys.
    pub fn top(&self, limit: &[u8], most: usize, now: Nanos) -> Result<Top, Refusal> {
        let limits = self.limits();
        let none = |limit: &str, global| Refusal::NoHeavyKeys {
            limit: limit.to_owned(),
            global,
        };
        if limit.eq_ignore_ascii_case(THROTTLE.as_bytes()) && limits.limit(limit).is_none() {
            return self
                .throttle
                .top(most, now)
                .ok_or_else(|| none(THROTTLE, false));
        }
        let limit = resolve(&limits, limit, Some(&[]))?.limit;
        let LimitSpec { name, global, .. } = limit.spec();
        limit.top(most, now).ok_or_else(|| none(name, *global))
    }

    /// The `most` keys with the most recent denials, of all limits that `covers` selects.
    pub fn denied_most(
        &self,
        covers: impl Fn(&str) -> bool,
        most: usize,
        now: Nanos,
    ) -> Vec<DeniedKey> {
        let limits = self.limits();
        let covered = limits
            .limits()
            .iter()
            .filter(|limit| covers(&limit.spec().name) && limit.has_denials(now));
        let mut all: Vec<DeniedKey> = covered
            .filter_map(|limit| Some((limit, limit.top(most, now)?)))
            .flat_map(|(limit, top)| {
                let key = |key| DeniedKey {
                    limit: Arc::clone(limit),
                    key,
                    span: top.span,
                };
                top.denied.into_iter().map(key).collect::<Vec<_>>()
            })
            .collect();
        all.sort_by_key(|denied| std::cmp::Reverse(denied.key.count));
        all.truncate(most);
        all
    }

    /// The decision that the limit would make on the key now. The store is asked if only the store
    /// knows; `None` if the rules have changed since.
    pub async fn standing(&self, denied: &DeniedKey) -> Option<Decision> {
        let spec = denied.limit.spec();
        let ask = Ask {
            limit: spec.name.as_bytes(),
            key: (!spec.global).then_some(&denied.key.key),
            cost: 1,
        };
        let answer = self.decide(ask, Act::Peek, self.now()).await;
        answer.ok().map(|answer| answer.decision)
    }

    /// Whether orders about the keys of this limit are refused now: the store that has them is down.
    pub fn refuses_orders(&self, limit: &Limit) -> bool {
        let store = limit.store().and(self.store());
        store.is_some_and(|shared| shared.store().health() == Health::Down)
    }

    /// Whether a block of a key of this limit changes its next decision, which has this reason if
    /// it is a denial.
    pub fn block_helps(&self, limit: &Limit, reason: Option<DenialReason>) -> bool {
        let is_of_no_use = matches!(
            reason,
            Some(DenialReason::DenyListed | DenialReason::StoreDown | DenialReason::TableFull)
        );
        !is_of_no_use && !self.refuses_orders(limit)
    }

    /// How often the system's time was set since the start.
    pub fn wall_clock_steps(&self) -> u64 {
        self.wall_clock.steps()
    }

    /// How many seconds the system's time is away from the service's clock.
    pub fn wall_clock_off(&self) -> u64 {
        self.wall_clock.seconds_off()
    }

    /// The buckets of `CL.THROTTLE` in this server's memory.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Takes from a bucket of `CL.THROTTLE` in memory; `None` if the buckets are in the store.
    #[inline]
    pub fn throttle_in_memory(
        &self,
        key: &[u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> Option<Result<Decision, ThrottleError>> {
        self.store
            .is_none()
            .then(|| self.throttle.acquire(key, quota, quantity, now))
    }

    /// Takes from a bucket of `CL.THROTTLE`, wherever the buckets are.
    pub async fn throttle_in_store(
        &self,
        key: &[u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> Result<Decision, ThrottleError> {
        match &self.store {
            Some(store) => {
                store
                    .throttle(&self.throttle, key, quota, quantity, now)
                    .await
            }
            None => self.throttle.acquire(key, quota, quantity, now),
        }
    }
}
