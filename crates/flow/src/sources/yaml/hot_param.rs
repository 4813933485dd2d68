//! Hot-parameter rules.

use crate::rules::InvalidRule;
use std::time::Duration;

use tidegate_config::{Kind, Node};
use tidegate_core::Quota;

use super::item::{About, Item, Written};
use crate::{
    Arg,
    rules::{HotParamRule, ParamKey, ParamMeasure},
};

pub(super) struct HotParam {
    id: Option<String>,
    about: About,
    arg: Option<i32>,
    name: Option<String>,
    limit: Option<Quota>,
    in_flight: Option<u32>,
    max_wait: Option<Duration>,
    burst: u32,
    exceptions: Vec<(Arg<'static>, u32)>,
    max_values: Option<u32>,
    deny_when_full: bool,
}

/// Reads a value of an argument: `5` is a number, `"5"` is a text.
fn value(node: &Node) -> Arg<'static> {
    let Kind::Scalar { text, plain } = &node.kind else { return String::new().into() };
    if *plain && let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    if *plain && let Ok(truth) = text.parse::<bool>() {
        return truth.into();
    }
    text.clone().into()
}

impl Written for HotParam {
    const SECTION: &'static str = "hot_params";
    const NAME: &'static str = "hot parameter";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "resource",
        "pattern",
        "arg",
        "name",
        "limit",
        "in_flight",
        "max_wait",
        "burst",
        "exceptions",
        "max_values",
        "when_full",
    ];
    type Rule = HotParamRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        let exceptions = item.counts("exceptions");
        Self {
            id: item.text("id"),
            about: About::read(item),
            arg: item.signed("arg"),
            name: item.text("name"),
            limit: item.quota("limit"),
            in_flight: item.number("in_flight"),
            max_wait: item.span("max_wait"),
            burst: item.number("burst").unwrap_or(0),
            exceptions: exceptions.into_iter().map(|(key, count)| (value(key), count)).collect(),
            max_values: item.number("max_values"),
            deny_when_full: item.word("when_full", &[("forget", false), ("deny", true)]).unwrap_or(false),
        }
    }

    fn into_rule(self) -> Result<HotParamRule, InvalidRule> {
        let key = match (self.arg, self.name) {
            (Some(index), None) => ParamKey::Index(index),
            (None, Some(name)) => ParamKey::Name(name),
            _ => return Err("give it an arg (0 is the first, -1 the last) or a name, and not both".into()),
        };
        let (threshold, duration, measure) = match (self.limit, self.in_flight, self.max_wait) {
            (Some(quota), None, None) => (quota.limit(), quota.window(), ParamMeasure::Rate),
            (Some(quota), None, Some(max_wait)) => {
                (quota.limit(), quota.window(), ParamMeasure::Throttle { max_wait })
            }
            (None, Some(units), None) => (units, Duration::from_secs(1), ParamMeasure::InFlight),
            _ => return Err("give it a limit (as 5/1s, with max_wait to throttle) or in_flight".into()),
        };
        let rule = HotParamRule::new(self.about.target()?, key, threshold);
        Ok(HotParamRule {
            id: self.id,
            measure,
            duration,
            burst: self.burst,
            exceptions: self.exceptions,
            max_values: self.max_values.map(|values| values as usize),
            deny_when_full: self.deny_when_full,
            ..rule
        })
    }

    fn validate(rule: &HotParamRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}
