//! Reservations: estimates that were taken under an id, and are corrected when their work is over.
//!
//! ```text
//!            ┌──── settle, cancel ────────────────┐
//!   reserve  │                                    ▼
//!  ────────► open ── time to live ──► expired ── settle (late) ──► done ── forgotten
//!            └─ extend ─┘               └───────── time to live, at least a minute ──► forgotten
//! ```
//!
//! This module knows which units belong to an id. [`Service`](super::service::Service) takes and returns them.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, mem,
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tidegate_core::{MAX_LIMIT, Nanos};
use tidegate_limiter::{Estimate, Estimates};
use tidegate_redis::StoreError;

use crate::rules::{LimitSpec, OnExpiry};

/// The default maximum number of reservations that are open, or remembered after their end.
pub const MOST_RESERVATIONS: usize = 100_000;
/// The maximum number of limits in one reservation.
pub const MOST_PARTS: usize = 8;

/// A reservation that has ended is remembered for its time to live, and at least this long: a settlement may be late or repeated.
const REMEMBERED: Nanos = Nanos::from_secs(60);

/// Identifies a reservation: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub u128);

impl Id {
    pub fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Id {
    type Err = ReservationError;

    fn from_str(text: &str) -> Result<Self, ReservationError> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if is_hex { u128::from_str_radix(text, 16).ok() } else { None };
        number.map(Self).ok_or(ReservationError::NotAnId)
    }
}

/// Why a reservation cannot be made, extended, settled or cancelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReservationError {
    /// The text is not an id.
    #[error("a reservation's id is 32 hexadecimal digits, as in the answer to the reservation")]
    NotAnId,
    /// The server does not know the id.
    #[error(
        "no reservation has this id: it was made elsewhere, or it ended some time ago. Charge its use instead"
    )]
    Unknown,
    /// An ended reservation cannot be extended.
    #[error("the reservation has expired, or it was settled or cancelled: make another one")]
    Ended,
    /// The number of costs is not that of the limits.
    #[error("the reservation has {parts} limits: give {parts} costs, in the order of the reservation")]
    Costs {
        /// The number of limits.
        parts: usize,
    },
    /// The sum of the estimates exceeds 2⁵³ − 1.
    #[error("the sum of the estimates exceeds {MAX_LIMIT}: settle the reservation and make another one")]
    TooLarge,
    /// The server has no room for another one.
    #[error("the server keeps {most} reservations already: settle some, or raise --max-reservations")]
    TooMany {
        /// The maximum number.
        most: usize,
    },
    /// There are more than [`MOST_PARTS`] limits.
    #[error("a reservation can have {MOST_PARTS} limits at most")]
    TooManyParts,
    /// Some limits are in the store, others in memory.
    #[error("some of these limits are in the store and others in memory: reserve them separately")]
    Mixed,
    /// A limit in the store occurs twice with one key.
    #[error("a limit occurs twice with one key: add up its costs")]
    Twice,
    /// The store did not reply.
    #[error(
        "the store did not carry this out, or its reply was lost: {why}; try again (a settlement counts once, and a lost reservation expires)"
    )]
    NoAnswer {
        /// The store client's error.
        #[source]
        why: StoreError,
    },
    /// The system has no random numbers.
    #[error("the system gave no random number for an id")]
    NoId,
}

/// The units that a reservation took from one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub limit: Box<str>,
    pub key: Box<[u8]>,
    pub taken: Estimates,
    /// Whether the units go back when the reservation expires.
    pub is_released: bool,
}

impl Part {
    /// A limit and a key, with nothing taken yet.
    pub fn new(spec: &LimitSpec, key: &[u8]) -> Self {
        Self {
            limit: spec.name.as_str().into(),
            key: key.into(),
            taken: Estimates::default(),
            is_released: spec.on_expiry == OnExpiry::Release || !spec.policy.algorithm.limits_rate(),
        }
    }
}

