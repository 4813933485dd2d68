//! Time as an argument: integer nanoseconds on the clock of the state's owner.

use core::{
    fmt,
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A point on a limiter's clock, or a span between two points, in nanoseconds.
///
/// Values saturate at [`Nanos::MAX`] (2⁶² ns, about 146 years), so the sum of any two spans that
/// the algorithms form fits in 64 bits and no input overflows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// The clock's origin, or no time at all.
    pub const ZERO: Self = Self(0);
    /// The latest representable time; later ones saturate here.
    pub const MAX: Self = Self(1 << 62);

    /// `ns` nanoseconds, at most [`Nanos::MAX`].
    #[must_use]
    #[inline]
    pub const fn new(ns: u64) -> Self {
        Self(if ns > Self::MAX.0 { Self::MAX.0 } else { ns })
    }

    /// `us` microseconds, saturating.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self::new(us.saturating_mul(1_000))
    }

    /// `ms` milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self::new(ms.saturating_mul(1_000_000))
    }

    /// `s` seconds, saturating.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self::new(s.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This time plus `span`, saturating.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, span: Self) -> Self {
        Self::new(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`; zero when `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self::new(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

/// Formatted like [`write_duration`]: `1s500ms`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_duration(f, Duration::from(*self))
    }
}

/// The units of a duration's text, with their nanoseconds.
pub(crate) const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Writes a duration in the form that [`parse_duration`](crate::parse_duration) reads; durations above 584 years saturate.
///
/// # Errors
/// The errors of the writer.
pub fn write_duration(out: &mut impl fmt::Write, span: Duration) -> fmt::Result {
    let mut left = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    if left == 0 {
        return out.write_str("0s");
    }
    for (name, scale) in UNITS {
        if left >= scale {
            write!(out, "{}{name}", left / scale)?;
            left %= scale;
        }
    }
    Ok(())
}

/// A source of time.
///
/// A clock may stand still, and threads may read it out of order: an algorithm treats a time older
/// than the newest one that its state remembers as that newest time.
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Nanos;

    /// How far the system's time is ahead of this clock, in nanoseconds; negative if it is behind.
    /// Not 0 for a clock that does not follow the system's time after its start: then somebody set
    /// the system's time, or the machine was suspended. A [`Policy`](crate::Policy) on a calendar
    /// [takes it into account](crate::Policy::with_wall_ahead).
    fn wall_ahead(&self) -> i64 {
        0
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn wall_ahead(&self) -> i64 {
        (**self).wall_ahead()
    }
}

#[cfg(feature = "std")]
impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn wall_ahead(&self) -> i64 {
        (**self).wall_ahead()
    }
}

/// A clock that moves only on request, for tests and simulations.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Clock, ManualClock, Nanos};
/// let clock = ManualClock::new(Nanos::from_secs(10));
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.now(), Nanos::from_millis(10_005));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    now: AtomicU64,
    wall_ahead: AtomicI64,
}

impl ManualClock {
    /// A clock that starts at `start`.
    #[must_use]
    pub const fn new(start: Nanos) -> Self {
        Self {
            now: AtomicU64::new(start.0),
            wall_ahead: AtomicI64::new(0),
        }
    }

    /// Sets the clock to `to`, which may be earlier than before (to test a clock that goes back).
    pub fn set(&self, to: Nanos) {
        // Relaxed: the clock carries no other data.
        self.now.store(to.0, Relaxed);
    }

    /// Sets the system's time, as this clock [shows](Clock::wall_ahead) it, to `ahead` nanoseconds
    /// from its own.
    pub fn set_wall_ahead(&self, ahead: i64) {
        // Relaxed as above.
        self.wall_ahead.store(ahead, Relaxed);
    }

    /// Advances the clock by `span` (a [`Duration`] or [`Nanos`]), saturating, as
    /// [`ManualTimer`](crate::clock::ManualTimer) does.
    pub fn advance(&self, span: impl Into<Nanos>) {
        let span = span.into();
        let add = |ns| Some(Nanos(ns).saturating_add(span).0);
        // The closure always returns `Some`, so the result can be ignored. Relaxed as above.
        let _ = self.now.fetch_update(Relaxed, Relaxed, add);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Relaxed))
    }

    fn wall_ahead(&self) -> i64 {
        self.wall_ahead.load(Relaxed)
    }
}
