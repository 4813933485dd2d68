//! Several limits in one decision: all enforced limits admit and consume, or none consumes. Shadow
//! limits are asked as well, but never veto.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all, try_join_all};
use tidegate_core::{Decision, Nanos};
use tidegate_limiter::{Estimate, Request, acquire_all_at, acquire_all_estimates_at};
use tidegate_redis::Part as StorePart;

use super::{Act, Answer, Ask, JointAnswer, Part, Refusal, Service, resolve, shared};
use crate::decide::shared::SharedStore;

impl Service {
    /// Asks several limits, and takes all costs if all admit. It never waits if the limits are in
    /// memory.
    ///
    /// # Errors
    /// When a question is invalid, with its index; and [`Refusal::Scattered`] if the keys are on
    /// different nodes of a cluster.
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn acquire_all(
        &self,
        asks: &[Ask<'_>],
        now: Nanos,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let decisions = self
            .take_all(&parts, now)
            .await
            .map_err(|refusal| (0, refusal))?;
        Ok(Decided { parts, decisions }.into_joint())
    }

    /// One decision for each of these limits: all enforced limits admit and are charged, or none
    /// is.
    ///
    /// # Errors
    /// [`Refusal::Scattered`] if the keys are on different nodes of a cluster, and
    /// [`Refusal::TooManyKeys`].
    pub async fn take_all(&self, parts: &[Part<'_>], now: Nanos) -> Result<Vec<Decision>, Refusal> {
        match self.store().filter(|_| parts.iter().any(Part::is_stored)) {
            Some(store) => self.take_all_in_store(store, parts, now).await,
            None => take_in_memory(parts, now),
        }
    }

    fn take_all_in_store<'a>(
        &'a self,
        store: &'a SharedStore,
        parts: &'a [Part<'a>],
        now: Nanos,
    ) -> BoxFuture<'a, Result<Vec<Decision>, Refusal>> {
        Box::pin(async move {
            if let [part] = parts
                && let Some(decision) =
                    part.limit
                        .decide_in_memory(Act::Take, part.key, part.cost, now)
            {
                return Ok(vec![decision]);
            }
            let together = take_together(store, parts, now).await?;
            // Later questions must be answered by the same deadline.
            let spent = self.now().saturating_since(now).into();
            let admitted = together
                .as_ref()
                .is_some_and(|all| all.iter().all(Decision::is_allowed));
            let together = together.unwrap_or_default();
            Ok(each_in_store(parts, together, admitted, (now, spent)).await)
        })
    }

    /// Asks several limits without taking anything.
    ///
    /// # Errors
    /// The same as [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn peek_all(
        &self,
        asks: &[Ask<'_>],
        now: Nanos,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let decisions = parts.iter().enumerate().map(async |(at, part)| {
            let decision = part.limit.decide(Act::Peek, part.key, part.cost, now).await;
            decision.map_err(|refusal| (at, refusal))
        });
        let decisions = try_join_all(decisions).await?;
        Ok(Decided { parts, decisions }.into_joint())
    }

    pub(super) fn parts<'a>(&self, asks: &[Ask<'a>]) -> Result<Vec<Part<'a>>, (usize, Refusal)> {
        let limits = self.limits();
        // Collecting results would grow the list twice.
        let mut parts = Vec::with_capacity(asks.len());
        for (at, ask) in asks.iter().enumerate() {
            let resolved = resolve(&limits, ask.limit, ask.key).map_err(|refusal| (at, refusal))?;
            parts.push(Part {
                limit: Arc::clone(resolved.limit),
                key: resolved.key,
                cost: ask.cost,
            });
        }
        Ok(parts)
    }
}

/// Parts and their decisions, at least one.
pub struct Decided<'a> {
    pub(super) parts: Vec<Part<'a>>,
    pub(super) decisions: Vec<Decision>,
}

