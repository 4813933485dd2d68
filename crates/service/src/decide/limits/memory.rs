//! A limit's states in this server's memory, and its counters: the part that survives a change of
//! the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Weak,
};

use parking_lot::Mutex;
use tidegate_core::{Algorithm, Nanos, Policy, PolicyError, algorithm::TokenBucket};
use tidegate_limiter::{
    FairBuildError, FairTenants, HashKeys, KeyedLimiter, OverrideError, SnapshotEntry,
    TooManyExceptions, Until,
};

use super::{
    Limit,
    rule_blocks::RuleBlocks,
    runtime_overrides::{QuotasByKey, RuntimeOverride, RuntimeOverrides, weight_of},
    tenants,
};
use crate::{
    decide::{
        counts::Counts,
        refusal::{MOST_OVERRIDES, Refusal},
        thresholds::Thresholds,
        waits::LimitWaits,
    },
    observe::{heavy::HeavyKeys, latency::Latency, once_a_minute::OnceAMinute},
    rules::{Keeping, LimitSpec, PolicySpec, QuotaTextError, RulesError},
};

/// The states of a limit and its counters. If the states are in a store, the limiter only records
/// blocked keys.
pub struct Memory {
    pub limiter: KeyedLimiter<()>,
    /// Who shares the limit; then the limiter has one state, that of the empty key.
    pub(super) tenants: Option<FairTenants>,
    pub counts: Counts,
    pub heavy: HeavyKeys,
    /// The quotas that operators gave single keys.
    pub(super) overrides: RuntimeOverrides,
    /// Of a sample of the decisions.
    pub latency: Latency,
    pub thresholds: Thresholds,
    /// The callers that wait for its keys.
    pub waits: LimitWaits,
    /// The limit in force, while callers wait for it in the store.
    pub(in crate::decide) waited_for: Mutex<Weak<Limit>>,
    /// The keys that the rule's `block_for` blocks.
    pub rule_blocks: RuleBlocks,
    /// The line about a threshold that a key reaches.
    pub reached: OnceAMinute,
    keeping: Keeping,
    /// Held during a change of the rules, an operator's change, and while states are saved: before
    /// the lock of the overrides, which answers need.
    changing: Mutex<()>,
}

/// The rules of a limit's states while they are saved.
pub struct SavedRules<'a> {
    pub policy: &'a PolicySpec,
    /// The keys with their own quotas.
    pub own: BTreeMap<&'a str, &'a PolicySpec>,
    pub(super) denied: &'a BTreeMap<u64, Nanos>,
}

/// The policy of the states in the server's own memory. If a store decides, this is a policy with
/// the limit's number (denials show it) and the smallest state. Otherwise a log of thousands of
/// entries would be reserved for each of a million keys without being used.
pub(super) fn policy(spec: &PolicySpec, keeping: Keeping) -> Result<Policy, PolicyError> {
    let policy = spec.policy()?;
    match keeping {
        Keeping::Memory => Ok(policy),
        Keeping::Store => match u32::try_from(policy.limit()) {
            Ok(limit) => Ok(Policy::concurrency(limit)),
            Err(_) => TokenBucket::from_interval(Nanos::new(1), policy.limit()).map(Policy::from),
        },
    }
}

/// With a store or `shares`, the maximum number of blocked keys of a limit, unless its rules name
/// more.
const MOST_BLOCKED: usize = 1 << 16;

/// The number of keys to make room for. If the states are in a store, only the exceptions need
/// room. A limit that tenants share has one state.
fn room(spec: &LimitSpec, keeping: Keeping, max_keys: usize) -> usize {
    match keeping {
        Keeping::Memory if spec.shares.is_some() => 1,
        Keeping::Memory => max_keys,
        Keeping::Store => {
            let named = spec.deny.len() + spec.overrides.len();
            max_keys.min(MOST_BLOCKED.max(2 * named))
        }
    }
}

