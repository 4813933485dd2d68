//! Waiting in line for limits in the store.
//!
//! A line is a record next to a key, with a ticket for each request that waits, in the order of their
//! ranks: the time of their arrival at the store, and the handicap of their priority. A request that waits for several keys has a ticket in each of their lines,
//! which one call adds, so tickets have the same order in all of them. A task of each server asks for
//! all of its tickets at the same keys: one call adds new ones, removes those that were given up, and
//! takes the units of the first one if it is the first in all of its lines and they are there. So a
//! server asks when the first ticket is due, and otherwise once a second, which also keeps its
//! tickets: those of a server that does not ask for five seconds are removed.

mod grant;
mod lines;
mod turn;

use std::{borrow::Cow, sync::Arc, time::Duration};

use tidegate_core::{Decision, DenialReason, Key, Nanos, Priority, Standing};

use self::lines::Outcome;
pub use self::{grant::SharedGrant, lines::Lines};
use super::{
    Part, SharedDecision, SharedLimit, Source,
    joint::{all_without_store, by_all, decide_joint, formers_of, of_formers},
    reserve::deadline_of,
};
use crate::{Deadline, Plan, Store, StoreError};

/// The limits that decide on those who wait for their keys, in the order of the request's parts, and
/// whether they may admit now. With another number of limits, [`OnError`](crate::OnError) decides.
pub type LimitNow = Arc<dyn Fn() -> (Vec<SharedLimit>, bool) + Send + Sync>;

/// How long a request waits in line at most, and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFor {
    /// The longest wait, at most a day.
    pub span: Duration,
    /// Who is served first.
    pub priority: Priority,
}

impl WaitFor {
    /// Waits up to `span`, with a priority.
    #[must_use]
    pub const fn new(span: Duration, priority: Priority) -> Self {
        Self { span, priority }
    }
}

impl From<Duration> for WaitFor {
    fn from(span: Duration) -> Self {
        Self::new(span, Priority::DEFAULT)
    }
}

/// A part of a request that waits.
#[derive(Clone, Debug)]
struct WaitPart {
    limit: SharedLimit,
    key: Vec<u8>,
    cost: u64,
}

impl WaitPart {
    fn owned(part: &Part<'_>) -> Self {
        Self {
            limit: part.limit.clone(),
            key: part.key.to_vec(),
            cost: part.cost,
        }
    }

    fn borrowed(&self) -> Part<'_> {
        Part {
            limit: &self.limit,
            key: &self.key,
            cost: self.cost,
        }
    }
}

/// The outcome of the first step of a request that may wait.
#[derive(Debug)]
pub enum Tried {
    /// It was decided at once.
    Decided(SharedGrant),
    /// It has to wait.
    Waits(Queued),
}

/// A request that has to wait, and has no place in line yet.
#[derive(Debug)]
#[must_use = "it waits when `answer` is polled"]
pub struct Queued {
    store: Store,
    parts: Vec<WaitPart>,
    until: Deadline,
    span: Duration,
    priority: Priority,
    /// The decisions of the first step, with the time that the wait is going to take.
    tried: Vec<Decision>,
    /// A leaky bucket's start time that has not come yet.
    granted: Option<SharedGrant>,
}

