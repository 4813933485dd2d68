//! Circuit breakers in Sentinel's format.

use std::time::Duration;

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Id,
    lenient::{Lenient, Name},
    millis, name_of, no_go, required, seconds, target, unknown, whole,
};
use crate::{
    rules::{BreakerRule, InvalidRule, Trip},
    stats::bounds,
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Degrade {
    id: Option<Id>,
    resource: Option<Name>,
    grade: Lenient<i64>,
    count: Lenient<f64>,
    time_window: Lenient<i64>,
    min_request_amount: Lenient<i64>,
    slow_ratio_threshold: Lenient<f64>,
    #[serde(alias = "statIntervalInMs")]
    stat_interval_ms: Lenient<i64>,
    regex: Lenient<bool>,
    // Fields of Sentinel for Go.
    strategy: Option<IgnoredAny>,
    threshold: Option<IgnoredAny>,
    retry_timeout_ms: Option<IgnoredAny>,
    max_allowed_rt_ms: Option<IgnoredAny>,
}

impl Degrade {
    pub(super) fn into_rule(self) -> Result<BreakerRule, InvalidRule> {
        no_go("strategy", self.strategy, "grade")?;
        no_go("threshold", self.threshold, "count")?;
        no_go(
            "retryTimeoutMs",
            self.retry_timeout_ms,
            "timeWindow, in seconds",
        )?;
        no_go("maxAllowedRtMs", self.max_allowed_rt_ms, "count")?;
        let count = required("count", *self.count)?;
        if !count.is_finite() || count < 0.0 {
            return Err(format!("count is {count}; it must be a number, 0 or greater").into());
        }
        let trip = match self.grade.unwrap_or(0) {
            0 => {
                let rt = Duration::try_from_secs_f64(count / 1_000.0).unwrap_or(Duration::MAX);
                Trip::SlowRatio {
                    rt,
                    ratio: self.slow_ratio_threshold.unwrap_or(1.0),
                }
            }
            1 => Trip::ErrorRatio { ratio: count },
            // For whole counts, more than 2.5 means more than 2.
            2 => Trip::ErrorCount {
                count: bounds::whole(count),
            },
            other => {
                return Err(unknown(
                    "grade",
                    other,
                    "0 (slow ratio), 1 (error ratio) or 2 (error count)",
                ));
            }
        };
        let open_time = seconds("timeWindow", self.time_window.unwrap_or(0))?;
        let rule = BreakerRule::new(target(self.resource, *self.regex), trip, open_time)
            .interval(millis(
                "statIntervalMs",
                self.stat_interval_ms.unwrap_or(1_000),
            )?)
            .min_calls(whole(
                "minRequestAmount",
                self.min_request_amount.unwrap_or(5),
            )?);
        // Sentinel counts in one slot, which begins again after the interval.
        Ok(BreakerRule {
            id: name_of(self.id),
            slots: 1,
            ..rule
        })
    }
}
