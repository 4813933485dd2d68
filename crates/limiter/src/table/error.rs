//! Errors of building and using a table.

use tidegate_core::Nanos;

/// Why a limiter cannot be built, or cannot get a policy with larger states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The maximum number of keys is 0.
    #[error("the bound on keys is 0; allow at least one")]
    NoKeys,
    /// The states would take more than 2⁴⁰ bytes.
    #[error(
        "the states of that many keys take more than 1 TiB; lower max_keys, or choose an algorithm with a smaller state"
    )]
    TooLarge,
    /// The system cannot reserve that much memory.
    #[error(
        "the system refused {bytes} bytes for the states; lower max_keys, or choose an algorithm with a smaller state"
    )]
    OutOfMemory {
        /// The number of bytes requested.
        bytes: usize,
    },
}

/// The treatment of a new key if the limiter would have to forget the record of an exhausted key
/// for it.
///
/// That takes more exhausted keys than the table and its records hold: at least four times the
/// maximum number of keys, within the time that their limits take to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The new key is added. The exhausted key whose debt ends first is forgotten and gets a fresh
    /// allowance.
    #[default]
    Forget,
    /// The new key is refused until one of the debts ends. No exhausted key ever gets a fresh
    /// allowance early, but new keys are locked out while the flood lasts. Known keys, including
    /// those with a record, are decided on as usual; a joint decision refuses those that have no
    /// cell.
    Deny,
}

/// Why a new key was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An exhausted key's record would have been forgotten for it. Without other traffic the key is
    /// added at this time at the latest; [`Nanos::MAX`] if the time is unknown.
    Full {
        /// The time.
        until: Nanos,
    },
    /// The table accepts no new keys.
    Closed,
}

/// Why a new key gets no cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// See [`Refused::Full`].
    Refused(Nanos),
    /// All cells are used by keys of the same joint decision, or no key could be moved at the
    /// moment.
    Pinned,
}

/// A joint decision needs more keys of one table than it has places for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table has no room for all the keys of this joint decision; raise max_keys")]
pub struct Full;
