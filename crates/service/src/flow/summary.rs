//! The sums over the instances of an application.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::Nanos;

use super::{
    GONE,
    report::{HOUR, Instance, MINUTE, OwnRules, StreamPart},
};

/// The number of seconds over which rates are averaged.
const RATE: usize = 10;

/// An application.
#[derive(Debug)]
pub struct AppSummary {
    pub app: String,
    pub instances: Vec<InstanceSummary>,
    pub resources: BTreeMap<String, ResourceSummary>,
}

#[derive(Debug)]
pub struct InstanceSummary {
    pub name: String,
    /// How long ago it reported.
    pub ago: Duration,
    pub is_gone: bool,
    pub version: Option<String>,
    pub rejected: Option<String>,
    pub left_out: usize,
    /// The rules that it reported.
    pub own: Option<OwnRules>,
}

/// A resource of all instances that are there.
#[derive(Debug, Default)]
pub struct ResourceSummary {
    pub in_flight: u64,
    /// In each second of the last minute: pass, block, exception, completed, response times in
    /// microseconds, most in flight.
    pub minute: Vec<[u64; 6]>,
    /// How many instances have a breaker in a state.
    pub breakers: BTreeMap<(String, String), usize>,
    /// The sum of the instances' limits.
    pub adaptive: BTreeMap<String, u64>,
    /// Units passed and blocked in each minute of the last hour.
    pub hour: Vec<[u64; 2]>,
    /// The units that were blocked since the instances' start, by reason.
    pub blocked: BTreeMap<String, u64>,
    pub origins: BTreeMap<String, [u64; 3]>,
    pub contexts: BTreeMap<String, [u64; 3]>,
    /// By instance: passed and blocked in its newest second, and in flight.
    pub instances: Vec<StreamPart>,
    by_second: BTreeMap<u64, [u64; 6]>,
    by_minute: BTreeMap<u64, [u64; 2]>,
}

fn add<const N: usize>(sum: &mut [u64; N], counts: &[u64; N]) {
    sum.iter_mut()
        .zip(counts)
        .for_each(|(sum, count)| *sum = sum.saturating_add(*count));
}

impl AppSummary {
    pub(super) fn new(app: &str) -> Self {
        Self {
            app: app.to_owned(),
            instances: Vec::new(),
            resources: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, name: &str, instance: &Instance, now: Nanos) {
        let ago: Duration = now.saturating_since(instance.seen).into();
        let is_gone = ago >= GONE;
        self.instances.push(InstanceSummary {
            name: name.to_owned(),
            ago,
            is_gone,
            version: instance.version.clone(),
            rejected: instance.rejected.clone(),
            left_out: instance.left_out,
            own: instance.own.clone(),
        });
        if is_gone {
            return;
        }
        let ahead = instance.ahead.unwrap_or(0);
        for (resource, reported) in &instance.resources {
            let resource = self.resources.entry(resource.clone()).or_default();
            resource.in_flight = resource.in_flight.saturating_add(reported.in_flight);
            for (at, counts) in &reported.seconds {
                let Ok(at) = u64::try_from(i128::from(*at) + ahead) else {
                    continue;
                };
                let sum = resource.by_second.entry(at).or_default();
                add(sum, counts);
            }
            for (minute, counts) in &reported.minutes {
                add(resource.by_minute.entry(*minute).or_default(), counts);
            }
            let last = reported
                .seconds
                .back()
                .map_or([0; 6], |(_, counts)| *counts);
            resource
                .instances
                .push((name.to_owned(), [last[0], last[1], reported.in_flight]));
            for (reason, count) in &reported.blocked {
                let sum = resource.blocked.entry(reason.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
            for (sums, parts) in [
                (&mut resource.origins, &reported.origins),
                (&mut resource.contexts, &reported.contexts),
            ] {
                for (part, counts) in parts {
                    add(sums.entry(part.clone()).or_default(), counts);
                }
            }
            for breaker in &reported.breakers {
                *resource.breakers.entry(breaker.clone()).or_default() += 1;
            }
            for (rule, most) in &reported.adaptive {
                let sum = resource.adaptive.entry(rule.clone()).or_default();
                *sum = sum.saturating_add(*most);
            }
        }
    }

    /// Puts the seconds in their places of the minute: the newest second that any resource of the
    /// application has is the last.
    pub(super) fn finish(&mut self) {
        let all = self.resources.values();
        let second = all
            .clone()
            .filter_map(|resource| resource.by_second.keys().next_back().copied())
            .max();
        // Programs that have not reported since a restart of the server have only minutes.
        let minute = all
            .filter_map(|resource| resource.by_minute.keys().next_back().copied())
            .max();
        let Some(newest) = second.or(minute.map(|minute| minute * 60)) else {
            return;
        };
        for resource in self.resources.values_mut() {
            let first = newest.saturating_sub(MINUTE as u64 - 1);
            let seconds = std::mem::take(&mut resource.by_second);
            resource.minute = (first..=newest)
                .map(|at| seconds.get(&at).copied().unwrap_or_default())
                .collect();
            let minutes = std::mem::take(&mut resource.by_minute);
            let last = minute.unwrap_or(0).max(newest / 60);
            let first = (last + 1).saturating_sub(HOUR as u64);
            resource.hour = (first..=last)
                .map(|at| minutes.get(&at).copied().unwrap_or_default())
                .collect();
        }
    }
}

impl AppSummary {
    /// The rules that the instances reported, those of most of them first.
    pub fn own(&self) -> Vec<(&OwnRules, usize)> {
        let mut own: Vec<(&OwnRules, usize)> = Vec::new();
        for rules in self
            .instances
            .iter()
            .filter(|one| !one.is_gone)
            .filter_map(|one| one.own.as_ref())
        {
            match own.iter_mut().find(|(known, _)| *known == rules) {
                Some((_, count)) => *count += 1,
                None => own.push((rules, 1)),
            }
        }
        own.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        own
    }
}

impl ResourceSummary {
    /// Pass, block and exception a second, lately.
    pub fn rates(&self) -> [f64; 3] {
        let last = self.last();
        [0, 1, 2].map(|of| {
            last.iter().map(|second| second[of] as f64).sum::<f64>() / last.len().max(1) as f64
        })
    }

    /// The mean response time, lately.
    pub fn mean_rt(&self) -> Duration {
        let sum = |of: usize| {
            self.last()
                .iter()
                .fold(0_u64, |sum, second| sum.saturating_add(second[of]))
        };
        Duration::from_micros(sum(4).checked_div(sum(3)).unwrap_or(0))
    }

    fn last(&self) -> &[[u64; 6]] {
        &self.minute[self.minute.len().saturating_sub(RATE)..]
    }

    /// How many instances have a breaker that is not closed.
    pub fn open(&self) -> usize {
        self.breakers
            .iter()
            .filter(|((_, state), _)| state != "closed")
            .map(|(_, count)| count)
            .sum()
    }
}
