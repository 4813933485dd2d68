//! Saving what tenants have used, and restoring it.

use tidegate_core::fair::{FairShares, FairState, TenantNote};
use tidegate_core::{Algorithm as _, Nanos, Policy, StoredState as _};

use super::{FairAt, FairLimiter, FairTenants, TenantsAt, tenants::WORDS};
use crate::{HashKeys, SnapshotEntry};

/// The notes that are copied under one lock.
const CHUNK: usize = 1 << 10;

/// One entry of a snapshot of [`FairTenants`] or of a [`FairLimiter`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TenantEntry {
    /// The state of the total, as [`Limiter::snapshot`](crate::Limiter::snapshot) returns it: only
    /// of a [`FairLimiter`].
    Total(Vec<u64>),
    /// The state common to all tenants: the first entry of the tenants.
    Common {
        /// Its words.
        state: Vec<u64>,
        /// The places for notes.
        notes: u64,
    },
    /// A tenant's use of its share: a [`SnapshotEntry::Key`] or a
    /// [`SnapshotEntry::Record`], in virtual time.
    Share(SnapshotEntry),
    /// A tenant's use of its ceiling, likewise, in the limit's own time.
    Ceiling(SnapshotEntry),
    /// A tenant's use of its guarantee.
    Guarantee {
        /// The tenant's tag under the hash keys.
        tag: u64,
        /// The words of its state.
        state: [u64; WORDS],
    },
    /// The record of a tenant that asked: its charges, and when it was counted as active.
    Note {
        /// The place of the note.
        place: u64,
        /// Its words.
        words: [u64; 3],
    },
}

impl TenantEntry {
    /// The same entry, as if it had been made earlier by this time: for a snapshot of a clock that
    /// was ahead. `from` is the policy of the total in the snapshot. `None` if the entry is not
    /// valid.
    #[must_use]
    pub fn sooner(self, from: &Policy, by: Nanos, now: Nanos) -> Option<Self> {
        let bucket = *FairShares::new(from).ok()?.bucket();
        let as_used_now = |state: &mut [u64]| {
            if !bucket.accepts(state) {
                return None;
            }
            let used = bucket.used(state, now.saturating_add(by));
            state.fill(0);
            bucket.charge(state, now, used);
            Some(())
        };
        Some(match self {
            Self::Common { state, notes } => Self::Common {
                state: FairState::from_words(&state)?.sooner(by).to_words()?.into(),
                notes,
            },
            Self::Ceiling(SnapshotEntry::Key { tag, mut state }) => {
                as_used_now(&mut state)?;
                Self::Ceiling(SnapshotEntry::Key { tag, state })
            }
            Self::Ceiling(SnapshotEntry::Record { place, debt }) => {
                let debt = debt.sooner(by);
                Self::Ceiling(SnapshotEntry::Record { place, debt })
            }
            Self::Guarantee { tag, mut state } => {
                as_used_now(&mut state[..bucket.words()])?;
                Self::Guarantee { tag, state }
            }
            other => other,
        })
    }
}

impl FairTenants {
    /// The hash keys behind the tags of a snapshot: see
    /// [`KeyedLimiter::hash_keys`](crate::KeyedLimiter::hash_keys).
    #[must_use]
    pub const fn hash_keys(&self) -> HashKeys {
        self.shares.hash_keys()
    }

    /// The number of words of the state in a [`TenantEntry::Share`] or [`TenantEntry::Ceiling`].
    #[must_use]
    pub fn words(&self) -> usize {
        self.lock().shares.words()
    }
}

