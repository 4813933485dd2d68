//! What node and authority have agreed on, and the authority's part of it.

use std::fmt;

use crate::{Algorithm, Nanos, Policy};

use super::{Grant, Request};

/// How the nodes share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every decision is the authority's.
    Exact,
    /// A node decides in memory from units that it has taken from the shared state.
    Leased,
    /// A node decides in memory from units that it has seen to be free, and reports what it has used.
    Reported,
}

impl Mode {
    /// `exact`, `leased` or `reported`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Reported => "reported",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit with the way in which it is shared. All nodes, and the authority, must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    mode: Mode,
    shared: Policy,
    /// How long leased units may be kept; how long a report may wait.
    slack: Nanos,
    unreported: u32,
}

/// Of what is left, a piece taken ahead is at most this part: pieces shrink towards the limit, until each request is
/// decided by the authority.
const SHARE: u64 = 4;

impl Terms {
    /// How long a leased unit is kept at most, and a report waits, unless something else is asked for: 100 ms.
    pub const SLACK: Nanos = Nanos::from_millis(100);

    /// Every decision is the authority's.
    #[must_use]
    pub const fn exact(policy: Policy) -> Self {
        Self { mode: Mode::Exact, shared: policy, slack: Nanos::ZERO, unreported: 0 }
    }

    /// Never over: what all nodes together admit, `policy` asked at the same moments would admit, all of it.
    ///
    /// Units are kept for at most `slack`, which costs (see [`Policy::ahead`]): a sliding log stretched by the slack, of
    /// at most a sixteenth; a token bucket smaller by what refills in it, of at most a sixteenth; windows, slots and the
    /// sliding counter nothing. Where nothing can be taken ahead (leaky bucket, permits in flight, `count-denied`,
    /// buckets of less than 16) these terms are [`exact`](Self::exact). Where a round trip takes half the slack or more,
    /// nodes take nothing ahead.
    #[must_use]
    pub fn leased(policy: Policy, slack: Nanos) -> Self {
        match policy.ahead(slack) {
            Some((shared, slack)) if usable(slack) > Nanos::ZERO => {
                Self { mode: Mode::Leased, shared, slack, unreported: 0 }
            }
            _ => Self::exact(policy),
        }
    }

    /// Over by at most `unreported` for each node: no node ever has more than that used and not yet charged, what it may
    /// still use included. A report waits for at most `interval`.
    ///
    /// A node uses what it saw to be free, however long ago that was. Where an answer is more than a yes or a no
    /// (leaky bucket, permits in flight, `count-denied`), or where `unreported` is 0, these terms are
    /// [`exact`](Self::exact).
    #[must_use]
    pub fn reported(policy: Policy, unreported: u32, interval: Nanos) -> Self {
        // What cannot be taken ahead for a reason other than its size.
        let plain = !policy.counts_denied() && !matches!(policy.name(), "leaky-bucket" | "concurrency");
        if plain && unreported > 0 {
            Self { mode: Mode::Reported, shared: policy, slack: interval, unreported }
        } else {
            Self::exact(policy)
        }
    }

    /// What a node may have unreported where nobody has said: a twentieth of the limit, at least 1.
    #[must_use]
    pub fn default_unreported(policy: &Policy) -> u32 {
        (policy.limit() / 20).max(1)
    }

    /// The mode that came out: `Exact` where the policy admits of no other.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The policy that the shared state is for: the limit's own, but for leased sliding logs and token buckets.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.shared
    }

    /// The highest cost that can ever be admitted.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.limit()
    }

    /// How long leased units are kept at most, and a report waits.
    #[must_use]
    pub const fn slack(&self) -> Nanos {
        self.slack
    }

    /// By how much all nodes together may be over, for each node. 0 unless reported.
    #[must_use]
    pub const fn unreported(&self) -> u32 {
        self.unreported
    }

    /// The authority's part: one atomic step on the shared state, at the authority's time.
    ///
    /// Gives back, charges what was used, decides on the caller's cost; then takes (leased) or looks at (reported) what
    /// is wanted ahead.
    pub fn serve(&self, state: &mut [u64], now: Nanos, request: &Request) -> Grant {
        let policy = &self.shared;
        if let Some(back) = request.back {
            policy.give_back(state, now, back.taken, back.units);
        }
        if self.mode == Mode::Reported {
            if request.spent > 0 {
                policy.charge(state, now, request.spent);
            }
            let decision = policy.decide(state, now, request.cost);
            let free = policy.check(state, now, 0).remaining();
            let units = u32::try_from(free).unwrap_or(u32::MAX).min(request.ahead);
            return Grant { decision, units, usable_for: Nanos::MAX, now };
        }
        let usable_for = self.usable_for(policy.counted_alike_for(state, now));
        let units = self.units(policy.check(state, now, 0).remaining(), usable_for, request);
        // Together they fit, as `units` is at most what is left beyond the cost; 0 where the cost does not.
        let decision = policy.decide(state, now, request.cost.saturating_add(units));
        Grant { decision, units, usable_for, now }
    }

    /// Whether what is given back is worth less the longer it was held: then it is kept until its end, in case it is used.
    pub(super) fn refills(&self) -> bool {
        self.shared.name() == "token-bucket"
    }

    /// For how long units may be used (leased) that the shared state counts alike for this long. With
    /// [`units`](Self::units) it is what [`serve`](Self::serve) consists of, for an authority that has no state words.
    #[must_use]
    pub fn usable_for(&self, counted_alike: Nanos) -> Nanos {
        usable(self.slack.min(counted_alike))
    }

    /// How many units a request takes ahead (leased) where the shared state has `room`, what was given back included.
    #[must_use]
    pub fn units(&self, room: u64, usable_for: Nanos, request: &Request) -> u32 {
        if usable_for == Nanos::ZERO {
            return 0;
        }
        let beyond = room.saturating_sub(request.cost.into());
        u32::try_from(beyond / SHARE).unwrap_or(u32::MAX).min(request.ahead)
    }
}

/// What a node may rely on of a span on the authority's clock: clocks run apart by less than 1/1024 (they are kept within
/// 1/2000 by whoever sets them), and the authority's may count whole microseconds.
fn usable(span: Nanos) -> Nanos {
    let tick = 1_000;
    Nanos::new(span.get().saturating_sub(span.get() / 1_024 + tick))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_done_in_time_though_clocks_run_apart() {
        for span in [Nanos::from_micros(10), Nanos::from_millis(100), Nanos::from_secs(86_400)] {
            let used = usable(span).get();
            // The node's clock slow and the authority's fast by 1/2100 each, and a microsecond not yet shown.
            assert!(used + used / 1_050 + 999 < span.get(), "{span:?}");
            assert!(used >= span.get() - span.get() / 8, "and little is lost: {span:?}");
        }
        assert_eq!(usable(Nanos::new(900)), Nanos::ZERO);
    }

    #[test]
    fn what_cannot_be_shared_otherwise_is_exact() {
        let quota = crate::Quota::per_second(1_000);
        let (leaky, window) = (Policy::leaky_bucket(quota), Policy::sliding_window(quota));
        for policy in [leaky, Policy::concurrency(9), window.count_denied()] {
            assert_eq!(Terms::leased(policy, Terms::SLACK), Terms::exact(policy));
            assert_eq!(Terms::reported(policy, 9, Terms::SLACK), Terms::exact(policy));
        }
        assert_eq!(Terms::reported(window, 0, Terms::SLACK), Terms::exact(window));
        assert_eq!(Terms::leased(window, Nanos::ZERO), Terms::exact(window));
    }
}
