//! Reservations, over the limits in memory and (in `reserve_in_store`) over those in the store: reserve, extend, settle, cancel, and the end of those that expire.

use tidegate_core::{Decision, Nanos};
use tidegate_limiter::Estimate;

use super::{
    Ask, Bound, JointAnswer, Part as JointPart, Refusal, Service,
    joint::{joint_answer, take_in_memory},
    reserve_in_store::reserved_in_store,
};
use crate::decide::reservations::{Ending, Id, MOST_PARTS, Part, ReservationError, Reservations};

#[cfg(test)]
mod model;

/// Marks where another thread may come in between: the model tries every order.
#[cfg(not(test))]
fn between() -> std::future::Ready<()> {
    std::future::ready(())
}
#[cfg(test)]
use model::pause as between;

/// What a part of an admitted decision took.
fn taken_of<'a>(
    part: &'a JointPart<'_>,
    decision: &Decision,
    now: Nanos,
    place: u64,
) -> Part<&'a str, &'a [u8]> {
    let JointPart { limit, key, cost } = part;
    // A shadow limit that would deny has taken nothing, unless it is soft.
    let has_taken = decision.is_allowed() || limit.spec().soft;
    let cost = if has_taken { *cost } else { 0 };
    Part { taken: Estimate { cost, taken: now, place }.into(), ..Part::new(limit.spec(), key) }
}

