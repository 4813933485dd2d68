//! The builder of a keyed limiter.

use crate::table::{BuildError, HashKeys, WhenFull};
use tidegate_core::{Nanos, Policy};

use super::{
    Generation, KeyedLimiter,
    exceptions::Exceptions,
    generation::{Generations, Room},
};
use crate::{SystemClock, eras::Eras, marks::Marks, sync::Mutex, wait::Lines};

/// The default bound on keys.
const DEFAULT_MAX_KEYS: usize = 1 << 20;

/// Options of a [`KeyedLimiter`].
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, ManualClock, Policy, Quota};
/// let limiter = KeyedLimiter::builder(Policy::token_bucket(Quota::per_minute(100)))
///     .max_keys(10_000)
///     .clock(ManualClock::default())
///     .build()?;
/// assert_eq!(limiter.stats().max_keys, 10_000);
/// # Ok::<(), tidegate::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct KeyedBuilder<C = SystemClock> {
    policy: Policy,
    max_keys: usize,
    max_exceptions: Option<usize>,
    when_full: WhenFull,
    hash: Option<HashKeys>,
    clock: C,
}

impl KeyedBuilder {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            max_keys: DEFAULT_MAX_KEYS,
            max_exceptions: None,
            when_full: WhenFull::Forget,
            hash: None,
            clock: SystemClock::new(),
        }
    }
}

impl<C> KeyedBuilder<C> {
    /// The maximum number of keys (default 1,048,576). The limiter reserves memory for them at
    /// once; it becomes resident as keys arrive.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// The maximum number of keys that are blocked or have their own policy (default: the maximum
    /// number of keys, whatever that is).
    pub fn max_exceptions(self, max_exceptions: usize) -> Self {
        Self {
            max_exceptions: Some(max_exceptions),
            ..self
        }
    }

    /// The treatment of a new key if the limiter would have to forget an exhausted key for it
    /// (default: [`WhenFull::Forget`]). That takes at least four times as many exhausted keys as
    /// the maximum number of keys.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Uses the hash keys of another limiter, so that its snapshot can be restored.
    pub fn hash_keys(self, hash: HashKeys) -> Self {
        Self {
            hash: Some(hash),
            ..self
        }
    }

    /// Uses another clock.
    pub fn clock<D>(self, clock: D) -> KeyedBuilder<D> {
        KeyedBuilder {
            policy: self.policy,
            max_keys: self.max_keys,
            max_exceptions: self.max_exceptions,
            when_full: self.when_full,
            hash: self.hash,
            clock,
        }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// If the maximum number of keys is 0, or the memory for that many states cannot be reserved.
    pub fn build(self) -> Result<KeyedLimiter<C>, BuildError> {
        let Self {
            policy,
            max_keys,
            max_exceptions,
            when_full,
            hash,
            clock,
        } = self;
        let room = Room {
            max_keys,
            max_exceptions,
            when_full,
        };
        Ok(KeyedLimiter {
            generations: Generations::new(Generation::new(policy, (0, Nanos::ZERO), room, None)?),
            exceptions: Exceptions::new(room.max_exceptions()),
            hash: hash.unwrap_or_else(HashKeys::random),
            changing: Mutex::new(room),
            marks: Marks::new(max_keys.max(room.max_exceptions())),
            lines: Lines::new(),
            eras: Eras::new(),
            clock,
        })
    }
}
