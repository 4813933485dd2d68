//! Reservations over limits in the store: it records them next to their keys, so any server can
//! extend and settle them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidegate_core::Nanos;
use tidegate_redis::{
    Corrected, Correction, FoundBy, Part as StorePart, Reserved, SharedLimit, Store, StoreError,
    WaitFor,
};

use super::{Act, Part as JointPart, Refusal, Report, Service, joint::Decided};
use crate::decide::{
    limits::Limit,
    reservations::{Id, Name, NewId, Part, ReservationError, parts_of, text_of},
    shared::SharedStore,
};

/// The limits and keys of a reservation in the store.
pub(super) fn reserved_in_store(
    store: &Store,
    id: Id,
) -> BoxFuture<'_, Result<Vec<Part>, ReservationError>> {
    Box::pin(async move {
        let text = store.reserved(id.0).await.map_err(no_answer)?;
        text.and_then(|text| parts_of(&text))
            .ok_or(ReservationError::Unknown)
    })
}

/// See [`Service::settle_hold`].
pub(super) fn settle_hold_in_store<'a>(
    store: &'a Store,
    (limit, stored, key): (&'a Limit, &'a SharedLimit, &'a [u8]),
    name: Name,
    report: Report,
    now: Nanos,
) -> BoxFuture<'a, Result<Option<(u64, u64)>, ReservationError>> {
    Box::pin(async move {
        let (actual, is_unused) = match report {
            Report::Used(used) => (used, false),
            Report::Unused(unused) => (unused, true),
        };
        let part = Correction {
            at: 0,
            limit: stored,
            key,
            actual,
            is_unused,
        };
        let by = match name {
            Name::Id(id) => FoundBy::Id(id.0),
            Name::Oldest(tag) => FoundBy::Age(tag),
        };
        let held = store.settle_hold(by, part).await.map_err(no_answer)?;
        Ok(held.map(|held| {
            let used = report.used(held);
            limit.count_settled(key, held, used, now);
            (held, used)
        }))
    })
}

