//! How urgent a caller is that waits in line.

use core::{fmt, str::FromStr};

use crate::Nanos;

/// The priority of a caller that waits in line: 0 to 9, of which 9 is served first. The default, 5,
/// leaves room for callers that are less urgent than those that give none.
///
/// Within a priority the first to come is the first to be served. A caller is overtaken only by
/// callers of a higher priority that came less than [`STEP`](Self::STEP) after it for each level
/// between them. So no caller is overtaken by one that came more than 90 s after it, and every
/// caller is served in the end.
///
/// ```
/// use tidegate_core::{Nanos, Priority};
/// let (batch, urgent) = (Priority::new(2).unwrap(), Priority::new(8).unwrap());
/// let came = Nanos::from_secs(1_000);
/// assert!(urgent.rank(Nanos::from_secs(1_059)) < batch.rank(came));
/// assert!(urgent.rank(Nanos::from_secs(1_061)) > batch.rank(came));
/// assert_eq!("8".parse(), Ok(urgent));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The priority that is served last.
    pub const LOWEST: Self = Self(0);
    /// The priority that is served first.
    pub const HIGHEST: Self = Self(9);
    /// The priority of callers that give none.
    pub const DEFAULT: Self = Self(5);
    /// The number of levels.
    pub const COUNT: usize = 10;
    /// The head start of each level.
    pub const STEP: Nanos = Nanos::from_secs(10);

    /// The priority with this level; `None` if it is above 9.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::HIGHEST.0 {
            Some(Self(level))
        } else {
            None
        }
    }

    /// The level, 0 to 9.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }

    /// All priorities, from the lowest one on.
    #[must_use]
    pub fn all() -> [Self; Self::COUNT] {
        core::array::from_fn(|level| Self(level as u8))
    }

    /// How far behind callers of the highest priority a caller stands that comes at the same time.
    #[must_use]
    pub const fn handicap(self) -> Nanos {
        Nanos::new(Self::STEP.get() * (Self::HIGHEST.0 - self.0) as u64)
    }

    /// Where a caller that comes at this time stands in line: lower ranks are served first.
    #[must_use]
    pub const fn rank(self, arrival: Nanos) -> Nanos {
        arrival.saturating_add(self.handicap())
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text or a number is no [`Priority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a priority is a whole number from 0 to 9; 9 is served first")]
pub struct PriorityError;

impl FromStr for Priority {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        match text.as_bytes() {
            [digit @ b'0'..=b'9'] => Ok(Self(digit - b'0')),
            _ => Err(PriorityError),
        }
    }
}

impl TryFrom<u64> for Priority {
    type Error = PriorityError;

    fn try_from(level: u64) -> Result<Self, PriorityError> {
        let level = u8::try_from(level).ok();
        level.and_then(Self::new).ok_or(PriorityError)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn levels_are_0_to_9_in_every_form() {
        for level in 0..=u8::MAX {
            let known = Priority::new(level);
            assert_eq!(known.is_some(), level <= 9);
            assert_eq!(Priority::try_from(u64::from(level)).ok(), known);
            assert_eq!(level.to_string().parse().ok(), known);
            if let Some(priority) = known {
                assert_eq!(priority.level(), level);
                assert_eq!(priority.to_string().parse(), Ok(priority));
            }
        }
        for text in ["", " 7", "07", "+7", "-1", "7.0", "high", "10"] {
            assert_eq!(text.parse::<Priority>(), Err(PriorityError), "{text}");
        }
    }

    #[test]
    fn a_level_is_worth_ten_seconds_and_ranks_do_not_overflow() {
        let at = Nanos::from_secs(7);
        assert_eq!(Priority::HIGHEST.rank(at), at);
        assert_eq!(Priority::LOWEST.rank(at), Nanos::from_secs(97));
        assert_eq!(Priority::LOWEST.rank(Nanos::MAX), Nanos::MAX);
        let ranks = (0..9).map(|level| {
            let [low, high] = [level, level + 1].map(|level| Priority::new(level).unwrap());
            low.rank(at).get() - high.rank(at).get()
        });
        assert!(ranks.into_iter().all(|step| step == 10_000_000_000));
    }
}
