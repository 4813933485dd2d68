//! Why a question has no answer.

use std::fmt;

use crate::service::MAX_KEY_BYTES;

/// Why a question has no answer. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No limit has this name.
    UnknownLimit {
        /// The name, as far as it can be shown.
        name: String,
        /// The names that look most like it, at most three, the likest first.
        nearest: Vec<String>,
        /// How many limits there are.
        limits: usize,
    },
    /// A keyed limit was asked without a key.
    KeyMissing {
        /// The limit's name.
        limit: String,
    },
    /// The key is longer than [`MAX_KEY_BYTES`].
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// One limit holds so few keys that those of one joint decision do not fit in together.
    TooManyKeys,
    /// As many keys are blocked or overridden as the limit may hold keys.
    TooManyBlocked {
        /// The limit's name.
        limit: String,
    },
    /// A global limit has no keys to block.
    GlobalHasNoKeys {
        /// The limit's name.
        limit: String,
    },
    /// The limits asked together are kept on different nodes of a cluster.
    Scattered,
    /// What was taken from a leased or reported limit is not given back.
    NotExact {
        /// The limit's name.
        limit: String,
    },
    /// What was to be given back may not be: the shared store gave no answer.
    NoAnswer {
        /// The limit's name.
        limit: String,
        /// What the store's client says.
        why: String,
    },
    /// A limit that servers share over a store cannot be reset.
    InStore {
        /// The limit's name.
        limit: String,
    },
    /// A key on the rules' deny list is not unblocked by a request.
    DeniedByRules {
        /// The limit's name.
        limit: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownLimit { name, nearest, limits } => {
                let few = if *limits <= nearest.len() { "the limits are" } else { "the nearest names are" };
                write!(f, "there is no limit `{name}`; {few}: {}", nearest.join(", "))
            }
            Self::KeyMissing { limit } => {
                write!(f, "limit `{limit}` counts for each key: give a key (or make it `global: true`)")
            }
            Self::KeyTooLong { bytes } => write!(
                f,
                "the key has {bytes} bytes; at most {MAX_KEY_BYTES} are taken: send a digest of longer ones"
            ),
            Self::TooManyKeys => f.write_str(
                "a limit has no room for all these keys at once: ask fewer together, or raise its max_keys",
            ),
            Self::TooManyBlocked { limit } => write!(
                f,
                "as many keys of limit `{limit}` are blocked as it may hold: unblock some, or raise its max_keys"
            ),
            Self::GlobalHasNoKeys { limit } => {
                write!(f, "limit `{limit}` is global: it has no keys to block or unblock")
            }
            Self::Scattered => f.write_str(
                "these keys are on different nodes of the store's cluster, so no one step can decide on all of them: give \
                 them a common {hash tag} (a global limit has no key, and stands alone), or ask one after the other",
            ),
            Self::NotExact { limit } => write!(
                f,
                "limit `{limit}` gives nothing back, as servers decide from what they took before: for refunds make it \
                 `sharing: exact`"
            ),
            Self::NoAnswer { limit, why } => write!(
                f,
                "nothing may have been given back to limit `{limit}`: {why}; what stays charged is forgotten in the limit's time"
            ),
            Self::InStore { limit } => write!(
                f,
                "limit `{limit}` is kept in the store, which cannot be told to forget: refund what was taken, or wait"
            ),
            Self::DeniedByRules { limit } => {
                write!(f, "the key is on the deny list of limit `{limit}`: take it out of the rules file")
            }
        }
    }
}

impl std::error::Error for Refusal {}
