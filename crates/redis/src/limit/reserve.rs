//! Reservations: units of several limits that are taken together, recorded next to their keys, and
//! corrected after the work.

use std::{sync::LazyLock, time::Duration};

use redis::Value;
use tidegate_core::{Decision, Nanos};

use super::{
    Part, SharedGrant, SharedLimit,
    joint::{JointRequest, by_all, formers_of, keys_beside, of_formers},
};
use crate::{
    Deadline, Store, StoreError,
    connection::{SLOTS, slot},
    script::{
        Script,
        call::{self, Found},
    },
    sync::lock,
};

/// The deadline of a question that concerns no limit.
const USUAL: Duration = Duration::from_secs(1);

/// How often units that were taken are recorded if the store does not reply, and the time between.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_millis(50);

/// The answer to a reservation or its extension.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserved {
    /// The decision of each limit. If all admit, shadow limits aside, the units are taken and
    /// recorded under the id.
    Decided(u128, Vec<Decision>),
    /// A reservation with this id was made before, by the same request. Nothing was taken now.
    Repeated(u128),
    /// As many reservations are open as may be.
    Full,
    /// The reservation to extend does not exist.
    Unknown,
    /// The reservation to extend has expired, or was settled.
    Ended,
}

/// The outcome of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrected {
    /// The limits were corrected. The estimate of each of them.
    Now(Vec<u64>),
    /// The reservation was settled before.
    Before,
    /// It does not exist.
    Unknown,
}

/// One limit of a reservation that is corrected.
#[derive(Clone, Copy, Debug)]
pub struct Correction<'a> {
    /// Its position in the reservation, from 0.
    pub at: usize,
    /// The limit.
    pub limit: &'a SharedLimit,
    /// The key.
    pub key: &'a [u8],
    /// The units that were used, or were not.
    pub actual: u64,
    /// Whether they were not.
    pub is_unused: bool,
}

/// How a reservation of one limit is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// By its id.
    Id(u128),
    /// As the oldest open one of those that are made with this number, which stands for the limit
    /// and the key.
    Age(u64),
}

