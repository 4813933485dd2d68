//! Permits for work in flight.

use std::time::Duration;

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::Estimate;

use super::{SharedDecision, SharedLimit, Source};
use crate::{StoreError, script::call};

/// How long giving back is retried.
const TRIES: Nanos = Nanos::from_secs(60);

/// Permits of a shared limit. Dropping this value gives them back. If the process dies, they expire
/// after the limit's longest hold. Work that may take longer must [renew](Self::renew) them.
///
/// Dropping gives the permits back in the background, so another holder may get them a round trip
/// later. While the store is down, this is retried for a minute. After that the permits expire with
/// the hold.
#[derive(Debug)]
#[must_use = "permits that are dropped are given back"]
pub struct SharedPermit {
    pub(super) limit: SharedLimit,
    pub(super) key: Vec<u8>,
    pub(super) cost: u64,
    pub(super) answer: SharedDecision,
    /// When they were taken, in the store's time. This time is unique among the holders of a key,
    /// and the store identifies the holder by it.
    pub(super) holder: Nanos,
    /// The units, and the charge for each, if the permits were granted in memory.
    pub(super) in_memory: Option<(Estimate, u64)>,
}

impl SharedPermit {
    /// The decision that granted the permits.
    pub const fn decision(&self) -> &SharedDecision {
        &self.answer
    }

    /// Whether there is anything to give back.
    fn is_held(&self) -> bool {
        self.cost > 0 && self.limit.plan().hold().is_some()
    }

    /// Holds the permits for another longest hold from now. Returns whether they were still held;
    /// if not, they have expired and may belong to another holder.
    ///
    /// # Errors
    /// When the store does not reply. The permits are then held as long as before, or renewed
    /// (perhaps only the reply was lost). It is safe to try again.
    pub async fn renew(&mut self) -> Result<bool, StoreError> {
        if self.answer.source != Source::Store || !self.is_held() {
            return Ok(true);
        }
        settle(&self.limit, &self.key, self.holder, true).await
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        if !self.is_held() {
            return;
        }
        match self.answer.source {
            Source::Store => {
                let (limit, key, holder) = (
                    self.limit.clone(),
                    std::mem::take(&mut self.key),
                    self.holder,
                );
                let runtime = self
                    .limit
                    .store()
                    .batcher()
                    .monitor
                    .runner
                    .connector
                    .runtime()
                    .clone();
                runtime.spawn(async move {
                    let clock = &limit.store().batcher().monitor.clock;
                    let until = clock
                        .now()
                        .saturating_add(limit.plan().hold().unwrap_or_default().min(TRIES));
                    let mut pause = Duration::from_millis(50);
                    // Permits that are not given back expire with the hold.
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
                // Those whose hold has passed may be another holder's.
                if let (Some(local), Some((taken, unit))) = (self.limit.local(), self.in_memory) {
                    local.settle(&self.key, taken, 0, unit);
                }
            }
            _ => {}
        }
    }
}

/// Gives back or renews a holder's permits. Returns whether there were any. Repeating it changes
/// nothing. Errors are counted.
async fn settle(
    limit: &SharedLimit,
    key: &[u8],
    holder: Nanos,
    renew: bool,
) -> Result<bool, StoreError> {
    let counters = limit.store().batcher().monitor.counters();
    try_settle(limit, key, holder, renew)
        .await
        .inspect_err(|error| counters.outcome(error))
}

async fn try_settle(
    limit: &SharedLimit,
    key: &[u8],
    holder: Nanos,
    renew: bool,
) -> Result<bool, StoreError> {
    let batcher = limit.store().batcher();
    let whole = limit.redis_key(key);
    let shard = batcher.monitor.shard_of(&whole);
    batcher.monitor.admit(shard)?;
    let arguments = call::settle_arguments(limit.plan().hold().unwrap_or_default(), renew, holder);
    let script = &batcher.scripts.settle;
    let reply = batcher
        .monitor
        .call(shard, script, &[&whole], &arguments, limit.deadline(), true)
        .await?;
    match call::parse_one(reply)?.1.as_deref() {
        Some(b"yes") => {
            limit.forget_denial(key);
            Ok(true)
        }
        Some(b"no") => Ok(false),
        _ => Err(StoreError::BadReply),
    }
}
