//! Pieces of a second that are taken after its beginning. Servers that share a limit of one second
//! take only one at the beginning, so that those that look first do not take everything. Then they
//! take further pieces until nothing is left or wanted.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
};

use futures_util::future::join_all;
use tidegate_core::Nanos;

use super::{super::terms::divide, Assigner, Bucket, Charged, LOOK, TIME_TO_LIVE, wire};

/// A key of a limit in this second.
struct KeyInSecond {
    charged: Arc<Charged>,
    /// The buckets, each with the share that it wants.
    live: Vec<(usize, Arc<Bucket>, u64)>,
    /// The units that this server has taken.
    units: u64,
    /// Whether others have taken units, too.
    shared: bool,
    done: bool,
}

/// The keys of which pieces were taken.
#[derive(Default)]
pub(super) struct Later {
    keys: Vec<KeyInSecond>,
    /// The keys of which no other client took anything in the last second.
    alone: HashSet<Arc<Charged>>,
    next: Nanos,
}

impl Later {
    /// The second is over.
    pub fn end(&mut self) {
        let taken = self.keys.drain(..).filter(|key| !key.shared);
        self.alone = taken.map(|key| key.charged).collect();
    }

    /// Whether no other client took anything of the key in the second before.
    pub fn was_alone(&self, charged: &Charged) -> bool {
        self.alone.contains(charged)
    }

    /// A second begins.
    pub fn begin(&mut self, now: Nanos) {
        self.next = now.saturating_add(LOOK.into());
    }

    /// Records the first piece of a key, after which `room` is left.
    pub fn took(
        &mut self,
        charged: &Arc<Charged>,
        live: Vec<(usize, Arc<Bucket>, u64)>,
        units: u64,
        room: u64,
    ) {
        let shared = room.saturating_add(units) < charged.terms.limit;
        self.keys.push(KeyInSecond {
            charged: Arc::clone(charged),
            live,
            units,
            shared,
            done: false,
        });
    }
}

impl Assigner {
    /// Takes further pieces for this second, and raises the shares.
    pub(super) async fn charge_later(&mut self, now: Nanos) {
        if now < self.later.next || self.later.keys.iter().all(|key| key.done) {
            return;
        }
        self.later.next = now.saturating_add(LOOK.into());
        let mut keys = mem::take(&mut self.later.keys);
        for key in &mut keys {
            let held = &self.held;
            // A stream may have ended, and another bucket may be in its place.
            key.live.retain(|(at, bucket, _)| {
                held.get(*at)
                    .is_some_and(|held| Arc::ptr_eq(&held.bucket, bucket) && !held.part.is_lost)
            });
        }
        let servers = self.servers();
        let unmet = |(at, _, wants): &(usize, Arc<Bucket>, u64)| {
            wants.saturating_sub(self.held[*at].part.share)
        };
        let wants: Vec<Vec<u64>> = keys
            .iter()
            .map(|key| key.live.iter().map(unmet).collect())
            .collect();
        let sums: Vec<u64> = wants
            .iter()
            .map(|wants| {
                wants
                    .iter()
                    .fold(0, |sum: u64, want| sum.saturating_add(*want))
            })
            .collect();
        let granted = join_all(keys.iter().zip(&sums).map(async |(key, sum)| {
            if key.done {
                return (0, 0);
            }
            let most = key.charged.terms.at_a_time(servers, !key.shared);
            key.charged
                .take_within_budget(0, 0, (*sum).min(most), now)
                .await
        }))
        .await;
        let mut said: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (((key, wants), sum), (granted, room)) in
            keys.iter_mut().zip(&wants).zip(&sums).zip(granted)
        {
            if key.done {
                continue;
            }
            key.units += granted;
            key.shared |= room.saturating_add(key.units) < key.charged.terms.limit;
            key.done = granted == *sum || room == 0;
            let window = key.charged.terms.window_of(self.second);
            for ((at, bucket, _), granted) in
                key.live.iter().zip(divide(wants, granted, self.second))
            {
                if granted > 0 {
                    let held = &mut self.held[*at];
                    let share = held.part.raise(granted, window);
                    held.part.lasts(TIME_TO_LIVE, now);
                    said.entry(held.stream).or_default().push(wire::tokens(
                        bucket,
                        share,
                        TIME_TO_LIVE,
                    ));
                }
            }
        }
        self.later.keys = keys;
        self.say_all(said);
    }
}
