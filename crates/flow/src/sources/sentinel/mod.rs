//! Rules as JSON with Sentinel's field names and numbers: an array of one kind of rule.
//!
//! A rule may be wrapped, as dashboards store it: `{"id": 7, "app": "shop", "rule": {…}}`.
//!
//! The fields are those of Sentinel for Java. Flow and isolation rules of Sentinel for Go are also
//! read: a flow rule with `tokenCalculateStrategy` is read as a Go rule, in which `controlBehavior`
//! has another meaning. Other Go rules are rejected. Rules of Sentinel's API gateway are also
//! rejected: write a flow rule instead, or a hot-parameter rule for the value that `paramItem`
//! selects.
//!
//! Accepted as by Sentinel's reader: comments, a trailing comma, a byte order mark, no text or
//! `null` for no rules, `null` in place of a rule, strings in single quotes, names without quotes or
//! in another case (`limit_app`), texts for numbers and flags (`"count": "10"`), and a number or a
//! flag for a name (`"resource": 7`). A `null` field counts as absent, and unknown fields are ignored
//! because dashboards add their own.
//!
//! Rejected, although Sentinel's reader accepts it: a rule without its threshold (Sentinel takes 0
//! and blocks all calls), a CPU usage above 1 (Sentinel ignores it), an object for a name, a field
//! twice in different cases, a number with `+`, and several commas in a row.
//!
//! A gate asks no token server. A cluster rule (`clusterMode: true`) is therefore read as Sentinel
//! applies it while it has none: as a rule of this program if
//! `clusterConfig.fallbackToLocalWhenFail` says so (the default for flow rules, not for hot
//! parameters), else it is left out. [`parse_cluster`] reads the cluster rules for a token server.

mod admission;
mod breaker;
mod cluster;
mod cluster_config;
mod flow;
mod json;
mod lenient;
mod params;
mod write;

use std::{collections::BTreeMap, time::Duration};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, value::RawValue};
use tidegate_core::Visible;

use super::{RuleUpdate, SourceError};
use crate::rules::{
    AuthorityRule, BreakerRule, FlowRule, HotParamRule, InvalidRule, IsolationRule, SystemRule,
    Target,
};
use admission::{Authority, Isolation, System};
use breaker::Degrade;
pub use cluster::{ClusterRule, ClusterThreshold, parse_cluster};
use flow::Flow;
use lenient::Name;
use params::ParamFlow;
pub use write::write;

/// The kind of rules in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Flow rules.
    Flow,
    /// Circuit breakers.
    Degrade,
    /// Hot-parameter rules.
    ParamFlow,
    /// System protection.
    System,
    /// Authority rules.
    Authority,
    /// Isolation rules.
    Isolation,
}

impl Kind {
    /// The kinds that Sentinel for Java has, with commands of its own for each.
    pub const OF_COMMANDS: [Self; 5] = [
        Self::Flow,
        Self::Degrade,
        Self::System,
        Self::Authority,
        Self::ParamFlow,
    ];

    /// The name in Sentinel's commands and in the names of files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Degrade => "degrade",
            Self::ParamFlow => "paramFlow",
            Self::System => "system",
            Self::Authority => "authority",
            Self::Isolation => "isolation",
        }
    }
}

/// Parses and validates an array of rules of one kind.
///
/// # Errors
/// [`SourceError::Format`] with the line and column of invalid JSON. If rules cannot be read or are
/// invalid, the error lists all of them, each with its index in the array (from 0), its resource,
/// its id, its line and the field. If others are good, it is a [`SourceError::Partial`].
pub fn parse(kind: Kind, text: &str) -> Result<RuleUpdate, SourceError> {
    let mut update = RuleUpdate::default();
    let bad = match kind {
        Kind::Flow => array(text, &mut update.flow, Flow::into_rule),
        Kind::Degrade => array(text, &mut update.breakers, |rule: Degrade| {
            rule.into_rule().map(Some)
        }),
        Kind::ParamFlow => array(text, &mut update.hot_params, ParamFlow::into_rule),
        Kind::System => {
            let unlimited = |rule: &SystemRule| SystemRule {
                id: rule.id.clone(),
                ..SystemRule::default()
            };
            let limited = |rule: SystemRule| Some(rule).filter(|rule| *rule != unlimited(rule));
            array(text, &mut update.system, |rule: System| {
                rule.into_rule().map(limited)
            })
        }
        Kind::Authority => array(text, &mut update.authority, |rule: Authority| {
            rule.into_rule().map(Some)
        }),
        Kind::Isolation => array(text, &mut update.isolation, |rule: Isolation| {
            rule.into_rule().map(Some)
        }),
    };
    match bad? {
        None => Ok(update),
        Some(bad) => Err(SourceError::Format(bad).beside(update)),
    }
}

