//! A record: an evicted key's debt in one word, and its place.
//!
//! ```text
//! │ fingerprint 28 │ above 3 │ share 7 │ exponent 6 │ mantissa 20 │
//!
//! end = (⌊base / 2^exponent⌋ + mantissa) · 2^exponent      base: the bucket's, a time
//! ```
//!
//! *Above* is 0 unless more than the limit is used: then it is the step of the [`Share`] above an
//! exhausted one.
//!
//! The end is rounded up, by less than a 250,000th of the time that was left when the record was
//! written. For permits that only their holders release, the mantissa holds their number instead:
//! exact up to 2²⁰, beyond that in 8,192s, rounded up.

use tidegate_core::{Debt, Lasts, Nanos, Share};

use super::Tag;

const MANTISSA_BITS: u32 = 20;
const MANTISSA: u64 = (1 << MANTISSA_BITS) - 1;
const EXPONENT: u64 = 0x3F;
/// An end needs an exponent of at most 43; the last two mean that the mantissa counts permits.
const PERMITS: u64 = 62;
const MANY_PERMITS: u64 = 63;
const MANY: u64 = 8_192;

const SHARE_SHIFT: u32 = MANTISSA_BITS + 6;
const ABOVE_SHIFT: u32 = SHARE_SHIFT + 7;

const PRINT_BITS: u32 = 28;
const PRINT_SHIFT: u32 = 64 - PRINT_BITS;

/// The place of a key's record: a bucket of the first half, or one of the second half.
///
/// The fingerprint and either bucket determine the other one, so a record can move without its key.
/// A new key is mistaken for the record's key if it has one of the two buckets and the same 28
/// bits: with 14 records in two buckets, in at most one of 19,000,000 cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The bucket in the first half.
    pub first: usize,
    pub print: u32,
}

impl Spot {
    /// The spot of a key if each half has `half` buckets.
    #[inline]
    pub const fn of(tag: Tag, half: usize) -> Self {
        let hash = tag
            .get()
            .rotate_left(17)
            .wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self {
            first: scale(hash, half),
            print: (mixed >> PRINT_SHIFT) as u32,
        }
    }

    /// The spot of a record that was found in this bucket.
    pub const fn found(index: usize, print: u32, half: usize) -> Self {
        let first = if index < half {
            index
        } else {
            (index - further(print, half)) % half
        };
        Self { first, print }
    }

    /// The bucket in the second half.
    #[inline]
    pub const fn second(self, half: usize) -> usize {
        let at = self.first + further(self.print, half);
        half + if at < half { at } else { at - half }
    }

    /// The other bucket of a record in this bucket.
    pub const fn other(self, index: usize, half: usize) -> usize {
        if index < half {
            self.second(half)
        } else {
            self.first
        }
    }
}

/// The offset of the second bucket in its half, relative to the first one's in its own.
#[inline]
const fn further(print: u32, half: usize) -> usize {
    scale((print as u64) << PRINT_SHIFT, half)
}

#[inline]
const fn scale(hash: u64, buckets: usize) -> usize {
    ((hash as u128 * buckets as u128) >> 64) as usize
}

/// The fingerprint of a record; meaningless for an empty place.
#[inline]
pub(crate) const fn print_of(word: u64) -> u32 {
    (word >> PRINT_SHIFT) as u32
}

/// The word of a record in a bucket with this base; never 0. An end before the base becomes the
/// base.
pub(crate) fn encode(print: u32, debt: Debt, base: u64) -> u64 {
    let (exponent, mantissa) = match debt.lasts {
        Lasts::Until(end) => encode_end(end.get().max(base), base),
        Lasts::UntilReturned(permits) => {
            let permits = u64::from(permits);
            if permits <= MANTISSA {
                (PERMITS, permits)
            } else {
                (MANY_PERMITS, permits.div_ceil(MANY))
            }
        }
    };
    let share = debt.share.get();
    let above = share.saturating_sub(Share::EXHAUSTED.get());
    u64::from(print) << PRINT_SHIFT
        | u64::from(share - above) << SHARE_SHIFT
        | u64::from(above) << ABOVE_SHIFT
        | exponent << MANTISSA_BITS
        | mantissa
}

/// The smallest exponent with which the mantissa fits.
fn encode_end(end: u64, base: u64) -> (u64, u64) {
    let bits = u64::BITS - (end - base).leading_zeros();
    let mut exponent = bits.saturating_sub(MANTISSA_BITS);
    loop {
        let mantissa = end.div_ceil(1 << exponent) - (base >> exponent);
        if mantissa <= MANTISSA {
            return (exponent.into(), mantissa);
        }
        exponent += 1;
    }
}

/// Decodes a word in a bucket with this base; `None` for an empty place.
#[inline]
pub(crate) fn decode(word: u64, base: u64) -> Option<Debt> {
    let share = (word >> SHARE_SHIFT & 0x7F) as u8;
    let share = if share == 0 {
        None
    } else {
        Share::new(share + (word >> ABOVE_SHIFT & 7) as u8)
    }?;
    let (exponent, mantissa) = (word >> MANTISSA_BITS & EXPONENT, word & MANTISSA);
    let lasts = match exponent {
        PERMITS => Lasts::UntilReturned(mantissa as u32),
        MANY_PERMITS => Lasts::UntilReturned(u32::try_from(mantissa * MANY).unwrap_or(u32::MAX)),
        _ => Lasts::Until(Nanos::new(((base >> exponent) + mantissa) << exponent)),
    };
    Some(Debt { share, lasts })
}
