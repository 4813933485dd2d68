//! The decisions that other limits would have made on the requests of a trace, next to those that
//! were made.
//!
//! A trace has all requests of the keys in it, so the decisions on these keys are those of a server
//! with the other limits. For all keys they give an estimate: a key is in the trace with
//! probability `p`, independently of others. A sum over all keys is estimated by the sum over those
//! in the trace divided by `p`, with the variance `(1 - p) / p²` times the sum of squares (Horvitz
//! and Thompson, 1952). For a number of keys that is the variance of a binomial distribution. The
//! margin is two standard deviations: of 100 estimates about 95 are within it, if many keys were
//! denied.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use tidegate_core::{Algorithm, Nanos, Policy, Value};
use tidegate_rules::LimitSpec;

use crate::{
    shown::counted,
    trace::{Event, Recording, Verdict},
};

/// The number of parts of a trace in [`WhatIf::over_time`].
pub const PARTS: u64 = 120;

/// The denials of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Denials {
    /// Denied requests of keys in the trace.
    pub requests: u64,
    /// Keys in the trace of which a request was denied.
    pub keys: u64,
    /// Of all keys.
    pub all_requests: KeysEstimate,
    /// Of all keys.
    pub all_keys: KeysEstimate,
}

/// An estimate for all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeysEstimate {
    /// The estimate.
    pub about: u64,
    /// Two standard deviations. Of nothing that was seen: what there is at most, in 95 of 100
    /// cases.
    pub margin: u64,
}

/// A key of the trace that is denied, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WhatIfKey {
    /// Its hash in the trace.
    pub hash: String,
    /// Its name, if the server knew it.
    pub name: Option<String>,
    /// Its requests.
    pub requests: u64,
    /// How many of them were denied.
    pub was_denied: u64,
    /// How many would have been.
    pub would_deny: u64,
}

/// The result of one candidate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WhatIf {
    /// The limit's name.
    pub limit: String,
    /// The policy that decided, as rules have it, if the trace knows it.
    pub was: Option<String>,
    /// The candidate's.
    pub candidate: String,
    /// Requests of keys in the trace.
    pub requests: u64,
    /// Keys in the trace that asked this limit.
    pub keys: u64,
    /// Keys of this limit in all.
    pub all_keys: KeysEstimate,
    /// Which part of all keys is in the trace.
    pub share: f64,
    /// The denials that happened.
    pub denied: Denials,
    /// The denials that the candidate would have caused.
    pub would_deny: Denials,
    /// Keys in the trace that were not denied, and would have been.
    pub newly_denied: u64,
    /// Keys in the trace that were denied, and would not have been.
    pub no_longer_denied: u64,
    /// The requests in each of [`PARTS`] equal parts of the trace: how many there were, how many were
    /// denied, and how many would have been.
    pub over_time: Vec<[u64; 3]>,
    /// The keys with the most denials, the candidate's first.
    pub most_denied: Vec<WhatIfKey>,
    /// Remarks on these numbers.
    pub notes: Vec<String>,
}

/// Replays a trace through each of these limits, matched by name. `hash` returns the hash of a key
/// that a rule names, if it is known. Of each limit up to `most` keys are listed.
pub fn what_if(
    recording: &Recording,
    candidates: &[LimitSpec],
    hash: &dyn Fn(&str) -> Option<u64>,
    most: usize,
) -> Vec<WhatIf> {
    let mut of_limit: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in &recording.events {
        of_limit
            .entry(&recording.limits[usize::from(event.limit)].name)
            .or_default()
            .push(event);
    }
    let each = |spec: &LimitSpec| {
        let mut events = of_limit
            .get(spec.name.as_str())
            .cloned()
            .unwrap_or_default();
        // Stable: each key's requests stay in order of time.
        events.sort_by_key(|event| event.key);
        Replay {
            recording,
            spec,
            hash,
        }
        .run(&events, most)
    };
    candidates.iter().map(each).collect()
}

/// The length of a part of the trace, in nanoseconds.
#[must_use]
pub fn part_of(recording: &Recording) -> u64 {
    let span = recording.until.saturating_sub(recording.from);
    // The last request is in the last part.
    span / PARTS + 1
}

struct Replay<'a> {
    recording: &'a Recording,
    spec: &'a LimitSpec,
    hash: &'a dyn Fn(&str) -> Option<u64>,
}

