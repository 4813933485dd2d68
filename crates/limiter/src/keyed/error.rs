//! What can go wrong when a key is treated otherwise than the others.

use std::{error::Error, fmt};

use crate::table::BuildError;

/// As many keys are blocked or have a policy of their own as the limiter may hold keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooManyExceptions;

impl fmt::Display for TooManyExceptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "as many keys are blocked or have a policy of their own as the limiter may hold keys; lift some, or raise max_keys",
        )
    }
}

impl Error for TooManyExceptions {}

/// Why a key got no policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideError {
    /// As many keys have exceptions as the limiter may hold keys.
    TooManyExceptions,
    /// The memory for the key's state cannot be reserved.
    State(BuildError),
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyExceptions => TooManyExceptions.fmt(f),
            Self::State(error) => error.fmt(f),
        }
    }
}

impl Error for OverrideError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::TooManyExceptions => None,
            Self::State(error) => Some(error),
        }
    }
}

impl From<TooManyExceptions> for OverrideError {
    fn from(_: TooManyExceptions) -> Self {
        Self::TooManyExceptions
    }
}

impl From<BuildError> for OverrideError {
    fn from(error: BuildError) -> Self {
        Self::State(error)
    }
}
