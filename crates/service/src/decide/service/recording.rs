//! The trace of live traffic, with what a reader must know about it.

use std::collections::HashMap;

use tidegate_core::Nanos;

use super::{Refusal, Service};
use crate::observe::{
    heavy::Top,
    history::{OUTCOMES, Step},
    trace::{RecordedLimit, Recording, Trace, TraceCopy},
};

impl Service {
    /// The trace of the last `span` (`None`: all there is), of the limits that `concern` says yes
    /// to. Takes a moment for a large trace: not for a thread that serves.
    ///
    /// # Errors
    /// [`Refusal::NoTrace`].
    pub fn recording(
        &self,
        concern: impl Fn(&str) -> bool,
        span: Option<Nanos>,
    ) -> Result<Recording, Refusal> {
        let trace = self.trace().ok_or(Refusal::NoTrace)?;
        let until = self.now();
        let TraceCopy {
            from,
            mut fresh,
            mut events,
            limits,
        } = trace.take();
        let begin = span.map_or(0, |span| until.saturating_since(span).get());
        if begin > from {
            fresh = false;
            events.retain(|event| event.time >= begin);
        }
        let from = from.max(begin);
        // Numbers change, as limits that do not concern the reader are left out.
        let (mut numbers, mut recorded) = (HashMap::new(), Vec::new());
        for (number, name) in limits.iter().enumerate().filter(|(_, name)| concern(name)) {
            numbers.insert(number as u16, recorded.len() as u16);
            recorded.push(self.recorded(name, from, until));
        }
        events.retain_mut(|event| match numbers.get(&event.limit) {
            Some(number) => {
                event.limit = *number;
                true
            }
            None => false,
        });
        let names = recorded
            .iter()
            .flat_map(|limit| self.names(trace, &limit.name))
            .collect();
        let share = trace.share();
        Ok(Recording {
            share,
            fresh,
            from,
            until: until.get(),
            limits: recorded,
            names,
            events,
            is_cut: false,
        })
    }

    fn recorded(&self, name: &str, from: u64, until: Nanos) -> RecordedLimit {
        let limits = self.limits();
        let rule = limits
            .limit(name.as_bytes())
            .map(|limit| limit.spec().policy.to_string());
        let seconds = until
            .get()
            .saturating_sub(from)
            .div_ceil(1_000_000_000)
            .max(1) as usize;
        let sums = [
            (Step::Second, seconds),
            (Step::TenSeconds, seconds.div_ceil(10)),
        ];
        let [(_, fine), _] = sums;
        let (step, most) = if fine <= 900 { sums[0] } else { sums[1] };
        let seconds = if most <= 2_160 {
            self.history().of(name, step, most)
        } else {
            None
        };
        let sum = |of: fn(&[u32; OUTCOMES.len()]) -> u64| {
            seconds
                .as_ref()
                .map(|seconds| seconds.points.iter().map(of).sum())
        };
        RecordedLimit {
            name: name.to_owned(),
            rule,
            requests: sum(|point| point[..4].iter().map(|count| u64::from(*count)).sum()),
            denied: sum(|point| u64::from(point[2]) + u64::from(point[3])),
        }
    }

    /// The chosen keys of a limit that are known by name: heavy keys, and those that the rules
    /// name.
    fn names(&self, trace: &Trace, limit: &str) -> Vec<(u64, String)> {
        let limits = self.limits();
        let mut names: Vec<(u64, String)> = Vec::new();
        let mut add = |key: &str| {
            if let Some(hash) = trace.chosen(key.as_bytes()) {
                names.push((hash, key.to_owned()));
            }
        };
        if let Some(limit) = limits.limit(limit.as_bytes()) {
            let spec = limit.spec();
            spec.overrides
                .keys()
                .chain(&spec.deny)
                .for_each(|key| add(key));
        }
        if let Ok(Top { asked, denied, .. }) = self.top(limit.as_bytes(), usize::MAX, self.now()) {
            let keys = asked
                .iter()
                .chain(&denied)
                .filter_map(|top| str::from_utf8(&top.key).ok());
            keys.for_each(add);
        }
        names
    }
}
