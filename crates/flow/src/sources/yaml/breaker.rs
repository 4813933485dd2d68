//! Circuit breakers.

use super::item::Section;
use crate::rules::{BreakerRule, Trip};

pub(super) const BREAKERS: Section<BreakerRule> = Section {
    name: "breakers",
    called: "breaker",
    fields: &[
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
    ],
    read: |item| {
        let (id, resource) = (item.text("id"), item.target());
        let trip = (
            item.span("slower_than"),
            item.decimal("ratio"),
            item.large("errors"),
        );
        let (interval, slots) = (item.span("interval"), item.number("slots"));
        let (min_calls, open) = (item.number("min_calls"), item.span("open"));
        let (probes, probe_timeout) = (item.number("probes"), item.span("probe_timeout"));
        let trip = match trip {
            (Some(rt), Some(ratio), None) => Trip::SlowRatio { rt, ratio },
            (None, Some(ratio), None) => Trip::ErrorRatio { ratio },
            (None, None, Some(count)) => Trip::ErrorCount { count },
            _ => {
                return Err(
                    "give it slower_than and ratio, or ratio alone (of errors), or errors alone"
                        .into(),
                );
            }
        };
        let open =
            open.ok_or("say how long it stays open before it tries again, as in open: 5s")?;
        let rule = BreakerRule::new(resource?, trip, open);
        Ok(BreakerRule {
            id,
            interval: interval.unwrap_or(rule.interval),
            slots: slots.unwrap_or(rule.slots),
            min_calls: min_calls.unwrap_or(rule.min_calls),
            probes: probes.unwrap_or(rule.probes),
            probe_timeout,
            ..rule
        })
    },
    validate: BreakerRule::validate,
};