/// Sums over keys, with the sums of squares for the margins.
#[derive(Default)]
struct Sums {
    requests: u64,
    squares: f64,
    keys: u64,
}

impl Sums {
    fn add(&mut self, denied: u64) {
        self.requests += denied;
        self.squares += (denied as f64).powi(2);
        self.keys += u64::from(denied > 0);
    }

    fn denials(&self, share: f64) -> Denials {
        Denials {
            requests: self.requests,
            keys: self.keys,
            all_requests: estimate(self.requests, self.squares, share),
            all_keys: of_keys(self.keys, share),
        }
    }
}

#[allow(clippy::cast_sign_loss, reason = "sums and roots are not negative")]
fn estimate(sum: u64, squares: f64, share: f64) -> KeysEstimate {
    let margin = 2.0 * ((1.0 - share) * squares).sqrt() / share;
    KeysEstimate {
        about: (sum as f64 / share).round() as u64,
        margin: margin.ceil() as u64,
    }
}

/// A number of keys. If none was seen there may still be some: with 3/p keys, 95 of 100 traces
/// would have one.
#[allow(clippy::cast_sign_loss, reason = "shares are above zero")]
fn of_keys(keys: u64, share: f64) -> KeysEstimate {
    if keys == 0 && share < 1.0 {
        return KeysEstimate {
            about: 0,
            margin: (3.0 / share).ceil() as u64,
        };
    }
    estimate(keys, keys as f64, share)
}

