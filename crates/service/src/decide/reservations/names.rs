//! How holds are found again: by the id of their request, or as the oldest of their limit and key.
//!
//! The id of a hold that is found by its age is a hash of the limit and the key, and a number. So
//! one shard has all of a key. It knows them by two numbers: that of the first one that may be
//! open, and that of the next one to come. A key with only the number 0 needs none.

use super::{Id, Part, Shard, Status};
use crate::digest::digest_of;

/// How a hold is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// By an id.
    Id(Id),
    /// As the oldest open one of a limit and a key, of which this is a hash.
    Oldest(u64),
}

/// What makes the id of a new reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewId {
    Random,
    /// The id of its request, so that a repeat of the request finds it.
    Request(Id),
    /// The name of a hold. If another hold has it, the id is random, so this one only expires.
    Hold(Name),
}

impl Name {
    /// The name of a hold of this limit and key, for a request with an id or without one.
    pub fn of(limit: &str, key: &[u8], request: Option<&[u8]>) -> Self {
        let request_id = request.unwrap_or_default();
        let mut text = Vec::with_capacity(limit.len() + key.len() + request_id.len() + 16);
        for part in [limit.as_bytes(), key] {
            text.extend((part.len() as u64).to_le_bytes());
            text.extend(part);
        }
        text.extend(request_id);
        let hash = digest_of(&text);
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| hash[at + byte]));
        match request {
            None => Self::Oldest(number(0)),
            Some(_) => Self::Id(Id(u128::from(number(0)) << 64 | u128::from(number(8)))),
        }
    }
}

/// Spreads numbers over the table of ids, which takes their bits for a hash.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Its inverse.
const GATHER: u64 = 0xf1de_83e1_9937_733d;

impl Id {
    /// The id of a hold that is found by its age.
    pub(super) fn numbered(tag: u64, number: u64) -> Self {
        Self(u128::from(tag) << 64 | u128::from(number.wrapping_mul(SPREAD) ^ tag))
    }

    /// The hash and the number in such an id.
    pub(super) fn parts(self) -> (u64, u64) {
        let tag = (self.0 >> 64) as u64;
        (tag, (self.0 as u64 ^ tag).wrapping_mul(GATHER))
    }
}

impl Shard {
    /// The number of the first hold of a key that may be open, and of the next one.
    fn numbers(&self, tag: u64) -> (u64, u64) {
        let known = self.by_age.get(&tag).copied();
        known.unwrap_or_else(|| (0, u64::from(self.status(tag, 0).is_some())))
    }

    fn set_numbers(&mut self, tag: u64, (first, next): (u64, u64)) {
        self.by_age.remove(&tag);
        if first < next && (first, next) != self.numbers(tag) {
            self.by_age.insert(tag, (first, next));
        }
    }

    fn status(&self, tag: u64, number: u64) -> Option<Status> {
        let head = self.records.find(Id::numbered(tag, number))?;
        Some(self.records.status(head))
    }

    /// Adds another hold of a key, whose id `add` gets.
    pub(super) fn add_numbered(&mut self, tag: u64, add: impl FnOnce(&mut Self, Id)) -> Id {
        let (first, mut number) = self.numbers(tag);
        // Holds that have ended keep their numbers until they are forgotten.
        while self.status(tag, number).is_some() {
            number += 1;
        }
        let id = Id::numbered(tag, number);
        add(self, id);
        self.set_numbers(tag, (first, number + 1));
        id
    }

    /// Passes the ids of a key's open holds to `ends` in their order until it returns something.
    pub(super) fn oldest<T>(
        &mut self,
        tag: u64,
        mut ends: impl FnMut(&mut Self, Id) -> Option<T>,
    ) -> Option<T> {
        let (mut first, next) = self.numbers(tag);
        let mut ended = None;
        while first < next && ended.is_none() {
            if self.status(tag, first) == Some(Status::Open) {
                ended = ends(self, Id::numbered(tag, first));
            }
            first += 1;
        }
        self.set_numbers(tag, (first, next));
        ended
    }

    /// Passes over the numbers of a key whose holds have ended, once one of them has.
    pub(super) fn pass_ended(&mut self, id: Id) {
        let (tag, _) = id.parts();
        let Some(&(mut first, next)) = self.by_age.get(&tag) else {
            return;
        };
        while first < next && self.status(tag, first) != Some(Status::Open) {
            first += 1;
        }
        self.set_numbers(tag, (first, next));
    }

    /// Finds a hold that was added by its age again.
    pub(super) fn restore_number(&mut self, id: Id, parts: &[Part]) {
        let (tag, number) = id.parts();
        let [part] = parts else { return };
        if Name::of(&part.limit, &part.key, None) == Name::Oldest(tag) {
            let (first, next) = self.numbers(tag);
            let first = if first == next {
                number
            } else {
                first.min(number)
            };
            self.set_numbers(tag, (first, next.max(number + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_id_is_found_again() {
        for number in [0, 1, 2, 77, u64::MAX] {
            assert_eq!(
                Id::numbered(0xdead_beef_0bad_cafe, number).parts().1,
                number
            );
        }
    }
}
