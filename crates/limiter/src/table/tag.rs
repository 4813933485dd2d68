//! A key in the table: its keyed hash, and its places, which follow from the hash.

use tidegate_core::cell::LOCKED;

/// A key's identity in a table: its keyed hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// A tag from the low 63 bits of any 64 (the top bit of a bucket's first tag is its lock). 0
    /// marks an empty cell, so it becomes 1.
    #[must_use]
    #[inline]
    pub const fn new(hash: u64) -> Self {
        let bits = hash & (LOCKED - 1);
        Self(if bits == 0 { 1 } else { bits })
    }

    /// The bits.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The first of two buckets among `buckets`: the tag's high bits, scaled.
    #[inline]
    pub(crate) const fn first(self, buckets: usize) -> usize {
        scale(self.0 << 1, buckets)
    }

    /// The second bucket, which differs from the first unless there is only one: its distance is
    /// the tag multiplied by an odd constant (2⁶⁴ over the golden ratio). Otherwise three keys with
    /// one bucket of two cells each could not all stay.
    #[inline]
    pub(crate) const fn second(self, buckets: usize) -> usize {
        let further = scale(
            self.0.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            buckets - 1,
        );
        let at = self.first(buckets) + 1 + further;
        if at < buckets { at } else { at - buckets }
    }
}

#[inline]
const fn scale(hash: u64, buckets: usize) -> usize {
    ((hash as u128 * buckets as u128) >> 64) as usize
}
