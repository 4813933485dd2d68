//! Rules on units in flight: isolation and adaptive limits.

use crate::rules::InvalidRule;
use std::time::Duration;

use super::item::{About, Item, Written};
use crate::rules::{AdaptiveRule, Aimd, Algorithm, Gradient2, IsolationRule, Vegas};

pub(super) struct Isolation {
    id: Option<String>,
    about: About,
    in_flight: Option<u32>,
}

impl Written for Isolation {
    const SECTION: &'static str = "isolation";
    const NAME: &'static str = "isolation rule";
    const FIELDS: &'static [&'static str] = &["id", "resource", "pattern", "in_flight"];
    type Rule = IsolationRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        Self { id: item.text("id"), about: About::read(item), in_flight: item.number("in_flight") }
    }

    fn into_rule(self) -> Result<IsolationRule, InvalidRule> {
        let Some(in_flight) = self.in_flight else {
            return Err("say how much may be in flight, as in in_flight: 20".into());
        };
        Ok(IsolationRule { id: self.id, ..IsolationRule::new(self.about.target()?, in_flight) })
    }

    fn validate(rule: &IsolationRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}

pub(super) struct Adaptive {
    id: Option<String>,
    about: About,
    algorithm: Option<Learns>,
    initial: Option<u32>,
    min: Option<u32>,
    max: Option<u32>,
    slower_than: Option<Duration>,
    ignore_errors: bool,
}

#[derive(Clone, Copy)]
enum Learns {
    Aimd,
    Gradient2,
    Vegas,
}

impl Written for Adaptive {
    const SECTION: &'static str = "adaptive";
    const NAME: &'static str = "adaptive rule";
    const FIELDS: &'static [&'static str] =
        &["id", "resource", "pattern", "algorithm", "initial", "min", "max", "slower_than", "ignore_errors"];
    type Rule = AdaptiveRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        let algorithms = [("aimd", Learns::Aimd), ("gradient2", Learns::Gradient2), ("vegas", Learns::Vegas)];
        Self {
            id: item.text("id"),
            about: About::read(item),
            algorithm: item.word("algorithm", &algorithms),
            initial: item.number("initial"),
            min: item.number("min"),
            max: item.number("max"),
            slower_than: item.span("slower_than"),
            ignore_errors: item.flag("ignore_errors"),
        }
    }

    fn into_rule(self) -> Result<AdaptiveRule, InvalidRule> {
        let initial = self.initial.unwrap_or(20);
        let algorithm = match (self.algorithm, self.slower_than) {
            (None, _) => return Err("give it an algorithm: aimd, gradient2 or vegas".into()),
            (Some(Learns::Aimd), slow) => Algorithm::Aimd(Aimd { initial, slow, ..Aimd::default() }),
            (Some(_), Some(_)) => return Err("slower_than is for the algorithm aimd".into()),
            (Some(Learns::Gradient2), None) => Algorithm::Gradient2(Gradient2::default().initial(initial)),
            (Some(Learns::Vegas), None) => Algorithm::Vegas(Vegas::default().initial(initial)),
        };
        let rule = AdaptiveRule::new(self.about.target()?, algorithm);
        let (min, max) = (self.min.unwrap_or(rule.min), self.max.unwrap_or(rule.max));
        Ok(AdaptiveRule { id: self.id, ignore_errors: self.ignore_errors, ..rule.bounds(min, max) })
    }

    fn validate(rule: &AdaptiveRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}
