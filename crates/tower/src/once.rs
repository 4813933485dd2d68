//! The ids of requests that are safe to repeat.

use std::{borrow::Cow, fmt};

use http::request::Parts;
use tidegate_limiter::repeats::Repeats;

use crate::key::KeySource;

/// Where the ids of requests are, and the admissions of this process.
pub(crate) struct OnceById {
    source: Box<dyn KeySource>,
    pub(crate) repeats: Repeats,
}

impl OnceById {
    pub(crate) fn new(source: impl KeySource + 'static) -> Self {
        Self {
            source: Box::new(source),
            repeats: Repeats::default(),
        }
    }

    pub(crate) fn id<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        self.source.key(parts).filter(|id| !id.is_empty())
    }
}

impl fmt::Debug for OnceById {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceById").finish_non_exhaustive()
    }
}