impl Store {
    /// Takes the costs from all limits if all admit, and records them for `ttl` with a `text` that
    /// [`reserved`](Self::reserved) returns. A part that is marked as a shadow limit takes if it
    /// admits, and does not deny the others. At most `most` reservations are open at a time, in a
    /// cluster for each slot.
    ///
    /// `random` becomes the id, as [`reservation_id`](Self::reservation_id) says. A request that is
    /// sent again with the same number takes nothing if its reservation exists.
    ///
    /// # Errors
    /// When the store does not reply: then nothing was taken, or the reservation was made and
    /// expires. Also [`StoreError::CrossSlot`], and [`StoreError::OneKey`] if a key occurs twice.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn reserve(
        &self,
        random: u128,
        parts: &[(Part<'_>, bool)],
        text: &[u8],
        ttl: Duration,
        most: usize,
    ) -> Result<Reserved, StoreError> {
        let Some((first, _)) = parts.first() else {
            return Ok(Reserved::Decided(random, Vec::new()));
        };
        let id = self.reservation_id(random, first.limit, first.key);
        self.take_for(id, parts, (text, ttl.into(), most), None)
            .await
    }

    /// [Reserves](Self::reserve) units of one limit that are found again by `random`, from which
    /// the id is made, or by their age. [`Reserved::Repeated`] if the id is taken.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn hold(
        &self,
        (random, age): (u128, Option<u64>),
        part: (Part<'_>, bool),
        text: &[u8],
        ttl: Duration,
        most: usize,
    ) -> Result<Reserved, StoreError> {
        let id = self.reservation_id(random, part.0.limit, part.0.key);
        self.take_for(id, &[part], (text, ttl.into(), most), age)
            .await
    }

    /// Records units that were granted after a wait, as [`reserve`](Self::reserve) does, with a
    /// `text` that is not empty. `None` if as many reservations are open as may be: then the units return.
    ///
    /// If this future is dropped, the reservation is made and expires.
    ///
    /// # Errors
    /// When the store does not reply. The reservation was made and expires, or the units stay taken.
    /// Also [`StoreError::CrossSlot`].
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn reserve_granted(
        &self,
        random: u128,
        granted: SharedGrant,
        text: &[u8],
        ttl: Duration,
        most: usize,
    ) -> Result<Option<u128>, StoreError> {
        let parts: Vec<_> = granted.taken().map(|(part, _)| part).collect();
        let Some(first) = parts.first() else {
            return Ok(Some(random));
        };
        let id = self.reservation_id(random, first.limit, first.key);
        let slot = |part: &Part<'_>| {
            let monitor = &self.batcher().monitor;
            monitor.slot(&part.limit.redis_key(part.key))
        };
        if parts.iter().any(|part| slot(part) != slot(first)) {
            return Err(StoreError::CrossSlot);
        }
        let units: Vec<_> = granted.taken().map(|(_, taken)| taken.in_store()).collect();
        let [record, open] = self.keys_of(id);
        let keys = [record, open.clone(), open];
        let how = (text, ttl.into(), most);
        let arguments = call::reserve_taken_arguments(&units, how, &format!("{id:032x}"));
        let (store, limit) = (self.clone(), first.limit.clone());
        let asked = first.limit.runtime().clone().spawn(async move {
            let script = &store.batcher().scripts.reserve_taken;
            let mut tries = 0;
            let recorded = loop {
                tries += 1;
                let deadline = limit.deadline();
                match store
                    .ask_about(id, script, &keys, &arguments, deadline)
                    .await
                {
                    Ok(reply) => match call::word(&reply) {
                        Some("full") => break Ok(false),
                        Some("kept" | "repeated") => break Ok(true),
                        _ => break Err(StoreError::BadReply),
                    },
                    Err(error) if tries == TRIES || error.is_about_the_key() => break Err(error),
                    // A repeated call does nothing.
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            };
            if !matches!(recorded, Ok(false)) {
                let (_answers, _estimates) = granted.keep();
            }
            recorded
        });
        let is_kept = asked.await.map_err(|_| StoreError::LineEnded)??;
        Ok(is_kept.then_some(id))
    }

    /// Ends a reservation of one limit: see [`settle`](Self::settle). Returns its estimate; `None`
    /// if all have ended. One that is found by its age has not expired, either.
    ///
    /// # Errors
    /// When the store does not reply. One that was to be found by its age may stay until it
    /// expires.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn settle_hold(
        &self,
        by: FoundBy,
        part: Correction<'_>,
    ) -> Result<Option<u64>, StoreError> {
        loop {
            let id = match by {
                FoundBy::Id(random) => self.reservation_id(random, part.limit, part.key),
                FoundBy::Age(age) => match self.oldest(age, &part).await? {
                    Some(id) => id,
                    None => return Ok(None),
                },
            };
            match (self.settle(id, &[part]).await?, by) {
                (Corrected::Now(estimates), _) => return Ok(estimates.first().copied()),
                (_, FoundBy::Id(_)) => return Ok(None),
                // It was ended by its id, or has just expired.
                (_, FoundBy::Age(_)) => {}
            }
        }
    }

    async fn oldest(&self, age: u64, part: &Correction<'_>) -> Result<Option<u128>, StoreError> {
        let id = self.reservation_id(0, part.limit, part.key);
        let script = &self.batcher().scripts.oldest;
        let key = self.key_by_age(id, age);
        let reply = self
            .ask_about(id, script, &[key], &[], part.limit.deadline())
            .await?;
        Ok(call::list(reply)?.into_iter().find_map(id_in))
    }

    /// The id of a reservation whose first part is this key of a limit: the number itself, and in a
    /// cluster the number with the key's slot in its low 14 bits.
    #[must_use]
    pub fn reservation_id(&self, random: u128, limit: &SharedLimit, key: &[u8]) -> u128 {
        let (monitor, slots) = (&self.batcher().monitor, SLOTS as u128);
        match monitor.slot(&limit.redis_key(key)) {
            slot if monitor.is_cluster() => random - random % slots + u128::from(slot),
            _ => random,
        }
    }

