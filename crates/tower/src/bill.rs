//! The cost of a request that only the service can determine.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The actual cost of a request. The service writes it before the response's body ends. If a limit
/// is built with [`Builder::billed`](crate::Builder::billed), the layer puts a `Bill` into the
/// request's extensions.
///
/// ```
/// use tidegate_tower::Bill;
///
/// let bill = Bill::default(); // in axum: `Extension(bill): Extension<Bill>`
/// bill.set(1_200);
/// bill.add(34);
/// assert_eq!(bill.get(), Some(1_234));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bill(Cost);

/// The cost plus one; 0 means that none was set.
type Cost = Arc<AtomicU64>;

impl Bill {
    /// Sets the cost.
    pub fn set(&self, cost: u64) {
        // Relaxed is enough, here and below: the number guards no other data. The layer reads it
        // when the body ends, which happens later in the same task or is synchronized by the body
        // itself.
        self.0.store(cost.saturating_add(1), Ordering::Relaxed);
    }

    /// Adds to the cost, up to `u64::MAX - 1` in total. Streaming services call it once per piece.
    pub fn add(&self, cost: u64) {
        let more = |bill: u64| Some(bill.max(1).saturating_add(cost));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The cost so far, or `None` if the service has set none.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}
