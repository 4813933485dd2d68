//! Fair shares of one limit: weighted max-min fairness among tenants, with guarantees and ceilings,
//! as pure functions of a state and a time.
//!
//! The total stays an ordinary [`Policy`], which decides last, so its bound holds for any shares. A
//! share is a token bucket in *virtual time*, which is common to all tenants: it advances as fast
//! as the fair rate per unit of weight. Units taken are divided by the tenant's weight, so all
//! tenants that want more than they get stay level.
//!
//! Virtual time follows the *level*: the units that the limit's average rate has brought and that
//! are not taken yet, as a span of that rate. Above a reserve the level is spare, and is
//! given out as virtual time, divided by the weight of those who were refused. A tenant that wants
//! less than its share leaves the level higher, so the others get what it does not use. Nothing is
//! measured for an idle tenant, and no fair rate is computed: the level converges to where as much
//! is given as comes in.
//!
//! docs/decisions/0014 has the reasons, the bounds, and what was tried.

mod permits;
mod rates;
mod saved;
mod terms;

pub use terms::{Terms, TermsError};

use crate::{Algorithm, Decision, DenialReason, Nanos, Policy};
use permits::{Claim, MOST_CLAIMS, Permits};
use rates::Rates;

const SECOND: f64 = 1e9;
/// The number of epochs for which a tenant leaves the reserve after another one has asked.
const ALONE_AFTER: u64 = 64;
/// The factor by which the sums of charges in a note fade in an epoch.
const FADE: f32 = 0.9;

/// How the units of one limit are shared (see the [module](self)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairShares {
    kind: Kind,
    /// Of the states of tenants.
    policy: Policy,
    limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Rates(Rates),
    Permits(Permits),
}

/// The common state of all tenants of a limit: virtual time, the level, the weights of the last two
/// epochs. Fresh at any time: [`FairState::default`].
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct FairState {
    is_started: bool,
    now: Nanos,
    virtual_now: Nanos,
    /// Below a nanosecond of virtual time.
    part: f64,
    level: f64,
    epoch: u64,
    /// How far the epochs' numbers are ahead of those of the present shares, wrapping: a state goes
    /// on counting when the shares change.
    epochs_ahead: u64,
    /// The weights of those who asked, in this epoch and in the one before.
    active: [f64; 2],
    /// The weights of those whom their share refused.
    refused: [f64; 2],
    /// The tenant that asked last; 0 if none did.
    asker: u32,
    /// The epoch after the last one in which another tenant asked; 0 if none ever did.
    crowded: u64,
    /// Who is to get the next permits.
    claims: [Claim; MOST_CLAIMS],
}

/// A record of a tenant that asked lately. All zero is fresh. If it is lost (an owner keeps a
/// bounded number of notes), the tenant's late charges are not expected until the next ones come.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct TenantNote {
    /// A hash of the tenant's name; 0 if the note is free.
    name: u32,
    /// The epoch after the one in which it asked last, and was refused last; 0 is never.
    asked: u32,
    refused: u32,
    /// The units that were taken, and charged later, both fading.
    taken: f32,
    charged: f32,
    /// The units that were taken in advance for later charges.
    advance: f32,
}

/// One tenant's states, for one step. Each is [`FairShares::words`] words, all zero when fresh.
#[derive(Debug)]
pub struct TenantStates<'a> {
    /// In virtual time.
    pub share: &'a mut [u64],
    /// Needed if the tenant has a guarantee.
    pub guarantee: Option<&'a mut [u64]>,
    /// Needed if the tenant has a ceiling.
    pub ceiling: Option<&'a mut [u64]>,
    /// The tenant's note.
    pub note: &'a mut TenantNote,
}

/// Why a policy cannot be shared fairly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FairError {
    /// The algorithm delays, or has several windows.
    #[error(
        "shares need a token bucket, a fixed window, a sliding window, a sliding counter, a sliding log or concurrency; {0} does not support them"
    )]
    Algorithm(&'static str),
    /// Permits are shared where their return is seen at once.
    #[error(
        "tenants can share permits in flight (concurrency) in the memory of one process, not over a store and not in the replay of a log"
    )]
    Permits,
    /// The limit is 0.
    #[error("a limit of 0 cannot be shared; use a limit of at least 1")]
    NoLimit,
    /// The policy counts denials, has a penalty, or lets a cost above the limit wait.
    #[error("shares do not support count_denied, penalties and oversize_wait; remove the option")]
    Denials,
}

