//! Reservations: estimates that were taken under an id, and are corrected when their work is over.
//!
//! ```text
//!            ┌──── settle, cancel ────────────────┐
//!   reserve  │                                    ▼
//!  ────────► open ── time to live ──► expired ── settle (late) ──► done ── forgotten
//!            └─ extend ─┘               └───────── time to live, at least a minute ──► forgotten
//! ```
//!
//! This module knows which units belong to an id. [`Service`](super::service::Service) takes and
//! returns them.

use std::{
    cell::RefCell,
    fmt, mem,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use rapidhash::RapidHashMap;
use ring::{
    digest::{Context, SHA256},
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};
use tidegate_core::{MAX_LIMIT, Nanos};
use tidegate_limiter::{Estimate, Estimates, repeats::Asked};
use tidegate_redis::StoreError;

pub use self::names::{Name, NewId};
use self::{due::Due, records::Records};
use crate::rules::{LimitSpec, OnExpiry};

mod due;
mod names;
mod records;
#[cfg(test)]
mod tests;

/// The default maximum number of reservations that are open, or remembered after their end.
pub const MOST_RESERVATIONS: usize = 1_000_000;
/// The maximum number of limits in one reservation.
pub const MOST_PARTS: usize = 8;

/// A reservation that has ended is remembered for its time to live, and at least this long: a
/// settlement may be late or repeated.
const REMEMBERED: Nanos = Nanos::from_secs(60);

/// So that a million, or a million halved several times, fill 97 % of the places in the shards'
/// tables before these double.
const SHARDS: usize = 72;

/// Identifies a reservation: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u128);

thread_local! {
    /// Random bytes for a thread's next ids, and for how many: a system call for each id would take
    /// longer than the rest.
    static RANDOM: RefCell<([[u8; 16]; 64], usize)> = const { RefCell::new(([[0; 16]; 64], 0)) };
}

impl Id {
    pub fn random() -> Option<Self> {
        RANDOM.with_borrow_mut(|(bytes, left)| {
            if *left == 0 {
                SystemRandom::new().fill(bytes.as_flattened_mut()).ok()?;
                *left = bytes.len();
            }
            *left -= 1;
            Some(Self(u128::from_le_bytes(bytes[*left])))
        })
    }

    /// The id of a reservation that is safe to repeat. It follows from the request's id and its
    /// limits, keys and costs, so that every server finds the same one.
    pub fn of_request<'a>(request: &[u8], asked: impl IntoIterator<Item = Asked<'a>>) -> Self {
        let mut hash = Context::new(&SHA256);
        let mut add = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(request);
        for (limit, key, cost) in asked {
            add(limit.as_bytes());
            add(key);
            add(&cost.to_le_bytes());
        }
        let digest = hash.finish();
        let (first, _) = digest
            .as_ref()
            .split_first_chunk()
            .unwrap_or((&[0; 16], &[]));
        Self(u128::from_le_bytes(*first))
    }

    /// The id as it is written. A formatter of 128-bit numbers takes several times as long.
    pub fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        digits
    }

    /// Reads what was written, also in capitals.
    ///
    /// # Errors
    /// [`ReservationError::NotAnId`]
    pub fn from_digits(text: &[u8]) -> Result<Self, ReservationError> {
        let digits: &[u8; 32] = text.try_into().map_err(|_| ReservationError::NotAnId)?;
        let value = |digit: &u8| char::from(*digit).to_digit(16).map(u128::from);
        let number = digits
            .iter()
            .try_fold(0, |number, digit| Some(number << 4 | value(digit)?));
        number.map(Self).ok_or(ReservationError::NotAnId)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl FromStr for Id {
    type Err = ReservationError;

    fn from_str(text: &str) -> Result<Self, ReservationError> {
        Self::from_digits(text.as_bytes())
    }
}

/// Why a reservation cannot be made, extended, settled or cancelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    #[error(
        "the reservation has {parts} limits: give {parts} costs, in the order of the reservation"
    )]
    Costs {
        /// The number of limits.
        parts: usize,
    },
    /// The sum of the estimates exceeds 2⁵³ − 1.
    #[error(
        "the sum of the estimates exceeds {MAX_LIMIT}: settle the reservation and make another one"
    )]
    TooLarge,
    /// The server has no room for another one.
    #[error(
        "the server keeps {most} reservations already: settle some, or raise --max-reservations"
    )]
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
pub struct Part<L = Arc<str>, K = Box<[u8]>> {
    pub limit: L,
    pub key: K,
    pub taken: Estimates,
    /// Whether the units go back when the reservation expires.
    pub is_released: bool,
}

