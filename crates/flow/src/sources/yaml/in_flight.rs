//! Rules on units in flight: isolation and adaptive limits.

use super::item::Section;
use crate::rules::{AdaptiveAlgorithm, AdaptiveRule, Aimd, Gradient2, IsolationRule, Vegas};

pub(super) const ISOLATION: Section<IsolationRule> = Section {
    name: "isolation",
    called: "isolation rule",
    fields: &["id", "resource", "pattern", "in_flight"],
    read: |item| {
        let (id, resource, in_flight) = (item.text("id"), item.target(), item.number("in_flight"));
        let in_flight = in_flight.ok_or("say how much may be in flight, as in in_flight: 20")?;
        Ok(IsolationRule {
            id,
            ..IsolationRule::new(resource?, in_flight)
        })
    },
    validate: IsolationRule::validate,
};

#[derive(Clone, Copy)]
enum Learns {
    Aimd,
    Gradient2,
    Vegas,
}

pub(super) const ADAPTIVE: Section<AdaptiveRule> = Section {
    name: "adaptive",
    called: "adaptive rule",
    fields: &[
        "id",
        "resource",
        "pattern",
        "algorithm",
        "initial",
        "min",
        "max",
        "slower_than",
        "ignore_errors",
    ],
    read: |item| {
        let algorithms = [
            ("aimd", Learns::Aimd),
            ("gradient2", Learns::Gradient2),
            ("vegas", Learns::Vegas),
        ];
        let (id, resource) = (item.text("id"), item.target());
        let (algorithm, slow) = (
            item.word("algorithm", &algorithms),
            item.span("slower_than"),
        );
        let initial = item.number("initial").unwrap_or(20);
        let (min, max) = (item.number("min"), item.number("max"));
        let ignore_errors = item.flag("ignore_errors");
        let algorithm = match (algorithm, slow) {
            (None, _) => return Err("give it an algorithm: aimd, gradient2 or vegas".into()),
            (Some(Learns::Aimd), slow) => AdaptiveAlgorithm::Aimd(Aimd {
                initial,
                slow,
                ..Aimd::default()
            }),
            (Some(_), Some(_)) => return Err("slower_than is for the algorithm aimd".into()),
            (Some(Learns::Gradient2), None) => {
                AdaptiveAlgorithm::Gradient2(Gradient2::default().initial(initial))
            }
            (Some(Learns::Vegas), None) => {
                AdaptiveAlgorithm::Vegas(Vegas::default().initial(initial))
            }
        };
        let rule = AdaptiveRule::new(resource?, algorithm);
        let (min, max) = (min.unwrap_or(rule.min), max.unwrap_or(rule.max));
        Ok(AdaptiveRule {
            id,
            ignore_errors,
            ..rule.bounds(min, max)
        })
    },
    validate: AdaptiveRule::validate,
};
