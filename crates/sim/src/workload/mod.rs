//! What is replayed: requests, each with a key and a time.

mod arrivals;
mod synthetic;
mod trace;

pub use arrivals::{Arrival, ParseArrivalError};
pub use synthetic::{GlobalSynthetic, Synthetic, SyntheticError, Traffic};
pub use trace::{Trace, TraceBuilder};

/// Requests by key. A limit looks at one key alone, so a replay asks for one key after another, each in the order of
/// time; the keys' order among each other does not matter and is not kept.
pub trait Workload: Sync {
    /// How many keys there are; they are numbered from 0. A key may have no requests.
    fn keys(&self) -> u32;

    /// All requests of all keys.
    fn requests(&self) -> u64;

    /// The times of the first request and of the last, or bounds around them. `(0, 0)` without requests.
    fn span(&self) -> (u64, u64);

    /// Whether times are nanoseconds since 1970, so that they have dates; otherwise they count from a start.
    fn has_dates(&self) -> bool;

    /// A key as a person reads it. It may hold anything that a log holds: escape it for where it goes.
    ///
    /// # Panics
    /// When there is no such key.
    fn label(&self, key: u32) -> String;

    /// When a key's requests come, in nanoseconds, never falling. The same each time it is called.
    ///
    /// # Panics
    /// When there is no such key.
    fn times(&self, key: u32) -> impl Iterator<Item = u64>;
}
