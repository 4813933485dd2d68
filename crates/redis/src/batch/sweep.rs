//! The store's background task for leases: it gives back unused units and reports use.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tidegate_core::Clock;

use super::Batcher;
use crate::{
    lease::{HotCounts, Leases},
    sync::lock,
};

/// The shortest and longest period between sweeps.
const OFTEN: Duration = Duration::from_millis(1);
const RARELY: Duration = Duration::from_secs(1);

/// The limits of which this node holds leases.
#[derive(Default)]
pub struct Sweeper(Mutex<SweepState>);

#[derive(Default)]
struct SweepState {
    all: Vec<Weak<Leases>>,
    /// Whether the task is running.
    sweeping: bool,
}

impl Batcher {
    /// Adds a limit, whose leases are swept for as long as they exist.
    pub fn take_on(self: &Arc<Self>, leases: &Arc<Leases>) {
        let mut state = lock(&self.sweeper.0);
        state.all.push(Arc::downgrade(leases));
        if state.sweeping {
            return;
        }
        state.sweeping = true;
        let weak = Arc::downgrade(self);
        self.monitor.runner.connector.runtime().spawn(async move {
            // The task ends with the store.
            while let Some(period) = weak.upgrade().map(|batcher| batcher.sweep()) {
                tokio::time::sleep(period).await;
            }
        });
    }

    /// Sends what is due and returns when to sweep again.
    fn sweep(self: &Arc<Self>) -> Duration {
        let (monitor, mut period) = (&self.monitor, RARELY);
        for leases in self.sweeper.living() {
            period = period.min(Duration::from(leases.terms.slack()) / 4);
            let may_send = |key: &[u8]| !monitor.is_down(monitor.shard_of(key));
            let mut due = Vec::new();
            leases.sweep(monitor.clock.now(), may_send, |held, request| {
                due.push((Arc::clone(held), request));
            });
            // In few calls, however many keys they are about.
            due.sort_by_cached_key(|(held, _)| monitor.shard_of(held.key()));
            self.send_errands(&leases, due);
        }
        period.max(OFTEN)
    }

    /// Forgets what this node holds for a key of the limits whose keys begin with `prefix`.
    pub fn forget(self: &Arc<Self>, prefix: &[u8], key: &[u8], give_back: bool) {
        for leases in self.sweeper.living() {
            if leases.prefix().starts_with(prefix) {
                leases.forget(key, give_back, self.monitor.clock.now(), |held, request| {
                    self.send_errand(&leases, held, request);
                });
            }
        }
    }

    /// Gives back all units that these leases hold. The requests are in flight when this returns.
    pub fn close(self: &Arc<Self>, leases: &Arc<Leases>) {
        leases.close(self.monitor.clock.now(), |held, request| {
            self.send_errand(leases, held, request);
        });
    }

    /// Gives back all held units, and waits until that is done or has failed.
    pub async fn close_all(self: &Arc<Self>) {
        let all = self.sweeper.living();
        for leases in &all {
            self.close(leases);
        }
        for leases in &all {
            leases.all_ended().await;
        }
    }
}

impl Sweeper {
    /// The limits that still exist.
    fn living(&self) -> Vec<Arc<Leases>> {
        let mut state = lock(&self.0);
        state.all.retain(|leases| leases.strong_count() > 0);
        state.all.iter().filter_map(Weak::upgrade).collect()
    }

    /// The sum of their counts.
    pub fn counts(&self) -> HotCounts {
        self.living()
            .iter()
            .fold(HotCounts::default(), |sum, leases| sum.and(leases.counts()))
    }
}
