//! Cluster rules, which a token server applies.

use std::{collections::HashSet, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use super::{
    Wrapped,
    cluster_config::ClusterConfig,
    each,
    lenient::{Lenient, Name},
    params::Item,
    read_rule, required, unknown, whole,
};
use crate::{Arg, rules::InvalidRule, sources::SourceError};

/// The length of a rule's window, unless it has its own.
const WINDOW_MS: i64 = 1_000;
/// The number of slots in a rule's window, unless it has its own.
const SLOTS: i64 = 10;

/// A rule that a token server applies to many programs: at most [`count`](Self::count) units a
/// second, counted over the slots of a window.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClusterRule {
    /// The id in requests for tokens; above 0.
    pub flow_id: i64,
    /// The resource of the programs, for people.
    pub resource: String,
    /// Units a second; a fraction of a unit has no effect.
    pub count: f64,
    /// Whose units these are.
    pub threshold: ClusterThreshold,
    /// The length of the window.
    pub window: Duration,
    /// How many slots the window has, which divide it into whole milliseconds.
    pub slots: u32,
    /// Values of the parameter with another count. `None` for a flow rule, which has no parameter.
    pub exceptions: Option<Vec<(Arg<'static>, u32)>>,
}

/// Whose units a cluster rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClusterThreshold {
    /// All programs have `count` units together.
    Global,
    /// Each connected program adds `count` units to what they have together. Sentinel's default.
    AverageLocal,
}

impl ClusterRule {
    /// Units in a window that this count of units a second allows, rounded down.
    #[must_use]
    pub fn units(&self, count: f64) -> u32 {
        // The cast saturates; counts are not negative.
        #[allow(clippy::cast_sign_loss)]
        let units = (count * self.window.as_secs_f64()) as u32;
        units
    }
}

/// A flow rule or a hot-parameter rule, as far as a token server reads it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    resource: Option<Name>,
    grade: Lenient<i64>,
    count: Lenient<f64>,
    cluster_mode: Lenient<bool>,
    cluster_config: Option<ClusterConfig>,
    param_idx: Option<Value>,
    param_key: Option<Value>,
    #[serde(rename = "paramFlowItemList")]
    items: Option<Vec<Item>>,
}

impl Rule {
    fn into_rule(self) -> Result<Option<ClusterRule>, InvalidRule> {
        if *self.cluster_mode != Some(true) {
            return Ok(None);
        }
        let config = self.cluster_config.unwrap_or_default();
        let flow_id = config.flow_id.filter(|&id| id > 0);
        let flow_id =
            flow_id.ok_or("clusterConfig.flowId is missing; it must be a whole number above 0")?;
        let count = required("count", *self.count)?;
        if !count.is_finite() || count < 0.0 {
            return Err(format!("count is {count}; it must be a number, 0 or greater").into());
        }
        if let Some(other) = self.grade.filter(|&grade| grade != 1) {
            return Err(unknown(
                "grade",
                other,
                "1 (QPS): a token server does not count threads",
            ));
        }
        if let Some(other) = config.strategy.filter(|&strategy| strategy != 0) {
            return Err(unknown("clusterConfig.strategy", other, "0, the only one"));
        }
        let threshold = match config.threshold_type.unwrap_or(0) {
            0 => ClusterThreshold::AverageLocal,
            1 => ClusterThreshold::Global,
            other => {
                let known = "0 (count for each connected program) or 1 (count for all together)";
                return Err(unknown("clusterConfig.thresholdType", other, known));
            }
        };
        let window: u32 = whole(
            "windowIntervalMs",
            config.window_interval_ms.unwrap_or(WINDOW_MS),
        )?;
        let slots: u32 = whole("sampleCount", config.sample_count.unwrap_or(SLOTS))?;
        if slots == 0 || window == 0 || !window.is_multiple_of(slots) {
            return Err(format!(
                "sampleCount is {slots} and windowIntervalMs is {window}; the count must divide the interval into whole \
                 milliseconds"
            )
            .into());
        }
        let is_of_values = [&self.param_idx, &self.param_key]
            .into_iter()
            .any(Option::is_some);
        let items = || {
            self.items
                .unwrap_or_default()
                .into_iter()
                .map(Item::into_exception)
                .collect()
        };
        let exceptions: Option<Result<Vec<_>, _>> = is_of_values.then(items);
        Ok(Some(ClusterRule {
            flow_id,
            resource: self.resource.unwrap_or_default().0,
            count,
            threshold,
            window: Duration::from_millis(window.into()),
            slots,
            exceptions: exceptions.transpose()?,
        }))
    }
}

/// Reads the cluster rules of an array of flow rules, hot-parameter rules (which have a `paramIdx`
/// or a `paramKey`), or both. Rules without `clusterMode` are left out.
///
/// # Errors
/// [`SourceError::Format`], as [`parse`](super::parse); also if two flow rules, or two
/// hot-parameter rules, have the same `flowId`.
pub fn parse_cluster(text: &str) -> Result<Vec<ClusterRule>, SourceError> {
    let read =
        |text: &str, wrapped: &Wrapped<'_>| read_rule(text, wrapped).and_then(Rule::into_rule);
    let (rules, bad) = each(text, read)?;
    if let Some(bad) = bad {
        return Err(SourceError::Format(bad));
    }
    let mut seen = HashSet::new();
    for ClusterRule {
        flow_id,
        resource,
        exceptions,
        ..
    } in &rules
    {
        if !seen.insert((flow_id, exceptions.is_some())) {
            let what =
                format!("the flowId {flow_id} of resource {resource} is that of another rule");
            return Err(SourceError::Format(format!(
                "{what}; each rule needs its own"
            )));
        }
    }
    Ok(rules)
}
