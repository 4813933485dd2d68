//! Decisions that are safe to repeat: the same id with the same limits, keys and costs gets the
//! first answer for a minute, and takes once.
//!
//! For limits in the store, the store keeps the answers. While it does not reply, this server keeps
//! its admissions. A denial without the store, because of a block or because the store does not
//! reply, took nothing here and is decided again: the store may have admitted the same request
//! before, or its reply may have been lost.

use futures_util::future::BoxFuture;
use tidegate_core::{Decision, Nanos};
use tidegate_limiter::repeats::{MAX_ID_BYTES, Mark};
use tidegate_redis::{Once, Part as StorePart, Source, StoreError};

use super::{
    Act, Answer, Ask, JointAnswer, Part, Refusal, Service,
    joint::{Decided, take_in_memory},
};
use crate::decide::{limits::Limit, reservations::ReservationError, shared::SharedStore};

/// Checks the id of a request.
///
/// # Errors
/// [`Refusal::Id`]
pub fn check_id(id: &[u8]) -> Result<(), Refusal> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(Refusal::Id { bytes: id.len() });
    }
    Ok(())
}

impl Service {
    /// Takes a cost from a limit in memory once for an id. `None` if the limit is in the store: then
    /// call [`take_once`](Self::take_once).
    #[inline]
    #[must_use = "`None` means that nothing was decided"]
    pub fn take_once_in_memory(
        &self,
        id: &[u8],
        limit: &Limit,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Option<Decision> {
        if limit.store().is_some() {
            return None;
        }
        let mark = self.repeats.mark(id, [(&*limit.spec().name, key, cost)]);
        self.repeats.once(mark, now, || {
            limit.decide_in_memory(Act::Take, key, cost, now)
        })
    }

    /// Asks several limits once for an id, as [`acquire_all`](Self::acquire_all) does.
    ///
    /// # Errors
    /// The same; also [`Refusal::Id`] and [`Refusal::Apart`].
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn acquire_all_once(
        &self,
        id: &[u8],
        asks: &[Ask<'_>],
        now: Nanos,
    ) -> Result<JointAnswer, (usize, Refusal)> {
        let parts = self.parts(asks)?;
        check_id(id).map_err(|refusal| (0, refusal))?;
        let decided = self.decide_once(id, Act::Take, parts, now).await;
        decided
            .map(Decided::into_joint)
            .map_err(|refusal| (0, refusal))
    }

    /// Takes a cost from one limit once for an id, which was [checked](check_id): with
    /// [`Act::TakeAnyway`] whether it fits or not.
    ///
    /// # Errors
    /// None if the limit is in the rules.
    pub async fn take_once(
        &self,
        id: &[u8],
        act: Act,
        part: Part<'_>,
        now: Nanos,
    ) -> Result<Answer, Refusal> {
        let decided = self.decide_once(id, act, vec![part], now).await?;
        Ok(decided.into_bound())
    }

    /// Asks several limits once for an id, which was [checked](check_id), as
    /// [`take_all`](Self::take_all) does.
    ///
    /// # Errors
    /// The same; also [`Refusal::Apart`].
    pub async fn take_all_once(
        &self,
        id: &[u8],
        parts: Vec<Part<'_>>,
        now: Nanos,
    ) -> Result<Vec<Decision>, Refusal> {
        let decided = self.decide_once(id, Act::Take, parts, now).await?;
        Ok(decided.decisions)
    }

    /// `act` may be [`Act::TakeAnyway`] for one limit.
    async fn decide_once<'a>(
        &self,
        id: &[u8],
        act: Act,
        parts: Vec<Part<'a>>,
        now: Nanos,
    ) -> Result<Decided<'a>, Refusal> {
        let mark = self.repeats.mark(id, parts.iter().map(Part::asked));
        let stored = parts.iter().filter(|part| part.is_stored()).count();
        let decisions = match self.store().filter(|_| stored > 0) {
            None => self
                .repeats
                .once_all(mark, parts.len(), now, || match &parts[..] {
                    [part] if act == Act::TakeAnyway => {
                        let limit = &part.limit;
                        let decided = limit.decide_in_memory(act, part.key, part.cost, now);
                        Ok(decided.into_iter().collect())
                    }
                    parts => take_in_memory(parts, now),
                })?,
            Some(_) if stored < parts.len() => return Err(Refusal::Apart),
            Some(store) => {
                let named = (id, mark);
                self.once_in_store(store, named, act, &parts, now).await?
            }
        };
        Ok(Decided { parts, decisions })
    }

    fn once_in_store<'a>(
        &'a self,
        store: &'a SharedStore,
        (id, mark): (&'a [u8], Mark),
        act: Act,
        parts: &'a [Part<'a>],
        now: Nanos,
    ) -> BoxFuture<'a, Result<Vec<Decision>, Refusal>> {
        Box::pin(async move {
            if let Some(first) = self.repeats.first(mark, parts.len(), now) {
                return Ok(first);
            }
            let limits: Option<Vec<_>> = parts.iter().map(Part::stored).collect();
            let limits = limits.ok_or(Refusal::Apart)?;
            let pairs = limits.iter().zip(parts);
            let asked: Vec<_> = pairs
                .map(|(limit, part)| {
                    let asked = StorePart {
                        limit,
                        key: part.key,
                        cost: part.cost,
                    };
                    (asked, !part.is_enforced())
                })
                .collect();
            let is_blocked = |part: &Part<'_>| part.limit.block_of(part.key, now).is_some();
            let is_alone = parts.len() == 1;
            if parts
                .iter()
                .any(|part| (part.is_enforced() || is_alone) && is_blocked(part))
            {
                // The request may have been admitted before the block.
                if let Ok(Some(first)) = store.store().first_answer(id, &asked).await {
                    self.repeats.count_repeated();
                    return Ok(first);
                }
                // The joint decision denies without asking the store, and takes nothing.
                return self.take_all(parts, now).await;
            }
            let Once {
                decisions,
                is_repeat,
            } = match store.store().acquire_all_once(id, &asked).await {
                Ok(once) => once,
                Err(StoreError::OneKey) => {
                    return Err(Refusal::Reservation(ReservationError::Twice));
                }
                Err(_) => return Err(Refusal::Scattered),
            };
            if is_repeat {
                self.repeats.count_repeated();
                return Ok(decisions.into_iter().map(|one| one.decision).collect());
            }
            let without_store =
                |source: &Source| matches!(source, Source::Failed(_) | Source::Local(_));
            let is_kept = !decisions.iter().any(|one| without_store(&one.source));
            let mut all = Vec::with_capacity(parts.len());
            for (part, shared) in parts.iter().zip(&decisions) {
                all.push(part.limit.by_store(shared));
            }
            let vetoed = |(part, decision): (&Part<'_>, &Decision)| !part.allows(decision);
            let anyway = act == Act::TakeAnyway;
            let admitted = anyway || !parts.iter().zip(&all).any(vetoed);
            for (part, decision) in parts.iter().zip(&mut all) {
                let counts_all = anyway || part.limit.spec().soft;
                if admitted && counts_all && decision.is_denied() && is_kept {
                    // A soft limit counts what does not fit, too.
                    *decision = part.limit.charge_denied(part.key, part.cost, now).await;
                } else if admitted || decision.is_denied() && part.is_enforced() {
                    part.limit
                        .count(Act::Take, part.key, part.cost, decision, now);
                }
            }
            if is_kept || !admitted {
                return Ok(all);
            }
            self.repeats.once_all(mark, parts.len(), now, || Ok(all))
        })
    }
}

#[cfg(test)]
mod tests;
