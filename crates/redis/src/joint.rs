//! One decision over several shared limits.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, Nanos};

use crate::{
    Plan, StoreError,
    call::{self, Before},
    store::Inner,
};

/// A part of a decision over several limits: `cost` for a key, which is the whole key in Redis.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The limit.
    pub plan: &'a Plan,
    /// The whole key.
    pub key: Vec<u8>,
    /// How much.
    pub cost: u32,
}

/// The requests of one key, as one.
struct Part<'a> {
    plan: &'a Plan,
    key: &'a [u8],
    cost: u32,
}

/// `takes`: or else nothing is charged, and the answers are what they would have been.
pub async fn decide(
    store: &Arc<Inner>,
    requests: &[Request<'_>],
    takes: bool,
    deadline: Duration,
) -> Result<(Vec<Decision>, Nanos), StoreError> {
    let Some(first) = requests.first() else { return Ok((Vec::new(), Nanos::ZERO)) };
    let slot = store.slot(&first.key);
    if requests.iter().any(|request| store.slot(&request.key) != slot) {
        return Err(StoreError::CrossSlot);
    }
    let at = store.part_of(&first.key);
    store.admit(at)?;
    let mut parts: Vec<Part<'_>> = Vec::new();
    // Each request's part, and its cost on top of those before it.
    let mut places = Vec::with_capacity(requests.len());
    for Request { plan, key, cost } in requests {
        let known = parts.iter().position(|part| part.key == key);
        let place = known.unwrap_or_else(|| {
            parts.push(Part { plan, key, cost: 0 });
            parts.len() - 1
        });
        // The same state by other numbers: the script has each key once.
        if parts[place].plan.numbers() != plan.numbers() {
            return Err(StoreError::OneKey);
        }
        parts[place].cost = parts[place].cost.saturating_add(*cost);
        places.push((place, parts[place].cost));
    }
    let keys: Vec<&[u8]> = parts.iter().map(|part| part.key).collect();
    let arguments = call::joint_arguments(parts.iter().map(|part| (part.plan, part.cost)), takes);
    let reply = store.call(at, &store.scripts.joint, &keys, &arguments, deadline, true).await?;
    let (now, found) = call::parse(reply, parts.len())?;
    let mut decisions = Vec::with_capacity(requests.len());
    for (place, cost) in places {
        let before = match &found[place] {
            Before::WrongType => return Err(StoreError::WrongType),
            Before::NotOurs => return Err(StoreError::NotOurs),
            Before::Value(value) => value.as_deref(),
        };
        let told =
            parts[place].plan.decisions(before, now, &[cost], |_, decision, _| decisions.push(decision));
        told.ok_or(StoreError::NotOurs)?;
    }
    Ok((decisions, now))
}
