//! Reservations, over the limits in memory and (in `reserve_in_store`) over those in the store:
//! reserve, extend, settle, cancel, and the end of those that expire.

use std::sync::Arc;

use tidegate_core::{Decision, Nanos};
use tidegate_limiter::Estimate;
use tidegate_redis::WaitFor;

use super::{
    Act, Ask, JointAnswer, Part as JointPart, Refusal, Service, check_id,
    joint::{Decided, take_noted_in_memory},
    reserve_in_store::{reserved_in_store, settle_hold_in_store},
    waiting::are_stored,
};
use crate::decide::limits::Limit;
use crate::decide::reservations::{
    Ending, Id, MOST_PARTS, Name, NewId, Part, ReservationError, Seen,
};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Marks where another thread may come in between: the model tries every order.
#[cfg(not(test))]
fn between() -> std::future::Ready<()> {
    std::future::ready(())
}
#[cfg(test)]
use model::pause as between;

/// The use of a hold's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// So many were used.
    Used(u64),
    /// So many were not used.
    Unused(u64),
}

impl Report {
    /// The units of a hold that were used.
    pub(super) fn used(self, held: u64) -> u64 {
        match self {
            Self::Used(used) => used,
            Self::Unused(unused) => held.saturating_sub(unused),
        }
    }
}

impl Service {
    /// Takes an estimate from each limit if all admit, and keeps it under an id for `ttl`. `None`
    /// if a limit denied: then nothing was taken.
    ///
    /// With the `request`'s own id it is safe to repeat: as long as the reservation is remembered,
    /// the same request for the same limits, keys and costs gets its id again, with what the limits
    /// have left by then, and takes nothing.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all); also [`Refusal::Id`], if there are too many
    /// reservations or limits, if only some of the limits are in the store, and if the store does
    /// not reply.
    pub async fn reserve(
        &self,
        request: Option<&[u8]>,
        asks: &[Ask<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(JointAnswer, Option<Id>), (usize, Refusal)> {
        let (decided, id) = self.reserve_decided(request, asks, ttl, now).await?;
        Ok((decided.into_joint(), id))
    }

    /// [`reserve`](Self::reserve), for a client that may need only the answer of the limit that
    /// bound.
    ///
    /// # Errors
    /// The same.
    pub async fn reserve_decided<'a>(
        &self,
        request: Option<&[u8]>,
        asks: &[Ask<'a>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(Decided<'a>, Option<Id>), (usize, Refusal)> {
        let refuse = |why| (0, Refusal::Reservation(why));
        if asks.len() > MOST_PARTS {
            return Err(refuse(ReservationError::TooManyParts));
        }
        let parts = self.parts(asks)?;
        let stored = parts.iter().filter(|part| part.is_stored()).count();
        if stored > 0 && stored < parts.len() {
            return Err(refuse(ReservationError::Mixed));
        }
        let id = match request {
            Some(request) => {
                check_id(request).map_err(|refusal| (0, refusal))?;
                NewId::Request(Id::of_request(request, parts.iter().map(JointPart::asked)))
            }
            None => NewId::Random,
        };
        let reserved = match self.store().filter(|_| stored > 0) {
            Some(store) => {
                self.reserve_in_store(store.store(), parts, (id, ttl), now)
                    .await
            }
            None => match id {
                NewId::Request(id) if self.reservations.parts(id).is_ok() => {
                    self.reserved_before(parts, id, now).await
                }
                _ => self.reserve_in_memory(parts, (id, ttl), now).await,
            },
        };
        reserved.map_err(|refusal| (0, refusal))
    }

    /// Takes an estimate from one limit if it admits, and keeps it for `ttl` under a name by which
    /// [`settle_hold`](Self::settle_hold) finds it. If another hold has the name, this one expires.
    /// Returns the id of the reservation, or `None` if the limit denied.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn hold(
        &self,
        part: JointPart<'_>,
        name: Name,
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(Decision, Option<Id>), Refusal> {
        let how = (NewId::Hold(name), ttl);
        let (decided, id) = match self.store().filter(|_| part.is_stored()) {
            Some(store) => {
                self.reserve_in_store(store.store(), vec![part], how, now)
                    .await
            }
            None => self.reserve_in_memory(vec![part], how, now).await,
        }?;
        Ok((decided.into_bound().decision, id))
    }

    /// Corrects the hold of this limit and key with this name to what was used. Returns its
    /// estimate and its use; `None` if none has the name or it has ended.
    ///
    /// # Errors
    /// If the store does not reply. A hold that was to be found by its age may then stay until it
    /// expires.
    pub async fn settle_hold(
        &self,
        limit: &Arc<Limit>,
        key: &[u8],
        name: Name,
        report: Report,
        now: Nanos,
    ) -> Result<Option<(u64, u64)>, ReservationError> {
        if let (Some(store), Some(stored)) = (self.store(), limit.store()) {
            let (limit, stored) = (&**limit, stored.of(key));
            let settled =
                settle_hold_in_store(store.store(), (limit, &stored, key), name, report, now);
            return Box::pin(settled).await;
        }
        let ending = self
            .reservations
            .end_hold(name, &limit.spec().name, key, now);
        let Some(ending) = ending else {
            return Ok(None);
        };
        let held = ending.parts.iter().map(|part| part.taken.cost()).sum();
        let used = report.used(held);
        between().await;
        self.settle_ended(ending, Some(&[used]), now);
        Ok(Some((held, used)))
    }

    /// The answer to a request whose reservation exists: its id, and what the limits have left.
    pub(super) async fn reserved_before<'a>(
        &self,
        parts: Vec<JointPart<'a>>,
        id: Id,
        now: Nanos,
    ) -> Result<(Decided<'a>, Option<Id>), Refusal> {
        let mut decisions = Vec::with_capacity(parts.len());
        for part in &parts {
            let peeked = part.limit.decide(Act::Peek, part.key, 0, now).await?;
            decisions.push(Decision::allow(peeked.standing()));
        }
        self.repeats.count_repeated();
        Ok((Decided { parts, decisions }, Some(id)))
    }

    async fn reserve_in_memory<'a>(
        &self,
        parts: Vec<JointPart<'a>>,
        (id, ttl): (NewId, Nanos),
        now: Nanos,
    ) -> Result<(Decided<'a>, Option<Id>), Refusal> {
        self.reservations.has_room().map_err(Refusal::Reservation)?;
        between().await;
        let (decisions, estimates) = take_noted_in_memory(&parts, now)?;
        let decided = Decided { parts, decisions };
        self.keep(decided, estimates, (id, ttl), now).await
    }

