//! Rules as JSON in Sentinel's field names and numbers: an array of one kind of rule.
//!
//! The fields are those of Sentinel for Java; flow and isolation rules may be those of Sentinel for Go, too: a flow rule
//! with `tokenCalculateStrategy` is read as one of Go, where `controlBehavior` means something else. The other rules of
//! Go are refused. A field that is `null` is as good as left out, a rule without its threshold is refused, and fields
//! that are not known are passed over, as dashboards add their own. Cluster rules are refused: what several processes
//! share is a limit of the shared store, not a rule of one gate.

mod admission;
mod breaker;
mod flow;
mod params;

use std::time::Duration;

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

use super::{RuleUpdate, SourceError};
use crate::rules::{Rules, Target};
use admission::{Authority, Isolation, System};
use breaker::Degrade;
use flow::Flow;
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
        Kind::System => update.system = Some(array(text, System::into_rule)?.into_iter().flatten().collect()),
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

fn target(resource: Option<String>, regex: Option<bool>) -> Target {
    let resource = resource.unwrap_or_default();
    if regex.unwrap_or(false) { Target::Pattern(resource) } else { Target::Name(resource) }
}

fn no_cluster(cluster: Option<bool>) -> Result<(), String> {
    if cluster == Some(true) {
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

/// A field that only Sentinel for Go has, and the one that says the same.
fn no_go(name: &str, field: Option<IgnoredAny>, instead: &str) -> Result<(), String> {
    if field.is_some() {
        return Err(format!("{name} is a field of Sentinel for Go, which is not read here; write {instead}"));
    }
    Ok(())
}

/// A threshold that must be there.
fn required(name: &str, value: Option<f64>) -> Result<f64, String> {
    value.ok_or_else(|| format!("{name} is missing, or misspelt; a rule needs one"))
}

/// A whole number of a field that is used.
fn whole<T: TryFrom<i64>>(name: &str, value: i64) -> Result<T, String> {
    // Of what is not negative, only 32 bits can be too few.
    T::try_from(value).map_err(|_| format!("{name} is {value}; it must be from 0 to 4294967295"))
}

fn millis(name: &str, value: i64) -> Result<Duration, String> {
    whole(name, value).map(Duration::from_millis)
}

fn seconds(name: &str, value: i64) -> Result<Duration, String> {
    whole(name, value).map(Duration::from_secs)
}
