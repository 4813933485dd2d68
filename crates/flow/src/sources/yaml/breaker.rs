//! Circuit breakers.

use crate::rules::InvalidRule;
use std::time::Duration;

use super::item::{About, Item, Written};
use crate::rules::{BreakerRule, Trip};

pub(super) struct Breaker {
    id: Option<String>,
    about: About,
    slower_than: Option<Duration>,
    ratio: Option<f64>,
    errors: Option<u64>,
    interval: Option<Duration>,
    slots: Option<u32>,
    min_calls: Option<u32>,
    open: Option<Duration>,
    probes: Option<u32>,
    probe_timeout: Option<Duration>,
}

impl Written for Breaker {
    const SECTION: &'static str = "breakers";
    const NAME: &'static str = "breaker";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "resource",
        "pattern",
        "slower_than",
        "ratio",
        "errors",
        "interval",
        "slots",
        "min_calls",
        "open",
        "probes",
        "probe_timeout",
    ];
    type Rule = BreakerRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        Self {
            id: item.text("id"),
            about: About::read(item),
            slower_than: item.span("slower_than"),
            ratio: item.decimal("ratio"),
            errors: item.large("errors"),
            interval: item.span("interval"),
            slots: item.number("slots"),
            min_calls: item.number("min_calls"),
            open: item.span("open"),
            probes: item.number("probes"),
            probe_timeout: item.span("probe_timeout"),
        }
    }

    fn into_rule(self) -> Result<BreakerRule, InvalidRule> {
        let trip = match (self.slower_than, self.ratio, self.errors) {
            (Some(rt), Some(ratio), None) => Trip::SlowRatio { rt, ratio },
            (None, Some(ratio), None) => Trip::ErrorRatio { ratio },
            (None, None, Some(count)) => Trip::ErrorCount { count },
            _ => {
                return Err(
                    "give it slower_than and ratio, or ratio alone (of errors), or errors alone".into()
                );
            }
        };
        let Some(open) = self.open else {
            return Err("say how long it stays open before it tries again, as in open: 5s".into());
        };
        let rule = BreakerRule::new(self.about.target()?, trip, open);
        Ok(BreakerRule {
            id: self.id,
            interval: self.interval.unwrap_or(rule.interval),
            slots: self.slots.unwrap_or(rule.slots),
            min_calls: self.min_calls.unwrap_or(rule.min_calls),
            probes: self.probes.unwrap_or(rule.probes),
            probe_timeout: self.probe_timeout,
            ..rule
        })
    }

    fn validate(rule: &BreakerRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}
