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

mod terms;

pub use terms::{Terms, TermsError};

use crate::MAX_LIMIT;
use crate::{Algorithm, Decision, Nanos, Parameters, Policy, Quota, algorithm::TokenBucket};

const SECOND: f64 = 1e9;
/// Parts of a unit, so that a cost divided by a weight is exact enough.
const PARTS: u64 = 1 << 20;
/// The number of epochs for which a tenant leaves the reserve after another one has asked.
const ALONE_AFTER: u64 = 64;
/// The factor by which the sums of charges in a note fade in an epoch.
const FADE: f32 = 0.9;

/// How the units of one limit are shared (see the [module](self)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairShares {
    /// The total's average rate, in `1 / parts` units: a tenant's bucket for a weight of 1.
    bucket: TokenBucket,
    /// The same as a policy.
    policy: Policy,
    parts: f64,
    /// Nanoseconds of the average rate for a unit.
    unit: f64,
    limit: u64,
    /// The span in which an unused limit fills.
    full: f64,
    /// The level above which units are spare.
    reserve: f64,
    /// A second, or the window if it is longer.
    horizon: f64,
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
    /// The weights of those who asked, in this epoch and in the one before.
    active: [f64; 2],
    /// The weights of those whom their share refused.
    refused: [f64; 2],
    /// The tenant that asked last; 0 if none did.
    asker: u32,
    /// The epoch after the last one in which another tenant asked; 0 if none ever did.
    crowded: u64,
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
    /// The algorithm does not deny by a rate.
    #[error(
        "shares need a token bucket, a fixed window, a sliding window, a sliding counter or a sliding log; {0} does not support them"
    )]
    Algorithm(&'static str),
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
}

/// A refusal by a tenant's share or ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Without other traffic the shares admit the same request after at most this long.
    pub retry_after: Nanos,
    /// Whether the tenant's ceiling refused it, and not its share.
    pub by_ceiling: bool,
}

impl FairShares {
    /// The shares of a limit.
    ///
    /// # Errors
    /// If its algorithm does not support shares, or if nothing can be shared.
    pub fn new(total: &Policy) -> Result<Self, FairError> {
        let is_bucket = matches!(total.parameters(), Parameters::TokenBucket { .. });
        let (limit, per, in_nanos) = match total.parameters() {
            Parameters::TokenBucket {
                burst, step, parts, ..
            } => (burst, parts, step),
            Parameters::FixedWindow { limit, window, .. }
            | Parameters::SlidingCounter { limit, window } => (limit, limit, window),
            Parameters::SlidingLog { limit, lifetime } => (limit, limit, lifetime),
            Parameters::SlidingWindow {
                limit, slot, span, ..
            } => (limit, limit, slot.saturating_mul(span.into())),
            _ => return Err(FairError::Algorithm(total.name())),
        };
        if total.counts_denied() || total.penalty().is_some() || total.waits_for_oversize() {
            return Err(FairError::Denials);
        }
        if limit == 0 || per == 0 {
            return Err(FairError::NoLimit);
        }
        let parts = PARTS.min(MAX_LIMIT / per).max(1);
        let unit = in_nanos as f64 / per as f64;
        let full = unit * limit as f64;
        let bucket = TokenBucket::new(Quota::of(per * parts, in_nanos));
        Ok(Self {
            bucket,
            policy: bucket.into(),
            parts: parts as f64,
            unit,
            limit,
            full,
            // A window's units that went in a burst are missing until its end, so less of them is
            // given out at once.
            reserve: full * if is_bucket { 0.5 } else { 0.9 },
            horizon: full.max(SECOND),
        })
    }

    /// The policy of a tenant's buckets, for a table that holds them: a share's in
    /// [virtual time](FairState::virtual_now), a guarantee's and a ceiling's in the limit's own.
    #[must_use]
    pub const fn bucket(&self) -> &Policy {
        &self.policy
    }

    /// The number of words of each of a tenant's states.
    #[must_use]
    pub fn words(&self) -> usize {
        self.bucket.words()
    }

    /// A guarantee is met this long after its owner returns: a second, or the window if it is
    /// longer.
    #[must_use]
    pub fn horizon(&self) -> Nanos {
        Nanos::new(whole(self.horizon))
    }

    /// The numbers by which another implementation decides alike, in nanoseconds: a unit of the
    /// limit's average rate, the span in which an unused limit fills, the level above which units
    /// are spare, and the horizon.
    #[must_use]
    pub const fn spans(&self) -> [f64; 4] {
        [self.unit, self.full, self.reserve, self.horizon]
    }

    /// The level above which a request is admitted if no tenant was refused lately.
    fn idle(&self) -> f64 {
        f64::midpoint(self.reserve, self.full)
    }

    fn epoch(&self) -> f64 {
        self.horizon / 4.0
    }

