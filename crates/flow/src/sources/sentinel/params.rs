//! Hot-parameter rules in Sentinel's words.

use std::time::Duration;

use serde::Deserialize;

use super::{Id, millis, name_of, no_cluster, target, unknown};
use crate::{
    Arg,
    rules::{HotParamRule, ParamKey, ParamMeasure},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ParamFlow {
    id: Option<Id>,
    resource: String,
    grade: i64,
    param_idx: i32,
    param_key: Option<String>,
    #[serde(alias = "threshold")]
    count: f64,
    control_behavior: i64,
    max_queueing_time_ms: u64,
    burst_count: u32,
    duration_in_sec: u64,
    #[serde(rename = "paramFlowItemList")]
    items: Vec<Item>,
    regex: bool,
    cluster_mode: bool,
}

impl Default for ParamFlow {
    fn default() -> Self {
        Self {
            id: None,
            resource: String::new(),
            grade: 1,
            param_idx: 0,
            param_key: None,
            count: 0.0,
            control_behavior: 0,
            max_queueing_time_ms: 0,
            burst_count: 0,
            duration_in_sec: 1,
            items: Vec::new(),
            regex: false,
            cluster_mode: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    object: serde_json::Value,
    count: f64,
    #[serde(default)]
    class_type: String,
}

impl Item {
    fn into_exception(self) -> Result<(Arg<'static>, u32), String> {
        let text = match self.object {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        let arg = match self.class_type.as_str() {
            "int" | "long" | "short" | "byte" | "java.lang.Integer" | "java.lang.Long"
            | "java.lang.Short" | "java.lang.Byte" => text.parse::<i64>().ok().map(Arg::from),
            "boolean" | "java.lang.Boolean" => text.parse::<bool>().ok().map(Arg::from),
            _ => Some(Arg::from(text.clone())),
        };
        let arg = arg.ok_or_else(|| format!("the exception {text} is no {}", self.class_type))?;
        Ok((arg, units("the exception's count", self.count)?))
    }
}

fn units(what: &str, count: f64) -> Result<u32, String> {
    if !(0.0..=f64::from(u32::MAX)).contains(&count) {
        return Err(format!("{what} is {count}; it must be from 0 to 4294967295"));
    }
    // In range, checked above; whole units fit under a fraction.
    #[allow(clippy::cast_sign_loss)]
    let units = count as u32;
    Ok(units)
}

impl ParamFlow {
    pub(super) fn into_rule(self) -> Result<HotParamRule, String> {
        no_cluster(self.cluster_mode)?;
        let measure = match (self.grade, self.control_behavior) {
            (0, _) => ParamMeasure::InFlight,
            (1, 0) => ParamMeasure::Rate,
            (1, 2) => ParamMeasure::Throttle { max_wait: millis(self.max_queueing_time_ms) },
            (1, other) => return Err(unknown("controlBehavior", other, "0 (reject) or 2 (throttle)")),
            (other, _) => return Err(unknown("grade", other, "0 (threads) or 1 (QPS)")),
        };
        let key = match self.param_key.filter(|key| !key.is_empty()) {
            Some(name) => ParamKey::Name(name),
            None => ParamKey::Index(self.param_idx),
        };
        let exceptions: Result<Vec<_>, _> = self.items.into_iter().map(Item::into_exception).collect();
        Ok(HotParamRule {
            id: name_of(self.id),
            measure,
            duration: Duration::from_secs(self.duration_in_sec),
            burst: self.burst_count,
            exceptions: exceptions?,
            ..HotParamRule::new(target(self.resource, self.regex), key, units("count", self.count)?)
        })
    }
}
