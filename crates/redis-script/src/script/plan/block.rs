//! Blocks by a rule's penalty, under keys next to those of the limit.

use tidegate_core::{Decision, Nanos, Penalty};

use super::{Plan, numbers};
use crate::{
    StoreError,
    connection::beside,
    script::call::{Before, Found},
};

/// The letter of a block in `joint.lua`, and in place of a shape in its key.
const LETTER: &str = "b";
/// The length of a value of `block.lua`.
const VALUE: usize = 19;

impl Plan {
    /// The blocks that denials lead to. Only a joint decision blocks keys.
    #[must_use]
    #[doc(hidden)]
    pub const fn penalty(&self) -> Option<&Penalty> {
        self.penalty.as_ref()
    }

    /// The arguments of the block for the limit at this index of a joint decision, from 0.
    #[doc(hidden)]
    pub fn block_arguments(&self, at: usize) -> Option<[Vec<u8>; 3]> {
        let penalty = self.penalty?;
        let micros = |nanos: Nanos| nanos.get() / 1_000;
        let [one, two, three] = penalty.spans().steps().map(|span| micros(span.into()));
        let (after, within) = penalty.denials();
        let numbers = numbers::pack(&[one, two, three, after.into(), micros(within.into())]);
        Some([LETTER.into(), numbers, (at + 1).to_string().into_bytes()])
    }

    /// The key of the block of a limit's key.
    #[doc(hidden)]
    pub fn block_key(&self, whole: &[u8], is_cluster: bool) -> Option<Vec<u8>> {
        self.penalty.map(|_| key_beside(whole, is_cluster, LETTER))
    }

    /// The decision on one cost, from what the reply has for its key and its block, and the time
    /// that the state uses. `takes` says whether a denial counts.
    #[doc(hidden)]
    pub fn decision_on(
        &self,
        found: &Found,
        now: Nanos,
        (cost, takes): (u64, bool),
    ) -> Result<(Decision, Nanos), StoreError> {
        let mut decided = Err(StoreError::NotOurs);
        self.decisions(found.value.as_deref(), now, &[cost], |_, made, seen| {
            decided = Ok((made, seen));
        });
        let (made, seen) = decided?;
        let made = self.by_share(made, found.share, now);
        let made = match (&self.penalty, found.block) {
            (Some(penalty), Some(words)) => penalty.decide(words, (made, takes && cost > 0), now),
            _ => made,
        };
        Ok((self.behind_line(made, found, now, cost), seen))
    }
}

/// A key next to that of a limit. It includes no shape, so what it has outlives a change of the
/// algorithm. In a cluster it is in the same slot, which depends on the shape unless the limit's key
/// has a hash tag.
pub(super) fn key_beside(whole: &[u8], is_cluster: bool, letter: &str) -> Vec<u8> {
    let mut colons = whole.iter().enumerate().filter(|(_, byte)| **byte == b':');
    let (name, key) = match (colons.nth(1), colons.next()) {
        (Some((name, _)), Some((shape, _))) => (&whole[..=name], &whole[shape + 1..]),
        _ => (&b""[..], whole),
    };
    let name = [name, letter.as_bytes(), b":"].concat();
    if is_cluster {
        let digest = sha1_smol::Sha1::from(key).digest().to_string();
        beside(whole, &String::from_utf8_lossy(&name), &digest)
    } else {
        [&name[..], key].concat()
    }
}

/// The words of a block's value.
pub fn words(value: Before) -> Result<[u64; Penalty::WORDS], StoreError> {
    let Some(value) = value? else {
        return Ok([0; Penalty::WORDS]);
    };
    let number = |bytes: &[u8]| {
        let digits = bytes.iter().rev();
        digits.fold(0, |number: u64, &byte| number << 8 | u64::from(byte))
    };
    if value.len() != VALUE {
        return Err(StoreError::NotOurs);
    }
    let nanos = |bytes: &[u8]| Nanos::from_micros(number(bytes)).get();
    let counts = number(&value[18..]) << 32 | number(&value[14..18]);
    Ok([nanos(&value[..7]), nanos(&value[7..14]), counts])
}
