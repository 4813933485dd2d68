//! The limits in use: the rules, and the states that survive a change of the rules.
//!
//! ```text
//! Limits ── by name ─► Limit ─┬─► Memory       states and counts; survives a change of the rules
//!                             └─► StoreLimit   instead of the states, if servers share them
//! ```

mod act;
mod capacity;
mod count;
mod division;
mod limit;
mod memory;
mod operation;
mod rule_blocks;
mod runtime_overrides;
mod tenants;
#[cfg(test)]
mod tests;
mod up_to;

use std::sync::Arc;

use rapidhash::RapidHashMap;
use tidegate_core::{DenialReason, Nanos};
use tidegate_limiter::HashKeys;

pub use self::division::{Division, EVERY as DIVIDE_EVERY};
pub use self::memory::SavedRules;
pub use self::runtime_overrides::RuntimeOverride;
pub use self::{
    act::Act,
    capacity::Capacity,
    limit::Limit,
    operation::{Operation, Operator},
    tenants::TenantStanding,
};
use self::{capacity::Rooms, memory::Memory};
use crate::{
    decide::{
        counts::CountsRead,
        observers::DecisionObservers,
        shared::{SharedStore, StoreLimit},
    },
    observe::{
        history::{Counters, History},
        latency::BUCKETS,
    },
    rules::{Keeping, LimitSpec, Rules, RulesError},
};

/// The maximum number of keys of a shared limit in memory while the store does not reply.
const LOCAL_KEYS: usize = 1 << 16;

/// All limits by name. Replaced as a whole when the rules change.
pub struct Limits {
    /// In the order of the file.
    in_order: Vec<Arc<Limit>>,
    /// The hash is fast but not safe against chosen collisions, because the operator chooses the
    /// names.
    by_name: RapidHashMap<Box<[u8]>, usize>,
    /// The bounds for limits without their own, from the server's options.
    capacity: Capacity,
    /// The bound on the memory of all states, if any.
    max_memory: Option<u64>,
    /// The initial number of keys of `CL.THROTTLE`.
    throttle_keys: usize,
    /// The store, if the limits are shared.
    shared: Option<Arc<SharedStore>>,
    /// The trace and the clock, also for the limits of later rules.
    observers: DecisionObservers,
}

/// Everything but the rules that limits are built from.
struct Plan<'a> {
    capacity: Capacity,
    /// For limits whose states will be restored.
    hash_keys: &'a dyn Fn(&str) -> Option<HashKeys>,
    keeping: Keeping,
    shared: Option<Arc<SharedStore>>,
    observers: DecisionObservers,
    /// The limits whose states are kept.
    before: Option<&'a Limits>,
}

impl Plan<'_> {
    fn new(capacity: impl Into<Capacity>, keeping: Keeping) -> Self {
        Self {
            capacity: capacity.into(),
            hash_keys: &|_| None,
            keeping,
            shared: None,
            observers: DecisionObservers::default(),
            before: None,
        }
    }
}

impl Limits {
    /// Fresh limits. Those without their own bound hold as many keys as `capacity` says. Limits
    /// whose states will be restored need the hash keys that `hash_keys` returns for their name.
    ///
    /// # Errors
    /// When the memory for a limit's states cannot be reserved, or exceeds what `capacity` or the
    /// rules allow in total.
    pub fn new(
        rules: Rules,
        capacity: impl Into<Capacity>,
        hash_keys: impl Fn(&str) -> Option<HashKeys>,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        let plan = Plan {
            hash_keys: &hash_keys,
            ..Plan::new(capacity, Keeping::Memory)
        };
        Self::build(rules, &plan, now)
    }

