//! Several limits in one decision: all that are enforced admit and consume, or none consumes. Shadow limits are asked beside
//! them, and never veto.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use tidegate_core::{Decision, Nanos};
use tidegate_limiter::{Request, acquire_all_at};

use super::{Act, Answer, Ask, JointAnswer, Refusal, Service, resolve};
use crate::limits::Limit;

/// One of the limits that are asked together.
struct Part<'a> {
    limit: Arc<Limit>,
    key: &'a [u8],
    cost: u32,
}

impl Service {
    /// Asks several limits, and takes all costs when all admit. Never waits where the limits are in memory.
    ///
    /// # Errors
    /// When a question makes no sense, with its index; and [`Refusal::Scattered`] where a cluster keeps the keys on
    /// different nodes.
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn acquire_all(&self, asks: &[Ask<'_>], now: Nanos) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let together = self.take_together(&parts, now).await.map_err(|refusal| (0, refusal))?;
        // What is asked after that must be answered by the same time.
        let spent = self.now().saturating_since(now).into();
        let admitted = together.as_ref().is_some_and(|all| all.iter().all(Decision::is_allowed));
        let mut together = together.unwrap_or_default().into_iter();
        let answers = parts.iter().map(|part| {
            let decided = if part.is_enforced() { together.next() } else { None };
            part.answer(decided, admitted, now, spent)
        });
        Ok(JointAnswer::new(join_all(answers).await))
    }

    /// Asks several limits without taking anything.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn peek_all(&self, asks: &[Ask<'_>], now: Nanos) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let answers = parts.iter().enumerate().map(async |(at, part)| {
            let decision = part.limit.decide(Act::Peek, part.key, part.cost, now).await;
            decision.map(|decision| part.told(decision)).map_err(|refusal| (at, refusal))
        });
        Ok(JointAnswer::new(try_join_all(answers).await?))
    }

    fn parts<'a>(&self, asks: &[Ask<'a>]) -> Result<Vec<Part<'a>>, (usize, Refusal)> {
        let limits = self.limits();
        let part = |(at, ask): (usize, &Ask<'a>)| {
            let resolved = resolve(&limits, ask.limit, ask.key).map_err(|refusal| (at, refusal))?;
            Ok(Part { limit: Arc::clone(resolved.limit), key: resolved.key, cost: ask.cost })
        };
        asks.iter().enumerate().map(part).collect()
    }

    /// The decisions of the enforced limits, taken in one step; `None` when the store was not asked, as one of the keys is
    /// blocked.
    async fn take_together(&self, parts: &[Part<'_>], now: Nanos) -> Result<Option<Vec<Decision>>, Refusal> {
        let enforced = || parts.iter().filter(|part| part.is_enforced());
        let Some(store) = self.store() else {
            let requests: Vec<_> =
                enforced().map(|part| Request::keyed(part.limit.limiter(), part.key, part.cost)).collect();
            let joint = acquire_all_at(&requests, now).map_err(|_| Refusal::TooManyKeys)?;
            return Ok(Some(joint.decisions().to_vec()));
        };
        if enforced().any(|part| part.limit.block_of(part.key, now).is_some()) {
            return Ok(None);
        }
        let asked: Option<Vec<_>> =
            enforced().map(|part| Some(part.limit.store()?.part(part.key, part.cost))).collect();
        match asked {
            Some(asked) if !asked.is_empty() => store.acquire_all(&asked).await.map(Some),
            _ => Ok(Some(Vec::new())),
        }
    }
}

impl Part<'_> {
    fn is_enforced(&self) -> bool {
        !self.limit.spec().shadow
    }

    fn told(&self, decision: Decision) -> Answer {
        Answer { limit: Arc::clone(&self.limit), key: self.key.to_vec(), decision }
    }

    /// What this limit says, given what the one step `decided` of it and whether that admitted.
    async fn answer(&self, decided: Option<Decision>, admitted: bool, now: Nanos, spent: Duration) -> Answer {
        let Self { limit, key, cost } = self;
        let decision = if let Some(decision) = decided {
            // A limit that would have admitted what another denied has neither admitted nor denied.
            if admitted || decision.is_denied() {
                limit.count(Act::Take, *cost, &decision);
            }
            decision
        } else {
            // A shadow limit beside them consumes what they admit.
            let act = if admitted { Act::Take } else { Act::Peek };
            let decision = limit.decide_after(spent, act, key, *cost, now).await;
            let decision = decision.expect("only a refund is refused");
            // The key is blocked, and so the store was not asked.
            if !admitted && decision.is_denied() && self.is_enforced() {
                limit.count(Act::Take, *cost, &decision);
            }
            decision
        };
        self.told(decision)
    }
}
