//! The terms that a node and the authority share, and the authority's part of the protocol.

use std::{fmt, time::Duration};

use crate::{Algorithm, Nanos, Policy};

use super::{Grant, Request};

/// How nodes share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The authority makes every decision in one atomic step. This is exact and costs a round trip.
    #[default]
    Exact,
    /// A node decides in memory from units that it has taken from the shared state. The limit is
    /// never over, but some requests are denied while other nodes hold what is left.
    Leased,
    /// A node decides in memory from units that it has seen to be free, and reports what it uses in
    /// the background. The limit is over by at most the unreported units of each node.
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

    /// The mode in force for a policy and a slack (the default if `None`): [`Exact`](Self::Exact)
    /// if the policy allows no other (see [`Terms`]).
    #[must_use]
    pub fn for_policy(self, policy: impl Into<Policy>, slack: Option<Duration>) -> Self {
        Terms::of(
            self,
            policy.into(),
            slack.map_or(Terms::SLACK, Nanos::from),
            None,
        )
        .mode
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit and the mode in which nodes share it. All nodes and the authority must use the same
/// terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    mode: Mode,
    shared: Policy,
    /// The policy that decides on costs for which the shared one is too small.
    whole: Option<Policy>,
    /// The maximum time for which leased units are kept, and for which a report waits.
    slack: Nanos,
    unreported: u32,
}

/// An allotment is at most this part of what is left: allotments shrink towards the limit until the
/// authority decides each request.
const SHARE: u64 = 4;

impl Terms {
    /// The default slack, 100 ms: the maximum time for which a leased unit is kept, and for which a
    /// report waits.
    pub const SLACK: Nanos = Nanos::from_millis(100);

    /// The terms of a mode: [`exact`](Self::exact), [`leased`](Self::leased), or
    /// [`reported`](Self::reported) with [`default_unreported`](Self::default_unreported) if
    /// `unreported` is `None`.
    #[must_use]
    pub fn of(mode: Mode, policy: Policy, slack: Nanos, unreported: Option<u32>) -> Self {
        match mode {
            Mode::Exact => Self::exact(policy),
            Mode::Leased => Self::leased(policy, slack),
            Mode::Reported => {
                let unreported = unreported.unwrap_or_else(|| Self::default_unreported(&policy));
                Self::reported(policy, unreported, slack)
            }
        }
    }

    /// The authority makes every decision.
    #[must_use]
    pub const fn exact(policy: Policy) -> Self {
        Self {
            mode: Mode::Exact,
            shared: policy,
            whole: None,
            slack: Nanos::ZERO,
            unreported: 0,
        }
    }

    /// Never over: `policy`, asked at the same moments, would admit everything that all nodes
    /// together admit.
    ///
    /// Units are kept for at most `slack`. This has a cost (see [`Policy::ahead`]): a sliding log
    /// is stretched by the slack, by at most a sixteenth; a token bucket is smaller by what refills
    /// in the slack, by at most a sixteenth; windows, slots and the sliding counter lose nothing.
    /// The authority admits a cost that only the full bucket can hold if it would fit even though
    /// all units that were taken before are used a slack later. If nothing can be taken ahead (leaky bucket, permits in flight, `count-denied`, buckets of
    /// less than 16), the terms are [`exact`](Self::exact). If a round trip takes half the slack or
    /// more, nodes take nothing ahead.
    #[must_use]
    pub fn leased(policy: Policy, slack: Nanos) -> Self {
        match policy.ahead(slack) {
            Some((shared, slack)) if usable(slack) > Nanos::ZERO => Self {
                mode: Mode::Leased,
                shared,
                whole: (shared.limit() < policy.limit()).then_some(policy),
                slack,
                unreported: 0,
            },
            _ => Self::exact(policy),
        }
    }

    /// Over by at most `unreported` per node: no node ever has more units that are used and not yet
    /// charged, including those that it may still use. A report waits for at most `interval`.
    ///
    /// A node uses the units that it saw to be free, however long ago that was. The terms are
    /// [`exact`](Self::exact) if an answer is more than a yes or a no (leaky bucket, permits in
    /// flight, `count-denied`, `block-for`, `oversize-wait`), or if `unreported` is 0.
    #[must_use]
    pub fn reported(policy: Policy, unreported: u32, interval: Nanos) -> Self {
        // The algorithms that cannot take units ahead for a reason other than their size.
        let plain = !policy.counts_denied()
            && policy.penalty().is_none()
            && !policy.waits_for_oversize()
            && !matches!(policy.name(), "leaky-bucket" | "concurrency");
        if plain && unreported > 0 {
            Self {
                mode: Mode::Reported,
                shared: policy,
                whole: None,
                slack: interval,
                unreported,
            }
        } else {
            Self::exact(policy)
        }
    }

