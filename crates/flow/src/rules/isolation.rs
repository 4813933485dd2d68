//! Isolation: a limit on the calls of a resource in flight.

use std::fmt;

use super::{InvalidRule, Target, Threshold};

/// Admits at most `threshold` units of a resource in flight, from all origins together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct IsolationRule {
    /// The rule's id, which a [`Blocked`](crate::Blocked) reports.
    pub id: Option<String>,
    /// The resources that the rule applies to.
    pub resource: Target,
    /// The most units in flight.
    pub threshold: Threshold,
}

impl IsolationRule {
    /// Creates a rule that admits at most `threshold` units in flight.
    pub fn new(resource: impl Into<Target>, threshold: impl Into<Threshold>) -> Self {
        Self {
            id: None,
            resource: resource.into(),
            threshold: threshold.into(),
        }
    }

    crate::rules::id_setter!();

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
