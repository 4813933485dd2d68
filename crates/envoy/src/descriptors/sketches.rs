//! Sketches of recent use, to estimate the next one. Their number is bounded.

use parking_lot::{Mutex, MutexGuard};
/// The numbers that a sketch remembers.
const REMEMBERED: usize = 64;
/// The least with which it estimates.
const LEAST: usize = 8;
/// The sketches of one set. A new one takes the place of the one that was asked longest ago.
const SET: usize = 4;
/// Sets; all of them take 9 MB once each has a sketch.
const SETS: usize = 1 << 14;

/// The last numbers of one kind, each with 11 significant bits, rounded up.
#[derive(Clone)]
struct Sketch {
    of: u64,
    /// When it was used last, by the set's count.
    used: u32,
    next: u8,
    len: u8,
    numbers: [u16; REMEMBERED],
}

/// A place for each kind of number, found by a hash.
pub(super) struct Sketches {
    /// Empty until a rule needs them.
    sets: Vec<Mutex<Set>>,
}

#[derive(Default)]
struct Set {
    count: u32,
    sketches: Vec<Sketch>,
}

impl Sketches {
    pub fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }

    fn set(&self, of: u64) -> MutexGuard<'_, Set> {
        // No step panics midway.
        self.sets[of as usize % SETS].lock()
    }

    /// Remembers what a request used.
    pub fn add(&self, of: u64, used: u64) {
        let mut set = self.set(of);
        let at = set.find_or_add(of);
        let sketch = &mut set.sketches[at];
        sketch.numbers[usize::from(sketch.next)] = short(used);
        sketch.next = (sketch.next + 1) % REMEMBERED as u8;
        sketch.len = (sketch.len + 1).min(REMEMBERED as u8);
    }

    /// A percentile of the last numbers, or `None` after few.
    pub fn percentile(&self, of: u64, percent: u8) -> Option<u64> {
        let mut set = self.set(of);
        let at = set.find(of)?;
        let Sketch { len, numbers, .. } = &set.sketches[at];
        let mut numbers = *numbers;
        let numbers = &mut numbers[..usize::from(*len)];
        if numbers.len() < LEAST {
            return None;
        }
        let rank = (numbers.len() * usize::from(percent)).div_ceil(100).max(1);
        Some(long(*numbers.select_nth_unstable(rank - 1).1))
    }
}

impl Set {
    fn find(&mut self, of: u64) -> Option<usize> {
        let at = self.sketches.iter().position(|sketch| sketch.of == of)?;
        self.count = self.count.wrapping_add(1);
        self.sketches[at].used = self.count;
        Some(at)
    }

    fn find_or_add(&mut self, of: u64) -> usize {
        if let Some(at) = self.find(of) {
            return at;
        }
        self.count = self.count.wrapping_add(1);
        let new = Sketch {
            of,
            used: self.count,
            next: 0,
            len: 0,
            numbers: [0; REMEMBERED],
        };
        if self.sketches.len() < SET {
            self.sketches.push(new);
            return self.sketches.len() - 1;
        }
        let age = |at: &usize| self.count.wrapping_sub(self.sketches[*at].used);
        let oldest = (0..SET).max_by_key(age).unwrap_or_default();
        self.sketches[oldest] = new;
        oldest
    }
}

/// A number of up to 53 bits as an exponent and the ten bits behind the highest one, rounded up.
/// Their order is that of the numbers. Numbers below 1,024 are themselves.
fn short(number: u64) -> u16 {
    let shift = (u64::BITS - number.leading_zeros()).saturating_sub(11);
    let rounded = number.saturating_add((1 << shift) - 1) >> shift;
    // 2,048 after rounding is the first of the next exponent.
    u16::try_from(u64::from(shift) * 1_024 + rounded).unwrap_or(u16::MAX)
}

fn long(short: u16) -> u64 {
    let shift = u32::from(short / 1_024).saturating_sub(1);
    u64::from(short).wrapping_sub(u64::from(shift) * 1_024) << shift
}

#[cfg(test)]
mod tests {
    use tidegate_core::MAX_LIMIT;

    use super::*;

    #[test]
    fn a_number_is_remembered_within_a_thousandth_and_never_as_less() {
        let mut before = 0;
        for shift in 0..53 {
            for number in (1_u64 << shift..).step_by(1 << (shift / 2)).take(3_000) {
                let number = number.min(MAX_LIMIT);
                let kept = long(short(number));
                assert!(
                    kept >= number && kept - number <= number / 1_000,
                    "{number}: {kept}"
                );
            }
            assert!(short(1 << shift) > before, "{shift}");
            before = short(1 << shift);
        }
        assert_eq!(
            (0..2_048).map(short).map(long).collect::<Vec<_>>(),
            (0..2_048).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_percentile_is_that_of_the_last_numbers() {
        let sketches = Sketches::new();
        for number in 1..LEAST as u64 {
            sketches.add(7, number);
            assert_eq!(sketches.percentile(7, 95), None);
        }
        // Numbers that are forgotten again.
        (0..100).for_each(|_| sketches.add(7, 1_000_000));
        (1..=REMEMBERED as u64)
            .rev()
            .for_each(|number| sketches.add(7, number));
        for (percent, expected) in [(1, 1), (50, 32), (95, 61), (99, 64)] {
            assert_eq!(sketches.percentile(7, percent), Some(expected));
        }
        assert_eq!(sketches.percentile(8, 50), None);
    }

    #[test]
    fn a_full_set_forgets_the_sketch_that_was_asked_longest_ago() {
        let sketches = Sketches::new();
        let of = |number: u64| number * SETS as u64;
        for number in 0..=SET as u64 {
            (0..LEAST).for_each(|_| sketches.add(of(number), 10 + number));
            assert_eq!(sketches.percentile(of(0), 50), Some(10), "it is in use");
        }
        assert_eq!(sketches.percentile(of(1), 50), None);
        assert_eq!(sketches.percentile(of(SET as u64), 50), Some(14));
    }
}
