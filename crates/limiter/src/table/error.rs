//! What can go wrong with a table.

use std::fmt;

/// Why there is no such table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// A bound of no keys.
    NoKeys,
    /// More than 2⁴⁰ bytes.
    TooLarge,
    /// The system has not that much memory to reserve.
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKeys => f.write_str("the bound on keys is 0; allow at least one"),
            Self::TooLarge => f.write_str(
                "the states of that many keys take more than 1 TiB; lower max_keys, or choose an algorithm with a smaller state",
            ),
            Self::OutOfMemory { bytes } => write!(
                f,
                "the system refused {bytes} bytes for the states; lower max_keys, or choose an algorithm with a smaller state"
            ),
        }
    }
}

impl std::error::Error for TableError {}

/// A joint decision over more keys of one table than it has places for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table has no room for all the keys of this joint decision; raise max_keys")
    }
}

impl std::error::Error for Full {}
