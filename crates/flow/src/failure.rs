//! Whether what a guarded function returned is a failure: what `#[guard]` asks where nobody says it.
//!
//! An error that is a [`Blocked`] is an answer of a resource further in, no failure of this one. A macro sees no types,
//! but the look-up of methods does: [`CheckedError::is_failure`] is there for errors that may be a `Blocked`, and where it is
//! not, the look-up goes on to that of [`OpaqueError`], for all others.

use std::{error::Error, ops::Deref, sync::Arc};

use crate::blocked::Blocked;

/// An error in which a [`Blocked`] can be seen.
pub trait MayBeBlocked {
    /// Whether it is one.
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
dynamic!(Box<dyn Error>, Box<dyn Error + Send>, Box<dyn Error + Send + Sync>);
dynamic!(Arc<dyn Error>, Arc<dyn Error + Send>, Arc<dyn Error + Send + Sync>);

/// Judges results.
#[derive(Clone, Copy, Debug)]
pub struct FailureCheck;

/// A result's error, if it is one.
#[derive(Debug)]
pub struct CheckedError<'a, E>(OpaqueError<'a, E>);

/// An error of which nothing more is known.
#[derive(Debug)]
pub struct OpaqueError<'a, E>(Option<&'a E>);

impl FailureCheck {
    /// What the next call of `is_failure` is about.
    #[must_use]
    #[allow(clippy::unused_self)] // A method, as whoever calls it names no type.
    pub fn of<T, E>(self, result: &Result<T, E>) -> CheckedError<'_, E> {
        CheckedError(OpaqueError(result.as_ref().err()))
    }
}

impl<E: MayBeBlocked> CheckedError<'_, E> {
    /// Whether there is an error that is no [`Blocked`].
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.0.0.is_some_and(|error| !error.is_blocked())
    }
}

impl<E> OpaqueError<'_, E> {
    /// Whether there is an error.
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
