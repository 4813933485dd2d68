//! Which requests of a joint decision are for the same state, and where the states are locked.

use super::{Few, Request};
use crate::{KeyedLimiter, Limiter, keyed::Home, table::Tag};

/// The requests for one state up to one of them.
#[derive(Clone, Copy)]
pub(crate) struct Sum {
    /// The first of them.
    pub first: usize,
    /// Their cost.
    pub cost: u64,
}

/// So few requests are compared with each other instead of sorted.
const FEW: usize = 8;

/// For each request, the requests for its state up to it.
pub(super) fn sums<C: ?Sized>(
    requests: &[Request<'_, C>],
    places: &[KeyPlace],
    homes: &[(&KeyedLimiter<C>, &Home, Tag)],
) -> Few<Sum> {
    let state = |at: usize| match places[at] {
        KeyPlace::Keyed(k) => {
            let (_, home, tag) = homes[k];
            (std::ptr::from_ref(&**home).addr(), Some(tag))
        }
        KeyPlace::Unkeyed(u) => (u, None),
    };
    if requests.len() <= FEW {
        let mut sums: Few<Sum> = Few::new();
        for (at, request) in requests.iter().enumerate() {
            let own = state(at);
            // The latest request for the same state has the sum so far.
            let before = (0..at).rev().find(|&before| state(before) == own);
            let (first, cost) =
                before.map_or((at, 0), |before| (sums[before].first, sums[before].cost));
            sums.push(Sum {
                first,
                cost: cost.saturating_add(request.cost()),
            });
        }
        return sums;
    }
    let mut order: Few<usize> = (0..requests.len()).collect();
    order.sort_unstable_by_key(|&at| (state(at), at));
    let mut sums: Few<Sum> = requests
        .iter()
        .map(|request| Sum {
            first: 0,
            cost: request.cost(),
        })
        .collect();
    for group in order.chunk_by(|&one, &other| state(one) == state(other)) {
        let mut cost = 0_u64;
        for &at in group {
            cost = cost.saturating_add(sums[at].cost);
            sums[at] = Sum {
                first: group[0],
                cost,
            };
        }
    }
    sums
}

/// The position of a request's state among the locked ones.
#[derive(Clone, Copy)]
pub(super) enum KeyPlace {
    Keyed(usize),
    Unkeyed(usize),
}

/// The position of each request among the keyed or the unkeyed ones.
pub(super) fn places<C: ?Sized>(
    requests: &[Request<'_, C>],
    unkeyed: &[&Limiter<C>],
) -> Few<KeyPlace> {
    let mut next_keyed = 0;
    requests
        .iter()
        .map(|request| match request {
            Request::Keyed { .. } => {
                next_keyed += 1;
                KeyPlace::Keyed(next_keyed - 1)
            }
            Request::Unkeyed { limiter, .. } => {
                let at = unkeyed.binary_search_by_key(&limiter.address(), |other| other.address());
                KeyPlace::Unkeyed(at.unwrap_or_default())
            }
        })
        .collect()
}
