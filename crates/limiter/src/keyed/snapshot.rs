//! Writing all states down, and taking them over again.

use crate::table::{HashKeys, RecordSpot, Tag};
use tidegate_core::{Algorithm, Debt, Nanos, Policy};

use super::KeyedLimiter;

/// One state of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A key's, under the general policy.
    Key {
        /// The key's tag under the limiter's hash keys.
        tag: u64,
        /// Its words.
        state: Vec<u64>,
    },
    /// What an evicted key owes, under the general policy.
    Record {
        /// Where its record lies: the key's fingerprint stands in for its tag.
        place: RecordSpot,
        /// What it owes.
        debt: Debt,
    },
    /// A key's under a policy of its own.
    Own {
        /// The key's tag.
        tag: u64,
        /// Its words.
        state: Vec<u64>,
    },
    /// A block.
    Blocked {
        /// The key's tag.
        tag: u64,
        /// Until when.
        until: u64,
    },
}

impl<C> KeyedLimiter<C> {
    /// The hash keys that the tags of a snapshot are made with. Secret: whoever has them can make keys that meet.
    #[must_use]
    pub const fn hash_keys(&self) -> HashKeys {
        self.hash
    }

    /// Shows every state that is not as good as fresh. Decisions go on meanwhile, so each state is of its own moment; a
    /// key that moves within the table just then may be shown twice or be missed.
    pub fn snapshot_at(&self, now: Nanos, mut show: impl FnMut(Entry)) {
        // What a change of policy has left where it was is moved first: then all is in one place.
        let generation = self.generations.sweep_all(now);
        let policy = generation.policy();
        generation.table.for_each(|tag, state| {
            if !policy.is_recovered(state, now) {
                show(Entry::Key { tag: tag.get(), state: state[..policy.words()].to_vec() });
            }
        });
        generation.table.for_each_record(|place, debt| {
            if !debt.is_over(now) {
                show(Entry::Record { place, debt });
            }
        });
        // A copy: no key's lock is taken while the exceptions are locked.
        for (tag, exception) in self.exceptions.all() {
            if exception.blocked > now {
                show(Entry::Blocked { tag: tag.get(), until: exception.blocked.get() });
            }
            if let Some(own) = &exception.own {
                own.table.for_each(|_, state| show(Entry::Own { tag: tag.get(), state: state.to_vec() }));
            }
        }
    }

    /// Takes over one state of a snapshot that was made under the policy `from` (the key's own, for [`Entry::Own`]), by a
    /// limiter with the same hash keys; what is in use here already counts as well. Returns whether it was a state of
    /// that policy and had a place: a key's own state has one only while the key has a policy of its own.
    pub fn restore_at(&self, from: &Policy, entry: &Entry, now: Nanos) -> bool {
        match entry {
            Entry::Key { tag, state } | Entry::Own { tag, state } => {
                from.accepts(state) && {
                    self.receive(Tag::new(*tag), from, state, now);
                    true
                }
            }
            Entry::Record { place, debt } => {
                let generation = self.generations.current();
                if let Some(debt) = generation.receive_debt(from, *debt, now) {
                    generation.table.put_record(*place, debt, now);
                }
                true
            }
            Entry::Blocked { tag, until } => {
                let until = Nanos::new(*until);
                self.exceptions
                    .change(&self.marks, Tag::new(*tag), now, |exception| exception.blocked = until)
                    .is_ok()
            }
        }
    }

    /// Joins a state of another policy into a key's.
    fn receive(&self, tag: Tag, from: &Policy, state: &[u64], now: Nanos) {
        let received = self.with_state(tag, now, |policy, mine| {
            let mut converted = vec![0; policy.words()];
            policy.transfer(&mut converted, from, state, now);
            policy.join(mine, &converted, now);
        });
        if received.is_err() {
            // As a record it has a place.
            self.generations.current().keep(tag, from, state, now);
        }
    }
}
