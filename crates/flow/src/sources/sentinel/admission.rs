//! System, authority and isolation rules in Sentinel's format.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Id,
    lenient::{Lenient, Name},
    name_of, no_go, target, unknown, whole,
};
use crate::{
    rules::{AuthorityRule, InvalidRule, IsolationRule, SystemRule},
    stats::bounds,
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct System {
    id: Option<Id>,
    highest_system_load: Lenient<f64>,
    highest_cpu_usage: Lenient<f64>,
    qps: Lenient<f64>,
    avg_rt: Lenient<f64>,
    max_thread: Lenient<f64>,
    // Fields of Sentinel for Go.
    metric_type: Option<IgnoredAny>,
    trigger_count: Option<IgnoredAny>,
}

impl System {
    /// Returns the rule. It may have no limit, because dashboards write such rules: Sentinel's
    /// default for each limit is −1, and a negative value means unlimited.
    pub(super) fn into_rule(self) -> Result<SystemRule, InvalidRule> {
        let known = "highestSystemLoad, highestCpuUsage, qps, avgRt or maxThread";
        no_go("metricType", self.metric_type, known)?;
        no_go("triggerCount", self.trigger_count, known)?;
        let all = [
            self.highest_system_load,
            self.highest_cpu_usage,
            self.qps,
            self.avg_rt,
            self.max_thread,
        ];
        if all.iter().all(|limit| limit.is_none()) {
            return Err(format!("the rule names no limit; it needs {known}").into());
        }
        // A negative value means unlimited.
        let limit = |value: Lenient<f64>| value.filter(|&value| value >= 0.0);
        let units = |value| limit(value).map(bounds::whole);
        let span = |ms: f64| Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or(Duration::MAX);
        Ok(SystemRule {
            id: name_of(self.id),
            load: limit(self.highest_system_load),
            cpu: limit(self.highest_cpu_usage),
            mean_rt: limit(self.avg_rt).map(span),
            in_flight: units(self.max_thread),
            qps: units(self.qps),
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Authority {
    id: Option<Id>,
    resource: Option<Name>,
    limit_app: Option<Name>,
    strategy: Lenient<i64>,
    regex: Lenient<bool>,
}

impl Authority {
    pub(super) fn into_rule(self) -> Result<AuthorityRule, InvalidRule> {
        let allow = match self.strategy.unwrap_or(0) {
            0 => true,
            1 => false,
            other => return Err(unknown("strategy", other, "0 (allow) or 1 (deny)")),
        };
        let Some(limit_app) = self.limit_app else {
            return Err(
                "limitApp is missing; name the origins that the rule allows or denies, as in app-a,app-b"
                    .into(),
            );
        };
        let origins: BTreeSet<&str> = limit_app
            .0
            .split(',')
            .map(str::trim)
            .filter(|origin| !origin.is_empty())
            .collect();
        let resource = target(self.resource, *self.regex);
        Ok(AuthorityRule {
            id: name_of(self.id),
            allow,
            ..AuthorityRule::allow(resource, origins)
        })
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Isolation {
    id: Option<Id>,
    resource: Option<Name>,
    #[serde(alias = "count")]
    threshold: Lenient<i64>,
    regex: Lenient<bool>,
}

impl Isolation {
    pub(super) fn into_rule(self) -> Result<IsolationRule, InvalidRule> {
        let threshold = self
            .threshold
            .ok_or("threshold is missing, or misspelt; a rule needs one")?;
        let resource = target(self.resource, *self.regex);
        let rule = IsolationRule::new(resource, whole::<u32>("threshold", threshold)?);
        Ok(IsolationRule {
            id: name_of(self.id),
            ..rule
        })
    }
}
