//! Rules as JSON in Sentinel's field names and numbers: an array of one kind of rule.
//!
//! The fields are those of Sentinel for Java; of Sentinel for Go, `statIntervalInMs`, `warmUpColdFactor`, the memory
//! thresholds and the isolation rule. Fields that are not known are passed over, as dashboards add their own. Cluster
//! rules are refused: what several processes share is a limit of the shared store, not a rule of one gate.

mod params;

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};

use super::{RuleUpdate, SourceError};
use crate::rules::{
    AuthorityRule, Behaviour, BreakerRule, FlowRule, IsolationRule, Measure, MemoryThreshold, Origins,
    Relation, Rules, SystemRule, Target, Threshold, Trip,
};
use params::ParamFlow;

/// Which kind of rule an array holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Flow rules.
    Flow,
    /// Circuit breakers.
    Degrade,
    /// Hot parameters.
    ParamFlow,
    /// System protection.
    System,
    /// Authority by origin.
    Authority,
    /// Units in flight.
    Isolation,
}

/// Reads an array of rules of one kind, and checks them.
///
/// # Errors
/// [`SourceError::Format`] with the line and column of what is no JSON or of the wrong type, or with the place and the
/// name of the rule that says something which no rule can mean. [`SourceError::Rules`] for rules that are impossible.
pub fn parse(kind: Kind, text: &str) -> Result<RuleUpdate, SourceError> {
    let mut update = RuleUpdate::default();
    match kind {
        Kind::Flow => update.flow = Some(array(text, Flow::into_rule)?),
        Kind::Degrade => update.breakers = Some(array(text, Degrade::into_rule)?),
        Kind::ParamFlow => update.hot_params = Some(array(text, ParamFlow::into_rule)?),
        Kind::System => update.system = Some(array(text, |rule: System| Ok(rule.into_rule()))?),
        Kind::Authority => update.authority = Some(array(text, Authority::into_rule)?),
        Kind::Isolation => update.isolation = Some(array(text, |rule: Isolation| Ok(rule.into_rule()))?),
    }
    let mut rules = Rules::default();
    update.clone().apply(&mut rules);
    rules.validate()?;
    Ok(update)
}

fn array<J: DeserializeOwned, R>(
    text: &str,
    into_rule: impl Fn(J) -> Result<R, String>,
) -> Result<Vec<R>, SourceError> {
    let rules: Vec<J> = serde_json::from_str(text).map_err(|e| SourceError::Format(e.to_string()))?;
    let mut bad = Vec::new();
    let mut good = Vec::with_capacity(rules.len());
    for (at, rule) in rules.into_iter().enumerate() {
        match into_rule(rule) {
            Ok(rule) => good.push(rule),
            Err(reason) => bad.push(format!("rule {at}: {reason}")),
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(SourceError::Format(bad.join("; "))) }
}

fn target(resource: String, regex: bool) -> Target {
    if regex { Target::Pattern(resource) } else { Target::Name(resource) }
}

fn no_cluster(cluster: bool) -> Result<(), String> {
    if cluster {
        return Err(
            "clusterMode is for a token server; leave it out, or use a limit of the shared store".into()
        );
    }
    Ok(())
}

fn unknown(field: &str, value: i64, known: &str) -> String {
    format!("{field} is {value}; it must be {known}")
}

/// An id is a number in Sentinel, and often a text in what people write.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(i64),
    Text(String),
}

fn name_of(id: Option<Id>) -> Option<String> {
    match id? {
        Id::Number(number) => Some(number.to_string()),
        Id::Text(text) => Some(text).filter(|text| !text.is_empty()),
    }
}

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Flow {
    id: Option<Id>,
    resource: String,
    limit_app: String,
    grade: i64,
    #[serde(alias = "threshold")]
    count: f64,
    #[serde(alias = "relationStrategy")]
    strategy: i64,
    ref_resource: Option<String>,
    control_behavior: i64,
    warm_up_period_sec: u64,
    warm_up_cold_factor: f64,
    max_queueing_time_ms: u64,
    stat_interval_in_ms: u64,
    regex: bool,
    cluster_mode: bool,
    low_mem_usage_threshold: f64,
    high_mem_usage_threshold: f64,
    mem_low_water_mark_bytes: u64,
    mem_high_water_mark_bytes: u64,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            id: None,
            resource: String::new(),
            limit_app: "default".into(),
            grade: 1,
            count: 0.0,
            strategy: 0,
            ref_resource: None,
            control_behavior: 0,
            warm_up_period_sec: 10,
            warm_up_cold_factor: 3.0,
            max_queueing_time_ms: 500,
            stat_interval_in_ms: 1_000,
            regex: false,
            cluster_mode: false,
            low_mem_usage_threshold: 0.0,
            high_mem_usage_threshold: 0.0,
            mem_low_water_mark_bytes: 0,
            mem_high_water_mark_bytes: 0,
        }
    }
}

