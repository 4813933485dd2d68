//! Intervals of equal length, to count the events in each.

use tidegate_core::Nanos;

const SECOND: u64 = 1_000_000_000;
/// The maximum number of intervals.
const MOST: u64 = 150;
/// The round lengths of a second and more, in seconds.
const SECONDS: [u64; 15] = [
    1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400,
];

/// The span of a replay, divided into at most 150 intervals of a round length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The start of the first interval, a multiple of `step`, in nanoseconds.
    pub start: u64,
    /// The length of an interval, in nanoseconds.
    pub step: u64,
    /// The number of intervals, at least 1.
    pub stretches: usize,
    /// Whether `start` counts from 1970.
    pub has_dates: bool,
}

impl Timeline {
    /// Divides the span from `first` to `last`, including both.
    pub fn new((first, last): (u64, u64), has_dates: bool) -> Self {
        let fits = |step: u64| last / step - first / step < MOST;
        // Beyond days, whole multiples of a day; times are bounded, so one of them fits.
        let days = (1..=Nanos::MAX.get() / (86_400 * SECOND)).map(|days| days * 86_400 * SECOND);
        let fractions = (0..9).map(|power| 10_u64.pow(power));
        let seconds = SECONDS.into_iter().map(|seconds| seconds * SECOND);
        let step = fractions
            .chain(seconds)
            .chain(days)
            .find(|&step| fits(step))
            .unwrap_or(u64::MAX);
        let stretches = (last / step - first / step) as usize + 1;
        Self {
            start: first - first % step,
            step,
            stretches,
            has_dates,
        }
    }

    /// The interval that contains a time; a time outside the span is in the nearest one.
    pub fn stretch(&self, time: u64) -> usize {
        let at = usize::try_from(time.saturating_sub(self.start) / self.step);
        at.unwrap_or(usize::MAX).min(self.stretches - 1)
    }
}
