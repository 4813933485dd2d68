//! When the final cost of a request is known.

use std::{num::NonZeroU32, sync::Arc};

use http::response::Parts;

use crate::bill::Bill;

/// The cost in a response's head. A request that took the cost before holds the closure until then.
type ToldCost = Arc<dyn Fn(&Parts) -> Option<u64> + Send + Sync>;
/// The cost in a JSON value of a response.
#[cfg(feature = "json")]
type UsedCost = Arc<dyn Fn(&serde_json::Value) -> Option<u64> + Send + Sync>;

/// When the final cost of a request is known, and what is then given back: of a rule, and of each
/// request that holds its units.
#[derive(Clone)]
pub(crate) enum Settle {
    /// Known before the call. Nothing is given back, unless the service was never called.
    Before,
    /// A permit: all of it is given back when the response's body ends.
    Back,
    /// The head of the response says the cost.
    Head(ToldCost),
    /// One unit per that number of bytes of the body.
    Bytes(NonZeroU32),
    /// A JSON value in the body says the cost; with the cost of the last one so far.
    #[cfg(feature = "json")]
    Json(UsedCost, Option<u64>),
    /// The service writes the cost into the request's bill.
    Bill(Option<Bill>),
}