    /// The time in which what is spare is given out.
    fn pace(&self) -> f64 {
        (self.horizon / 32.0).min(self.full / 8.0)
    }

    /// How much a tenant may be ahead in virtual time: half the horizon of its equal share.
    fn credit(&self, state: &FairState, terms: &Terms) -> f64 {
        self.horizon / 2.0 / largest(state.active).max(terms.weight())
    }

    /// A cost in parts of a bucket that has this fraction of the rate, rounded up.
    fn parts_of(&self, cost: f64, fraction: f64) -> u64 {
        let exact = cost * self.parts / fraction;
        let whole = whole(exact);
        whole.saturating_add(u64::from((whole as f64) < exact))
    }

    fn debt(&self, words: &[u64], now: Nanos) -> f64 {
        self.bucket.end(words).saturating_sub(now.get()) as f64
    }

    /// Takes a cost from a bucket, as debt beyond its room. With `most`, the debt does not grow
    /// beyond it.
    fn add(&self, words: &mut [u64], now: Nanos, cost: f64, fraction: f64, most: Option<f64>) {
        let cost = most.map_or(cost, |most| {
            let room = (most - self.debt(words, now)).max(0.0);
            cost.min(room / self.unit * fraction)
        });
        self.bucket
            .charge(words, now, self.parts_of(cost, fraction));
    }

    /// Whether a bucket has room for a cost, or as much as it ever has, and otherwise the time
    /// until then.
    fn lacks(&self, words: &[u64], now: Nanos, cost: u64, fraction: f64, most: f64) -> f64 {
        let cost = (cost as f64 * self.unit / fraction).min(most);
        (self.debt(words, now) + cost - most).max(0.0)
    }

    /// Brings the common state to `now`. Each of the other methods does it, too.
    pub fn turn(&self, state: &mut FairState, now: Nanos) {
        if !state.is_started {
            *state = FairState {
                is_started: true,
                now,
                level: self.full,
                epoch: whole(now.get() as f64 / self.epoch()),
                ..FairState::default()
            };
        } else if now <= state.now {
            return;
        }
        let passed = now.saturating_since(state.now).get() as f64;
        state.now = state.now.max(now);
        let epoch = whole(state.now.get() as f64 / self.epoch());
        if epoch > state.epoch {
            let keep = epoch == state.epoch + 1;
            for weights in [&mut state.active, &mut state.refused] {
                *weights = [0.0, if keep { weights[0] } else { 0.0 }];
            }
            state.epoch = epoch;
        }
        state.level = (state.level + passed).min(self.full);
        let spare = state.level - self.reserve;
        if spare > 0.0 {
            let refused = largest(state.refused);
            // While tenants are refused, nothing is given out twice. Without them, virtual time
            // only has to catch up with debts.
            let given = if refused > 0.0 {
                spare * (passed / self.pace()).min(1.0) / refused
            } else {
                spare * (passed / self.pace()) / largest(state.active).max(1.0)
            };
            state.advance(given);
        }
    }

