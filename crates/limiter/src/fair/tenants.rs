//! The tenants of a limit that is decided elsewhere.

mod at;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError},
};

use tidegate_core::fair::{
    FairError, FairShares, FairState, Grant, Refusal, TenantNote, TenantStates, Terms, TermsError,
};
use tidegate_core::{Algorithm as _, Decision, Key, Nanos, Policy};

use super::notes::{Notes, NotesHint};
use crate::{
    BuildError, HashKeys, KeyedLimiter, OverrideError, Stats,
    sync::{Mutex, MutexGuard},
    table::Tag,
};

pub use at::TenantsAt;

/// A share's bucket has at most two words.
pub(super) const WORDS: usize = 2;

/// The step that a decision asks of the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TotalStep {
    /// Only look: a share refused, or nothing is to be taken.
    Peek,
    /// Decide, and take.
    Take,
}

/// The outcome of a step of the total.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// The limit's own decision.
    pub decision: Decision,
    /// Whether the cost was taken: the limit admitted, and so did all that decide with it.
    pub is_taken: bool,
}

/// The tenants that share a limit, without the limit itself: its owner decides on the total, in the
/// same step. [`FairLimiter`](crate::FairLimiter) has both.
///
/// A lock is held for each decision, the total's included, so a decision and its effects on the
/// shares are one step. Tenants are kept in bounded tables, as keys of a
/// [`KeyedLimiter`](crate::KeyedLimiter) are. A tenant that a full table forgets is level with the
/// others when it returns. The weights of named tenants never depend on the tables.
pub struct FairTenants {
    /// In virtual time.
    pub(super) shares: KeyedLimiter<()>,
    /// `None` for permits: the share counts them.
    pub(super) ceilings: Option<KeyedLimiter<()>>,
    notes: Arc<NotesHint>,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub shares: FairShares,
    pub state: FairState,
    pub notes: Notes,
    /// Of tenants without a name.
    others: Terms,
    pub named: HashMap<Box<[u8]>, Named>,
    /// Whether a tenant has asked, so that a snapshot comes too late.
    pub is_used: bool,
    /// Whether the common state is that of a snapshot.
    pub is_restored: bool,
}

pub(super) struct Named {
    pub terms: Terms,
    pub guarantee: [u64; WORDS],
}

/// Why a limit cannot be shared by these tenants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FairBuildError {
    /// The policy does not support shares.
    #[error(transparent)]
    Policy(#[from] FairError),
    /// The tenants' states do not fit into memory.
    #[error(transparent)]
    Table(#[from] BuildError),
    /// A tenant's weight, guarantee or ceiling is out of its range.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The guarantees exceed the limit.
    #[error("the guarantees are {percent} % of the limit together; lower them to at most 100 %")]
    Guarantees {
        /// Their sum.
        percent: f64,
    },
    /// Tenants without a name have a guarantee.
    #[error("only named tenants can have a guarantee, as the number of the others is not known")]
    GuaranteeForOthers,
    /// The limit was a rate, and would be permits in flight, or the other way round.
    #[error(
        "a limit of permits in flight does not become one of a rate, or back, while tenants share it"
    )]
    Kind,
    /// A later change of the policy failed.
    #[error(transparent)]
    Change(#[from] OverrideError),
}

impl FairTenants {
    /// Tenants of a limit with the policy `total`, with the states of up to `max_tenants` in
    /// memory. `named` tenants have their own terms, all others those of `others`.
    ///
    /// # Errors
    /// If the policy does not support shares, the guarantees exceed 100 %, or memory is short.
    pub fn new<'a>(
        total: &Policy,
        max_tenants: usize,
        others: Terms,
        named: impl IntoIterator<Item = (&'a [u8], Terms)>,
    ) -> Result<Self, FairBuildError> {
        Self::with_hash_keys(total, max_tenants, others, named, HashKeys::random())
    }

    /// [`new`](Self::new) with the hash keys of another limiter.
    ///
    /// # Errors
    /// The same.
    pub fn with_hash_keys<'a>(
        total: &Policy,
        max_tenants: usize,
        others: Terms,
        named: impl IntoIterator<Item = (&'a [u8], Terms)>,
        hash: HashKeys,
    ) -> Result<Self, FairBuildError> {
        let shares = FairShares::new(total)?;
        let table = || {
            let builder = KeyedLimiter::builder(*shares.bucket()).hash_keys(hash);
            builder.max_keys(max_tenants).clock(()).build()
        };
        let mut inner = Inner {
            shares,
            state: FairState::default(),
            notes: Notes::new(max_tenants),
            others,
            named: HashMap::new(),
            is_used: false,
            is_restored: false,
        };
        inner.set_terms(others, named)?;
        Ok(Self {
            shares: table()?,
            ceilings: (!shares.are_permits()).then(table).transpose()?,
            notes: inner.notes.hint(),
            inner: Mutex::new(inner),
        })
    }

