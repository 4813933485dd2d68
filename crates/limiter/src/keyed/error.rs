//! What can go wrong when a key is treated otherwise than the others.

use crate::table::BuildError;

/// As many keys are blocked or have a policy of their own as the limiter may hold keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "as many keys are blocked or have a policy of their own as the limiter may hold keys; lift some, or raise max_keys"
)]
#[non_exhaustive]
pub struct TooManyExceptions;

/// Why a key got no policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// As many keys have exceptions as the limiter may hold keys.
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