/// The kind of rules in an array, by the fields that only rules of this kind have. `None` for a
/// text without such a rule.
#[must_use]
pub fn kind_of(text: &str) -> Option<Kind> {
    const FIELDS: [(Kind, &[&str]); 6] = [
        (Kind::ParamFlow, &["paramIdx", "paramKey"]),
        (
            Kind::Degrade,
            &["timeWindow", "slowRatioThreshold", "minRequestAmount"],
        ),
        (
            Kind::System,
            &[
                "highestSystemLoad",
                "highestCpuUsage",
                "qps",
                "avgRt",
                "maxThread",
            ],
        ),
        (
            Kind::Flow,
            &[
                "grade",
                "controlBehavior",
                "clusterMode",
                "warmUpPeriodSec",
                "refResource",
                "count",
            ],
        ),
        (Kind::Isolation, &["threshold"]),
        (Kind::Authority, &["limitApp"]),
    ];
    let fields = each(text, |_, wrapped| {
        let rule: Option<serde_json::Map<String, Value>> =
            serde_json::from_str(wrapped.rule.get()).ok();
        Ok(rule.map(|rule| rule.into_iter().map(|(field, _)| field).collect::<Vec<_>>()))
    });
    let fields = fields.ok()?.0.concat();
    let has = |known: &[&str]| fields.iter().any(|field| known.contains(&&**field));
    FIELDS
        .iter()
        .find(|(_, known)| has(known))
        .map(|(kind, _)| *kind)
}

/// Reads the good rules of an array, and returns what is wrong with the others. `into_rule` returns
/// `None` for a rule that is left out.
fn array<J: DeserializeOwned, R: Identified>(
    text: &str,
    rules: &mut Option<Vec<R>>,
    into_rule: impl Fn(J) -> Result<Option<R>, InvalidRule>,
) -> Result<Option<String>, SourceError> {
    let (good, bad) = each(text, |text, wrapped| {
        let Some(mut rule) = read_rule(text, wrapped).and_then(&into_rule)? else {
            return Ok(None);
        };
        let id = rule.id_mut();
        *id = id.take().or_else(|| wrapped.id.clone());
        rule.check().map(|()| Some(rule))
    })?;
    *rules = Some(good);
    Ok(bad)
}

/// Reads the elements of an array. Also returns what is wrong with those that cannot be read.
fn each<R>(
    text: &str,
    read: impl Fn(&str, &Wrapped<'_>) -> Result<Option<R>, InvalidRule>,
) -> Result<(Vec<R>, Option<String>), SourceError> {
    let mut text = json::usual(text.strip_prefix('\u{feff}').unwrap_or(text));
    let format = |error: String| SourceError::Format(error);
    json_strip_comments::strip(&mut text).map_err(|error| format(error.to_string()))?;
    if text.trim().is_empty() {
        return Ok((Vec::new(), None));
    }
    let rules: Option<Vec<&RawValue>> =
        serde_json::from_str(&text).map_err(|error| format(error.to_string()))?;
    let mut bad = Vec::new();
    let mut good = Vec::new();
    for (at, rule) in rules.unwrap_or_default().into_iter().enumerate() {
        if rule.get() == "null" {
            continue;
        }
        let wrapped = Wrapped::of(rule);
        match read(&text, &wrapped) {
            Ok(rule) => good.extend(rule),
            Err(reason) => {
                let name = |what: &str, name: Option<String>| {
                    name.map(|name| format!("{what} {}, ", Visible(&name)))
                };
                let resource = name("resource", wrapped.resource).unwrap_or_default();
                let id = name("id", wrapped.id).unwrap_or_default();
                bad.push(format!(
                    "rule {at} ({resource}{id}line {}): {reason}",
                    line_of(&text, rule.get())
                ));
            }
        }
    }
    Ok((good, (!bad.is_empty()).then(|| bad.join("; "))))
}

/// The line on which a part of a text begins.
fn line_of(text: &str, part: &str) -> usize {
    let before = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    1 + text.get(..before).unwrap_or_default().matches('\n').count()
}

/// A rule that may have an id.
trait Identified {
    fn id_mut(&mut self) -> &mut Option<String>;

    fn check(&self) -> Result<(), InvalidRule>;
}

macro_rules! identified {
    ($($rule:ty),*) => { $(
        impl Identified for $rule {
            fn id_mut(&mut self) -> &mut Option<String> {
                &mut self.id
            }

            fn check(&self) -> Result<(), InvalidRule> {
                self.validate()
            }
        }
    )* };
}
identified!(
    FlowRule,
    BreakerRule,
    HotParamRule,
    SystemRule,
    AuthorityRule,
    IsolationRule
);

/// A rule as written, which a dashboard may have wrapped.
struct Wrapped<'t> {
    rule: &'t RawValue,
    /// The dashboard's id of the rule.
    id: Option<String>,
    resource: Option<String>,
}

