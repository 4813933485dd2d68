//! Limits that tenants share in a decision over several limits.

use tidegate_core::{Decision, Estimate, Nanos};
use tidegate_limiter::{
    AllDecision, Full, Joined, Request, TotalStep, acquire_all_at, acquire_all_estimates_at,
    deny_all_at,
};

use super::{Part, Refusal};

/// The decisions of the enforced limits of these, which are in memory: in one step all of them and
/// the shares of their tenants admit, or nothing is taken. If they admit, `noted` gets what each
/// has taken.
///
/// # Errors
/// [`Refusal::TooManyKeys`] and [`Refusal::SharedTwice`]
pub(super) fn take(
    parts: &[Part<'_>],
    noted: Option<&mut Vec<Estimate>>,
    now: Nanos,
) -> Result<Vec<Decision>, Refusal> {
    let parts: Vec<&Part<'_>> = parts.iter().filter(|part| part.is_enforced()).collect();
    let requests: Vec<_> = parts
        .iter()
        .map(|part| part.limit.request(part.key, part.cost))
        .collect();
    // In the order of their locks.
    let address = |at: &usize| std::ptr::from_ref(&*parts[*at].limit.memory).addr();
    let mut shared: Vec<usize> = (0..parts.len())
        .filter(|at| parts[*at].is_shared())
        .collect();
    shared.sort_unstable_by_key(address);
    check(&parts)?;
    let mut step = Step {
        parts: &parts,
        requests: &requests,
        noted,
        now,
    };
    let all = step.within(&shared, TotalStep::Take);
    all.map_err(|_: Full| Refusal::TooManyKeys)
}

/// Checks that these parts name each limit that tenants share once.
///
/// # Errors
/// [`Refusal::SharedTwice`]
pub(super) fn check(parts: &[&Part<'_>]) -> Result<(), Refusal> {
    let name = |part: &&Part<'_>| part.limit.spec().name.clone();
    let shared = parts.iter().filter(|part| part.is_shared());
    let mut names: Vec<_> = shared.map(name).collect();
    names.sort_unstable();
    let mut pairs = names.iter().zip(names.iter().skip(1));
    match pairs.find(|(one, next)| one == next) {
        Some((name, _)) => Err(Refusal::SharedTwice {
            limit: name.clone(),
        }),
        None => Ok(()),
    }
}

/// The step of all limits.
struct Step<'s> {
    parts: &'s [&'s Part<'s>],
    requests: &'s [Request<'s, ()>],
    noted: Option<&'s mut Vec<Estimate>>,
    now: Nanos,
}

impl Step<'_> {
    /// The step, within those of the tenants that share these limits.
    fn within(&mut self, shared: &[usize], step: TotalStep) -> Result<Vec<Decision>, Full> {
        let Some((&at, others)) = shared.split_first() else {
            return Ok(self.of_all(step)?.decisions().to_vec());
        };
        let (part, now) = (self.parts[at], self.now);
        let blocked = part.limit.block_of(part.key, now);
        let mut all = Vec::new();
        let mut inner = |own: TotalStep| {
            let step = if blocked.is_some() || own == TotalStep::Peek {
                TotalStep::Peek
            } else {
                step
            };
            all = self.within(others, step)?;
            Ok(Joined {
                decision: all[at],
                is_taken: step == TotalStep::Take && all.iter().all(Decision::is_allowed),
            })
        };
        let decision = match (blocked, part.limit.of_tenant(part.key)) {
            (None, Some(of)) => of
                .tenants
                .at(now)
                .acquire_with(of.tenant, part.cost, inner)?,
            (blocked, _) => {
                let Joined { decision, .. } = inner(TotalStep::Take)?;
                blocked.unwrap_or(decision)
            }
        };
        all[at] = decision;
        Ok(all)
    }

    /// The step of the limits themselves.
    fn of_all(&mut self, step: TotalStep) -> Result<AllDecision, Full> {
        match (step, &mut self.noted) {
            (TotalStep::Peek, _) => deny_all_at(self.requests, self.now),
            (TotalStep::Take, None) => acquire_all_at(self.requests, self.now),
            (TotalStep::Take, Some(noted)) => {
                let (all, taken) = acquire_all_estimates_at(self.requests, self.now)?;
                **noted = taken;
                Ok(all)
            }
        }
    }
}

#[cfg(test)]
mod tests;
