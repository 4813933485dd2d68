//! The keyed store: a concurrent table from keys to limiter states, bounded by a number of keys.
//!
//! ```text
//! key ─ keyed hash ─► 63-bit tag ─┬─► first bucket  │ lock, tag │ tag │ … │ state │ state │ … │
//!                                               └─► second bucket │ lock, tag │ tag │ … │ state │ state │ … │
//! ```
//!
//! * A key is its tag: of any length, and nothing is allocated for it. The hash is keyed with secret random numbers, so
//!   a client cannot choose keys that meet. Two of `n` keys share a tag (and then one state: stricter, never over)
//!   with a probability of about n² / 2⁶⁴: 6 × 10⁻⁸ for a million keys.
//! * A key has two candidate buckets, each one cache line for the small states. A decision locks the bucket for its few
//!   nanoseconds, so decisions on different keys run in parallel, and a known key allocates nothing.
//! * Memory is reserved once for the bound and becomes resident as keys come (in huge pages once it is filling). Recovered states (as good as fresh) are reclaimed
//!   where a new key needs room, and one more bucket is swept for each new key; no request ever scans.
//! * When all the places of a new key are taken by keys that still owe something, the one that has least to lose gives way
//!   and leaves a record of its own, which it takes back when it returns.
//!
//! # What a flood can do
//!
//! A flood of made-up keys pushes keys out of the table, and in the end records out of their table. These are the bounds;
//! `tests/flood.rs` shows them.
//!
//! | what | bound |
//! |---|---|
//! | a new key is taken for an evicted one, and gets its debt | 1 of 19,000,000 |
//! | a key that has a record when it returns: how much stricter than before | token and leaky bucket: a millionth of the time that it had left. Fixed window, sliding counter: a 126th of the limit, nothing for limits up to 127. Sliding log and window: also, all that was in use counts as taken at the newest admission |
//! | an exhausted key among made-up keys that have something left, however many | never forgotten |
//! | an exhausted key among made-up keys that are exhausted, too | kept until 4 × `max_keys` of them have come in the time that a limit takes to end; then forgotten, or with [`WhenFull::Deny`] the made-up keys are refused |
//! | any other key that is forgotten | gets at most the share of its limit a second time that it had used |
//! | memory beyond the full table | 40 bytes × `max_keys`, and 1 KiB |
//!
//! "Exhausted" is a key that would be denied a cost of 1 when it is evicted. Where limits come with requests, the table knows
//! none of them: what has the earliest end goes first. [`Stats`] counts what is evicted, returned, refused and forgotten, the
//! last by the share used.

mod error;
mod hash;
mod joint;
mod layout;
mod lookup;
mod memory;
#[cfg(not(loom))]
mod pages;
mod record;
mod records;
mod room;
mod stats;
mod stretches;
mod tag;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use error::NoRoom;
pub use error::{Full, Refused, TableError, WhenFull};
pub use hash::HashKeys;
pub use joint::{Joint, Wanted};
pub use lookup::{Found, Table};
pub use stats::{Forgotten, Stats};
pub use tag::Tag;
pub use walk::{Cursor, RecordPlace};
