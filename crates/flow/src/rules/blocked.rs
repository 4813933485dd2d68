//! The error of a blocked entry.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The kind of rule that blocked an entry. Checks run in this order and stop at the first rule that
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// The origin is not allowed.
    Authority,
    /// The whole system is overloaded.
    System,
    /// One value of an argument has used up its share.
    HotParam,
    /// The resource has reached the threshold of a flow rule.
    Flow,
    /// Too many calls are in flight.
    Isolation,
    /// More calls are in flight than the limit learned from the resource's calls allows.
    Adaptive,
    /// The resource is failing or slow.
    Breaker,
}

impl BlockKind {
    /// Returns the kind's name in rule files and metrics.
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

/// Why an entry was blocked, in the words of the limits' denials where both have the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockReason {
    /// The rule's units are used up. Time makes room.
    Quota,
    /// The entry has more units than the rule ever admits at once. Waiting does not help.
    TooLarge,
    /// As many calls are in flight as the rule allows. The end of other calls makes room.
    InFlight,
    /// The table of a hot parameter rule has no place for a new value.
    TableFull,
    /// The rules do not allow the origin.
    DenyListed,
    /// The whole system is overloaded.
    Overloaded,
    /// The breaker is open.
    BreakerOpen,
}

impl BlockReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Quota,
        Self::TooLarge,
        Self::InFlight,
        Self::TableFull,
        Self::DenyListed,
        Self::Overloaded,
        Self::BreakerOpen,
    ];

    /// Returns the name in metrics, logs and reports, such as `too-large`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::TooLarge => "too-large",
            Self::InFlight => "in-flight",
            Self::TableFull => "table-full",
            Self::DenyListed => "deny-listed",
            Self::Overloaded => "overloaded",
            Self::BreakerOpen => "breaker-open",
        }
    }

    /// The reason of most blocks by a rule of this kind.
    pub(crate) const fn of(kind: BlockKind) -> Self {
        match kind {
            BlockKind::Authority => Self::DenyListed,
            BlockKind::System => Self::Overloaded,
            BlockKind::HotParam | BlockKind::Flow => Self::Quota,
            BlockKind::Isolation | BlockKind::Adaptive => Self::InFlight,
            BlockKind::Breaker => Self::BreakerOpen,
        }
    }
}

/// The units that were blocked for each reason.
#[derive(Debug, Default)]
pub(crate) struct BlockCounts([AtomicU64; BlockReason::ALL.len()]);

impl BlockCounts {
    // Relaxed: the counts are only reported.
    pub fn add(&self, reason: BlockReason, units: u64) {
        self.0[reason as usize].fetch_add(units, Ordering::Relaxed);
    }

    pub fn get(&self) -> [u64; BlockReason::ALL.len()] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

/// An entry that was blocked: an expected answer, not a failure. It is counted as blocked and has
/// consumed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{resource} is blocked by the {kind} rule {rule}{}", .retry_after.map_or(String::new(), |wait| format!("; retry after {wait:?}")))]
pub struct Blocked {
    pub(crate) kind: BlockKind,
    pub(crate) reason: BlockReason,
    pub(crate) rule: Arc<str>,
    pub(crate) resource: Arc<str>,
    pub(crate) retry_after: Option<Duration>,
}

impl Blocked {
    /// Creates a value for tests of callers. A gate creates its own when it blocks an entry.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_flow::{BlockKind, Blocked};
    /// let blocked = Blocked::new(BlockKind::Flow, "100/1s", "db").with_retry_after(Duration::from_millis(20));
    /// assert_eq!(blocked.to_string(), "db is blocked by the flow rule 100/1s; retry after 20ms");
    /// ```
    #[must_use]
    pub fn new(kind: BlockKind, rule: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        let reason = BlockReason::of(kind);
        Self {
            kind,
            reason,
            rule: rule.into(),
            resource: resource.into(),
            retry_after: None,
        }
    }

    /// Sets the time after which to retry.
    #[must_use]
    pub fn with_retry_after(self, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..self
        }
    }

    /// Returns the kind of rule that blocked.
    #[must_use]
    pub const fn kind(&self) -> BlockKind {
        self.kind
    }

    /// Returns the reason, which tells apart the blocks of one kind: a flow rule counts units, or
    /// calls in flight.
    #[must_use]
    pub const fn reason(&self) -> BlockReason {
        self.reason
    }

    /// Returns the rule that blocked: its id, or a summary of the rule if it has none.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the resource that the entry was for.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Returns the time after which this rule would admit the same entry if there were no other
    /// traffic. `None` if no time can be given: the count can never fit, another call has to end
    /// first, or the answer depends on more than time.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}