    /// Takes more for a reservation, and lets it live for its time from now. `parts` are those of
    /// the reservation.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn extend(
        &self,
        id: u128,
        parts: &[(Part<'_>, bool)],
    ) -> Result<Reserved, StoreError> {
        self.take_for(id, parts, (b"", Nanos::ZERO, 0), None).await
    }

    async fn take_for(
        &self,
        id: u128,
        parts: &[(Part<'_>, bool)],
        how: (&[u8], Nanos, usize),
        age: Option<u64>,
    ) -> Result<Reserved, StoreError> {
        let mut requests: Vec<JointRequest<'_>> = parts
            .iter()
            .map(|(part, _)| part.limit.request(part.key, part.cost))
            .collect();
        let repeats = |at: usize| {
            requests[..at]
                .iter()
                .any(|other| other.key == requests[at].key)
        };
        if (0..requests.len()).any(repeats) {
            return Err(StoreError::OneKey);
        }
        let deadline = deadline_of(parts.iter().map(|(part, _)| part.limit));
        // Other rules that bind a part have it recorded behind all parts, and keep their estimate.
        let formers = formers_of(
            &parts.iter().map(|(part, _)| *part).collect::<Vec<_>>(),
            deadline,
        )
        .await?;
        let mut shadows: Vec<bool> = parts.iter().map(|(_, is_shadow)| *is_shadow).collect();
        for ((part, is_shadow), formers) in parts.iter().zip(&formers) {
            requests.extend(of_formers(formers, &part.state_key(), part.cost));
            shadows.resize(requests.len(), *is_shadow);
        }
        let mut keys: Vec<Vec<u8>> = requests.iter().map(|request| request.key.clone()).collect();
        let limits = requests
            .iter()
            .map(|request| (&*request.plan, &request.key[..]));
        keys.extend(keys_beside(self, limits));
        let asked = keys.len();
        let [record, open] = self.keys_of(id);
        let by_age = age.map_or_else(|| open.clone(), |age| self.key_by_age(id, age));
        keys.extend([record, open, by_age]);
        let reserved = requests
            .iter()
            .zip(shadows)
            .map(|(request, shadow)| (&*request.plan, request.cost, shadow));
        let arguments = call::reserve_arguments(reserved, how, &format!("{id:032x}"));
        let script = &self.batcher().scripts.reserve;
        let reply = self
            .ask_about(id, script, &keys, &arguments, deadline)
            .await?;
        match call::word(&reply) {
            Some("full") => return Ok(Reserved::Full),
            Some("unknown") => return Ok(Reserved::Unknown),
            Some("ended") => return Ok(Reserved::Ended),
            // The caller, or a cluster's client, has sent it twice.
            Some("repeated") => return Ok(Reserved::Repeated(id)),
            _ => {}
        }
        let (now, parts) = call::parse(reply, asked)?;
        let found = call::found(requests.iter().map(|request| &*request.plan), parts)?;
        let decision = |(request, found): (&JointRequest<'_>, Found)| {
            let decided = request.plan.decision_on(&found, now, (request.cost, true));
            decided.map(|(decision, _)| decision)
        };
        let decisions: Vec<_> = requests
            .iter()
            .zip(found)
            .map(decision)
            .collect::<Result<_, _>>()?;
        Ok(Reserved::Decided(
            id,
            by_all(&decisions, &formers).ok_or(StoreError::BadReply)?,
        ))
    }

    /// The text of a reservation, while the store remembers it: until its end, and as long again
    /// (at least a minute) after it.
    ///
    /// # Errors
    /// When the store does not reply.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn reserved(&self, id: u128) -> Result<Option<Vec<u8>>, StoreError> {
        let script = &self.batcher().scripts.record;
        let [record, _] = self.keys_of(id);
        match self
            .ask_about(id, script, &[record], &[], Deadline::after(USUAL))
            .await?
        {
            Value::BulkString(text) => Ok(Some(text)),
            Value::Nil | Value::Boolean(false) => Ok(None),
            _ => Err(StoreError::BadReply),
        }
    }

    /// Corrects the limits of a reservation to what was used, whichever node made it: unused units
    /// go back to where they count, and units beyond the estimate are charged. Only the first
    /// settlement counts. Limits that are not among the `parts` keep their estimate.
    ///
    /// # Errors
    /// When the store does not reply. A settlement can be repeated.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn settle(
        &self,
        id: u128,
        parts: &[Correction<'_>],
    ) -> Result<Corrected, StoreError> {
        self.correct(id, parts, false).await
    }

    /// Ends a reservation whose time is over, and returns all units of these parts. A later
    /// [`settle`](Self::settle) still counts.
    ///
    /// # Errors
    /// When the store does not reply.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn expire(
        &self,
        id: u128,
        released: &[Correction<'_>],
    ) -> Result<Corrected, StoreError> {
        self.correct(id, released, true).await
    }

    async fn correct(
        &self,
        id: u128,
        parts: &[Correction<'_>],
        expires: bool,
    ) -> Result<Corrected, StoreError> {
        let own = parts.iter().map(|part| part.limit.redis_key(part.key));
        let resets = parts.iter().map(|part| part.limit.moment_key(part.key));
        let keys: Vec<Vec<u8>> = own.chain(resets).chain(self.keys_of(id)).collect();
        let corrected = parts
            .iter()
            .map(|part| (part.at, &**part.limit.plan(), part.actual, part.is_unused));
        let arguments = call::correct_arguments(corrected, expires, &format!("{id:032x}"));
        let script = &self.batcher().scripts.correct;
        let reply = self
            .ask_about(
                id,
                script,
                &keys,
                &arguments,
                deadline_of(parts.iter().map(|part| part.limit)),
            )
            .await?;
        for part in parts {
            part.limit.forget_denial(part.key);
        }
        match call::word(&reply) {
            Some("done") => return Ok(Corrected::Before),
            Some("unknown") => return Ok(Corrected::Unknown),
            _ => {}
        }
        let totals = redis::from_redis_value(Value::Array(call::list(reply)?));
        let totals: Vec<u64> = totals.map_err(|_| StoreError::BadReply)?;
        for (part, &total) in parts.iter().zip(&totals) {
            let actual = if part.is_unused {
                total.saturating_sub(part.actual)
            } else {
                part.actual
            };
            if actual > total && part.limit.may_be_bound() {
                // The settlement has been made, so an error leaves these units uncharged there.
                let _ = Box::pin(part.limit.charge_formers(&part.key, actual - total)).await;
            }
            let settled = part.limit.settle_share(&part.key, total, actual);
            Box::pin(settled).await;
        }
        Ok(Corrected::Now(totals))
    }

    /// The reservations whose time is over and that no node has [expired](Self::expire): at most
    /// 100 in each slot in which this node has seen reservations since they were last all settled,
    /// and if `everywhere`, on a single server.
    ///
    /// # Errors
    /// When the store does not reply.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn due(&self, everywhere: bool) -> Result<Vec<u128>, StoreError> {
        let slots = self.reserved_slots();
        if everywhere && !self.batcher().monitor.is_cluster() {
            lock(slots).insert(0);
        }
        let known: Vec<u16> = lock(slots).iter().copied().collect();
        let mut due = Vec::new();
        for slot in known {
            let [_, open] = self.keys_of(slot.into());
            let script = &self.batcher().scripts.due;
            let reply = self
                .ask_about(slot.into(), script, &[open], &[], Deadline::after(USUAL))
                .await?;
            let mut list = call::list(reply)?.into_iter();
            if list.next() == Some(Value::Int(0)) {
                lock(slots).remove(&slot);
            }
            due.extend(list.filter_map(id_in));
        }
        Ok(due)
    }

    /// Runs a script about a reservation.
    async fn ask_about(
        &self,
        id: u128,
        script: &Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let monitor = &self.batcher().monitor;
        if keys
            .iter()
            .any(|key| monitor.slot(key) != monitor.slot(&keys[0]))
        {
            return Err(StoreError::CrossSlot);
        }
        self.in_time(deadline)?;
        let shard = monitor.shard_of(&keys[0]);
        monitor.admit(shard)?;
        lock(self.reserved_slots()).insert(self.slot_of(id));
        let answer = monitor
            .call(shard, script, keys, arguments, deadline, false)
            .await;
        monitor.decided(&answer);
        answer
    }

    fn slot_of(&self, id: u128) -> u16 {
        if self.batcher().monitor.is_cluster() {
            (id % SLOTS as u128) as u16
        } else {
            0
        }
    }

    /// The key of the open reservations of one limit and key in the slot of an id.
    fn key_by_age(&self, id: u128, age: u64) -> Vec<u8> {
        let [_, mut key] = self.keys_of(id);
        key.extend(format!("by-age:{age:016x}").into_bytes());
        key
    }

    /// The key of a reservation's record, and that of the open reservations in its slot.
    fn keys_of(&self, id: u128) -> [Vec<u8>; 2] {
        let monitor = &self.batcher().monitor;
        let prefix = monitor.runner.connector.prefix();
        let tag = if monitor.is_cluster() {
            format!("{{{}}}", TAGS[usize::from(self.slot_of(id))])
        } else {
            String::new()
        };
        let open = format!("{prefix}:reserved:{tag}");
        [format!("{open}{id:032x}").into_bytes(), open.into_bytes()]
    }
}

/// For each slot the smallest number whose text is in it, as a hash tag.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; SLOTS];
    let mut missing = SLOTS;
    for number in 0.. {
        let tag = &mut tags[usize::from(slot(number.to_string().as_bytes()))];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags.into()
});

fn id_in(value: Value) -> Option<u128> {
    match value {
        Value::BulkString(id) => u128::from_str_radix(str::from_utf8(&id).ok()?, 16).ok(),
        _ => None,
    }
}

/// The shortest deadline of these limits.
pub(super) fn deadline_of<'a>(limits: impl Iterator<Item = &'a SharedLimit>) -> Deadline {
    limits
        .map(SharedLimit::deadline)
        .min()
        .unwrap_or_else(|| Deadline::after(USUAL))
}