    /// Limits as in a server with a store, but without the store, to see how much memory they need.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn for_a_store(
        rules: Rules,
        capacity: impl Into<Capacity>,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        Self::build(rules, &Plan::new(capacity, Keeping::Store), now)
    }

    /// Limits in a store. While it does not reply, they hold up to their bound of keys in memory,
    /// or as many as `capacity` says.
    ///
    /// # Errors
    /// When the store cannot implement a limit, or there is not enough memory.
    pub fn shared_over(
        store: Arc<SharedStore>,
        rules: Rules,
        capacity: impl Into<Capacity>,
        now: Nanos,
    ) -> Result<Self, RulesError> {
        let plan = Plan {
            shared: Some(store),
            ..Plan::new(capacity, Keeping::Store)
        };
        Self::build(rules, &plan, now)
    }

    /// The same limits, and those of later rules, with another trace and clock.
    pub fn observed_by(mut self, observers: DecisionObservers) -> Self {
        // Nobody else has them yet; who had them would go on with the observers of before.
        for limit in self.in_order.iter_mut().filter_map(Arc::get_mut) {
            limit.observe_with(&observers);
        }
        Self { observers, ..self }
    }

    /// The store that holds the limits, if they are shared.
    pub fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.shared.as_ref()
    }

    /// The bound on the bytes of all states, if any.
    pub fn max_memory(&self) -> Option<u64> {
        self.max_memory
    }

    /// The initial number of keys of `CL.THROTTLE` next to these limits.
    pub fn throttle_keys(&self) -> usize {
        self.throttle_keys
    }

    /// Creates the limits of changed rules. Unchanged limits keep their states, and a limit with a
    /// changed quota keeps its use. Both share one limiter, so a change of numbers applies even
    /// before the new limits are in force. A limit that becomes global, or is no longer, or that
    /// tenants begin or cease to share, starts fresh.
    ///
    /// # Errors
    /// When the memory for a limit's states cannot be reserved. These limits are then unchanged.
    pub fn follow(&self, rules: Rules, now: Nanos) -> Result<Self, RulesError> {
        Self::build(
            rules,
            &Plan {
                before: Some(self),
                ..self.plan()
            },
            now,
        )
    }

    /// The rules that these limits were built from.
    fn plan(&self) -> Plan<'_> {
        let keeping = if self.shared.is_some() {
            Keeping::Store
        } else {
            Keeping::Memory
        };
        let (shared, observers) = (self.shared.clone(), self.observers.clone());
        Plan {
            shared,
            observers,
            ..Plan::new(self.capacity, keeping)
        }
    }

    fn build(rules: Rules, plan: &Plan<'_>, now: Nanos) -> Result<Self, RulesError> {
        let max_memory = plan
            .capacity
            .max_memory
            .or(rules.max_memory)
            .or(plan.capacity.container);
        let before = |spec: &LimitSpec| plan.before.and_then(|before| before.predecessor(spec));
        let rooms = Rooms::new(
            &rules.limits,
            plan.capacity.max_keys,
            max_memory,
            plan.keeping,
            plan.before,
        )?;
        // First do everything that can fail for lack of memory, without touching the limits in use.
        let mut limits = Vec::with_capacity(rules.limits.len());
        for spec in rules.limits {
            let old = before(&spec);
            let begins_with = rooms.begins_with(&spec);
            let keeping = if spec.sharing.unshared {
                Keeping::Memory
            } else {
                plan.keeping
            };
            let memory = if let Some(old) = old {
                Arc::clone(&old.memory)
            } else {
                let hash = (plan.hash_keys)(&spec.name);
                Arc::new(Memory::new(
                    &spec,
                    begins_with,
                    plan.capacity.top_keys,
                    hash,
                    keeping,
                )?)
            };
            let store = match (plan.shared.as_ref().filter(|_| !spec.sharing.unshared), old) {
                (Some(_), Some(old)) if old.spec == spec && old.store.is_some() => {
                    old.store.clone()
                }
                (Some(store), _) => Some(Arc::new(StoreLimit::new(
                    &spec,
                    store,
                    begins_with.min(LOCAL_KEYS),
                )?)),
                (None, _) => None,
            };
            let mut limit = Limit {
                max_keys: rooms.bound(&spec),
                spec,
                memory,
                store,
                tap: None,
                observers: DecisionObservers::default(),
                own: None,
            };
            limit.observe_with(&plan.observers);
            limits.push(Arc::new(limit));
        }
        // Those last whose states do not survive that their change is undone.
        let loses = |limit: &&Arc<Limit>| {
            let limits_rate = |spec: &LimitSpec| spec.policy.algorithm.limits_rate();
            let old = before(&limit.spec);
            old.is_some_and(|old| limits_rate(&old.spec) != limits_rate(&limit.spec))
        };
        let (last, first): (Vec<_>, Vec<_>) = limits.iter().partition(loses);
        let in_turn: Vec<_> = first.into_iter().chain(last).collect();
        for (at, limit) in in_turn.iter().enumerate() {
            if let Err(source) = limit.follow(before(&limit.spec), now) {
                for done in &in_turn[..=at] {
                    done.undo(before(&done.spec), now);
                }
                return Err(RulesError::Store {
                    limit: limit.spec.name.clone(),
                    source,
                });
            }
        }
        for limit in &limits {
            limit.memory.heavy.share_among(limits.len());
        }
        let names = limits.iter().enumerate();
        let by_name = names
            .map(|(at, limit)| (limit.spec.name.as_bytes().into(), at))
            .collect();
        Ok(Self {
            in_order: limits,
            by_name,
            capacity: plan.capacity,
            max_memory,
            throttle_keys: rooms.throttle_keys(),
            shared: plan.shared.clone(),
            observers: plan.observers.clone(),
        })
    }

    /// A limit that does not belong to these, kept in the same place.
    ///
    /// # Errors
    /// The same as [`follow`](Self::follow).
    pub fn beside(&self, spec: LimitSpec, now: Nanos) -> Result<Arc<Limit>, RulesError> {
        let rules = Rules {
            limits: vec![spec],
            ..Rules::default()
        };
        let plan = Plan {
            capacity: Capacity::from(self.capacity.max_keys),
            ..self.plan()
        };
        let built = Self::build(rules, &plan, now)?;
        Ok(Arc::clone(&built.in_order[0]))
    }

    /// The limit with this name.
    #[inline]
    pub fn limit(&self, name: &[u8]) -> Option<&Arc<Limit>> {
        self.by_name.get(name).map(|at| &self.in_order[*at])
    }

    /// The limit of the same name and kind, whose states a new limit takes over.
    fn predecessor(&self, spec: &LimitSpec) -> Option<&Limit> {
        let kind = |spec: &LimitSpec| {
            // Shares of permits and shares of a rate have nothing in common.
            let shares = spec
                .shares
                .as_ref()
                .map(|_| spec.policy.algorithm.name() == "concurrency");
            (spec.global, shares, spec.sharing.unshared)
        };
        self.limit(spec.name.as_bytes())
            .map(Arc::as_ref)
            .filter(|old| kind(&old.spec) == kind(spec))
    }

    /// All limits, in the order of the file.
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.in_order
    }

    /// Adds the second that ends now to the history of each limit, with the answers counted by
    /// latency.
    pub fn record_second(&self, history: &History, answers: [u64; BUCKETS], now: Nanos) {
        let counters = self.in_order.iter().map(|limit| {
            let CountsRead {
                allowed,
                delayed,
                denied,
                shadow_denied,
                errors,
                denied_by,
            } = limit.counts();
            let by = |reason| denied_by.get(reason as usize).copied().unwrap_or(0);
            Counters {
                limit: &limit.spec.name,
                outcomes: [
                    allowed,
                    delayed,
                    denied,
                    shadow_denied,
                    errors,
                    by(DenialReason::Blocked) + by(DenialReason::DenyListed),
                    by(DenialReason::TableFull),
                    by(DenialReason::StoreDown),
                ],
                latency: limit.memory.latency.counts(),
            }
        });
        history.take(&counters.collect::<Vec<_>>(), answers, now);
    }

    /// The limits' names.
    pub fn names(&self) -> Vec<String> {
        self.in_order
            .iter()
            .map(|limit| limit.spec.name.clone())
            .collect()
    }
}
