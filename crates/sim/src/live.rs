//! Limits on a log while it is written: what each limit would deny of the requests since the last
//! call.

use std::{collections::HashMap, fmt};

use tidegate_core::{Algorithm, Nanos, Policy, Quota};

use crate::{
    numbers::{counted, grouped},
    replay::{KeyState, Trial},
    report::percent,
    workload::{Trace, Workload},
};

/// The maximum number of keys, and the maximum number of words of all their states (512 MiB).
const MAX_KEYS: usize = 1_000_000;
const MAX_WORDS: usize = 1 << 26;

/// Limits, with the states of the keys in the log.
///
/// Memory is bounded: a million keys, or fewer if the states are large. A key whose states have
/// recovered makes room for another. If there is none, requests of further keys are left out and
/// counted.
pub struct Live {
    limits: Vec<(Quota, String, Policy)>,
    /// The states of each key, and which of them have denied a request.
    keys: HashMap<String, Vec<(KeyState, bool)>>,
    max_keys: usize,
    total: LiveCounts,
}

/// The counts since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Requests that were decided on.
    pub requests: u64,
    /// Keys of these requests.
    pub keys: u64,
    /// Requests of keys for which there was no room.
    pub left_out: u64,
    /// Lines that are not requests.
    pub unparsed: u64,
    /// One entry for each limit and algorithm.
    pub limits: Vec<LiveLimit>,
}

/// The denials of one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLimit {
    /// The limit.
    pub quota: Quota,
    /// The algorithm, as it was written.
    pub algorithm: String,
    /// Requests that the algorithm denies.
    pub denied: u64,
    /// Keys for which the algorithm denies a request.
    pub denied_keys: u64,
}

impl Live {
    /// Limits with all algorithms of these trials. A fleet of nodes in a trial is ignored.
    pub fn new(trials: &[Trial]) -> Self {
        let each = |trial: &Trial| {
            let quota = trial.quota();
            let limit =
                move |of: &crate::replay::Candidate| (quota, of.spec.label().to_owned(), of.policy);
            trial.candidates().iter().map(limit).collect::<Vec<_>>()
        };
        let limits: Vec<_> = trials.iter().flat_map(each).collect();
        let words: usize = limits.iter().map(|(_, _, policy)| policy.words()).sum();
        let max_keys = (MAX_WORDS / words.max(1)).clamp(1, MAX_KEYS);
        Self {
            max_keys,
            total: LiveCounts::of(&limits),
            limits,
            keys: HashMap::new(),
        }
    }

    /// The total counts. A key that was dropped because its states had recovered counts again.
    pub const fn total(&self) -> &LiveCounts {
        &self.total
    }

    /// Decides on the requests of `trace`, which must be later than those of the last call.
    /// `unparsed` lines were not requests.
    pub fn take(&mut self, trace: &Trace, unparsed: u64) -> LiveCounts {
        let mut counts = LiveCounts {
            unparsed,
            ..LiveCounts::of(&self.limits)
        };
        let mut has_swept = false;
        for key in 0..trace.keys() {
            let (name, requests) = (trace.label(key), trace.times(key).count() as u64);
            let is_known = self.keys.contains_key(&name);
            if !is_known && self.keys.len() >= self.max_keys && !has_swept {
                has_swept = true;
                self.sweep(Nanos::new(trace.span().0));
            }
            if !is_known && self.keys.len() >= self.max_keys {
                counts.left_out += requests;
                continue;
            }
            let fresh = || {
                self.limits
                    .iter()
                    .map(|(_, _, policy)| (KeyState::new(*policy), false))
                    .collect()
            };
            let states: &mut Vec<_> = self.keys.entry(name).or_insert_with(fresh);
            counts.keys += 1;
            counts.requests += requests;
            self.total.keys += u64::from(!is_known);
            let limits = counts.limits.iter_mut().zip(&mut self.total.limits);
            for ((state, was_denied), (limit, total)) in states.iter_mut().zip(limits) {
                let denied = trace
                    .times(key)
                    .filter(|time| state.decide(*time, 1).is_denied())
                    .count() as u64;
                limit.denied += denied;
                limit.denied_keys += u64::from(denied > 0);
                total.denied += denied;
                total.denied_keys += u64::from(denied > 0 && !*was_denied);
                *was_denied |= denied > 0;
            }
        }
        self.total.requests += counts.requests;
        self.total.left_out += counts.left_out;
        self.total.unparsed += unparsed;
        counts
    }

    /// Drops the keys whose states have recovered.
    fn sweep(&mut self, now: Nanos) {
        self.keys
            .retain(|_, states| !states.iter().all(|(state, _)| state.is_recovered(now)));
    }
}

impl LiveCounts {
    fn of(limits: &[(Quota, String, Policy)]) -> Self {
        let limit = |(quota, algorithm, _): &(Quota, String, Policy)| LiveLimit {
            quota: *quota,
            algorithm: algorithm.clone(),
            denied: 0,
            denied_keys: 0,
        };
        Self {
            limits: limits.iter().map(limit).collect(),
            ..Self::default()
        }
    }
}

/// One line: `512 requests of 40 keys; sliding-window 100/1m denies 12 (2.34%) of 3 keys`.
impl fmt::Display for LiveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}",
            counted(self.requests, "request"),
            counted(self.keys, "key")
        )?;
        for limit in &self.limits {
            let LiveLimit {
                quota,
                algorithm,
                denied,
                denied_keys,
            } = limit;
            write!(f, "; {algorithm} {quota} denies {}", grouped(*denied))?;
            if *denied > 0 {
                write!(
                    f,
                    " ({}) of {}",
                    percent(*denied, self.requests),
                    counted(*denied_keys, "key")
                )?;
            }
        }
        if self.left_out > 0 {
            write!(f, "; {} of further keys left out", grouped(self.left_out))?;
        }
        if self.unparsed > 0 {
            write!(f, "; no requests: {}", counted(self.unparsed, "line"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{input::By, workload::TraceBuilder};

    const SECOND: u64 = 1_000_000_000;

    fn trace(requests: &[(&str, u64)]) -> Trace {
        let mut builder = TraceBuilder::new(By::ip());
        for &(key, time) in requests {
            assert!(builder.push(key.as_bytes(), time, 1));
        }
        builder.build(true, 0)
    }

    fn live(quota: &str) -> Live {
        let algorithms = [crate::AlgorithmSpec::all()[1].clone()];
        assert_eq!(algorithms[0].label(), "sliding-log");
        Live::new(&[Trial::new(quota.parse().unwrap(), &algorithms).unwrap()])
    }

    #[test]
    fn a_recovered_key_makes_room_and_further_keys_are_not_kept() {
        let mut live = live("2/10s");
        live.max_keys = 2;
        let _ = live.take(&trace(&[("a", 0), ("b", 5 * SECOND)]), 0);
        let counts = live.take(
            &trace(&[("c", 11 * SECOND), ("d", 12 * SECOND), ("d", 12 * SECOND)]),
            0,
        );
        assert_eq!(
            (counts.requests, counts.left_out),
            (1, 2),
            "only a had recovered"
        );
        assert_eq!(live.keys.len(), 2);
    }
}
