//! Errors between a caller and the store.

use std::sync::Arc;

/// Why the store made no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection: nothing listens at the address, the name does not resolve, or only one side
    /// speaks TLS.
    #[error("cannot reach the store: {0}; check the address and that the store is running")]
    Refused(Arc<str>),
    /// The connection broke. Whether the request was decided before that is unknown.
    #[error("the connection to the store broke: {0}")]
    Lost(Arc<str>),
    /// No reply within the deadline. The request may have been decided, or still be.
    #[error("the store did not answer within the deadline")]
    TimedOut,
    /// The server is loading its data after a start.
    #[error("the store is loading its data after a start; wait until it is ready")]
    Loading,
    /// The server is a replica. After a failover, the address still points to the old master.
    #[error(
        "the store is a read-only replica; use the address of the master, the sentinels or the cluster"
    )]
    ReadOnly,
    /// The server's memory is full and its policy is not to evict.
    #[error("the store's memory is full; raise its maxmemory")]
    OutOfMemory,
    /// The cluster, or one of its slots, currently has no master, or was still moving the slot
    /// after several tries.
    #[error("the cluster does not serve this key at the moment: {0}")]
    ClusterDown(Arc<str>),
    /// The keys of one decision are on different nodes of a cluster.
    #[error(
        "the keys of one decision are on different nodes of the cluster; give them a common {{hash tag}}"
    )]
    CrossSlot,
    /// One decision contains two limits with the same name but other numbers for the same key. They
    /// have one state, and only one of them can decide on it.
    #[error(
        "one decision has two limits of the same name with different numbers for one key; give them different names"
    )]
    OneKey,
    /// The key holds a value of another Redis type.
    #[error(
        "the limit's key holds another type of value, from another program; choose another prefix or name"
    )]
    WrongType,
    /// The key holds a string that is not a state of this limit.
    #[error(
        "the limit's key holds another value, from another program; choose another prefix or name"
    )]
    NotOurs,
    /// The key holds a value that a later version of Tidegate wrote in another format.
    #[error(
        "the limit's key holds a value in version {0} of Tidegate's format, and this program knows version 1; upgrade it, or choose another prefix"
    )]
    LaterVersion(u8),
    /// The server rejects the credentials, or its user may not run scripts at all.
    #[error("the store refuses access: {0}")]
    NotPermitted(Arc<str>),
    /// The server's user may not access this key. The text lists the permissions that the store
    /// needs.
    #[error("the store's user lacks permission: {0}")]
    Forbidden(Arc<str>),
    /// The server aborted the limit's script, for example because its user may not run a command
    /// that the script needs. The text lists the permissions that the store needs.
    #[error("the store could not run the limit's script: {0}")]
    Script(Arc<str>),
    /// The client cannot parse the address.
    #[error("invalid store address: {0}")]
    Address(Arc<str>),
    /// The prefix is empty or contains `:`, `{` or `}`.
    #[error("a prefix must not be empty or contain `:`, `{{` or `}}`")]
    Prefix,
    /// The store has the largest number of orders (`Store::order`).
    #[error(
        "the store has two million blocks and overrides; end some, or write them into the rules"
    )]
    TooManyOrders,
    /// Permits were charged.
    #[error(
        "permits are held until they are returned and cannot be charged; ask for a permit instead"
    )]
    Held,
    /// Any other error from the server.
    #[error("error from the store: {0}")]
    Server(Arc<str>),
    /// The server's reply is not what the script returns.
    #[error("unexpected reply from the store")]
    BadReply,
    /// The store cannot decide, or not on every key: it is of a kind that the address does not say.
    #[error("the store cannot be used like this: {0}")]
    Unfit(Arc<str>),
    /// The task that asks the store for those who wait in a line has ended early: it has panicked, or
    /// the runtime is shutting down.
    #[error("the task of the line that the request waited in has ended; ask again")]
    LineEnded,
    /// A recent heartbeat found the store down, so it was not asked.
    #[error("the store went down a moment ago and was not asked")]
    Down,
}

/// The kinds of [`StoreError`], for counters.
impl StoreError {
    /// All names that [`name`](Self::name) can return.
    pub const NAMES: [&'static str; 24] = [
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
        "too-many-orders",
        "forbidden",
        "one-key",
        "script",
        "held",
        "later-version",
        "unfit",
        "line-ended",
    ];

    #[doc(hidden)]
    pub const fn index(&self) -> usize {
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
            Self::TooManyOrders => 16,
            Self::Forbidden(_) => 17,
            Self::OneKey => 18,
            Self::Script(_) => 19,
            Self::Held => 20,
            Self::LaterVersion(_) => 21,
            Self::Unfit(_) => 22,
            Self::LineEnded => 23,
        }
    }

    /// A short name for metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The server is a node of a cluster, but the address is of a single server.
    #[doc(hidden)]
    pub fn node_of_a_cluster() -> Self {
        Self::Unfit(
            "this is a node of a cluster, or a proxy before several servers; write redis+cluster:// and the nodes' addresses (proxies that \
             spread keys over servers cannot be used)"
                .into(),
        )
    }

    /// Whether the error concerns one key or one request and says nothing about the store's health.
    #[must_use]
    pub const fn is_about_the_key(&self) -> bool {
        matches!(
            self,
            Self::WrongType
                | Self::NotOurs
                | Self::LaterVersion(_)
                | Self::CrossSlot
                | Self::OneKey
                | Self::TooManyOrders
                | Self::Held
                | Self::Forbidden(_)
                | Self::Script(_)
        )
    }

    /// Whether only another connection, perhaps to another server, can help.
    #[doc(hidden)]
    pub const fn needs_reconnect(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::Lost(_) | Self::ReadOnly | Self::BadReply
        )
    }

    /// Whether the store refuses this node's user or the script, however often it is asked.
    #[doc(hidden)]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Forbidden(_) | Self::Script(_) | Self::NotPermitted(_) | Self::Unfit(_)
        )
    }

    /// Whether the store as a whole makes no decisions and has not made this one. This is not
    /// certain in a cluster, whose client may have sent the request twice.
    #[doc(hidden)]
    pub const fn is_certain(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Loading
                | Self::ReadOnly
                | Self::OutOfMemory
                | Self::Address(_)
        )
    }
}
