//! The layout of cells in a bucket.
//!
//! ```text
//! 1 word     64 bytes   │ t0 t1 t2 t3 │ s0 s1 s2 s3 │                    4 keys in a cache line
//! 2, 3       64 bytes   │ t0 t1 │ s0 s0 s0 │ s1 s1 s1 │                  2 keys
//! wider      n × 64     │ t0 … t7 │ s0 … s0 │ s1 … s1 │ …                up to 8 keys, tags in the first line
//! ```

use super::BuildError;

/// Words in a cache line.
const LINE: usize = 8;

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
    /// The number of buckets.
    pub buckets: usize,
}

impl TableLayout {
    /// The layout for up to `max_keys` states of `words` words.
    pub fn new(words: usize, max_keys: usize) -> Result<Self, BuildError> {
        if max_keys == 0 {
            return Err(BuildError::NoKeys);
        }
        let (cells, stride) = bucket(words);
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
        Ok(Self {
            words,
            cells,
            stride,
            buckets,
        })
    }

    /// The number of bytes that the table reserves.
    pub const fn bytes(&self) -> usize {
        self.buckets * self.stride * 8
    }
}

/// The cells and stride with the fewest bytes per cell; on a tie the smaller bucket.
fn bucket(words: usize) -> (usize, usize) {
    let stride = |cells: usize| (cells + cells * words).div_ceil(LINE) * LINE;
    match words {
        // One line: the whole decision is one cache miss.
        0 | 1 => (4, LINE),
        2 | 3 => (2, LINE),
        _ => {
            let best = (3..=MOST_CELLS).min_by_key(|&cells| (stride(cells) * 1_000 / cells, cells));
            let cells = best.unwrap_or(3);
            (cells, stride(cells))
        }
    }
}
