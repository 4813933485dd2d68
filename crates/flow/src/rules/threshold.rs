//! The threshold of a rule: a fixed number, or one that depends on the memory in use.

use super::InvalidRule;
use crate::{machine::sample::SystemSample, stats::bounds::whole};

/// The threshold of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Threshold {
    /// A fixed threshold. A fraction matters only for throttling and warming up, which divide time
    /// by it. All other rules admit the whole units that fit under it.
    Fixed(f64),
    /// A threshold that is higher while memory is free and lower when it is scarce.
    Memory(MemoryThreshold),
}

/// A threshold that falls linearly from one value to another while the memory in use rises from the
/// low mark to the high mark. Outside the marks it is constant.
///
/// The memory in use is that of the last [`Sample`](crate::Sample): build the gate with
/// [`watch_machine`](crate::GateBuilder::watch_machine), or call
/// [`Gate::set_sample`](crate::Gate::set_sample). Until the first sample it is 0, and loading the
/// rule logs a warning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryThreshold {
    /// The threshold at and below the low mark; not less than `when_scarce`.
    pub when_free: f64,
    /// The threshold at and above the high mark.
    pub when_scarce: f64,
    /// The low mark in bytes.
    pub low_mark: u64,
    /// The high mark in bytes; greater than the low mark.
    pub high_mark: u64,
}

impl Threshold {
    /// Returns the current threshold.
    #[inline]
    pub(crate) fn now(self, sample: &SystemSample) -> f64 {
        self.at(sample.memory())
    }

    #[inline]
    fn at(self, used: u64) -> f64 {
        match self {
            Self::Fixed(threshold) => threshold,
            Self::Memory(memory) => memory.at(used),
        }
    }

    /// Returns [`now`](Self::now) in whole units.
    #[inline]
    pub(crate) fn units(self, sample: &SystemSample) -> u64 {
        self.units_at(sample.memory())
    }

    /// Returns the whole units, if they never change.
    pub(crate) fn fixed(self) -> Option<u64> {
        matches!(self, Self::Fixed(_)).then(|| self.units_at(0))
    }

    #[inline]
    fn units_at(self, used: u64) -> u64 {
        // Without the fraction, `passed + n > threshold` is the same for whole numbers.
        whole(self.at(used))
    }

    pub(crate) fn validate(self) -> Result<(), InvalidRule> {
        let amount = |value: f64| {
            if value.is_finite() && value >= 0.0 {
                Ok(())
            } else {
                Err(format!("the threshold is {value}; it must be a number, 0 or greater").into())
            }
        };
        match self {
            Self::Fixed(threshold) => amount(threshold),
            Self::Memory(memory) => {
                amount(memory.when_free)?;
                amount(memory.when_scarce)?;
                if memory.when_scarce > memory.when_free {
                    return Err(
                        "the threshold with scarce memory is above that with free memory; swap them".into()
                    );
                }
                if memory.low_mark >= memory.high_mark {
                    return Err("the low memory mark must be below the high one".into());
                }
                Ok(())
            }
        }
    }
}

impl MemoryThreshold {
    fn at(self, used: u64) -> f64 {
        if used <= self.low_mark {
            return self.when_free;
        }
        if used >= self.high_mark {
            return self.when_scarce;
        }
        let share = (used - self.low_mark) as f64 / (self.high_mark - self.low_mark) as f64;
        self.when_free - (self.when_free - self.when_scarce) * share
    }
}

impl From<u32> for Threshold {
    fn from(units: u32) -> Self {
        Self::Fixed(units.into())
    }
}

impl From<f64> for Threshold {
    fn from(threshold: f64) -> Self {
        Self::Fixed(threshold)
    }
}
