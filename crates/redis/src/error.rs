//! What can go wrong between a caller and the store.

use std::sync::Arc;

/// Why the store gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody listens at the address, or the name does not resolve, or no connection came about: perhaps as only one of both
    /// speaks TLS.
    #[error("cannot reach the store: {0}; check the address and that it runs")]
    Refused(Arc<str>),
    /// The connection broke. Whether the request was decided before that is not known.
    #[error("the connection to the store broke: {0}")]
    Lost(Arc<str>),
    /// No answer within the deadline. It may still be decided, or have been.
    #[error("the store did not answer within the deadline")]
    TimedOut,
    /// The server is loading its data after a start.
    #[error("the store is loading its data after a start; wait until it is ready")]
    Loading,
    /// The server is a replica: after a failover the address still points to the old master.
    #[error(
        "the store is a read-only replica; give the master's address, or that of the sentinels or the cluster"
    )]
    ReadOnly,
    /// The server's memory is full, and its policy is not to evict.
    #[error("the store's memory is full; raise its maxmemory")]
    OutOfMemory,
    /// The cluster (or a slot of it) has no master at the moment, or was still moving the slot after several tries.
    #[error("the cluster does not serve this key now: {0}")]
    ClusterDown(Arc<str>),
    /// The keys of one decision are on different nodes of a cluster.
    #[error(
        "the keys of one decision are on different nodes of the cluster; give them a common {{hash tag}}"
    )]
    CrossSlot,
    /// Two limits of one name and other numbers, in one decision on one key: they are one state, and only one can decide on it.
    #[error(
        "two limits of one name, with other numbers, are asked about one key in one decision; give them different names"
    )]
    OneKey,
    /// The key holds another type of value, which is not this limit's.
    #[error(
        "another program keeps another type of value under this limit's key; choose another prefix or name"
    )]
    WrongType,
    /// The key holds a string that is no state of this limit.
    #[error("another program keeps another value under this limit's key; choose another prefix or name")]
    NotOurs,
    /// The server refuses the credentials, or its user may not run scripts at all.
    #[error("the store refuses: {0}")]
    NotPermitted(Arc<str>),
    /// The server's user may not touch this key. With the rights that the store needs.
    #[error("the store's user may not do this: {0}")]
    Forbidden(Arc<str>),
    /// The server stopped the limit's script: its user may not run a command that the script needs, for instance. With the
    /// rights that the store needs.
    #[error("the store could not run the limit's script: {0}")]
    Script(Arc<str>),
    /// The address makes no sense to the client.
    #[error("no store can be at this address: {0}")]
    Address(Arc<str>),
    /// A prefix that is empty, or has a `:`, `{` or `}` in it.
    #[error("a prefix must not be empty or contain `:`, `{{` or `}}`")]
    Prefix,
    /// Nodes hold allotments of the limit, or have used what they have not reported yet: only an exact limit gives back.
    #[error(
        "a leased or reported limit gives nothing back, as nodes decide from what they took before; make it exact"
    )]
    NotExact,
    /// Any other error of the server.
    #[error("the store reports: {0}")]
    Server(Arc<str>),
    /// The server answered something else than the script returns.
    #[error("unexpected reply from the store")]
    BadReply,
    /// The store was found to be down a moment ago, and was not asked.
    #[error("the store was found to be down a moment ago")]
    Down,
}

/// The kinds of [`StoreError`], to count by.
impl StoreError {
    /// All names that [`name`](Self::name) gives.
    pub const NAMES: [&'static str; 20] = [
        "refused",
        "lost",
        "timed-out",
        "loading",
        "read-only",
        "out-of-memory",
        "cluster-down",
        "cross-slot",
        "wrong-type",
        "not-ours",
        "not-permitted",
        "address",
        "server",
        "bad-reply",
        "down",
        "prefix",
        "not-exact",
        "forbidden",
        "one-key",
        "script",
    ];

    pub(crate) const fn index(&self) -> usize {
        match self {
            Self::Refused(_) => 0,
            Self::Lost(_) => 1,
            Self::TimedOut => 2,
            Self::Loading => 3,
            Self::ReadOnly => 4,
            Self::OutOfMemory => 5,
            Self::ClusterDown(_) => 6,
            Self::CrossSlot => 7,
            Self::WrongType => 8,
            Self::NotOurs => 9,
            Self::NotPermitted(_) => 10,
            Self::Address(_) => 11,
            Self::Server(_) => 12,
            Self::BadReply => 13,
            Self::Down => 14,
            Self::Prefix => 15,
            Self::NotExact => 16,
            Self::Forbidden(_) => 17,
            Self::OneKey => 18,
            Self::Script(_) => 19,
        }
    }

    /// A short name, for metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Whether the error is about one key or one request, and says nothing about the store's health.
    #[must_use]
    pub const fn is_about_the_key(&self) -> bool {
        matches!(
            self,
            Self::WrongType
                | Self::NotOurs
                | Self::CrossSlot
                | Self::OneKey
                | Self::NotExact
                | Self::Forbidden(_)
                | Self::Script(_)
        )
    }

    /// Whether only another connection (perhaps to another server) can help.
    pub(crate) const fn needs_reconnect(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Lost(_) | Self::ReadOnly | Self::BadReply)
    }

    /// Whether the store as a whole takes no decisions, and has not taken this one; unless a cluster's client asked twice.
    pub(crate) const fn is_certain(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::Loading | Self::ReadOnly | Self::OutOfMemory | Self::Address(_)
        )
    }
}