impl SharedLimit {
    /// Whether requests can wait for this limit (see [`LimitBuilder::line`](crate::LimitBuilder::line)).
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.plan().has_line()
    }

    /// Asks for `cost`, and waits in line until it is there, for at most the given time (at most a
    /// day): the first of a [`Priority`] to come at any node is the first to be served, also if its cost is large, and requests that
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
    pub async fn wait(&self, key: &[u8], cost: u64, wait: impl Into<WaitFor>) -> SharedDecision {
        let part = Part {
            limit: self,
            key,
            cost,
        };
        match self.store().wait_all(&[part], wait).await {
            Ok(mut answers) => answers.remove(0),
            Err(error) => self.without_store(key, cost, error),
        }
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

impl Store {
    /// Asks several limits in one step, like [`acquire_all`](Self::acquire_all), and waits like
    /// [`SharedLimit::wait`] until all admit. The request is in the lines of all keys, and its units
    /// are taken when it is the first in each and all admit.
    ///
    /// # Errors
    /// [`StoreError::CrossSlot`] if the keys have no common hash tag in a cluster, and
    /// [`StoreError::OneKey`] if a key of a limit occurs twice.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn wait_all(
        &self,
        parts: &[Part<'_>],
        wait: impl Into<WaitFor>,
    ) -> Result<Vec<SharedDecision>, StoreError> {
        match self.try_wait_all(parts, wait).await? {
            Tried::Decided(granted) => Ok(granted.keep().0),
            Tried::Waits(queued) => {
                let limits: Vec<_> = parts.iter().map(|part| part.limit.clone()).collect();
                let now = Arc::new(move || (limits.clone(), true));
                Ok(queued.answer(now).await.keep().0)
            }
        }
    }

    /// The first step of [`wait_all`](Self::wait_all): decides at once, or says that the request has
    /// to wait.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn try_wait_all(
        &self,
        parts: &[Part<'_>],
        wait: impl Into<WaitFor>,
    ) -> Result<Tried, StoreError> {
        let WaitFor { span, priority } = wait.into();
        let Some(first) = parts.first() else {
            return Ok(Tried::Decided(SharedGrant::nothing(Vec::new())));
        };
        for (at, part) in parts.iter().enumerate() {
            let line = part.limit.line_key(part.key);
            let same = |other: &Part<'_>| other.limit.line_key(other.key) == line;
            if parts[..at].iter().any(same) {
                return Err(StoreError::OneKey);
            }
        }
        let owned: Vec<_> = parts.iter().map(WaitPart::owned).collect();
        let queued = |parts, tried, granted| {
            Tried::Waits(Queued {
                store: self.clone(),
                parts,
                until: Deadline::after(span),
                span,
                priority,
                tried,
                granted,
            })
        };
        let by_places = |owned, seen: Vec<Decision>| {
            if are_in_time(&seen, span) {
                queued(owned, seen, None)
            } else {
                refused(seen.into_iter().map(SharedDecision::by_store).collect())
            }
        };
        let has_lines = parts.iter().all(|part| part.limit.has_line());
        let blocks = |part: &Part<'_>| part.limit.plan().penalty().is_some();
        if has_lines
            && parts.iter().any(blocks)
            // Only the line asks: any other request would count as a denial if it did not fit.
            && let Ok(seen) = self.look_at_places(parts, priority).await
        {
            return Ok(by_places(owned, seen));
        }
        let (store, asking) = (self.clone(), owned.clone());
        // In a separate task: if this future is dropped, the grant returns.
        let asked = first.limit.runtime().spawn(async move {
            let parts: Vec<_> = asking.iter().map(WaitPart::borrowed).collect();
            let asked = Box::pin(store.acquire_all_estimates(&parts)).await?;
            Ok(SharedGrant::new(asking, asked))
        });
        let Ok(grant) = asked.await else {
            let decided = all_without_store(parts, |_| true, &StoreError::LineEnded);
            return Ok(Tried::Decided(SharedGrant::new(owned, decided)));
        };
        let grant = grant?;
        let decisions: Vec<_> = grant.answers.iter().map(|answer| answer.decision).collect();
        let is_admitted = decisions.iter().all(Decision::is_allowed);
        let has_started =
            is_admitted && decisions.iter().all(|decision| decision.delay().is_zero());
        let by_store =
            |answer: &SharedDecision| matches!(answer.source, Source::Store | Source::Remembered);
        if has_started || !has_lines || !grant.answers.iter().all(by_store) {
            return Ok(Tried::Decided(grant));
        }
        if are_in_time(&decisions, span) {
            return Ok(queued(owned, decisions, is_admitted.then_some(grant)));
        }
        // They are behind all who wait. Its place may be in front of some.
        if priority > Priority::LOWEST
            && !is_admitted
            && let Ok(seen) = self.look_at_places(parts, priority).await
        {
            return Ok(by_places(owned, seen));
        }
        // A start after the deadline returns with the grant.
        Ok(refused(grant.answers.clone()))
    }

    /// The decisions of all limits together at the places of a caller that joins their lines now,
    /// without taking anything.
    async fn look_at_places(
        &self,
        parts: &[Part<'_>],
        priority: Priority,
    ) -> Result<Vec<Decision>, StoreError> {
        let deadline = deadline_of(parts.iter().map(|part| part.limit));
        let formers = formers_of(parts, deadline).await?;
        let mut requests: Vec<_> = parts
            .iter()
            .map(|part| part.limit.request(part.key, part.cost))
            .collect();
        for request in &mut requests {
            request.plan = Cow::Owned(request.plan.joining(priority));
        }
        for (part, formers) in parts.iter().zip(&formers) {
            requests.extend(of_formers(formers, &part.state_key(), part.cost));
        }
        let decisions = decide_joint(self, &requests, false, deadline).await?;
        by_all(&decisions, &formers).ok_or(StoreError::BadReply)
    }
}

impl Queued {
    /// Waits in line, as [`Store::wait_all`] does. `now` is asked before each call to the store, so that a limit that
    /// changes decides by its new policy; the closure of the request that came last counts for all
    /// that wait for the same keys.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn answer(mut self, now: LimitNow) -> SharedGrant {
        if let Some(grant) = self.granted.take() {
            return self.start(grant).await;
        }
        let Some(mut ticket) =
            Lines::join(&self.store, &self.parts, self.priority, now, turn::serve)
        else {
            return SharedGrant::nothing(Vec::new());
        };
        match self.until.bound(ticket.outcome()).await {
            Ok(Some(Outcome::Granted(grant))) => self.start(grant).await,
            Ok(Some(Outcome::Denied(at, decision))) => {
                if let Some(tried) = self.tried.get_mut(at) {
                    *tried = decision;
                }
                self.denied(|decision| *decision)
            }
            Ok(Some(Outcome::Failed(error))) => self.without_store(&error),
            Ok(None) => self.without_store(&StoreError::LineEnded),
            Err(_) => {
                let waited = Nanos::from(self.span).get();
                self.denied(|tried| {
                    if !tried.is_denied() {
                        return *tried;
                    }
                    let wait = tried
                        .retry_after()
                        .map_or(0, |wait| Nanos::from(wait).get());
                    let denied =
                        Decision::deny(tried.standing(), wait.saturating_sub(waited).max(1));
                    tried.reason().map_or(denied, |why| denied.because(why))
                })
            }
        }
    }

    fn denied(&self, decision: impl Fn(&Decision) -> Decision) -> SharedGrant {
        let answers = self.tried.iter().map(decision);
        SharedGrant::nothing(answers.map(SharedDecision::by_store).collect())
    }

    /// Waits until work that was admitted may start. Dropping the future gives it back.
    async fn start(&self, mut grant: SharedGrant) -> SharedGrant {
        let delays = grant.answers.iter().map(|answer| answer.decision.delay());
        let delay = delays.max().unwrap_or_default();
        if delay.is_zero() {
            return grant;
        }
        if delay > self.until.left() {
            let late = grant
                .answers
                .iter()
                .map(|answer| too_late(&answer.decision));
            return SharedGrant::nothing(late.map(SharedDecision::by_store).collect());
        }
        tokio::time::sleep(delay).await;
        for answer in &mut grant.answers {
            let standing = answer.decision.standing();
            answer.decision = Decision::allow(Standing {
                reset_after: standing
                    .reset_after
                    .saturating_sub(Nanos::from(delay).get()),
                ..standing
            });
        }
        grant
    }

    fn without_store(&self, error: &StoreError) -> SharedGrant {
        let parts: Vec<_> = self.parts.iter().map(WaitPart::borrowed).collect();
        let decided = all_without_store(&parts, |_| true, error);
        SharedGrant::new(self.parts.clone(), decided)
    }
}

/// Whether work may start within a span, as far as that is known.
fn are_in_time(decisions: &[Decision], span: Duration) -> bool {
    decisions.iter().all(|decision| is_in_time(decision, span))
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
fn refused(mut answers: Vec<SharedDecision>) -> Tried {
    if answers.iter().all(SharedDecision::is_allowed) {
        for answer in &mut answers {
            answer.decision = too_late(&answer.decision);
        }
    }
    Tried::Decided(SharedGrant::nothing(answers))
}

/// The denial of work that would start after the deadline.
fn too_late(decision: &Decision) -> Decision {
    if decision.is_denied() || decision.delay().is_zero() {
        return *decision;
    }
    Decision::deny(decision.standing(), Nanos::from(decision.delay()).get())
}
