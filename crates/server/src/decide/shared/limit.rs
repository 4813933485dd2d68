//! One limit in the shared store.

use std::{collections::HashMap, fmt, ptr, time::Duration};

use futures_util::future::join_all;
use tidegate_core::Decision;
use tidegate_redis::{Deadline, LimitError, Mode, Part, SharedDecision, SharedLimit, StoreError};

use super::SharedStore;
use crate::{
    decide::refusal::Refusal,
    rules::{LimitSpec, PolicySpec, Problem, RulesError},
};

/// A limit in the store: its own policy, and that of each overridden key. All have the same name in the store, so a key that
/// gets an override keeps its use as far as both policies store it in the same form.
pub struct StoreLimit {
    general: SharedLimit,
    overridden: HashMap<Box<[u8]>, SharedLimit>,
    shares_calls: bool,
}

impl StoreLimit {
    /// A limit in this store. While the store makes no decision, up to `local_keys` keys are decided in memory.
    ///
    /// # Errors
    /// When the store cannot implement the limit's policy, or there is not enough memory for local decisions.
    pub fn new(spec: &LimitSpec, store: &SharedStore, local_keys: usize) -> Result<Self, RulesError> {
        let sharing = spec.sharing;
        let build = |policy: &PolicySpec, keys: usize| {
            let policy = policy.policy().map_err(|e| RulesError::of_policy(&spec.name, &e))?;
            let mut limit = store
                .store()
                .limit(&spec.name, policy)
                .mode(sharing.mode.unwrap_or_default())
                .on_error(sharing.on_error.unwrap_or_default())
                .deadline(sharing.deadline.unwrap_or(store.deadline()))
                .local_keys(keys);
            if let Some(slack) = sharing.slack {
                limit = limit.slack(slack);
            }
            if let Some(units) = sharing.unreported {
                limit = limit.unreported(units);
            }
            limit.build().map_err(|error| match error {
                LimitError::Local(source) => {
                    RulesError::Store { limit: spec.name.clone(), source: source.into() }
                }
                error => {
                    let what = format!("limit `{}` cannot be shared: {error}", spec.name);
                    RulesError::Invalid { path: None, problems: vec![Problem::overall(what)] }
                }
            })
        };
        let overridden = spec.overrides.iter();
        let overridden = overridden.map(|(key, policy)| Ok((key.as_bytes().into(), build(policy, 1)?)));
        let general = build(&spec.policy, local_keys)?;
        Ok(Self {
            shares_calls: general.mode() == Mode::Exact && !store.store().address().is_cluster(),
            general,
            overridden: overridden.collect::<Result<_, RulesError>>()?,
        })
    }

    /// The policy's limit for this key.
    #[must_use]
    pub fn of(&self, key: &[u8]) -> &SharedLimit {
        let own = if self.overridden.is_empty() { None } else { self.overridden.get(key) };
        own.unwrap_or(&self.general)
    }

    /// This limit's part in a joint decision.
    pub(crate) fn part<'a>(&'a self, key: &'a [u8], cost: u32) -> Part<'a> {
        Part { limit: self.of(key), key, cost }
    }

    /// Takes `cost` if it is admitted and this server can decide without asking the store. `None` means that nothing was decided.
    #[inline]
    pub(crate) fn take_here(&self, key: &[u8], cost: u32) -> Option<SharedDecision> {
        self.of(key).acquire_here(key, cost)
    }

    /// Takes `cost` if it is admitted, with `spent` of the deadline already used.
    pub(crate) async fn take(&self, key: &[u8], cost: u32, spent: Duration) -> SharedDecision {
        let limit = self.of(key);
        limit.acquire_by(key, cost, left_of(limit, spent)).await
    }

    /// Whether `cost` would be admitted, with what remains before it, and with `spent` of the deadline already used.
    pub(crate) async fn peek(&self, key: &[u8], cost: u32, spent: Duration) -> Decision {
        let limit = self.of(key);
        limit.peek_by(key, cost, left_of(limit, spent)).await.decision
    }

    /// Takes each of these costs if it is admitted; neighbours with the same key in this order.
    pub(crate) async fn take_many(&self, requests: &[(&[u8], u32)]) -> Vec<SharedDecision> {
        if self.overridden.is_empty() {
            return self.general.acquire_many(requests).await;
        }
        // Keys with an override have separate limits.
        let runs = requests.chunk_by(|(one, _), (other, _)| ptr::eq(self.of(one), self.of(other)));
        let asked = runs.map(|run| self.of(run[0].0).acquire_many(run));
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Whether requests for many keys should share a call: the store makes each decision, and has no part that could hold up the
    /// answers of the others.
    pub(crate) fn shares_calls(&self) -> bool {
        self.shares_calls
    }

    /// Charges `cost`, whether it fits or not.
    pub(crate) async fn charge(&self, key: &[u8], cost: u32) -> SharedDecision {
        self.of(key).charge(key, cost).await
    }

    /// Refunds up to `cost`, and returns the state of the key. `name` is the limit's name, for the refusal.
    pub(crate) async fn refund(&self, name: &str, key: &[u8], cost: u32) -> Result<Decision, Refusal> {
        let limit = || name.to_owned();
        match self.of(key).refund(key, cost).await {
            Ok(told) => Ok(told.decision),
            Err(StoreError::NotExact) => Err(Refusal::NotExact { limit: limit() }),
            Err(why) => Err(Refusal::NoAnswer { limit: limit(), why }),
        }
    }
}

/// The rest of a decision's deadline after `spent` of it.
fn left_of(limit: &SharedLimit, spent: Duration) -> Deadline {
    Deadline::after(limit.deadline().left().saturating_sub(spent))
}

impl fmt::Debug for StoreLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLimit").field("general", &self.general).finish_non_exhaustive()
    }
}