impl Memory {
    /// Fresh states for a limit, with the names of up to `top_keys` heavy keys.
    /// [`change`](Self::change) adds its overrides and its deny list.
    pub fn new(
        spec: &LimitSpec,
        max_keys: usize,
        top_keys: usize,
        hash: Option<HashKeys>,
        keeping: Keeping,
    ) -> Result<Self, RulesError> {
        let refuse = |source| RulesError::Store {
            limit: spec.name.clone(),
            source,
        };
        let policy =
            policy(&spec.policy, keeping).map_err(|e| RulesError::of_policy(&spec.name, &e))?;
        let mut builder = KeyedLimiter::builder(policy)
            .max_keys(room(spec, keeping, max_keys))
            .when_full(spec.when_full)
            .clock(());
        if spec.shares.is_some() {
            builder = builder.max_exceptions(MOST_BLOCKED.max(2 * spec.deny.len()));
        }
        if let Some(hash) = hash {
            builder = builder.hash_keys(hash);
        }
        let limiter = builder.build().map_err(|error| refuse(error.into()))?;
        let tenants = match keeping {
            Keeping::Memory => tenants::tenants(spec, max_keys, &limiter).map_err(refuse)?,
            Keeping::Store => None,
        };
        let counts = Counts::default();
        // A global limit has one key without a name.
        let heavy = HeavyKeys::new(if spec.global { 0 } else { top_keys }, &counts.sampling);
        let (latency, overrides) = (Latency::default(), RuntimeOverrides::new(spec));
        Ok(Self {
            limiter,
            tenants,
            counts,
            heavy,
            overrides,
            latency,
            thresholds: Thresholds::default(),
            waits: LimitWaits::default(),
            waited_for: Mutex::default(),
            rule_blocks: RuleBlocks::default(),
            reached: OnceAMinute::default(),
            keeping,
            changing: Mutex::default(),
        })
    }

    /// Changes the limiter from the rules in `from` (`None` for fresh states of `to`'s policy) to
    /// those in `to`, with room for `max_keys` keys (`None`: as before).
    pub fn change(
        &self,
        from: Option<&LimitSpec>,
        to: &LimitSpec,
        max_keys: Option<usize>,
        now: Nanos,
    ) -> Result<(), FairBuildError> {
        let limiter = &self.limiter;
        // Who saves the states sees those of before or of after, with their policies.
        let _one_at_a_time = self.changing.lock();
        if let Some(max_keys) = max_keys {
            limiter
                .at(now)
                .set_max_keys(room(to, self.keeping, max_keys))?
                .finish_at(now);
        }
        limiter.at(now).set_when_full(to.when_full)?.finish_at(now);
        // The specification was checked when it was parsed.
        let policy = |spec: &PolicySpec| policy(spec, self.keeping).ok();
        // Permits and units of a rate do not become each other, so that a change is not undone
        // without a loss: it comes last, when little can fail.
        let general = policy(&to.policy).filter(|policy| *policy != limiter.policy());
        let (other_kind, general) = match general {
            Some(policy) if policy.is_concurrency() != limiter.policy().is_concurrency() => {
                (general, None)
            }
            _ => (None, general),
        };
        if let Some(policy) = general {
            limiter.at(now).set_policy(policy)?.finish_at(now);
        }
        let mut operators = self.overrides.lock();
        operators.inner.general = to.policy.clone();
        operators.inner.shares.clone_from(&to.shares);
        self.follow_terms(&operators.inner, max_keys, now)?;
        let none = LimitSpec {
            overrides: BTreeMap::new(),
            deny: BTreeSet::new(),
            ..to.clone()
        };
        let from = from.unwrap_or(&none);
        let by_operator = |key: &&String| operators.inner.keys.contains_key(*key);
        let gone = from
            .overrides
            .keys()
            .filter(|key| !to.overrides.contains_key(*key));
        for key in gone.filter(|key| !by_operator(key)) {
            limiter.at(now).remove_override(key);
        }
        let changed = to
            .overrides
            .iter()
            .filter(|(key, spec)| from.overrides.get(*key) != Some(spec));
        for (key, spec) in changed.filter(|(key, _)| !by_operator(key)) {
            if let Some(policy) = policy(spec) {
                limiter.at(now).set_override(key, policy)?;
            }
        }
        operators.inner.by_rules.clone_from(&to.overrides);
        let mut refused = Vec::new();
        for (key, own) in &mut operators.inner.keys {
            if own.weight.is_some() {
                own.policy = to.policy.clone();
                continue;
            }
            // Options that the limit's algorithm does not have are dropped.
            let follows = own.policy.clone().of(&to.policy);
            match follows.policy() {
                Ok(_) if follows == own.policy => {}
                Ok(policy) => {
                    limiter.at(now).set_override(key, policy)?;
                    own.policy = follows;
                }
                Err(error) => {
                    tracing::warn!(limit = to.name, %error, "a key's override does not fit the limit's new rules, and has ended");
                    refused.push(key.clone());
                }
            }
        }
        for key in refused {
            self.end(&mut operators.inner, &key, now)?;
        }
        let hash = limiter.hash_keys();
        for key in from.deny.difference(&to.deny) {
            if let Some(until) = operators.inner.denied.remove(&hash.tag(key.as_bytes())) {
                let block = limiter.at(now).block(key, Until(until));
                block.map_err(OverrideError::from)?;
            }
        }
        for key in to.deny.difference(&from.deny) {
            let tag = hash.tag(key.as_bytes());
            if operators.inner.denied.contains_key(&tag) {
                continue;
            }
            let block = limiter.at(now).block_end(key);
            limiter
                .at(now)
                .block(key, Until::UNBLOCKED)
                .map_err(OverrideError::from)?;
            operators.inner.denied.insert(tag, block);
        }
        drop(operators);
        if let Some(policy) = other_kind {
            limiter.at(now).set_policy(policy)?.finish_at(now);
        }
        Ok(())
    }

