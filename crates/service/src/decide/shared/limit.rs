//! One limit in the shared store.

use std::{borrow::Cow, collections::HashMap, fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tidegate_core::{Algorithm as _, Decision, DenialReason, Nanos, Standing, fair::Terms};
use tidegate_redis::{
    Deadline, LimitError, LimitOrders, Mode, Order, OrderKind, ShareSeen, SharedDecision,
    SharedLimit, Store, StoreError, Timeout,
};

use super::SharedStore;
use crate::{
    decide::refusal::Refusal,
    rules::{LimitSpec, PolicySpec, Problem, RulesError},
};

/// How many different quotas of operators' overrides are kept in the form that the store needs.
const QUOTAS: usize = 1 << 10;
/// The maximum number of keys in memory for each of these quotas while the store does not reply.
const QUOTA_KEYS: usize = 1 << 8;

/// A limit in the store: its own policy, and that of each overridden key. All have the same name in
/// the store, so a key that gets an override keeps its use as far as both policies store it in the
/// same form.
pub struct StoreLimit {
    general: SharedLimit,
    overridden: HashMap<Box<[u8]>, SharedLimit>,
    /// Whether requests for many keys should share a call: the store makes each decision, and has
    /// no part that could hold up the answers of the others.
    pub shares_calls: bool,
    /// Whether the rule blocks keys for denials.
    pub blocks: bool,
    spec: LimitSpec,
    deadline: Timeout,
    /// The orders of operators about keys, at any server.
    pub orders: Arc<LimitOrders>,
    /// By the quota of an operator's override; `None` for one that the limit cannot use.
    by_quota: Mutex<HashMap<Arc<str>, Option<SharedLimit>>>,
}

impl StoreLimit {
    /// A limit in this store. While the store makes no decision, up to `local_keys` keys are
    /// decided in memory.
    ///
    /// # Errors
    /// When the store cannot implement the limit's policy, or there is not enough memory for local
    /// decisions.
    pub fn new(
        spec: &LimitSpec,
        store: &SharedStore,
        local_keys: usize,
    ) -> Result<Self, RulesError> {
        let build = |policy: &PolicySpec, keys, announced| {
            build(
                spec,
                policy,
                (store.store(), store.deadline()),
                keys,
                announced,
            )
        };
        let overridden = spec.overrides.iter();
        let overridden =
            overridden.map(|(key, policy)| Ok((key.as_bytes().into(), build(policy, 1, false)?)));
        let general = build(&spec.policy, local_keys, true)?;
        Ok(Self {
            shares_calls: general.mode() == Mode::Exact && !store.store().address().is_cluster(),
            blocks: general.policy().penalty().is_some(),
            general,
            overridden: overridden.collect::<Result<_, RulesError>>()?,
            spec: spec.clone(),
            deadline: store.deadline(),
            orders: store.store().orders(&spec.name),
            by_quota: Mutex::default(),
        })
    }

    /// The policy's limit for this key: that of an operator's override, of the rules' override, or
    /// the general one.
    pub fn of(&self, key: &[u8]) -> Cow<'_, SharedLimit> {
        if self.spec.shares.is_none()
            && let Some(quota) = self.orders.override_of(key)
            && let Some(limit) = self.with_quota(quota)
        {
            return Cow::Owned(limit);
        }
        let own = if self.overridden.is_empty() {
            None
        } else {
            self.overridden.get(key)
        };
        Cow::Borrowed(own.unwrap_or(&self.general))
    }

    fn with_quota(&self, quota: Arc<str>) -> Option<SharedLimit> {
        let mut by_quota = self.by_quota.lock();
        if let Some(known) = by_quota.get(&quota) {
            return known.clone();
        }
        let spec = self.spec.policy.with_quota(&quota).ok();
        let built = spec.and_then(|policy| {
            build(
                &self.spec,
                &policy,
                (self.general.store(), self.deadline),
                QUOTA_KEYS,
                false,
            )
            .ok()
        });
        if built.is_none() {
            let limit = &self.spec.name;
            tracing::warn!(limit, %quota, "an operator's override does not fit the limit's rules, which apply instead");
        }
        if by_quota.len() >= QUOTAS {
            by_quota.clear();
        }
        by_quota.insert(quota, built.clone());
        built
    }

    /// The share of a key's tenant as this server has last seen it in the store.
    pub fn share_seen(&self, key: &[u8]) -> Option<ShareSeen> {
        self.general.share_seen(key)
    }

    /// The terms of a key's tenant now, with a weight that an operator gave it.
    pub fn terms_of(&self, key: &[u8]) -> Option<Terms> {
        self.general.terms_of(key)
    }

    /// The denial of a key that an operator has blocked at any server, or of its tenant.
    pub fn block_of(&self, key: &[u8]) -> Option<Decision> {
        let of_tenant = || {
            let shares = self.spec.shares.as_ref()?;
            self.orders.blocked_for(shares.by.tenant(key))
        };
        let left = self.orders.blocked_for(key).or_else(of_tenant)?;
        let limit = self.general.policy().limit();
        let standing = |reset_after| Standing {
            limit,
            room: 0,
            unit: 1,
            reset_after,
        };
        let denied = match left.get() {
            _ if left == Nanos::MAX => Decision::deny_for_good(standing(u64::MAX)),
            left => Decision::deny(standing(left.max(1)), left.max(1)),
        };
        Some(denied.because(DenialReason::Blocked))
    }

    pub async fn order(
        &self,
        key: &[u8],
        order: Order<'_>,
        span: Option<Duration>,
    ) -> Result<(), StoreError> {
        self.general
            .store()
            .order(&self.spec.name, key, order, span)
            .await
    }

    pub async fn end_order(&self, key: &[u8], kind: OrderKind) -> Result<bool, StoreError> {
        self.general
            .store()
            .end_order(&self.spec.name, key, kind)
            .await
    }

    /// Ends the block of a key by the rule. Returns whether it was blocked.
    pub async fn unblock_by_rule(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.of(key).unblock(key).await
    }

    /// Forgets what a key has used.
    pub async fn reset(&self, key: &[u8]) -> Result<(), StoreError> {
        self.of(key).reset(key).await
    }

    /// Takes `cost` if it is admitted and this server can decide without asking the store. `None`
    /// means that nothing was decided.
    #[inline]
    pub fn take_here(&self, key: &[u8], cost: u64) -> Option<SharedDecision> {
        self.of(key).acquire_here(key, cost)
    }

    /// Takes `cost` if it is admitted, with `spent` of the deadline already used.
    pub async fn take(&self, key: &[u8], cost: u64, spent: Duration) -> SharedDecision {
        let limit = self.of(key);
        limit.acquire_by(key, cost, left_of(&limit, spent)).await
    }

    /// Whether `cost` would be admitted, with what remains before it, and with `spent` of the
    /// deadline already used.
    pub async fn peek(&self, key: &[u8], cost: u64, spent: Duration) -> Decision {
        let limit = self.of(key);
        limit
            .peek_by(key, cost, left_of(&limit, spent))
            .await
            .decision
    }

    /// Takes each of these costs if it is admitted, with `spent` of the deadline already used;
    /// neighbours with the same key in this order.
    pub async fn take_many(
        &self,
        requests: &[(&[u8], u64)],
        spent: Duration,
    ) -> Vec<SharedDecision> {
        let has_quotas = self.orders.any_override() && self.spec.shares.is_none();
        if self.overridden.is_empty() && !has_quotas {
            return self
                .general
                .acquire_many_by(requests, left_of(&self.general, spent))
                .await;
        }
        // Keys with an override have separate limits.
        let with = |key: &[u8]| {
            (
                self.orders.override_of(key),
                self.overridden.get(key).map(SharedLimit::policy),
            )
        };
        let runs = requests.chunk_by(|(one, _), (other, _)| with(one) == with(other));
        let asked = runs.map(async |run| {
            let limit = self.of(run[0].0);
            limit.acquire_many_by(run, left_of(&limit, spent)).await
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Takes as much of `cost` as is available, with `spent` of the deadline already used.
    pub async fn take_up_to(
        &self,
        key: &[u8],
        cost: u64,
        spent: Duration,
    ) -> (u64, SharedDecision) {
        let limit = self.of(key);
        limit
            .acquire_up_to_by(key, cost, left_of(&limit, spent))
            .await
    }

    /// Charges `cost`, whether it fits or not.
    pub async fn charge(&self, key: &[u8], cost: u64) -> SharedDecision {
        self.of(key).charge(key, cost).await
    }

    /// Refunds up to `cost`, and returns the state of the key. `name` is the limit's name, for the
    /// refusal.
    pub async fn refund(&self, key: &[u8], cost: u64) -> Result<Decision, Refusal> {
        match self.of(key).refund(key, cost).await {
            Ok(decided) => Ok(decided.decision),
            Err(why) => Err(Refusal::NoAnswer {
                limit: self.spec.name.clone(),
                why,
            }),
        }
    }
}

fn build(
    spec: &LimitSpec,
    policy: &PolicySpec,
    (store, deadline): (&Store, Timeout),
    keys: usize,
    announced: bool,
) -> Result<SharedLimit, RulesError> {
    let (sharing, policy) = (
        spec.sharing,
        policy
            .policy()
            .map_err(|e| RulesError::of_policy(&spec.name, &e))?,
    );
    let mut limit = store
        .limit(&spec.name, policy)
        .mode(sharing.mode.unwrap_or_default())
        .on_error(sharing.on_error.unwrap_or_default())
        .deadline(sharing.deadline.unwrap_or(deadline))
        .local_keys(keys)
        .announced(announced)
        .line(spec.sharing.line);
    if let Some(shares) = &spec.shares {
        let (others, named) = shares.terms().map_err(|(_, error)| {
            let what = format!("limit `{}`, shares: {error}", spec.name);
            RulesError::invalid(None, Problem::overall(what))
        })?;
        let named = named.iter().map(|(name, terms)| (name.as_bytes(), *terms));
        limit = limit.tenants(shares.tenant_of(), others, named);
    }
    if let Some(slack) = sharing.slack {
        limit = limit.slack(slack);
    }
    if let Some(units) = sharing.unreported {
        limit = limit.unreported(units);
    }
    limit.build().map_err(|error| match error {
        LimitError::Local(source) => RulesError::Store {
            limit: spec.name.clone(),
            source: source.into(),
        },
        error => {
            let what = format!("limit `{}` cannot be shared: {error}", spec.name);
            RulesError::invalid(None, Problem::overall(what))
        }
    })
}

/// The rest of a decision's deadline after `spent` of it.
fn left_of(limit: &SharedLimit, spent: Duration) -> Deadline {
    Deadline::after(limit.deadline().left().saturating_sub(spent))
}

impl fmt::Debug for StoreLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLimit")
            .field("general", &self.general)
            .finish_non_exhaustive()
    }
}
