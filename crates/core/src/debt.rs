//! A state's debt in a few bytes: what a bounded store keeps of a key that it has no room for.
//!
//! A [`Debt`] is the share of the limit in use and the time at which the state recovers completely.
//! An [`Algorithm`](crate::Algorithm) computes it from a state and rebuilds a state from it. The
//! rebuilt state is at least as strict as the old one at every time, and recovers completely when
//! the debt ends:
//!
//! * Token and leaky bucket: the end *is* the state. Nothing is lost.
//! * Fixed window, sliding counter: the window follows from the end, the count from the share.
//! * Sliding log, sliding window: everything in use counts as taken at the newest admission.
//! * Permits without a maximum hold time: the number of permits in use is kept as it is.

use crate::{MAX_LIMIT, Nanos};

/// The share of a limit that is in use, rounded up.
///
/// From [`EXHAUSTED`](Self::EXHAUSTED) on, nothing is left; a state that would still admit a cost
/// of 1 never has such a share. The lower values count in 126ths of `limit - 1`: limits up to 127
/// are exact, and larger ones are rounded up by less than a 126th. The higher values are for use
/// above the limit, which a lowered limit leaves: up to 2, 4, 8, 16, 32 and 64 times the limit, and
/// any number. So a limit that is raised again does not get units back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u8);

impl Share {
    /// Nothing is left.
    pub const EXHAUSTED: Self = Self(127);
    /// Above 64 times the limit.
    pub(crate) const UNBOUNDED: Self = Self(134);
    /// Up to 64 times the limit.
    pub(crate) const MOST_KNOWN: Self = Self(133);

    /// `used` as a share of `limit`, which is at most [`MAX_LIMIT`]; `None` if nothing is used.
    #[must_use]
    #[inline]
    pub const fn of(used: u64, limit: u64) -> Option<Self> {
        let limit = if limit > MAX_LIMIT { MAX_LIMIT } else { limit };
        if used == 0 {
            return None;
        }
        if used >= limit {
            let mut share = Self::EXHAUSTED;
            while share.0 < Self::UNBOUNDED.0 && share.units(limit) < used {
                share.0 += 1;
            }
            return Some(share);
        }
        // From 1 to 126, because 0 < used <= limit - 1.
        Some(Self((used * 126).div_ceil(limit - 1) as u8))
    }

    /// The share in units of `limit`, at least as many as it was computed from.
    #[must_use]
    pub const fn units(self, limit: u64) -> u64 {
        let limit = if limit > MAX_LIMIT { MAX_LIMIT } else { limit };
        if self.0 >= Self::UNBOUNDED.0 {
            return u64::MAX;
        }
        if self.0 >= Self::EXHAUSTED.0 {
            return limit << (self.0 - Self::EXHAUSTED.0);
        }
        if limit == 0 {
            return 0;
        }
        self.0 as u64 * (limit - 1) / 126
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_exhausted(self) -> bool {
        self.0 >= Self::EXHAUSTED.0
    }

    /// The share as a number from 1 to 134.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The share with this number; `None` outside of 1 to 134.
    #[must_use]
    #[inline]
    pub const fn new(number: u8) -> Option<Self> {
        if number == 0 || number > Self::UNBOUNDED.0 {
            None
        } else {
            Some(Self(number))
        }
    }
}

/// When a debt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lasts {
    /// The state has recovered completely at this time.
    Until(Nanos),
    /// Time does not end the debt: this number of permits is in use until their holders return
    /// them.
    UntilReturned(u32),
}

/// A state's debt. The smaller share, then the earlier end, is the cheaper one to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Debt {
    /// How much of the limit is in use.
    pub share: Share,
    /// When the debt ends.
    pub lasts: Lasts,
}

/// A flag in the first of a debt's two words: the second word counts permits.
const PERMITS: u64 = 1 << 8;

impl Debt {
    /// A debt that ends at a time; `None` if nothing is used, or if that time has passed.
    #[must_use]
    #[inline]
    pub(crate) fn until(used: u64, limit: u64, end: u64, now: Nanos) -> Option<Self> {
        if end <= now.get() {
            return None;
        }
        Some(Self {
            share: Share::of(used, limit)?,
            lasts: Lasts::Until(Nanos::new(end)),
        })
    }

    /// The debt as two words, for a file.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        match self.lasts {
            Lasts::Until(end) => [self.share.0 as u64, end.get()],
            Lasts::UntilReturned(permits) => [PERMITS | self.share.0 as u64, permits as u64],
        }
    }

    /// Parses the two words of [`to_words`](Self::to_words); `None` if they are not a debt.
    #[must_use]
    pub fn from_words([kind, number]: [u64; 2]) -> Option<Self> {
        let share = Share::new(u8::try_from(kind & !PERMITS).ok()?)?;
        let lasts = if kind & PERMITS == 0 {
            Lasts::Until(Nanos::new(number))
        } else {
            Lasts::UntilReturned(u32::try_from(number).ok()?)
        };
        Some(Self { share, lasts })
    }

    /// The same debt, as if it had been made earlier by this time.
    #[must_use]
    pub fn sooner(self, by: Nanos) -> Self {
        match self.lasts {
            Lasts::Until(end) => Self {
                lasts: Lasts::Until(end.saturating_since(by)),
                ..self
            },
            Lasts::UntilReturned(_) => self,
        }
    }

    /// Whether the debt has ended.
    #[must_use]
    #[inline]
    pub fn is_over(&self, now: Nanos) -> bool {
        matches!(self.lasts, Lasts::Until(end) if end <= now)
    }

    /// Combines two debts of one key: the larger share and the later end.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            share: self.share.max(other.share),
            lasts: self.lasts.max(other.lasts),
        }
    }

    /// The end as a time of at most [`Nanos::MAX`]; 0 for permits in use.
    pub(crate) const fn end(&self) -> u64 {
        match self.lasts {
            Lasts::Until(end) => end.get(),
            Lasts::UntilReturned(_) => 0,
        }
    }
}
