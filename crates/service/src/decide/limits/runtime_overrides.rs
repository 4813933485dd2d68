//! Quotas that operators gave single keys while the server runs.
//!
//! They replace what the rules say about a key. They survive a change of the rules and (with a
//! state file) a restart, and may have an end.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidegate_core::{Nanos, fair::Terms};

use crate::rules::{LimitSpec, PolicySpec, SharesSpec};

/// A quota that an operator gave a key, or a weight that one gave a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeOverride {
    /// The limit's algorithm and options, with the operator's quota; for a weight, the limit's own.
    pub policy: PolicySpec,
    /// The tenant's weight, if tenants share the limit.
    pub weight: Option<u32>,
    /// When the rules apply to the key again; [`Nanos::MAX`] for never.
    pub until: Nanos,
}

impl RuntimeOverride {
    /// The operator's text: `1000/1m`, or `weight=10`.
    pub fn quota(&self) -> String {
        match self.weight {
            Some(weight) => format!("weight={weight}"),
            None => self.policy.quota(),
        }
    }
}

/// The weight of an operator's text, as `weight=10`.
pub(super) fn weight_of(text: &str) -> Option<u32> {
    Terms::new().with_weight_text(text)?;
    text.strip_prefix("weight=")?.parse().ok()
}

/// The quotas of one limit's keys, and what the rules in force say about the keys.
pub(super) struct RuntimeOverrides {
    /// Whether there are any. Without one, no reader takes the lock.
    any: AtomicBool,
    inner: RwLock<QuotasByKey>,
}

pub(super) struct QuotasByKey {
    /// The limit's policy, which says what a quota means.
    pub general: PolicySpec,
    pub by_rules: BTreeMap<String, PolicySpec>,
    /// The tenants that share the limit, as the rules have them.
    pub shares: Option<SharesSpec>,
    pub keys: BTreeMap<String, RuntimeOverride>,
    /// The keys on the deny list, by their tags, with the ends of operators' blocks: these are in
    /// force when a key is no longer on the list.
    pub denied: BTreeMap<u64, Nanos>,
}

impl RuntimeOverrides {
    /// None yet.
    pub fn new(spec: &LimitSpec) -> Self {
        let (general, by_rules, keys) = (spec.policy.clone(), BTreeMap::new(), BTreeMap::new());
        Self {
            any: AtomicBool::new(false),
            inner: RwLock::new(QuotasByKey {
                general,
                by_rules,
                shares: spec.shares.clone(),
                keys,
                denied: BTreeMap::new(),
            }),
        }
    }

    /// Locks them for a change of a quota or of the rules. Changes come one at a time, so that none
    /// waits for long, and no reader behind it.
    pub fn lock(&self) -> Changing<'_> {
        // No change panics midway.
        Changing {
            any: &self.any,
            inner: self.inner.write(),
        }
    }

    /// Locks them against changes.
    pub fn read(&self) -> RwLockReadGuard<'_, QuotasByKey> {
        self.inner.read()
    }

    /// The quota that an operator gave this key.
    pub fn get(&self, key: &[u8]) -> Option<RuntimeOverride> {
        // Relaxed: a reader may miss one that is being set. The quotas themselves are read under
        // the lock.
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.read().keys.get(str::from_utf8(key).ok()?).cloned()
    }

    /// All of them, sorted by key.
    pub fn all(&self) -> Vec<(String, RuntimeOverride)> {
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.read()
            .keys
            .iter()
            .map(|(key, own)| (key.clone(), own.clone()))
            .collect()
    }
}

impl QuotasByKey {
    /// The tenants as the rules have them, with the weights that operators gave.
    pub fn shares(&self) -> Option<SharesSpec> {
        let mut shares = self.shares.clone()?;
        let weights = self.keys.iter();
        let weights = weights.filter_map(|(key, own)| Some((key.clone(), own.weight?)));
        shares.weights.extend(weights);
        Some(shares)
    }
}

/// The locked overrides.
pub(super) struct Changing<'a> {
    any: &'a AtomicBool,
    pub inner: RwLockWriteGuard<'a, QuotasByKey>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.any
            .store(!self.inner.keys.is_empty(), Ordering::Relaxed);
    }
}
