//! Shares of a rate: tenants have buckets in virtual time, which follows the level of the total.

use super::{
    EPOCHS, FADE, FairState, Grant, Refusal, SECOND, TenantNote, TenantStates, Terms, Way, faded,
    largest, round_up, whole,
};
use crate::{Algorithm, MAX_LIMIT, Nanos, Parameters, Policy, Quota, algorithm::TokenBucket};

/// Parts of a unit, so that a cost divided by a weight is exact enough.
const PARTS: u64 = 1 << 20;

/// How the units of a rate are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// The total's average rate, in `1 / parts` units: a tenant's bucket for a weight of 1.
    bucket: TokenBucket,
    parts: f64,
    /// Nanoseconds of the average rate for a unit.
    unit: f64,
    /// The span in which an unused limit fills.
    full: f64,
    /// The level above which units are spare.
    reserve: f64,
    /// A second, or the window if it is longer.
    horizon: f64,
}

impl Rates {
    /// The shares of a rate; `None` for another kind of limit.
    pub fn new(total: &Policy) -> Option<Self> {
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
            _ => return None,
        };
        // A limit of 0 is refused by the caller.
        let per = per.max(1);
        let parts = PARTS.min(MAX_LIMIT / per).max(1);
        let unit = in_nanos as f64 / per as f64;
        let full = unit * limit as f64;
        Some(Self {
            bucket: TokenBucket::new(Quota::of(per * parts, in_nanos)),
            parts: parts as f64,
            unit,
            full,
            // A window's units that went in a burst are missing until its end, so less of them is
            // given out at once.
            reserve: full * if is_bucket { 0.5 } else { 0.9 },
            horizon: full.max(SECOND),
        })
    }

    pub const fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    pub const fn horizon(&self) -> f64 {
        self.horizon
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

    /// Brings the common state to `now`.
    pub fn turn(&self, state: &mut FairState, now: Nanos) {
        let Some(passed) = state.pass(now, self.epoch(), self.full) else {
            return;
        };
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

    /// See [`FairShares::ask`](super::FairShares::ask).
    pub fn ask(
        &self,
        state: &mut FairState,
        terms: &Terms,
        tenant: &mut TenantStates<'_>,
        cost: u64,
    ) -> Result<Grant, Refusal> {
        let now = state.now;
        let epoch = tenant.note.meet(state, terms);
        if let (Some(ceiling), Some(words)) = (terms.ceiling(), tenant.ceiling.as_deref()) {
            let lacks = self.lacks(words, now, cost, ceiling, self.horizon / 8.0);
            if lacks > 0.0 {
                return Err(Refusal {
                    retry_after: Some(round_up(lacks)),
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
                retry_after: Some(round_up(
                    guaranteed.map_or(by_share, |span| span.min(by_share)),
                )),
                by_ceiling: false,
            });
        };
        Ok(Grant {
            way,
            cost,
            more,
            leave: 0,
            until: now,
        })
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
    ) {
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
    ) {
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
}
