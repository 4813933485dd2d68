//! Waiting in line for a limit in the store.
//!
//! A line is a record next to a key, with a ticket for each request that waits, in the order of their
//! arrival at the store. A task of each server asks for all of its tickets: one call adds new ones,
//! removes those that were given up, and takes the units of the first one if it is this server's
//! and they are there. So a server asks when the first ticket is due, and otherwise once a second,
//! which also keeps its tickets: those of a server that does not ask for five seconds are removed.

mod grant;
mod lines;
mod turn;

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, DenialReason, Key, Nanos, Standing};

pub use self::lines::Lines;
use self::{grant::Grant, lines::Outcome};
use super::{SharedDecision, SharedEstimate, SharedLimit, Source};
use crate::{Deadline, Plan, StoreError};

/// The limit that decides on those who wait for a key, and whether it may admit now.
pub type LimitNow = Arc<dyn Fn() -> (SharedLimit, bool) + Send + Sync>;

/// The outcome of the first step of a request that may wait.
#[derive(Debug)]
pub enum Tried {
    /// It was decided at once.
    Decided(SharedDecision, SharedEstimate),
    /// It has to wait.
    Waits(Queued),
}

/// A request that has to wait, and has no place in line yet.
#[derive(Debug)]
#[must_use = "it waits when `answer` is polled"]
pub struct Queued {
    limit: SharedLimit,
    key: Vec<u8>,
    cost: u64,
    until: Deadline,
    span: Duration,
    /// The denial, with the time that the wait is going to take.
    denied: Decision,
    /// A leaky bucket's start time that has not come yet.
    granted: Option<Grant>,
}

impl SharedLimit {
    /// Whether requests can wait for this limit (see [`LimitBuilder::line`](crate::LimitBuilder::line)).
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.plan().has_line()
    }

    /// Asks for `cost`, and waits in line up to `span` (at most a day) until it is there: the first
    /// to come at any node is the first to be served, also if its cost is large, and requests that
    /// do not wait are denied until then. A leaky bucket's delay is waited for, too.
    ///
    /// A time that cannot be met is refused at once: a denial whose
    /// [`retry_after`](Decision::retry_after) is the time that the wait would take. So is every
    /// denial of a limit [without a line](Self::has_line).
    ///
    /// If the future is dropped early, the request leaves the line, and units that were granted in
    /// that moment return. If the store does not reply, [`OnError`](crate::OnError) decides, also
    /// for those who wait.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn wait(&self, key: &[u8], cost: u64, span: Duration) -> SharedDecision {
        match self.try_wait(key, cost, span).await {
            Tried::Decided(answer, _) => answer,
            Tried::Waits(queued) => {
                let limit = self.clone();
                queued
                    .answer(Arc::new(move || (limit.clone(), true)))
                    .await
                    .0
            }
        }
    }

    /// The first step of [`wait`](Self::wait): decides at once, or says that the request has to
    /// wait.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn try_wait(&self, key: &[u8], cost: u64, span: Duration) -> Tried {
        let queued = |denied, granted| {
            Tried::Waits(Queued {
                limit: self.clone(),
                key: key.to_vec(),
                cost,
                until: Deadline::after(span),
                span,
                denied,
                granted,
            })
        };
        if self.has_line() && self.plan().penalty().is_some() {
            // Only the line asks for it: any other request would count as a denial if it did not fit.
            let seen = self.peek(key, cost).await;
            if seen.source == Source::Store {
                return if is_in_time(&seen.decision, span) {
                    queued(seen.decision, None)
                } else {
                    refused(&seen)
                };
            }
        }
        let (limit, owned) = (self.clone(), key.to_vec());
        // In a separate task: if this future is dropped, the grant returns.
        let asked = self.runtime().spawn(async move {
            let asked = Box::pin(limit.acquire_estimate(&owned[..], cost)).await;
            Grant::new(limit, owned, asked)
        });
        let Ok(grant) = asked.await else {
            return refused(&self.without_store(key, cost, StoreError::LineEnded));
        };
        let decision = grant.answer.decision;
        let has_started = decision.is_allowed() && decision.delay().is_zero();
        let by_store = matches!(grant.answer.source, Source::Store | Source::Remembered);
        if has_started || !self.has_line() || !by_store {
            let (answer, estimate) = grant.keep();
            return Tried::Decided(answer, estimate);
        }
        if is_in_time(&decision, span) {
            return queued(decision, decision.is_allowed().then_some(grant));
        }
        // A start after the deadline returns with the grant.
        refused(&grant.answer)
    }

    /// The key of the line at a key.
    pub(super) fn line_key(&self, key: impl Key) -> Vec<u8> {
        let whole = self.redis_key(key);
        Plan::line_key(&whole, self.monitor().is_cluster())
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        self.monitor().runner.connector.runtime()
    }
}

