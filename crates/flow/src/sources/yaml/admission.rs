//! Authority and system rules.

use super::item::{About, Item, Written};
use crate::rules::InvalidRule;
use crate::rules::{AuthorityRule, SystemRule};

pub(super) struct System(SystemRule);

impl Written for System {
    const SECTION: &'static str = "system";
    const NAME: &'static str = "system rule";
    const FIELDS: &'static [&'static str] = &["id", "load", "cpu", "mean_rt", "in_flight", "qps"];
    type Rule = SystemRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        Self(SystemRule {
            id: item.text("id"),
            load: item.decimal("load"),
            cpu: item.decimal("cpu"),
            mean_rt: item.span("mean_rt"),
            in_flight: item.large("in_flight"),
            qps: item.large("qps"),
        })
    }

    fn into_rule(self) -> Result<SystemRule, InvalidRule> {
        Ok(self.0)
    }

    fn validate(rule: &SystemRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}

pub(super) struct Authority {
    id: Option<String>,
    about: About,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
}

impl Written for Authority {
    const SECTION: &'static str = "authority";
    const NAME: &'static str = "authority rule";
    const FIELDS: &'static [&'static str] = &["id", "resource", "pattern", "allow", "deny"];
    type Rule = AuthorityRule;

    fn read(item: &mut Item<'_, '_>) -> Self {
        Self {
            id: item.text("id"),
            about: About::read(item),
            allow: item.texts("allow"),
            deny: item.texts("deny"),
        }
    }

    fn into_rule(self) -> Result<AuthorityRule, InvalidRule> {
        let resource = self.about.target()?;
        let rule = match (self.allow, self.deny) {
            (Some(origins), None) => AuthorityRule::allow(resource, origins),
            (None, Some(origins)) => AuthorityRule::deny(resource, origins),
            _ => return Err("give it the origins to allow or those to deny, and not both".into()),
        };
        Ok(AuthorityRule { id: self.id, ..rule })
    }

    fn validate(rule: &AuthorityRule) -> Result<(), InvalidRule> {
        rule.validate()
    }
}
