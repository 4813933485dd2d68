//! Decisions in memory while the store makes none.

use super::tenants::TenantOf;
use tidegate_core::{
    Algorithm, Clock as _, Decision, DenialReason, Outcome, Parameters, Policy, Standing,
};
use tidegate_limiter::{BuildError, Estimate, FairTenants, KeyedLimiter, TotalStep};

/// The most bytes that the default number of keys may use.
const ROOM: usize = 1 << 29;
const KEYS: usize = 1 << 16;
/// The key of a limit that tenants share.
const TOTAL: &[u8] = b"";

/// A limiter that admits this node's share of the limit.
///
/// Each decision reads the number of nodes. With `n` nodes, a unit is charged as `n` units. That
/// admits the limit divided by `n`, and buckets refill `n` times as slowly, but at least one unit
/// is admitted. Units stay charged when the number changes, so a node admits no more than its
/// largest share within the window.
pub struct Local {
    limiter: KeyedLimiter,
    /// The tenants that share the limit; `None` if each key has its own.
    tenants: Option<(TenantOf, FairTenants)>,
    limit: u64,
    on_calendar: bool,
}

impl Local {
    /// The default number of keys.
    pub fn usual_keys(policy: &Policy) -> usize {
        (ROOM / 8 / policy.words().max(1)).clamp(1, KEYS)
    }

    pub fn new(
        policy: Policy,
        keys: usize,
        tenants: Option<(TenantOf, FairTenants)>,
    ) -> Result<Self, BuildError> {
        let keys = if tenants.is_some() { 1 } else { keys };
        let limiter = KeyedLimiter::builder(policy).max_keys(keys).build()?;
        Ok(Self {
            limiter,
            tenants,
            limit: policy.limit(),
            on_calendar: matches!(policy.parameters(), Parameters::CalendarWindow { .. }),
        })
    }

    /// The charge for one unit if `nodes` share the limit.
    pub fn unit(&self, nodes: u32) -> u64 {
        u64::from(nodes).clamp(1, self.limit.max(1))
    }

    /// The limiter. Windows on a calendar follow the system's time; if the memory for that is
    /// missing, they follow it as far as before.
    fn limiter(&self) -> &KeyedLimiter {
        if self.on_calendar {
            let _ = self.limiter.follow_wall();
        }
        &self.limiter
    }

    /// The key of the state that decisions on a key change.
    fn state_key<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        if self.tenants.is_some() { TOTAL } else { key }
    }

    /// Decides on a cost, with `unit` charged for each unit, and returns what was taken.
    pub fn decide(&self, key: &[u8], cost: u64, unit: u64) -> (Decision, Estimate) {
        let (limiter, cost) = (self.limiter(), cost.saturating_mul(unit));
        let now = limiter.clock().now();
        let total = limiter.at(now);
        let Some((by, tenants)) = &self.tenants else {
            let (whole, taken) = total.acquire_estimate(key, cost);
            return (share(&whole, unit), taken);
        };
        let mut taken = Estimate {
            cost: 0,
            taken: now,
            place: 0,
        };
        let whole = tenants.at(now).acquire(by(key), cost, |step| match step {
            TotalStep::Take => {
                let (whole, estimate) = total.acquire_estimate(TOTAL, cost);
                taken = estimate;
                whole
            }
            TotalStep::Peek => total.peek(TOTAL, cost),
        });
        (share(&whole, unit), taken)
    }

    /// Takes as much of a cost as is available of this node's share, with `unit` charged for each
    /// unit. Returns that amount and the decision on it.
    pub fn decide_up_to(&self, key: &[u8], cost: u64, unit: u64) -> (u64, Decision) {
        let (limiter, cost) = (self.limiter(), cost.saturating_mul(unit));
        let now = limiter.clock().now();
        let total = limiter.at(now);
        let (taken, decision) = match &self.tenants {
            None => total.acquire_up_to(key, cost),
            Some((by, tenants)) => {
                tenants
                    .at(now)
                    .acquire_up_to(by(key), cost, |step, cost| match step {
                        TotalStep::Take => total.acquire_up_to(TOTAL, cost),
                        TotalStep::Peek => (0, total.peek(TOTAL, cost)),
                    })
            }
        };
        let (granted, rest) = (taken / unit, taken % unit);
        if rest == 0 {
            return (granted, share(&decision, unit));
        }
        // The rest is less than a unit.
        self.give_back(key, rest);
        if granted > 0 {
            return (granted, self.standing(key, unit));
        }
        let (decision, _) = self.decide(key, 1, unit);
        (u64::from(decision.is_allowed()), decision)
    }

    /// Refunds a cost that counts already for all nodes.
    fn give_back(&self, key: &[u8], cost: u64) {
        let limiter = self.limiter();
        limiter.refund(self.state_key(key), cost);
        if let Some((by, tenants)) = &self.tenants {
            tenants.at(limiter.clock().now()).refund(by(key), cost);
        }
    }

    /// Corrects what was taken to the `actual` cost.
    pub fn settle(&self, key: &[u8], taken: Estimate, actual: u64, unit: u64) {
        let (limiter, actual) = (self.limiter(), actual.saturating_mul(unit));
        let now = limiter.clock().now();
        match &self.tenants {
            Some((by, tenants)) if actual > taken.cost => {
                tenants.at(now).charge(by(key), actual - taken.cost);
            }
            // Units that do not return to the limit do not return to the share.
            Some((by, tenants)) if limiter.at(now).counts(TOTAL, &taken) => {
                tenants.at(now).refund(by(key), taken.cost - actual);
            }
            _ => {}
        }
        limiter.at(now).settle(self.state_key(key), taken, actual);
    }

    /// Charges a cost, whether it fits or not, and returns the state of the key.
    pub fn charge(&self, key: &[u8], cost: u64, unit: u64) -> Decision {
        let (limiter, cost) = (self.limiter(), cost.saturating_mul(unit));
        if let Some((by, tenants)) = &self.tenants {
            tenants.at(limiter.clock().now()).charge(by(key), cost);
        }
        share(&limiter.charge(self.state_key(key), cost), unit)
    }

    /// Refunds up to `cost` of a key's use and returns how much. Two concurrent callers may both
    /// get the same units as refunded; then less is refunded than reported.
    pub fn refund(&self, key: &[u8], cost: u64, unit: u64) -> u64 {
        let standing = self.standing(key, unit);
        let used = standing.limit().saturating_sub(standing.remaining());
        if used > 0 {
            self.give_back(key, cost.saturating_mul(unit));
        }
        cost.min(used)
    }

    /// Ends a block of a key by the policy's penalty.
    pub fn unblock(&self, key: &[u8]) {
        self.limiter.unblock(self.state_key(key));
    }

    /// The state of a key.
    pub fn standing(&self, key: &[u8], unit: u64) -> Decision {
        share(&self.limiter().peek(self.state_key(key), 0), unit)
    }
}

/// Converts a decision on the whole limit to one on this node's share.
fn share(whole: &Decision, unit: u64) -> Decision {
    let standing = Standing {
        limit: whole.limit() / unit,
        unit,
        room: whole.remaining(),
        reset_after: whole.reset_after_nanos(),
    };
    let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    match whole.outcome() {
        Outcome::Allow => Decision::allow(standing),
        Outcome::Delay(delay) => Decision::delayed(standing, nanos(delay)),
        Outcome::Deny {
            retry_after: Some(wait),
        } => Decision::deny(standing, nanos(wait)),
        _ => Decision::deny_for_good(standing),
    }
    .because(whole.reason().unwrap_or(DenialReason::Quota))
}
