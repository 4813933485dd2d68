//! One decision over several shared limits.

use std::{borrow::Cow, sync::Arc, time::Duration};

use redis::Value;
use tidegate_core::{Clock, Decision, Key, Nanos, lease::Taken};

use super::{SharedDecision, SharedEstimate, SharedLimit, Source};
use crate::{
    Deadline, Plan, Store, StoreError,
    lease::{Held, Leases},
    rules::Former,
    script::{Script, call},
};

/// A part of a joint decision in one store: `cost` for one key of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The limit.
    pub limit: &'a SharedLimit,
    /// The key.
    pub key: &'a [u8],
    /// The cost.
    pub cost: u64,
}

impl Part<'_> {
    /// The key of the state that a decision changes: that of the whole limit, if tenants share it.
    pub(super) fn state_key(&self) -> Vec<u8> {
        self.limit.state_key(&self.key)
    }
}

/// The same for the store: `key` is the whole key in Redis.
#[derive(Clone)]
pub struct JointRequest<'a> {
    pub plan: Cow<'a, Plan>,
    pub key: Vec<u8>,
    pub cost: u64,
}

impl Store {
    /// Decides on several requests in one step: all admit and are charged, or none is. If all of
    /// the limits are leased or reported, and this node holds enough of each, it decides in memory,
    /// otherwise in the store. If the store makes no decision within the shortest of the limits'
    /// deadlines, each limit's [`OnError`](crate::OnError) decides, and if one denies, the others
    /// are refunded.
    ///
    /// # Errors
    /// Only if the requests can never be decided in one step: [`StoreError::CrossSlot`] if the keys
    /// have no common hash tag in a cluster, and [`StoreError::OneKey`] if two limits with the same
    /// name and different numbers are asked about one key.
    pub async fn acquire_all(&self, parts: &[Part<'_>]) -> Result<Vec<SharedDecision>, StoreError> {
        // One limit needs no joint decision, and questions about one limit share a call to the store
        // with others.
        if let [part] = parts {
            return Ok(vec![
                Box::pin(part.limit.acquire(part.key, part.cost)).await,
            ]);
        }
        let requests: Vec<_> = parts
            .iter()
            .map(|part| part.limit.request(part.key, part.cost))
            .collect();
        // Check this first, so that keys which cannot be decided in one step fail every time, not only
        // when the store is asked.
        if !may_be_bound(parts)
            && are_together(self, &requests)
            && let Some(answers) = take_all(self, parts)
        {
            return Ok(answers);
        }
        let Some(deadline) = parts.iter().map(|part| part.limit.deadline()).min() else {
            return Ok(Vec::new());
        };
        let error = match decide_by_all(self, parts, &requests, deadline).await {
            Ok(decided) => {
                let decisions = decided.into_iter().map(|(decision, _)| decision);
                return Ok(decisions.map(SharedDecision::by_store).collect());
            }
            Err(error @ (StoreError::CrossSlot | StoreError::OneKey)) => return Err(error),
            Err(error) => error,
        };
        Ok(all_without_store(parts, |_| true, &error).0)
    }
}

/// The decisions when the store made none, and what was taken. Those parts that do not `veto` deny
/// only themselves.
pub(super) fn all_without_store(
    parts: &[Part<'_>],
    vetoes: impl Fn(usize) -> bool,
    error: &StoreError,
) -> (Vec<SharedDecision>, Vec<SharedEstimate>) {
    let without = |part: &Part<'_>| {
        let limit = part.limit;
        limit.take_without_store(part.key, part.cost, error.clone())
    };
    let (answers, mut taken): (Vec<SharedDecision>, Vec<_>) = parts.iter().map(without).unzip();
    let vetoed = |(at, answer): (usize, &SharedDecision)| answer.is_denied() && vetoes(at);
    if answers.iter().enumerate().any(vetoed) {
        for (part, taken) in parts.iter().zip(&mut taken) {
            if let (Some((estimate, unit)), Some(local)) = (taken.take(), part.limit.local()) {
                local.settle(part.key, estimate, 0, unit);
            }
        }
    }
    let estimate = |(part, taken): (&Part<'_>, _)| SharedEstimate::of_local(part.cost, taken);
    let estimates = parts.iter().zip(taken).map(estimate).collect();
    (answers, estimates)
}

fn may_be_bound(parts: &[Part<'_>]) -> bool {
    parts.iter().any(|part| part.limit.may_be_bound())
}

/// Decides on the requests of these parts, also by the other rules that bind their limits. Also
/// returns the time that the state of each limit's own rule uses.
pub(super) async fn decide_by_all(
    store: &Store,
    parts: &[Part<'_>],
    requests: &[JointRequest<'_>],
    deadline: Deadline,
) -> Result<Vec<(Decision, Nanos)>, StoreError> {
    if may_be_bound(parts) {
        return Box::pin(decide_bound(store, parts, requests, deadline)).await;
    }
    decide_joint_seen(store, requests, true, deadline).await
}

async fn decide_bound(
    store: &Store,
    parts: &[Part<'_>],
    requests: &[JointRequest<'_>],
    deadline: Deadline,
) -> Result<Vec<(Decision, Nanos)>, StoreError> {
    let formers = formers_of(parts, deadline).await?;
    let mut requests = requests.to_vec();
    for (part, formers) in parts.iter().zip(&formers) {
        requests.extend(of_formers(formers, &part.state_key(), part.cost));
    }
    let decided = decide_joint_seen(store, &requests, true, deadline).await?;
    let (decisions, seen): (Vec<_>, Vec<_>) = decided.into_iter().unzip();
    let decisions = by_all(&decisions, &formers).ok_or(StoreError::BadReply)?;
    Ok(decisions.into_iter().zip(seen).collect())
}

/// The rules that bind each part, and can be asked in one step with its own.
pub(super) async fn formers_of(
    parts: &[Part<'_>],
    deadline: Deadline,
) -> Result<Vec<Vec<Former>>, StoreError> {
    let mut formers = Vec::with_capacity(parts.len());
    for part in parts {
        let all = part.limit.formers(&part.key, deadline).await?;
        formers.push(part.limit.by_slot(&part.key, all).0);
    }
    Ok(formers)
}

/// The strictest decision of each part, of those by its own rule and then those by the others.
pub(super) fn by_all(decisions: &[Decision], formers: &[Vec<Former>]) -> Option<Vec<Decision>> {
    let (own, mut others) = decisions.split_at_checked(formers.len())?;
    let mut answers = Vec::with_capacity(formers.len());
    for (own, formers) in own.iter().zip(formers) {
        let (its, rest) = others.split_at_checked(formers.len())?;
        answers.push(strictest(&[&[*own], its].concat()));
        others = rest;
    }
    Some(answers)
}

/// Whether the store can decide these in one step.
fn are_together(store: &Store, requests: &[JointRequest<'_>]) -> bool {
    let slot = |request: &JointRequest<'_>| store.batcher().monitor.slot(&request.key);
    let fit = |one: &JointRequest<'_>, other: &JointRequest<'_>| {
        slot(one) == slot(other)
            && (one.key != other.key
                || one.plan.numbers() == other.plan.numbers()
                    && one.plan.tenant() == other.plan.tenant())
    };
    requests
        .iter()
        .enumerate()
        .all(|(at, one)| requests[..at].iter().all(|other| fit(one, other)))
}

/// Decides from this node's allotments, if all of them suffice.
fn take_all(store: &Store, parts: &[Part<'_>]) -> Option<Vec<SharedDecision>> {
    let batcher = store.batcher();
    let leases: Vec<&Arc<Leases>> = parts
        .iter()
        .map(|part| part.limit.0.leases.as_ref())
        .collect::<Option<_>>()?;
    let now = batcher.monitor.clock.now();
    let mut taken: Vec<(Arc<Held>, Taken)> = Vec::with_capacity(parts.len());
    for (part, leases) in parts.iter().zip(&leases) {
        let send = |held: &_, request| batcher.send_errand(leases, held, request);
        // Limits behind one that has too little are asked as well, so that they measure their
        // demand.
        taken.extend(leases.take(part.key, part.cost, now, send));
    }
    if taken.len() < parts.len() {
        for (held, taken) in taken {
            held.lease.put_back(taken);
        }
        return None;
    }
    for (part, leases) in parts.iter().zip(&leases) {
        leases.count_taken(part.key);
    }
    let answer = |(_, taken): (Arc<Held>, Taken)| SharedDecision {
        decision: taken.decision,
        source: Source::Lease,
    };
    Some(taken.into_iter().map(answer).collect())
}

/// Decides on several requests in one step in the store: all admit and are charged, or none is. If
/// `takes` is false, it only returns what the decisions would be. Two requests for one key of one
/// plan add up.
pub async fn decide_joint(
    store: &Store,
    requests: &[JointRequest<'_>],
    takes: bool,
    deadline: Deadline,
) -> Result<Vec<Decision>, StoreError> {
    let decided = decide_joint_seen(store, requests, takes, deadline).await?;
    Ok(decided.into_iter().map(|(decision, _)| decision).collect())
}

/// The same, with the time that each state uses.
pub async fn decide_joint_seen(
    store: &Store,
    requests: &[JointRequest<'_>],
    takes: bool,
    deadline: Deadline,
) -> Result<Vec<(Decision, Nanos)>, StoreError> {
    let answer = decide(store, requests, takes, deadline).await;
    let monitor = &store.batcher().monitor;
    monitor.decided(&answer);
    if let Err(error) = &answer
        && error.is_about_the_key()
    {
        let limits: Vec<_> = requests
            .iter()
            .map(|request| limit_of(&request.key))
            .collect();
        monitor.counters().tell_of(error, &limits.join(&b' '));
    }
    answer
}

/// The part of a whole key that names the limit.
fn limit_of(key: &[u8]) -> &[u8] {
    let colons = key.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.map(|(at, _)| &key[..=at]).nth(2).unwrap_or_default()
}

/// All requests for one key, added up.
pub(super) struct Sum<'a> {
    pub plan: &'a Plan,
    pub key: &'a [u8],
    pub cost: u64,
    /// The first of the requests.
    pub first: usize,
}

/// For each request its sum, and its cost on top of the requests before it.
type Costs = Vec<(usize, u64)>;

/// The requests of each key added up.
pub(super) fn sums<'a>(
    requests: &'a [JointRequest<'_>],
) -> Result<(Vec<Sum<'a>>, Costs), StoreError> {
    let mut sums: Vec<Sum<'_>> = Vec::new();
    let mut costs = Vec::with_capacity(requests.len());
    for (first, JointRequest { plan, key, cost }) in requests.iter().enumerate() {
        let same = |sum: &Sum<'_>| {
            sum.key == key
                && sum.plan.numbers() == plan.numbers()
                && sum.plan.tenant() == plan.tenant()
        };
        let known = sums.iter().position(same);
        // This is the same state with other numbers, or for another tenant, but the script takes
        // each key only once.
        if known.is_none() && sums.iter().any(|sum| sum.key == key) {
            return Err(StoreError::OneKey);
        }
        let at = known.unwrap_or_else(|| {
            sums.push(Sum {
                plan,
                key,
                cost: 0,
                first,
            });
            sums.len() - 1
        });
        sums[at].cost = sums[at].cost.saturating_add(*cost);
        costs.push((at, sums[at].cost));
    }
    Ok((sums, costs))
}

async fn decide(
    store: &Store,
    requests: &[JointRequest<'_>],
    takes: bool,
    deadline: Deadline,
) -> Result<Vec<(Decision, Nanos)>, StoreError> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let (sums, costs) = sums(requests)?;
    let script = &store.batcher().scripts.joint;
    let (reply, keys) = ask(store, script, &sums, takes, deadline).await?;
    let (now, parts) = call::parse(reply, keys)?;
    let found = call::found(sums.iter().map(|sum| sum.plan), parts)?;
    costs
        .into_iter()
        .map(|(at, cost)| sums[at].plan.decision_on(&found[at], now, (cost, takes)))
        .collect()
}

/// Takes as much of a cost as these requests, which all have it, admit together: how much that is,
/// and their decisions on it. Without anything left they are denials of a cost of 1.
pub(super) async fn decide_up_to(
    store: &Store,
    requests: &[JointRequest<'_>],
    deadline: Deadline,
) -> Result<(u64, Vec<Decision>), StoreError> {
    let (sums, costs) = sums(requests)?;
    let script = &store.batcher().scripts.up_to;
    let (mut reply, keys) = ask(store, script, &sums, true, deadline).await?;
    let granted = call::pop_number(&mut reply)?;
    let (now, parts) = call::parse(reply, keys)?;
    let found = call::found(sums.iter().map(|sum| sum.plan), parts)?;
    let decisions = costs.into_iter().map(|(at, cost)| {
        let taken = granted.max(cost.min(1));
        let decided = sums[at].plan.decision_on(&found[at], now, (taken, true));
        decided.map(|(decision, _)| decision)
    });
    Ok((granted, decisions.collect::<Result<_, _>>()?))
}

/// Takes the cost of the first of these requests that is admitted: its index, and its decision; or
/// the denials of all. Each key is asked for once.
pub(super) async fn decide_any(
    store: &Store,
    requests: &[JointRequest<'_>],
    deadline: Deadline,
) -> Result<(Option<usize>, Vec<Decision>), StoreError> {
    let (sums, _) = sums(requests)?;
    if sums.len() < requests.len() {
        return Err(StoreError::OneKey);
    }
    let script = &store.batcher().scripts.any;
    let (mut reply, keys) = ask(store, script, &sums, true, deadline).await?;
    let chosen = call::pop_number(&mut reply)?;
    let chosen = usize::try_from(chosen).ok().and_then(|n| n.checked_sub(1));
    let asked = match chosen {
        None => &sums[..],
        Some(at) => sums.get(at..=at).ok_or(StoreError::BadReply)?,
    };
    let keys = match chosen {
        Some(at) => 1 + keys_beside(store, [(sums[at].plan, sums[at].key)].into_iter()).len(),
        None => keys,
    };
    let (now, parts) = call::parse(reply, keys)?;
    let found = call::found(asked.iter().map(|sum| sum.plan), parts)?;
    let decisions = asked.iter().zip(&found).map(|(sum, found)| {
        let decided = sum.plan.decision_on(found, now, (sum.cost, true));
        decided.map(|(decision, _)| decision)
    });
    Ok((chosen, decisions.collect::<Result<_, _>>()?))
}

/// Runs the script of a joint decision. Returns its reply, and the number of keys in it.
async fn ask(
    store: &Store,
    script: &Script,
    sums: &[Sum<'_>],
    takes: bool,
    deadline: Deadline,
) -> Result<(Value, usize), StoreError> {
    let monitor = &store.batcher().monitor;
    let slot = monitor.slot(sums[0].key);
    if sums.iter().any(|sum| monitor.slot(sum.key) != slot) {
        return Err(StoreError::CrossSlot);
    }
    let shard = monitor.shard_of(sums[0].key);
    monitor.admit(shard)?;
    let besides = keys_beside(store, sums.iter().map(|sum| (sum.plan, sum.key)));
    let keys = sums.iter().map(|sum| sum.key);
    let keys: Vec<&[u8]> = keys.chain(besides.iter().map(|key| &key[..])).collect();
    let arguments = call::joint_arguments(sums.iter().map(|sum| (sum.plan, sum.cost)), takes);
    let reply = monitor
        .call(shard, script, &keys, &arguments, deadline, true)
        .await?;
    Ok((reply, keys.len()))
}

impl SharedLimit {
    /// How many requests of all nodes wait in line at a key: 0 without a [line](Self::has_line).
    ///
    /// # Errors
    /// When the store does not reply.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn waiting(&self, key: impl Key) -> Result<u64, StoreError> {
        let request = [self.request(key, 0)];
        let (sums, _) = sums(&request)?;
        let (store, plan) = (self.store(), &*request[0].plan);
        let script = &store.batcher().scripts.joint;
        let (reply, keys) = ask(store, script, &sums, false, self.deadline()).await?;
        let (_, parts) = call::parse(reply, keys)?;
        let found = call::found(std::iter::once(plan), parts)?;
        let line = found.first().and_then(|found| found.line);
        Ok(line.map_or(0, |line| line.tickets))
    }
}

/// The keys of these limits' blocks, lines and shares, for those that have them.
pub(super) fn keys_beside<'a>(
    store: &Store,
    limits: impl Iterator<Item = (&'a Plan, &'a [u8])>,
) -> Vec<Vec<u8>> {
    let is_cluster = store.batcher().monitor.is_cluster();
    limits
        .flat_map(|(plan, key)| plan.keys_beside(key, is_cluster))
        .collect()
}

/// The whole key in Redis by another rule.
pub(super) fn key_of(former: &Former, key: &impl Key) -> Vec<u8> {
    key.with_bytes(|key| [&former.prefix[..], key].concat())
}

/// The parts of a decision by other rules.
pub(super) fn of_formers<'a>(
    formers: &'a [Former],
    key: &impl Key,
    cost: u64,
) -> Vec<JointRequest<'a>> {
    let request = |former: &'a Former| JointRequest {
        plan: Cow::Borrowed(&*former.plan),
        key: key_of(former, key),
        cost,
    };
    formers.iter().map(request).collect()
}

/// The first decision, or the denial with the longest wait.
pub(super) fn strictest(decisions: &[Decision]) -> Decision {
    let wait = |denied: &&Decision| denied.retry_after().unwrap_or(Duration::MAX);
    let denied = decisions
        .iter()
        .filter(|decision| decision.is_denied())
        .max_by_key(wait);
    *denied.unwrap_or(&decisions[0])
}
