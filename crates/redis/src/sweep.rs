//! The store's one background task for leases: what is no longer needed goes back, what was used is reported.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tidegate_core::Clock;

use crate::{
    exchange,
    leases::Leases,
    store::{Inner, Leased},
};

/// How often at most, and at least.
const OFTEN: Duration = Duration::from_millis(1);
const RARELY: Duration = Duration::from_secs(1);

/// Takes care of a limit's leases from now on, for as long as they exist.
pub fn take_on(store: &Arc<Inner>, leases: &Arc<Leases>) {
    let mut leased = store.leased();
    leased.all.push(Arc::downgrade(leases));
    if leased.sweeping {
        return;
    }
    leased.sweeping = true;
    let weak = Arc::downgrade(store);
    store.runtime.spawn(async move {
        // Ends with the store.
        while let Some(period) = weak.upgrade().map(|store| sweep(&store)) {
            tokio::time::sleep(period).await;
        }
    });
}

/// Sends what there is to send; returns when to come again.
fn sweep(store: &Arc<Inner>) -> Duration {
    let mut period = RARELY;
    let all = living(&mut store.leased());
    for leases in all {
        period = period.min(Duration::from(leases.terms.slack()) / 4);
        let may_send = |key: &[u8]| !store.is_down(store.part_of(key));
        leases.sweep(store.clock.now(), may_send, |held, request| {
            exchange::send(store, &leases, held, request);
        });
    }
    period.max(OFTEN)
}

/// The limits that still exist.
pub fn living(leased: &mut Leased) -> Vec<Arc<Leases>> {
    leased.all.retain(|leases| leases.strong_count() > 0);
    leased.all.iter().filter_map(Weak::upgrade).collect()
}

/// Gives back all that these leases hold. What must be sent is on its way when this returns.
pub fn close(store: &Arc<Inner>, leases: &Arc<Leases>) {
    leases.close(store.clock.now(), |held, request| exchange::send(store, leases, held, request));
}
