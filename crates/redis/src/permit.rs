//! Permits in flight, held by whoever got them.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Clock, Nanos};

use crate::{
    SharedDecision, SharedLimit, Source, StoreError,
    call::{self, Before},
};

/// For how long permits are tried to be given back.
const TRIES: Nanos = Nanos::from_secs(60);

/// Permits of a shared limit. They come back when this is dropped; and by themselves after the limit's longest hold, should
/// the process die. Work that may take longer [renews](Self::renew) them.
///
/// Dropping sends the permits back in the background: another holder may get them a round trip later. While the store is
/// down that is tried again for a minute; what has not gone back by then comes back after the hold.
#[derive(Debug)]
#[must_use = "permits that are dropped are given back"]
pub struct Permit {
    limit: SharedLimit,
    key: Vec<u8>,
    cost: u32,
    answer: SharedDecision,
    /// When they were taken, as the store tells the time: no two holders of one key have the same, so it is by this that the
    /// store knows them.
    holder: Nanos,
}

impl Permit {
    pub(crate) fn new(
        limit: SharedLimit,
        key: &[u8],
        cost: u32,
        answer: SharedDecision,
        holder: Nanos,
    ) -> Self {
        Self { limit, key: key.into(), cost, answer, holder }
    }

    /// The decision by which they were given.
    pub const fn decision(&self) -> &SharedDecision {
        &self.answer
    }

    /// Whether there is something to come back.
    fn is_held(&self) -> bool {
        self.cost > 0 && self.limit.plan().hold().is_some()
    }

    /// Holds the permits for another longest hold from now on. Returns whether they still were this holder's: where not,
    /// they have come back by themselves and may be another's already.
    ///
    /// # Errors
    /// When the store gave no answer. The permits are held as long as before, or anew (the answer alone may be lost); asking
    /// again is right in either case.
    pub async fn renew(&mut self) -> Result<bool, StoreError> {
        if self.answer.source != Source::Store || !self.is_held() {
            return Ok(true);
        }
        settle(&self.limit, &self.key, self.holder, true).await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_held() {
            return;
        }
        match self.answer.source {
            Source::Store => {
                let (limit, key, holder) = (self.limit.clone(), std::mem::take(&mut self.key), self.holder);
                let runtime = self.limit.store().inner().runtime.clone();
                runtime.spawn(async move {
                    let clock = &limit.store().inner().clock;
                    let until =
                        clock.now().saturating_add(limit.plan().hold().unwrap_or_default().min(TRIES));
                    let mut pause = Duration::from_millis(50);
                    // What is not given back comes back after the hold.
                    while let Err(error) = settle(&limit, &key, holder, false).await
                        && !error.is_about_the_key()
                        && clock.now() < until
                    {
                        tokio::time::sleep(pause).await;
                        pause = (2 * pause).min(Duration::from_secs(2));
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

/// Gives back, or renews, a holder's permits; whether there were any. Any number of times is as good as once. Errors are
/// counted.
async fn settle(limit: &SharedLimit, key: &[u8], holder: Nanos, renew: bool) -> Result<bool, StoreError> {
    let store = limit.store().inner();
    // Not asked at all is counted where it was found out.
    let counted = |error: &StoreError| {
        if *error != StoreError::Down {
            store.counters.error(error);
        }
    };
    try_settle(limit, key, holder, renew).await.inspect_err(counted)
}

async fn try_settle(limit: &SharedLimit, key: &[u8], holder: Nanos, renew: bool) -> Result<bool, StoreError> {
    let store = limit.store().inner();
    let whole = limit.redis_key(key);
    let at = store.part_of(&whole);
    store.admit(at)?;
    let arguments = call::settle_arguments(limit.plan().hold().unwrap_or_default(), renew, holder);
    let script = Arc::clone(&store.scripts.settle);
    let reply = store.call(at, &script, &[&whole], &arguments, limit.deadline(), true).await?;
    match call::parse(reply, 1)?.1.as_slice() {
        [Before::Value(Some(told))] if told == b"yes" => Ok(true),
        [Before::Value(Some(told))] if told == b"no" => Ok(false),
        [Before::WrongType] => Err(StoreError::WrongType),
        [Before::NotOurs] => Err(StoreError::NotOurs),
        _ => Err(StoreError::BadReply),
    }
}
