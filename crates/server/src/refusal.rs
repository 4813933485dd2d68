//! Why a question has no answer.

use tidegate_redis::StoreError;

/// The longest key that a request may carry, in bytes (the library takes any).
pub const MAX_KEY_BYTES: usize = 1024;

/// Why a question has no answer. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No limit has this name.
    #[error("there is no limit `{name}`; {}", nearest_names(nearest, *limits))]
    UnknownLimit {
        /// The name, as far as it can be shown.
        name: String,
        /// The names that look most like it, at most three, the likest first.
        nearest: Vec<String>,
        /// How many limits there are.
        limits: usize,
    },
    /// A keyed limit was asked without a key.
    #[error("limit `{limit}` counts for each key: give a key (or make it `global: true`)")]
    KeyMissing {
        /// The limit's name.
        limit: String,
    },
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("the key has {bytes} bytes; at most {MAX_KEY_BYTES} are taken: send a digest of longer ones")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// One limit holds so few keys that those of one joint decision do not fit in together.
    #[error("a limit has no room for all these keys at once: ask fewer together, or raise its max_keys")]
    TooManyKeys,
    /// As many keys are blocked or overridden as the limit may hold keys.
    #[error(
        "as many keys of limit `{limit}` are blocked as it may hold: unblock some, or raise its max_keys"
    )]
    TooManyBlocked {
        /// The limit's name.
        limit: String,
    },
    /// A global limit has no keys to block.
    #[error("limit `{limit}` is global: it has no keys to block or unblock")]
    GlobalHasNoKeys {
        /// The limit's name.
        limit: String,
    },
    /// No names of keys are kept for a limit.
    #[error("no heavy keys are kept for limit `{limit}`: {}", if *global { "it is global, and has no keys" } else { "the server runs with --top-keys 0" })]
    NoHeavyKeys {
        /// The limit's name.
        limit: String,
        /// Whether it has no keys at all.
        global: bool,
    },
    /// There is no room for a limit's history (or, without a name, for any).
    #[error("no history is kept{}: --history-memory leaves no room for it", of_limit(limit))]
    NoHistory {
        /// The limit's name; empty where none was named.
        limit: String,
    },
    /// No trace is kept.
    #[error("no trace is kept: start the server with --trace-keys 10%, or another share of the keys")]
    NoTrace,
    /// The limits asked together are kept on different nodes of a cluster.
    #[error(
        "these keys are on different nodes of the store's cluster, so no one step can decide on all of them: give them a common {{hash tag}} (a global limit has no key, and stands alone), or ask one after the other"
    )]
    Scattered,
    /// What was taken from a leased or reported limit is not given back.
    #[error(
        "limit `{limit}` gives nothing back, as servers decide from what they took before: for refunds make it `sharing: exact`"
    )]
    NotExact {
        /// The limit's name.
        limit: String,
    },
    /// What was to be given back may not be: the shared store gave no answer.
    #[error(
        "the refund to limit `{limit}` may not have happened: {why}; what stays charged expires with the limit's window"
    )]
    NoAnswer {
        /// The limit's name.
        limit: String,
        /// What the store's client says.
        #[source]
        why: StoreError,
    },
    /// A limit that servers share over a store cannot be reset.
    #[error(
        "limit `{limit}` is kept in the store, which cannot be told to forget: refund what was taken, or wait"
    )]
    InStore {
        /// The limit's name.
        limit: String,
    },
    /// A key on the rules' deny list is not unblocked by a request.
    #[error("the key is on the deny list of limit `{limit}`: take it out of the rules file")]
    DeniedByRules {
        /// The limit's name.
        limit: String,
    },
}

fn of_limit(limit: &str) -> String {
    if limit.is_empty() { String::new() } else { format!(" of limit `{limit}`") }
}

fn nearest_names(nearest: &[String], limits: usize) -> String {
    let few = if limits <= nearest.len() { "the limits are" } else { "the nearest names are" };
    format!("{few}: {}", nearest.join(", "))
}
