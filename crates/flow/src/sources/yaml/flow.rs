//! Flow rules.

use crate::rules::InvalidRule;
use std::time::Duration;

use tidegate_core::Quota;

use super::item::{About, Item, Written};
use crate::rules::{Behaviour, FlowRule, Measure, MemoryThreshold, Origins, Relation, Threshold};

pub(super) struct Flow {
    id: Option<String>,
    about: About,
    limit: Option<Quota>,
    in_flight: Option<u32>,
    memory: Option<Memory>,
    origin: Option<String>,
    each_other_origin: bool,
    related: Option<String>,
    context: Option<String>,
    behaviour: How,
    max_wait: Option<Duration>,
    warm_up: Option<Duration>,
    cold_factor: Option<f64>,
    strict: bool,
}

#[derive(Clone, Copy)]
struct How {
    warms: bool,
    throttles: bool,
}

const HOWS: [(&str, How); 4] = [
    ("reject", How { warms: false, throttles: false }),
    ("warm-up", How { warms: true, throttles: false }),
    ("throttle", How { warms: false, throttles: true }),
    ("warm-up-throttle", How { warms: true, throttles: true }),
];

/// A threshold that falls from the limit to `when_scarce` between two marks of memory in use, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    when_scarce: f64,
    low_mark: u64,
    high_mark: u64,
}

impl Memory {
    const FIELDS: [&str; 3] = ["when_scarce", "low_mark", "high_mark"];

    fn read(mut item: Item<'_, '_>) -> Option<Self> {
        for name in Self::FIELDS {
            item.missing(name, "a memory threshold needs when_scarce, low_mark and high_mark");
        }
        let (when_scarce, low_mark) = (item.decimal("when_scarce"), item.large("low_mark"));
        let high_mark = item.large("high_mark");
        Some(Self { when_scarce: when_scarce?, low_mark: low_mark?, high_mark: high_mark? })
    }
}

impl Written for Flow {
    const SECTION: &'static str = "flow";
    const NAME: &'static str = "flow rule";
    const FIELDS: &'static [&'static str] = &[
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
    ];
    type Rule = FlowRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        Self {
            id: item.text("id"),
            about: About::read(item),
            limit: item.quota("limit"),
            in_flight: item.number("in_flight"),
            memory: item.nested("memory", &Memory::FIELDS).and_then(Memory::read),
            origin: item.text("origin"),
            each_other_origin: item.flag("each_other_origin"),
            related: item.text("related"),
            context: item.text("context"),
            behaviour: item.word("behaviour", &HOWS).unwrap_or(HOWS[0].1),
            max_wait: item.span("max_wait"),
            warm_up: item.span("warm_up"),
            cold_factor: item.decimal("cold_factor"),
            strict: item.flag("strict"),
        }
    }

    fn into_rule(self) -> Result<FlowRule, InvalidRule> {
        let (count, interval, measure) = match (self.limit, self.in_flight) {
            (Some(quota), None) => (quota.limit(), quota.window(), Measure::Rate),
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
        let How { warms, throttles } = self.behaviour;
        if self.max_wait.is_some() && !throttles {
            return Err("max_wait is for the behaviours throttle and warm-up-throttle".into());
        }
        if (self.warm_up.is_some() || self.cold_factor.is_some()) && !warms {
            return Err("warm_up and cold_factor are for the behaviours warm-up and warm-up-throttle".into());
        }
        let max_wait = self.max_wait.unwrap_or(Duration::from_millis(500));
        let period = self.warm_up.unwrap_or(Duration::from_secs(10));
        let cold_factor = self.cold_factor.unwrap_or(3.0);
        Ok(FlowRule {
            id: self.id,
            resource: self.about.target()?,
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
            behaviour: match (warms, throttles) {
                (false, false) => Behaviour::Reject,
                (true, false) => Behaviour::WarmUp { period, cold_factor },
                (false, true) => Behaviour::Throttle { max_wait },
                (true, true) => Behaviour::WarmUpThrottle { period, cold_factor, max_wait },
            },
            strict: self.strict,
        })
    }

    fn validate(rule: &FlowRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}
