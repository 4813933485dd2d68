//! Limits in requests (overrides). All numbers of a domain and a unit share one table of keys, so a
//! changed number keeps the count. The key is the whole descriptor.

use std::sync::Arc;

use parking_lot::RwLock;
use rapidhash::RapidHashMap;
use tidegate_core::{AlgorithmSpec, Nanos};
use tidegate_service::{
    decide::limits::{Limit, Limits},
    rules::{LimitSpec, PolicySpec},
};

use super::Unanswered;
use crate::config::{Entry, Unit, by_calendar, names};

/// The maximum number of limits that are kept for their numbers alone. They share the states of a
/// table, so losing them costs only the time to build them again.
const MOST_KEPT: usize = 256;
/// The maximum number of keys of each domain and unit. Above it, the table forgets those that have
/// used the least.
const MAX_KEYS: usize = 1 << 16;

/// A limit in a request's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The number of requests.
    pub requests_per_unit: u32,
    /// The unit of time. Windows are aligned as for the configuration's limits.
    pub unit: Unit,
}

/// The overrides seen so far. They survive changes of the configuration.
#[derive(Debug)]
pub struct Overrides {
    kept: RwLock<Kept>,
    /// A month is one of the calendar.
    calendar_months: bool,
}

#[derive(Debug, Default)]
struct Kept {
    /// For each domain and unit, by name: holds the keys and their counts. The configuration bounds
    /// the number of domains.
    tables: RapidHashMap<Box<str>, Arc<Limit>>,
    /// By name and number.
    limits: RapidHashMap<(Box<str>, u32), Arc<Limit>>,
}

impl Overrides {
    /// None yet.
    pub fn new(calendar_months: bool) -> Self {
        Self {
            kept: RwLock::default(),
            calendar_months,
        }
    }

    /// The limit of an override in a domain.
    ///
    /// # Errors
    /// When the number and the unit do not make a limit, or the system has no memory for a table.
    pub fn limit(
        &self,
        limits: &Limits,
        domain: &str,
        wanted: Override,
        now: Nanos,
    ) -> Result<Arc<Limit>, Unanswered> {
        // No rule's name contains a `~`.
        let name = format!("{}~{}", names::limit_name(domain, &[]), wanted.unit.name());
        let of = (name.into_boxed_str(), wanted.requests_per_unit);
        let known = self.kept.read().limits.get(&of).cloned();
        if let Some(limit) = known {
            return Ok(limit);
        }
        let mut kept = self.kept.write();
        if let Some(limit) = kept.limits.get(&of) {
            return Ok(Arc::clone(limit));
        }
        let calendar = self.calendar_months && wanted.unit == Unit::Month;
        let limit = kept.build(limits, &of.0, wanted, calendar, now)?;
        if kept.limits.len() >= MOST_KEPT {
            kept.limits.clear();
        }
        kept.limits.insert(of, Arc::clone(&limit));
        Ok(limit)
    }
}

impl Kept {
    fn build(
        &mut self,
        limits: &Limits,
        name: &str,
        wanted: Override,
        calendar: bool,
        now: Nanos,
    ) -> Result<Arc<Limit>, Unanswered> {
        let algorithm = AlgorithmSpec::named("fixed-window").expect("the registry has it");
        let number = wanted.requests_per_unit.into();
        let mut policy = PolicySpec::new(algorithm, number, Some(wanted.unit.span()));
        if calendar {
            by_calendar(&mut policy);
        }
        if let Some(table) = self.tables.get(name) {
            let limit = table
                .with_numbers(policy)
                .map_err(|error| Unanswered::Override(error.to_string()))?;
            return Ok(Arc::new(limit));
        }
        let spec = LimitSpec {
            max_keys: Some(MAX_KEYS),
            ..LimitSpec::new(name.to_owned(), policy)
        };
        let limit = limits
            .beside(spec, now)
            .map_err(|error| Unanswered::Override(error.to_string()))?;
        // The store holds the keys of its limits under their name, for any number.
        if limit.store().is_none() {
            self.tables.insert(name.into(), Arc::clone(&limit));
        }
        Ok(limit)
    }
}

/// The key of a whole descriptor.
pub fn key(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    for (name, value) in entries {
        names::push_value(&mut key, name, false);
        names::push_value(&mut key, value, false);
    }
    key
}
