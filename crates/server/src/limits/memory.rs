//! A limit's states in this server's memory, and its counters: the part that survives a change of the rules.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Algorithm, Nanos, Policy, PolicyError};
use tidegate_limiter::{HashKeys, KeyedLimiter, OverrideError};

use crate::{
    counts::Counts,
    heavy::HeavyKeys,
    rules::{Keeping, LimitSpec, PolicySpec, RulesError},
};

/// The states of a limit and its counters. If the states are in a store, the limiter only records blocked keys.
pub(super) struct Memory {
    pub limiter: KeyedLimiter<()>,
    pub counts: Counts,
    pub heavy: HeavyKeys,
    keeping: Keeping,
}

/// The policy of the states in the server's own memory. If a store decides, this is a policy with the limit's number (denials
/// show it) and the smallest state. Otherwise a log of thousands of entries would be reserved for each of a million keys
/// without being used.
pub(super) fn policy(spec: &PolicySpec, keeping: Keeping) -> Result<Policy, PolicyError> {
    let policy = spec.policy()?;
    match keeping {
        Keeping::Memory => Ok(policy),
        Keeping::Store => Ok(Policy::concurrency(policy.limit())),
    }
}

/// With a store, the maximum number of blocked keys of a limit, unless its rules name more.
const MOST_BLOCKED: usize = 1 << 16;

/// The number of keys to make room for. If the states are in a store, only the exceptions need room.
fn room(spec: &LimitSpec, keeping: Keeping, max_keys: usize) -> usize {
    match keeping {
        Keeping::Memory => max_keys,
        Keeping::Store => {
            let named = spec.deny.len() + spec.overrides.len();
            max_keys.min(MOST_BLOCKED.max(2 * named))
        }
    }
}

impl Memory {
    /// Fresh states for a limit, with the names of up to `top_keys` heavy keys. [`change`](Self::change) adds its overrides
    /// and its deny list.
    pub fn new(
        spec: &LimitSpec,
        max_keys: usize,
        top_keys: usize,
        hash: Option<HashKeys>,
        keeping: Keeping,
    ) -> Result<Self, RulesError> {
        let refuse = |source| RulesError::Store { limit: spec.name.clone(), source };
        let policy = policy(&spec.policy, keeping).map_err(|e| RulesError::of_policy(&spec.name, &e))?;
        let max_keys = room(spec, keeping, max_keys);
        let mut builder =
            KeyedLimiter::builder(policy).max_keys(max_keys).when_full(spec.when_full).clock(());
        if let Some(hash) = hash {
            builder = builder.hash_keys(hash);
        }
        let limiter = builder.build().map_err(|error| refuse(error.into()))?;
        let counts = Counts::default();
        // A global limit has one key without a name.
        let heavy = HeavyKeys::new(if spec.global { 0 } else { top_keys }, &counts.sampling);
        Ok(Self { limiter, counts, heavy, keeping })
    }

    /// Changes the limiter from the rules in `from` (`None` for fresh states of `to`'s policy) to those in `to`, with room for
    /// `max_keys` keys (`None`: as before).
    pub fn change(
        &self,
        from: Option<&LimitSpec>,
        to: &LimitSpec,
        max_keys: Option<usize>,
        now: Nanos,
    ) -> Result<(), OverrideError> {
        let limiter = &self.limiter;
        if let Some(max_keys) = max_keys {
            limiter.set_max_keys_at(room(to, self.keeping, max_keys), now)?.finish_at(now);
        }
        limiter.set_when_full_at(to.when_full, now)?.finish_at(now);
        // The specification was checked when it was parsed.
        let policy = |spec: &PolicySpec| policy(spec, self.keeping).ok();
        if let Some(policy) = policy(&to.policy).filter(|policy| *policy != limiter.policy()) {
            limiter.set_policy_at(policy, now)?.finish_at(now);
        }
        let none = LimitSpec { overrides: BTreeMap::new(), deny: BTreeSet::new(), ..to.clone() };
        let from = from.unwrap_or(&none);
        for key in from.overrides.keys().filter(|key| !to.overrides.contains_key(*key)) {
            limiter.remove_override_at(key, now);
        }
        for (key, spec) in to.overrides.iter().filter(|(key, spec)| from.overrides.get(*key) != Some(spec)) {
            if let Some(policy) = policy(spec) {
                limiter.set_override_at(key, policy, now)?;
            }
        }
        for key in from.deny.difference(&to.deny) {
            limiter.unblock_at(key, now);
        }
        for key in to.deny.difference(&from.deny) {
            limiter.block_at(key, Nanos::MAX, now)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn with_a_store_blocks_reserve_no_table_of_all_keys() {
        let of = |text: &str, keeping| {
            let spec = rules::parse(text).unwrap().limits.remove(0);
            let memory = Memory::new(&spec, 10_000_000, 0, None, keeping).unwrap();
            memory.change(None, &spec, Some(10_000_000), Nanos::ZERO).unwrap();
            memory.limiter.stats().max_keys
        };
        let plain = "limits: [{name: a, limit: 5/1s}]";
        assert_eq!(of(plain, Keeping::Memory), 10_000_000);
        assert_eq!(of(plain, Keeping::Store), 65_536);
        // If the rules deny more keys than that, all of them are denied.
        let deny: Vec<String> = (0..70_000).map(|key| format!("k{key}")).collect();
        let many = format!("limits: [{{name: a, limit: 5/1s, deny: [{}]}}]", deny.join(", "));
        assert_eq!(of(&many, Keeping::Store), 140_000);
    }
}