    /// The default for `unreported`: a twentieth of the limit, at least 1 and at most
    /// 4,294,967,295.
    #[must_use]
    pub fn default_unreported(policy: &Policy) -> u32 {
        u32::try_from((policy.limit() / 20).max(1)).unwrap_or(u32::MAX)
    }

    /// These terms for an authority that decides in another way on costs for which the shared
    /// policy is too small. To [`serve`](Self::serve), they never fit.
    #[must_use]
    pub const fn without_large_costs(self) -> Self {
        Self {
            whole: None,
            ..self
        }
    }

    /// The effective mode: `Exact` if the policy supports no other.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The policy of the shared state: the limit's own policy, except for leased sliding logs and
    /// token buckets.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.shared
    }

    /// The limit of the shared state's policy: higher costs cannot be decided by a node.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.limit()
    }

    /// The highest cost that can ever be admitted.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.whole.unwrap_or(self.shared).limit()
    }

    /// The maximum time for which leased units are kept, and for which a report waits.
    #[must_use]
    pub const fn slack(&self) -> Nanos {
        self.slack
    }

    /// The number of units per node by which all nodes together may exceed the limit. 0 unless
    /// reported.
    #[must_use]
    pub const fn unreported(&self) -> u32 {
        self.unreported
    }

    /// The authority's part: one atomic step on the shared state, at the authority's time.
    ///
    /// It takes back the units that the node returns, charges those that it used, and decides on
    /// the caller's cost. Then it takes (leased) or looks up (reported) the units that are wanted
    /// ahead.
    pub fn serve(&self, state: &mut [u64], now: Nanos, request: &Request) -> Grant {
        let policy = &self.shared;
        if let Some(back) = request.back {
            policy.give_back(state, now, back.taken, back.units.into());
        }
        if self.mode == Mode::Reported {
            if request.spent > 0 {
                policy.charge(state, now, request.spent.into());
            }
            let decision = policy.decide(state, now, request.cost);
            let free = policy.peek(state, now, 0).remaining();
            let units = u32::try_from(free).unwrap_or(u32::MAX).min(request.ahead);
            return Grant {
                decision,
                units,
                usable_for: Nanos::MAX,
                now,
            };
        }
        if let Some(whole) = self.whole.filter(|_| request.cost > self.limit()) {
            let decision = whole.peek(state, now.saturating_since(self.slack), request.cost);
            if decision.is_allowed() {
                whole.record(state, now, request.cost);
            }
            return Grant {
                decision,
                units: 0,
                usable_for: Nanos::ZERO,
                now,
            };
        }
        let usable_for = self.usable_for(policy.counted_alike_for(state, now));
        let units = self.units(policy.peek(state, now, 0).remaining(), usable_for, request);
        // Together they fit, because `units` is at most what is left beyond the cost; it is 0 if
        // the cost does not fit.
        let decision = policy.decide(state, now, request.cost.saturating_add(units.into()));
        Grant {
            decision,
            units,
            usable_for,
            now,
        }
    }

    /// Whether returned units lose value the longer they were held. Such units are kept until they
    /// expire, in case they are used.
    pub(super) fn refills(&self) -> bool {
        self.shared.name() == "token-bucket"
    }

    /// How long units may be used (leased) if the shared state counts them alike for this long.
    /// [`serve`](Self::serve) consists of this and [`units`](Self::units); an authority without
    /// state words can call both.
    #[must_use]
    pub fn usable_for(&self, counted_alike: Nanos) -> Nanos {
        usable(self.slack.min(counted_alike))
    }

    /// How many units a request takes ahead (leased) if the shared state has `room`, including what
    /// was given back.
    #[must_use]
    pub fn units(&self, room: u64, usable_for: Nanos, request: &Request) -> u32 {
        if usable_for == Nanos::ZERO {
            return 0;
        }
        let beyond = room.saturating_sub(request.cost);
        u32::try_from(beyond / SHARE)
            .unwrap_or(u32::MAX)
            .min(request.ahead)
    }
}

/// The part of a span on the authority's clock that a node may rely on: the clocks differ in speed
/// by less than 1/1024 (clock synchronization keeps them within 1/2000), and the authority's may
/// count whole microseconds.
fn usable(span: Nanos) -> Nanos {
    let tick = 1_000;
    Nanos::new(span.get().saturating_sub(span.get() / 1_024 + tick))
}