/// How a request is admitted by the shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the tenant's share of what is spare.
    Share,
    /// From its guarantee.
    Guarantee,
    /// No other tenant wants it.
    Idle,
}

/// A request that the shares admit, before the total has decided.
#[derive(Clone, Copy, Debug)]
#[must_use = "the shares take nothing before `take`"]
pub struct Grant {
    way: Way,
    cost: u64,
    /// The units that are expected to be charged later.
    more: f64,
    /// The permits that others are to get first.
    leave: u64,
    /// Until when.
    until: Nanos,
}

/// A refusal by a tenant's share or ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Without other traffic the shares admit the same request after at most this long; `None` if
    /// the tenant has to return permits first.
    pub retry_after: Option<Nanos>,
    /// Whether the tenant's ceiling refused it, and not its share.
    pub by_ceiling: bool,
}

impl FairShares {
    /// The shares of a limit.
    ///
    /// # Errors
    /// If its algorithm does not support shares, or if nothing can be shared.
    pub fn new(total: &Policy) -> Result<Self, FairError> {
        let (kind, policy) = if let Some(rates) = Rates::new(total) {
            (Kind::Rates(rates), (*rates.bucket()).into())
        } else if total.is_concurrency() {
            (Kind::Permits(Permits::new(*total)), *total)
        } else {
            return Err(FairError::Algorithm(total.name()));
        };
        if total.counts_denied() || total.penalty().is_some() || total.waits_for_oversize() {
            return Err(FairError::Denials);
        }
        if total.limit() == 0 {
            return Err(FairError::NoLimit);
        }
        Ok(Self {
            kind,
            policy,
            limit: total.limit(),
        })
    }

    /// Whether permits in flight are shared, and not a rate.
    #[must_use]
    pub const fn are_permits(&self) -> bool {
        matches!(self.kind, Kind::Permits(_))
    }

    /// The policy of a tenant's states, for a table that holds them: of its share in
    /// [virtual time](FairState::virtual_now), and of its guarantee and its ceiling in the limit's
    /// own. A tenant of permits has only the first.
    #[must_use]
    pub const fn bucket(&self) -> &Policy {
        &self.policy
    }

    /// The number of words of each of a tenant's states.
    #[must_use]
    pub fn words(&self) -> usize {
        self.policy.words()
    }

    fn span(&self) -> f64 {
        match &self.kind {
            Kind::Rates(rates) => rates.horizon(),
            Kind::Permits(_) => SECOND,
        }
    }

    /// A guarantee is met this long after its owner returns: a second, or the window if it is
    /// longer. Of permits it is met as others return theirs.
    #[must_use]
    pub fn horizon(&self) -> Nanos {
        Nanos::new(whole(self.span()))
    }

    /// The numbers by which another implementation decides alike, in nanoseconds: a unit of the
    /// limit's average rate, the span in which an unused limit fills, the level above which units
    /// are spare, and the horizon. `None` for permits.
    #[must_use]
    pub const fn spans(&self) -> Option<[f64; 4]> {
        match &self.kind {
            Kind::Rates(rates) => Some(rates.spans()),
            Kind::Permits(_) => None,
        }
    }

    /// Brings the common state to `now`. Each of the other methods that has a time does it, too.
    pub fn turn(&self, state: &mut FairState, now: Nanos) {
        match &self.kind {
            Kind::Rates(rates) => rates.turn(state, now),
            Kind::Permits(_) => {
                state.pass(now, self.epoch(), 0.0);
                state.virtual_now = state.now;
            }
        }
    }

    /// Has these shares continue a common state that other shares made, or one from a snapshot. Its
    /// epochs keep their numbers, also if they are of another length now.
    pub fn follow(&self, state: &mut FairState) {
        if state.is_started {
            let number = whole(state.now.get() as f64 / self.epoch());
            state.epochs_ahead = state.epoch.wrapping_sub(number);
        }
    }

    fn epoch(&self) -> f64 {
        self.span() / 4.0
    }

    /// Whether the shares admit `cost`. If they do, look whether the total
    /// [leaves](Self::check_left) what others are to get first, ask it, and then call
    /// [`take`](Self::take) or [`total_refused`](Self::total_refused).
    ///
    /// # Errors
    /// The refusal.
    pub fn ask(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
        now: Nanos,
    ) -> Result<Grant, Refusal> {
        self.turn(state, now);
        match &self.kind {
            Kind::Rates(rates) => rates.ask(state, terms, tenant, cost),
            Kind::Permits(permits) => permits.ask(state, terms, tenant, cost),
        }
    }

