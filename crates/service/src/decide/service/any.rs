//! Several limits of which one decides: the first that admits takes the cost. Shadow limits are
//! asked as well, but never take the place of another.

use futures_util::future::BoxFuture;
use tidegate_core::Decision;
use tidegate_core::Nanos;
use tidegate_limiter::acquire_any_at;
use tidegate_redis::{AnyOf, Part as StorePart};

use super::{Act, Answer, Ask, JointAnswer, Part, Refusal, Service, joint::after};
use crate::decide::shared::SharedStore;

/// The index of the limit that admitted, with its decision; or the denials of all.
type FirstOf = Result<(usize, Decision), Vec<Decision>>;

impl Service {
    /// Takes the cost of the first limit that admits. The answer has that limit, or all of them if
    /// none admits; then the one with the shortest wait is [bound](JointAnswer::bound). It never
    /// waits if the limits are in memory. Limits of which some are in the store and others in memory,
    /// or that tenants share, are asked in turn, not in one step.
    ///
    /// # Errors
    /// When a question is invalid, with its index; and [`Refusal::TooManyKeys`].
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn acquire_any(
        &self,
        asks: &[Ask<'_>],
        now: Nanos,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let enforced: Vec<&Part<'_>> = parts.iter().filter(|part| part.is_enforced()).collect();
        let stored = enforced.iter().filter(|part| part.is_stored()).count();
        let first = match self.store().filter(|_| stored > 0) {
            None => in_memory(&enforced, now).map_err(|refusal| (0, refusal))?,
            Some(store) if stored == enforced.len() => in_store(store, &enforced, now).await,
            Some(_) => Box::pin(in_turn(&enforced, now))
                .await
                .map_err(|refusal| (0, refusal))?,
        };
        let act = after(first.is_ok() || enforced.is_empty());
        let answers = Box::pin(with_shadows(&parts, &enforced, first, act, now)).await;
        answers.map_err(|refusal| (0, refusal))
    }

    /// Asks several limits of which one must admit, without taking anything.
    ///
    /// # Errors
    /// The same as [`acquire_any`](Self::acquire_any).
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn peek_any(
        &self,
        asks: &[Ask<'_>],
        now: Nanos,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        let enforced: Vec<&Part<'_>> = parts.iter().filter(|part| part.is_enforced()).collect();
        let mut denials = Vec::new();
        let mut first = None;
        for (at, part) in enforced.iter().enumerate() {
            let decided = part.limit.decide(Act::Peek, part.key, part.cost, now).await;
            let decision = decided.map_err(|refusal| (at, refusal))?;
            if decision.is_allowed() {
                first = Some((at, decision));
                break;
            }
            denials.push(decision);
        }
        let first = first.ok_or(denials);
        let answers = Box::pin(with_shadows(&parts, &enforced, first, Act::Peek, now)).await;
        answers.map_err(|refusal| (0, refusal))
    }
}

/// The answers of the limit that admitted, or of all, and of the shadow limits.
async fn with_shadows(
    parts: &[Part<'_>],
    enforced: &[&Part<'_>],
    first: FirstOf,
    act: Act,
    now: Nanos,
) -> Result<JointAnswer, Refusal> {
    let mut answers: Vec<Answer> = match first {
        Ok((at, decision)) => vec![enforced[at].answered(decision)],
        Err(denials) => enforced
            .iter()
            .zip(denials)
            .map(|(part, denied)| part.answered(denied))
            .collect(),
    };
    for part in parts.iter().filter(|part| !part.is_enforced()) {
        let decision = part.limit.decide(act, part.key, part.cost, now).await?;
        answers.push(part.answered(decision));
    }
    // The first among equals.
    let wait = |at: &usize| answers[*at].decision.severity();
    let bound = (0..enforced.len().min(answers.len())).min_by_key(wait);
    Ok(JointAnswer {
        bound: bound.unwrap_or(0),
        answers,
    })
}

/// # Errors
/// [`Refusal::TooManyKeys`]
fn in_memory(parts: &[&Part<'_>], now: Nanos) -> Result<FirstOf, Refusal> {
    if parts.iter().any(|part| part.is_shared()) {
        let first = one_by_one(parts, now);
        count(parts, &first, now);
        return Ok(first);
    }
    let requests: Vec<_> = parts
        .iter()
        .map(|part| part.limit.request(part.key, part.cost))
        .collect();
    let any = acquire_any_at(&requests, now).map_err(|_| Refusal::TooManyKeys)?;
    let explained = parts.iter().zip(any.decisions());
    let mut decisions: Vec<_> = explained
        .map(|(part, decision)| part.limit.explained(part.key, *decision))
        .collect();
    let first = match any.chosen() {
        Some(at) => Ok((at, decisions.swap_remove(at))),
        None => Err(decisions),
    };
    count(parts, &first, now);
    Ok(first)
}

/// Asks limits in memory in turn. A share that refuses must know it: its tenant wants more.
fn one_by_one(parts: &[&Part<'_>], now: Nanos) -> FirstOf {
    let mut denials = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let decided = part.limit.take_in_memory(part.key, part.cost, now);
        let decision = part.limit.explained(part.key, decided);
        if decision.is_allowed() {
            return Ok((at, decision));
        }
        denials.push(decision);
    }
    Err(denials)
}

fn in_store<'a>(
    store: &'a SharedStore,
    parts: &'a [&'a Part<'a>],
    now: Nanos,
) -> BoxFuture<'a, FirstOf> {
    Box::pin(async move {
        let mut decisions: Vec<Option<Decision>> = parts
            .iter()
            .map(|part| part.limit.block_of(part.key, now))
            .collect();
        let open: Vec<usize> = (0..parts.len())
            .filter(|at| decisions[*at].is_none())
            .collect();
        let limits: Option<Vec<_>> = open.iter().map(|at| parts[*at].stored()).collect();
        let limits = limits.unwrap_or_default();
        let asked: Vec<_> = limits
            .iter()
            .zip(&open)
            .map(|(limit, at)| StorePart {
                limit,
                key: parts[*at].key,
                cost: parts[*at].cost,
            })
            .collect();
        let AnyOf {
            chosen,
            decisions: decided,
        } = store.store().acquire_any(&asked).await;
        let first = if let (Some(at), Some(shared)) = (chosen, decided.first()) {
            let at = open[at];
            Ok((at, parts[at].limit.by_store(shared)))
        } else {
            for (at, shared) in open.iter().zip(&decided) {
                decisions[*at] = Some(parts[*at].limit.by_store(shared));
            }
            Err(decisions.into_iter().flatten().collect())
        };
        count(parts, &first, now);
        first
    })
}

/// Asks limits in turn. A limit that is passed over has denied only if all deny.
///
/// # Errors
/// None if the limits are in the rules.
async fn in_turn(parts: &[&Part<'_>], now: Nanos) -> Result<FirstOf, Refusal> {
    let mut denials = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let peek = part
            .limit
            .decide(Act::Peek, part.key, part.cost, now)
            .await?;
        if peek.is_denied() {
            denials.push(peek);
            continue;
        }
        let taken = part
            .limit
            .decide(Act::Take, part.key, part.cost, now)
            .await?;
        if taken.is_allowed() {
            return Ok(Ok((at, taken)));
        }
        denials.push(taken);
    }
    let first = Err(denials);
    count(parts, &first, now);
    Ok(first)
}

fn count(parts: &[&Part<'_>], first: &FirstOf, now: Nanos) {
    let one = |part: &Part<'_>, decision: &Decision| {
        part.limit
            .count(Act::Take, part.key, part.cost, decision, now);
    };
    match first {
        Ok((at, decision)) => one(parts[*at], decision),
        Err(denials) => {
            for (part, denied) in parts.iter().zip(denials) {
                one(part, denied);
            }
        }
    }
}
