//! Shared limits as any keyed limit, and several of them in one decision that never fails.

use std::time::Duration;

use tidegate_core::{Clock, Decision, Policy};
use tidegate_limiter::KeyedLimit;

use crate::{
    SharedDecision, SharedLimit, Source, Store, StoreError, exchange, joint::Request, leases::TakenFrom,
};

impl KeyedLimit for SharedLimit {
    async fn decide(&self, key: &[u8], cost: u32) -> Decision {
        self.acquire(key, cost).await.decision
    }

    fn policy(&self) -> Policy {
        *self.policy()
    }
}

impl SharedLimit {
    /// Whether `cost` would be admitted. Nothing is taken, and what remains is told as it is now, before the cost. It is the
    /// store that is asked: pieces of a leased limit count as used there, and what is not reported yet as not used.
    ///
    /// While the store gives no decision, and [`OnError`](crate::OnError) says to decide in memory, a denial names no wait.
    pub async fn peek(&self, key: impl AsRef<[u8]>, cost: u32) -> SharedDecision {
        self.peek_after(key, cost, Duration::ZERO).await
    }

    /// The same, after so much of the deadline is spent, as [`acquire_after`](Self::acquire_after).
    pub async fn peek_after(&self, key: impl AsRef<[u8]>, cost: u32, spent: Duration) -> SharedDecision {
        let key = key.as_ref();
        let asked = [self.request(key, 0), self.request(key, cost)];
        let told = match self.left_after(spent) {
            Ok(deadline) => self.store().joint(&asked, false, deadline).await,
            Err(error) => Err(error),
        };
        let error = match told {
            Ok((told, _)) => match told[..] {
                [standing, asked] => {
                    let decision =
                        if asked.is_denied() { asked } else { standing_at(&standing, asked.delay()) };
                    return SharedDecision { decision, source: Source::Store };
                }
                _ => StoreError::BadReply,
            },
            Err(error) => error,
        };
        let mut answer = self.without_store(key, 0, error);
        let standing = answer.decision;
        let refused = matches!(answer.source, Source::Failed(_));
        if !refused && standing.remaining() < cost.into() {
            let (limit, room) = (standing.limit() as u32, standing.remaining());
            answer.decision = Decision::deny_for_good(limit, room, 1, standing.reset_after_nanos());
        }
        answer
    }
}

/// Admitted after a delay, with what remains before that.
fn standing_at(standing: &Decision, delay: Duration) -> Decision {
    let (limit, delay) = (standing.limit() as u32, delay.as_nanos() as u64);
    Decision::delayed(limit, delay, standing.remaining(), 1, standing.reset_after_nanos())
}

/// A part of a decision over several limits of one store: `cost` for one of a limit's keys.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The limit.
    pub limit: &'a SharedLimit,
    /// The key.
    pub key: &'a [u8],
    /// How much.
    pub cost: u32,
}

impl Store {
    /// Whether the store could decide on these in one step.
    fn are_together(&self, requests: &[Request<'_>]) -> bool {
        let slot = |request: &Request<'_>| self.inner().slot(&request.key);
        let fit = |one: &Request<'_>, other: &Request<'_>| {
            slot(one) == slot(other) && (one.key != other.key || one.plan.numbers() == other.plan.numbers())
        };
        requests.iter().enumerate().all(|(at, one)| requests[..at].iter().all(|other| fit(one, other)))
    }

    /// Decides from the pieces that this node holds, if they all suffice.
    fn take_all(&self, parts: &[Part<'_>]) -> Option<Vec<SharedDecision>> {
        let inner = self.inner();
        let leases: Vec<_> = parts.iter().map(|part| part.limit.leases()).collect::<Option<_>>()?;
        let now = inner.clock.now();
        let mut taken = Vec::with_capacity(parts.len());
        for (part, leases) in parts.iter().zip(&leases) {
            let send = |held: &_, request| exchange::send(inner, leases, held, request);
            // Those behind one that has too little are asked all the same: each tells by that what it will need.
            taken.extend(leases.take(part.key, part.cost, now, send));
        }
        let all = taken.len() == parts.len();
        let mut answers = Vec::with_capacity(parts.len());
        for TakenFrom { held, taken } in taken {
            if all {
                answers.push(SharedDecision { decision: taken.decision, source: Source::Lease });
            } else {
                held.lease.put_back(taken);
            }
        }
        if !all {
            return None;
        }
        for (part, leases) in parts.iter().zip(&leases) {
            leases.count_taken(part.key);
        }
        Some(answers)
    }

    /// Decides on several requests in one step: all admit and are charged, or none is. Where all of the limits are leased or
    /// reported, and this node holds enough of each, that step is made in memory; else in the store. Where the store gives no decision
    /// within the shortest of the limits' deadlines, each answers as its [`OnError`](crate::OnError) says, and what one
    /// denies no other keeps.
    ///
    /// # Errors
    /// Only for what nobody can decide in one step, now or later: [`StoreError::CrossSlot`], in a cluster, when the keys have
    /// no common hash tag; [`StoreError::OneKey`] when two limits of one name and other numbers are asked about one key.
    pub async fn acquire_all(&self, parts: &[Part<'_>]) -> Result<Vec<SharedDecision>, StoreError> {
        let requests: Vec<_> = parts.iter().map(|part| part.limit.request(part.key, part.cost)).collect();
        // Whatever is held here: keys that no one step can decide on are told each time, not now and then.
        if self.are_together(&requests)
            && let Some(answers) = self.take_all(parts)
        {
            return Ok(answers);
        }
        let deadline = parts.iter().map(|part| part.limit.deadline()).min().unwrap_or_default();
        let error = match self.decide_all(&requests, deadline).await {
            Ok((decisions, _)) => {
                let told = |decision| SharedDecision { decision, source: Source::Store };
                return Ok(decisions.into_iter().map(told).collect());
            }
            Err(error @ (StoreError::CrossSlot | StoreError::OneKey)) => return Err(error),
            Err(error) => error,
        };
        let without = |part: &Part<'_>| part.limit.without_store(part.key, part.cost, error.clone());
        let answers: Vec<SharedDecision> = parts.iter().map(without).collect();
        if answers.iter().any(SharedDecision::is_denied) {
            for (part, answer) in parts.iter().zip(&answers).filter(|(_, answer)| answer.is_allowed()) {
                if let (Source::Local(_), Some(local)) = (&answer.source, part.limit.local()) {
                    local.refund(part.key, part.cost);
                }
            }
        }
        Ok(answers)
    }
}