impl Service {
    /// See [`reserve`](Self::reserve). If the store does not reply, nothing is reserved, also with
    /// `on_error: open`: no server could correct the estimate.
    pub(super) fn reserve_in_store<'s, 'a: 's>(
        &'s self,
        store: &'s Store,
        parts: Vec<JointPart<'a>>,
        (new, ttl): (NewId, Nanos),
        now: Nanos,
    ) -> BoxFuture<'s, Result<(Decided<'a>, Option<Id>), Refusal>> {
        Box::pin(async move {
            let random = Id::random().ok_or(Refusal::Reservation(ReservationError::NoId))?;
            let id = match new {
                NewId::Request(id) | NewId::Hold(Name::Id(id)) => id,
                NewId::Random | NewId::Hold(Name::Oldest(_)) => random,
            };
            if matches!(new, NewId::Request(_)) && is_blocked(&parts, now) {
                // A block denies without asking the store, but not the repeat of what was admitted.
                let first = parts
                    .first()
                    .and_then(|part| Some((part.stored()?, part.key)));
                let id = first.map_or(id, |(limit, key)| {
                    Id(store.reservation_id(id.0, &limit, key))
                });
                match reserved_in_store(store, id).await {
                    Ok(_) => return self.reserved_before(parts, id, now).await,
                    Err(ReservationError::Unknown) => {}
                    Err(why) => return Err(Refusal::Reservation(why)),
                }
            }
            let kept: Vec<_> = parts
                .iter()
                .map(|part| Part::new(part.limit.spec(), part.key))
                .collect();
            let (text, most) = (text_of(&kept), self.reservations.most);
            let ttl = ttl.into();
            self.take_in_store(parts, now, async |parts| match (new, parts) {
                (NewId::Hold(name), &[part]) => {
                    let age = match name {
                        Name::Id(_) => None,
                        Name::Oldest(tag) => Some(tag),
                    };
                    match store.hold((id.0, age), part, &text, ttl, most).await? {
                        Reserved::Repeated(_) => {
                            store.reserve(random.0, parts, &text, ttl, most).await
                        }
                        held => Ok(held),
                    }
                }
                _ => store.reserve(id.0, parts, &text, ttl, most).await,
            })
            .await
        })
    }

    /// See [`reserve_waiting`](Self::reserve_waiting). The units are taken in line, and then
    /// recorded.
    pub(super) fn reserve_waiting_in_store<'s, 'a: 's>(
        &'s self,
        parts: Vec<JointPart<'a>>,
        ttl: Nanos,
        wait: WaitFor,
    ) -> BoxFuture<'s, Result<(Decided<'a>, Option<Id>), Refusal>> {
        Box::pin(async move {
            let refuse = Refusal::Reservation;
            let Some(store) = self.store().map(|store| store.store()) else {
                return Err(refuse(ReservationError::Mixed));
            };
            if !parts.iter().any(JointPart::is_enforced) {
                let how = (NewId::Random, ttl);
                return self.reserve_in_store(store, parts, how, self.now()).await;
            }
            let random = Id::random().ok_or(refuse(ReservationError::NoId))?;
            let waited = self.wait_in_store(&parts, wait).await?;
            if let Some(why) = waited.failed {
                // No server could correct the estimate.
                return Err(refuse(no_answer(why)));
            }
            let Some(mut granted) = waited.granted else {
                let decisions = self.each_waited(&parts, waited.together).await;
                return Ok((Decided { parts, decisions }, None));
            };
            let mut together = waited.together.into_iter();
            let (now, mut decisions) = (self.now(), Vec::with_capacity(parts.len()));
            for (at, part) in parts.iter().enumerate() {
                let decided = if part.is_enforced() {
                    together.next()
                } else {
                    None
                };
                let decision = match (decided, part.stored()) {
                    (Some(decision), _) => decision,
                    (None, None) => return Err(refuse(ReservationError::Mixed)),
                    // It takes what it admits, and denies nothing.
                    (None, Some(limit)) => {
                        let taken = limit.acquire_estimate(part.key, part.cost).await;
                        let decision = part.limit.by_store(&taken.0);
                        let part = StorePart {
                            limit: &limit,
                            key: part.key,
                            cost: part.cost,
                        };
                        granted.insert(at, part, taken);
                        decision
                    }
                };
                part.limit
                    .count(Act::Take, part.key, part.cost, &decision, now);
                decisions.push(decision);
            }
            let kept = parts
                .iter()
                .map(|part| Part::new(part.limit.spec(), part.key));
            let (text, most) = (text_of(&kept.collect::<Vec<_>>()), self.reservations.most);
            let recorded = store.reserve_granted(random.0, granted, &text, ttl.into(), most);
            match recorded.await {
                Ok(Some(id)) => Ok((Decided { parts, decisions }, Some(Id(id)))),
                Ok(None) => Err(refuse(ReservationError::TooMany { most })),
                Err(why) => Err(refuse(no_answer(why))),
            }
        })
    }

    /// See [`Service::extend`].
    pub(super) fn extend_in_store<'s, 'a: 's>(
        &'s self,
        store: &'s Store,
        asked: Vec<JointPart<'a>>,
        id: Id,
        now: Nanos,
    ) -> BoxFuture<'s, Result<Decided<'a>, Refusal>> {
        Box::pin(async move {
            let taken =
                self.take_in_store(asked, now, async |parts| store.extend(id.0, parts).await);
            taken.await.map(|(decided, _)| decided)
        })
    }

    /// Takes by `take`, and counts the decisions.
    async fn take_in_store<'a>(
        &self,
        parts: Vec<JointPart<'a>>,
        now: Nanos,
        take: impl AsyncFnOnce(&[(StorePart<'_>, bool)]) -> Result<Reserved, StoreError>,
    ) -> Result<(Decided<'a>, Option<Id>), Refusal> {
        if is_blocked(&parts, now) {
            // The joint decision denies without asking the store, and takes nothing.
            let decisions = self.take_all(&parts, now).await?;
            return Ok((Decided { parts, decisions }, None));
        }
        let refuse = |why| Err(Refusal::Reservation(why));
        let limits: Option<Vec<_>> = parts.iter().map(JointPart::stored).collect();
        let Some(limits) = limits else {
            return refuse(ReservationError::Mixed);
        };
        let asked: Vec<_> = limits
            .iter()
            .zip(&parts)
            .map(|(limit, part)| {
                (
                    StorePart {
                        limit,
                        key: part.key,
                        cost: part.cost,
                    },
                    !part.is_enforced(),
                )
            })
            .collect();
        let (id, decisions) = match take(&asked).await {
            Ok(Reserved::Decided(id, decisions)) => (id, decisions),
            Ok(Reserved::Repeated(id)) => {
                drop(asked);
                return self.reserved_before(parts, Id(id), now).await;
            }
            Ok(Reserved::Full) => {
                return refuse(ReservationError::TooMany {
                    most: self.reservations.most,
                });
            }
            Ok(Reserved::Ended) => return refuse(ReservationError::Ended),
            // `Reserved::Unknown`
            Ok(_) => return refuse(ReservationError::Unknown),
            Err(StoreError::CrossSlot) => return Err(Refusal::Scattered),
            Err(StoreError::OneKey) => return refuse(ReservationError::Twice),
            Err(why) => return refuse(no_answer(why)),
        };
        let decided = Decided { parts, decisions };
        let admitted = decided.is_allowed();
        for (part, decision) in decided.each() {
            // A limit that would have admitted what another denied counts as neither.
            if admitted || decision.is_denied() && part.is_enforced() {
                part.limit
                    .count(Act::Take, part.key, part.cost, decision, now);
            }
        }
        Ok((decided, admitted.then_some(Id(id))))
    }

    /// See [`settle`](Self::settle).
    pub(super) fn settle_in_store<'a>(
        &'a self,
        store: &'a Store,
        id: Id,
        costs: Option<&'a [u64]>,
        now: Nanos,
    ) -> BoxFuture<'a, Result<bool, ReservationError>> {
        Box::pin(async move {
            let parts = reserved_in_store(store, id).await?;
            if costs.is_some_and(|costs| costs.len() != parts.len()) {
                return Err(ReservationError::Costs { parts: parts.len() });
            }
            let actual = |at: usize| costs.and_then(|costs| costs.get(at)).copied().unwrap_or(0);
            let parts = parts
                .iter()
                .enumerate()
                .map(|(at, part)| (at, part, actual(at)))
                .collect::<Vec<_>>();
            self.correct_in_store(store, id, &parts, false, now).await
        })
    }

    /// Ends the reservations in the store whose time is over, whichever server made them.
    pub(super) fn expire_in_store<'a>(
        &'a self,
        shared: &'a SharedStore,
        everywhere: bool,
        now: Nanos,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let store = shared.store();
            // The store's health shows an error, and the next call tries again.
            let Ok(due) = store.due(everywhere).await else {
                return;
            };
            for id in due.into_iter().map(Id) {
                let Ok(parts) = store.reserved(id.0).await else {
                    return;
                };
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
        })
    }

    async fn correct_in_store(
        &self,
        store: &Store,
        id: Id,
        parts: &[(usize, &Part, u64)],
        expires: bool,
        now: Nanos,
    ) -> Result<bool, ReservationError> {
        // A limit that is no longer in the rules, or no longer in the store, has nothing to
        // correct.
        let known: Vec<_> = {
            let limits = self.limits();
            let known = |&(at, part, actual): &(usize, &Part, u64)| {
                let limit = limits.limit(part.limit.as_bytes())?;
                let stored = limit.store()?.of(&part.key).into_owned();
                Some((Arc::clone(limit), stored, at, part.key.clone(), actual))
            };
            parts.iter().filter_map(known).collect()
        };
        let corrections: Vec<_> = known
            .iter()
            .map(|(_, limit, at, key, actual)| Correction {
                at: *at,
                limit,
                key,
                actual: *actual,
                is_unused: false,
            })
            .collect();
        let corrected = if expires {
            store.expire(id.0, &corrections).await
        } else {
            store.settle(id.0, &corrections).await
        };
        match corrected {
            Ok(Corrected::Now(estimates)) => {
                for ((limit, _, _, key, actual), estimated) in known.iter().zip(estimates) {
                    limit.count_settled(key, estimated, *actual, now);
                }
                Ok(true)
            }
            Ok(Corrected::Before) => Ok(false),
            // `Corrected::Unknown`
            Ok(_) => Err(ReservationError::Unknown),
            Err(why) => Err(no_answer(why)),
        }
    }
}

/// Whether an enforced limit has blocked its key.
fn is_blocked(parts: &[JointPart<'_>], now: Nanos) -> bool {
    parts
        .iter()
        .any(|part| part.is_enforced() && part.limit.block_of(part.key, now).is_some())
}

fn no_answer(why: StoreError) -> ReservationError {
    ReservationError::NoAnswer { why }
}
