//! Decisions in memory while the store makes none.

use tidegate_core::{Algorithm, Decision, DenialReason, Outcome, Policy, Standing};
use tidegate_limiter::{BuildError, KeyedLimiter};

/// The most bytes that the default number of keys may use.
const ROOM: usize = 1 << 29;
const KEYS: usize = 1 << 16;

/// A limiter that admits this node's share of the limit.
///
/// Each decision reads the number of nodes. With `n` nodes, a unit is charged as `n` units. That admits the limit divided by
/// `n`, and buckets refill `n` times as slowly, but at least one unit is admitted. Units stay charged when the number changes,
/// so a node admits no more than its largest share within the window.
pub struct Local {
    limiter: KeyedLimiter,
    limit: u64,
}

impl Local {
    /// The default number of keys.
    pub fn usual_keys(policy: &Policy) -> usize {
        (ROOM / 8 / policy.words().max(1)).clamp(1, KEYS)
    }

    pub fn new(policy: Policy, keys: usize) -> Result<Self, BuildError> {
        let limiter = KeyedLimiter::builder(policy).max_keys(keys).build()?;
        Ok(Self { limiter, limit: policy.limit() })
    }

    /// The charge for one unit if `nodes` share the limit.
    pub fn unit(&self, nodes: u32) -> u64 {
        u64::from(nodes).clamp(1, self.limit.max(1))
    }

    /// Decides on a cost, with `unit` charged for each unit.
    pub fn decide(&self, key: &[u8], cost: u64, unit: u64) -> Decision {
        share(&self.limiter.acquire(key, cost.saturating_mul(unit)), unit)
    }

    /// Charges a cost, whether it fits or not, and returns the state of the key.
    pub fn charge(&self, key: &[u8], cost: u64, unit: u64) -> Decision {
        share(&self.limiter.charge(key, cost.saturating_mul(unit)), unit)
    }

    /// Refunds up to `cost` of a key's use and returns how much. Two concurrent callers may both get the same units as refunded;
    /// then less is refunded than reported.
    pub fn refund(&self, key: &[u8], cost: u64, unit: u64) -> u64 {
        let standing = self.standing(key, unit);
        let used = standing.limit().saturating_sub(standing.remaining());
        if used > 0 {
            self.limiter.refund(key, cost.saturating_mul(unit));
        }
        cost.min(used)
    }

    /// The state of a key.
    pub fn standing(&self, key: &[u8], unit: u64) -> Decision {
        share(&self.limiter.peek(key, 0), unit)
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
        Outcome::Deny { retry_after: Some(wait) } => Decision::deny(standing, nanos(wait)),
        _ => Decision::deny_for_good(standing),
    }
    .because(whole.reason().unwrap_or(DenialReason::Quota))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::{
        Quota,
        algorithm::{Concurrency, SlidingWindow},
    };

    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().expect("the quota is well formed")
    }

    #[test]
    fn a_share_is_the_limit_divided_by_the_nodes_and_at_least_one() {
        let policies: [Policy; 7] = [
            Policy::fixed_window(quota("100/1h")),
            Policy::sliding_log(quota("100/1h")).expect("the log is short"),
            SlidingWindow::new(quota("100/1h")).balanced().into(),
            Policy::sliding_counter(quota("100/1h")),
            Policy::token_bucket(quota("100/1h")),
            Policy::leaky_bucket(quota("100/1h")),
            Concurrency::new(100).hold(Duration::from_hours(1)).expect("the hold is short").into(),
        ];
        for policy in policies {
            for (nodes, fits) in [(1, 100), (3, 33), (4, 25), (30, 3), (100, 1), (1_000, 1)] {
                let local = Local::new(policy, 10).expect("there is room");
                let unit = local.unit(nodes);
                let beyond = local.decide(b"k", fits + 1, unit);
                assert!(beyond.is_denied() && beyond.retry_after().is_none(), "{policy:?}, {nodes} nodes");
                let all = local.decide(b"k", fits, unit);
                assert!(all.is_allowed(), "{policy:?}, {nodes} nodes: {all:?}");
                assert_eq!(all.limit(), fits, "{policy:?}, {nodes} nodes");
                // A leaky bucket's limit is its highest cost, and later requests wait.
                if policy.name() != "leaky-bucket" {
                    assert_eq!(all.remaining(), 0, "{policy:?}, {nodes} nodes");
                    assert!(local.decide(b"k", 1, unit).is_denied(), "{policy:?}, {nodes} nodes");
                }
            }
        }
    }

    #[test]
    fn a_bucket_shared_by_four_fills_four_times_as_slowly() {
        let local = Local::new(Policy::token_bucket(quota("100/1m")), 10).expect("there is room");
        assert!(local.decide(b"k", 25, local.unit(4)).is_allowed());
        let denied = local.decide(b"k", 1, local.unit(4));
        let wait = denied.retry_after().expect("it fits later");
        assert!(wait > Duration::from_secs(2) && wait <= Duration::from_millis(2_400), "{wait:?}");
    }

    #[test]
    fn a_node_admits_no_more_than_its_largest_share_while_the_number_of_nodes_changes() {
        let local = Local::new(Policy::fixed_window(quota("90/365d")), 10).expect("there is room");
        let mut admitted = 0;
        for nodes in [3, 2, 3, 5, 2, 9] {
            while local.decide(b"k", 1, local.unit(nodes)).is_allowed() {
                admitted += 1;
            }
        }
        assert!((30..=45).contains(&admitted), "{admitted} admitted");
    }

    #[test]
    fn the_default_number_of_keys_fits_for_any_policy() {
        let log = |text: &str| Policy::sliding_log(quota(text)).expect("the log is not too long");
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
}
