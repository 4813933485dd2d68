//! What can go wrong between a caller and the store.

use std::{fmt, sync::Arc};

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why the store gave no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody listens at the address, or the name does not resolve, or no connection came about: perhaps as only one of both
    /// speaks TLS.
    Refused(Arc<str>),
    /// The connection broke. Whether the request was decided before that is not known.
    Lost(Arc<str>),
    /// No answer within the deadline. It may still be decided, or have been.
    TimedOut,
    /// The server is loading its data after a start.
    Loading,
    /// The server is a replica: after a failover the address still points to the old master.
    ReadOnly,
    /// The server's memory is full, and its policy is not to evict.
    OutOfMemory,
    /// The cluster (or a slot of it) has no master at the moment, or was still moving the slot after several tries.
    ClusterDown(Arc<str>),
    /// The keys of one decision are on different nodes of a cluster.
    CrossSlot,
    /// Two limits of one name and other numbers, in one decision on one key: they are one state, and only one can decide on it.
    OneKey,
    /// The key holds another type of value, which is not this limit's.
    WrongType,
    /// The key holds a string that is no state of this limit.
    NotOurs,
    /// The server refuses the credentials, or its user may not run scripts at all.
    NotPermitted(Arc<str>),
    /// The server's user may run scripts, but not touch this key or not run a command that this limit's script needs.
    Forbidden(Arc<str>),
    /// The address makes no sense to the client.
    Address(Arc<str>),
    /// A prefix that is empty, or has a `:`, `{` or `}` in it.
    Prefix,
    /// Nodes hold pieces of the limit, or have used what they have not reported yet: only an exact limit gives back.
    NotExact,
    /// Any other error of the server.
    Server(Arc<str>),
    /// The server answered something else than the script returns.
    BadReply,
    /// The store was found to be down a moment ago, and was not asked.
    Down,
}

/// What a server's user needs, for a store of the usual prefix.
const PERMISSIONS: &str = "~tidegate:* (the store's prefix) +eval +evalsha +time +get +mget +set +getrange +setrange \
    +strlen +pexpire +pexpireat +del +zadd +zremrangebyscore +zcard";

/// The kinds of [`StoreError`], to count by.
impl StoreError {
    /// All names that [`name`](Self::name) gives.
    pub const NAMES: [&'static str; 19] = [
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

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "cannot reach the store: {why}; check the address and that it runs"),
            Self::Lost(why) => write!(f, "the connection to the store broke: {why}"),
            Self::TimedOut => f.write_str("the store did not answer within the deadline"),
            Self::Loading => f.write_str("the store is loading its data after a start; it will be ready by itself"),
            Self::ReadOnly => f.write_str(
                "the store is a read-only replica; give the master's address, or that of the sentinels or the cluster",
            ),
            Self::OutOfMemory => f.write_str("the store's memory is full; raise its maxmemory"),
            Self::ClusterDown(why) => write!(f, "the cluster does not serve this key now: {why}"),
            Self::CrossSlot => f.write_str(
                "the keys of one decision are on different nodes of the cluster; give them a common {hash tag}",
            ),
            Self::OneKey => f.write_str(
                "two limits of one name, with other numbers, are asked about one key in one decision; give them different names",
            ),
            Self::WrongType => f.write_str(
                "another program keeps another type of value under this limit's key; choose another prefix or name",
            ),
            Self::NotOurs => f.write_str(
                "another program keeps another value under this limit's key; choose another prefix or name",
            ),
            // Without or with a wrong password no ACL was looked at yet.
            Self::NotPermitted(why) if ["uthentication", "NOAUTH", "WRONGPASS"].iter().any(|no| why.contains(no)) => {
                write!(f, "the store refuses: {why}; check user and password")
            }
            Self::NotPermitted(why) => {
                write!(f, "the store refuses: {why}; check user and password, and that its ACL has {PERMISSIONS}")
            }
            Self::Forbidden(why) => {
                write!(f, "the store's user may not do this: {why}; its ACL must have {PERMISSIONS}")
            }
            Self::Address(why) => write!(f, "no store can be at this address: {why}"),
            Self::Prefix => f.write_str("a prefix is a word without any of : { and }, which part a key"),
            Self::NotExact => f.write_str(
                "a leased or reported limit gives nothing back, as nodes decide from what they took before; make it exact",
            ),
            Self::Server(why) => write!(f, "the store reports: {why}"),
            Self::BadReply => f.write_str("the store's answer is none of Tidegate's script"),
            Self::Down => f.write_str("the store was found to be down a moment ago"),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        // The client's own name of the kind says nothing to whoever reads it.
        let why = || Arc::from(error.to_string().replace(&format!(" - {:?}", error.kind()), "").as_str());
        // A script that is stopped by an error reports its code at the start of the message, or within it.
        let detail = error.detail().unwrap_or_default();
        let says = |code: &str| error.code() == Some(code) || detail.contains(code);
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Loading,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            ErrorKind::Server(
                ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain,
            ) => Self::ClusterDown(why()),
            ErrorKind::ClusterConnectionNotFound => {
                Self::Refused("none of the cluster's nodes can be reached".into())
            }
            ErrorKind::Server(ServerErrorKind::CrossSlot) => Self::CrossSlot,
            // Of a key; of a command it says that it may not be run.
            ErrorKind::Server(ServerErrorKind::NoPerm)
                if detail.contains("key") && !detail.contains("to run") =>
            {
                Self::Forbidden(why())
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) | ErrorKind::AuthenticationFailed => {
                Self::NotPermitted(why())
            }
            ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList => Self::Address(why()),
            ErrorKind::MasterNameNotFoundBySentinel => Self::Refused(why()),
            ErrorKind::Io if error.is_timeout() => Self::TimedOut,
            // Where each of a cluster's nodes refuses, its client says so in words alone.
            ErrorKind::Io if error.is_connection_refusal() || detail.contains("Connection refused") => {
                Self::Refused(why())
            }
            ErrorKind::Io => Self::Lost(why()),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::BadReply,
            // As Redis says it up to 7.0, and from 7.2 on.
            _ if detail.contains("The user executing the script can't")
                || detail.contains("ACL failure in script") =>
            {
                Self::Forbidden(why())
            }
            _ if says("OOM") => Self::OutOfMemory,
            _ if says("READONLY") => Self::ReadOnly,
            _ if says("WRONGTYPE") => Self::WrongType,
            _ if says("LOADING") => Self::Loading,
            _ if says("NOAUTH") || says("WRONGPASS") => Self::NotPermitted(why()),
            _ => Self::Server(why()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_cluster_that_refuse_are_told_as_a_server_that_refuses() {
        let all = "Failed to create initial connections";
        let initial = |why: &str| RedisError::from((ErrorKind::Io, all, why.to_owned()));
        let told = StoreError::from(initial("Connection refused (os error 111)"));
        assert!(told.name() == "refused" && told.to_string().contains("Connection refused"), "{told}");
        assert_eq!(StoreError::from(initial("Connection reset by peer")).name(), "lost");
        let none = RedisError::from((ErrorKind::ClusterConnectionNotFound, "No connections found"));
        assert_eq!(StoreError::from(none).name(), "refused");
    }
}
