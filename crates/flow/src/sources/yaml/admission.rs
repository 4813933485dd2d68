//! Authority and system rules.

use super::item::Section;
use crate::rules::{AuthorityRule, SystemRule};

pub(super) const SYSTEM: Section<SystemRule> = Section {
    name: "system",
    called: "system rule",
    fields: &["id", "load", "cpu", "mean_rt", "in_flight", "qps"],
    read: |item| {
        Ok(SystemRule {
            id: item.text("id"),
            load: item.decimal("load"),
            cpu: item.decimal("cpu"),
            mean_rt: item.span("mean_rt"),
            in_flight: item.large("in_flight"),
            qps: item.large("qps"),
        })
    },
    validate: SystemRule::validate,
};

pub(super) const AUTHORITY: Section<AuthorityRule> = Section {
    name: "authority",
    called: "authority rule",
    fields: &["id", "resource", "pattern", "allow", "deny"],
    read: |item| {
        let (id, resource) = (item.text("id"), item.target());
        let rule = match (item.texts("allow"), item.texts("deny")) {
            (Some(origins), None) => AuthorityRule::allow(resource?, origins),
            (None, Some(origins)) => AuthorityRule::deny(resource?, origins),
            _ => {
                return resource.and(Err(
                    "give it the origins to allow or those to deny, and not both".into(),
                ));
            }
        };
        Ok(AuthorityRule { id, ..rule })
    },
    validate: AuthorityRule::validate,
};
