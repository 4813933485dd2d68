//! Hot-parameter rules in Sentinel's format.

use crate::rules::InvalidRule;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::{
    Id, Others,
    cluster_config::{ClusterConfig, applies_here},
    lenient::{Lenient, Name},
    millis, name_of, no_go, refuse_gateway, required, seconds, target, unknown, whole,
};
use crate::{
    Arg,
    rules::{HotParamRule, ParamKey, ParamMeasure},
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ParamFlow {
    id: Option<Id>,
    resource: Option<Name>,
    grade: Lenient<i64>,
    param_idx: Lenient<i64>,
    param_key: Option<String>,
    #[serde(alias = "threshold")]
    count: Lenient<f64>,
    control_behavior: Lenient<i64>,
    max_queueing_time_ms: Lenient<i64>,
    burst_count: Lenient<i64>,
    duration_in_sec: Lenient<i64>,
    #[serde(rename = "paramFlowItemList")]
    items: Option<Vec<Item>>,
    regex: Lenient<bool>,
    cluster_mode: Lenient<bool>,
    cluster_config: Option<ClusterConfig>,
    // Fields of Sentinel for Go.
    param_index: Option<IgnoredAny>,
    metric_type: Option<IgnoredAny>,
    specific_items: Option<IgnoredAny>,
    #[serde(flatten)]
    others: Others,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Item {
    object: Option<Value>,
    count: Lenient<f64>,
    class_type: Option<String>,
}

impl Item {
    pub(super) fn into_exception(self) -> Result<(Arg<'static>, u32), InvalidRule> {
        let count = units(
            "the exception's count",
            required("the exception's count", *self.count)?,
        )?;
        Ok((
            arg(self.object, self.class_type.as_deref().unwrap_or_default())?,
            count,
        ))
    }
}

/// Reads the value of an exception according to its class or, without a class, according to its
/// JSON type.
fn arg(object: Option<Value>, class: &str) -> Result<Arg<'static>, InvalidRule> {
    let (text, own_class) = match object.unwrap_or_default() {
        Value::Null => return Err("an exception has no object; name the value".into()),
        Value::String(text) => (text, "String"),
        other @ Value::Bool(_) => (other.to_string(), "boolean"),
        Value::Number(number) if number.is_f64() => (number.to_string(), "double"),
        other => (other.to_string(), "long"),
    };
    let class = if class.is_empty() { own_class } else { class };
    let arg = match class {
        "int" | "long" | "short" | "byte" | "java.lang.Integer" | "java.lang.Long"
        | "java.lang.Short" | "java.lang.Byte" => text.parse::<i64>().ok().map(Arg::from),
        "double" | "java.lang.Double" => text.parse::<f64>().ok().map(Arg::from),
        "float" | "java.lang.Float" => text.parse::<f32>().ok().map(Arg::from),
        "boolean" | "java.lang.Boolean" => text
            .to_ascii_lowercase()
            .parse::<bool>()
            .ok()
            .map(Arg::from),
        "char" | "java.lang.Character" => text.parse::<char>().ok().map(Arg::from),
        "String" | "java.lang.String" => return Ok(text.into()),
        other => {
            return Err(format!(
                "the exception {text} has the classType {other}; it must be int, long, short, byte, double, float, \
                 boolean, char or java.lang.String"
            ).into());
        }
    };
    arg.ok_or_else(|| format!("the exception {text} is not a valid {class}").into())
}

fn units(what: &str, count: f64) -> Result<u32, InvalidRule> {
    if !(0.0..=f64::from(u32::MAX)).contains(&count) {
        return Err(format!("{what} is {count}; it must be from 0 to 4294967295").into());
    }
    // Checked above to be in range; only whole units fit under a fraction.
    #[allow(clippy::cast_sign_loss)]
    let units = count as u32;
    Ok(units)
}

impl ParamFlow {
    pub(super) fn into_rule(self) -> Result<Option<HotParamRule>, InvalidRule> {
        if !applies_here(*self.cluster_mode, self.cluster_config.as_ref(), false) {
            return Ok(None);
        }
        refuse_gateway(&self.others)?;
        no_go("paramIndex", self.param_index, "paramIdx")?;
        no_go("metricType", self.metric_type, "grade")?;
        no_go("specificItems", self.specific_items, "paramFlowItemList")?;
        let measure = match (self.grade.unwrap_or(1), self.control_behavior.unwrap_or(0)) {
            (0, _) => ParamMeasure::InFlight,
            (1, 0) => ParamMeasure::Rate,
            (1, 2) => {
                let max_wait = millis("maxQueueingTimeMs", self.max_queueing_time_ms.unwrap_or(0))?;
                ParamMeasure::Throttle { max_wait }
            }
            (1, other) => {
                return Err(unknown(
                    "controlBehavior",
                    other,
                    "0 (reject) or 2 (throttle)",
                ));
            }
            (other, _) => return Err(unknown("grade", other, "0 (threads) or 1 (QPS)")),
        };
        let used = measure != ParamMeasure::InFlight;
        let duration = seconds(
            "durationInSec",
            self.duration_in_sec.filter(|_| used).unwrap_or(1),
        )?;
        let key = match (
            self.param_key.filter(|key| !key.is_empty()),
            *self.param_idx,
        ) {
            (Some(name), _) => ParamKey::Name(name),
            (None, Some(index)) => ParamKey::Index(i32::try_from(index).map_err(|_| {
                format!("paramIdx {index} is larger than any call's number of arguments")
            })?),
            // Do not assume the first argument: the field's name is probably misspelt. Sentinel
            // does not load such a rule either.
            (None, None) => {
                return Err(
                    "paramIdx is missing, or misspelt; a rule needs one (0 is the first argument, -1 the \
                            last), or a paramKey"
                        .into(),
                );
            }
        };
        let count = units("count", required("count", *self.count)?)?;
        let items = self.items.unwrap_or_default();
        let exceptions: Result<Vec<_>, _> = items.into_iter().map(Item::into_exception).collect();
        Ok(Some(HotParamRule {
            id: name_of(self.id),
            measure,
            duration,
            burst: match measure {
                ParamMeasure::Rate => whole("burstCount", self.burst_count.unwrap_or(0))?,
                ParamMeasure::Throttle { .. } | ParamMeasure::InFlight => 0,
            },
            exceptions: exceptions?,
            ..HotParamRule::new(target(self.resource, *self.regex), key, count)
        }))
    }
}