    /// Takes an estimate from each limit, as [`reserve`](Self::reserve) does, and waits
    /// in line until all admit, for a time that was [checked](super::wait_of).
    ///
    /// # Errors
    /// The same; also as [`acquire_all_waiting`](Self::acquire_all_waiting).
    pub async fn reserve_waiting<'a>(
        &self,
        asks: &[Ask<'a>],
        ttl: Nanos,
        wait: impl Into<WaitFor>,
    ) -> Result<(Decided<'a>, Option<Id>), (usize, Refusal)> {
        let (refuse, wait) = (|refusal| (0, refusal), wait.into());
        if asks.len() > MOST_PARTS {
            return Err(refuse(Refusal::Reservation(ReservationError::TooManyParts)));
        }
        let parts = self.parts(asks)?;
        if are_stored(&parts).map_err(refuse)? {
            let reserved = self.reserve_waiting_in_store(parts, ttl, wait).await;
            return reserved.map_err(refuse);
        }
        let has_room = self.reservations.has_room();
        has_room.map_err(|why| refuse(Refusal::Reservation(why)))?;
        let (decisions, taken) = self.wait_for_all(&parts, wait).await.map_err(refuse)?;
        let (now, mut taken) = (self.now(), taken.into_iter());
        // The units of limits that deny nothing are where they count now.
        let estimates = parts.iter().map(|part| {
            let noted = if part.is_enforced() {
                taken.next()
            } else {
                None
            };
            noted.unwrap_or_else(|| part.estimate(now))
        });
        let estimates = estimates.collect();
        let decided = Decided { parts, decisions };
        let kept = self.keep(decided, estimates, (NewId::Random, ttl), now);
        kept.await.map_err(refuse)
    }

