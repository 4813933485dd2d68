//! Authority: which origins may ask for a resource.

use super::InvalidRule;
use std::fmt;

use super::Target;

/// Lets entries through, or blocks them, by their origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about.
    pub resource: Target,
    /// The origins it names.
    pub origins: Vec<String>,
    /// Whether the named origins, and no others, are let through; otherwise they, and no others, are blocked.
    pub allow: bool,
}

impl AuthorityRule {
    /// Lets these origins through, and no others. An entry without an origin is let through: nobody said who it is.
    pub fn allow<O: Into<String>>(resource: impl Into<Target>, origins: impl IntoIterator<Item = O>) -> Self {
        let origins = origins.into_iter().map(Into::into).collect();
        Self { id: None, resource: resource.into(), origins, allow: true }
    }

    /// Blocks these origins, and no others.
    pub fn deny<O: Into<String>>(resource: impl Into<Target>, origins: impl IntoIterator<Item = O>) -> Self {
        Self { allow: false, ..Self::allow(resource, origins) }
    }

    /// Whether an entry of `origin` may pass.
    pub(crate) fn lets(&self, origin: Option<&str>) -> bool {
        origin.is_none_or(|origin| self.origins.iter().any(|named| named == origin) == self.allow)
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        if self.origins.iter().any(String::is_empty) || self.origins.is_empty() {
            return Err("the rule must name at least one origin, and each by a name".into());
        }
        Ok(())
    }
}

impl fmt::Display for AuthorityRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.id {
            return f.write_str(id);
        }
        write!(f, "{} {}", if self.allow { "allow" } else { "deny" }, self.origins.join(","))
    }
}
