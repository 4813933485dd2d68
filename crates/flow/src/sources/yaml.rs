//! Rules of all kinds as one YAML document.
//!
//! ```
//! let text = r#"
//! flow:
//!   - resource: GET:/orders
//!     limit: 100/1s
//!     behaviour: throttle      # reject (default), warm-up, throttle, warm-up-throttle
//!     max_wait: 500ms          # of a throttle; a warm-up has warm_up: 10s and cold_factor: 3
//!   - pattern: /users/[0-9]+   # a resource by pattern instead of by name
//!     in_flight: 10
//!     origin: mobile           # or each_other_origin: true
//! isolation:
//!   - { resource: db, in_flight: 20 }
//! adaptive:
//!   - { resource: db, algorithm: vegas, max: 200 }   # or aimd, gradient2
//! breakers:
//!   - resource: db
//!     slower_than: 50ms        # with ratio; errors by ratio or by errors: 10
//!     ratio: 0.8
//!     interval: 20s
//!     open: 5s
//! hot_params:
//!   - { resource: search, arg: 0, limit: 5/1s, burst: 3, exceptions: { vip: 100 } }
//! system:
//!   - { qps: 5000, cpu: 0.9 }
//! authority:
//!   - { resource: admin, allow: [office] }
//! "#;
//! let rules = tidegate_flow::sources::yaml::parse(text)?;
//! assert_eq!((rules.flow.len(), rules.breakers[0].to_string().as_str()), (2, "above 0.8 slower than 50ms in 20s"));
//! # Ok::<(), tidegate_flow::sources::SourceError>(())
//! ```
//!
//! A field that is not known is refused: a misspelt limit must not go unnoticed.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, de::Error};
use tidegate_core::{Quota, parse_duration};

use super::SourceError;
use crate::{
    Arg,
    rules::{
        AdaptiveRule, Aimd, Algorithm, AuthorityRule, Behaviour, BreakerRule, FlowRule, Gradient2,
        HotParamRule, IsolationRule, Measure, MemoryThreshold, Origins, ParamKey, ParamMeasure, Relation,
        Rules, SystemRule, Target, Threshold, Trip, Vegas,
    },
};

/// Reads rules, and checks them.
///
/// # Errors
/// [`SourceError::Format`] with the place of what cannot be read, [`SourceError::Rules`] for rules that are impossible.
pub fn parse(text: &str) -> Result<Rules, SourceError> {
    let document: Option<Document> =
        serde_norway::from_str(text).map_err(|e| SourceError::Format(e.to_string()))?;
    document.unwrap_or_default().into_rules()
}

/// The document, for whoever has it inside another one: deserialize it, then [`into_rules`](Self::into_rules).
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Document {
    flow: Vec<Flow>,
    isolation: Vec<Isolation>,
    adaptive: Vec<Adaptive>,
    breakers: Vec<Breaker>,
    hot_params: Vec<HotParam>,
    system: Vec<System>,
    authority: Vec<Authority>,
}

impl Document {
    /// The rules, checked.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn into_rules(self) -> Result<Rules, SourceError> {
        let mut bad = Vec::new();
        let rules = Rules {
            flow: all("flow", self.flow, Flow::into_rule, &mut bad),
            isolation: all("isolation", self.isolation, Isolation::into_rule, &mut bad),
            adaptive: all("adaptive", self.adaptive, Adaptive::into_rule, &mut bad),
            breakers: all("breakers", self.breakers, Breaker::into_rule, &mut bad),
            hot_params: all("hot_params", self.hot_params, HotParam::into_rule, &mut bad),
            system: self.system.into_iter().map(System::into_rule).collect(),
            authority: all("authority", self.authority, Authority::into_rule, &mut bad),
        };
        if !bad.is_empty() {
            return Err(SourceError::Format(bad.join("; ")));
        }
        rules.validate()?;
        Ok(rules)
    }
}

fn all<Y, R>(
    kind: &str,
    rules: Vec<Y>,
    into_rule: impl Fn(Y) -> Result<R, String>,
    bad: &mut Vec<String>,
) -> Vec<R> {
    let mut good = Vec::with_capacity(rules.len());
    for (at, rule) in rules.into_iter().enumerate() {
        match into_rule(rule) {
            Ok(rule) => good.push(rule),
            Err(reason) => bad.push(format!("{kind}[{at}]: {reason}")),
        }
    }
    good
}

/// A duration such as `500ms` or `1m30s`.
#[derive(Clone, Copy, Debug)]
struct Span(Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parse_duration(&String::deserialize(from)?).map(Self).map_err(D::Error::custom)
    }
}

/// A limit such as `100/1s`.
#[derive(Clone, Copy, Debug)]
struct Limit(Quota);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map(Self).map_err(D::Error::custom)
    }
}

