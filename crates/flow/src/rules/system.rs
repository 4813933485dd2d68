//! System protection: limits on all inbound traffic.

use super::InvalidRule;
use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Event, Layout, Trailing, View},
};

use crate::{
    machine::sample::SystemSample,
    stats::{borrowed::Usage, bounds::Bounds, node::Node},
};

/// The assumed response time while no call has ended, as in Sentinel.
const LONG: Duration = Duration::from_secs(5);

/// Blocks inbound entries of every resource while the machine or the total inbound traffic is over
/// a limit. A field that is `None` is not checked.
///
/// Load and CPU show that the machine is busy, but not that it is overloaded. While one of them is
/// over its limit, the rule blocks an entry only if more units are in flight than the estimated
/// capacity of the machine. The capacity is the most completions in one slot of the last second (at
/// least one), scaled to a second, times the shortest response time of that second, or times five
/// seconds if no call ended.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SystemRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The highest load average. Rules on load and CPU need samples: build the gate with
    /// [`watch_machine`](crate::GateBuilder::watch_machine), or call
    /// [`Gate::set_sample`](crate::Gate::set_sample). Until the first sample the machine counts as
    /// idle, and loading the rule logs a warning.
    pub load: Option<f64>,
    /// The highest CPU usage, from 0 to 1. It needs samples, as `load` does.
    pub cpu: Option<f64>,
    /// The longest mean response time over the last second.
    pub mean_rt: Option<Duration>,
    /// The most units in flight.
    pub in_flight: Option<u64>,
    /// The most units in a second.
    pub qps: Option<u64>,
}

impl SystemRule {
    crate::rules::id_setter!();

    /// Sets the highest load average.
    #[must_use]
    pub fn load(self, load: f64) -> Self {
        Self {
            load: Some(load),
            ..self
        }
    }

    /// Sets the highest CPU usage, from 0 to 1.
    #[must_use]
    pub fn cpu(self, cpu: f64) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }

    /// Sets the longest mean response time over the last second.
    #[must_use]
    pub fn mean_rt(self, mean_rt: Duration) -> Self {
        Self {
            mean_rt: Some(mean_rt),
            ..self
        }
    }

    /// Sets the most units in flight.
    #[must_use]
    pub fn in_flight(self, in_flight: u64) -> Self {
        Self {
            in_flight: Some(in_flight),
            ..self
        }
    }

    /// Sets the most units in a second.
    #[must_use]
    pub fn qps(self, qps: u64) -> Self {
        Self {
            qps: Some(qps),
            ..self
        }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        if self
            .load
            .is_some_and(|load| !load.is_finite() || load < 0.0)
        {
            return Err("the load must be a number, 0 or greater".into());
        }
        if self.cpu.is_some_and(|cpu| !(0.0..=1.0).contains(&cpu)) {
            return Err("the CPU usage must be from 0 to 1".into());
        }
        let Self {
            load: None,
            cpu: None,
            mean_rt: None,
            in_flight: None,
            qps: None,
            ..
        } = self
        else {
            return Ok(());
        };
        Err("the rule limits nothing; set load, cpu, mean rt, in flight or qps".into())
    }
}

impl fmt::Display for SystemRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        let mut parts = Vec::new();
        parts.extend(self.load.map(|load| format!("load {load}")));
        parts.extend(self.cpu.map(|cpu| format!("cpu {cpu}")));
        parts.extend(self.mean_rt.map(|rt| format!("mean rt {rt:?}")));
        parts.extend(self.in_flight.map(|units| format!("{units} in flight")));
        parts.extend(self.qps.map(|qps| format!("{qps}/1s")));
        f.write_str(&parts.join(", "))
    }
}

/// A system rule with its view of the last second.
pub(crate) struct System {
    pub(crate) rule: SystemRule,
    pub(crate) label: Arc<str>,
    view: View,
    /// The length of a slot in nanoseconds.
    slot: u64,
    passed: Trailing,
}

impl System {
    pub(crate) fn new(rule: SystemRule, layout: Layout) -> Self {
        let view = layout
            .view(1, Duration::from_secs(1))
            .unwrap_or(layout.whole());
        Self {
            label: rule.to_string().into(),
            rule,
            view,
            slot: layout.slot_nanos(),
            passed: Trailing::new(view),
        }
    }

    /// Returns the rule as bounds of the inbound window, if it is no more than that.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        let SystemRule {
            id: _,
            load: None,
            cpu: None,
            mean_rt: None,
            in_flight,
            qps,
        } = self.rule
        else {
            return None;
        };
        Some(Bounds {
            passed: qps.unwrap_or(u64::MAX),
            in_flight: in_flight.unwrap_or(u64::MAX),
        })
    }

    /// Checks that there is room for `n` more units.
    ///
    /// # Errors
    /// The time until there is room, if it can be given.
    #[inline]
    pub(crate) fn fits(
        &self,
        usage: Usage<'_>,
        now: Nanos,
        n: u32,
    ) -> Result<(), Option<Duration>> {
        if let Some(qps) = self.rule.qps {
            usage.fits(&self.passed, qps, n, false, (now, self.slot))?;
        }
        if self
            .rule
            .in_flight
            .is_some_and(|most| !usage.in_flight_fits(n, most))
        {
            return Err(None);
        }
        Ok(())
    }

    /// Whether the response times and the machine admit more inbound calls. An entry consumes
    /// nothing of either, so one check is enough.
    pub(crate) fn is_well(
        &self,
        inbound: &Node,
        in_flight: u64,
        now: Nanos,
        sample: &SystemSample,
    ) -> bool {
        if let Some(longest) = self.rule.mean_rt {
            let sum = |event| inbound.sum_in(now, event, self.view);
            let (micros, ended) = (sum(Event::Rt), sum(Event::Success));
            if u128::from(micros) > longest.as_micros() * u128::from(ended) {
                return false;
            }
        }
        let over = |limit: Option<f64>, value: f64| limit.is_some_and(|limit| value > limit);
        let busy = over(self.rule.load, sample.load()) || over(self.rule.cpu, sample.cpu());
        !(busy && self.is_beyond_capacity(inbound, in_flight, now))
    }

    /// Little's law: the capacity is the best completion rate times the shortest response time.
    /// Passed units must not be used instead of completions, because a burst would raise the bound
    /// by its own size.
    fn is_beyond_capacity(&self, inbound: &Node, in_flight: u64, now: Nanos) -> bool {
        if in_flight <= 1 {
            return false;
        }
        let slots = inbound.slots_in(now, self.view);
        let best = slots
            .iter()
            .map(|slot| slot.counts.success)
            .max()
            .unwrap_or(0)
            .max(1) as f64;
        let a_second = 1.0 / inbound.layout().slot().as_secs_f64();
        let shortest = slots
            .iter()
            .filter_map(|slot| slot.counts.min_rt)
            .min()
            .unwrap_or(LONG);
        // Times are whole microseconds. A shorter call counts as one microsecond.
        in_flight as f64 > best * a_second * shortest.max(Duration::from_micros(1)).as_secs_f64()
    }
}