impl Decided<'_> {
    pub(super) fn each(&self) -> impl ExactSizeIterator<Item = (&Part<'_>, &Decision)> {
        self.parts.iter().zip(&self.decisions)
    }

    /// Whether all enforced limits admitted.
    pub(super) fn is_allowed(&self) -> bool {
        self.each().all(|(part, decision)| part.allows(decision))
    }

    /// These estimates, as far as the limits have taken them: a shadow limit that would deny has
    /// taken nothing, unless it is soft.
    pub(super) fn taken(&self, estimates: Vec<Estimate>) -> impl Iterator<Item = Estimate> {
        let each = self.each().zip(estimates);
        each.map(|((part, decision), estimate)| {
            let has_taken = decision.is_allowed() || part.limit.spec().soft;
            let cost = if has_taken { estimate.cost } else { 0 };
            Estimate { cost, ..estimate }
        })
    }

    /// See [`JointAnswer::bound`].
    fn bound(&self) -> usize {
        let strictness = |(at, (part, decision)): (usize, (&Part<'_>, &Decision))| {
            let severity = if part.allows(decision) {
                0
            } else {
                decision.severity()
            };
            // The first among equals.
            (severity, Reverse(decision.remaining()), Reverse(at))
        };
        let strictest = self.each().enumerate().map(strictness).max();
        let (.., Reverse(at)) = strictest.expect("at least one limit is asked");
        at
    }

    /// The answer of each limit.
    pub fn into_joint(self) -> JointAnswer {
        let bound = self.bound();
        let answers = self
            .parts
            .into_iter()
            .zip(self.decisions)
            .map(|(part, decision)| part.answer(decision));
        JointAnswer {
            answers: answers.collect(),
            bound,
        }
    }

    /// The answer of the limit that bound.
    pub fn into_bound(mut self) -> Answer {
        let bound = self.bound();
        self.parts.swap_remove(bound).answer(self.decisions[bound])
    }
}

