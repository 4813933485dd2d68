//! Giving back what was taken from a shared limit.

use std::sync::Arc;

use tidegate_core::Decision;

use crate::{
    Mode, SharedDecision, SharedLimit, Source, StoreError,
    call::{self, Before},
    nodes::random,
    slot,
};

impl SharedLimit {
    /// Gives back up to `cost` of what a key has taken, and tells where the key stands then. It is what was taken last, on
    /// whichever node; of permits those that were taken first, also where somebody holds a [`Permit`](crate::Permit). Never
    /// more than is in use. A cost of 0 only tells.
    ///
    /// Denials that other nodes remember hold until their time (see
    /// [`remember_denials`](crate::LimitBuilder::remember_denials)); of permits none are remembered.
    ///
    /// Permits that were given in memory while the store was down ([`OnError::Local`](crate::OnError)) come back first, and
    /// in memory; as does anything while the store is down.
    ///
    /// # Errors
    /// [`StoreError::NotExact`] for a limit that is [leased or reported](Self::mode). When the store did not answer: what
    /// was to be given back then either was, or stays charged until the algorithm forgets it. It is never given back twice.
    pub async fn refund(&self, key: impl AsRef<[u8]>, cost: u32) -> Result<SharedDecision, StoreError> {
        let key = key.as_ref();
        if self.mode() != Mode::Exact {
            return Err(StoreError::NotExact);
        }
        let local = self.local();
        let permits = self.plan().hold().is_some();
        let here = local.filter(|_| permits).map_or(0, |local| local.refund(key, cost));
        let error = match self.refund_in_store(key, cost - here).await {
            Ok(decision) => return Ok(SharedDecision { decision, source: Source::Store }),
            Err(error) => error,
        };
        // Counted where it was found out.
        if error != StoreError::Down {
            self.store().inner().counters.error(&error);
        }
        // Only where it is certain that the store has not done it. A cluster's client may ask again after a connection broke:
        // what it was told last says nothing of before.
        let certain = error.is_certain() && !self.store().inner().is_cluster();
        let untouched = error == StoreError::Down || certain;
        match local.filter(|_| untouched) {
            Some(local) => {
                local.refund(key, cost - here);
                Ok(SharedDecision { decision: local.standing(key), source: Source::Local(error) })
            }
            None => Err(error),
        }
    }

    async fn refund_in_store(&self, key: &[u8], cost: u32) -> Result<Decision, StoreError> {
        let (store, plan) = (self.store().inner(), self.plan());
        let whole = self.redis_key(key);
        let at = store.part_of(&whole);
        store.admit(at)?;
        let denials = self.denial_tag(&whole);
        let mut keys = vec![whole];
        if store.is_cluster() {
            // Its client repeats calls by itself; by this key the script knows the second one.
            let (text, name) =
                (format!("{}:refund:", store.prefix), format!("{:016x}{:016x}", random(), random()));
            keys.push(slot::beside(&keys[0], &text, &name));
        }
        let script = Arc::clone(store.scripts.refund(plan.kind()));
        let arguments = call::refund_arguments(plan, cost);
        let reply = store.call(at, &script, &keys, &arguments, self.deadline(), false).await?;
        if let Some(tag) = denials {
            store.denials.forget(tag);
        }
        let (now, found) = call::parse(reply, 1)?;
        let value = match found.into_iter().next() {
            Some(Before::Value(value)) => value,
            Some(Before::WrongType) => return Err(StoreError::WrongType),
            Some(Before::NotOurs) | None => return Err(StoreError::NotOurs),
        };
        let mut standing = None;
        let told = plan.decisions(value.as_deref(), now, &[0], |_, decision, _| standing = Some(decision));
        told.and(standing).ok_or(StoreError::NotOurs)
    }
}
