//! Why a question gets no decision.

use tidegate_core::Visible;
use tidegate_limiter::{OverrideError, repeats::MAX_ID_BYTES};
use tidegate_redis::{PlanError, StoreError};

use crate::{
    decide::reservations::ReservationError,
    rules::{MAX_KEY_BYTES, QuotaTextError},
};

/// The maximum number of keys of one limit that operators may override while the server runs.
pub const MOST_OVERRIDES: usize = 1_000;

/// Why a question gets no decision. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No limit has this name.
    #[error("no limit is named `{}`; {}", Visible(name), nearest_names(nearest, *limits))]
    UnknownLimit {
        /// The name, as far as it can be displayed.
        name: String,
        /// The most similar names, at most three, best first.
        nearest: Vec<String>,
        /// The number of limits.
        limits: usize,
    },
    /// A request to a keyed limit has no key.
    #[error("limit `{limit}` counts per key: give a key (or make the limit `global: true`)")]
    KeyMissing {
        /// The limit's name.
        limit: String,
    },
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error(
        "the key has {bytes} bytes; at most {MAX_KEY_BYTES} are allowed: send a digest of longer keys"
    )]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A limit has room for so few keys that those of one joint decision do not fit.
    #[error(
        "a limit has no room for all these keys at once: ask for fewer together, or raise its max_keys"
    )]
    TooManyKeys,
    /// The limit already has the maximum number of blocked or overridden keys.
    #[error(
        "limit `{limit}` has no room to block another key: unblock some keys, or raise its max_keys"
    )]
    TooManyBlocked {
        /// The limit's name.
        limit: String,
    },
    /// A global limit has no keys to block or override.
    #[error("limit `{limit}` is global: it has no keys to block, unblock or override")]
    GlobalHasNoKeys {
        /// The limit's name.
        limit: String,
    },
    /// The limit keeps no names of heavy keys.
    #[error("no heavy keys are kept for limit `{limit}`: {}", if *global { "it is global, and has no keys" } else { "the server runs with --top-keys 0" })]
    NoHeavyKeys {
        /// The limit's name.
        limit: String,
        /// Whether it has no keys at all.
        global: bool,
    },
    /// The budget for histories has no room for this limit (or for any, if no name is given).
    #[error(
        "no history is kept{}: --history-memory leaves no room for it",
        of_limit(limit)
    )]
    NoHistory {
        /// The limit's name; empty if none was given.
        limit: String,
    },
    /// No trace is kept.
    #[error(
        "no trace is kept: start the server with --trace-keys 10%, or another share of the keys"
    )]
    NoTrace,
    /// The limits of a joint decision are on different nodes of a cluster.
    #[error(
        "these keys are on different nodes of the store's cluster and cannot be decided in one step: give them a common {{hash tag}} (a global limit has no key, so it cannot have one), or ask one after another"
    )]
    Scattered,
    /// Some limits of a joint decision with an id are in the store, others in memory.
    #[error(
        "some of these limits are in the store and others in memory: a decision with an id needs all of them in one place, so ask for them separately"
    )]
    Apart,
    /// The id of a request has no bytes, or too many.
    #[error(
        "the id has {bytes} bytes; it must have 1 to {MAX_ID_BYTES}, such as a UUID that is new for each request"
    )]
    Id {
        /// Its length.
        bytes: usize,
    },
    /// A refund may not have been made, because the shared store did not reply.
    #[error(
        "the refund to limit `{limit}` may not have been made: {why}; units that stay charged expire with the limit's window"
    )]
    NoAnswer {
        /// The limit's name.
        limit: String,
        /// The store client's error.
        #[source]
        why: StoreError,
    },
    /// A charge may not have been made, because the shared store did not reply.
    #[error("the charge to limit `{limit}` may not have been made: {why}")]
    NotCharged {
        /// The limit's name.
        limit: String,
        /// The store client's error.
        #[source]
        why: StoreError,
    },
    /// Permits were charged.
    #[error(
        "limit `{limit}` counts permits, which are held until they are returned: take them instead of charging them"
    )]
    Held {
        /// The limit's name.
        limit: String,
    },
    /// The keys of a limit in a shared store can only be reset one by one.
    #[error(
        "limit `{limit}` is in the store, which does not reset all its keys at once: give a key"
    )]
    InStore {
        /// The limit's name.
        limit: String,
    },
    /// A request can neither unblock nor override a key on the rules' deny list.
    #[error("the key is on the deny list of limit `{limit}`: remove it from the rules file")]
    DeniedByRules {
        /// The limit's name.
        limit: String,
    },
    /// A block, an override or a reset may not have been made, because the shared store did not
    /// reply or refused it.
    #[error("the change to limit `{limit}` may not have been made: {why}; try again")]
    NotChanged {
        /// The limit's name.
        limit: String,
        /// The store client's error.
        #[source]
        why: StoreError,
    },
    /// The limit cannot be shared with this quota.
    #[error("limit `{limit}` cannot be shared with the quota `{quota}`: {why}", quota = Visible(quota))]
    NotShareable {
        /// The limit's name.
        limit: String,
        /// The quota, as far as it can be shown.
        quota: String,
        /// The mistake.
        #[source]
        why: PlanError,
    },
    /// An operator gives a quota to a key that shares its limit with others.
    #[error(
        "tenants share limit `{limit}`, so a key cannot have a quota: give the tenant a weight from 1 to 1000, as in `weight=10`, or a guarantee or a ceiling in the rules (`shares`)"
    )]
    TenantsShare {
        /// The limit's name.
        limit: String,
    },
    /// A joint decision names a limit twice that tenants share.
    #[error(
        "tenants share limit `{limit}`, and this decision names it twice: ask for the sum of the costs, or for one key after another"
    )]
    SharedTwice {
        /// The limit's name.
        limit: String,
    },
    /// The text is not a quota of the limit's algorithm.
    #[error("`{quota}` is not a quota for limit `{limit}`: {why}", quota = Visible(quota))]
    NoQuota {
        /// The limit's name.
        limit: String,
        /// The text of the request, shortened.
        quota: String,
        /// The mistake.
        #[source]
        why: QuotaTextError,
    },
    /// The limit has as many overrides as it may have.
    #[error(
        "{MOST_OVERRIDES} keys of limit `{limit}` are overridden already: end some, or write them into the rules file"
    )]
    TooManyOverridden {
        /// The limit's name.
        limit: String,
    },
    /// The key of an override is not UTF-8.
    #[error(
        "the key is not UTF-8, and overridden keys must be: they can be written into the rules file"
    )]
    KeyNotText,
    /// A reservation cannot be made or changed.
    #[error(transparent)]
    Reservation(ReservationError),
    /// The time that a request wants to wait is out of range.
    #[error("`wait` must be between 1ms and 1h (3600000 ms)")]
    Wait,
    /// A request gives a priority, and does not wait.
    #[error("a priority is for a request that waits in line: give `wait`, too")]
    PriorityAlone,
    /// A request with an id wants to wait.
    #[error(
        "a request that waits has no id: one that is given up takes nothing, so send it again without"
    )]
    WaitOnce,
    /// The store has no lines.
    #[error(
        "limit `{limit}` is in the store and has no line there: add `line: true` to its rule, or ask without a wait, and again after the time that a denial gives"
    )]
    WaitInStore {
        /// The limit's name.
        limit: String,
    },
    /// A limit that tenants share has no lines.
    #[error(
        "tenants share limit `{limit}`, which has no lines: ask without a wait, and again after the time that a denial gives"
    )]
    WaitShared {
        /// The limit's name.
        limit: String,
    },
    /// A joint request or a reservation would wait for limits in the store and for others.
    #[error(
        "limit `{limit}` is not in the store, and others of the request are: wait for them separately, or ask without a wait"
    )]
    WaitMixed {
        /// The name of a limit in memory.
        limit: String,
    },
    /// Too many callers wait.
    #[error("{most} callers wait{} already: ask later, or raise {}", for_limit(limit.as_deref()), if limit.is_some() { "--max-waiting-per-key" } else { "--max-waiting" })]
    TooManyWaiting {
        /// How many may wait.
        most: usize,
        /// The limit for whose key they wait; `None` for all keys of all limits.
        limit: Option<String>,
    },
    /// The limit of a request that waited is no longer there.
    #[error(
        "the wait ended because limit `{limit}` was removed from the rules or made another kind of limit: ask again"
    )]
    WaitEnded {
        /// The limit's name.
        limit: String,
    },
    /// The server stops.
    #[error("the wait ended because the server is stopping: ask another server")]
    WaitStopped,
    /// The system has no memory for the key's state.
    #[error("the system has no memory for the overridden key's state: {why}")]
    NoMemory {
        /// The limiter's error.
        #[source]
        why: OverrideError,
    },
}

impl Refusal {
    /// Refuses a text that the limit cannot have as its quota.
    pub fn no_quota(limit: &str, quota: &str, why: QuotaTextError) -> Self {
        Self::NoQuota {
            limit: limit.to_owned(),
            quota: quota.chars().take(32).collect(),
            why,
        }
    }
}

fn for_limit(limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| {
        format!(" for this key of limit `{limit}`")
    })
}

fn of_limit(limit: &str) -> String {
    if limit.is_empty() {
        String::new()
    } else {
        format!(" of limit `{limit}`")
    }
}

fn nearest_names(nearest: &[String], limits: usize) -> String {
    if nearest.is_empty() {
        return "no limit has a name that this client may use".to_owned();
    }
    let few = if limits <= nearest.len() {
        "the limits are"
    } else {
        "the nearest names are"
    };
    format!("{few}: {}", nearest.join(", "))
}