    /// Keeps what was taken under an id, if all limits admitted.
    async fn keep<'a>(
        &self,
        decided: Decided<'a>,
        estimates: Vec<Estimate>,
        (id, ttl): (NewId, Nanos),
        now: Nanos,
    ) -> Result<(Decided<'a>, Option<Id>), Refusal> {
        if !decided.is_allowed() {
            return Ok((decided, None));
        }
        let all = decided.parts.iter().zip(decided.taken(estimates));
        let all = all.map(|(part, estimate)| Part {
            taken: estimate.into(),
            ..Part::new(part.limit.spec(), part.key)
        });
        let taken: Vec<_> = all.collect();
        between().await;
        let added = self.reservations.add(id, &taken, ttl, now);
        if let Ok((id, true)) = added {
            return Ok((decided, Some(id)));
        }
        between().await;
        self.settle_parts(taken, None, now);
        match added {
            // The same request came twice at a time.
            Ok((id, _)) => self.reserved_before(decided.parts, id, now).await,
            Err(why) => Err(Refusal::Reservation(why)),
        }
    }

    /// The limits and keys of a reservation; empty if it was made here and is done.
    ///
    /// # Errors
    /// If it is unknown, or the store does not reply.
    pub async fn reserved(&self, id: Id) -> Result<Vec<Part>, ReservationError> {
        match (self.reservations.parts(id), self.store()) {
            (Err(ReservationError::Unknown), Some(store)) => {
                reserved_in_store(store.store(), id).await
            }
            (found, _) => found,
        }
    }

    /// Takes more for a reservation, one cost for each of its limits, and lets it live for its time
    /// from now. If a limit denies, nothing was taken and the reservation stays as it was.
    ///
    /// # Errors
    /// If the reservation is unknown or has ended, the number of costs is wrong, or a limit is
    /// gone.
    pub async fn extend(&self, id: Id, costs: &[u64], now: Nanos) -> Result<JointAnswer, Refusal> {
        let (parts, store) = match (self.reservations.parts(id), self.store()) {
            (Err(ReservationError::Unknown), Some(store)) => (
                reserved_in_store(store.store(), id).await,
                Some(store.store()),
            ),
            (found, _) => (found, None),
        };
        let parts = parts.map_err(Refusal::Reservation)?;
        if parts.is_empty() {
            return Err(Refusal::Reservation(ReservationError::Ended));
        }
        if parts.len() != costs.len() {
            return Err(Refusal::Reservation(ReservationError::Costs {
                parts: parts.len(),
            }));
        }
        let ask = |(part, &cost)| {
            let Part { limit, key, .. }: &Part = part;
            Ask {
                limit: limit.as_bytes(),
                key: Some(key),
                cost,
            }
        };
        let asks: Vec<_> = parts.iter().zip(costs).map(ask).collect();
        let asked = self.parts(&asks).map_err(|(_, refusal)| refusal)?;
        if let Some(store) = store {
            let taken = self.extend_in_store(store, asked, id, now).await;
            return taken.map(Decided::into_joint);
        }
        if asked.iter().any(JointPart::is_stored) {
            // A change of the rules has moved a limit to the store.
            return Err(Refusal::Reservation(ReservationError::Mixed));
        }
        between().await;
        let (decisions, estimates) = take_noted_in_memory(&asked, now)?;
        let decided = Decided {
            parts: asked,
            decisions,
        };
        // By the rules that are in force now.
        let more = decided.parts.iter().zip(decided.taken(estimates));
        let more = more.map(|(part, estimate)| Part {
            taken: estimate.into(),
            ..Part::new(part.limit.spec(), part.key)
        });
        let more: Vec<_> = more.collect();
        between().await;
        if decided.is_allowed()
            && let Err(why) = self.reservations.extend(id, &more, now)
        {
            // It ended in between.
            between().await;
            self.settle_parts(more, None, now);
            return Err(Refusal::Reservation(why));
        }
        Ok(decided.into_joint())
    }

    /// Corrects each limit to what was used: `costs` has one cost for each limit, in the order of
    /// the reservation, or is `None` if nothing was done. Returns whether this was the first time.
    ///
    /// # Errors
    /// If the reservation is unknown, the number of costs is wrong, or the store does not reply.
    pub async fn settle(
        &self,
        id: Id,
        costs: Option<&[u64]>,
        now: Nanos,
    ) -> Result<bool, ReservationError> {
        let ending = match (
            self.reservations.end(id, costs.map(<[u64]>::len), now),
            self.store(),
        ) {
            (Err(ReservationError::Unknown), Some(store)) => {
                return self.settle_in_store(store.store(), id, costs, now).await;
            }
            (ending, _) => ending?,
        };
        let Some(ending) = ending else {
            return Ok(false);
        };
        between().await;
        self.settle_ended(ending, costs, now);
        Ok(true)
    }

    /// Corrects the limits of a reservation that has ended.
    fn settle_ended(&self, ending: Ending, costs: Option<&[u64]>, now: Nanos) {
        let Ending { mut parts, is_late } = ending;
        for part in parts.iter_mut().filter(|part| is_late && part.is_released) {
            part.taken = Estimate {
                cost: 0,
                taken: now,
                place: 0,
            }
            .into();
        }
        self.settle_parts(parts, costs, now);
    }

    /// Releases what reservations hold that have expired, and forgets those that ended some time
    /// ago. `everywhere` also looks for those in the store that only other servers have seen.
    pub async fn expire_reservations(&self, everywhere: bool) {
        let now = self.now();
        self.repeats.expire(now);
        let released = self.reservations.expire(now);
        between().await;
        self.settle_parts(released, None, now);
        if let Some(store) = self.store() {
            self.expire_in_store(store, everywhere, now).await;
        }
    }

    /// The reservations that were seen before the states were copied: see
    /// [`texts`](crate::decide::reservations::Reservations::texts).
    pub fn reservation_texts(&self, seen: Seen) -> impl Iterator<Item = (String, Nanos)> {
        let limits = self.limits();
        self.reservations.texts(seen, move |part, place| {
            let limit = limits.limit(part.limit.as_bytes());
            limit.map_or(place, |limit| limit.place_in_copy(&part.key, place))
        })
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
            let Some(limit) = limits
                .limit(part.limit.as_ref().as_bytes())
                .filter(|limit| limit.store().is_none())
            else {
                continue;
            };
            let actual = costs.and_then(|costs| costs.get(at)).copied().unwrap_or(0);
            let (key, estimated) = (part.key.as_ref(), part.taken.cost());
            part.taken.settle(actual, |estimate, actual| {
                limit.settle_in_memory(key, estimate, actual, now);
            });
            limit.count_settled(key, estimated, actual, now);
        }
    }
}
