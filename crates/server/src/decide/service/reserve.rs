//! Reservations over the limits in memory: reserve, extend, settle, cancel, and the end of those that expire.

use tidegate_core::Nanos;
use tidegate_limiter::Estimate;

use super::{Answer, Ask, JointAnswer, Refusal, Resolved, Service, resolve};
use crate::{
    decide::reservations::{Ending, Id, MOST_PARTS, Part, ReservationError, Reservations},
    rules::OnExpiry,
};

impl Service {
    /// The reservations that are open or remembered.
    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Takes an estimate from each limit if all admit, and keeps it under an id for `ttl`. `None` if a limit denied: then
    /// nothing was taken.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all); also for a limit in the store, and if there are too many reservations or limits.
    pub(crate) async fn reserve(
        &self,
        asks: &[Ask<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(JointAnswer, Option<Id>), (usize, Refusal)> {
        let refuse = |why: ReservationError| (0, Refusal::Reservation(why));
        if asks.len() > MOST_PARTS {
            return Err(refuse(ReservationError::TooManyParts));
        }
        self.reservations.has_room().map_err(refuse)?;
        let mut places = Vec::with_capacity(asks.len());
        for (at, ask) in asks.iter().enumerate() {
            let limits = self.limits();
            let Resolved { limit, key } =
                resolve(&limits, ask.limit, ask.key).map_err(|refusal| (at, refusal))?;
            places.push(limit.limiter().place(key));
            if limit.store().is_some() {
                let limit = limit.spec().name.clone();
                return Err((at, Refusal::Reservation(ReservationError::InStore { limit })));
            }
        }
        let joint = self.acquire_all(asks, now).await?;
        if !joint.is_allowed() {
            return Ok((joint, None));
        }
        let part = |((answer, ask), &place): ((&Answer, &Ask<'_>), &u64)| {
            let spec = answer.limit.spec();
            // A shadow limit that would deny has taken nothing.
            let cost = if answer.decision.is_allowed() { ask.cost } else { 0 };
            Part {
                limit: spec.name.as_str().into(),
                key: answer.key.as_slice().into(),
                taken: Estimate { cost, taken: now, place }.into(),
                is_released: spec.on_expiry == OnExpiry::Release || !spec.policy.algorithm.limits_rate(),
            }
        };
        let parts: Vec<Part> = joint.answers.iter().zip(asks).zip(&places).map(part).collect();
        match self.reservations.add(&parts, ttl, now) {
            Ok(id) => Ok((joint, Some(id))),
            Err(why) => {
                self.settle_parts(parts, None, now);
                Err(refuse(why))
            }
        }
    }

    /// Takes more for a reservation, one cost for each of its limits, and lets it live for its time from now. If a limit denies,
    /// nothing was taken and the reservation stays as it was.
    ///
    /// # Errors
    /// If the reservation is unknown or has ended, the number of costs is wrong, or a limit is gone.
    pub(crate) async fn extend(&self, id: Id, costs: &[u32], now: Nanos) -> Result<JointAnswer, Refusal> {
        let parts = self.reservations.parts(id).map_err(Refusal::Reservation)?;
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
        let place = |ask: &Ask<'_>| {
            let limits = self.limits();
            resolve(&limits, ask.limit, ask.key).map_or(0, |found| found.limit.limiter().place(found.key))
        };
        let more: Vec<_> =
            asks.iter().map(|ask| Estimate { cost: ask.cost, taken: now, place: place(ask) }).collect();
        let joint = self.acquire_all(&asks, now).await.map_err(|(_, refusal)| refusal)?;
        if joint.is_allowed()
            && let Err(why) = self.reservations.extend(id, &more, now)
        {
            // It ended in between.
            let more = parts.into_iter().zip(more);
            let more = more.map(|(part, estimate)| Part { taken: estimate.into(), ..part });
            self.settle_parts(more.collect(), None, now);
            return Err(Refusal::Reservation(why));
        }
        Ok(joint)
    }

    /// Corrects each limit to what was used: `costs` has one cost for each limit, in the order of the reservation, or is `None` if
    /// nothing was done. Returns whether this was the first time.
    ///
    /// # Errors
    /// If the reservation is unknown or the number of costs is wrong.
    pub(crate) fn settle(&self, id: Id, costs: Option<&[u32]>, now: Nanos) -> Result<bool, ReservationError> {
        let Some(Ending { mut parts, is_late }) = self.reservations.end(id, costs.map(<[u32]>::len), now)?
        else {
            return Ok(false);
        };
        for part in parts.iter_mut().filter(|part| is_late && part.is_released) {
            part.taken = Estimate { cost: 0, taken: now, place: 0 }.into();
        }
        self.settle_parts(parts, costs, now);
        Ok(true)
    }

    /// Releases what reservations hold that have expired, and forgets those that ended some time ago.
    pub(crate) fn expire_reservations(&self) {
        let now = self.now();
        self.settle_parts(self.reservations.expire(now), None, now);
    }

    fn settle_parts(&self, parts: Vec<Part>, costs: Option<&[u32]>, now: Nanos) {
        let limits = self.limits();
        for (at, part) in parts.into_iter().enumerate() {
            // A limit that is no longer in the rules has nothing to correct.
            let Some(limit) = limits.limit(part.limit.as_bytes()).filter(|limit| limit.store().is_none())
            else {
                continue;
            };
            let actual = costs.and_then(|costs| costs.get(at)).copied().unwrap_or(0);
            let estimated = part.taken.cost();
            part.taken.settle(actual, |estimate, actual| {
                limit.limiter().settle_at(&*part.key, estimate, actual, now);
            });
            let is_rate = limit.spec().policy.algorithm.limits_rate();
            limit.count_settled(&part.key, estimated, if is_rate { actual } else { 0 }, now);
        }
    }
}
