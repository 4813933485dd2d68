//! Decides whether the return value of a guarded function is a failure, for `#[guard]` without the
//! option `failed`.
//!
//! A [`Blocked`] error is the answer of a nested resource and not a failure of this one. A macro
//! sees no types, but method resolution does: [`CheckedError::is_failure`] exists for errors that
//! may be a `Blocked`. For all other errors, method resolution continues to the method of
//! [`OpaqueError`].

use std::{error::Error, ops::Deref, sync::Arc};

use crate::rules::blocked::Blocked;

/// An error that can be recognised as a [`Blocked`].
pub trait MayBeBlocked {
    /// Returns whether it is one.
    fn is_blocked(&self) -> bool;
}

impl MayBeBlocked for Blocked {
    fn is_blocked(&self) -> bool {
        true
    }
}

macro_rules! dynamic {
    ($($error:ty),*) => { $(
        impl MayBeBlocked for $error {
            fn is_blocked(&self) -> bool {
                (**self).is::<Blocked>()
            }
        }
    )* };
}
dynamic!(
    Box<dyn Error>,
    Box<dyn Error + Send>,
    Box<dyn Error + Send + Sync>
);
dynamic!(
    Arc<dyn Error>,
    Arc<dyn Error + Send>,
    Arc<dyn Error + Send + Sync>
);

/// Decides whether results are failures.
#[derive(Clone, Copy, Debug)]
pub struct FailureCheck;

/// A result's error, if it has one.
#[derive(Debug)]
pub struct CheckedError<'a, E>(OpaqueError<'a, E>);

/// An error of unknown type.
#[derive(Debug)]
pub struct OpaqueError<'a, E>(Option<&'a E>);

impl FailureCheck {
    /// Selects the result for the next call of `is_failure`.
    #[must_use]
    #[allow(clippy::unused_self)] // A method, because the caller cannot name the type.
    pub fn of<T, E>(self, result: &Result<T, E>) -> CheckedError<'_, E> {
        CheckedError(OpaqueError(result.as_ref().err()))
    }
}

impl<E: MayBeBlocked> CheckedError<'_, E> {
    /// Returns whether there is an error other than [`Blocked`].
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.0.0.is_some_and(|error| !error.is_blocked())
    }
}

impl<E> OpaqueError<'_, E> {
    /// Returns whether there is an error.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        self.0.is_some()
    }
}

impl<'a, E> Deref for CheckedError<'a, E> {
    type Target = OpaqueError<'a, E>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