/// The units of a reservation that has just ended, to be corrected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub parts: Vec<Part>,
    /// Whether it had expired before: units that are released then are back already.
    pub is_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reservation {
    /// Empty once it is done.
    parts: Vec<Part>,
    ttl: Nanos,
    /// When it expires, or is forgotten.
    due: Nanos,
    status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Status {
    Open,
    Expired,
    Done,
}

/// The reservations of a server.
pub(crate) struct Reservations {
    most: usize,
    kept: Mutex<Kept>,
}

/// The reservations at one moment.
pub(crate) struct Seen(HashMap<Id, Reservation>);

impl Seen {
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<Id, Reservation>,
    due: BTreeSet<(Nanos, Id)>,
}

impl Reservations {
    pub fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No step panics midway.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are open or remembered.
    pub fn len(&self) -> usize {
        self.kept().by_id.len()
    }

    /// The maximum number.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether there is room for another one.
    pub fn has_room(&self) -> Result<(), ReservationError> {
        if self.len() < self.most { Ok(()) } else { Err(ReservationError::TooMany { most: self.most }) }
    }

    /// Keeps units that were taken until `ttl` from now. On an error the caller returns them.
    pub fn add(&self, parts: &[Part], ttl: Nanos, now: Nanos) -> Result<Id, ReservationError> {
        let id = Id::random().ok_or(ReservationError::NoId)?;
        let mut kept = self.kept();
        if kept.by_id.len() >= self.most {
            return Err(ReservationError::TooMany { most: self.most });
        }
        let due = now.saturating_add(ttl);
        kept.put(id, Reservation { parts: parts.to_vec(), ttl, due, status: Status::Open });
        Ok(id)
    }

    /// The limits and keys of a reservation; empty if it is done.
    pub fn parts(&self, id: Id) -> Result<Vec<Part>, ReservationError> {
        self.kept().by_id.get(&id).map(|found| found.parts.clone()).ok_or(ReservationError::Unknown)
    }

    /// Adds units that were taken, one estimate for each limit, and lets it live for its time from now. On an error the caller returns
    /// the units.
    pub fn extend(&self, id: Id, more: &[Estimate], now: Nanos) -> Result<(), ReservationError> {
        let mut kept = self.kept();
        let mut found = kept.by_id.get(&id).cloned().ok_or(ReservationError::Unknown)?;
        if found.status != Status::Open || now >= found.due {
            return Err(ReservationError::Ended);
        }
        if found
            .parts
            .iter()
            .zip(more)
            .any(|(part, more)| part.taken.cost().saturating_add(more.cost) > MAX_LIMIT)
        {
            return Err(ReservationError::TooLarge);
        }
        for (part, &estimate) in found.parts.iter_mut().zip(more) {
            part.taken.add(estimate);
        }
        found.due = now.saturating_add(found.ttl);
        kept.put(id, found);
        Ok(())
    }

    /// Ends a reservation; `None` if it was done before.
    pub fn end(&self, id: Id, costs: Option<usize>, now: Nanos) -> Result<Option<Ending>, ReservationError> {
        let mut kept = self.kept();
        let mut found = kept.by_id.get(&id).cloned().ok_or(ReservationError::Unknown)?;
        if found.status == Status::Done {
            return Ok(None);
        }
        let parts = found.parts.len();
        if costs.is_some_and(|costs| costs != parts) {
            return Err(ReservationError::Costs { parts });
        }
        let is_late = found.status == Status::Expired;
        let parts = mem::take(&mut found.parts);
        found.status = Status::Done;
        found.due = now.saturating_add(found.ttl.max(REMEMBERED));
        kept.put(id, found);
        Ok(Some(Ending { parts, is_late }))
    }

    /// Returns the parts of reservations that have just expired and forgets the old ones.
    pub fn expire(&self, now: Nanos) -> Vec<Part> {
        let mut kept = self.kept();
        let mut released = Vec::new();
        while let Some(&(due, id)) = kept.due.first()
            && due <= now
        {
            kept.due.pop_first();
            let Some(mut found) = kept.by_id.remove(&id) else { continue };
            if found.status == Status::Open {
                released.extend(found.parts.iter().filter(|part| part.is_released).cloned());
                found.status = Status::Expired;
                found.due =
                    due.saturating_add(found.ttl.max(REMEMBERED)).max(now.saturating_add(Nanos::new(1)));
                kept.put(id, found);
            }
        }
        released
    }

    /// What is kept now, to be written by [`texts`](Self::texts) once the states of the limits have been copied.
    pub fn seen(&self) -> Seen {
        Seen(self.kept().by_id.clone())
    }

    /// Each reservation that was seen before the states were copied, as a text, and the time when it expires or is forgotten. If it has
    /// ended since, the states may have its correction, which must not be made again: the text has the later status. Newer ones are left
    /// out, as the states may not have their units.
    pub fn texts(&self, seen: Seen) -> Vec<(String, Nanos)> {
        let kept = self.kept();
        let text = |(id, found): (Id, Reservation)| {
            let later =
                kept.by_id.get(&id).map_or((Status::Done, found.due), |later| (later.status, later.due));
            let (status, due) = later;
            let parts = found.parts.iter().filter(|_| status != Status::Done).map(Written::of).collect();
            let written = (id.to_string(), found.ttl.get(), status, parts);
            // Numbers and strings always serialize.
            (serde_json::to_string::<(_, _, _, Vec<Written>)>(&written).unwrap_or_default(), due)
        };
        seen.0.into_iter().map(text).collect()
    }

    /// Keeps a reservation from a text again. Returns whether it was valid and there is room.
    pub fn restore(&self, text: &str, due: Nanos) -> bool {
        let Ok((id, ttl, status, parts)) = serde_json::from_str::<(String, u64, Status, Vec<Written>)>(text)
        else {
            return false;
        };
        let Ok(id) = id.parse::<Id>() else { return false };
        let mut kept = self.kept();
        if kept.by_id.len() >= self.most {
            return false;
        }
        let parts = parts.into_iter().map(Written::part).collect();
        kept.put(id, Reservation { parts, ttl: Nanos::new(ttl), due, status });
        true
    }
}

impl Kept {
    fn put(&mut self, id: Id, reservation: Reservation) {
        let due = reservation.due;
        if let Some(before) = self.by_id.insert(id, reservation) {
            self.due.remove(&(before.due, id));
        }
        self.due.insert((due, id));
    }
}

/// The limits, the keys, and whether units go back on expiry, as a record in the store has them.
pub(crate) fn text_of(parts: &[Part]) -> Vec<u8> {
    let written: Vec<_> = parts.iter().map(|part| (&part.limit, &part.key, part.is_released)).collect();
    serde_json::to_vec(&written).unwrap_or_default()
}

/// The parts of a record's text, without their estimates, which the record has.
pub(crate) fn parts_of(text: &[u8]) -> Option<Vec<Part>> {
    let written: Vec<(Box<str>, Box<[u8]>, bool)> = serde_json::from_slice(text).ok()?;
    let part = |(limit, key, is_released)| Part { limit, key, taken: Estimates::default(), is_released };
    Some(written.into_iter().map(part).collect())
}

/// A part as the state file has it.
#[derive(Serialize, Deserialize)]
struct Written {
    limit: String,
    key: Vec<u8>,
    is_released: bool,
    /// Costs, the times when they were taken, and where they count.
    taken: Vec<(u64, u64, u64)>,
}

impl Written {
    fn of(part: &Part) -> Self {
        Self {
            limit: part.limit.to_string(),
            key: part.key.to_vec(),
            is_released: part.is_released,
            taken: part
                .taken
                .iter()
                .map(|estimate| (estimate.cost, estimate.taken.get(), estimate.place))
                .collect(),
        }
    }

    fn part(self) -> Part {
        let mut taken = Estimates::default();
        for (cost, at, place) in self.taken {
            taken.add(Estimate { cost, taken: Nanos::new(at), place });
        }
        Part { limit: self.limit.into(), key: self.key.into(), taken, is_released: self.is_released }
    }
}
