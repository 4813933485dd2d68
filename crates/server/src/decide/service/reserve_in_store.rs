//! Reservations over limits in the store: it records them next to their keys, so any server can extend and settle them.

use std::{borrow::Cow, sync::Arc};

use tidegate_core::{Decision, Nanos};
use tidegate_redis::{Corrected, Correction, Part as StorePart, Reserved, SharedLimit, Store, StoreError};

use super::{Act, Answer, Ask, JointAnswer, Refusal, Resolved, Service, resolve};
use crate::decide::{
    limits::Limit,
    reservations::{Id, Part, ReservationError, parts_of, text_of},
    shared::SharedStore,
};

/// A limit in the store, and the key.
struct Stored<'a> {
    limit: Arc<Limit>,
    key: &'a [u8],
    cost: u64,
}

impl Stored<'_> {
    /// The limit for this key; `None` if a change of the rules has moved it out of the store.
    fn of_key(&self) -> Option<Cow<'_, SharedLimit>> {
        Some(self.limit.store()?.of(self.key))
    }

    fn is_shadow(&self) -> bool {
        self.limit.spec().shadow
    }
}

/// The limits and keys of a reservation in the store.
pub(super) async fn reserved_in_store(store: &Store, id: Id) -> Result<Vec<Part>, ReservationError> {
    let text = store.reserved(id.0).await.map_err(no_answer)?;
    text.and_then(|text| parts_of(&text)).ok_or(ReservationError::Unknown)
}