    /// The tables, each with its time.
    fn tables(
        &self,
        state: &FairState,
        now: Nanos,
    ) -> impl Iterator<Item = (&KeyedLimiter<()>, Nanos)> {
        let ceilings = self.ceilings.iter().map(move |table| (table, now));
        std::iter::once((&self.shares, state.virtual_now())).chain(ceilings)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step on a tenant's states.
    fn with<R>(
        &self,
        name: &[u8],
        now: Nanos,
        mut step: impl FnMut(&FairShares, &mut FairState, &Terms, &mut TenantStates<'_>) -> R,
    ) -> R {
        let tag = self.shares.tag(name);
        // The tenant's bucket and its note arrive from memory while the common state is brought up to
        // date.
        self.shares.prefetch_tag(tag);
        self.notes.prefetch(name_of(tag));
        let mut inner = self.lock();
        let Inner {
            shares,
            state,
            notes,
            others,
            named,
            is_used,
            ..
        } = &mut *inner;
        *is_used = true;
        shares.turn(state, now);
        let (terms, mut guarantee) = match named.get_mut(name) {
            Some(Named { terms, guarantee }) => (*terms, Some(&mut guarantee[..])),
            None => (*others, None),
        };
        let mut beside = TenantNote::default();
        let note = notes.of(name_of(tag), state, &mut beside);
        let virtual_now = state.virtual_now();
        let with_share = |share: &mut [u64]| {
            let mut with_ceiling = |ceiling: Option<&mut [u64]>| {
                let mut states = TenantStates {
                    share: &mut *share,
                    guarantee: guarantee.as_deref_mut(),
                    ceiling,
                    note: &mut *note,
                };
                step(shares, state, &terms, &mut states)
            };
            match &self.ceilings {
                Some(ceilings) if terms.ceiling().is_some() => {
                    in_table(ceilings, tag, now, |words| with_ceiling(Some(words)))
                }
                _ => with_ceiling(None),
            }
        };
        in_table(&self.shares, tag, virtual_now, with_share)
    }

    /// A tenant's terms.
    pub fn terms(&self, tenant: impl Key) -> Terms {
        let inner = self.lock();
        tenant.with_bytes(|name| {
            inner
                .named
                .get(name)
                .map_or(inner.others, |named| named.terms)
        })
    }

    /// Statistics of the table of shares, with the bytes of all tables.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.shares.stats();
        let notes = self.lock().notes.bytes() as u64;
        let ceilings = self
            .ceilings
            .as_ref()
            .map_or(0, |table| table.stats().bytes);
        Stats {
            bytes: stats.bytes + ceilings + notes,
            ..stats
        }
    }
}

/// The name of a tenant in its note.
const fn name_of(tag: Tag) -> u32 {
    (tag.get() >> 16) as u32
}

/// The grant of a request that is only looked at.
fn would_grant(
    shares: &FairShares,
    state: &FairState,
    terms: &Terms,
    states: &mut TenantStates<'_>,
    cost: u64,
    now: Nanos,
) -> Result<Grant, Refusal> {
    let mut state = *state;
    let mut note = *states.note;
    let mut copy = TenantStates {
        share: &mut *states.share,
        guarantee: states.guarantee.as_deref_mut(),
        ceiling: states.ceiling.as_deref_mut(),
        note: &mut note,
    };
    // Asking changes only the common state and the note.
    shares.ask(&mut state, terms, &mut copy, cost, now)
}

/// The largest cost below `refused` that is admitted, if all smaller ones are.
fn largest_admitted(refused: u64, mut admits: impl FnMut(u64) -> bool) -> u64 {
    let (mut least, mut most) = (0, refused - 1);
    while least < most {
        let middle = most - (most - least) / 2;
        if admits(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

/// A step on a tenant's words in a table. A tenant without room there has fresh ones.
fn in_table<R>(
    table: &KeyedLimiter<()>,
    tag: Tag,
    now: Nanos,
    mut step: impl FnMut(&mut [u64]) -> R,
) -> R {
    table
        .with_state(tag, now, |_, words, _| step(words))
        .unwrap_or_else(|_| step(&mut vec![0; table.policy().words()]))
}

impl Inner {
    fn set_terms<'a>(
        &mut self,
        others: Terms,
        named: impl IntoIterator<Item = (&'a [u8], Terms)>,
    ) -> Result<(), FairBuildError> {
        if others.guarantee().is_some() {
            return Err(FairBuildError::GuaranteeForOthers);
        }
        let mut sum = 0.0;
        let mut new = HashMap::new();
        for (name, terms) in named {
            let guarantee = self
                .named
                .get(name)
                .map_or([0; WORDS], |named| named.guarantee);
            new.insert(name.into(), Named { terms, guarantee });
        }
        for named in new.values() {
            sum += named.terms.guarantee().unwrap_or(0.0);
        }
        // Sums of tenths are not exact.
        if sum > 1.0 + 1e-9 {
            return Err(FairBuildError::Guarantees {
                percent: (sum * 1e4).round() / 1e2,
            });
        }
        (self.others, self.named) = (others, new);
        Ok(())
    }
}

impl fmt::Debug for FairTenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairTenants")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