    /// Whether the total has room for what was granted and for the [units to
    /// leave](Grant::leave), if it has room for the former. `total` is its decision on the cost.
    ///
    /// # Errors
    /// The refusal. Call [`total_refused`](Self::total_refused) then, too.
    pub fn check_left(
        &self,
        state: &FairState,
        grant: &Grant,
        total: &Decision,
    ) -> Result<(), Refusal> {
        if total.is_denied() || total.remaining() >= grant.leave {
            return Ok(());
        }
        Err(Refusal {
            retry_after: Some(grant.until.saturating_since(state.now)),
            by_ceiling: false,
        })
    }

    /// Takes what was granted, after the total has admitted it.
    pub fn take(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        grant: Grant,
    ) {
        match &self.kind {
            Kind::Rates(rates) => rates.take(state, terms, tenant, grant),
            Kind::Permits(permits) => permits.take(state, terms, tenant, grant),
        }
    }

    /// The total denied what the shares admitted. A rate has nothing to spare then, even if the
    /// level is high; of permits the tenant is to get the next ones, before those that have more.
    pub fn total_refused(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        grant: Grant,
    ) {
        match &self.kind {
            Kind::Rates(rates) => rates.total_refused(state),
            Kind::Permits(permits) => permits.claim(state, terms, tenant, grant),
        }
    }

    /// Takes a cost that is known only after the work. It counts fully, except while
    /// no tenant is refused and the level of a rate is above the reserve.
    pub fn charge(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
        now: Nanos,
    ) {
        self.turn(state, now);
        match &self.kind {
            Kind::Rates(rates) => rates.charge(state, terms, tenant, cost),
            Kind::Permits(permits) => permits.charge(state, tenant, cost),
        }
    }

    /// Returns units that were taken and not used, or permits.
    pub fn refund(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
        now: Nanos,
    ) {
        self.turn(state, now);
        match &self.kind {
            Kind::Rates(rates) => rates.refund(state, terms, tenant, cost),
            Kind::Permits(permits) => permits.refund(state, tenant, cost),
        }
    }

    /// [`refund`](Self::refund) of units that were taken at `taken`, which are still in use.
    pub fn give_back(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        (taken, cost): (Nanos, u64),
        now: Nanos,
    ) {
        self.turn(state, now);
        match &self.kind {
            Kind::Rates(rates) => rates.refund(state, terms, tenant, cost),
            Kind::Permits(permits) => permits.give_back(state, tenant, taken, cost),
        }
    }

    /// The part of the limit, from 0, that a tenant with this note has used lately, what was charged
    /// included: a mean over about ten quarters of the [horizon](Self::horizon), in which the latest
    /// count most. It takes as long to follow a change. Of permits it is what the tenant had in
    /// flight when it last asked or returned some.
    #[must_use]
    pub fn used(&self, state: &FairState, note: &TenantNote) -> f64 {
        match &self.kind {
            Kind::Rates(rates) => rates.used(state, note),
            Kind::Permits(_) => f64::from(note.taken) / self.limit as f64,
        }
    }

    /// A refusal as a decision on the total: its limit, and what is left of it.
    pub fn refused(&self, total: &Decision, refusal: Refusal) -> Decision {
        let mut standing = total.standing();
        // The room of the total is not the tenant's.
        standing.room = 0;
        let Some(wait) = refusal.retry_after else {
            return Decision::deny_for_good(standing).because(DenialReason::InFlight);
        };
        let total_wait = total
            .retry_after()
            .map_or(0, |span| Nanos::from(span).get());
        let decision = Decision::deny(standing, wait.get().max(total_wait));
        if self.are_permits() {
            decision.because(DenialReason::InFlight)
        } else {
            decision
        }
    }

    /// The limit that is shared, with its burst.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }
}

impl Grant {
    /// The units of the total that others are to get first. If it is not 0, look whether they are
    /// [left](FairShares::check_left) before the total takes the cost.
    #[must_use]
    pub const fn leave(&self) -> u64 {
        self.leave
    }
}

impl FairState {
    /// The time at which the tenants' shares are.
    #[must_use]
    pub const fn virtual_now(&self) -> Nanos {
        self.virtual_now
    }

    /// The weight of the tenants that asked lately, and of those that their share refused.
    #[must_use]
    pub fn weights(&self) -> (f64, f64) {
        (largest(self.active), largest(self.refused))
    }

