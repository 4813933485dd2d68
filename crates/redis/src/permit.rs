//! Permits in flight, held by whoever got them.

use std::sync::Arc;

use redis::Value;
use tidegate_core::Nanos;

use crate::{SharedDecision, SharedLimit, Source, StoreError};

/// Permits of a shared limit. They come back when this is dropped; and by themselves after the limit's longest hold, should
/// the process die. Work that may take longer [renews](Self::renew) them.
///
/// Dropping sends the permits back in the background: another holder may get them a round trip later. Where the store is
/// down at that moment they come back after the hold.
#[derive(Debug)]
#[must_use = "permits that are dropped are given back"]
pub struct Permit {
    limit: SharedLimit,
    key: Vec<u8>,
    cost: u32,
    answer: SharedDecision,
    /// When they were taken, by which the store knows them; zero once they are lost.
    taken: Nanos,
}

impl Permit {
    pub(crate) fn new(
        limit: SharedLimit,
        key: &[u8],
        cost: u32,
        answer: SharedDecision,
        taken: Nanos,
    ) -> Self {
        Self { limit, key: key.into(), cost, answer, taken }
    }

    /// The decision by which they were given.
    pub const fn decision(&self) -> &SharedDecision {
        &self.answer
    }

    /// Holds the permits for another longest hold from now on. Returns whether they still were this holder's: where not,
    /// they have come back by themselves and may be another's already.
    ///
    /// # Errors
    /// When the store gave no answer; the permits are as they were.
    pub async fn renew(&mut self) -> Result<bool, StoreError> {
        if self.answer.source != Source::Store || self.cost == 0 {
            return Ok(true);
        }
        let times = send(&self.limit, &self.key, self.cost, self.taken, true).await?;
        let kept = times.first().copied().filter(|_| times.iter().all(|time| *time != Nanos::ZERO));
        self.taken = kept.unwrap_or_default();
        Ok(kept.is_some())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.answer.source {
            Source::Store if self.cost > 0 && self.taken != Nanos::ZERO => {
                let (limit, key) = (self.limit.clone(), std::mem::take(&mut self.key));
                let (cost, taken) = (self.cost, self.taken);
                let runtime = self.limit.store().inner().runtime.clone();
                runtime.spawn(async move {
                    // Twice, as a broken connection is made anew; what is not given back comes back after the hold.
                    for _ in 0..2 {
                        if send(&limit, &key, cost, taken, false).await.is_ok() {
                            return;
                        }
                    }
                });
            }
            Source::Local(_) => {
                if let Some(local) = self.limit.local() {
                    local.refund(&self.key, self.cost);
                }
            }
            _ => {}
        }
    }
}

/// Gives back, or renews, permits taken at one time; the new times, zero for those that are no longer held. Errors are
/// counted.
async fn send(
    limit: &SharedLimit,
    key: &[u8],
    cost: u32,
    taken: Nanos,
    renew: bool,
) -> Result<Vec<Nanos>, StoreError> {
    let store = limit.store().inner();
    // Not asked at all is counted where it was found out.
    let counted = |error: &StoreError| {
        if *error != StoreError::Down {
            store.counters.error(error);
        }
    };
    try_send(limit, key, cost, taken, renew).await.inspect_err(counted)
}

async fn try_send(
    limit: &SharedLimit,
    key: &[u8],
    cost: u32,
    taken: Nanos,
    renew: bool,
) -> Result<Vec<Nanos>, StoreError> {
    let store = limit.store().inner();
    let whole = limit.redis_key(key);
    let at = store.part_of(&whole);
    store.admit(at)?;
    let hold = limit.plan().hold().unwrap_or_default().get().div_ceil(1_000);
    let times = (taken.get() / 1_000).to_le_bytes().repeat(cost as usize);
    let arguments = [hold.to_string().into_bytes(), u8::from(renew).to_string().into_bytes(), times];
    let script = Arc::clone(&store.scripts.permits);
    let reply = store.call(at, &script, &[&whole], &arguments, limit.deadline(), true).await?;
    let Value::Array(parts) = reply else { return Err(StoreError::BadReply) };
    match parts.last() {
        Some(Value::Int(2)) => Err(StoreError::NotOurs),
        Some(Value::Array(times)) => times.iter().map(time).collect(),
        _ => Err(StoreError::BadReply),
    }
}

fn time(value: &Value) -> Result<Nanos, StoreError> {
    let Value::BulkString(text) = value else { return Err(StoreError::BadReply) };
    let micros = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    micros.map(Nanos::from_micros).ok_or(StoreError::BadReply)
}