impl<'t> Wrapped<'t> {
    fn of(text: &'t RawValue) -> Self {
        #[derive(Deserialize)]
        struct Outer<'t> {
            id: Option<&'t RawValue>,
            #[serde(borrow)]
            rule: Option<&'t RawValue>,
        }
        #[derive(Deserialize)]
        struct Named {
            resource: Option<Name>,
            id: Option<Id>,
        }
        // A value that is not an object is reported when the rule itself is read.
        let outer: Option<Outer<'t>> = serde_json::from_str(text.get()).ok();
        let (rule, id) = match outer {
            Some(Outer {
                id,
                rule: Some(rule),
            }) => (
                rule,
                id.and_then(|id| name_of(serde_json::from_str(id.get()).ok())),
            ),
            _ => (text, None),
        };
        let named: Option<Named> = serde_json::from_str(rule.get()).ok();
        let (resource, own) =
            named.map_or((None, None), |named| (named.resource, name_of(named.id)));
        let resource = resource.map(|name| name.0);
        Self {
            rule,
            id: own.or(id),
            resource,
        }
    }
}

/// Reads one rule of `text`. A value of the wrong type is reported with its field and line.
fn read_rule<J: DeserializeOwned>(text: &str, wrapped: &Wrapped<'_>) -> Result<J, InvalidRule> {
    let rule = wrapped.rule.get();
    let mut reader = serde_json::Deserializer::from_str(rule);
    serde_path_to_error::deserialize(&mut reader).map_err(|e| {
        let lines = line_of(text, rule) - 1;
        let (field, e) = (e.path().to_string(), e.into_inner());
        let said = e.to_string();
        let said = said
            .rsplit_once(" at line ")
            .map_or(&*said, |(said, _)| said);
        format!("{field}: {said} (line {})", lines + e.line()).into()
    })
}

fn target(resource: Option<Name>, regex: Option<bool>) -> Target {
    let resource = resource.unwrap_or_default().0;
    if regex.unwrap_or(false) {
        Target::Pattern(resource)
    } else {
        Target::Name(resource)
    }
}

fn unknown(field: &str, value: i64, known: &str) -> InvalidRule {
    format!("{field} is {value}; it must be {known}").into()
}

/// An id is a number in Sentinel and often a text in files that people write.
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

/// Rejects a field that only Sentinel for Go has, and names the corresponding field.
fn no_go(name: &str, field: Option<IgnoredAny>, instead: &str) -> Result<(), InvalidRule> {
    if field.is_some() {
        return Err(format!(
            "{name} is a field of Sentinel for Go, which is not read here; write {instead}"
        )
        .into());
    }
    Ok(())
}

/// The other fields of a rule.
type Others = BTreeMap<String, Option<IgnoredAny>>;

/// Rejects a rule of Sentinel's API gateway and names the first field that identifies it.
fn refuse_gateway(others: &Others) -> Result<(), InvalidRule> {
    let flow = "a flow rule with statIntervalInMs";
    let param = "a hot-parameter rule with durationInSec and burstCount";
    for (name, instead) in [
        ("paramItem", param),
        ("burst", param),
        ("intervalSec", flow),
        ("interval", flow),
        ("intervalUnit", flow),
        ("maxQueueingTimeoutMs", "maxQueueingTimeMs"),
        ("resourceMode", "a flow rule"),
    ] {
        if others.get(name).is_some_and(Option::is_some) {
            return Err(format!(
                "{name} is a field of Sentinel's gateway rules, which are not read here; write {instead}"
            )
            .into());
        }
    }
    Ok(())
}

/// Returns a required threshold.
fn required(name: &str, value: Option<f64>) -> Result<f64, InvalidRule> {
    value.ok_or_else(|| format!("{name} is missing, or misspelt; a rule needs one").into())
}

/// Converts the whole number of a field in use.
fn whole<T: TryFrom<i64>>(name: &str, value: i64) -> Result<T, InvalidRule> {
    // A value that is not negative can only fail by not fitting into 32 bits.
    T::try_from(value)
        .map_err(|_| format!("{name} is {value}; it must be from 0 to 4294967295").into())
}

fn millis(name: &str, value: i64) -> Result<Duration, InvalidRule> {
    whole(name, value).map(Duration::from_millis)
}

fn seconds(name: &str, value: i64) -> Result<Duration, InvalidRule> {
    whole(name, value).map(Duration::from_secs)
}
