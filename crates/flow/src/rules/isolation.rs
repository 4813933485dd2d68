//! Isolation: how many calls of a resource may be in flight.

use super::InvalidRule;
use std::fmt;

use super::{Target, Threshold};

/// At most `threshold` units of a resource in flight, whoever they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct IsolationRule {
    /// A name of the rule's own, for whoever reads a [`Blocked`](crate::Blocked).
    pub id: Option<String>,
    /// The resources it is about.
    pub resource: Target,
    /// How many units may be in flight.
    pub threshold: Threshold,
}

impl IsolationRule {
    /// At most `threshold` in flight.
    pub fn new(resource: impl Into<Target>, threshold: impl Into<Threshold>) -> Self {
        Self { id: None, resource: resource.into(), threshold: threshold.into() }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidRule> {
        self.resource.compile()?;
        self.threshold.validate()
    }
}

impl fmt::Display for IsolationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.id, self.threshold) {
            (Some(id), _) => f.write_str(id),
            (None, Threshold::Fixed(count)) => write!(f, "{count} in flight"),
            (None, Threshold::Memory(memory)) => {
                write!(f, "{}..{} in flight", memory.when_scarce, memory.when_free)
            }
        }
    }
}
