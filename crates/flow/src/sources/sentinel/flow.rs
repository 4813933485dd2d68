//! Flow rules in Sentinel's format, for Java and Go.

use serde::Deserialize;

use super::{
    Id, Others,
    cluster_config::{ClusterConfig, applies_here},
    lenient::{Lenient, Name},
    millis, name_of, refuse_gateway, required, seconds, target, unknown, whole,
};
use crate::rules::{
    Behaviour, FlowRule, InvalidRule, Measure, MemoryThreshold, Origins, Relation, Threshold,
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Flow {
    id: Option<Id>,
    resource: Option<Name>,
    limit_app: Option<Name>,
    grade: Lenient<i64>,
    count: Lenient<f64>,
    /// Go's name for `count`.
    threshold: Lenient<f64>,
    #[serde(alias = "relationStrategy")]
    strategy: Lenient<i64>,
    ref_resource: Option<Name>,
    /// Only in Go.
    token_calculate_strategy: Lenient<i64>,
    control_behavior: Lenient<i64>,
    warm_up_period_sec: Lenient<i64>,
    warm_up_cold_factor: Lenient<f64>,
    max_queueing_time_ms: Lenient<i64>,
    stat_interval_in_ms: Lenient<i64>,
    regex: Lenient<bool>,
    cluster_mode: Lenient<bool>,
    cluster_config: Option<ClusterConfig>,
    low_mem_usage_threshold: Lenient<f64>,
    high_mem_usage_threshold: Lenient<f64>,
    mem_low_water_mark_bytes: Lenient<i64>,
    mem_high_water_mark_bytes: Lenient<i64>,
    #[serde(flatten)]
    others: Others,
}

/// The meaning of a rule's behaviour numbers.
#[derive(Clone, Copy)]
struct How {
    warms: bool,
    throttles: bool,
    by_memory: bool,
}

impl Flow {
    pub(super) fn into_rule(self) -> Result<Option<FlowRule>, InvalidRule> {
        if !applies_here(*self.cluster_mode, self.cluster_config.as_ref(), true) {
            return Ok(None);
        }
        refuse_gateway(&self.others)?;
        let measure = match *self.grade {
            Some(0) => Measure::InFlight,
            None | Some(1) => Measure::Rate,
            Some(other) => return Err(unknown("grade", other, "0 (threads) or 1 (QPS)")),
        };
        let how = self.how(measure)?;
        let (threshold, behaviour) = (self.threshold(how)?, self.behaviour(how)?);
        let other = self.ref_resource.unwrap_or_default().0;
        let relation = match *self.strategy {
            None | Some(0) => Relation::Direct,
            // Sentinel's throttle measures no traffic, with any strategy.
            Some(1) if how.throttles && !how.warms => Relation::Direct,
            Some(1) => Relation::Related(other),
            Some(2) => Relation::Context(other),
            Some(other) => {
                return Err(unknown(
                    "strategy",
                    other,
                    "0 (direct), 1 (relate) or 2 (chain)",
                ));
            }
        };
        // In Go, 0 means the default.
        let used = measure == Measure::Rate;
        let interval = self
            .stat_interval_in_ms
            .filter(|&ms| used && ms != 0)
            .unwrap_or(1_000);
        Ok(Some(FlowRule {
            id: name_of(self.id),
            resource: target(self.resource, *self.regex),
            threshold,
            interval: millis("statIntervalInMs", interval)?,
            measure,
            relation,
            origins: match self.limit_app.as_ref().map(|name| &*name.0) {
                None | Some("default" | "") => Origins::Any,
                Some("other") => Origins::Others,
                Some(origin) => Origins::Only(origin.into()),
            },
            behaviour,
            strict: false,
        }))
    }

    fn how(&self, measure: Measure) -> Result<How, InvalidRule> {
        let behaviour = self.control_behavior.unwrap_or(0);
        let by_memory = self.mem_high_water_mark_bytes.is_some_and(|mark| mark != 0);
        let how = |warms, throttles| How {
            warms,
            throttles,
            by_memory,
        };
        match (*self.token_calculate_strategy, behaviour) {
            // Sentinel ignores the behaviour of a rule on threads.
            _ if measure == Measure::InFlight => Ok(how(false, false)),
            (None, 0) => Ok(how(false, false)),
            (None, 1 | 3) if self.count.is_none() && self.threshold.is_some() => Err(format!(
                "controlBehavior {behaviour} beside threshold may be that of Sentinel for Java or for Go; write count \
                 for the former, and tokenCalculateStrategy, too, for the latter"
            ).into()),
            (None, 1) => Ok(how(true, false)),
            (None, 2) => Ok(how(false, true)),
            (None, 3) => Ok(how(true, true)),
            (None, other) => Err(unknown("controlBehavior", other, "from 0 to 3")),
            (Some(strategy @ 0..=2), throttles @ 0..=1) => {
                Ok(How { warms: strategy == 1, throttles: throttles == 1, by_memory: strategy == 2 })
            }
            (Some(0..=2), other) => Err(unknown(
                "controlBehavior",
                other,
                "0 (reject) or 1 (throttle) with tokenCalculateStrategy",
            )),
            (Some(other), _) => {
                Err(unknown("tokenCalculateStrategy", other, "0 (direct), 1 (warm up) or 2 (by memory)"))
            }
        }
    }

    fn threshold(&self, how: How) -> Result<Threshold, InvalidRule> {
        if how.by_memory {
            // Sentinel names each threshold after the memory usage: the one for low usage is
            // higher.
            return Ok(Threshold::Memory(MemoryThreshold {
                when_free: required("lowMemUsageThreshold", *self.low_mem_usage_threshold)?,
                when_scarce: required("highMemUsageThreshold", *self.high_mem_usage_threshold)?,
                low_mark: whole(
                    "memLowWaterMarkBytes",
                    self.mem_low_water_mark_bytes.unwrap_or(0),
                )?,
                high_mark: whole(
                    "memHighWaterMarkBytes",
                    self.mem_high_water_mark_bytes.unwrap_or(0),
                )?,
            }));
        }
        if self.count.is_some() && self.threshold.is_some() {
            return Err(
                "the rule has a count and a threshold, which mean the same; leave one of them out"
                    .into(),
            );
        }
        required("count", self.count.or(*self.threshold)).map(Threshold::Fixed)
    }

    fn behaviour(&self, how: How) -> Result<Behaviour, InvalidRule> {
        let period = how
            .warms
            .then(|| seconds("warmUpPeriodSec", self.warm_up_period_sec.unwrap_or(10)));
        // In Go, 0 means the default.
        let cold_factor = self
            .warm_up_cold_factor
            .filter(|&factor| factor != 0.0)
            .unwrap_or(3.0);
        let longest = if self.token_calculate_strategy.is_some() {
            0
        } else {
            500
        };
        let max_wait = || {
            millis(
                "maxQueueingTimeMs",
                self.max_queueing_time_ms.unwrap_or(longest),
            )
        };
        let warm_up = period.transpose()?.map(|period| (period, cold_factor));
        Ok(Behaviour::of(
            warm_up,
            how.throttles.then(max_wait).transpose()?,
        ))
    }
}
