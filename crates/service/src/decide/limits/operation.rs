//! Changes that an operator makes about a key while the server runs.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::{DenialReason, Nanos};
use tidegate_redis::{GivenOrder, Order, OrderKind, Plan};

use super::{Limit, RuntimeOverride, runtime_overrides::weight_of};
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
    /// Give the key its own quota, such as `1000/1m`, in place of what the rules say about it: for
    /// a time, or (`None`) until it is ended. Used units still count.
    Override(String, Option<Duration>),
    /// Hold the key to the rules again.
    EndOverride,
    /// Forget what the key has used.
    Reset,
}

impl Operation {
    /// The name in the audit.
    pub const fn name(&self) -> &'static str {
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
    /// Why the next request of the key would be denied, as far as this server knows without the
    /// store.
    pub fn reason_here(&self, key: &[u8], now: Nanos) -> Option<DenialReason> {
        let in_memory = || {
            let is_here = self.store().is_none();
            is_here.then(|| self.standing(key, 1, now))
        };
        let decision = self.block_of(key, now).or_else(in_memory)?;
        decision.reason()
    }

    /// Makes a change in the store, for all servers: they follow within a second. Returns whether
    /// there was something to end, and `true` for the other operations.
    pub fn operate_in_store<'a>(
        &'a self,
        store: &'a StoreLimit,
        key: &'a [u8],
        operation: &'a Operation,
    ) -> BoxFuture<'a, Result<bool, Refusal>> {
        Box::pin(async move {
            self.concerns_tenants(key, operation)?;
            self.leaves_denied(key, operation)?;
            if matches!(operation, Operation::Unblock | Operation::Reset) {
                self.memory.rule_blocks.forget(key);
            }
            let done = match operation {
                Operation::Block(span) => {
                    store.order(key, Order::Block, *span).await.map(|()| true)
                }
                Operation::Unblock => match store.end_order(key, OrderKind::Block).await {
                    Ok(ended) if store.blocks => {
                        let by_rule = store.unblock_by_rule(key).await;
                        by_rule.map(|was_blocked| was_blocked || ended)
                    }
                    ended => ended,
                },
                Operation::Override(quota, span) => {
                    if self.spec.shares.is_none() {
                        self.shareable(key, quota)?;
                    }
                    store
                        .order(key, Order::Override(quota), *span)
                        .await
                        .map(|()| true)
                }
                Operation::EndOverride => store.end_order(key, OrderKind::Override).await,
                Operation::Reset => store.reset(key).await.map(|()| true),
            };
            done.map_err(|why| Refusal::NotChanged {
                limit: self.spec.name.clone(),
                why,
            })
        })
    }

    /// Like [`operate_in_store`](Self::operate_in_store), for a limit in memory. An override
    /// outlives a change of the rules.
    pub fn operate_in_memory(
        &self,
        key: &[u8],
        operation: &Operation,
        now: Nanos,
    ) -> Result<bool, Refusal> {
        self.concerns_tenants(key, operation)?;
        self.leaves_denied(key, operation)?;
        if matches!(operation, Operation::Unblock | Operation::Reset) {
            self.memory.rule_blocks.forget(key);
        }
        let name = &self.spec.name;
        let until = |span: &Option<Duration>| {
            span.map_or(Nanos::MAX, |span| now.saturating_add(span.into()))
        };
        match operation {
            Operation::Block(span) => {
                self.memory
                    .block(key, until(span), now)
                    .map_err(|_| Refusal::TooManyBlocked {
                        limit: name.clone(),
                    })?;
            }
            Operation::Unblock => return Ok(self.memory.unblock(key, now)),
            Operation::Override(quota, span) => {
                self.memory
                    .set_override(name, text(key)?, quota, until(span), now)?;
            }
            Operation::EndOverride => {
                let ended = self.memory.end_override(text(key)?, now);
                return ended.map_err(|why| Refusal::NoMemory { why });
            }
            Operation::Reset => self.reset_in_memory(key, now),
        }
        Ok(true)
    }

    /// Whether the operation makes sense for a limit that tenants share.
    fn concerns_tenants(&self, key: &[u8], operation: &Operation) -> Result<(), Refusal> {
        if self.spec.shares.is_none() {
            return Ok(());
        }
        let limit = self.spec.name.clone();
        match operation {
            Operation::Override(quota, _) if weight_of(quota).is_some() && self.who(key) == key => {
                Ok(())
            }
            Operation::Override(..) => Err(Refusal::TenantsShare { limit }),
            // The empty key is that of the state of the whole limit.
            Operation::Block(_) if key.is_empty() => Err(Refusal::KeyMissing { limit }),
            _ => Ok(()),
        }
    }

    /// Checks that the operation does not promise to admit a key that the rules deny permanently. A
    /// block of such a key is kept for the time when the rules no longer do.
    fn leaves_denied(&self, key: &[u8], operation: &Operation) -> Result<(), Refusal> {
        match operation {
            Operation::Unblock | Operation::Override(..) if self.is_denied(key) => {
                Err(Refusal::DeniedByRules {
                    limit: self.spec.name.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the limit can be shared with this quota.
    fn shareable(&self, key: &[u8], quota: &str) -> Result<(), Refusal> {
        text(key)?;
        let limit = &self.spec.name;
        let policy = self.spec.policy.with_quota(quota);
        let policy = policy.and_then(|spec| spec.policy().map_err(QuotaTextError::Policy));
        let planned = Plan::new(policy.map_err(|why| Refusal::no_quota(limit, quota, why))?);
        planned.map(|_| ()).map_err(|why| Refusal::NotShareable {
            limit: limit.clone(),
            quota: quota.chars().take(32).collect(),
            why,
        })
    }

    /// The first `most` keys that operators gave a quota while the server runs, and how many there
    /// are.
    pub fn runtime_overrides(&self, most: usize) -> (usize, Vec<(String, RuntimeOverride)>) {
        let Some(store) = &self.store else {
            let mut all = self.memory.overrides.all();
            let count = all.len();
            all.truncate(most);
            return (count, all);
        };
        let (count, given) = store.orders.list(OrderKind::Override, most);
        let shown = |given: GivenOrder| {
            Some((
                String::from_utf8_lossy(&given.key).into_owned(),
                self.given(&given)?,
            ))
        };
        (count, given.into_iter().filter_map(shown).collect())
    }

    /// The quota that an operator gave a key.
    pub fn runtime_override(&self, key: &str) -> Option<RuntimeOverride> {
        let Some(store) = &self.store else {
            return self.memory.overrides.get(key.as_bytes());
        };
        self.given(&store.orders.get(OrderKind::Override, key.as_bytes())?)
    }

    fn given(&self, order: &GivenOrder) -> Option<RuntimeOverride> {
        let has_tenants = self.spec.shares.is_some();
        let weight = weight_of(&order.text).filter(|_| has_tenants);
        let policy = match weight {
            Some(_) => self.spec.policy.clone(),
            None => self.spec.policy.with_quota(&order.text).ok()?,
        };
        Some(RuntimeOverride {
            policy,
            weight,
            until: order.until.unwrap_or(Nanos::MAX),
        })
    }
}

/// A key as rules have it.
fn text(key: &[u8]) -> Result<&str, Refusal> {
    str::from_utf8(key).map_err(|_| Refusal::KeyNotText)
}
