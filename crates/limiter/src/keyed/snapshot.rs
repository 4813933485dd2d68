//! Saving all states and restoring them.

use crate::table::{HashKeys, RecordSpot, Tag};
use tidegate_core::{Algorithm, Debt, Nanos, Policy, StoredState};

use super::{KeyedAt, KeyedLimiter};

/// One entry of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotEntry {
    /// The state of a key under the general policy.
    Key {
        /// The key's tag under the limiter's hash keys.
        tag: u64,
        /// The words of its state.
        state: Vec<u64>,
    },
    /// The debt of an evicted key under the general policy.
    Record {
        /// The place of its record, by the key's fingerprint instead of its tag.
        place: RecordSpot,
        /// The debt.
        debt: Debt,
    },
    /// The state of a key under its own policy.
    Own {
        /// The key's tag.
        tag: u64,
        /// The words of its state.
        state: Vec<u64>,
    },
    /// A blocked key.
    Blocked {
        /// The key's tag.
        tag: u64,
        /// The time until which it is blocked.
        until: u64,
    },
}

impl<C> KeyedLimiter<C> {
    /// The hash keys behind the tags of a snapshot. They are secret: with them, a client can choose
    /// keys that collide.
    #[must_use]
    pub const fn hash_keys(&self) -> HashKeys {
        self.hash
    }

    /// Merges a state of another policy into a key's state.
    fn receive(&self, tag: Tag, from: &Policy, state: &[u64], now: Nanos) {
        let received = self.with_state(tag, now, |policy, mine, _| {
            let mut converted = vec![0; policy.words()];
            policy.transfer(&mut converted, from, state, now);
            policy.join(mine, &converted, now);
        });
        if received.is_err() {
            // A record has room for it.
            self.generations.current().keep(tag, from, state, now);
        }
    }
}

#[allow(clippy::must_use_candidate)] // They have an effect, so a caller may ignore what they return.
impl<C> KeyedAt<'_, C> {
    /// Passes every state that has not recovered completely to `show`. Decisions continue, so the
    /// states are from different moments; a key that moves within the table at that time may be
    /// shown twice or be missed.
    pub fn snapshot(self, mut show: impl FnMut(SnapshotEntry)) {
        let Self { limiter, now } = self;
        // States that a change of policy has not moved yet are moved first, so that all are in one
        // place.
        let generation = limiter.generations.sweep_all(now);
        let policy = generation.policy();
        generation.table.for_each(|tag, state| {
            if !policy.is_recovered(state, now) {
                show(SnapshotEntry::Key {
                    tag: tag.get(),
                    state: state[..policy.words()].to_vec(),
                });
            }
        });
        generation.table.for_each_record(|place, debt| {
            if !debt.is_over(now) {
                show(SnapshotEntry::Record { place, debt });
            }
        });
        // A copy, because no key's lock may be taken while the exceptions are locked.
        for (tag, exception) in limiter.exceptions.all() {
            if exception.blocked > now {
                show(SnapshotEntry::Blocked {
                    tag: tag.get(),
                    until: exception.blocked.get(),
                });
            }
            if let Some(own) = &exception.own {
                own.table.for_each(|_, state| {
                    show(SnapshotEntry::Own {
                        tag: tag.get(),
                        state: state.to_vec(),
                    });
                });
            }
        }
    }

    /// Merges in one entry of a snapshot that was made under the policy `from` (for
    /// [`SnapshotEntry::Own`], the key's own policy), by a limiter with the same hash keys. Usage
    /// in this limiter still counts, and of two blocks the later end. A key's use counts under the
    /// policy that the key has here, its own or the general one, whichever it had there. Returns
    /// whether the entry was valid for `from` and had a place.
    pub fn restore(self, from: &Policy, entry: &SnapshotEntry) -> bool {
        let Self { limiter, now } = self;
        match entry {
            SnapshotEntry::Key { tag, state } | SnapshotEntry::Own { tag, state } => {
                from.accepts(state) && {
                    limiter.receive(Tag::new(*tag), from, state, now);
                    true
                }
            }
            SnapshotEntry::Record { place, debt } => {
                let generation = limiter.generations.current();
                if let Some(debt) = generation.receive_debt(from, *debt, now) {
                    generation.table.put_record(*place, debt, now);
                }
                true
            }
            SnapshotEntry::Blocked { tag, until } => {
                let until = Nanos::new(*until);
                limiter
                    .exceptions
                    .change(&limiter.marks, Tag::new(*tag), now, |exception| {
                        exception.blocked = exception.blocked.max(until);
                    })
                    .is_ok()
            }
        }
    }
}
