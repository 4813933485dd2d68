//! Hot-parameter rules.

use std::time::Duration;

use tidegate_config::{Kind, Node};

use super::item::Section;
use crate::{
    Arg,
    rules::{HotParamRule, ParamKey, ParamMeasure},
};

/// Reads a value of an argument: `5` is a number, `"5"` is a text.
fn value(node: &Node) -> Arg<'static> {
    let Kind::Scalar { text, plain } = &node.kind else {
        return String::new().into();
    };
    if *plain && let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    if *plain && let Ok(truth) = text.parse::<bool>() {
        return truth.into();
    }
    text.clone().into()
}

pub(super) const HOT_PARAMS: Section<HotParamRule> = Section {
    name: "hot_params",
    called: "hot parameter",
    fields: &[
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
    ],
    read: |item| {
        let (id, resource) = (item.text("id"), item.target());
        let key = (item.signed("arg"), item.text("name"));
        let threshold = (
            item.quota("limit"),
            item.number("in_flight"),
            item.span("max_wait"),
        );
        let exceptions = item
            .counts("exceptions")
            .map(|(key, count)| (value(key), count))
            .collect();
        let (burst, max_values) = (item.number("burst").unwrap_or(0), item.number("max_values"));
        let deny_when_full = item
            .word("when_full", &[("forget", false), ("deny", true)])
            .unwrap_or(false);
        let key = match key {
            (Some(index), None) => ParamKey::Index(index),
            (None, Some(name)) => ParamKey::Name(name),
            _ => {
                return Err(
                    "give it an arg (0 is the first, -1 the last) or a name, and not both".into(),
                );
            }
        };
        let (threshold, duration, measure) = match threshold {
            (Some((units, window)), None, None) => (units, window, ParamMeasure::Rate),
            (Some((units, window)), None, Some(max_wait)) => {
                (units, window, ParamMeasure::Throttle { max_wait })
            }
            (None, Some(units), None) => (units, Duration::from_secs(1), ParamMeasure::InFlight),
            _ => {
                return Err(
                    "give it a limit (as 5/1s, with max_wait to throttle) or in_flight".into(),
                );
            }
        };
        Ok(HotParamRule {
            id,
            measure,
            duration,
            burst,
            exceptions,
            max_values: max_values.map(|values| values as usize),
            deny_when_full,
            ..HotParamRule::new(resource?, key, threshold)
        })
    },
    validate: HotParamRule::validate,
};
