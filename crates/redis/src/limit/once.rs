//! Joint decisions that are safe to repeat: a request with the same id gets the first answer, from
//! any node, and is charged once.

use std::fmt::Write as _;

use tidegate_core::{Algorithm as _, Decision, Nanos, Standing};

use super::{
    Part, SharedDecision, SharedLimit,
    joint::{
        JointRequest, Sum, all_without_store, by_all, formers_of, keys_beside, of_formers, sums,
    },
};
use crate::{
    Plan, Store, StoreError,
    connection::beside,
    script::call::{self, Found, Keep},
};

/// The answer to a request with an id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision has no effect unless the caller reads it"]
pub struct Once {
    /// The decision of each limit.
    pub decisions: Vec<SharedDecision>,
    /// Whether the request had been answered before, so that nothing was taken now.
    pub is_repeat: bool,
}

impl Store {
    /// Decides as [`acquire_all`](Self::acquire_all), and is safe to repeat: for a minute, the same
    /// id with the same keys and costs gets the first answer, at any node, and takes nothing. A
    /// part that is marked as a shadow limit takes if it admits, and does not deny the others.
    ///
    /// The store makes each of these decisions and keeps the answer in the same step. What nodes
    /// hold of a leased limit counts as used. If the store makes no decision, each limit's
    /// [`OnError`](crate::OnError) decides, and that answer is not kept.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_all_once(
        &self,
        id: &[u8],
        parts: &[(Part<'_>, bool)],
    ) -> Result<Once, StoreError> {
        self.decide_once(id, parts, Keep::All).await
    }

    /// Decides as [`acquire_all_once`](Self::acquire_all_once), and keeps the answer only if it
    /// admits: a request that was denied took nothing, and the same id may be admitted later.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn admit_all_once(
        &self,
        id: &[u8],
        parts: &[(Part<'_>, bool)],
    ) -> Result<Once, StoreError> {
        self.decide_once(id, parts, Keep::Admissions).await
    }

    async fn decide_once(
        &self,
        id: &[u8],
        parts: &[(Part<'_>, bool)],
        keep: Keep,
    ) -> Result<Once, StoreError> {
        let answer = self.once(id, parts, keep).await;
        let answer = answer.and_then(|once| once.ok_or(StoreError::BadReply));
        self.batcher().monitor.decided(&answer);
        let error = match answer {
            Ok((decisions, is_repeat)) => {
                let decisions = decisions.into_iter().map(SharedDecision::by_store);
                return Ok(Once {
                    decisions: decisions.collect(),
                    is_repeat,
                });
            }
            Err(error @ (StoreError::CrossSlot | StoreError::OneKey)) => return Err(error),
            Err(error) => error,
        };
        let all: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        Ok(Once {
            decisions: all_without_store(&all, |at| !parts[at].1, &error).0,
            is_repeat: false,
        })
    }

    /// The first answer to a request with an id, if the store has made a decision on it within the
    /// last minute. It takes nothing and keeps nothing.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all), and if the store does not reply.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn first_answer(
        &self,
        id: &[u8],
        parts: &[(Part<'_>, bool)],
    ) -> Result<Option<Vec<Decision>>, StoreError> {
        let first = self.once(id, parts, Keep::Nothing).await?;
        Ok(first.map(|(decisions, _)| decisions))
    }

    /// The decisions, and whether they were kept before. `None` if there is no first answer and the
    /// call only looks for one.
    async fn once(
        &self,
        id: &[u8],
        parts: &[(Part<'_>, bool)],
        keep: Keep,
    ) -> Result<Option<(Vec<Decision>, bool)>, StoreError> {
        let all: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
        let Some(deadline) = all.iter().map(|part| part.limit.deadline()).min() else {
            return Ok(Some((Vec::new(), false)));
        };
        let formers = formers_of(&all, deadline).await?;
        let own = all
            .iter()
            .map(|part| part.limit.request(part.key, part.cost));
        let mut requests: Vec<JointRequest<'_>> = own.collect();
        let kept = self.kept_key(id, &requests);
        let mut shadows: Vec<bool> = parts.iter().map(|(_, is_shadow)| *is_shadow).collect();
        for ((part, is_shadow), formers) in parts.iter().zip(&formers) {
            requests.extend(of_formers(formers, &part.state_key(), part.cost));
            shadows.resize(requests.len(), *is_shadow);
        }
        let (sums, costs) = sums(&requests)?;
        let besides = keys_beside(self, sums.iter().map(|sum| (sum.plan, sum.key)));
        let keys = sums.iter().map(|sum| sum.key);
        let keys = keys.chain(besides.iter().map(|key| &key[..]));
        let keys: Vec<&[u8]> = keys.chain([&kept[..]]).collect();
        let monitor = &self.batcher().monitor;
        let slot = monitor.slot(keys[0]);
        if keys.iter().any(|key| monitor.slot(key) != slot) {
            return Err(StoreError::CrossSlot);
        }
        self.in_time(deadline)?;
        let shard = monitor.shard_of(keys[0]);
        monitor.admit(shard)?;
        let asked = sums
            .iter()
            .map(|sum| (sum.plan, sum.cost, shadows[sum.first]));
        let plans = || sums.iter().map(|sum| sum.plan);
        let arguments = call::once_arguments(asked, keep);
        let script = &self.batcher().scripts.once;
        let reply = monitor
            .call(shard, script, &keys, &arguments, deadline, true)
            .await?;
        if let Some(text) = call::word_bytes(&reply) {
            if text.is_empty() {
                return Ok(None);
            }
            let first = call::kept(text).ok_or(StoreError::BadReply)?;
            let values = first.parts.iter().map(|(_, value)| Ok(value.clone()));
            let found = call::found(plans(), values.collect())?;
            let own = costs[..parts.len()].iter();
            let decisions = own.map(|&(at, cost)| {
                let (found, admitted) = (found.get(at)?, first.parts.get(at)?.0);
                Some(first_decision(
                    &sums[at],
                    (found, admitted),
                    cost,
                    first.now,
                ))
            });
            let decisions: Option<Vec<_>> = decisions.collect();
            return Ok(Some((decisions.ok_or(StoreError::BadReply)?, true)));
        }
        let (now, values) = call::parse(reply, sums.len() + besides.len())?;
        let found = call::found(plans(), values)?;
        let decisions = costs.iter().map(|&(at, cost)| {
            let decided = sums[at].plan.decision_on(&found[at], now, (cost, true));
            decided.map(|(decision, _)| decision)
        });
        let decisions = decisions.collect::<Result<Vec<_>, _>>()?;
        let decisions = by_all(&decisions, &formers).ok_or(StoreError::BadReply)?;
        Ok(Some((decisions, false)))
    }

    /// The key of the first answer to this request. It includes the keys and the costs, so that an
    /// id that two callers happen to share is no answer to another question.
    fn kept_key(&self, id: &[u8], requests: &[JointRequest<'_>]) -> Vec<u8> {
        let mut name = sha1_smol::Sha1::from(id);
        for JointRequest { plan, key, cost } in requests {
            for part in [&key[..]].into_iter().chain(plan.tenant()) {
                name.update(&(part.len() as u64).to_le_bytes());
                name.update(part);
            }
            name.update(&cost.to_le_bytes());
        }
        let mut digits = String::with_capacity(32);
        for byte in &name.digest().bytes()[..16] {
            // Writing to a `String` does not fail.
            let _ = write!(digits, "{byte:02x}");
        }
        let monitor = &self.batcher().monitor;
        let text = format!("{}:once:", monitor.runner.connector.prefix());
        match requests.first() {
            Some(first) if monitor.is_cluster() => beside(&first.key, &text, &digits),
            _ => [text, digits].concat().into_bytes(),
        }
    }
}

impl SharedLimit {
    /// Takes `cost` if it is admitted, and is safe to repeat: see [`Store::acquire_all_once`].
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_once(&self, id: &[u8], key: &[u8], cost: u64) -> SharedDecision {
        let part = Part {
            limit: self,
            key,
            cost,
        };
        match Box::pin(self.store().acquire_all_once(id, &[(part, false)])).await {
            Ok(Once { mut decisions, .. }) if decisions.len() == 1 => decisions.remove(0),
            Ok(_) => self.without_store(key, cost, StoreError::BadReply),
            Err(error) => self.without_store(key, cost, error),
        }
    }
}

/// The first decision of a limit. If its rule has changed since, the kept value may mean something
/// else by now, but what was admitted stays admitted.
fn first_decision(
    sum: &Sum<'_>,
    (found, admitted): (&Found, bool),
    cost: u64,
    now: Nanos,
) -> Decision {
    let plan: &Plan = sum.plan;
    let standing = match plan.decision_on(found, now, (cost, true)) {
        Ok((decision, _)) if cost < sum.cost || decision.is_allowed() == admitted => {
            return decision;
        }
        Ok((decision, _)) => decision.standing(),
        Err(_) => Standing {
            limit: plan.policy().limit(),
            room: 0,
            unit: 1,
            reset_after: 0,
        },
    };
    if admitted {
        Decision::allow(standing)
    } else {
        Decision::deny(standing, 1)
    }
}