impl Flow {
    fn into_rule(self) -> Result<FlowRule, String> {
        no_cluster(self.cluster_mode)?;
        let measure = match self.grade {
            0 => Measure::InFlight,
            1 => Measure::Rate,
            other => return Err(unknown("grade", other, "0 (threads) or 1 (QPS)")),
        };
        let other = self.ref_resource.unwrap_or_default();
        let relation = match self.strategy {
            0 => Relation::Direct,
            // Sentinel's throttle looks at no traffic, whatever the strategy.
            1 if measure == Measure::Rate && self.control_behavior == 2 => Relation::Direct,
            1 => Relation::Related(other),
            2 => Relation::Context(other),
            other => return Err(unknown("strategy", other, "0 (direct), 1 (relate) or 2 (chain)")),
        };
        let period = Duration::from_secs(self.warm_up_period_sec);
        let cold_factor = self.warm_up_cold_factor;
        let max_wait = millis(self.max_queueing_time_ms);
        let behaviour = match self.control_behavior {
            // Sentinel does not look at the behaviour of a rule about threads.
            _ if measure == Measure::InFlight => Behaviour::Reject,
            0 => Behaviour::Reject,
            1 => Behaviour::WarmUp { period, cold_factor },
            2 => Behaviour::Throttle { max_wait },
            3 => Behaviour::WarmUpThrottle { period, cold_factor, max_wait },
            other => return Err(unknown("controlBehavior", other, "from 0 to 3")),
        };
        let threshold = if self.mem_high_water_mark_bytes == 0 {
            Threshold::Fixed(self.count)
        } else {
            // Sentinel names the threshold by the memory usage: with low usage the higher one.
            Threshold::Memory(MemoryThreshold {
                when_free: self.low_mem_usage_threshold,
                when_scarce: self.high_mem_usage_threshold,
                low_mark: self.mem_low_water_mark_bytes,
                high_mark: self.mem_high_water_mark_bytes,
            })
        };
        Ok(FlowRule {
            id: name_of(self.id),
            resource: target(self.resource, self.regex),
            threshold,
            interval: millis(self.stat_interval_in_ms),
            measure,
            relation,
            origins: match self.limit_app.as_str() {
                "default" | "" => Origins::Any,
                "other" => Origins::Others,
                origin => Origins::Only(origin.into()),
            },
            behaviour,
            strict: false,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Degrade {
    id: Option<Id>,
    resource: String,
    grade: i64,
    count: f64,
    time_window: u64,
    min_request_amount: u32,
    slow_ratio_threshold: f64,
    #[serde(alias = "statIntervalInMs")]
    stat_interval_ms: u64,
    regex: bool,
}

impl Default for Degrade {
    fn default() -> Self {
        Self {
            id: None,
            resource: String::new(),
            grade: 0,
            count: 0.0,
            time_window: 0,
            min_request_amount: 5,
            slow_ratio_threshold: 1.0,
            stat_interval_ms: 1_000,
            regex: false,
        }
    }
}

impl Degrade {
    fn into_rule(self) -> Result<BreakerRule, String> {
        if !self.count.is_finite() || self.count < 0.0 {
            return Err(format!("count is {}; it must be a number from 0 on", self.count));
        }
        let trip = match self.grade {
            0 => {
                let rt = Duration::try_from_secs_f64(self.count / 1_000.0).unwrap_or(Duration::MAX);
                Trip::SlowRatio { rt, ratio: self.slow_ratio_threshold }
            }
            1 => Trip::ErrorRatio { ratio: self.count },
            // A cast saturates; what is negative was refused above. More than 2.5 are more than 2.
            #[allow(clippy::cast_sign_loss)]
            2 => Trip::ErrorCount { count: self.count as u64 },
            other => {
                return Err(unknown("grade", other, "0 (slow ratio), 1 (error ratio) or 2 (error count)"));
            }
        };
        let open_time = Duration::from_secs(self.time_window);
        let rule = BreakerRule::new(target(self.resource, self.regex), trip, open_time)
            .interval(millis(self.stat_interval_ms))
            .min_calls(self.min_request_amount);
        Ok(BreakerRule { id: name_of(self.id), ..rule })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct System {
    id: Option<Id>,
    highest_system_load: f64,
    highest_cpu_usage: f64,
    qps: f64,
    avg_rt: f64,
    max_thread: f64,
}

/// Sentinel's default of each, −1, is no limit; so is whatever is negative.
impl Default for System {
    fn default() -> Self {
        let none = -1.0;
        Self {
            id: None,
            highest_system_load: none,
            highest_cpu_usage: none,
            qps: none,
            avg_rt: none,
            max_thread: none,
        }
    }
}

impl System {
    fn into_rule(self) -> SystemRule {
        let limit = |value: f64| (value >= 0.0).then_some(value);
        // A cast saturates; what is negative is no limit.
        #[allow(clippy::cast_sign_loss)]
        let units = |value: f64| limit(value).map(|value| value as u64);
        let span = |ms: f64| Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or(Duration::MAX);
        SystemRule {
            id: name_of(self.id),
            load: limit(self.highest_system_load),
            cpu: limit(self.highest_cpu_usage),
            mean_rt: limit(self.avg_rt).map(span),
            in_flight: units(self.max_thread),
            qps: units(self.qps),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authority {
    id: Option<Id>,
    resource: String,
    limit_app: String,
    #[serde(default)]
    strategy: i64,
    #[serde(default)]
    regex: bool,
}

impl Authority {
    fn into_rule(self) -> Result<AuthorityRule, String> {
        let allow = match self.strategy {
            0 => true,
            1 => false,
            other => return Err(unknown("strategy", other, "0 (allow) or 1 (deny)")),
        };
        let origins: BTreeSet<&str> =
            self.limit_app.split(',').map(str::trim).filter(|origin| !origin.is_empty()).collect();
        let resource = target(self.resource, self.regex);
        Ok(AuthorityRule { id: name_of(self.id), allow, ..AuthorityRule::allow(resource, origins) })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Isolation {
    id: Option<Id>,
    resource: String,
    #[serde(alias = "count")]
    threshold: u32,
    #[serde(default)]
    regex: bool,
}

impl Isolation {
    fn into_rule(self) -> IsolationRule {
        let resource = target(self.resource, self.regex);
        IsolationRule { id: name_of(self.id), ..IsolationRule::new(resource, self.threshold) }
    }
}