fn target(resource: Option<String>, pattern: Option<String>) -> Result<Target, String> {
    match (resource, pattern) {
        (Some(name), None) => Ok(Target::Name(name)),
        (None, Some(pattern)) => Ok(Target::Pattern(pattern)),
        _ => Err("give it a resource or a pattern, and not both".into()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flow {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    limit: Option<Limit>,
    in_flight: Option<u32>,
    memory: Option<Memory>,
    origin: Option<String>,
    #[serde(default)]
    each_other_origin: bool,
    related: Option<String>,
    context: Option<String>,
    #[serde(default)]
    behaviour: How,
    max_wait: Option<Span>,
    warm_up: Option<Span>,
    cold_factor: Option<f64>,
    #[serde(default)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum How {
    #[default]
    Reject,
    WarmUp,
    Throttle,
    WarmUpThrottle,
}

/// A threshold that falls from the limit to `when_scarce` between two marks of memory in use, in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    when_scarce: f64,
    low_mark: u64,
    high_mark: u64,
}

impl Flow {
    fn into_rule(self) -> Result<FlowRule, String> {
        let (count, interval, measure) = match (self.limit, self.in_flight) {
            (Some(Limit(quota)), None) => (quota.limit(), quota.window(), Measure::Rate),
            (None, Some(units)) => (units, Duration::from_secs(1), Measure::InFlight),
            _ => return Err("give it a limit (as 100/1s) or in_flight, and not both".into()),
        };
        let threshold = match self.memory {
            None => Threshold::from(count),
            Some(Memory { when_scarce, low_mark, high_mark }) => Threshold::Memory(MemoryThreshold {
                when_free: count.into(),
                when_scarce,
                low_mark,
                high_mark,
            }),
        };
        let (throttles, warms) = match self.behaviour {
            How::Reject => (false, false),
            How::WarmUp => (false, true),
            How::Throttle => (true, false),
            How::WarmUpThrottle => (true, true),
        };
        if self.max_wait.is_some() && !throttles {
            return Err("max_wait is for the behaviours throttle and warm-up-throttle".into());
        }
        if (self.warm_up.is_some() || self.cold_factor.is_some()) && !warms {
            return Err("warm_up and cold_factor are for the behaviours warm-up and warm-up-throttle".into());
        }
        let max_wait = self.max_wait.map_or(Duration::from_millis(500), |span| span.0);
        let period = self.warm_up.map_or(Duration::from_secs(10), |span| span.0);
        let cold_factor = self.cold_factor.unwrap_or(3.0);
        Ok(FlowRule {
            id: self.id,
            resource: target(self.resource, self.pattern)?,
            threshold,
            interval,
            measure,
            relation: match (self.related, self.context) {
                (None, None) => Relation::Direct,
                (Some(other), None) => Relation::Related(other),
                (None, Some(context)) => Relation::Context(context),
                _ => return Err("give it a related resource or a context, not both".into()),
            },
            origins: match (self.origin, self.each_other_origin) {
                (None, false) => Origins::Any,
                (Some(origin), false) => Origins::Only(origin),
                (None, true) => Origins::Others,
                _ => return Err("give it an origin or each_other_origin, not both".into()),
            },
            behaviour: match self.behaviour {
                How::Reject => Behaviour::Reject,
                How::WarmUp => Behaviour::WarmUp { period, cold_factor },
                How::Throttle => Behaviour::Throttle { max_wait },
                How::WarmUpThrottle => Behaviour::WarmUpThrottle { period, cold_factor, max_wait },
            },
            strict: self.strict,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Isolation {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    in_flight: u32,
}

impl Isolation {
    fn into_rule(self) -> Result<IsolationRule, String> {
        let resource = target(self.resource, self.pattern)?;
        Ok(IsolationRule { id: self.id, ..IsolationRule::new(resource, self.in_flight) })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Adaptive {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    algorithm: Learns,
    initial: Option<u32>,
    min: Option<u32>,
    max: Option<u32>,
    slower_than: Option<Span>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Learns {
    Aimd,
    Gradient2,
    Vegas,
}

impl Adaptive {
    fn into_rule(self) -> Result<AdaptiveRule, String> {
        let initial = self.initial.unwrap_or(20);
        let algorithm = match (self.algorithm, self.slower_than) {
            (Learns::Aimd, slow) => {
                let default = Aimd::default();
                Algorithm::Aimd(Aimd { initial, slow: slow.map_or(default.slow, |span| span.0), ..default })
            }
            (_, Some(_)) => return Err("slower_than is for the algorithm aimd".into()),
            (Learns::Gradient2, None) => Algorithm::Gradient2(Gradient2::default().initial(initial)),
            (Learns::Vegas, None) => Algorithm::Vegas(Vegas::default().initial(initial)),
        };
        let rule = AdaptiveRule::new(target(self.resource, self.pattern)?, algorithm);
        let (min, max) = (self.min.unwrap_or(rule.min), self.max.unwrap_or(rule.max));
        Ok(AdaptiveRule { id: self.id, ..rule.bounds(min, max) })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Breaker {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    slower_than: Option<Span>,
    ratio: Option<f64>,
    errors: Option<u64>,
    interval: Option<Span>,
    slots: Option<u32>,
    min_calls: Option<u32>,
    open: Span,
    probes: Option<u32>,
    probe_timeout: Option<Span>,
}

impl Breaker {
    fn into_rule(self) -> Result<BreakerRule, String> {
        let trip = match (self.slower_than, self.ratio, self.errors) {
            (Some(Span(rt)), Some(ratio), None) => Trip::SlowRatio { rt, ratio },
            (None, Some(ratio), None) => Trip::ErrorRatio { ratio },
            (None, None, Some(count)) => Trip::ErrorCount { count },
            _ => {
                return Err(
                    "give it slower_than and ratio, or ratio alone (of errors), or errors alone".into()
                );
            }
        };
        let rule = BreakerRule::new(target(self.resource, self.pattern)?, trip, self.open.0);
        Ok(BreakerRule {
            id: self.id,
            interval: self.interval.map_or(rule.interval, |span| span.0),
            slots: self.slots.unwrap_or(rule.slots),
            min_calls: self.min_calls.unwrap_or(rule.min_calls),
            probes: self.probes.unwrap_or(rule.probes),
            probe_timeout: self.probe_timeout.map(|span| span.0),
            ..rule
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HotParam {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    arg: Option<i32>,
    name: Option<String>,
    limit: Option<Limit>,
    in_flight: Option<u32>,
    max_wait: Option<Span>,
    #[serde(default)]
    burst: u32,
    #[serde(default)]
    exceptions: BTreeMap<Value, u32>,
    max_values: Option<usize>,
}

/// A value of an argument: `5` is the number, `"5"` the text.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Int(i64),
    Text(String),
}

impl From<Value> for Arg<'static> {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => value.into(),
            Value::Int(value) => value.into(),
            Value::Text(text) => text.into(),
        }
    }
}

impl HotParam {
    fn into_rule(self) -> Result<HotParamRule, String> {
        let key = match (self.arg, self.name) {
            (Some(index), None) => ParamKey::Index(index),
            (None, Some(name)) => ParamKey::Name(name),
            _ => return Err("give it an arg (0 is the first, -1 the last) or a name, and not both".into()),
        };
        let (threshold, duration, measure) = match (self.limit, self.in_flight, self.max_wait) {
            (Some(Limit(quota)), None, None) => (quota.limit(), quota.window(), ParamMeasure::Rate),
            (Some(Limit(quota)), None, Some(Span(max_wait))) => {
                (quota.limit(), quota.window(), ParamMeasure::Throttle { max_wait })
            }
            (None, Some(units), None) => (units, Duration::from_secs(1), ParamMeasure::InFlight),
            _ => return Err("give it a limit (as 5/1s, with max_wait to throttle) or in_flight".into()),
        };
        let rule = HotParamRule::new(target(self.resource, self.pattern)?, key, threshold);
        Ok(HotParamRule {
            id: self.id,
            measure,
            duration,
            burst: self.burst,
            exceptions: self.exceptions.into_iter().map(|(value, units)| (value.into(), units)).collect(),
            max_values: self.max_values.unwrap_or(rule.max_values),
            ..rule
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    id: Option<String>,
    load: Option<f64>,
    cpu: Option<f64>,
    mean_rt: Option<Span>,
    in_flight: Option<u64>,
    qps: Option<u64>,
}

impl System {
    fn into_rule(self) -> SystemRule {
        let Self { id, load, cpu, mean_rt, in_flight, qps } = self;
        SystemRule { id, load, cpu, mean_rt: mean_rt.map(|span| span.0), in_flight, qps }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Authority {
    id: Option<String>,
    resource: Option<String>,
    pattern: Option<String>,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
}

impl Authority {
    fn into_rule(self) -> Result<AuthorityRule, String> {
        let resource = target(self.resource, self.pattern)?;
        let rule = match (self.allow, self.deny) {
            (Some(origins), None) => AuthorityRule::allow(resource, origins),
            (None, Some(origins)) => AuthorityRule::deny(resource, origins),
            _ => return Err("give it the origins to allow or those to deny, and not both".into()),
        };
        Ok(AuthorityRule { id: self.id, ..rule })
    }
}
