//! Decisions in memory, for as long as the store gives none.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    Algorithm, Clock, Decision, MAX_WINDOW, Nanos, Parameters, Policy, PolicyError, Quota,
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
    },
};
use tidegate_limiter::{BuildError, KeyedLimiter};

/// As many keys as usual take no more than so many bytes.
const ROOM: usize = 1 << 29;
const KEYS: usize = 1 << 16;

/// A limiter whose limit is this node's share.
pub struct Local {
    whole: Policy,
    limiter: KeyedLimiter,
    /// By how many the limit is divided now.
    nodes: AtomicU32,
    /// Held for a change of that: of two at a time the later one stays.
    change: Mutex<()>,
}

impl Local {
    /// How many keys it should hold where nobody has said.
    pub fn usual_keys(policy: &Policy) -> usize {
        (ROOM / 8 / policy.words().max(1)).clamp(1, KEYS)
    }

    pub fn new(policy: Policy, keys: usize) -> Result<Self, BuildError> {
        let limiter = KeyedLimiter::builder(policy).max_keys(keys).build()?;
        Ok(Self { whole: policy, limiter, nodes: AtomicU32::new(1), change: Mutex::new(()) })
    }

    pub fn decide(&self, key: &[u8], cost: u32, nodes: u32) -> Decision {
        let now = self.limiter.clock().now();
        // Relaxed: the limiter's own change of policy is what orders.
        if self.nodes.load(Ordering::Relaxed) != nodes {
            self.change_share(nodes, now);
        }
        self.limiter.acquire_at(key, cost, now)
    }

    #[cold]
    fn change_share(&self, nodes: u32, now: Nanos) {
        let _changing = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if self.nodes.swap(nodes, Ordering::Relaxed) != nodes {
            // Without memory for it, the share stays what it was.
            if let Ok(share) = share(&self.whole, nodes) {
                let _ = self.limiter.set_policy_at(share, now);
            }
        }
    }

    /// Gives back up to `cost` of what a key has in use; returns how much. Of two callers at the same time both may be told
    /// of the same units: then less is given back than is told.
    pub fn refund(&self, key: &[u8], cost: u32) -> u32 {
        let standing = self.standing(key);
        let used = u32::try_from(standing.limit().saturating_sub(standing.remaining())).unwrap_or(u32::MAX);
        if used > 0 {
            self.limiter.refund(key, cost);
        }
        cost.min(used)
    }

    /// How a key stands.
    pub fn standing(&self, key: &[u8]) -> Decision {
        self.limiter.peek(key, 0)
    }
}

/// A policy with its limit divided by so many nodes, rounded down, but at least 1 where it was not 0.
fn share(policy: &Policy, nodes: u32) -> Result<Policy, PolicyError> {
    let nodes = nodes.max(1);
    let divided = |limit: u32| if limit == 0 { 0 } else { (limit / nodes).max(1) };
    let quota = |limit: u32, window: u64| {
        Quota::new(divided(limit), Duration::from_nanos(window).min(MAX_WINDOW)).map_err(PolicyError::Quota)
    };
    Ok(match policy.parameters() {
        Parameters::FixedWindow { limit, window, first_hit } => {
            let fixed = FixedWindow::new(quota(limit, window)?);
            if first_hit { fixed.first_hit().into() } else { fixed.into() }
        }
        Parameters::SlidingLog { limit, lifetime } => SlidingLog::new(quota(limit, lifetime)?)?.into(),
        Parameters::SlidingWindow { limit, window, slots, span, .. } => {
            let window = SlidingWindow::new(quota(limit, window)?).slots(slots)?;
            if span > slots { window.into() } else { window.balanced().into() }
        }
        Parameters::SlidingCounter { limit, window } => SlidingCounter::new(quota(limit, window)?).into(),
        Parameters::TokenBucket { burst, step, parts } => {
            TokenBucket::new(slower(step, parts, nodes)?)?.burst(divided(burst))?.into()
        }
        Parameters::LeakyBucket { limit, step, parts, max_wait } => {
            let quota = slower(step, parts, nodes)?;
            let wait = Duration::from_nanos(max_wait);
            // A leaky bucket's highest cost is its quota's limit: the same rate, told so that the limit is the share.
            let share = divided(limit);
            let window =
                u128::from(quota.window_nanos()) * u128::from(share) / u128::from(quota.limit().max(1));
            let window = Nanos::new(u64::try_from(window).unwrap_or(u64::MAX)).max(Nanos::new(1));
            let quota =
                Quota::new(share, Duration::from(window).min(MAX_WINDOW)).map_err(PolicyError::Quota)?;
            LeakyBucket::new(quota).max_wait(wait)?.into()
        }
        Parameters::Concurrency { limit, hold: Some(hold) } => {
            Concurrency::new(divided(limit)).hold(Duration::from_nanos(hold))?.into()
        }
        _ => *policy,
    })
}

/// A rate of `parts` in `step` nanoseconds, divided.
fn slower(step: u64, parts: u64, nodes: u32) -> Result<Quota, PolicyError> {
    let window = Nanos::new(step.saturating_mul(nodes.into()));
    let limit = u32::try_from(parts).unwrap_or(u32::MAX);
    Quota::new(limit, Duration::from(window).min(MAX_WINDOW)).map_err(PolicyError::Quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_limit_divided_and_never_nothing() {
        let quota = |text: &str| text.parse::<Quota>().expect("the quota is well formed");
        let policies: [Policy; 7] = [
            Policy::fixed_window(quota("100/1m")),
            Policy::sliding_log(quota("100/1m")).expect("the log is short"),
            SlidingWindow::new(quota("100/1m")).balanced().into(),
            Policy::sliding_counter(quota("100/1m")),
            Policy::token_bucket(quota("100/1m")),
            Policy::leaky_bucket(quota("100/1m")),
            Concurrency::new(100).hold(Duration::from_mins(1)).expect("the hold is short").into(),
        ];
        for policy in policies {
            let quarter = share(&policy, 4).expect("a share can be had");
            assert_eq!((quarter.name(), quarter.limit()), (policy.name(), 25), "{quarter:?}");
            assert_eq!(share(&policy, 1_000).expect("a share can be had").limit(), 1);
            assert_eq!(share(&policy, 1).expect("a share can be had"), policy);
        }
    }

    #[test]
    fn there_is_room_for_the_usual_keys_of_any_policy() {
        let log = |text: &str| {
            Policy::sliding_log(text.parse().expect("the quota is well formed"))
                .expect("the log is not too long")
        };
        let policies = [log("1/1h"), log("1000/1h"), log("30000/1h"), log("50000/1h"), log("1000000/1h")];
        let keys = policies.map(|policy| {
            let keys = Local::usual_keys(&policy);
            let local = Local::new(policy, keys).expect("there is room for so many");
            assert!(
                local.decide(b"k", policy.limit(), 1).is_allowed() && local.decide(b"k", 1, 1).is_denied()
            );
            keys
        });
        assert!(keys[..2] == [65_536; 2] && keys[4] >= 64 && keys.is_sorted_by(|a, b| a >= b), "{keys:?}");
    }

    #[test]
    fn a_bucket_shared_by_four_fills_four_times_as_slowly() {
        let quota = "100/1m".parse().expect("the quota is well formed");
        let quarter = share(&Policy::token_bucket(quota), 4).expect("a share can be had");
        assert_eq!(quarter, Policy::token_bucket("25/1m".parse().expect("the quota is well formed")));
    }
}
