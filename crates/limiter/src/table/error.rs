//! What can go wrong with a table.

use tidegate_core::Nanos;

/// Why a limiter cannot be built, or given a policy whose states are wider: its states have no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A bound of no keys.
    #[error("the bound on keys is 0; allow at least one")]
    NoKeys,
    /// More than 2⁴⁰ bytes.
    #[error(
        "the states of that many keys take more than 1 TiB; lower max_keys, or choose an algorithm with a smaller state"
    )]
    TooLarge,
    /// The system has not that much memory to reserve.
    #[error(
        "the system refused {bytes} bytes for the states; lower max_keys, or choose an algorithm with a smaller state"
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
}

/// What happens to a new key when an exhausted key's record would have to be forgotten for it.
///
/// That takes more exhausted keys than the table and its records hold: at least four times the bound, within the time that
/// their limits take to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The new key comes in. The exhausted key whose debt ends first is forgotten: it gets a fresh allowance.
    #[default]
    Forget,
    /// The new key is refused until one of them ends. No exhausted key ever gets a fresh allowance early; strangers are
    /// locked out while the flood lasts. Known keys, those with a record included, are decided on as ever; a joint
    /// decision refuses those that have no cell.
    Deny,
}

/// Why a new key did not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An exhausted key's record would have been forgotten for it. Asked again at this time, with no other traffic, it comes
    /// in, and perhaps earlier; [`Nanos::MAX`] where no time can be named.
    Full {
        /// That time.
        until: Nanos,
    },
    /// The table adds no more keys.
    Closed,
}

/// Why there is no cell for a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// As [`Refused::Full`].
    Refused(Nanos),
    /// All cells are taken by keys of the same joint decision, or nobody could be moved just now.
    Pinned,
}

/// A joint decision over more keys of one table than it has places for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table has no room for all the keys of this joint decision; raise max_keys")]
pub struct Full;
