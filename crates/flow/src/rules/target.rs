//! The resources that a rule applies to.

use super::InvalidRule;
use std::fmt;

use regex::Regex;

/// The resources of a rule: one by name, or all resources whose whole name matches a regular
/// expression.
///
/// A rule with a pattern keeps separate counts and states for each resource, as if it were written
/// once for each.
///
/// ```
/// use tidegate_flow::rules::{FlowRule, Target};
/// assert_eq!(FlowRule::new(format!("shard {}", 7), 10).resource, Target::Name("shard 7".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The resource with this name.
    Name(String),
    /// Every resource whose whole name matches this pattern (syntax of the `regex` crate, matched
    /// in linear time).
    Pattern(String),
}

impl Target {
    /// Returns the name or the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(text) | Self::Pattern(text) => text,
        }
    }

    /// Returns true if the resource of this name is one of them. A pattern is compiled at each
    /// call.
    #[must_use]
    pub fn covers(&self, resource: &str) -> bool {
        match self {
            Self::Name(name) => name == resource,
            Self::Pattern(_) => self
                .compile()
                .ok()
                .flatten()
                .is_some_and(|pattern| pattern.is_match(resource)),
        }
    }

    /// Returns the compiled pattern; `None` for a name.
    pub(crate) fn compile(&self) -> Result<Option<Regex>, InvalidRule> {
        match self {
            Self::Name(name) if name.is_empty() => {
                Err("the resource has no name; give it one".into())
            }
            Self::Name(_) => Ok(None),
            // Compile the bare pattern first, so that its unbalanced brackets cannot pair with the
            // group around it.
            Self::Pattern(pattern) => Regex::new(pattern)
                .and_then(|_| Regex::new(&format!("^(?:{pattern})$")))
                .map(Some)
                .map_err(|e| format!("the resource pattern does not compile: {e}").into()),
        }
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
