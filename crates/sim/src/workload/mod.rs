//! The traffic to replay: requests, each with a key and a time.

mod arrivals;
mod by;
mod synthetic;
mod trace;

pub use arrivals::{Arrival, ParseArrivalError};
pub use by::{By, ByError, Field};
pub(crate) use synthetic::mix;
pub use synthetic::{GlobalSynthetic, Synthetic, SyntheticError, Traffic};
pub use trace::{Trace, TraceBuilder};

/// Requests by key. A limit sees each key separately, so a replay reads one key after another, each
/// in the order of time. The order between keys does not matter and is not kept.
pub trait Workload: Sync {
    /// The number of keys; they are numbered from 0. A key may have no requests.
    fn keys(&self) -> u32;

    /// The number of requests of all keys.
    fn requests(&self) -> u64;

    /// The times of the first request and of the last, or bounds around them. `(0, 0)` without
    /// requests.
    fn span(&self) -> (u64, u64);

    /// Whether times are nanoseconds since 1970, so that they have dates; otherwise they are
    /// relative to a start.
    fn has_dates(&self) -> bool;

    /// A key in readable form. It may contain everything that the log contains, so escape it for
    /// its destination.
    ///
    /// # Panics
    /// If the workload has no such key.
    fn label(&self, key: u32) -> String;

    /// The times of a key's requests in nanoseconds, in ascending order. Every call returns the
    /// same times.
    ///
    /// # Panics
    /// If the workload has no such key.
    fn times(&self, key: u32) -> impl Iterator<Item = u64>;

    /// The times of a key's requests with their costs, which are 1 unless the workload knows
    /// better.
    ///
    /// # Panics
    /// If the workload has no such key.
    fn costs(&self, key: u32) -> impl Iterator<Item = (u64, u64)> {
        self.times(key).map(|time| (time, 1))
    }

    /// When each of a key's requests is charged, in the order of [`costs`](Self::costs): a request
    /// asks with a cost of 0, and its cost is charged at this time if it was admitted. Empty if all
    /// costs are known when the requests come.
    ///
    /// # Panics
    /// If the workload has no such key.
    fn ends(&self, _key: u32) -> impl Iterator<Item = u64> {
        std::iter::empty()
    }

    /// Whether requests are charged afterwards.
    fn is_charged(&self) -> bool {
        false
    }

    /// The times of a key's requests from this time on: [`times`](Self::times) without the earlier
    /// ones.
    ///
    /// # Panics
    /// If the workload has no such key.
    fn times_from(&self, key: u32, from: u64) -> impl Iterator<Item = u64> {
        self.times(key).skip_while(move |&time| time < from)
    }
}