impl Replay<'_> {
    fn run(&self, events: &[&Event], most: usize) -> WhatIf {
        let Self {
            recording, spec, ..
        } = self;
        let recorded = recording
            .limits
            .iter()
            .find(|limit| limit.name == spec.name);
        let share = recording.share.fraction();
        let mut notes = self.notes(recorded.is_some(), events);
        let mut found = WhatIf {
            limit: spec.name.clone(),
            was: recorded.and_then(|limit| limit.rule.clone()),
            candidate: spec.policy.to_string(),
            share,
            over_time: vec![[0; 3]; PARTS as usize],
            ..WhatIf::default()
        };
        if spec.shares.is_some() {
            notes.push(
                "tenants share it, which is not replayed: a trace has only some of them".to_owned(),
            );
            return WhatIf { notes, ..found };
        }
        let policy = match spec.policy.policy() {
            Ok(policy) if spec.policy.algorithm.limits_rate() => policy,
            Ok(_) => {
                notes.push("it limits what is in flight, which is not replayed".to_owned());
                return WhatIf { notes, ..found };
            }
            Err(error) => {
                notes.push(error.to_string());
                return WhatIf { notes, ..found };
            }
        };
        let own = self.own(&mut notes);
        let since = self.counted_since(&mut notes);
        let (mut was, mut would) = (Sums::default(), Sums::default());
        for events in events.chunk_by(|one, other| one.key == other.key) {
            let own = own.get(&events[0].key).copied().unwrap_or(Some(policy));
            let key = self.key(events, own, policy, since, &mut found.over_time);
            if key.requests == 0 {
                continue;
            }
            found.keys += 1;
            found.requests += key.requests;
            found.newly_denied += u64::from(key.was_denied == 0 && key.would_deny > 0);
            found.no_longer_denied += u64::from(key.was_denied > 0 && key.would_deny == 0);
            was.add(key.was_denied);
            would.add(key.would_deny);
            if key.was_denied > 0 || key.would_deny > 0 {
                found.most_denied.push(key);
            }
        }
        found.most_denied.sort_by(|one, other| {
            (other.would_deny, other.was_denied).cmp(&(one.would_deny, one.was_denied))
        });
        found.most_denied.truncate(most);
        WhatIf {
            all_keys: of_keys(found.keys, share),
            denied: was.denials(share),
            would_deny: would.denials(share),
            notes,
            ..found
        }
    }

    /// Replays the requests of one key. Requests before `since` change the state, and are not
    /// counted.
    fn key(
        &self,
        events: &[&Event],
        policy: Option<Policy>,
        general: Policy,
        since: u64,
        over_time: &mut [[u64; 3]],
    ) -> WhatIfKey {
        let (is_denied, policy) = (policy.is_none(), policy.unwrap_or(general));
        let mut state = vec![0; policy.words()];
        let hash = events[0].key;
        let mut found = WhatIfKey {
            hash: format!("{hash:016x}"),
            name: self.recording.names.get(&hash).cloned(),
            ..WhatIfKey::default()
        };
        for event in events {
            let now = Nanos::new(event.time);
            if event.verdict == Verdict::Refunded {
                policy.refund(&mut state, now, event.cost);
                continue;
            }
            let is_charge = event.verdict == Verdict::Charged;
            let asked = if is_charge { 0 } else { event.cost };
            let would_deny = is_denied || policy.decide(&mut state, now, asked).is_denied();
            if is_charge && !would_deny {
                policy.charge(&mut state, now, event.cost);
            }
            if event.time >= since {
                found.requests += 1;
                found.was_denied += u64::from(event.verdict.is_denied());
                found.would_deny += u64::from(would_deny);
                let part = event.time.saturating_sub(self.recording.from) / part_of(self.recording);
                if let Some([requests, denied, would]) = over_time.get_mut(part as usize) {
                    *requests += 1;
                    *denied += u64::from(event.verdict.is_denied());
                    *would += u64::from(would_deny);
                }
            }
        }
        found
    }

    /// The policies of the keys that the rules name, by their hashes; `None` for a key that they
    /// deny.
    fn own(&self, notes: &mut Vec<String>) -> HashMap<u64, Option<Policy>> {
        let overrides = self
            .spec
            .overrides
            .iter()
            .map(|(key, own)| (key, own.policy().map(Some)));
        let named = overrides.chain(self.spec.deny.iter().map(|key| (key, Ok(None))));
        let (mut own, mut unknown) = (HashMap::new(), 0);
        for (key, policy) in named {
            match ((self.hash)(key), policy) {
                (Some(hash), Ok(policy)) => drop(own.insert(hash, policy)),
                _ => unknown += 1,
            }
        }
        if unknown > 0 {
            notes.push(format!(
                "the trace does not know {} that the rules name; in it they have the limit's own policy",
                counted(unknown, "key")
            ));
        }
        own
    }

    /// The longest time for which the rule's `block_for` blocks a key.
    fn longest_block(&self) -> Duration {
        let Some(Value::Spans(spans)) = self.spec.policy.algorithm.get("block_for") else {
            return Duration::ZERO;
        };
        spans.steps().into_iter().max().unwrap_or_default()
    }

    /// Where a trace begins in the middle of traffic, one window makes the states.
    fn counted_since(&self, notes: &mut Vec<String>) -> u64 {
        let Recording {
            from, until, fresh, ..
        } = *self.recording;
        // A block that began before the trace is not in it either.
        let window = self
            .longest_block()
            .max(self.spec.policy.window.unwrap_or_default());
        if fresh {
            return from;
        }
        let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let since = from.saturating_add(nanos);
        let span = Duration::from_nanos(until.saturating_sub(from));
        if span >= 2 * window {
            notes.push(format!(
                "the first {window:?} of the trace make the states and are not counted"
            ));
            return since;
        }
        notes.push(format!(
            "the trace spans {span:.0?}, less than two windows or blocks of {window:?}: keys begin fresh in it, so the candidate would have \
             denied more. Trace for longer (--trace-memory)"
        ));
        from
    }

    fn notes(&self, is_known: bool, events: &[&Event]) -> Vec<String> {
        let mut notes = Vec::new();
        let spec = self.spec;
        if !is_known || events.is_empty() {
            let why = if spec.global {
                "; a global limit is in a trace of all keys alone (--trace-keys 100%)"
            } else {
                ""
            };
            notes.push(format!(
                "the trace has no request to a limit of this name{why}"
            ));
        }
        if spec.shadow {
            notes
                .push("it is a shadow limit: what is denied here would only be counted".to_owned());
        }
        let refunds = events
            .iter()
            .filter(|event| event.verdict == Verdict::Refunded)
            .count();
        if events.iter().any(|event| event.verdict == Verdict::Charged) {
            notes.push(
                "a charge counts as a request, which the candidate decides on when it is charged"
                    .to_owned(),
            );
        }
        if refunds > 0 {
            notes.push(format!(
                "the candidate gets {} back, too, also of what it denied",
                counted(refunds as u64, "refund")
            ));
        }
        notes
    }
}
