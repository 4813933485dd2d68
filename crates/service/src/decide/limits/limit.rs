//! One limit in use: the only place that makes and counts a single decision, wherever the states
//! are.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use tidegate_core::{Decision, DenialReason, Estimate, Nanos, Policy, PolicyError, Priority};
use tidegate_limiter::{FairBuildError, KeyedLimiter, Request, SnapshotEntry};
use tidegate_redis::{SharedDecision, Source};

use super::{
    Act,
    memory::{Memory, SavedRules},
};
use crate::{
    decide::{
        counts::CountsRead, observers::DecisionObservers, refusal::Refusal, shared::StoreLimit,
    },
    observe::{heavy::Top, trace::Tap},
    rules::{LimitSpec, PolicySpec, sharing::mode_name},
};

/// One limit in use. Its states are in this server's memory or in a shared store.
#[derive(Clone)]
pub struct Limit {
    pub(super) spec: LimitSpec,
    /// The maximum number of keys; `None` if it follows the use.
    pub(super) max_keys: Option<usize>,
    /// The part that survives a change of the rules.
    pub memory: Arc<Memory>,
    /// `None` if the states are in `memory`. Otherwise `memory` only records blocked keys.
    pub(super) store: Option<Arc<StoreLimit>>,
    /// Keeps what chosen keys ask.
    pub(super) tap: Option<Tap>,
    pub(super) observers: DecisionObservers,
    /// Decides instead of the policy of the states in `memory`, for numbers that come with a
    /// request.
    pub(super) own: Option<Policy>,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl Limit {
    /// The limit's definition in the rules.
    pub fn spec(&self) -> &LimitSpec {
        &self.spec
    }

    /// The keys and their states. A global limit, and one that tenants share, has one key, the empty
    /// one. If the states are in a store, this limiter only records blocked keys.
    pub fn limiter(&self) -> &KeyedLimiter<()> {
        &self.memory.limiter
    }

    /// The limit in the shared store, if its states are there.
    pub fn store(&self) -> Option<&StoreLimit> {
        self.store.as_deref()
    }

    /// Whether the limit has a meaning for this act.
    ///
    /// # Errors
    /// [`Refusal::Held`] for a charge of permits.
    pub fn accepts(&self, act: Act) -> Result<(), Refusal> {
        if act == Act::Charge && !self.spec.policy.algorithm.limits_rate() {
            return Err(Refusal::Held {
                limit: self.spec.name.clone(),
            });
        }
        Ok(())
    }

    /// Decides in memory and counts the decision. `None` if only the store can decide: then call
    /// [`decide`](Self::decide).
    ///
    /// Memory decides for all limits that this server keeps, and for blocked keys of shared limits.
    /// It never waits and does not allocate.
    #[inline]
    #[must_use = "`None` means that nothing was decided"]
    pub fn decide_in_memory(
        &self,
        act: Act,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Option<Decision> {
        let act = self.counted(act);
        if self.store.is_some() {
            return self.decide_blocked(act, key, cost, now);
        }
        let limiter = &self.memory.limiter;
        let decision = match act {
            Act::Take => self.take_in_memory(key, cost, now),
            Act::TakeAnyway | Act::Charge => match (&self.own, self.of_tenant(key)) {
                (_, Some(of)) => {
                    let standing = of.charge(cost, now);
                    self.block_of(key, now).unwrap_or(standing)
                }
                (None, None) => limiter.at(now).charge(key, cost),
                (Some(own), None) => limiter.at(now).charge_with(own, key, cost),
            },
            Act::Peek => self.standing(key, cost, now),
            Act::Refund => {
                match self.of_tenant(key) {
                    Some(of) => of.refund(cost, now),
                    None => limiter.at(now).refund(key, cost),
                }
                self.see_refund(key, cost, now);
                self.standing(key, 0, now)
            }
        };
        let decision = self.explained(key, decision);
        self.count(act, key, cost, &decision, now);
        Some(decision)
    }

    /// A soft limit counts every request.
    #[inline]
    fn counted(&self, act: Act) -> Act {
        if self.spec.soft && act == Act::Take {
            Act::TakeAnyway
        } else {
            act
        }
    }

    /// The same decision; the reason of a denial by the deny list says so.
    #[inline]
    pub fn explained(&self, key: &[u8], decision: Decision) -> Decision {
        if decision.reason() == Some(DenialReason::Blocked) && self.is_denied(key) {
            decision.because(DenialReason::DenyListed)
        } else {
            decision
        }
    }

    /// Takes in memory without counting the decision.
    #[inline]
    pub fn take_in_memory(&self, key: &[u8], cost: u64, now: Nanos) -> Decision {
        if let Some(of) = self.of_tenant(key) {
            let blocked = self.block_of(key, now);
            return blocked.unwrap_or_else(|| of.take(cost, now));
        }
        match &self.own {
            None => self.memory.limiter.at(now).acquire(key, cost),
            Some(own) => self.memory.limiter.at(now).acquire_with(own, key, cost),
        }
    }

    /// [`decide_in_memory`](Self::decide_in_memory) of a limit that this server keeps, for units
    /// that may return. The second value is what was taken, if anything was.
    pub fn decide_noted_in_memory(
        &self,
        act: Act,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> (Decision, Option<Estimate>) {
        if self.counted(act) != Act::Take || self.own.is_some() || self.store.is_some() {
            let place = self.place(key);
            let taken = Estimate {
                cost,
                taken: now,
                place,
            };
            let decision = self.decide_in_memory(act, key, cost, now);
            return (
                decision.unwrap_or_else(|| self.standing(key, cost, now)),
                Some(taken),
            );
        }
        let (decision, taken) = if let Some(of) = self.of_tenant(key) {
            match self.block_of(key, now) {
                Some(blocked) => (blocked, None),
                None => of.take_noted(cost, now),
            }
        } else {
            let (decision, taken) = self.memory.limiter.at(now).acquire_estimate(key, cost);
            (decision, Some(taken))
        };
        let decision = self.explained(key, decision);
        self.count(act, key, cost, &decision, now);
        (decision, taken)
    }

    /// This limit's part in a joint decision in memory; without the tenants that may share it.
    pub fn request<'a>(&'a self, key: &'a [u8], cost: u64) -> Request<'a, ()> {
        let key = self.state_key(key);
        Request::keyed(&self.memory.limiter, key, cost).with_policy(self.own.as_ref())
    }

    /// This limit with the numbers of another policy of the same algorithm and window. The states
    /// are shared.
    pub fn with_numbers(&self, policy: PolicySpec) -> Result<Self, PolicyError> {
        let ahead = self.memory.limiter.policy().wall_ahead();
        let own = Some(policy.policy()?.with_wall_ahead(ahead));
        let spec = LimitSpec {
            policy,
            ..self.spec.clone()
        };
        Ok(Self {
            spec,
            store: None,
            own,
            ..self.clone()
        })
    }

    /// Takes `cost` from a limit in the store if this server can decide without asking the store:
    /// from an allotment that it holds, or by a remembered denial. `None` means that nothing was
    /// decided or counted.
    #[inline]
    pub fn take_here(&self, key: &[u8], cost: u64, now: Nanos) -> Option<Decision> {
        if self.spec.soft {
            return None;
        }
        let decision = self.by_store(&self.store.as_ref()?.take_here(key, cost)?);
        self.count(Act::Take, key, cost, &decision, now);
        Some(decision)
    }

    /// Decides wherever the states are: immediately in memory, or in the store.
    ///
    /// # Errors
    /// When a refund is refused: see [`Refusal`].
    pub async fn decide(
        &self,
        act: Act,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Result<Decision, Refusal> {
        self.decide_after(Duration::ZERO, act, key, cost, now).await
    }

    /// [`decide`](Self::decide), with `spent` of the store's deadline already used.
    pub async fn decide_after(
        &self,
        spent: Duration,
        act: Act,
        key: &[u8],
        cost: u64,
        now: Nanos,
    ) -> Result<Decision, Refusal> {
        let act = self.counted(act);
        match (self.decide_in_memory(act, key, cost, now), &self.store) {
            (Some(decision), _) => Ok(decision),
            (None, Some(store)) => self.decide_in(store, spent, act, key, cost, now).await,
            (None, None) => unreachable!("without a store, memory always decides"),
        }
    }

    /// Asks the store. Boxed, so that callers whose limits are in memory do not carry the state of a
    /// question to the store. The future has no type of its own: else each crate that calls it would
    /// compile the way to the store again.
    fn decide_in<'a>(
        &'a self,
        store: &'a StoreLimit,
        spent: Duration,
        act: Act,
        key: &'a [u8],
        cost: u64,
        now: Nanos,
    ) -> BoxFuture<'a, Result<Decision, Refusal>> {
        Box::pin(async move {
            let decision = match act {
                Act::Take => self.by_store(&store.take(key, cost, spent).await),
                Act::TakeAnyway => {
                    // A cost that fits is taken as usual, with others in one call or from an allotment.
                    let mut shared = store.take(key, cost, spent).await;
                    if cost > 0
                        && shared.decision.is_denied()
                        && !matches!(shared.source, Source::Failed(_))
                    {
                        shared = Box::pin(store.charge(key, cost)).await;
                    }
                    let standing = self.by_store(&shared);
                    self.block_of(key, now).unwrap_or(standing)
                }
                Act::Charge => {
                    let shared = Box::pin(store.charge(key, cost)).await;
                    if let Source::Failed(why) = &shared.source {
                        return Err(Refusal::NotCharged {
                            limit: self.spec.name.clone(),
                            why: why.clone(),
                        });
                    }
                    let standing = self.by_store(&shared);
                    self.block_of(key, now).unwrap_or(standing)
                }
                // Boxed again: a question that takes is the common one, and its future is moved
                // several times.
                Act::Peek => Box::pin(store.peek(key, cost, spent)).await,
                Act::Refund => {
                    let standing = Box::pin(store.refund(key, cost)).await?;
                    self.see_refund(key, cost, now);
                    self.block_of(key, now).unwrap_or(standing)
                }
            };
            self.count(act, key, cost, &decision, now);
            Ok(decision)
        })
    }

    /// Charges what the store denied although this soft limit counts it, and counts the request.
    pub fn charge_denied<'a>(
        &'a self,
        key: &'a [u8],
        cost: u64,
        now: Nanos,
    ) -> BoxFuture<'a, Decision> {
        Box::pin(async move {
            let Some(store) = self.store.as_ref().filter(|_| cost > 0) else {
                return self.standing(key, cost, now);
            };
            let standing = self.by_store(&store.charge(key, cost).await);
            let decision = self.block_of(key, now).unwrap_or(standing);
            self.count(Act::TakeAnyway, key, cost, &decision, now);
            decision
        })
    }