impl Service {
    /// See [`reserve`](Self::reserve). If the store does not reply, nothing is reserved, also with `on_error: open`: no server could
    /// correct the estimate.
    pub(super) async fn reserve_in_store(
        &self,
        store: &Store,
        asks: &[Ask<'_>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(JointAnswer, Option<Id>), (usize, Refusal)> {
        let stored = self.stored(asks)?;
        let refuse = |why| (0, Refusal::Reservation(why));
        let random = Id::random().ok_or_else(|| refuse(ReservationError::NoId))?;
        let parts: Vec<_> = stored.iter().map(|part| Part::new(part.limit.spec(), part.key)).collect();
        let how = (&text_of(&parts)[..], ttl.into(), self.reservations().most());
        self.take_in_store(asks, &stored, now, async |parts| {
            store.reserve(random.0, parts, how.0, how.1, how.2).await
        })
        .await
    }

    /// See [`extend`](Self::extend).
    pub(super) async fn extend_in_store(
        &self,
        store: &Store,
        id: Id,
        costs: &[u64],
        now: Nanos,
    ) -> Result<JointAnswer, Refusal> {
        let parts = reserved_in_store(store, id).await.map_err(Refusal::Reservation)?;
        if parts.len() != costs.len() {
            return Err(Refusal::Reservation(ReservationError::Costs { parts: parts.len() }));
        }
        let ask = |(part, &cost): (&Part, &u64)| (part.limit.as_bytes().to_vec(), part.key.clone(), cost);
        let owned: Vec<_> = parts.iter().zip(costs).map(ask).collect();
        let asks: Vec<Ask<'_>> =
            owned.iter().map(|(limit, key, cost)| Ask { limit, key: Some(key), cost: *cost }).collect();
        let stored = self.stored(&asks).map_err(|(_, refusal)| refusal)?;
        let taken = self.take_in_store(&asks, &stored, now, async |parts| store.extend(id.0, parts).await);
        taken.await.map(|(joint, _)| joint).map_err(|(_, refusal)| refusal)
    }

    fn stored<'a>(&self, asks: &[Ask<'a>]) -> Result<Vec<Stored<'a>>, (usize, Refusal)> {
        let limits = self.limits();
        let stored = |(at, ask): (usize, &Ask<'a>)| {
            let Resolved { limit, key } =
                resolve(&limits, ask.limit, ask.key).map_err(|refusal| (at, refusal))?;
            Ok(Stored { limit: Arc::clone(limit), key, cost: ask.cost })
        };
        asks.iter().enumerate().map(stored).collect()
    }

    /// Takes by `take`, and counts the decisions.
    async fn take_in_store(
        &self,
        asks: &[Ask<'_>],
        stored: &[Stored<'_>],
        now: Nanos,
        take: impl AsyncFnOnce(&[(StorePart<'_>, bool)]) -> Result<Reserved, StoreError>,
    ) -> Result<(JointAnswer, Option<Id>), (usize, Refusal)> {
        let refuse = |why| (0, Refusal::Reservation(why));
        if stored.iter().any(|part| !part.is_shadow() && part.limit.block_of(part.key, now).is_some()) {
            // The joint decision denies without asking the store, and takes nothing.
            return Ok((self.acquire_all(asks, now).await?, None));
        }
        let limits: Option<Vec<_>> = stored.iter().map(Stored::of_key).collect();
        let limits = limits.ok_or_else(|| refuse(ReservationError::Mixed))?;
        let parts: Vec<_> = limits
            .iter()
            .zip(stored)
            .map(|(limit, part)| (StorePart { limit, key: part.key, cost: part.cost }, part.is_shadow()))
            .collect();
        let (id, decisions) = match take(&parts).await {
            Ok(Reserved::Decided(id, decisions)) => (id, decisions),
            Ok(Reserved::Full) => {
                return Err(refuse(ReservationError::TooMany { most: self.reservations().most() }));
            }
            Ok(Reserved::Unknown) => return Err(refuse(ReservationError::Unknown)),
            Ok(Reserved::Ended) => return Err(refuse(ReservationError::Ended)),
            Err(StoreError::CrossSlot) => return Err((0, Refusal::Scattered)),
            Err(StoreError::OneKey) => return Err(refuse(ReservationError::Twice)),
            Err(why) => return Err(refuse(no_answer(why))),
        };
        let enforced = |(decision, part): (&Decision, &Stored<'_>)| decision.is_allowed() || part.is_shadow();
        let admitted = decisions.iter().zip(stored).all(enforced);
        let answer = |(decision, part): (Decision, &Stored<'_>)| {
            // A limit that would have admitted what another denied counts as neither.
            if admitted || decision.is_denied() && !part.is_shadow() {
                part.limit.count(Act::Take, part.key, part.cost, &decision, now);
            }
            Answer { limit: Arc::clone(&part.limit), key: part.key.to_vec(), decision }
        };
        let joint = JointAnswer::new(decisions.into_iter().zip(stored).map(answer).collect());
        Ok((joint, admitted.then_some(Id(id))))
    }

    /// See [`settle`](Self::settle).
    pub(super) async fn settle_in_store(
        &self,
        store: &Store,
        id: Id,
        costs: Option<&[u64]>,
        now: Nanos,
    ) -> Result<bool, ReservationError> {
        let parts = reserved_in_store(store, id).await?;
        if costs.is_some_and(|costs| costs.len() != parts.len()) {
            return Err(ReservationError::Costs { parts: parts.len() });
        }
        let actual = |at: usize| costs.and_then(|costs| costs.get(at)).copied().unwrap_or(0);
        let parts = parts.iter().enumerate().map(|(at, part)| (at, part, actual(at))).collect::<Vec<_>>();
        self.correct_in_store(store, id, &parts, false, now).await
    }

    /// Ends the reservations in the store whose time is over, whichever server made them.
    pub(super) async fn expire_in_store(&self, shared: &SharedStore, everywhere: bool, now: Nanos) {
        let store = shared.store();
        // The store's health shows an error, and the next call tries again.
        let Ok(due) = store.due(everywhere).await else { return };
        for id in due.into_iter().map(Id) {
            let Ok(parts) = store.reserved(id.0).await else { return };
            let parts = parts.and_then(|text| parts_of(&text)).unwrap_or_default();
            let released: Vec<_> = parts
                .iter()
                .enumerate()
                .filter(|(_, part)| part.is_released)
                .map(|(at, part)| (at, part, 0))
                .collect();
            if let Err(ReservationError::NoAnswer { .. }) =
                self.correct_in_store(store, id, &released, true, now).await
            {
                return;
            }
        }
    }

    async fn correct_in_store(
        &self,
        store: &Store,
        id: Id,
        parts: &[(usize, &Part, u64)],
        expires: bool,
        now: Nanos,
    ) -> Result<bool, ReservationError> {
        // A limit that is no longer in the rules has nothing to correct.
        let known: Vec<(usize, Stored<'_>)> = {
            let limits = self.limits();
            let stored = |(at, part, actual): &(usize, &'_ Part, u64)| {
                let limit = limits.limit(part.limit.as_bytes())?;
                Some((*at, Arc::clone(limit), *actual))
            };
            let found = parts.iter().filter_map(|part| Some((stored(part)?, part.1)));
            found.map(|((at, limit, cost), part)| (at, Stored { limit, key: &part.key, cost })).collect()
        };
        let owned: Vec<_> =
            known.iter().filter_map(|(at, part)| Some((*at, part.of_key()?.into_owned(), part))).collect();
        let corrections: Vec<_> = owned
            .iter()
            .map(|(at, limit, part)| Correction { at: *at, limit, key: part.key, actual: part.cost })
            .collect();
        let corrected = if expires {
            store.expire(id.0, &corrections).await
        } else {
            store.settle(id.0, &corrections).await
        };
        match corrected {
            Ok(Corrected::Now(estimates)) => {
                for ((_, _, part), estimated) in owned.iter().zip(estimates) {
                    let is_rate = part.limit.spec().policy.algorithm.limits_rate();
                    part.limit.count_settled(part.key, estimated, if is_rate { part.cost } else { 0 }, now);
                }
                Ok(true)
            }
            Ok(Corrected::Before) => Ok(false),
            Ok(Corrected::Unknown) => Err(ReservationError::Unknown),
            Err(why) => Err(no_answer(why)),
        }
    }
}

fn no_answer(why: StoreError) -> ReservationError {
    ReservationError::NoAnswer { why }
}