    /// Gives the tenants the terms of the rules, with the weights that operators gave.
    fn follow_terms(
        &self,
        operators: &QuotasByKey,
        max_tenants: Option<usize>,
        now: Nanos,
    ) -> Result<(), FairBuildError> {
        let Some(tenants) = &self.tenants else {
            return Ok(());
        };
        let shares = operators.shares();
        tenants::follow(tenants, shares.as_ref(), max_tenants, &self.limiter, now)
    }

    /// Gives a key a quota until a time, in place of its quota in the rules. Its use still counts.
    pub fn set_override(
        &self,
        limit: &str,
        key: &str,
        quota: &str,
        until: Nanos,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let no_quota = |why| Refusal::no_quota(limit, quota, why);
        let _one_at_a_time = self.changing.lock();
        let mut operators = self.overrides.lock();
        let inner = &mut operators.inner;
        if inner.keys.len() >= MOST_OVERRIDES && !inner.keys.contains_key(key) {
            return Err(Refusal::TooManyOverridden {
                limit: limit.to_owned(),
            });
        }
        if let Some(weight) = weight_of(quota).filter(|_| inner.shares.is_some()) {
            let own = RuntimeOverride {
                policy: inner.general.clone(),
                weight: Some(weight),
                until,
            };
            inner.keys.insert(key.to_owned(), own);
            return self
                .follow_terms(inner, None, now)
                .map_err(|_| Refusal::TenantsShare {
                    limit: limit.to_owned(),
                });
        }
        let spec = inner.general.with_quota(quota).map_err(no_quota)?;
        let policy = spec
            .policy()
            .map_err(QuotaTextError::Policy)
            .map_err(no_quota)?;
        self.limiter
            .at(now)
            .set_override(key, policy)
            .map_err(|why| match why {
                OverrideError::TooManyExceptions => Refusal::TooManyBlocked {
                    limit: limit.to_owned(),
                },
                why => Refusal::NoMemory { why },
            })?;
        inner.keys.insert(
            key.to_owned(),
            RuntimeOverride {
                policy: spec,
                weight: None,
                until,
            },
        );
        Ok(())
    }

