//! The layout of cells in a bucket.
//!
//! ```text
//! 1 word     64 bytes   │ t0 t1 t2 t3 │ s0 s1 s2 s3 │                    4 keys in a cache line
//! 2, 3       64 bytes   │ t0 t1 │ s0 s0 s0 │ s1 s1 s1 │                  2 keys
//! 4          128 bytes  │ t0 t1 t2 – s0 s0 s0 s0 │ s1 s1 s1 s1 s2 s2 s2 s2 │   3 keys, each state in one line
//! wider      n × 64     │ t0 … t7 │ s0 … s0 │ s1 … s1 │ …                up to 8 keys, tags in the first line
//! ```
//!
//! Four words are a sliding window of ten slots with a limit up to 65,534. Processors fetch lines in
//! pairs, so a bucket of two lines is about one cache miss.

use super::BuildError;

/// Words in a cache line.
pub(crate) const LINE: usize = 8;

/// The maximum number of cells in a bucket.
pub(crate) const MOST_CELLS: usize = 8;

/// The share of cells that may be in use: two choices with a few displacements still find a place.
const FULLEST: (usize, usize) = (4, 5);

/// The same for states of one word, the smallest: at four fifths, a tenth of the keys are in their
/// second bucket, which costs them a second cache miss; at a half, one key in 27 is.
const FULLEST_SMALL: (usize, usize) = (1, 2);

/// Cells beyond that share in a small table, where chance would fill a key's two buckets once in a
/// hundred tables.
const SLACK: usize = 16;

/// The maximum memory that one table may reserve: 2⁴⁰ bytes.
const MOST_BYTES: usize = 1 << 40;

/// Sizes of a table, in words and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLayout {
    /// Words of one state.
    pub words: usize,
    /// Cells in a bucket.
    pub cells: usize,
    /// Words from one bucket to the next.
    pub stride: usize,
    /// The words before the first state.
    pub first_state: usize,
    /// The number of buckets.
    pub buckets: usize,
}

impl TableLayout {
    /// The layout for up to `max_keys` states of `words` words.
    pub fn new(words: usize, max_keys: usize) -> Result<Self, BuildError> {
        if max_keys == 0 {
            return Err(BuildError::NoKeys);
        }
        let bucket = Self {
            words,
            buckets: 0,
            ..bucket(words)
        };
        let Self { cells, stride, .. } = bucket;
        let fullest = if words <= 1 { FULLEST_SMALL } else { FULLEST };
        let wanted = max_keys
            .checked_mul(fullest.1)
            .ok_or(BuildError::TooLarge)?
            .div_ceil(fullest.0);
        let buckets = (wanted + SLACK.min(max_keys - 1)).div_ceil(cells);
        let bytes = buckets
            .checked_mul(stride * 8)
            .ok_or(BuildError::TooLarge)?;
        if bytes > MOST_BYTES {
            return Err(BuildError::TooLarge);
        }
        Ok(Self { buckets, ..bucket })
    }

    /// The position of a cell's state in its bucket. That of its tag is its number.
    #[inline]
    pub const fn state(&self, cell: usize) -> usize {
        self.first_state + cell * self.words
    }

    /// The number of bytes that the table reserves.
    pub const fn bytes(&self) -> usize {
        self.buckets * self.stride * 8
    }
}

/// One bucket for states of this many words: the one with the fewest bytes per cell, on a tie the
/// smaller one, unless a few more bytes save a cache miss.
fn bucket(words: usize) -> TableLayout {
    let tags_first = |cells: usize, stride: usize| TableLayout {
        words,
        cells,
        stride,
        first_state: cells,
        buckets: 1,
    };
    match words {
        // One line: the whole decision is one cache miss.
        0 | 1 => tags_first(4, LINE),
        2 | 3 => tags_first(2, LINE),
        4 => TableLayout {
            first_state: 4,
            ..tags_first(3, 2 * LINE)
        },
        _ => {
            let stride = |cells: usize| (cells + cells * words).div_ceil(LINE) * LINE;
            let best = (3..=MOST_CELLS).min_by_key(|&cells| (stride(cells) * 1_000 / cells, cells));
            let cells = best.unwrap_or(3);
            tags_first(cells, stride(cells))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// No word of a bucket is used twice.
    #[test]
    fn tags_and_states_do_not_overlap() {
        for words in 0..200 {
            let bucket = bucket(words);
            let mut used = vec![0; bucket.stride];
            for cell in 0..bucket.cells {
                used[cell] += 1;
                let state = bucket.state(cell);
                used[state..state + words]
                    .iter_mut()
                    .for_each(|word| *word += 1);
            }
            assert!(used.iter().all(|&times| times <= 1), "{bucket:?}");
        }
    }

    #[test]
    fn a_window_of_ten_slots_is_in_one_line() {
        let bucket = bucket(4);
        for cell in 0..bucket.cells {
            let state = bucket.state(cell);
            assert_eq!(state / LINE, (state + 3) / LINE, "{bucket:?}");
        }
    }

    /// What a key takes in a table for a million, in tenths of a byte.
    #[test]
    fn a_key_takes_this_many_bytes() {
        let bytes = |words| TableLayout::new(words, 1_000_000).unwrap().bytes() / 100_000;
        let taken = [1, 2, 3, 4, 5, 6, 7, 8].map(bytes);
        assert_eq!(taken, [320, 400, 400, 533, 600, 700, 800, 900]);
    }
}
