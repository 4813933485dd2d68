//! The limits at work: what the rules say, and the states that outlive a change of the rules.
//!
//! ```text
//! Limits ── by name ─► Limit ─┬─► Memory       states and counts; outlives a change of the rules
//!                             └─► StoreLimit   instead of the states, where servers share them
//! ```

pub mod counts;
mod limit;
mod memory;

use std::sync::Arc;

use rapidhash::RapidHashMap;
use tidegate_core::Nanos;
use tidegate_limiter::HashKeys;

pub use self::limit::Limit;
use self::memory::Memory;
use crate::{
    envoy::{Domains, descriptors::Descriptors},
    rules::{Keeping, LimitSpec, Rules, RulesError},
    shared::{SharedStore, StoreLimit},
};

/// How many keys of a shared limit are remembered at most while the store does not answer.
const LOCAL_KEYS: usize = 1 << 16;

/// All limits by their names. Replaced as a whole when the rules change.
pub struct Limits {
    /// In the order of the file.
    in_order: Vec<Arc<Limit>>,
    /// Hashed quickly, not against collisions: whoever writes the rules chooses the names.
    by_name: RapidHashMap<Box<[u8]>, usize>,
    default_max_keys: usize,
    /// Where the limits are shared, if they are.
    shared: Option<Arc<SharedStore>>,
    /// The descriptors that lead to some of them.
    descriptors: Descriptors,
}

impl Limits {
    /// Fresh limits. Those without a bound of their own hold up to `default_max_keys` keys; those whose states are about
    /// to be restored need the hash keys that `hash_keys` has for their name.
    ///
    /// # Errors
    /// When the memory for a limit's states cannot be reserved.
    pub fn new(
        rules: Rules,
        default_max_keys: usize,
        hash_keys: impl Fn(&str) -> Option<HashKeys>,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        Self::build(rules, default_max_keys, hash_keys, Keeping::Memory, None, None, now)
    }

    /// Limits as a server has them that shares them over a store, but without it: what they need of memory can be seen.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn for_a_store(rules: Rules, default_max_keys: usize, now: Nanos) -> Result<Self, RulesError> {
        Self::build(rules, default_max_keys, |_| None, Keeping::Store, None, None, now)
    }

    /// Limits that are kept in a store. Without it they hold up to their bound of keys in memory, or `default_max_keys`.
    ///
    /// # Errors
    /// When the store cannot decide by a limit, or there is no memory.
    pub fn shared_over(
        store: Arc<SharedStore>,
        rules: Rules,
        default_max_keys: usize,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        Self::build(rules, default_max_keys, |_| None, Keeping::Store, Some(store), None, now)
    }

    /// The store that the limits are kept in, if it is not this server's memory.
    #[must_use]
    pub fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.shared.as_ref()
    }

    /// The limits of other rules, in place of these: what is unchanged keeps its state, a changed quota keeps what was
    /// used (in the one limiter that both share, so a change of numbers already counts before the new limits are put in
    /// place). A changed `max_keys` takes the states as they are at this moment; a limit that becomes global, or
    /// stops to be, begins anew.
    ///
    /// # Errors
    /// When the memory for a limit's states cannot be reserved; these limits are then as they were.
    pub fn follow(&self, rules: Rules, now: Nanos) -> Result<Self, RulesError> {
        let keeping = if self.shared.is_some() { Keeping::Store } else { Keeping::Memory };
        Self::build(rules, self.default_max_keys, |_| None, keeping, self.shared.clone(), Some(self), now)
    }

    fn build(
        rules: Rules,
        default_max_keys: usize,
        hash_keys: impl Fn(&str) -> Option<HashKeys>,
        keeping: Keeping,
        shared: Option<Arc<SharedStore>>,
        before: Option<&Self>,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        let bound =
            |spec: &LimitSpec| if spec.global { 1 } else { spec.max_keys.unwrap_or(default_max_keys) };
        // First what may fail for want of memory, without touching what is at work.
        let mut limits = Vec::with_capacity(rules.limits.len());
        for spec in rules.limits {
            let old = before.and_then(|before| before.predecessor(&spec));
            let same_room =
                |old: &&Limit| bound(&old.spec) == bound(&spec) && old.spec.when_full == spec.when_full;
            let memory = if let Some(old) = old.filter(same_room) {
                Arc::clone(&old.memory)
            } else {
                let hash = old.map_or_else(|| hash_keys(&spec.name), |old| Some(old.limiter().hash_keys()));
                Arc::new(Memory::new(&spec, bound(&spec), hash, keeping)?)
            };
            let store = match (&shared, old) {
                (Some(_), Some(old)) if old.spec == spec && old.store.is_some() => old.store.clone(),
                (Some(store), _) => {
                    let keys = bound(&spec).min(LOCAL_KEYS);
                    Some(Arc::new(StoreLimit::new(&spec, store, keys)?))
                }
                (None, _) => None,
            };
            limits.push(Arc::new(Limit { spec, memory, store }));
        }
        for (at, limit) in limits.iter().enumerate() {
            let old = before.and_then(|before| before.predecessor(&limit.spec));
            if let Err(source) = limit.follow(old, now) {
                for done in &limits[..=at] {
                    done.undo(before.and_then(|before| before.predecessor(&done.spec)), now);
                }
                return Err(RulesError::Store { limit: limit.spec.name.clone(), source });
            }
        }
        let names = limits.iter().enumerate();
        let by_name = names.map(|(at, limit)| (limit.spec.name.as_bytes().into(), at)).collect();
        let descriptors = Descriptors::default();
        Ok(Self { in_order: limits, by_name, default_max_keys, shared, descriptors })
    }

    /// With the descriptors that lead to some of these limits, in place of those `before`.
    #[must_use]
    pub(crate) fn with_domains(mut self, domains: Domains, before: Option<&Self>) -> Self {
        let before = before.map(|before| &before.descriptors);
        self.descriptors = Descriptors::new(domains, |name| self.limit(name.as_bytes()), before);
        self
    }

    /// The descriptors that lead to some of them.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// A limit that is none of these, kept where they are.
    ///
    /// # Errors
    /// As [`follow`](Self::follow).
    pub(crate) fn beside(&self, spec: LimitSpec, now: Nanos) -> Result<Arc<Limit>, RulesError> {
        let keeping = if self.shared.is_some() { Keeping::Store } else { Keeping::Memory };
        let rules = Rules { limits: vec![spec], ..Rules::default() };
        let built =
            Self::build(rules, self.default_max_keys, |_| None, keeping, self.shared.clone(), None, now)?;
        Ok(Arc::clone(&built.in_order[0]))
    }

    /// The limit of this name.
    #[must_use]
    #[inline]
    pub fn limit(&self, name: &[u8]) -> Option<&Arc<Limit>> {
        self.by_name.get(name).map(|at| &self.in_order[*at])
    }

    /// The limit of the same name and kind, whose states a limit of new rules takes over.
    fn predecessor(&self, spec: &LimitSpec) -> Option<&Limit> {
        self.limit(spec.name.as_bytes()).map(Arc::as_ref).filter(|old| old.spec.global == spec.global)
    }

    /// All limits, in the order of the file.
    #[must_use]
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.in_order
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.in_order.iter().map(|limit| limit.spec.name.clone()).collect()
    }
}
