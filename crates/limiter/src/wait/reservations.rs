//! A leaky bucket's reservations: when each unit of delayed work starts.
//!
//! ```text
//!   now        │◄ held ►│◄  free  ►│◄ held ►│            free: given up by a waiter that was dropped
//! ───┼─────────┼────────┼──────────┼────────┼──────►  time
//!                                          TAT: the end of the queue, which the state holds
//! ```
//!
//! The state contains only the end of the queue. So a reservation that is given up in the middle is
//! kept here, and goes to the next request that it fits. Times are in ticks, fractions of a
//! nanosecond, so that no rate is rounded.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, Decision, Estimate, Nanos, Parameters, Policy};

use super::{Ground, ticket::Admitted};

/// A span in which one admission starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    start: u128,
    end: u128,
    /// Reservations from before a change of policy are no longer valid.
    era: u64,
}

/// The numbers of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    step: u128,
    parts: u128,
    max_wait: u128,
}

/// Part of a free reservation.
struct Span {
    start: u128,
    from: u128,
    to: u128,
    end: u128,
}

/// The reservations of one key.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    rate: Option<Rate>,
    era: u64,
    /// From the start to the end. Adjacent ones are merged.
    free: BTreeMap<u128, u128>,
    /// The reservations of tickets that wait for their delay.
    held: BTreeMap<u128, u128>,
    /// When the last of the reservations ends that were held at a change of policy.
    kept_until: Nanos,
}

impl Rate {
    fn of(policy: &Policy) -> Option<Self> {
        match policy.parameters() {
            Parameters::LeakyBucket {
                step,
                parts,
                max_wait,
                ..
            } => Some(Self {
                step: step.into(),
                parts: parts.into(),
                max_wait: u128::from(max_wait) * u128::from(parts),
            }),
            _ => None,
        }
    }

    fn ticks(self, time: Nanos) -> u128 {
        u128::from(time.get()) * self.parts
    }

    /// The end of the queue. A state is the time in nanoseconds, and if the interval is not a whole
    /// number of them, the remaining ticks.
    fn end(self, state: &[u64]) -> u128 {
        let beyond = if self.parts == 1 {
            0
        } else {
            u128::from(state[1])
        };
        u128::from(state[0]) * self.parts + beyond
    }

    fn set_end(self, state: &mut [u64], end: u128) {
        state[0] = (end / self.parts) as u64;
        if self.parts > 1 {
            state[1] = (end % self.parts) as u64;
        }
    }
}

impl Reservations {
    pub fn is_empty(&self) -> bool {
        self.free.is_empty() && self.held.is_empty() && self.kept_until == Nanos::ZERO
    }

    /// When the last of these reservations ends, and of those that were held at a change of policy.
    fn last_of(&self, reservations: &BTreeMap<u128, u128>) -> Option<Nanos> {
        let last = reservations
            .last_key_value()
            .zip(self.rate)
            .map(|((_, end), rate)| {
                Nanos::new(u64::try_from(end.div_ceil(rate.parts)).unwrap_or(u64::MAX))
            });
        last.max((self.kept_until > Nanos::ZERO).then_some(self.kept_until))
    }

    /// The time until which the free reservations, and those from before a change of policy, must
    /// be remembered.
    pub fn last_free(&self) -> Option<Nanos> {
        self.last_of(&self.free)
    }

    /// Drops reservations that are over. After a change of policy, free reservations are lost, and
    /// held ones end when they did before: under a leaky bucket, the same or another, later
    /// requests start after them.
    pub fn refresh(&mut self, policy: &Policy, state: &mut [u64], now: Nanos) {
        if self.rate.is_none() && self.is_empty() {
            return;
        }
        let rate = Rate::of(policy);
        if self.rate != rate {
            let kept_until = self.last_of(&self.held).unwrap_or_default();
            *self = Self {
                rate,
                era: self.era + 1,
                kept_until,
                ..Self::default()
            };
        }
        self.expire(now);
        if let (Some(rate), Some(last)) = (rate, self.held.values().next_back()) {
            // A change there and back, or a reset, may have shortened the queue.
            rate.set_end(state, rate.end(state).max(*last));
        }
        if let Some(rate) = rate {
            rate.set_end(state, rate.end(state).max(rate.ticks(self.kept_until)));
        }
    }

    /// The decision on `cost` if a free reservation is wide enough for it, and the part of the
    /// reservation that it uses.
    fn find_free(
        &self,
        policy: &Policy,
        state: &[u64],
        now: Nanos,
        cost: u64,
    ) -> Option<(Decision, Span)> {
        let rate = self
            .rate
            .filter(|_| !self.free.is_empty() && cost > 0 && cost <= policy.limit())
            .filter(|_| policy.blocked_until(state) <= now)?;
        let (now_ticks, width) = (rate.ticks(now), u128::from(cost) * rate.step);
        let span = self.free.iter().find_map(|(&start, &end)| {
            let from = start.max(now_ticks);
            let fits = from + width <= end && from - now_ticks <= rate.max_wait;
            fits.then_some(Span {
                start,
                from,
                to: from + width,
                end,
            })
        })?;
        let look = policy.peek(state, now, 0);
        let delay = (span.from - now_ticks).div_ceil(rate.parts) as u64;
        let decision = Decision::delayed(look.standing(), delay);
        Some((decision, span))
    }

