//! Writes rules in Sentinel's format.

use std::time::Duration;

use serde_json::{Value, json};

use super::Kind;
use crate::{
    Arg,
    rules::{
        AuthorityRule, BreakerRule, FlowRule, HotParamRule, IsolationRule, Measure, Origins,
        ParamKey, ParamMeasure, Relation, Rules, SystemRule, Target, Threshold, Trip,
    },
};

/// Writes the rules of one kind as [`parse`](super::parse) and Sentinel for Java read them. Also
/// returns those that the format cannot express, each with the reason; they are left out. An id
/// that is not a number is left out, too.
#[must_use]
pub fn write(kind: Kind, rules: &Rules) -> (String, Vec<String>) {
    let mut left_out = Vec::new();
    let values = match kind {
        Kind::Flow => all(&rules.flow, flow, &mut left_out),
        Kind::Degrade => all(&rules.breakers, breaker, &mut left_out),
        Kind::ParamFlow => all(&rules.hot_params, hot_param, &mut left_out),
        Kind::System => all(&rules.system, system, &mut left_out),
        Kind::Authority => all(&rules.authority, authority, &mut left_out),
        Kind::Isolation => all(&rules.isolation, isolation, &mut left_out),
    };
    (Value::Array(values).to_string(), left_out)
}

fn all<R: std::fmt::Display>(
    rules: &[R],
    write: impl Fn(&R) -> Result<Value, &'static str>,
    left_out: &mut Vec<String>,
) -> Vec<Value> {
    let mut values = Vec::new();
    for rule in rules {
        match write(rule) {
            Ok(mut value) => {
                if let Value::Object(fields) = &mut value {
                    fields.retain(|_, value| !value.is_null());
                }
                values.push(value);
            }
            Err(why) => left_out.push(format!("{rule}: {why}")),
        }
    }
    values
}

type Written = Result<Value, &'static str>;

fn id(id: Option<&String>) -> Option<i64> {
    id?.parse().ok()
}

/// `true` for a pattern, else nothing.
fn regex(target: &Target) -> Option<bool> {
    matches!(target, Target::Pattern(_)).then_some(true)
}

fn fixed(threshold: Threshold) -> Result<f64, &'static str> {
    match threshold {
        Threshold::Fixed(count) => Ok(count),
        Threshold::Memory(_) => Err("Sentinel for Java has no threshold by memory"),
    }
}

fn seconds(span: Duration) -> Result<u64, &'static str> {
    if span.subsec_nanos() == 0 {
        Ok(span.as_secs())
    } else {
        Err("Sentinel has whole seconds here")
    }
}

fn millis(span: Duration) -> Result<u64, &'static str> {
    let whole = u64::try_from(span.as_millis())
        .ok()
        .filter(|&ms| Duration::from_millis(ms) == span);
    whole.ok_or("Sentinel has whole milliseconds here")
}

fn flow(rule: &FlowRule) -> Written {
    if rule.strict {
        return Err("Sentinel has no strict rules");
    }
    let (warm_up, max_wait) = rule.behaviour.parts();
    let behaviour = u8::from(warm_up.is_some()) + 2 * u8::from(max_wait.is_some());
    let (strategy, other) = match &rule.relation {
        Relation::Direct => (0, None),
        Relation::Related(other) => (1, Some(other)),
        Relation::Context(other) => (2, Some(other)),
    };
    let interval = millis(rule.interval)?;
    Ok(json!({
        "id": id(rule.id.as_ref()),
        "resource": rule.resource.as_str(),
        "regex": regex(&rule.resource),
        "limitApp": match &rule.origins {
            Origins::Any => "default",
            Origins::Only(origin) => origin,
            Origins::Others => "other",
        },
        "grade": u8::from(rule.measure == Measure::Rate),
        "count": fixed(rule.threshold)?,
        "strategy": strategy,
        "refResource": other,
        "controlBehavior": behaviour,
        "warmUpPeriodSec": warm_up.map(|(period, _)| seconds(period)).transpose()?,
        // In Sentinel for Java it is a setting of the program, which is 3 by default.
        "warmUpColdFactor": warm_up.map(|(_, factor)| factor).filter(|&factor| factor.to_bits() != 3.0_f64.to_bits()),
        "maxQueueingTimeMs": max_wait.map(millis).transpose()?,
        // Only Sentinel for Go has it.
        "statIntervalInMs": (rule.measure == Measure::Rate && interval != 1_000).then_some(interval),
    }))
}

