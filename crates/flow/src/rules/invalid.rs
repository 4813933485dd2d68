//! The error of an invalid rule.

/// Why a rule is invalid, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(Box<str>);

impl From<&str> for InvalidRule {
    fn from(reason: &str) -> Self {
        Self(reason.into())
    }
}

impl From<String> for InvalidRule {
    fn from(reason: String) -> Self {
        Self(reason.into())
    }
}