    /// Whether the shares admit `cost`. If they do, ask the total, and then call
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
        let now = state.now;
        let epoch = tenant.note.meet(state, terms);
        if let (Some(ceiling), Some(words)) = (terms.ceiling(), tenant.ceiling.as_deref()) {
            let lacks = self.lacks(words, now, cost, ceiling, self.horizon / 8.0);
            if lacks > 0.0 {
                return Err(Refusal {
                    retry_after: round_up(lacks),
                    by_ceiling: true,
                });
            }
        }
        let more = tenant.note.expects(cost);
        let expected = cost.saturating_add(whole(more));
        let credit = self.credit(state, terms);
        let lacks = self.lacks(
            tenant.share,
            state.virtual_now,
            expected,
            terms.weight(),
            credit,
        );
        let guaranteed = match (terms.guarantee(), tenant.guarantee.as_deref()) {
            (Some(part), Some(words)) => {
                Some(self.lacks(words, now, expected, part, self.horizon / 2.0))
            }
            _ => None,
        };
        let cost_span = cost as f64 * self.unit;
        let is_idle = largest(state.refused) == 0.0 && state.level - cost_span >= self.idle();
        let way = if lacks == 0.0 {
            Way::Share
        } else if guaranteed == Some(0.0) {
            Way::Guarantee
        } else if state.is_alone() || is_idle {
            Way::Idle
        } else {
            if tenant.note.refused != epoch {
                tenant.note.refused = epoch;
                state.refused[0] += terms.weight();
            }
            let by_share = self.share_in(state, lacks);
            return Err(Refusal {
                retry_after: round_up(guaranteed.map_or(by_share, |span| span.min(by_share))),
                by_ceiling: false,
            });
        };
        Ok(Grant { way, cost, more })
    }

    /// The time until virtual time has advanced by `lacks`, without further requests.
    fn share_in(&self, state: &FairState, lacks: f64) -> f64 {
        let span = lacks * largest(state.refused);
        let level = self.reserve + span;
        if level <= self.full {
            return (level - state.level).max(self.pace());
        }
        // From the second epoch without refusals on, virtual time advances all the time.
        let quiet = (self.full - state.level).max(2.0 * self.epoch());
        quiet + span * self.pace() / (self.full - self.reserve)
    }

    /// Takes what was granted, after the total has admitted it.
    pub fn take(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        grant: Grant,
    ) {
        let (now, virtual_now) = (state.now, state.virtual_now);
        let all = grant.cost as f64 + grant.more;
        state.level -= all * self.unit;
        tenant.note.taken += grant.cost as f32;
        tenant.note.advance += grant.more as f32;
        // Idle capacity makes no debt in the share, and guaranteed units not more than the next
        // units of the share repay, so that using them has no price later.
        let most = match grant.way {
            Way::Share => None,
            Way::Guarantee => Some(2.0 * self.credit(state, terms)),
            Way::Idle => Some(self.credit(state, terms)),
        };
        self.add(tenant.share, virtual_now, all, terms.weight(), most);
        if let (Some(part), Some(words)) = (terms.guarantee(), &mut tenant.guarantee) {
            let most = (grant.way != Way::Guarantee).then_some(self.horizon / 2.0);
            self.add(words, now, all, part, most);
        }
        if let (Some(part), Some(words)) = (terms.ceiling(), &mut tenant.ceiling) {
            self.add(words, now, grant.cost as f64, part, None);
        }
    }

    /// The total denied what the shares admitted: nothing is spare, even if the level is high.
    pub fn total_refused(&self, state: &mut FairState) {
        state.level = state.level.min(self.reserve);
    }

    /// Takes a cost that is known only after the work. It counts fully, except while
    /// no tenant is refused and the level is above the reserve.
    pub fn charge(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
        now: Nanos,
    ) {
        self.turn(state, now);
        let now = state.now;
        let units = cost as f64;
        let new = tenant.note.charge(units);
        state.level -= new * self.unit;
        let is_idle = largest(state.refused) == 0.0 && state.level >= self.reserve;
        let most = (state.is_alone() || is_idle).then(|| self.credit(state, terms));
        self.add(tenant.share, state.virtual_now, new, terms.weight(), most);
        if let (Some(part), Some(words)) = (terms.guarantee(), &mut tenant.guarantee) {
            self.add(words, now, new, part, None);
        }
        if let (Some(part), Some(words)) = (terms.ceiling(), &mut tenant.ceiling) {
            self.add(words, now, units, part, None);
        }
    }

    /// Returns units that were taken and not used.
    pub fn refund(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
        now: Nanos,
    ) {
        self.turn(state, now);
        let now = state.now;
        let units = cost as f64;
        state.level = (state.level + units * self.unit).min(self.full);
        tenant.note.taken = (tenant.note.taken - units as f32).max(0.0);
        let parts = |fraction| whole(units * self.parts / fraction);
        self.bucket
            .refund(tenant.share, state.virtual_now, parts(terms.weight()));
        if let (Some(part), Some(words)) = (terms.guarantee(), &mut tenant.guarantee) {
            self.bucket.refund(words, now, parts(part));
        }
        if let (Some(part), Some(words)) = (terms.ceiling(), &mut tenant.ceiling) {
            self.bucket.refund(words, now, parts(part));
        }
    }

    /// The part of the limit, from 0, that a tenant with this note has used lately, what was charged
    /// included: a mean over about ten quarters of the [horizon](Self::horizon), in which the latest
    /// count most. It takes as long to follow a change.
    #[must_use]
    pub fn used(&self, state: &FairState, note: &TenantNote) -> f64 {
        let epoch = (state.epoch & EPOCHS) + 1;
        let units = f64::from((note.taken + note.charged) * faded(epoch, note.asked.into()));
        // A steady tenant's sum, in units of an epoch: of all epochs before, and of this one so far.
        let before = f64::from(FADE / (1.0 - FADE));
        let epochs = state.now.get() as f64 / self.epoch();
        let so_far = epochs - whole(epochs) as f64;
        units * self.unit / (self.epoch() * (before + so_far))
    }

    /// A refusal as a decision on the total: its limit, and what is left of it.
    pub fn refused(&self, total: &Decision, refusal: Refusal) -> Decision {
        let mut standing = total.standing();
        // The room of the total is not the tenant's.
        standing.room = 0;
        let wait = total
            .retry_after()
            .map_or(0, |span| Nanos::from(span).get());
        Decision::deny(standing, refusal.retry_after.get().max(wait))
    }

    /// The limit that is shared, with its burst.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
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
