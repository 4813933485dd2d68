//! Waiting in line: a request that is not admitted now is answered when its units are there.
//!
//! A caller has a place in the lines of its limits while its future exists. Dropping the future
//! gives up the place, and units that were granted in that moment return.

mod in_line;

use std::{
    convert::Infallible,
    slice,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tidegate_core::{Decision, Nanos, Priority, Standing, clock::Timer as _};
use tidegate_limiter::{
    Admission, Estimate, WaitAllError, WaitError, WaitUntil, wait_all_estimates_by,
};
use tidegate_redis::{
    LimitNow, Part as StorePart, SharedDecision, SharedGrant, SharedLimit, Source, StoreError,
    Tried, WaitFor,
};

use super::{
    Act, Answer, Ask, JointAnswer, Part, Refusal, Service,
    joint::{Decided, after, alone, each_in_store, take_in_memory},
};
use crate::decide::{limits::Limit, reservations::ReservationError};

/// The longest time that a request may wait.
pub const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How long a caller sleeps at most while an operator's block in the store holds it up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How a request waits that may give a time and a priority; `None` if it gives neither.
///
/// # Errors
/// [`Refusal::Wait`], and [`Refusal::PriorityAlone`] if it gives only a priority.
pub fn wait_of(
    span: Option<Duration>,
    priority: Option<Priority>,
) -> Result<Option<WaitFor>, Refusal> {
    let Some(span) = span else {
        return priority.map_or(Ok(None), |_| Err(Refusal::PriorityAlone));
    };
    check_wait(span)?;
    Ok(Some(WaitFor::new(span, priority.unwrap_or_default())))
}

/// Checks how long a request wants to wait.
///
/// # Errors
/// [`Refusal::Wait`]
pub fn check_wait(span: Duration) -> Result<(), Refusal> {
    if span < Duration::from_millis(1) || span > LONGEST_WAIT {
        return Err(Refusal::Wait);
    }
    Ok(())
}

/// The outcome of a wait for one limit.
type WaitedFor = Result<(Admission, Estimate), WaitError>;

impl Service {
    /// Asks several limits, as [`acquire_all`](Self::acquire_all) does, and waits until all admit,
    /// for a time that was [checked](wait_of).
    ///
    /// # Errors
    /// The same; also when the request cannot wait, or its wait was ended: see [`Refusal`].
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn acquire_all_waiting(
        &self,
        asks: &[Ask<'_>],
        wait: impl Into<WaitFor>,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let decisions = self
            .take_all_waiting(&parts, wait)
            .await
            .map_err(|refusal| (0, refusal))?;
        Ok(Decided { parts, decisions }.into_joint())
    }

    /// One decision for each of these limits, as [`take_all`](Self::take_all) makes them, once all
    /// admit, or when it is known that they do not in time.
    ///
    /// # Errors
    /// The same as [`acquire_all_waiting`](Self::acquire_all_waiting).
    pub async fn take_all_waiting(
        &self,
        parts: &[Part<'_>],
        wait: impl Into<WaitFor>,
    ) -> Result<Vec<Decision>, Refusal> {
        let wait = wait.into();
        if !are_stored(parts)? {
            return Ok(self.wait_for_all(parts, wait).await?.0);
        }
        let waited = self.wait_in_store(parts, wait).await?;
        let decisions = self.each_waited(parts, waited.together).await;
        // From here on the units are the caller's.
        let _kept = waited.granted.map(SharedGrant::keep);
        Ok(decisions)
    }

    /// [`take_all_waiting`](Self::take_all_waiting) for limits in memory. The second value is what
    /// each enforced limit has taken if all admit.
    pub(super) async fn wait_for_all(
        &self,
        parts: &[Part<'_>],
        wait: WaitFor,
    ) -> Result<(Vec<Decision>, Vec<Estimate>), Refusal> {
        let until = self.until(wait);
        let mut enforced = parts.iter().filter(|part| part.is_enforced());
        match (enforced.next(), enforced.next()) {
            (None, _) => {
                self.may_wait(parts)?;
                // These limits deny nothing.
                Ok((take_in_memory(parts, self.now())?, Vec::new()))
            }
            (Some(part), None) => {
                let wait = self.wait_for(part, parts, until)?;
                let (decision, taken) = match wait.await? {
                    Ok((admission, taken)) => (started(&admission), vec![taken]),
                    Err(error) => (denied(error.decision()), Vec::new()),
                };
                Ok((self.count_waited(parts, &[decision]), taken))
            }
            _ => Box::pin(self.wait_for_several(parts, until)).await,
        }
    }

    /// A wait from now on, by the service's clock.
    fn until(&self, WaitFor { span, priority }: WaitFor) -> WaitUntil {
        WaitUntil::new(Some(self.now().saturating_add(span.into()))).priority(priority)
    }

    /// A wait for one of these limits, the only one that is enforced.
    fn wait_for<'a>(
        &'a self,
        part: &'a Part<'a>,
        parts: &'a [Part<'a>],
        until: WaitUntil,
    ) -> Result<impl Future<Output = Result<WaitedFor, Refusal>>, Refusal> {
        let limiter = part.limit.limiter();
        let wait = limiter.wait_estimate_by(&self.timer, part.key, part.cost, until);
        self.in_line(parts, wait)
    }

    async fn wait_for_several(
        &self,
        parts: &[Part<'_>],
        until: WaitUntil,
    ) -> Result<(Vec<Decision>, Vec<Estimate>), Refusal> {
        let enforced = parts.iter().filter(|part| part.is_enforced());
        let requests: Vec<_> = enforced
            .map(|part| part.limit.request(part.key, part.cost))
            .collect();
        let wait = wait_all_estimates_by(&self.timer, &requests, until);
        match self.in_line(parts, Box::pin(wait))?.await? {
            Ok((all, taken)) => {
                let together: Vec<_> = all.decisions().iter().map(started).collect();
                Ok((self.count_waited(parts, &together), taken))
            }
            Err(WaitAllError::Never(all) | WaitAllError::Deadline(all)) => {
                let bound = all.bound();
                let each = all.decisions().iter().enumerate();
                let decisions = each.map(|(at, decision)| match bound {
                    Some(bound) if bound == at => denied(decision),
                    _ => *decision,
                });
                let together: Vec<_> = decisions.collect();
                Ok((self.count_waited(parts, &together), Vec::new()))
            }
            Err(_) => Err(Refusal::TooManyKeys),
        }
    }

    /// The decision of one limit, as [`take_all_waiting`](Self::take_all_waiting) makes it.
    ///
    /// # Errors
    /// The same.
    #[allow(
        clippy::manual_async_fn,
        reason = "the future of an async function holds its arguments twice"
    )]
    pub fn take_waiting<'a>(
        &'a self,
        part: Part<'a>,
        wait: impl Into<WaitFor> + 'a,
    ) -> impl Future<Output = Result<Answer, Refusal>> + 'a {
        async move {
            let parts = slice::from_ref(&part);
            let decisions = if part.is_stored() || !part.is_enforced() {
                Box::pin(self.take_all_waiting(parts, wait)).await?
            } else {
                // By itself: what `?` looks at would stay in the future.
                let wait = self.wait_for(&part, parts, self.until(wait.into()))?;
                let decision = match &wait.await? {
                    Ok((admission, _)) => started(admission),
                    Err(error) => denied(error.decision()),
                };
                self.count_waited(parts, &[decision])
            };
            let parts = vec![part];
            Ok(Decided { parts, decisions }.into_bound())
        }
    }

    /// Counts the decisions of the enforced limits, and decides on the others.
    fn count_waited(&self, parts: &[Part<'_>], together: &[Decision]) -> Vec<Decision> {
        let now = self.now();
        let admitted = together.iter().all(Decision::is_allowed);
        let mut together = together.iter();
        let decision = |part: &Part<'_>| {
            let decided = if part.is_enforced() {
                together.next()
            } else {
                None
            };
            match decided {
                Some(decided) => part.counted(Self::explained(part, *decided, now), admitted, now),
                None => alone(part, after(admitted), now),
            }
        };
        parts.iter().map(decision).collect()
    }

    /// The same decision; a line does not know why a key is blocked.
    fn explained(part: &Part<'_>, decided: Decision, now: Nanos) -> Decision {
        let limit = &part.limit;
        if decided.is_allowed() || decided.exceeds_limit() {
            return decided;
        }
        let blocked = limit.block_of(part.key, now);
        let reason = blocked.and_then(|blocked| blocked.reason());
        reason.map_or(decided, |reason| decided.because(reason))
    }

    /// Refuses requests whose limits have no line, or no longer one.
    fn may_wait(&self, parts: &[Part<'_>]) -> Result<(), Refusal> {
        if self.waits.has_ended() {
            return Err(Refusal::WaitStopped);
        }
        let limits = self.limits();
        for part in parts {
            let name = &part.limit.spec().name;
            if part.limit.spec().shares.is_some() {
                return Err(Refusal::WaitShared {
                    limit: name.clone(),
                });
            }
            if part.is_stored() && !part.limit.spec().sharing.line {
                return Err(Refusal::WaitInStore {
                    limit: name.clone(),
                });
            }
            let in_force = limits
                .limit(name.as_bytes())
                .filter(|limit| Arc::ptr_eq(&limit.memory, &part.limit.memory));
            let Some(in_force) = in_force else {
                return Err(Refusal::WaitEnded {
                    limit: name.clone(),
                });
            };
            if part.is_stored() {
                set_waited_for(&in_force.memory.waited_for, in_force);
            }
        }
        Ok(())
    }

    /// Waits for the enforced ones of these limits, which are all in the store.
    ///
    /// # Errors
    /// The same as [`acquire_all_waiting`](Self::acquire_all_waiting).
    pub(super) fn wait_in_store<'a>(
        &'a self,
        parts: &'a [Part<'a>],
        WaitFor { span, priority }: WaitFor,
    ) -> BoxFuture<'a, Result<Waited, Refusal>> {
        Box::pin(async move {
            self.may_wait(parts)?;
            let deadline = self.now().saturating_add(span.into());
            let left = || Duration::from(deadline.saturating_since(self.now()));
            let enforced: Vec<_> = parts.iter().filter(|part| part.is_enforced()).collect();
            // The store does not know operators' blocks.
            let blocked = |(at, part): (usize, &&Part<'_>)| {
                Some((at, part.limit.block_of(part.key, self.now())?))
            };
            while let Some((at, denied)) = enforced.iter().enumerate().find_map(blocked) {
                match denied.retry_after().filter(|wait| *wait <= left()) {
                    None => return self.blocked(&enforced, (at, denied)).await,
                    Some(wait) => {
                        let again = self.now().saturating_add(wait.min(LOOK_AGAIN).into());
                        let sleep = self.timer.sleep_until(again).map(Ok::<_, Infallible>);
                        let Ok(()) = self.in_line(parts, Box::pin(sleep))?.await?;
                    }
                }
            }
            let stored = || {
                let stored = enforced.iter().map(|part| part.stored());
                stored.collect::<Option<Vec<_>>>()
            };
            let Some(stored) = stored() else {
                let part = enforced.iter().find(|part| !part.is_stored());
                let limit = part.map_or_else(String::new, |part| part.limit.spec().name.clone());
                return Err(Refusal::WaitEnded { limit });
            };
            let Some(store) = stored.first().map(|limit| limit.store().clone()) else {
                return Ok(Waited::default());
            };
            let asked = stored.iter().zip(&enforced).map(|(limit, part)| StorePart {
                limit,
                key: part.key,
                cost: part.cost,
            });
            let asked: Vec<_> = asked.collect();
            let tried = store
                .try_wait_all(&asked, WaitFor::new(left(), priority))
                .await;
            let tried = tried.map_err(|why| match why {
                // A limit and a key twice have one line.
                StoreError::OneKey => Refusal::Reservation(ReservationError::Twice),
                _ => Refusal::Scattered,
            });
            let granted = match tried? {
                Tried::Decided(granted) => granted,
                Tried::Waits(queued) => {
                    let last = stored.iter().map(|limit| limit.clone().into_owned());
                    let now = self.limits_now(&enforced, last.collect());
                    let wait = queued.answer(now).map(|granted| {
                        if granted.answers().iter().all(SharedDecision::is_allowed) {
                            Ok(granted)
                        } else {
                            Err(granted)
                        }
                    });
                    let (Ok(granted) | Err(granted)) = self.in_line(parts, Box::pin(wait))?.await?;
                    granted
                }
            };
            let answers = granted.answers();
            let together = enforced.iter().zip(answers).map(|(part, answer)| {
                let decision = part.limit.by_store(answer);
                Self::explained(part, decision, self.now())
            });
            let failed = answers.iter().find_map(|answer| match &answer.source {
                Source::Failed(error) | Source::Local(error) => Some(error.clone()),
                _ => None,
            });
            let is_admitted = answers.iter().all(SharedDecision::is_allowed);
            Ok(Waited {
                together: together.collect(),
                failed,
                granted: is_admitted.then_some(granted),
            })
        })
    }

    /// The decisions if the key of the limit at this index is blocked for longer than the request
    /// waits.
    async fn blocked(
        &self,
        enforced: &[&Part<'_>],
        (blocked, denied): (usize, Decision),
    ) -> Result<Waited, Refusal> {
        let mut together = Vec::with_capacity(enforced.len());
        for (at, Part { limit, key, cost }) in enforced.iter().enumerate() {
            together.push(if at == blocked {
                denied
            } else {
                limit.decide(Act::Peek, key, *cost, self.now()).await?
            });
        }
        Ok(Waited {
            together,
            ..Waited::default()
        })
    }

    /// The decisions of all limits after a wait in the store, counted.
    pub(super) async fn each_waited(
        &self,
        parts: &[Part<'_>],
        together: Vec<Decision>,
    ) -> Vec<Decision> {
        let admitted = together.iter().all(Decision::is_allowed);
        each_in_store(parts, together, admitted, (self.now(), Duration::ZERO)).await
    }

    /// The limits by the rules in force and the overrides, for those who wait for keys in the store.
    /// They admit nothing while an operator blocks one of the keys.
    fn limits_now(&self, parts: &[&Part<'_>], last: Vec<SharedLimit>) -> LimitNow {
        let memories = parts.iter().map(|part| Arc::clone(&part.limit.memory));
        let keys = parts.iter().map(|part| part.key.to_vec());
        let waited: Vec<_> = memories.zip(keys).zip(last).collect();
        let clock = Arc::clone(&self.clock);
        Arc::new(move || {
            let mut may_admit = true;
            let limits = waited.iter().map(|((memory, key), last)| {
                let in_force = waited_for(&memory.waited_for).upgrade();
                let in_force = in_force.and_then(|limit| {
                    may_admit &= limit.block_of(key, clock.now()).is_none();
                    Some(limit.store()?.of(key).into_owned())
                });
                // The limit was removed, and its callers are being refused.
                may_admit &= in_force.is_some();
                in_force.unwrap_or_else(|| last.clone())
            });
            let limits = limits.collect();
            (limits, may_admit)
        })
    }

    /// Ends all waits: the server stops.
    pub fn end_waits(&self) {
        self.waits.end();
    }
}

/// The outcome of a wait for the enforced limits of a request, which are in the store.
#[derive(Debug, Default)]
pub(super) struct Waited {
    /// Their decisions.
    pub together: Vec<Decision>,
    /// Their units, if there are any and all admit.
    pub granted: Option<SharedGrant>,
    /// Why the store has not decided.
    pub failed: Option<StoreError>,
}

/// Whether the limits of a request that waits are in the store.
///
/// # Errors
/// [`Refusal::WaitMixed`]
pub(super) fn are_stored(parts: &[Part<'_>]) -> Result<bool, Refusal> {
    let in_memory = parts.iter().find(|part| !part.is_stored());
    match in_memory {
        Some(part) if parts.iter().any(Part::is_stored) => Err(Refusal::WaitMixed {
            limit: part.limit.spec().name.clone(),
        }),
        in_memory => Ok(in_memory.is_none()),
    }
}

fn waited_for(limit: &Mutex<Weak<Limit>>) -> Weak<Limit> {
    limit.lock().clone()
}

fn set_waited_for(limit: &Mutex<Weak<Limit>>, in_force: &Arc<Limit>) {
    *limit.lock() = Arc::downgrade(in_force);
}

/// The admission of work that may start now: a leaky bucket's delay is over.
fn started(decision: &Decision) -> Decision {
    let standing = decision.standing();
    let waited = Nanos::from(decision.delay()).get();
    Decision::allow(Standing {
        reset_after: standing.reset_after.saturating_sub(waited),
        ..standing
    })
}

/// The denial of work that would start after the deadline.
fn denied(decision: &Decision) -> Decision {
    if decision.is_denied() {
        return *decision;
    }
    Decision::deny(decision.standing(), Nanos::from(decision.delay()).get())
}

#[cfg(test)]
mod tests;
