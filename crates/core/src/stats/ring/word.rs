//! The words of a ring: a slot with its turn, and a count with its turn.

pub(super) const TURN_MASK: u64 = 0xFFFF;
/// No turn has this number.
pub(in crate::stats) const NO_TURN: u64 = TURN_MASK;
pub(super) const UNDO: u64 = 1 << 16;
pub(super) const UNIT: u64 = 1 << 24;
pub(super) const COUNT_MASK: u64 = (1 << 40) - 1;
/// A tally is assumed to be at most this far behind another.
const BEHIND: u64 = 1 << 32;
/// The value of a gauge when nothing was noted: above every real value.
pub(super) const UNSET: u64 = (1 << 48) - 1;

/// A slot number and the turn that began the slot: `[ slot 48 │ turn 16 ]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(pub(super) u64);

impl Head {
    pub(super) const fn new(slot: u64, turn: u64) -> Self {
        Self(slot << 16 | turn)
    }

    /// The number of the slot: its start divided by a slot's length.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> u64 {
        self.0 >> 16
    }

    #[inline]
    pub(in crate::stats) const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn turn(self) -> u64 {
        self.0 & TURN_MASK
    }
}

/// The value of one count at one instant, and the turn that it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally(pub(super) u64);

impl Tally {
    /// How much was counted between `earlier` and this, up to 2⁴⁰ − 2³². Counts are kept modulo
    /// 2⁴⁰; a difference that is negative by less than 2³² (`earlier` is the newer one after all)
    /// is 0.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        let grown = (self.0 >> 24).wrapping_sub(earlier.0 >> 24) & COUNT_MASK;
        if grown > COUNT_MASK - BEHIND {
            0
        } else {
            grown
        }
    }

    /// Whether both were read in the same slot (precisely: in the same turn of their ring).
    #[must_use]
    #[inline]
    pub const fn is_same_slot(self, other: Self) -> bool {
        self.turn() == other.turn()
    }

    #[inline]
    pub(in crate::stats) const fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(in crate::stats) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// This tally's count, in a word that also names the turn for which it was looked up.
    #[inline]
    pub(in crate::stats) const fn kept_for(self, head: Head) -> u64 {
        self.0 & !TURN_MASK | head.turn()
    }

    /// Decodes a word of [`kept_for`](Self::kept_for), if it was for the turn of `head`.
    #[inline]
    pub(in crate::stats) const fn known_in(word: u64, head: Head) -> Option<Self> {
        if word & TURN_MASK == head.turn() {
            Some(Self(word))
        } else {
            None
        }
    }

    #[inline]
    pub(super) const fn turn(self) -> u64 {
        self.0 & TURN_MASK
    }
}