    /// Whether the tenant that asked last has been the only one for a while.
    fn is_alone(&self) -> bool {
        self.crowded == 0 || self.epoch + 1 - self.crowded > ALONE_AFTER
    }

    /// Brings the epochs to `now`, and returns the span that has passed; `None` if none has. A
    /// fresh state begins with `level`.
    fn pass(&mut self, now: Nanos, epoch: f64, level: f64) -> Option<f64> {
        if !self.is_started {
            *self = Self {
                is_started: true,
                now,
                level,
                epoch: whole(now.get() as f64 / epoch),
                ..Self::default()
            };
        } else if now <= self.now {
            return None;
        }
        let passed = now.saturating_since(self.now).get() as f64;
        self.now = self.now.max(now);
        let number = whole(self.now.get() as f64 / epoch);
        let epoch = number.wrapping_add(self.epochs_ahead);
        if epoch > self.epoch {
            let keep = epoch == self.epoch + 1;
            for weights in [&mut self.active, &mut self.refused] {
                *weights = [0.0, if keep { weights[0] } else { 0.0 }];
            }
            self.epoch = epoch;
        }
        Some(passed)
    }

    fn advance(&mut self, span: f64) {
        self.part += span;
        let whole = whole(self.part);
        self.part -= whole as f64;
        self.virtual_now = self.virtual_now.saturating_add(Nanos::new(whole));
    }
}

impl TenantNote {
    /// Whether a tenant can have this note: it is its own, or its owner did not ask lately. `name`
    /// is a hash of the tenant.
    #[must_use]
    pub fn is_free_for(&self, name: u32, state: &FairState) -> bool {
        self.name == name.max(1) || self.name == 0 || u64::from(self.asked) < state.epoch & EPOCHS
    }

    /// The same note as that of a tenant; fresh if it was another one's.
    pub fn of(&mut self, name: u32) -> &mut Self {
        let name = name.max(1);
        if self.name != name {
            *self = Self {
                name,
                ..Self::default()
            };
        }
        self
    }

    /// The hash of the tenant that has it; 0 if the note is free.
    #[must_use]
    pub const fn name(&self) -> u32 {
        self.name
    }

    /// A note for one step of a tenant whose place another one has. The tenant is not counted as
    /// active, because no note says whether it was counted before.
    #[must_use]
    pub fn for_a_step(name: u32, state: &FairState) -> Self {
        let epoch = ((state.epoch & EPOCHS) + 1) as u32;
        Self {
            name: name.max(1),
            asked: epoch,
            refused: epoch,
            ..Self::default()
        }
    }

    /// Counts the tenant as active, and returns the epoch's number in notes.
    fn meet(&mut self, state: &mut FairState, terms: &Terms) -> u32 {
        let epoch = ((state.epoch & EPOCHS) + 1) as u32;
        if self.asked != epoch {
            let faded = faded(epoch.into(), self.asked.into());
            self.taken *= faded;
            self.charged *= faded;
            self.asked = epoch;
            state.active[0] += terms.weight();
        }
        if state.asker != self.name {
            if state.asker != 0 {
                state.crowded = state.epoch + 1;
            }
            state.asker = self.name;
        }
        epoch
    }

    /// The units that are expected to be charged after `cost` has been taken.
    fn expects(&self, cost: u64) -> f64 {
        if self.taken > 0.0 && self.charged > 0.0 {
            cost as f64 * f64::from(self.charged / self.taken)
        } else {
            0.0
        }
    }

    /// Counts a charge; returns what was not taken in advance.
    fn charge(&mut self, units: f64) -> f64 {
        self.charged += units as f32;
        let known = units.min(f64::from(self.advance));
        self.advance -= known as f32;
        units - known
    }
}

/// Epochs in notes are numbers of 31 bits.
const EPOCHS: u64 = (1 << 31) - 1;

/// The part of a sum that is left in an epoch after it was made in another one.
fn faded(epoch: u64, made: u64) -> f32 {
    (0..epoch.saturating_sub(made).min(64)).fold(1.0, |part, _| part * FADE)
}

fn largest(weights: [f64; 2]) -> f64 {
    weights[0].max(weights[1])
}

/// Nanoseconds, rounded up, and one more for the sums that led there.
fn round_up(span: f64) -> Nanos {
    Nanos::new(whole(span).saturating_add(2))
}

/// A number that is not negative, rounded down; saturates.
#[allow(clippy::cast_sign_loss, reason = "a negative number gives 0")]
const fn whole(number: f64) -> u64 {
    number as u64
}
