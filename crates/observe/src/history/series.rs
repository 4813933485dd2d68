//! Numbers for each second, in two resolutions and bounded memory.

use std::collections::VecDeque;

/// How many seconds are kept individually: a quarter of an hour.
pub(super) const SECONDS: usize = 15 * 60;
/// The number of seconds in a step of the coarse resolution.
pub(super) const STEP: u64 = 10;
/// The number of steps that are kept: six hours.
pub(super) const STEPS: usize = 6 * 60 * 60 / STEP as usize;

/// The number type of a series. Larger numbers are stored as the type's maximum.
pub(super) trait Number: Copy + Into<u32> {
    /// The nearest number.
    fn nearest(number: u64) -> Self;
}

impl Number for u32 {
    fn nearest(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

impl Number for u16 {
    fn nearest(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

/// `N` numbers for each second of the last 15 minutes, and for each 10 seconds of the last 6 hours.
#[derive(Debug)]
pub(super) struct Series<const N: usize, T = u32> {
    seconds: VecDeque<[T; N]>,
    /// The last step is incomplete unless `end` is a multiple of [`STEP`].
    steps: VecDeque<[T; N]>,
    /// The second after the last one, since the epoch.
    end: u64,
}

/// Numbers in steps of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Points<const N: usize> {
    /// The length of a step in seconds: 1 or 10.
    pub step: u64,
    /// When the last step ended, in seconds since the epoch.
    pub end: u64,
    /// Oldest first.
    pub points: Vec<[u32; N]>,
}

/// The resolution of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Each second of the last 15 minutes.
    Second,
    /// Each 10 seconds of the last 6 hours.
    TenSeconds,
}

impl<const N: usize, T: Number> Series<N, T> {
    /// The size of one series, all of which is allocated at the start.
    pub const BYTES: u64 = ((SECONDS + STEPS) * N * size_of::<T>()) as u64;

    /// A series whose first second is `begin`.
    pub fn new(begin: u64) -> Self {
        Self {
            seconds: VecDeque::with_capacity(SECONDS),
            steps: VecDeque::with_capacity(STEPS),
            end: begin,
        }
    }

    /// Adds the events until the second `end`. If several seconds have passed, their events are
    /// divided evenly among them.
    pub fn push(&mut self, end: u64, sums: [u64; N]) {
        let elapsed = end.saturating_sub(self.end);
        if elapsed == 0 {
            return;
        }
        let (each, rest) = (sums.map(|sum| sum / elapsed), sums.map(|sum| sum % elapsed));
        // Seconds older than everything that is kept are skipped.
        self.end = self
            .end
            .max(end.saturating_sub(SECONDS.max(STEPS * STEP as usize) as u64));
        while self.end < end {
            let is_last = self.end + 1 == end;
            self.push_second(std::array::from_fn(|at| {
                let number = each[at] + if is_last { rest[at] } else { 0 };
                T::nearest(number)
            }));
        }
    }

    fn push_second(&mut self, numbers: [T; N]) {
        add(&mut self.seconds, SECONDS, numbers);
        match self.steps.back_mut() {
            Some(step) if !self.end.is_multiple_of(STEP) => {
                for (sum, number) in step.iter_mut().zip(numbers) {
                    *sum = T::nearest(u64::from((*sum).into()) + u64::from(number.into()));
                }
            }
            _ => add(&mut self.steps, STEPS, numbers),
        }
        self.end += 1;
    }

    /// Up to `most` of the latest complete steps.
    pub fn read(&self, step: Step, most: usize) -> Points<N> {
        let last = |kept: &VecDeque<[T; N]>, complete: usize| {
            let last = kept
                .iter()
                .take(complete)
                .skip(complete.saturating_sub(most));
            last.map(|numbers| numbers.map(Into::into)).collect()
        };
        match step {
            Step::Second => Points {
                step: 1,
                end: self.end,
                points: last(&self.seconds, self.seconds.len()),
            },
            Step::TenSeconds => {
                let under_way = usize::from(!self.end.is_multiple_of(STEP));
                let complete = self.steps.len().saturating_sub(under_way);
                Points {
                    step: STEP,
                    end: self.end - self.end % STEP,
                    points: last(&self.steps, complete),
                }
            }
        }
    }
}

/// Adds to the newest, of which at most `most` stay.
fn add<T>(kept: &mut VecDeque<T>, most: usize, newest: T) {
    if kept.len() == most {
        kept.pop_front();
    }
    kept.push_back(newest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_stay_at_their_largest() {
        let mut series = Series::<1, u16>::new(0);
        for second in 1..=10 {
            series.push(second, [60_000]);
        }
        series.push(11, [70_000]);
        assert_eq!(series.read(Step::Second, 2).points, [[60_000], [65_535]]);
        assert_eq!(series.read(Step::TenSeconds, 1).points, [[65_535]]);
    }
}
