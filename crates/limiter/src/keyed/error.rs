//! Errors of blocking a key or giving it its own policy.

use crate::table::BuildError;

/// The number of keys that are blocked or have their own policy has reached the maximum number of
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the number of keys that are blocked or have their own policy has reached max_keys; remove some, or raise max_keys"
)]
#[non_exhaustive]
pub struct TooManyExceptions;

/// Why a key cannot get its own policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The number of keys with exceptions has reached the maximum number of keys.
    #[error("{TooManyExceptions}")]
    TooManyExceptions,
    /// The memory for the key's state cannot be reserved.
    #[error(transparent)]
    State(#[from] BuildError),
}

impl From<TooManyExceptions> for OverrideError {
    fn from(_: TooManyExceptions) -> Self {
        Self::TooManyExceptions
    }
}