#[allow(clippy::must_use_candidate)] // They have an effect, so a caller may ignore what they return.
impl TenantsAt<'_> {
    /// Passes what all tenants have used to `show`, except tenants whose use is over. Nothing is
    /// shown before the first request. Decisions continue, so the entries are from different
    /// moments.
    pub fn snapshot(self, mut show: impl FnMut(TenantEntry)) {
        let Self { tenants, now } = self;
        let (virtual_now, guarantees) = {
            let inner = tenants.lock();
            let Some(state) = inner.state.to_words() else {
                return;
            };
            show(TenantEntry::Common {
                state: state.into(),
                notes: inner.notes.places().len() as u64,
            });
            let mut guarantees = Vec::new();
            for (name, named) in &inner.named {
                if named.terms.guarantee().is_some() && named.guarantee != [0; WORDS] {
                    let tag = tenants.shares.tag(name).get();
                    let state = named.guarantee;
                    guarantees.push(TenantEntry::Guarantee { tag, state });
                }
            }
            (inner.state.virtual_now(), guarantees)
        };
        guarantees.into_iter().for_each(&mut show);
        // A note that moves while there are more of them moves ahead, so it is not missed.
        let mut from = 0;
        loop {
            let some: Vec<_> = {
                let inner = tenants.lock();
                let places = inner.notes.places().iter().enumerate();
                let some = places.skip(from).take(CHUNK);
                some.map(|(place, note)| (place, *note)).collect()
            };
            from += CHUNK;
            if some.is_empty() {
                break;
            }
            for (place, note) in some.into_iter().filter(|(_, note)| note.name() != 0) {
                show(TenantEntry::Note {
                    place: place as u64,
                    words: note.to_words(),
                });
            }
        }
        tenants
            .shares
            .at(virtual_now)
            .snapshot(|entry| show(TenantEntry::Share(entry)));
        if let Some(ceilings) = &tenants.ceilings {
            ceilings
                .at(now)
                .snapshot(|entry| show(TenantEntry::Ceiling(entry)));
        }
    }

    /// Takes in one entry of a snapshot that was made under the total's policy `from`, by tenants
    /// with the same hash keys. Pass the entries in the order of the snapshot, before the first
    /// request: their times are those of the common state, which a request changes. Returns whether
    /// the entry was valid and came in time.
    ///
    /// Restored under the same policy and the same terms, the tenants are served as if nothing had
    /// happened. If the policy changed, guarantees are unused, as after a
    /// [change](Self::change).
    pub fn restore(self, from: &Policy, entry: &TenantEntry) -> bool {
        let Self { tenants, now } = self;
        let mut inner = tenants.lock();
        let Ok(old) = FairShares::new(from) else {
            return false;
        };
        if inner.is_used || old.are_permits() != inner.shares.are_permits() {
            return false;
        }
        if let TenantEntry::Common { state, notes } = entry {
            let Some(mut state) = FairState::from_words(state) else {
                return false;
            };
            inner.shares.follow(&mut state);
            inner.state = state;
            inner.notes.restart(*notes);
            inner.is_restored = true;
            return true;
        }
        if !inner.is_restored {
            return false;
        }
        match entry {
            TenantEntry::Share(entry) => {
                let virtual_now = inner.state.virtual_now();
                is_use(entry) && tenants.shares.at(virtual_now).restore(old.bucket(), entry)
            }
            TenantEntry::Ceiling(entry) => {
                let ceilings = tenants.ceilings.as_ref().filter(|_| is_use(entry));
                ceilings.is_some_and(|table| table.at(now).restore(old.bucket(), entry))
            }
            TenantEntry::Guarantee { tag, state } => {
                let is_valid = old.bucket().accepts(&state[..old.words()]);
                let is_same = inner.shares == old;
                let mut named = inner.named.iter_mut();
                // Only tenants with a guarantee are hashed.
                let own = named.find(|(name, named)| {
                    named.terms.guarantee().is_some() && tenants.shares.tag(name).get() == *tag
                });
                if let (true, true, Some((_, named))) = (is_valid, is_same, own) {
                    named.guarantee = *state;
                }
                is_valid
            }
            TenantEntry::Note { place, words } => {
                let note = TenantNote::from_words(*words).filter(|note| note.name() != 0);
                let Some(note) = note else {
                    return false;
                };
                let super::tenants::Inner { notes, state, .. } = &mut *inner;
                notes.put(*place, note, state);
                true
            }
            TenantEntry::Common { .. } | TenantEntry::Total(_) => false,
        }
    }
}

/// Tenants have neither blocks nor other policies.
const fn is_use(entry: &SnapshotEntry) -> bool {
    matches!(
        entry,
        SnapshotEntry::Key { .. } | SnapshotEntry::Record { .. }
    )
}

impl<C> FairLimiter<C> {
    /// The hash keys behind the tags of a snapshot. Give them to the
    /// [builder](super::FairBuilder::hash_keys) of the limiter that restores it. They are secret:
    /// with them, a client can choose tenants that collide.
    #[must_use]
    pub const fn hash_keys(&self) -> HashKeys {
        self.tenants.hash_keys()
    }
}

#[allow(clippy::must_use_candidate)] // They have an effect, so a caller may ignore what they return.
impl<C> FairAt<'_, C> {
    /// Passes what the limit and its tenants have used to `show`. Decisions continue, so the entries
    /// are from different moments.
    ///
    /// ```
    /// # use tidegate_limiter as tidegate;
    /// use tidegate::{FairLimiter, ManualClock, Nanos, Policy, Quota};
    ///
    /// let policy = Policy::token_bucket(Quota::per_minute(60));
    /// let builder = || FairLimiter::builder(policy).clock(ManualClock::default());
    /// let (before, now) = (builder().build()?, Nanos::from_secs(1));
    /// assert_eq!(before.at(now).acquire("acme", 50).remaining(), 10);
    /// let mut saved = Vec::new();
    /// before.at(now).snapshot(|entry| saved.push(entry));
    ///
    /// let after = builder().hash_keys(before.hash_keys()).build()?;
    /// assert!(saved.iter().all(|entry| after.at(now).restore(&policy, entry)));
    /// assert_eq!(after.at(now).peek("acme", 1).remaining(), 9);
    /// assert_eq!(after.at(now).used("acme"), before.at(now).used("acme"));
    /// # Ok::<(), tidegate_limiter::FairBuildError>(())
    /// ```
    pub fn snapshot(self, mut show: impl FnMut(TenantEntry)) {
        show(TenantEntry::Total(self.limiter.total.snapshot()));
        let (tenants, _) = self.parts();
        tenants.snapshot(show);
    }

    /// Takes in one entry of a snapshot that was made under the policy `from`, by a limiter with the
    /// same hash keys: see [`TenantsAt::restore`]. Returns whether it was valid and came in time.
    /// Permits in flight count until they are [refunded](Self::refund), as those of a
    /// [`Limiter`](crate::Limiter) do.
    pub fn restore(self, from: &Policy, entry: &TenantEntry) -> bool {
        let (tenants, total) = self.parts();
        match entry {
            TenantEntry::Total(state) => total.restore(from, state),
            entry => tenants.restore(from, entry),
        }
    }
}
