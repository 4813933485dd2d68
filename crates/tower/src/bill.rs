//! What a request has cost, as the service finds out.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What a request has cost: the service writes it here, before its response's body is over. It is among the request's
/// extensions, where a limit was built with [`Builder::billed`](crate::Builder::billed).
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

/// The cost and one; 0 is none.
type Cost = Arc<AtomicU64>;

impl Bill {
    /// It has cost so much.
    pub fn set(&self, cost: u32) {
        // Relaxed, here and below: the number carries no other data, and the body's end comes after it in the same task or by
        // way of the body's own synchronization.
        self.0.store(u64::from(cost) + 1, Ordering::Relaxed);
    }

    /// It has cost so much more, at most [`u32::MAX`] in all: for answers that come piece by piece.
    pub fn add(&self, cost: u32) {
        let more = |bill: u64| Some((bill.max(1) + u64::from(cost)).min(u64::from(u32::MAX) + 1));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// What it has cost so far; `None` if nobody has said.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        let bill = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(u32::try_from(bill).unwrap_or(u32::MAX))
    }
}