impl<'a> Part<&'a str, &'a [u8]> {
    /// A limit and a key, with nothing taken yet.
    pub fn new(spec: &'a LimitSpec, key: &'a [u8]) -> Self {
        let is_released =
            spec.on_expiry == OnExpiry::Release || !spec.policy.algorithm.limits_rate();
        Self {
            limit: &spec.name,
            key,
            taken: Estimates::default(),
            is_released,
        }
    }
}

/// The units of a reservation that has just ended, to be corrected.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    pub parts: Vec<Part>,
    /// Whether it had expired before: units that are released then are back already.
    pub is_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reservation<P = Vec<Part>> {
    /// Empty once it is done.
    parts: P,
    ttl: Nanos,
    /// When it expires, or is forgotten. It never becomes earlier.
    due: Nanos,
    status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Status {
    Open,
    Expired,
    Done,
}

/// The reservations of a server, in shards with a lock each, so that a copy and the end of many
/// take no lock for long.
pub struct Reservations {
    /// The maximum number.
    pub most: usize,
    /// How many there are in all shards.
    len: AtomicUsize,
    shards: Vec<Mutex<Shard>>,
}

/// The reservations at one moment.
pub struct Seen(Vec<Records>);

impl Seen {
    pub fn len(&self) -> usize {
        self.0.iter().map(Records::len).sum()
    }
}

#[derive(Default)]
struct Shard {
    records: Records,
    due: Due,
    /// See [`names`].
    by_age: RapidHashMap<u64, (u64, u64)>,
}

impl Reservations {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            len: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, id: Id) -> MutexGuard<'_, Shard> {
        // The table in the shard uses the lower bits.
        lock(&self.shards[(id.0 >> 64) as usize % SHARDS])
    }

    /// How many are open or remembered.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is room for another one.
    pub fn has_room(&self) -> Result<(), ReservationError> {
        if self.len() < self.most {
            Ok(())
        } else {
            Err(ReservationError::TooMany { most: self.most })
        }
    }

    /// Counts another one if there is room.
    fn enter(&self) -> Result<(), ReservationError> {
        let more = |len| (len < self.most).then_some(len + 1);
        let counted = self
            .len
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted
            .map(|_| ())
            .map_err(|_| ReservationError::TooMany { most: self.most })
    }

    /// Keeps units that were taken until `ttl` from now. `false` if the reservation of this request
    /// exists already. Then, and on an error, the caller returns the units.
    pub fn add<L: AsRef<str>, K: AsRef<[u8]>>(
        &self,
        id: NewId,
        parts: &[Part<L, K>],
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(Id, bool), ReservationError> {
        let random = Id::random().ok_or(ReservationError::NoId)?;
        self.enter()?;
        let new = Reservation {
            parts,
            ttl,
            due: now.saturating_add(ttl),
            status: Status::Open,
        };
        match id {
            NewId::Random => {}
            NewId::Hold(Name::Oldest(tag)) => {
                let add = |shard: &mut Shard, id| shard.add(id, &new);
                let id = self.shard(Id::numbered(tag, 0)).add_numbered(tag, add);
                return Ok((id, true));
            }
            NewId::Request(given) | NewId::Hold(Name::Id(given)) => {
                let mut shard = self.shard(given);
                if shard.records.find(given).is_none() {
                    shard.add(given, &new);
                    return Ok((given, true));
                }
                if matches!(id, NewId::Request(_)) {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    return Ok((given, false));
                }
            }
        }
        self.shard(random).add(random, &new);
        Ok((random, true))
    }

    /// The limits and keys of a reservation; empty if it is done.
    pub fn parts(&self, id: Id) -> Result<Vec<Part>, ReservationError> {
        self.shard(id).get(id).map(|(_, found)| found.parts)
    }

    /// Adds units that were taken, a part for each limit, and lets it live for its time from now.
    /// It then expires as these parts say, because the rules may have changed. On an error the
    /// caller returns the units.
    pub fn extend<L: AsRef<str>, K: AsRef<[u8]>>(
        &self,
        id: Id,
        more: &[Part<L, K>],
        now: Nanos,
    ) -> Result<(), ReservationError> {
        let mut shard = self.shard(id);
        let (head, mut found) = shard.get(id)?;
        if found.status != Status::Open || now >= found.due {
            return Err(ReservationError::Ended);
        }
        if found
            .parts
            .iter()
            .zip(more)
            .any(|(part, more)| part.taken.cost().saturating_add(more.taken.cost()) > MAX_LIMIT)
        {
            return Err(ReservationError::TooLarge);
        }
        for (part, more) in found.parts.iter_mut().zip(more) {
            part.is_released = more.is_released;
            more.taken.iter().for_each(|more| part.taken.add(*more));
        }
        found.due = now.saturating_add(found.ttl).max(found.due);
        shard.records.replace(id, head, &found);
        Ok(())
    }

    /// Ends a reservation; `None` if it was done before.
    pub fn end(
        &self,
        id: Id,
        costs: Option<usize>,
        now: Nanos,
    ) -> Result<Option<Ending>, ReservationError> {
        let mut shard = self.shard(id);
        let (head, mut found) = shard.get(id)?;
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
        found.due = now.saturating_add(found.ttl.max(REMEMBERED)).max(found.due);
        shard.records.replace(id, head, &found);
        Ok(Some(Ending { parts, is_late }))
    }

    /// Ends the hold of this limit and key with this name. `None` if none has it that has not
    /// ended; one that is found by its age has not expired, either.
    ///
    /// It is not remembered for longer than until it would have expired: a second report of its use
    /// is one of other use.
    pub fn end_hold(&self, name: Name, limit: &str, key: &[u8], now: Nanos) -> Option<Ending> {
        let end = |shard: &mut Shard, id| {
            let (head, mut found) = shard.get(id).ok()?;
            let is_late = found.status == Status::Expired;
            let [part] = &found.parts[..] else {
                return None;
            };
            if *part.limit != *limit || *part.key != *key {
                return None;
            }
            let parts = mem::take(&mut found.parts);
            found.status = Status::Done;
            shard.records.replace(id, head, &found);
            Some(Ending { parts, is_late })
        };
        match name {
            Name::Id(id) => end(&mut self.shard(id), id),
            Name::Oldest(tag) => self.shard(Id::numbered(tag, 0)).oldest(tag, |shard, id| {
                let head = shard.records.find(id)?;
                let is_over = now >= shard.records.due(head);
                if is_over { None } else { end(shard, id) }
            }),
        }
    }

    /// Returns the parts of reservations that have just expired and forgets the old ones.
    pub fn expire(&self, now: Nanos) -> Vec<Part> {
        let mut released = Vec::new();
        for shard in &self.shards {
            let forgotten = lock(shard).expire(now, &mut released);
            self.len.fetch_sub(forgotten, Ordering::Relaxed);
        }
        released
    }

    /// What is kept now, to be written by [`texts`](Self::texts) once the states of the limits have
    /// been copied.
    pub fn seen(&self) -> Seen {
        Seen(
            self.shards
                .iter()
                .map(|shard| lock(shard).records.clone())
                .collect(),
        )
    }

    /// Each reservation that was seen before the states were copied, as a text, and the time when
    /// it expires or is forgotten. If it has ended since, the states may have its correction, which
    /// must not be made again: the text has the later status. Newer ones are left out, as the
    /// states may not have their units. `place` says where the units of a part count, which now
    /// count at a place, once the states are restored.
    pub fn texts(
        &self,
        seen: Seen,
        place: impl Fn(&Part, u64) -> u64,
    ) -> impl Iterator<Item = (String, Nanos)> {
        let text = move |(id, found): (Id, Reservation)| {
            let later = self.shard(id).get(id);
            let (status, due) = later.map_or((Status::Done, found.due), |(_, later)| {
                (later.status, later.due)
            });
            let parts = found
                .parts
                .iter()
                .filter(|_| status != Status::Done)
                .map(|part| Written::of(part, |at| place(part, at)))
                .collect();
            let written = (id.to_string(), found.ttl.get(), status, parts);
            // Numbers and strings always serialize.
            (
                serde_json::to_string::<(_, _, _, Vec<Written>)>(&written).unwrap_or_default(),
                due,
            )
        };
        seen.0
            .into_iter()
            .flat_map(move |records| records.all().map(&text).collect::<Vec<_>>())
    }

    /// Keeps a reservation from a text again. Returns whether it was valid and there is room.
    pub fn restore(&self, text: &str, due: Nanos) -> bool {
        let Ok((id, ttl, status, parts)) =
            serde_json::from_str::<(String, u64, Status, Vec<Written>)>(text)
        else {
            return false;
        };
        let Ok(id) = id.parse::<Id>() else {
            return false;
        };
        let parts: Vec<Part> = parts.into_iter().map(Written::part).collect();
        let mut shard = self.shard(id);
        if parts.len() > MOST_PARTS || shard.records.find(id).is_some() || self.enter().is_err() {
            return false;
        }
        shard.add(
            id,
            &Reservation {
                parts: &parts[..],
                ttl: Nanos::new(ttl),
                due,
                status,
            },
        );
        shard.restore_number(id, &parts);
        true
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // No step panics midway.
    shard.lock()
}

impl Shard {
    /// A reservation and its first cell.
    fn get(&self, id: Id) -> Result<(u32, Reservation), ReservationError> {
        let head = self.records.find(id).ok_or(ReservationError::Unknown)?;
        Ok((head, self.records.get(head).1))
    }

    fn add<L: AsRef<str>, K: AsRef<[u8]>>(&mut self, id: Id, new: &Reservation<&[Part<L, K>]>) {
        let head = self.records.add(id, new);
        self.due.add(head, &mut self.records);
    }

    /// Adds the parts of those that have just expired to `released`, forgets the old ones, and
    /// returns how many.
    fn expire(&mut self, now: Nanos, released: &mut Vec<Part>) -> usize {
        let mut forgotten = 0;
        for list in self.due.take(now) {
            let mut next = list;
            while let Some(head) = next {
                next = self.records.link(head);
                if self.records.due(head) <= now {
                    let (id, mut found) = self.records.get(head);
                    if found.status != Status::Open {
                        self.records.forget(head);
                        self.pass_ended(id);
                        forgotten += 1;
                        continue;
                    }
                    released.extend(found.parts.iter().filter(|part| part.is_released).cloned());
                    found.status = Status::Expired;
                    let due = found.due.saturating_add(found.ttl.max(REMEMBERED));
                    found.due = due.max(now.saturating_add(Nanos::new(1)));
                    self.records.replace(id, head, &found);
                    self.pass_ended(id);
                }
                self.due.add(head, &mut self.records);
            }
        }
        forgotten
    }
}

/// The limits, the keys, and whether units go back on expiry, as a record in the store has them.
pub fn text_of(parts: &[Part<&str, &[u8]>]) -> Vec<u8> {
    let written: Vec<_> = parts
        .iter()
        .map(|part| (part.limit, part.key, part.is_released))
        .collect();
    serde_json::to_vec(&written).unwrap_or_default()
}

/// The parts of a record's text, without their estimates, which the record has.
pub fn parts_of(text: &[u8]) -> Option<Vec<Part>> {
    let written: Vec<(Box<str>, Box<[u8]>, bool)> = serde_json::from_slice(text).ok()?;
    let part = |(limit, key, is_released): (Box<str>, _, _)| Part {
        limit: limit.into(),
        key,
        taken: Estimates::default(),
        is_released,
    };
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
    fn of(part: &Part, place: impl Fn(u64) -> u64) -> Self {
        Self {
            limit: part.limit.to_string(),
            key: part.key.to_vec(),
            is_released: part.is_released,
            taken: part
                .taken
                .iter()
                .map(|estimate| {
                    let place = place(estimate.place);
                    (estimate.cost, estimate.taken.get(), place)
                })
                .collect(),
        }
    }

    fn part(self) -> Part {
        let mut taken = Estimates::default();
        for (cost, at, place) in self.taken {
            taken.add(Estimate {
                cost,
                taken: Nanos::new(at),
                place,
            });
        }
        Part {
            limit: self.limit.into(),
            key: self.key.into(),
            taken,
            is_released: self.is_released,
        }
    }
}
