//! Flow rules.

use std::time::Duration;

use super::item::{Item, Section};
use crate::rules::{Behaviour, FlowRule, Measure, MemoryThreshold, Origins, Relation, Threshold};

/// Each behaviour, whether it warms up, and whether it throttles.
pub(super) const BEHAVIOURS: [(&str, (bool, bool)); 4] = [
    ("reject", (false, false)),
    ("warm-up", (true, false)),
    ("throttle", (false, true)),
    ("warm-up-throttle", (true, true)),
];

/// Reads a threshold that falls to `when_scarce` between two marks of memory in use, in bytes.
/// `when_free` is left 0.
fn memory(item: &Item<'_>) -> Option<MemoryThreshold> {
    let mend = "a memory threshold needs when_scarce, low_mark and high_mark";
    let item = item.nested("memory", &["when_scarce", "low_mark", "high_mark"], mend)?;
    let (when_scarce, low_mark) = (item.decimal("when_scarce"), item.large("low_mark"));
    let high_mark = item.large("high_mark");
    Some(MemoryThreshold {
        when_free: 0.0,
        when_scarce: when_scarce?,
        low_mark: low_mark?,
        high_mark: high_mark?,
    })
}

pub(super) const FLOW: Section<FlowRule> = Section {
    name: "flow",
    called: "flow rule",
    fields: &[
        "id",
        "resource",
        "pattern",
        "limit",
        "in_flight",
        "memory",
        "origin",
        "each_other_origin",
        "related",
        "context",
        "behaviour",
        "max_wait",
        "warm_up",
        "cold_factor",
        "strict",
    ],
    read,
    validate: FlowRule::validate,
};

fn read(item: &Item<'_>) -> Result<FlowRule, crate::rules::InvalidRule> {
    let (id, resource) = (item.text("id"), item.target());
    let (limit, in_flight) = (item.quota("limit"), item.number("in_flight"));
    let memory = memory(item);
    let origins = (item.text("origin"), item.flag("each_other_origin"));
    let relation = (item.text("related"), item.text("context"));
    let (warms, throttles) = item.word("behaviour", &BEHAVIOURS).unwrap_or_default();
    let (max_wait, warm_up) = (item.span("max_wait"), item.span("warm_up"));
    let (cold_factor, strict) = (item.decimal("cold_factor"), item.flag("strict"));
    let (count, interval, measure) = match (limit, in_flight) {
        (Some((units, window)), None) => (units, window, Measure::Rate),
        (None, Some(units)) => (units, Duration::from_secs(1), Measure::InFlight),
        _ => return Err("give it a limit (as 100/1s) or in_flight, and not both".into()),
    };
    let threshold = match memory {
        None => Threshold::from(count),
        Some(memory) => Threshold::Memory(MemoryThreshold {
            when_free: count.into(),
            ..memory
        }),
    };
    if max_wait.is_some() && !throttles {
        return Err("max_wait is for the behaviours throttle and warm-up-throttle".into());
    }
    if (warm_up.is_some() || cold_factor.is_some()) && !warms {
        return Err(
            "warm_up and cold_factor are for the behaviours warm-up and warm-up-throttle".into(),
        );
    }
    let max_wait = max_wait.unwrap_or(Duration::from_millis(500));
    let (period, cold_factor) = (
        warm_up.unwrap_or(Duration::from_secs(10)),
        cold_factor.unwrap_or(3.0),
    );
    Ok(FlowRule {
        id,
        resource: resource?,
        threshold,
        interval,
        measure,
        relation: match relation {
            (None, None) => Relation::Direct,
            (Some(other), None) => Relation::Related(other),
            (None, Some(context)) => Relation::Context(context),
            _ => return Err("give it a related resource or a context, not both".into()),
        },
        origins: match origins {
            (None, false) => Origins::Any,
            (Some(origin), false) => Origins::Only(origin),
            (None, true) => Origins::Others,
            _ => return Err("give it an origin or each_other_origin, not both".into()),
        },
        behaviour: Behaviour::of(
            warms.then_some((period, cold_factor)),
            throttles.then_some(max_wait),
        ),
        strict,
    })
}