impl Queued {
    /// Waits in line, as [`SharedLimit::wait`] does. The second value is what was taken, for
    /// [`SharedLimit::settle`]. `now` is asked before each call to the store, so that a limit that
    /// changes decides by its new policy; the closure of the request that came last counts for all of a
    /// key.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn answer(mut self, now: LimitNow) -> (SharedDecision, SharedEstimate) {
        if let Some(grant) = self.granted.take() {
            return self.start(grant).await;
        }
        let mut ticket = Lines::join(&self.limit, &self.key, self.cost, now);
        match self.until.bound(ticket.outcome()).await {
            Ok(Some(Outcome::Granted(grant))) => self.start(grant).await,
            Ok(Some(Outcome::Denied(decision))) => (
                SharedDecision::by_store(decision),
                SharedEstimate::unknown(0),
            ),
            Ok(Some(Outcome::Failed(error))) => self.without_store(error),
            Ok(None) => self.without_store(StoreError::LineEnded),
            Err(_) => {
                let waited = Nanos::from(self.span).get();
                let wait = self
                    .denied
                    .retry_after()
                    .map_or(0, |wait| Nanos::from(wait).get());
                let denied =
                    Decision::deny(self.denied.standing(), wait.saturating_sub(waited).max(1));
                let decision = self
                    .denied
                    .reason()
                    .map_or(denied, |why| denied.because(why));
                (
                    SharedDecision::by_store(decision),
                    SharedEstimate::unknown(0),
                )
            }
        }
    }

    /// Waits until work that was admitted may start. Dropping the future gives it back.
    async fn start(&self, grant: Grant) -> (SharedDecision, SharedEstimate) {
        let decision = grant.answer.decision;
        let delay = decision.delay();
        if delay > self.until.left() && !delay.is_zero() {
            let denied = SharedDecision::by_store(too_late(&decision));
            return (denied, SharedEstimate::unknown(0));
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let (answer, estimate) = grant.keep();
        let standing = answer.decision.standing();
        let decision = Decision::allow(Standing {
            reset_after: standing
                .reset_after
                .saturating_sub(Nanos::from(delay).get()),
            ..standing
        });
        (SharedDecision { decision, ..answer }, estimate)
    }

    fn without_store(&self, error: StoreError) -> (SharedDecision, SharedEstimate) {
        let (answer, taken) = self.limit.take_without_store(&self.key, self.cost, error);
        (answer, SharedEstimate::of_local(self.cost, taken))
    }
}

/// Whether work may start within a span. When a permit returns is unknown.
fn is_in_time(decision: &Decision, span: Duration) -> bool {
    let is_unknown = decision.reason() == Some(DenialReason::InFlight);
    let starts = match decision.retry_after() {
        None if decision.is_denied() => return false,
        None => decision.delay(),
        Some(wait) => wait,
    };
    is_unknown || starts <= span
}

/// The answer to a request whose time cannot be met.
fn refused(answer: &SharedDecision) -> Tried {
    let answer = SharedDecision {
        decision: too_late(&answer.decision),
        source: answer.source.clone(),
    };
    Tried::Decided(answer, SharedEstimate::unknown(0))
}

/// The denial of work that would start after the deadline.
fn too_late(decision: &Decision) -> Decision {
    if decision.is_denied() {
        return *decision;
    }
    Decision::deny(decision.standing(), Nanos::from(decision.delay()).get())
}
