//! Changes that an operator makes about a key while the server runs.

use std::time::Duration;

use tidegate_redis::{GivenOrder, Order, OrderKind, Plan};

use super::{Limit, RuntimeOverride};
use crate::{
    decide::{refusal::Refusal, shared::StoreLimit},
    rules::QuotaTextError,
};

/// A change that an operator makes about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Deny the key for a time, or (`None`) until it is unblocked.
    Block(Option<Duration>),
    /// End the block.
    Unblock,
    /// Give the key its own quota, such as `1000/1m`, in place of what the rules say about it: for a time, or (`None`) until it is
    /// ended. Used units still count.
    Override(String, Option<Duration>),
    /// Hold the key to the rules again.
    EndOverride,
    /// Forget what the key has used.
    Reset,
}

impl Operation {
    /// The name in the audit.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Block(_) => "block",
            Self::Unblock => "unblock",
            Self::Override(..) => "override",
            Self::EndOverride => "end-override",
            Self::Reset => "reset",
        }
    }
}

/// The operator who makes a change.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// The client's name in the access file.
    pub client: &'a str,
    /// Why, in the operator's words.
    pub note: Option<&'a str>,
}

impl Limit {
    /// Makes a change in the store, for all servers: they follow within a second. Returns whether there was something to end, and
    /// `true` for the other operations.
    pub(crate) async fn operate_in_store(
        &self,
        store: &StoreLimit,
        key: &[u8],
        operation: &Operation,
    ) -> Result<bool, Refusal> {
        let name = &self.spec.name;
        let is_denied = self.is_denied(key);
        let done = match operation {
            // A key that the rules deny permanently stays denied.
            Operation::Block(_) if is_denied => Ok(true),
            Operation::Unblock | Operation::Override(..) if is_denied => {
                return Err(Refusal::DeniedByRules { limit: name.clone() });
            }
            Operation::Block(span) => store.order(key, Order::Block, *span).await.map(|()| true),
            Operation::Unblock => store.end_order(key, OrderKind::Block).await,
            Operation::Override(quota, span) => {
                self.shareable(key, quota)?;
                store.order(key, Order::Override(quota), *span).await.map(|()| true)
            }
            Operation::EndOverride => store.end_order(key, OrderKind::Override).await,
            Operation::Reset => store.reset(key).await.map(|()| true),
        };
        done.map_err(|why| Refusal::NotChanged { limit: name.clone(), why })
    }

    /// Checks whether the limit can be shared with this quota.
    fn shareable(&self, key: &[u8], quota: &str) -> Result<(), Refusal> {
        if str::from_utf8(key).is_err() {
            return Err(Refusal::KeyNotText);
        }
        let (limit, shown) = (self.spec.name.clone(), quota.chars().take(32).collect());
        let policy = self.spec.policy.with_quota(quota);
        let policy = policy.and_then(|spec| spec.policy().map_err(QuotaTextError::Policy));
        match policy.map(Plan::new) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(why)) => Err(Refusal::NotShareable { limit, quota: shown, why }),
            Err(why) => Err(Refusal::NoQuota { limit, quota: shown, why }),
        }
    }

    /// The first `most` keys that operators gave a quota while the server runs, and how many there are.
    pub fn runtime_overrides(&self, most: usize) -> (usize, Vec<(String, RuntimeOverride)>) {
        let Some(store) = &self.store else {
            let mut all = self.memory.overrides.all();
            let count = all.len();
            all.truncate(most);
            return (count, all);
        };
        let (count, given) = store.orders().list(OrderKind::Override, most);
        let shown = |given: GivenOrder| {
            let policy = self.spec.policy.with_quota(&given.text).ok()?;
            let until = given.until.unwrap_or(tidegate_core::Nanos::MAX);
            Some((String::from_utf8_lossy(&given.key).into_owned(), RuntimeOverride { policy, until }))
        };
        (count, given.into_iter().filter_map(shown).collect())
    }

    /// The quota that an operator gave a key.
    pub(crate) fn runtime_override(&self, key: &str) -> Option<RuntimeOverride> {
        let Some(store) = &self.store else { return self.memory.overrides.get(key.as_bytes()) };
        let given = store.orders().get(OrderKind::Override, key.as_bytes())?;
        let policy = self.spec.policy.with_quota(&given.text).ok()?;
        Some(RuntimeOverride { policy, until: given.until.unwrap_or(tidegate_core::Nanos::MAX) })
    }
}