fn bound(parts: &[JointPart<'_>], decisions: &[Decision]) -> Bound {
    Bound::of(decisions.iter().zip(parts.iter().map(|part| &*part.limit))).1
}

impl Service {
    /// The reservations that are open or remembered.
    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Takes an estimate from each limit if all admit, and keeps it under an id for `ttl`. `None` if a limit denied: then
    /// nothing was taken.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all); also if there are too many reservations or limits, if only some of the limits are in the
    /// store, and if the store does not reply.
    pub(crate) async fn reserve(
        &self,
        asks: &[Ask<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(JointAnswer, Option<Id>), (usize, Refusal)> {
        let parts = self.parts_to_reserve(asks)?;
        if let Some(store) = self.store().filter(|_| parts.iter().any(JointPart::is_stored)) {
            return Box::pin(self.reserve_in_store(store.store(), asks, ttl, now)).await;
        }
        let (decisions, id) = self.reserve_in_memory(&parts, ttl, now).await?;
        Ok((joint_answer(parts, decisions), id))
    }

    /// [`reserve`](Self::reserve), for a client that needs only the decision of the limit that bound.
    ///
    /// # Errors
    /// The same.
    pub(crate) async fn reserve_bound(
        &self,
        asks: &[Ask<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(Bound, Option<Id>), (usize, Refusal)> {
        if self.store().is_some() {
            let (joint, id) = Box::pin(self.reserve(asks, ttl, now)).await?;
            return Ok((joint.bound(), id));
        }
        let parts = self.parts_to_reserve(asks)?;
        let (decisions, id) = self.reserve_in_memory(&parts, ttl, now).await?;
        Ok((bound(&parts, &decisions), id))
    }

    /// The limits, which are all in memory or all in the store.
    fn parts_to_reserve<'a>(&self, asks: &[Ask<'a>]) -> Result<Vec<JointPart<'a>>, (usize, Refusal)> {
        let refuse = |why: ReservationError| (0, Refusal::Reservation(why));
        if asks.len() > MOST_PARTS {
            return Err(refuse(ReservationError::TooManyParts));
        }
        let parts = self.parts(asks)?;
        let stored = parts.iter().filter(|part| part.is_stored()).count();
        if stored == 0 || stored == parts.len() { Ok(parts) } else { Err(refuse(ReservationError::Mixed)) }
    }

    async fn reserve_in_memory(
        &self,
        parts: &[JointPart<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(Vec<Decision>, Option<Id>), (usize, Refusal)> {
        let refuse = |why: ReservationError| (0, Refusal::Reservation(why));
        self.reservations.has_room().map_err(refuse)?;
        let places: Vec<_> = parts.iter().map(|part| part.limit.limiter().place(part.key)).collect();
        between().await;
        let decisions = take_in_memory(parts, now).map_err(|refusal| (0, refusal))?;
        if !bound(parts, &decisions).is_allowed() {
            return Ok((decisions, None));
        }
        let all = parts.iter().zip(&decisions).zip(places);
        let taken: Vec<_> =
            all.map(|((part, decision), place)| taken_of(part, decision, now, place)).collect();
        between().await;
        match self.reservations.add(&taken, ttl, now) {
            Ok(id) => Ok((decisions, Some(id))),
            Err(why) => {
                between().await;
                self.settle_parts(taken, None, now);
                Err(refuse(why))
            }
        }
    }

    /// The limits and keys of a reservation; empty if it was made here and is done.
    ///
    /// # Errors
    /// If it is unknown, or the store does not reply.
    pub(crate) async fn reserved(&self, id: Id) -> Result<Vec<Part>, ReservationError> {
        match (self.reservations.parts(id), self.store()) {
            (Err(ReservationError::Unknown), Some(store)) => {
                Box::pin(reserved_in_store(store.store(), id)).await
            }
            (found, _) => found,
        }
    }

    /// Takes more for a reservation, one cost for each of its limits, and lets it live for its time from now. If a limit denies,
    /// nothing was taken and the reservation stays as it was.
    ///
    /// # Errors
    /// If the reservation is unknown or has ended, the number of costs is wrong, or a limit is gone.
    pub(crate) async fn extend(&self, id: Id, costs: &[u64], now: Nanos) -> Result<JointAnswer, Refusal> {
        let parts = match (self.reservations.parts(id), self.store()) {
            (Err(ReservationError::Unknown), Some(store)) => {
                return Box::pin(self.extend_in_store(store.store(), id, costs, now)).await;
            }
            (found, _) => found.map_err(Refusal::Reservation)?,
        };
        if parts.is_empty() {
            return Err(Refusal::Reservation(ReservationError::Ended));
        }
        if parts.len() != costs.len() {
            return Err(Refusal::Reservation(ReservationError::Costs { parts: parts.len() }));
        }
        let ask = |(part, &cost)| {
            let Part { limit, key, .. }: &Part = part;
            Ask { limit: limit.as_bytes(), key: Some(key), cost }
        };
        let asks: Vec<_> = parts.iter().zip(costs).map(ask).collect();
        let asked = self.parts(&asks).map_err(|(_, refusal)| refusal)?;
        let estimate = |part: &JointPart<'_>| Estimate {
            cost: part.cost,
            taken: now,
            place: part.limit.limiter().place(part.key),
        };
        let more: Vec<_> = asked.iter().map(estimate).collect();
        between().await;
        let decisions = self.take_all(&asked, now).await?;
        let joint = joint_answer(asked, decisions);
        between().await;
        if joint.is_allowed()
            && let Err(why) = self.reservations.extend(id, &more, now)
        {
            // It ended in between.
            between().await;
            let more = parts.into_iter().zip(more);
            let more = more.map(|(part, estimate)| Part { taken: estimate.into(), ..part });
            self.settle_parts(more, None, now);
            return Err(Refusal::Reservation(why));
        }
        Ok(joint)
    }

    /// Corrects each limit to what was used: `costs` has one cost for each limit, in the order of the reservation, or is `None` if
    /// nothing was done. Returns whether this was the first time.
    ///
    /// # Errors
    /// If the reservation is unknown, the number of costs is wrong, or the store does not reply.
    pub(crate) async fn settle(
        &self,
        id: Id,
        costs: Option<&[u64]>,
        now: Nanos,
    ) -> Result<bool, ReservationError> {
        let ending = match (self.reservations.end(id, costs.map(<[u64]>::len), now), self.store()) {
            (Err(ReservationError::Unknown), Some(store)) => {
                return Box::pin(self.settle_in_store(store.store(), id, costs, now)).await;
            }
            (ending, _) => ending?,
        };
        let Some(Ending { mut parts, is_late }) = ending else { return Ok(false) };
        for part in parts.iter_mut().filter(|part| is_late && part.is_released) {
            part.taken = Estimate { cost: 0, taken: now, place: 0 }.into();
        }
        between().await;
        self.settle_parts(parts, costs, now);
        Ok(true)
    }

    /// Releases what reservations hold that have expired, and forgets those that ended some time ago. `everywhere` also looks for
    /// those in the store that only other servers have seen.
    pub(crate) async fn expire_reservations(&self, everywhere: bool) {
        let now = self.now();
        let released = self.reservations.expire(now);
        between().await;
        self.settle_parts(released, None, now);
        if let Some(store) = self.store() {
            self.expire_in_store(store, everywhere, now).await;
        }
    }

    fn settle_parts<L: AsRef<str>, K: AsRef<[u8]>>(
        &self,
        parts: impl IntoIterator<Item = Part<L, K>>,
        costs: Option<&[u64]>,
        now: Nanos,
    ) {
        let limits = self.limits();
        for (at, part) in parts.into_iter().enumerate() {
            // A limit that is no longer in the rules has nothing to correct.
            let Some(limit) =
                limits.limit(part.limit.as_ref().as_bytes()).filter(|limit| limit.store().is_none())
            else {
                continue;
            };
            let actual = costs.and_then(|costs| costs.get(at)).copied().unwrap_or(0);
            let (key, estimated) = (part.key.as_ref(), part.taken.cost());
            part.taken.settle(actual, |estimate, actual| {
                limit.limiter().settle_at(key, estimate, actual, now);
            });
            let is_rate = limit.spec().policy.algorithm.limits_rate();
            limit.count_settled(key, estimated, if is_rate { actual } else { 0 }, now);
        }
    }
}
