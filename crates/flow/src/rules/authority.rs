//! Authority: which origins may enter a resource.

use std::fmt;

use super::{InvalidRule, Target};

/// Admits or blocks entries by their origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthorityRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to.
    pub resource: Target,
    /// The origins that the rule names.
    pub origins: Vec<String>,
    /// If true, the rule admits only the named origins. If false, it blocks only the named origins.
    pub allow: bool,
}

impl AuthorityRule {
    /// Admits these origins and no others. An entry without an origin is also admitted, because its
    /// caller is unknown.
    pub fn allow<O: Into<String>>(
        resource: impl Into<Target>,
        origins: impl IntoIterator<Item = O>,
    ) -> Self {
        let origins = origins.into_iter().map(Into::into).collect();
        Self {
            id: None,
            resource: resource.into(),
            origins,
            allow: true,
        }
    }

    /// Blocks these origins and no others.
    pub fn deny<O: Into<String>>(
        resource: impl Into<Target>,
        origins: impl IntoIterator<Item = O>,
    ) -> Self {
        Self {
            allow: false,
            ..Self::allow(resource, origins)
        }
    }

    crate::rules::id_setter!();

    /// Whether an entry of `origin` may pass.
    pub(crate) fn lets(&self, origin: Option<&str>) -> bool {
        origin.is_none_or(|origin| self.origins.iter().any(|named| named == origin) == self.allow)
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        if self.origins.iter().any(String::is_empty) || self.origins.is_empty() {
            return Err("the rule must name at least one origin, and no name may be empty".into());
        }
        Ok(())
    }
}

impl fmt::Display for AuthorityRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        write!(
            f,
            "{} {}",
            if self.allow { "allow" } else { "deny" },
            self.origins.join(",")
        )
    }
}