/// One decision for each of these limits, which are all in memory.
///
/// # Errors
/// [`Refusal::TooManyKeys`] and [`Refusal::SharedTwice`]
pub(super) fn take_in_memory(parts: &[Part<'_>], now: Nanos) -> Result<Vec<Decision>, Refusal> {
    if let [part] = parts {
        return Ok(vec![alone(part, Act::Take, now)]);
    }
    if parts.iter().any(Part::is_shared) {
        let together = shared::take(parts, None, now)?;
        return Ok(each_in_memory(parts, &together, now));
    }
    let joint = acquire_all_at(&requests(parts), now).map_err(|_| Refusal::TooManyKeys)?;
    Ok(each_in_memory(parts, joint.decisions(), now))
}

/// [`take_in_memory`], with an estimate of what each limit gives if all admit.
pub(super) fn take_noted_in_memory(
    parts: &[Part<'_>],
    now: Nanos,
) -> Result<(Vec<Decision>, Vec<Estimate>), Refusal> {
    // Each step notes where its units count: a reset or a change of the rules may come in between.
    let (together, taken) = if parts.iter().any(Part::is_shared) {
        let mut taken = Vec::new();
        (shared::take(parts, Some(&mut taken), now)?, taken)
    } else {
        let taken = acquire_all_estimates_at(&requests(parts), now);
        let (joint, taken) = taken.map_err(|_| Refusal::TooManyKeys)?;
        (joint.decisions().to_vec(), taken)
    };
    let admitted = together.iter().all(Decision::is_allowed);
    let (mut together, mut taken) = (together.into_iter(), taken.into_iter());
    let (mut decisions, mut estimates) = (Vec::new(), Vec::new());
    for part in parts {
        let (decision, estimate) = if part.is_enforced() {
            let decided = together.next();
            let decision = decided.map(|decided| part.counted(decided, admitted, now));
            (decision, taken.next().filter(|_| part.returns()))
        } else {
            let (limit, key, cost) = (&part.limit, part.key, part.cost);
            let (decision, taken) = limit.decide_noted_in_memory(after(admitted), key, cost, now);
            (Some(decision), taken.filter(|_| part.returns()))
        };
        decisions.extend(decision);
        // Without an admission nothing was taken, and nothing is kept.
        estimates.push(estimate.unwrap_or(Estimate {
            cost: part.cost,
            taken: now,
            place: 0,
        }));
    }
    Ok((decisions, estimates))
}

/// The requests to the enforced limits.
fn requests<'p>(parts: &'p [Part<'_>]) -> Vec<Request<'p, ()>> {
    let enforced = parts.iter().filter(|part| part.is_enforced());
    let requests = enforced.map(|part| part.limit.request(part.key, part.cost));
    requests.collect()
}

/// The decision of each limit, counted: those that enforced limits made together, and then those of
/// shadow limits.
fn each_in_memory(parts: &[Part<'_>], together: &[Decision], now: Nanos) -> Vec<Decision> {
    let admitted = together.iter().all(Decision::is_allowed);
    let mut together = together.iter();
    let mut decided = |part: &Part<'_>| {
        if part.is_enforced() {
            together.next()
        } else {
            None
        }
    };
    let decision = |part| match decided(part) {
        Some(&decided) => part.counted(decided, admitted, now),
        None => alone(part, after(admitted), now),
    };
    parts.iter().map(decision).collect()
}

/// The decision of one limit, which is in memory.
pub(super) fn alone(part: &Part<'_>, act: Act, now: Nanos) -> Decision {
    let decision = part.limit.decide_in_memory(act, part.key, part.cost, now);
    decision.expect("the limit is in memory")
}

/// The decisions of the enforced limits, made in one step in the store; `None` if it was not asked
/// because one of the keys is blocked.
async fn take_together(
    store: &SharedStore,
    parts: &[Part<'_>],
    now: Nanos,
) -> Result<Option<Vec<Decision>>, Refusal> {
    let enforced = || parts.iter().filter(|part| part.is_enforced());
    shared::check(&enforced().collect::<Vec<_>>())?;
    if enforced().any(|part| part.limit.block_of(part.key, now).is_some()) {
        return Ok(None);
    }
    let limits: Option<Vec<_>> = enforced().map(Part::stored).collect();
    match limits {
        Some(limits) if !limits.is_empty() => {
            let pairs = limits.iter().zip(enforced());
            let asked: Vec<_> = pairs
                .map(|(limit, part)| StorePart {
                    limit,
                    key: part.key,
                    cost: part.cost,
                })
                .collect();
            let shared = store.acquire_all(&asked).await?;
            let counted = enforced()
                .zip(shared)
                .map(|(part, shared)| part.limit.by_store(&shared));
            Ok(Some(counted.collect()))
        }
        _ => Ok(Some(Vec::new())),
    }
}

/// The decision of each limit, counted: those that enforced limits made together, and then those of
/// the others.
pub(super) fn each_in_store<'a>(
    parts: &'a [Part<'a>],
    together: Vec<Decision>,
    admitted: bool,
    (now, spent): (Nanos, Duration),
) -> BoxFuture<'a, Vec<Decision>> {
    Box::pin(async move {
        let mut together = together.into_iter();
        let decisions = parts.iter().map(|part| {
            let decided = if part.is_enforced() {
                together.next()
            } else {
                None
            };
            part.decision(decided, admitted, now, spent)
        });
        join_all(decisions).await
    })
}

/// A shadow limit consumes what the enforced limits admit.
pub(super) fn after(admitted: bool) -> Act {
    if admitted { Act::Take } else { Act::Peek }
}

impl Part<'_> {
    /// This limit's decision, from its decision in the joint step and whether that admitted.
    async fn decision(
        &self,
        decided: Option<Decision>,
        admitted: bool,
        now: Nanos,
        spent: Duration,
    ) -> Decision {
        let Self { limit, key, cost } = self;
        if let Some(decided) = decided {
            return self.counted(decided, admitted, now);
        }
        let decision = limit
            .decide_after(spent, after(admitted), key, *cost, now)
            .await;
        let decision = decision.expect("only a refund is refused");
        // The key is blocked, so the store was not asked.
        if !admitted && decision.is_denied() && self.is_enforced() {
            limit.count(Act::Take, key, *cost, &decision, now);
        }
        decision
    }
}