fn breaker(rule: &BreakerRule) -> Written {
    if rule.probes != 1 {
        return Err("a breaker of Sentinel has one probe");
    }
    let (grade, count, ratio) = match rule.trip {
        Trip::SlowRatio { rt, ratio } => (0, json!(millis(rt)?), Some(ratio)),
        Trip::ErrorRatio { ratio } => (1, json!(ratio), None),
        Trip::ErrorCount { count } => (2, json!(count), None),
    };
    Ok(json!({
        "id": id(rule.id.as_ref()),
        "resource": rule.resource.as_str(),
        "regex": regex(&rule.resource),
        "grade": grade,
        "count": count,
        "slowRatioThreshold": ratio,
        "timeWindow": seconds(rule.open_time)?,
        "minRequestAmount": rule.min_calls,
        "statIntervalMs": millis(rule.interval)?,
    }))
}

fn hot_param(rule: &HotParamRule) -> Written {
    if rule.deny_when_full {
        return Err("Sentinel cannot deny values while the table is full");
    }
    let (grade, behaviour, max_wait) = match rule.measure {
        ParamMeasure::InFlight => (0, 0, None),
        ParamMeasure::Rate => (1, 0, None),
        ParamMeasure::Throttle { max_wait } => (1, 2, Some(max_wait)),
    };
    let (index, name) = match &rule.key {
        ParamKey::Index(index) => (Some(index), None),
        ParamKey::Name(name) => (None, Some(name)),
    };
    let items = rule.exceptions.iter().map(|(value, count)| {
        let class = match value {
            Arg::Int(value) if i32::try_from(*value).is_ok() => "int",
            Arg::Int(_) => "long",
            Arg::Float(_) => "double",
            Arg::Bool(_) => "boolean",
            Arg::Text(_) => "java.lang.String",
        };
        json!({"object": value.to_string(), "count": count, "classType": class})
    });
    Ok(json!({
        "id": id(rule.id.as_ref()),
        "resource": rule.resource.as_str(),
        "regex": regex(&rule.resource),
        "paramIdx": index,
        "paramKey": name,
        "grade": grade,
        "count": rule.threshold,
        "controlBehavior": behaviour,
        "maxQueueingTimeMs": max_wait.map(millis).transpose()?,
        "burstCount": rule.burst,
        "durationInSec": seconds(rule.duration)?,
        "paramFlowItemList": items.collect::<Vec<_>>(),
    }))
}

fn system(rule: &SystemRule) -> Written {
    Ok(json!({
        "id": id(rule.id.as_ref()),
        "highestSystemLoad": rule.load.unwrap_or(-1.0),
        "highestCpuUsage": rule.cpu.unwrap_or(-1.0),
        "avgRt": rule.mean_rt.map(millis).transpose()?.map_or(json!(-1), |ms| json!(ms)),
        "maxThread": rule.in_flight.map_or(json!(-1), |units| json!(units)),
        "qps": rule.qps.map_or(json!(-1), |units| json!(units)),
    }))
}

fn authority(rule: &AuthorityRule) -> Written {
    if rule
        .origins
        .iter()
        .any(|origin| origin.contains(',') || origin.trim() != origin)
    {
        return Err("Sentinel separates origins by commas");
    }
    Ok(json!({
        "id": id(rule.id.as_ref()),
        "resource": rule.resource.as_str(),
        "regex": regex(&rule.resource),
        "limitApp": rule.origins.join(","),
        "strategy": u8::from(!rule.allow),
    }))
}

fn isolation(rule: &IsolationRule) -> Written {
    Ok(json!({
        "id": rule.id,
        "resource": rule.resource.as_str(),
        "regex": regex(&rule.resource),
        "threshold": fixed(rule.threshold)?,
    }))
}