    /// Blocks a key until a time. A key on the deny list is denied anyway, and blocked if it is no
    /// longer on the list by then.
    pub fn block(&self, key: &[u8], until: Nanos, now: Nanos) -> Result<(), TooManyExceptions> {
        let _one_at_a_time = self.changing.lock();
        let mut operators = self.overrides.lock();
        let tag = self.limiter.hash_keys().tag(key);
        match operators.inner.denied.get_mut(&tag) {
            Some(block) => *block = until,
            None => self.limiter.at(now).block(key, Until(until))?,
        }
        Ok(())
    }

    /// Ends a block, but no denial by the deny list. Returns whether it was in force.
    pub fn unblock(&self, key: &[u8], now: Nanos) -> bool {
        let _one_at_a_time = self.changing.lock();
        let mut operators = self.overrides.lock();
        let tag = self.limiter.hash_keys().tag(key);
        match operators.inner.denied.get_mut(&tag) {
            Some(block) => mem::take(block) > now,
            None => self.limiter.at(now).unblock(key),
        }
    }

    /// Merges in a saved block of the key with this tag. Returns whether it had a place.
    pub fn restore_block(&self, tag: u64, until: u64, now: Nanos) -> bool {
        let _one_at_a_time = self.changing.lock();
        let mut operators = self.overrides.lock();
        if let Some(block) = operators.inner.denied.get_mut(&tag) {
            *block = (*block).max(Nanos::new(until));
            return true;
        }
        let limiter = &self.limiter;
        let entry = SnapshotEntry::Blocked { tag, until };
        limiter.at(now).restore(&limiter.policy(), &entry)
    }

    /// Calls `save` with the rules of the states, which stay until it returns. It must not change
    /// the limit.
    pub fn while_unchanged<R>(&self, save: impl FnOnce(&SavedRules<'_>) -> R) -> R {
        let _one_at_a_time = self.changing.lock();
        let operators = self.overrides.read();
        let QuotasByKey {
            general,
            by_rules,
            keys,
            denied,
            ..
        } = &*operators;
        let mut own: BTreeMap<&str, &PolicySpec> = BTreeMap::new();
        own.extend(by_rules.iter().map(|(key, policy)| (key.as_str(), policy)));
        let by_operators = keys.iter().filter(|(_, own)| own.weight.is_none());
        own.extend(by_operators.map(|(key, own)| (key.as_str(), &own.policy)));
        save(&SavedRules {
            policy: general,
            own,
            denied,
        })
    }

    /// Removes the key's override. Returns whether it had one.
    pub fn end_override(&self, key: &str, now: Nanos) -> Result<bool, OverrideError> {
        let _one_at_a_time = self.changing.lock();
        self.end(&mut self.overrides.lock().inner, key, now)
    }

    /// Removes the overrides that have expired.
    pub fn end_overrides_due(&self, now: Nanos) {
        for (key, _) in self
            .overrides
            .all()
            .into_iter()
            .filter(|(_, own)| own.until <= now)
        {
            let _one_at_a_time = self.changing.lock();
            let mut operators = self.overrides.lock();
            // Another request may have set it again.
            if operators
                .inner
                .keys
                .get(&key)
                .is_some_and(|own| own.until <= now)
                && let Err(error) = self.end(&mut operators.inner, &key, now)
            {
                tracing::error!(%error, "a key's override could not be ended; trying again in a second");
            }
        }
    }

    fn end(
        &self,
        operators: &mut QuotasByKey,
        key: &str,
        now: Nanos,
    ) -> Result<bool, OverrideError> {
        let Some(own) = operators.keys.get(key) else {
            return Ok(false);
        };
        if own.weight.is_some() {
            operators.keys.remove(key);
            // The terms of the rules were valid before.
            let _ = self.follow_terms(operators, None, now);
            return Ok(true);
        }
        match operators
            .by_rules
            .get(key)
            .and_then(|spec| policy(spec, self.keeping).ok())
        {
            Some(policy) => self.limiter.at(now).set_override(key, policy)?,
            None => {
                self.limiter.at(now).remove_override(key);
            }
        }
        operators.keys.remove(key);
        Ok(true)
    }
}
