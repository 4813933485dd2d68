//! Limits in requests (overrides). The first use of a combination of domain, unit and number creates a normal limit, whose key
//! is the whole descriptor.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use rapidhash::RapidHashMap;
use tidegate_core::{AlgorithmSpec, Nanos};

use super::{Entry, Unanswered, Unit, names};
use crate::{
    decide::limits::{Limit, Limits},
    rules::{LimitSpec, PolicySpec, SharingSpec, TrafficSpec},
};

/// The maximum number of different overrides, each of which has a table of keys.
const MAX_OVERRIDES: usize = 256;
/// The maximum number of keys of each override.
const MAX_KEYS: usize = 1 << 14;

/// A limit in a request's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The number of requests.
    pub requests_per_unit: u32,
    /// The unit of time. Windows are aligned as for the configuration's limits.
    pub unit: Unit,
}

/// The overrides seen so far. They survive changes of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Overrides(RwLock<RapidHashMap<Box<str>, Arc<Limit>>>);

impl Overrides {
    /// The limit of an override in a domain.
    ///
    /// # Errors
    /// When there are too many overrides, or no memory for another one.
    pub fn limit(
        &self,
        limits: &Limits,
        domain: &str,
        wanted: Override,
        now: Nanos,
    ) -> Result<Arc<Limit>, Unanswered> {
        // No rule's name contains a `~`.
        let name =
            format!("{}~{}-{}", names::limit_name(domain, &[]), wanted.requests_per_unit, wanted.unit.name());
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(name.as_str()).cloned();
        if let Some(limit) = known {
            return Ok(limit);
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = all.get(name.as_str()) {
            return Ok(Arc::clone(limit));
        }
        if all.len() >= MAX_OVERRIDES {
            return Err(Unanswered::TooManyOverrides { most: MAX_OVERRIDES });
        }
        let algorithm = AlgorithmSpec::named("fixed-window").expect("the registry has it");
        let spec = LimitSpec {
            name: name.clone(),
            policy: PolicySpec::new(algorithm, wanted.requests_per_unit, Some(wanted.unit.span())),
            global: false,
            shadow: false,
            when_full: tidegate_limiter::WhenFull::default(),
            max_keys: Some(MAX_KEYS),
            overrides: BTreeMap::new(),
            deny: BTreeSet::new(),
            sharing: SharingSpec::default(),
            traffic: TrafficSpec::default(),
        };
        let limit = limits.beside(spec, now).map_err(|error| Unanswered::Override(error.to_string()))?;
        all.insert(name.into(), Arc::clone(&limit));
        Ok(limit)
    }
}

/// The key of a whole descriptor.
pub(crate) fn key(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    for (name, value) in entries {
        names::push_value(&mut key, name, false);
        names::push_value(&mut key, value, false);
    }
    key
}