    /// Takes each of these costs if it is admitted, with `spent` of the store's deadline already
    /// used; neighbours with the same key in this order.
    pub async fn take_many(
        &self,
        spent: Duration,
        requests: &[(&[u8], u64)],
        now: Nanos,
    ) -> Vec<Decision> {
        if self.spec.soft {
            let asked = requests
                .iter()
                .map(|(key, cost)| self.decide_after(spent, Act::Take, key, *cost, now));
            // Only a refund is refused.
            return join_all(asked).await.into_iter().flatten().collect();
        }
        let Some(store) = &self.store else {
            let take =
                |&(key, cost): &(&[u8], u64)| self.decide_in_memory(Act::Take, key, cost, now);
            return requests.iter().filter_map(take).collect();
        };
        self.take_many_in(store, spent, requests, now).await
    }

    fn take_many_in<'a>(
        &'a self,
        store: &'a StoreLimit,
        spent: Duration,
        requests: &'a [(&'a [u8], u64)],
        now: Nanos,
    ) -> BoxFuture<'a, Vec<Decision>> {
        Box::pin(async move {
            let all = store.take_many(requests, spent).await;
            let decisions: Vec<_> = all.iter().map(|shared| self.by_store(shared)).collect();
            for (decision, (key, cost)) in decisions.iter().zip(requests) {
                self.count(Act::Take, key, *cost, decision, now);
            }
            decisions
        })
    }

    /// A decision by the store, or by its replacement while it does not reply, which is counted as
    /// an error.
    pub fn by_store(&self, shared: &SharedDecision) -> Decision {
        if matches!(shared.source, Source::Failed(_) | Source::Local(_)) {
            self.memory.counts.add_error();
        }
        shared.decision
    }

    /// How servers share it: `local` if they do not.
    pub fn sharing(&self) -> &'static str {
        match (&self.store, self.spec.sharing.mode.unwrap_or_default()) {
            (None, _) => "local",
            (Some(_), mode) => mode_name(mode),
        }
    }

    /// The decision for a blocked key of a shared limit, without the store. Only the store can make
    /// a refund or a charge.
    #[inline(never)]
    fn decide_blocked(&self, act: Act, key: &[u8], cost: u64, now: Nanos) -> Option<Decision> {
        let changes = !matches!(act, Act::Take | Act::Peek);
        let blocked = if changes {
            None
        } else {
            self.block_of(key, now)
        }?;
        self.count(act, key, cost, &blocked, now);
        Some(blocked)
    }

    /// The denial of a key that is on the deny list or blocked.
    pub fn block_of(&self, key: &[u8], now: Nanos) -> Option<Decision> {
        let limiter = &self.memory.limiter;
        let of_tenant = || {
            let has_tenants = self.spec.shares.is_some();
            has_tenants.then(|| limiter.at(now).blocked(self.who(key)))?
        };
        let here = limiter
            .at(now)
            .blocked(key)
            .or_else(of_tenant)
            .map(|denied| self.explained(key, denied));
        here.or_else(|| self.store.as_ref()?.block_of(key))
    }

    /// Keeps the name of a key that the rule's `block_for` blocks.
    #[cold]
    pub(super) fn note_rule_block(&self, key: &[u8], denied: &Decision, now: Nanos) {
        let until = match &self.store {
            None => self.rule_block(key, now),
            Some(store) if !store.blocks || self.block_of(key, now).is_some() => None,
            Some(_) => denied
                .retry_after()
                .map(|left| now.saturating_add(left.into())),
        };
        if let Some(until) = until {
            self.memory.rule_blocks.note(key, until, now);
        }
    }

    /// Until when the rule's `block_for` blocks a key, if it does. Of a shared limit, this server
    /// knows the blocks that it has seen.
    pub fn rule_block(&self, key: &[u8], now: Nanos) -> Option<Nanos> {
        if let Some(store) = &self.store {
            store.blocks.then_some(())?;
            let until = self.memory.rule_blocks.until(key);
            return until.filter(|until| *until > now);
        }
        self.spec.policy.algorithm.get("block_for")?;
        let denied = self.memory.limiter.at(now).blocked_by_rule(key)?;
        denied
            .retry_after()
            .map(|left| now.saturating_add(left.into()))
    }

    /// The keys that the rule's `block_for` blocks.
    pub fn rule_blocks(&self, now: Nanos) -> Vec<String> {
        let keys = self.memory.rule_blocks.keys().into_iter();
        keys.filter(|key| self.rule_block(key, now).is_some())
            .map(|key| String::from_utf8_lossy(&key).into_owned())
            .collect()
    }

    /// When the block of a key by the rule was first seen.
    pub fn rule_block_since(&self, key: &[u8]) -> Option<Nanos> {
        self.memory.rule_blocks.since(key)
    }

    /// Whether `cost` would be admitted, with what remains before it.
    pub(super) fn standing(&self, key: &[u8], cost: u64, now: Nanos) -> Decision {
        let limiter = &self.memory.limiter;
        if let Some(of) = self.of_tenant(key) {
            if let Some(blocked) = self.block_of(key, now) {
                return blocked;
            }
            let standing = of.peek(0, now);
            let asked = if cost == 0 {
                standing
            } else {
                of.peek(cost, now)
            };
            return if asked.is_denied() {
                asked
            } else {
                Decision::allow(standing.standing())
            };
        }
        if self.own.is_some() && cost == 0 {
            return self.take_in_memory(key, 0, now);
        }
        let standing = limiter.at(now).peek(key, 0);
        let asked = if cost == 0 {
            standing
        } else {
            limiter.at(now).peek(key, cost)
        };
        if asked.is_denied() {
            return asked;
        }
        Decision::delayed(standing.standing(), asked.delay().as_nanos() as u64)
    }

    /// Attaches the trace and the latency clock.
    pub(super) fn observe_with(&mut self, observers: &DecisionObservers) {
        let trace = observers.trace.as_ref();
        self.tap = trace.and_then(|trace| trace.tap(&self.spec.name, self.spec.global));
        self.observers.clone_from(observers);
    }

    /// Whether a key with a name was denied in the last minutes.
    pub fn has_denials(&self, now: Nanos) -> bool {
        self.memory.heavy.has_denials(now)
    }

    /// The `most` keys with the most recent requests, and those with the most recent denials.
    /// `None` if no names are kept: the limit is global, or heavy keys are off.
    pub fn top(&self, most: usize, now: Nanos) -> Option<Top> {
        self.memory.heavy.top(most, now)
    }

    /// How many callers wait in line for the key: those of all servers, if the store has the line
    /// and replies.
    pub fn waiting<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, u64> {
        Box::pin(async move {
            if let Some(store) = self.store.as_ref().filter(|_| self.spec.sharing.line)
                && let Ok(everywhere) = store.of(key).waiting(key).await
            {
                return everywhere;
            }
            let tag = self.limiter().hash_keys().tag(key);
            self.memory.waits.of_key(tag).into()
        })
    }

    /// The place in line of a caller that comes now, for each priority; `None` if nobody waits for the
    /// key in this server's memory.
    pub fn places(&self, key: &[u8], now: Nanos) -> Option<[usize; Priority::COUNT]> {
        let ahead = self.limiter().at(now).ahead(key)?;
        Some(ahead.map(|before| before + 1))
    }

    /// The policy of the key: the quota that an operator gave it, its override, or the limit's own.
    pub fn policy_of(&self, key: &[u8]) -> Cow<'_, PolicySpec> {
        let by_operator = match &self.store {
            None => self.memory.overrides.get(key).map(|own| own.policy),
            Some(store) => store
                .orders
                .override_of(key)
                .and_then(|quota| self.spec.policy.with_quota(&quota).ok()),
        };
        if let Some(own) = by_operator {
            return Cow::Owned(own);
        }
        let own = if self.spec.overrides.is_empty() {
            None
        } else {
            str::from_utf8(key).ok()
        };
        Cow::Borrowed(
            own.and_then(|key| self.spec.overrides.get(key))
                .unwrap_or(&self.spec.policy),
        )
    }

    /// Whether the rules deny this key permanently.
    pub fn is_denied(&self, key: &[u8]) -> bool {
        let names = |key| str::from_utf8(key).is_ok_and(|key| self.spec.deny.contains(key));
        !self.spec.deny.is_empty() && (names(key) || names(self.who(key)))
    }

    /// How often the limit admitted and denied.
    pub fn counts(&self) -> CountsRead {
        self.memory.counts.read()
    }

    /// Calls `save` with the rules of the states. Neither a change of the rules nor an operator
    /// changes these until it returns.
    pub fn while_unchanged<R>(&self, save: impl FnOnce(&SavedRules<'_>) -> R) -> R {
        self.memory.while_unchanged(save)
    }

    /// Passes every state that is not fresh to `show`, except those that follow from the rules (the
    /// deny list).
    pub fn snapshot(
        &self,
        rules: &SavedRules<'_>,
        now: Nanos,
        mut show: impl FnMut(SnapshotEntry),
    ) {
        self.limiter().at(now).snapshot(|entry| match entry {
            SnapshotEntry::Blocked { tag, until } => {
                let until = rules.denied.get(&tag).map_or(until, |until| until.get());
                if until > now.get() {
                    show(SnapshotEntry::Blocked { tag, until });
                }
            }
            entry => show(entry),
        });
    }

    /// Merges in an entry of a snapshot that was made under the policy `from`. Returns whether it
    /// was valid and had a place.
    pub fn restore(&self, from: &Policy, entry: &SnapshotEntry, now: Nanos) -> bool {
        match *entry {
            SnapshotEntry::Blocked { tag, until } => self.memory.restore_block(tag, until, now),
            _ => self.limiter().at(now).restore(from, entry),
        }
    }

    /// Applies these rules to the states, which followed those of `old` or are new.
    pub(super) fn follow(&self, old: Option<&Self>, now: Nanos) -> Result<(), FairBuildError> {
        self.memory
            .change(old.map(|old| &old.spec), &self.spec, self.max_keys, now)
    }

    /// Applies the rules of `old` again, as far as possible.
    pub(super) fn undo(&self, old: Option<&Self>, now: Nanos) {
        if let Some(old) = old
            && let Err(error) = self
                .memory
                .change(Some(&self.spec), &old.spec, old.max_keys, now)
        {
            tracing::error!(limit = old.spec.name, %error, "cannot undo a change of rules");
        }
    }
}
