//! How a span of time is divided into slots.

use core::time::Duration;

use crate::{MAX_WINDOW, Nanos};

/// The maximum number of slots in a ring.
pub const MAX_SLOTS: u32 = 4_096;

/// The shortest slot, 32.768 µs: slot numbers up to [`Nanos::MAX`] then fit in 48 bits.
pub const MIN_SLOT: Duration = Duration::from_nanos(1 << 15);

/// A number of slots that together are as long as an interval.
///
/// A slot starts at a whole multiple of its length on the clock, so every layout with the same slot
/// length agrees about where slots begin.
///
/// ```
/// use core::time::Duration;
/// use tidegate_core::{Nanos, stats::Layout};
/// let layout = Layout::new(20, Duration::from_secs(10))?;
/// let now = Nanos::from_millis(1_576_296_044_907);
/// assert_eq!((layout.index(now), layout.start(now)), (9, Nanos::from_millis(1_576_296_044_500)));
/// # Ok::<(), tidegate_core::stats::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    slots: u32,
    slot: u64,
}

impl Layout {
    /// Divides `interval` into `slots` equal slots.
    ///
    /// # Errors
    /// If `slots` is 0 or above [`MAX_SLOTS`], if the interval is not a whole multiple of a slot,
    /// if it is longer than [`MAX_WINDOW`], or if a slot is shorter than [`MIN_SLOT`].
    pub const fn new(slots: u32, interval: Duration) -> Result<Self, LayoutError> {
        if slots == 0 || slots > MAX_SLOTS {
            return Err(LayoutError::Slots);
        }
        if interval.as_nanos() > MAX_WINDOW.as_nanos() {
            return Err(LayoutError::TooLong);
        }
        let interval = interval.as_nanos() as u64;
        if !interval.is_multiple_of(slots as u64) {
            return Err(LayoutError::Uneven);
        }
        let slot = interval / slots as u64;
        if slot < MIN_SLOT.as_nanos() as u64 {
            return Err(LayoutError::SlotTooShort);
        }
        Ok(Self { slots, slot })
    }

    /// One second in ten slots of 100 ms: the layout that a resource uses.
    #[must_use]
    pub const fn second() -> Self {
        Self {
            slots: 10,
            slot: 100_000_000,
        }
    }

    /// The number of slots.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// The length of one slot.
    #[must_use]
    pub const fn slot(self) -> Duration {
        Duration::from_nanos(self.slot)
    }

    /// The length of one slot in nanoseconds.
    #[must_use]
    pub const fn slot_nanos(self) -> u64 {
        self.slot
    }

    /// The length of all slots together.
    #[must_use]
    pub const fn interval(self) -> Duration {
        Duration::from_nanos(self.interval_nanos())
    }

    /// The length of all slots together, in nanoseconds.
    #[must_use]
    pub const fn interval_nanos(self) -> u64 {
        self.slots as u64 * self.slot
    }

    /// The index of the slot that contains `at`, in a circle of slots: `(at / slot) mod slots`.
    #[must_use]
    pub const fn index(self, at: Nanos) -> u32 {
        (at.get() / self.slot % self.slots as u64) as u32
    }

    /// The start of the slot that contains `at`.
    #[must_use]
    pub const fn start(self, at: Nanos) -> Nanos {
        Nanos::new(at.get() - at.get() % self.slot)
    }

    /// A view of the last `interval` of a ring with this layout, in `samples` samples of whole
    /// slots.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tidegate_core::stats::{Layout, LayoutError};
    /// let ring = Layout::new(20, Duration::from_secs(10))?;
    /// assert_eq!(ring.view(2, Duration::from_secs(1))?.slots(), 2);
    /// assert_eq!(ring.view(2, Duration::from_millis(2_002)), Err(LayoutError::NotOfThisRing));
    /// # Ok::<(), LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Self::new); [`LayoutError::NotOfThisRing`] if a sample is not a whole
    /// number of the ring's slots, or if the view is longer than the ring.
    pub const fn view(self, samples: u32, interval: Duration) -> Result<View, LayoutError> {
        let view = match Self::new(samples, interval) {
            Ok(view) => view,
            Err(e) => return Err(e),
        };
        if !view.slot.is_multiple_of(self.slot) || view.interval_nanos() > self.interval_nanos() {
            return Err(LayoutError::NotOfThisRing);
        }
        Ok(View {
            slots: (view.interval_nanos() / self.slot) as u32,
        })
    }

    /// The view of the whole ring.
    #[must_use]
    pub const fn whole(self) -> View {
        View { slots: self.slots }
    }
}

/// The newest slots of a ring, including the current one. [`Layout::view`] creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    slots: u32,
}

impl View {
    /// The number of the ring's slots in view.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Adds one full slot behind the view. It then never covers less than the whole interval, so a
    /// limit on this view bounds every interval of that length.
    #[must_use]
    pub const fn strict(self) -> Self {
        Self {
            slots: self.slots + 1,
        }
    }
}

/// Why slots and an interval are not a valid layout or view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The number of slots is 0 or above [`MAX_SLOTS`].
    #[error("the number of slots must be from 1 to 4096")]
    Slots,
    /// The interval is not a whole multiple of the number of slots (in nanoseconds).
    #[error("the interval must be a whole multiple of the number of slots, as 1s is of 10")]
    Uneven,
    /// The interval is longer than [`MAX_WINDOW`].
    #[error("the interval is longer than 366 days; choose a shorter one")]
    TooLong,
    /// A slot would be shorter than [`MIN_SLOT`].
    #[error("a slot is shorter than 32.768us; take fewer slots or a longer interval")]
    SlotTooShort,
    /// A sample of the view is not a whole number of the ring's slots, or the view is longer than
    /// the ring.
    #[error(
        "each sample of a view must be a whole number of its ring's slots, and the view no longer than the ring"
    )]
    NotOfThisRing,
}