    /// The decision on `cost` if there is a free reservation for it.
    pub fn check_free(
        &self,
        policy: &Policy,
        state: &[u64],
        now: Nanos,
        cost: u64,
    ) -> Option<Decision> {
        Some(self.find_free(policy, state, now, cost)?.0)
    }

    /// Takes the first free reservation that is wide enough for `cost`; returns the decision and
    /// the start in ticks.
    pub fn take_free(
        &mut self,
        policy: &Policy,
        state: &[u64],
        now: Nanos,
        cost: u64,
    ) -> Option<(Decision, u128)> {
        let (
            decision,
            Span {
                start,
                from,
                to,
                end,
            },
        ) = self.find_free(policy, state, now, cost)?;
        self.free.remove(&start);
        if start < from {
            self.free.insert(start, from);
        }
        if to < end {
            self.free.insert(to, end);
        }
        Some((decision, from))
    }

    /// Keeps a reservation for a waiter until its start.
    pub fn hold(&mut self, policy: &Policy, start: u128, cost: u64) -> Option<Reservation> {
        let rate = Rate::of(policy)?;
        self.rate = Some(rate);
        let reservation = Reservation {
            start,
            end: start + u128::from(cost) * rate.step,
            era: self.era,
        };
        self.held.insert(reservation.start, reservation.end);
        Some(reservation)
    }

    /// The time at which the next work in a leaky bucket's queue starts.
    pub fn next_start(policy: &Policy, state: &[u64], now: Nanos) -> Option<u128> {
        let rate = Rate::of(policy)?;
        Some(rate.end(state).max(rate.ticks(now)))
    }

    /// Drops reservations that are over.
    pub fn expire(&mut self, now: Nanos) {
        if self.kept_until <= now {
            self.kept_until = Nanos::ZERO;
        }
        let Some(rate) = self.rate else { return };
        while let Some(first) = self
            .free
            .first_entry()
            .filter(|first| *first.get() <= rate.ticks(now))
        {
            first.remove();
        }
    }

    /// Records that the work of this reservation starts now.
    pub fn started(&mut self, reservation: Reservation) {
        if reservation.era == self.era {
            self.held.remove(&reservation.start);
        }
    }

    /// Gives up a reservation. One from before a change of policy is lost.
    pub fn give_up(&mut self, state: &mut [u64], now: Nanos, reservation: Reservation) {
        let Some(rate) = self.rate.filter(|_| reservation.era == self.era) else {
            return;
        };
        self.held.remove(&reservation.start);
        let (mut start, mut end) = (reservation.start.max(rate.ticks(now)), reservation.end);
        if start >= end {
            return;
        }
        if let Some((&before, _)) = self
            .free
            .range(..start)
            .next_back()
            .filter(|(_, gap_end)| **gap_end == start)
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(gap_end) = self.free.remove(&end) {
            end = gap_end;
        }
        if end == rate.end(state) {
            rate.set_end(state, start);
        } else {
            self.free.insert(start, end);
        }
    }

    /// Returns what was taken last, but no reservation that a waiter holds.
    pub fn refund(&mut self, policy: &Policy, state: &mut [u64], now: Nanos, cost: u64) {
        let before = self.rate.map(|rate| rate.end(state));
        policy.refund(state, now, cost);
        let (Some(rate), Some(before)) = (self.rate, before) else {
            return;
        };
        let kept = self
            .held
            .values()
            .next_back()
            .copied()
            .unwrap_or(0)
            .max(rate.ticks(self.kept_until));
        if rate.end(state) < kept {
            rate.set_end(state, kept.min(before));
        }
        // Free reservations after the new end belong to the rest of the queue.
        while let Some(last) = self.free.last_entry() {
            let end = rate.end(state);
            let (start, gap_end) = (*last.key(), *last.get());
            if gap_end < end {
                break;
            }
            last.remove();
            rate.set_end(state, start.min(end));
        }
    }
}

/// The estimate of a leaky bucket's units in the middle of its queue: they are not the latest ones,
/// so none returns.
pub(super) const fn in_the_queue(estimate: Estimate) -> Estimate {
    Estimate {
        place: !estimate.place,
        ..estimate
    }
}

/// Takes `cost` if it is admitted now.
pub(super) fn take(
    reservations: &mut Reservations,
    ground: &mut Ground<'_>,
    cost: u64,
) -> Result<Admitted, Decision> {
    let Ground { policy, now, .. } = *ground;
    let (decision, start_ticks, estimate) =
        if let Some((decision, from)) = reservations.take_free(policy, ground.state, now, cost) {
            (decision, Some(from), in_the_queue(ground.note(cost)))
        } else {
            let from = Reservations::next_start(policy, ground.state, now);
            let decision = policy.peek(ground.state, now, cost);
            if decision.is_denied() {
                return Err(decision);
            }
            policy.record(ground.state, now, cost);
            (decision, from, ground.note(cost))
        };
    let start = now.saturating_add(decision.delay().into());
    let reservation = start_ticks
        .filter(|_| start > now)
        .and_then(|from| reservations.hold(policy, from, cost));
    Ok(Admitted {
        decision,
        estimate,
        start,
        reservation,
    })
}
