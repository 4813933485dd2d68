//! What an entry answers when it is turned away.

use std::{fmt, sync::Arc, time::Duration};

/// Which kind of rule turned an entry away. Checks run in this order and stop at the first that blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// The origin is not allowed.
    Authority,
    /// The whole system is overloaded.
    System,
    /// One value of an argument has had its share.
    HotParam,
    /// The resource has had its share.
    Flow,
    /// Too many calls are in flight.
    Isolation,
    /// More calls are in flight than the resource has shown it can bear.
    Adaptive,
    /// The resource is failing, or slow.
    Breaker,
}

impl BlockKind {
    /// The kind's name, as rules files and metrics write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authority => "authority",
            Self::System => "system",
            Self::HotParam => "hot-param",
            Self::Flow => "flow",
            Self::Isolation => "isolation",
            Self::Adaptive => "adaptive",
            Self::Breaker => "breaker",
        }
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry that was turned away: an answer, not a failure. It has been counted, and nothing has been taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub(crate) kind: BlockKind,
    pub(crate) rule: Arc<str>,
    pub(crate) resource: Arc<str>,
    pub(crate) retry_after: Option<Duration>,
}

impl Blocked {
    /// A refusal as a test of a caller needs one; those of a gate come from its entries.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_flow::{BlockKind, Blocked};
    /// let blocked = Blocked::new(BlockKind::Flow, "100/1s", "db").with_retry_after(Duration::from_millis(20));
    /// assert_eq!(blocked.to_string(), "db is blocked by the flow rule 100/1s; retry after 20ms");
    /// ```
    #[must_use]
    pub fn new(kind: BlockKind, rule: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        Self { kind, rule: rule.into(), resource: resource.into(), retry_after: None }
    }

    /// The same refusal with a time after which to ask again.
    #[must_use]
    pub fn with_retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    /// The kind of rule that blocked.
    #[must_use]
    pub const fn kind(&self) -> BlockKind {
        self.kind
    }

    /// The rule that blocked: its id, or what it says where it has none.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The resource that was asked for.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// When this rule would let the same entry through, with no other traffic. `None` where no time can be named: the
    /// count can never fit, another call has to leave first, or the answer depends on more than time.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is blocked by the {} rule {}", self.resource, self.kind, self.rule)?;
        match self.retry_after {
            Some(wait) => write!(f, "; retry after {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Blocked {}
