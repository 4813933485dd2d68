//! The limits at work: what the rules say, and the states that outlive a change of the rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use rapidhash::RapidHashMap;
use tidegate_core::{Algorithm, Decision, Nanos, Policy, PolicyError};
use tidegate_limiter::{BuildError, Entry, HashKeys, KeyedLimiter};

use crate::{
    counts::{Counts, CountsRead},
    rules::{Keeping, LimitSpec, PolicySpec, Rules, RulesError},
    shared::{SharedStore, Shares},
};

/// How many keys of a shared limit are remembered at most while the store does not answer.
const LOCAL_KEYS: usize = 1 << 16;

/// All limits by their names. Replaced as a whole when the rules change.
pub struct LiveRules {
    /// In the order of the file.
    limits: Vec<Arc<Limit>>,
    /// Hashed quickly, not against collisions: whoever writes the rules chooses the names.
    by_name: RapidHashMap<Box<[u8]>, usize>,
    default_max_keys: usize,
    /// Where the limits are shared, if they are.
    shared: Option<Arc<SharedStore>>,
}

/// One limit at work.
pub struct Limit {
    spec: LimitSpec,
    kept: Arc<Kept>,
    shares: Option<Arc<Shares>>,
}

/// What a change of the rules leaves alone.
struct Kept {
    /// Where the states are in a store, it only knows who is blocked.
    limiter: KeyedLimiter<()>,
    counts: Counts,
    keeping: Keeping,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Limit {
    /// What the rules say.
    #[must_use]
    pub fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// The keys and their states. A global limit has one key, the empty one.
    #[must_use]
    pub fn limiter(&self) -> &KeyedLimiter<()> {
        &self.kept.limiter
    }

    /// The limit's part in the store that servers share, if it has one.
    #[must_use]
    pub fn shares(&self) -> Option<&Shares> {
        self.shares.as_deref()
    }

    /// The denial of a key that is on the deny list, or blocked.
    #[must_use]
    pub fn blocked(&self, key: &[u8], now: Nanos) -> Option<Decision> {
        // A cost of 0 is always admitted otherwise.
        Some(self.look(key, 0, now)).filter(Decision::is_denied)
    }

    /// What the key is held to: its override, or the limit's own policy.
    #[must_use]
    pub fn policy_of(&self, key: &[u8]) -> &PolicySpec {
        let own = if self.spec.overrides.is_empty() { None } else { str::from_utf8(key).ok() };
        own.and_then(|key| self.spec.overrides.get(key)).unwrap_or(&self.spec.policy)
    }

    /// Whether the rules deny this key for good.
    #[must_use]
    pub fn is_denied(&self, key: &[u8]) -> bool {
        !self.spec.deny.is_empty() && str::from_utf8(key).is_ok_and(|key| self.spec.deny.contains(key))
    }

    /// Takes `cost` if that is admitted, and counts the decision; a cost of 0 is a look, and not counted.
    #[inline]
    pub fn acquire(&self, key: &[u8], cost: u32, now: Nanos) -> Decision {
        let decision = self.kept.limiter.acquire_at(key, cost, now);
        if cost > 0 {
            self.count(&decision);
        }
        decision
    }

    /// What the answer to `cost` would be, with what would remain after it.
    #[must_use = "nothing is taken"]
    pub fn look(&self, key: &[u8], cost: u32, now: Nanos) -> Decision {
        self.kept.limiter.peek_at(key, cost, now)
    }

    /// Whether `cost` would be admitted, with what remains now, before it.
    #[must_use = "nothing is taken"]
    pub fn peek(&self, key: &[u8], cost: u32, now: Nanos) -> Decision {
        let standing = self.look(key, 0, now);
        let asked = if cost == 0 { standing } else { self.look(key, cost, now) };
        if asked.is_denied() {
            return asked;
        }
        let (limit, delay) = (asked.limit() as u32, asked.delay().as_nanos() as u64);
        Decision::delayed(limit, delay, standing.remaining(), 1, standing.reset_after_nanos())
    }

    /// Gives back up to `cost` of what the key took.
    pub fn refund(&self, key: &[u8], cost: u32, now: Nanos) {
        self.kept.limiter.refund_at(key, cost, now);
    }

    /// Counts a decision that was taken elsewhere, over several limits.
    #[inline]
    pub fn count(&self, decision: &Decision) {
        if self.spec.shadow {
            self.kept.counts.add_shadow(decision);
        } else {
            self.kept.counts.add(decision);
        }
    }

    /// Takes the place of another limit, in the limiter that both share or in one of its own.
    fn follow(&self, old: Option<&Self>, now: Nanos) -> Result<(), BuildError> {
        match old {
            Some(old) if self.shares_with(old) => self.kept.change(Some(&old.spec), &self.spec, now),
            Some(old) => {
                self.kept.change(None, &self.spec, now)?;
                self.kept.take_over(old, now);
                Ok(())
            }
            None => self.kept.change(None, &self.spec, now),
        }
    }

    /// Makes a limiter that is shared with an old limit that one's again, as far as it goes.
    fn undo(&self, old: Option<&Self>, now: Nanos) {
        if let Some(old) = old.filter(|old| self.shares_with(old))
            && let Err(error) = self.kept.change(Some(&self.spec), &old.spec, now)
        {
            tracing::error!(limit = old.spec.name, %error, "a change of rules could not be undone");
        }
    }

    fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }

    /// How often it admitted and denied.
    #[must_use]
    pub fn counts(&self) -> CountsRead {
        self.kept.counts.read()
    }

    /// Shows every state that is not as good as fresh, except what the rules themselves say (the deny list).
    pub fn snapshot(&self, now: Nanos, mut show: impl FnMut(Entry)) {
        let hash = self.limiter().hash_keys();
        let denied: HashSet<u64> = self.spec.deny.iter().map(|key| hash.tag(key.as_bytes()).get()).collect();
        self.limiter().snapshot_at(now, |entry| match entry {
            Entry::Blocked { tag, .. } if denied.contains(&tag) => {}
            entry => show(entry),
        });
    }

    /// The policies of overridden keys, by the keys' tags.
    #[must_use]
    pub fn own_policies(&self) -> HashMap<u64, Policy> {
        let hash = self.limiter().hash_keys();
        let overrides = self.spec.overrides.iter();
        overrides
            .filter_map(|(key, spec)| Some((hash.tag(key.as_bytes()).get(), spec.policy().ok()?)))
            .collect()
    }
}

impl LiveRules {
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
            let kept = if let Some(old) = old.filter(|old| bound(&old.spec) == bound(&spec)) {
                Arc::clone(&old.kept)
            } else {
                let hash = old.map_or_else(|| hash_keys(&spec.name), |old| Some(old.limiter().hash_keys()));
                Arc::new(Kept::new(&spec, bound(&spec), hash, keeping)?)
            };
            let shares = match (&shared, old) {
                (Some(_), Some(old)) if old.spec == spec && old.shares.is_some() => old.shares.clone(),
                (Some(store), _) => {
                    let keys = bound(&spec).min(LOCAL_KEYS);
                    Some(Arc::new(Shares::new(&spec, store, keys)?))
                }
                (None, _) => None,
            };
            limits.push(Arc::new(Limit { spec, kept, shares }));
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
        Ok(Self { limits, by_name, default_max_keys, shared })
    }

    /// The limit of this name.
    #[must_use]
    #[inline]
    pub fn limit(&self, name: &[u8]) -> Option<&Arc<Limit>> {
        self.by_name.get(name).map(|at| &self.limits[*at])
    }

    /// The limit of the same name and kind, whose states a limit of new rules takes over.
    fn predecessor(&self, spec: &LimitSpec) -> Option<&Limit> {
        self.limit(spec.name.as_bytes()).map(Arc::as_ref).filter(|old| old.spec.global == spec.global)
    }

    /// All limits, in the order of the file.
    #[must_use]
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.limits.iter().map(|limit| limit.spec.name.clone()).collect()
    }
}

/// By what the server's own memory goes. Where the states are in a store, that is one with the limit's number (denials tell
/// it) and the smallest state: a log of thousands of entries for each of a million keys must not be reserved for nothing.
fn policy(spec: &PolicySpec, keeping: Keeping) -> Result<Policy, PolicyError> {
    let policy = spec.policy()?;
    match keeping {
        Keeping::Memory => Ok(policy),
        Keeping::Store => Ok(Policy::concurrency(policy.limit())),
    }
}

impl Kept {
    /// Fresh states for a limit. Its overrides and its deny list come with [`change`](Self::change).
    fn new(
        spec: &LimitSpec,
        max_keys: usize,
        hash: Option<HashKeys>,
        keeping: Keeping,
    ) -> Result<Self, RulesError> {
        let refuse = |source| RulesError::Store { limit: spec.name.clone(), source };
        let policy = policy(&spec.policy, keeping).map_err(|e| RulesError::of_policy(&spec.name, &e))?;
        let mut builder = KeyedLimiter::builder(policy).max_keys(max_keys).clock(());
        if let Some(hash) = hash {
            builder = builder.hash_keys(hash);
        }
        Ok(Self { limiter: builder.build().map_err(refuse)?, counts: Counts::default(), keeping })
    }

    /// Makes the limiter do what `to` says, where it did what `from` says (`None` for fresh states of `to`'s policy).
    fn change(&self, from: Option<&LimitSpec>, to: &LimitSpec, now: Nanos) -> Result<(), BuildError> {
        let limiter = &self.limiter;
        // The specification was checked when it was read.
        let policy = |spec: &PolicySpec| policy(spec, self.keeping).ok();
        if let Some(policy) = policy(&to.policy).filter(|policy| *policy != limiter.policy()) {
            limiter.set_policy_at(policy, now)?;
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

    /// Takes over the states of a limiter with another bound; its counts go on.
    fn take_over(&self, old: &Limit, now: Nanos) {
        self.counts.add_all(&old.counts());
        let general = old.limiter().policy();
        let own = old.own_policies();
        old.snapshot(now, |entry| {
            let from = match &entry {
                Entry::Own { tag, .. } => own.get(tag).unwrap_or(&general),
                _ => &general,
            };
            self.limiter.restore_at(from, &entry, now);
        });
    }
}
