//! The keyed store: a concurrent table from keys to limiter states, bounded by a number of keys.
//!
//! ```text
//! key ─ keyed hash ─► 63-bit tag ─┬─► first bucket  │ lock, tag │ tag │ … │ state │ state │ … │
//!                                               └─► second bucket │ lock, tag │ tag │ … │ state │ state │ … │
//! ```
//!
//! * A key is its tag: a key may have any length, and nothing is allocated for it. The hash is
//!   keyed with secret random numbers, so a client cannot choose keys that collide. Two of `n` keys
//!   share a tag (and then one state: stricter, never over) with a probability of about n² / 2⁶⁴: 6
//!   × 10⁻⁸ for a million keys.
//! * A key has two candidate buckets, each one cache line for the small states. A decision locks
//!   the bucket for a few nanoseconds, so decisions on different keys run in parallel, and a known
//!   key allocates nothing.
//! * Memory is reserved once for the bound and becomes resident as keys arrive (in huge pages once
//!   the table is filling). Recovered states are reclaimed if a new key needs room, and one more
//!   bucket is swept for each new key; no request ever scans the table.
//! * If all the places of a new key are taken by keys that still have a debt, the one that would
//!   lose least is evicted and leaves a record, which it takes back when it returns.
//!
//! [`KeyedLimiter`](crate::KeyedLimiter) documents what a flood can do, and the bounds.

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
mod walk;

pub(crate) use error::NoRoom;
pub use error::{BuildError, Full, Refused, WhenFull};
pub use hash::HashKeys;
pub use joint::{Joint, Wanted};
pub use lookup::{KeyFound, NotNear, Table};
pub(crate) use memory::{Bucket, prefetch_line};
pub use stats::{Forgotten, Stats};
pub use tag::Tag;
pub use walk::{Cursor, RecordSpot};
