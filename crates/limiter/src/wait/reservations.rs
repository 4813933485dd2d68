//! A leaky bucket's reservations: when each piece of delayed work starts.
//!
//! ```text
//!   now        │◄ held ►│◄  free  ►│◄ held ►│            free: given up by somebody who waited
//! ───┼─────────┼────────┼──────────┼────────┼──────►  time
//!                                          TAT: the end of the queue, which the state holds
//! ```
//!
//! The state knows only the end of the queue. So a reservation that is given up in the middle is kept here, and goes to the next
//! who comes and whom it fits. Times are in ticks, parts of a nanosecond, so that no rate is rounded.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, Decision, Nanos, Parameters, Policy};

/// A span in which one admission starts, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    start: u128,
    end: u128,
    /// Reservations of before a change of policy name nothing any more.
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
    /// From the start to the end. Neighbours are one.
    free: BTreeMap<u128, u128>,
    /// Those of tickets that wait out their delay.
    held: BTreeMap<u128, u128>,
    /// When the last reservation is over that was held when the policy changed.
    kept_until: Nanos,
}

impl Rate {
    fn of(policy: &Policy) -> Option<Self> {
        match policy.parameters() {
            Parameters::LeakyBucket { step, parts, max_wait, .. } => Some(Self {
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

    /// The end of the queue. A state is the time in nanoseconds, and where the interval is no whole number of them the
    /// ticks beyond.
    fn end(self, state: &[u64]) -> u128 {
        let beyond = if self.parts == 1 { 0 } else { u128::from(state[1]) };
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

    /// When the last of these reservations is over, and of those that were held when the policy changed.
    fn last_of(&self, reservations: &BTreeMap<u128, u128>) -> Option<Nanos> {
        let last = reservations
            .last_key_value()
            .zip(self.rate)
            .map(|((_, end), rate)| Nanos::new(u64::try_from(end.div_ceil(rate.parts)).unwrap_or(u64::MAX)));
        last.max((self.kept_until > Nanos::ZERO).then_some(self.kept_until))
    }

    /// Until when the free reservations, and those of before a change of policy, must be remembered.
    pub fn last_free(&self) -> Option<Nanos> {
        self.last_of(&self.free)
    }

    /// Forgets reservations that are over. Where the policy has changed, free reservations are lost, and those that are held end
    /// when they did: whoever comes under a leaky bucket, this one or another, starts after them.
    pub fn refresh(&mut self, policy: &Policy, state: &mut [u64], now: Nanos) {
        if self.rate.is_none() && self.is_empty() {
            return;
        }
        let rate = Rate::of(policy);
        if self.rate != rate {
            let kept_until = self.last_of(&self.held).unwrap_or_default();
            *self = Self { rate, era: self.era + 1, kept_until, ..Self::default() };
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

    /// What the answer to `cost` is where a free reservation is wide enough for it, and which span of which reservation that is.
    fn find_free(&self, policy: &Policy, state: &[u64], now: Nanos, cost: u32) -> Option<(Decision, Span)> {
        let rate = self.rate.filter(|_| !self.free.is_empty() && cost > 0 && cost <= policy.limit())?;
        let (now_ticks, width) = (rate.ticks(now), u128::from(cost) * rate.step);
        let span = self.free.iter().find_map(|(&start, &end)| {
            let from = start.max(now_ticks);
            let fits = from + width <= end && from - now_ticks <= rate.max_wait;
            fits.then_some(Span { start, from, to: from + width, end })
        })?;
        let look = policy.check(state, now, 0);
        let delay = (span.from - now_ticks).div_ceil(rate.parts) as u64;
        let decision =
            Decision::delayed(policy.limit(), delay, look.remaining(), 1, look.reset_after_nanos());
        Some((decision, span))
    }

    /// What the answer to `cost` is where there is a free reservation for it.
    pub fn check_free(&self, policy: &Policy, state: &[u64], now: Nanos, cost: u32) -> Option<Decision> {
        Some(self.find_free(policy, state, now, cost)?.0)
    }

    /// Takes the first free reservation that is wide enough for `cost`; returns the decision and the start in ticks.
    pub fn take_free(
        &mut self,
        policy: &Policy,
        state: &[u64],
        now: Nanos,
        cost: u32,
    ) -> Option<(Decision, u128)> {
        let (decision, Span { start, from, to, end }) = self.find_free(policy, state, now, cost)?;
        self.free.remove(&start);
        if start < from {
            self.free.insert(start, from);
        }
        if to < end {
            self.free.insert(to, end);
        }
        Some((decision, from))
    }

    /// Keeps a reservation for somebody who waits for its start.
    pub fn hold(&mut self, policy: &Policy, start: u128, cost: u32) -> Option<Reservation> {
        let rate = Rate::of(policy)?;
        self.rate = Some(rate);
        let reservation = Reservation { start, end: start + u128::from(cost) * rate.step, era: self.era };
        self.held.insert(reservation.start, reservation.end);
        Some(reservation)
    }

    /// Where in a leaky bucket's queue the next one starts.
    pub fn next_start(policy: &Policy, state: &[u64], now: Nanos) -> Option<u128> {
        let rate = Rate::of(policy)?;
        Some(rate.end(state).max(rate.ticks(now)))
    }

    /// Forgets reservations that are over.
    pub fn expire(&mut self, now: Nanos) {
        if self.kept_until <= now {
            self.kept_until = Nanos::ZERO;
        }
        let Some(rate) = self.rate else { return };
        while let Some(first) = self.free.first_entry().filter(|first| *first.get() <= rate.ticks(now)) {
            first.remove();
        }
    }

    /// The work of this reservation starts now.
    pub fn started(&mut self, reservation: Reservation) {
        if reservation.era == self.era {
            self.held.remove(&reservation.start);
        }
    }

    /// Gives a reservation up. One of before a change of policy is lost.
    pub fn give_up(&mut self, state: &mut [u64], now: Nanos, reservation: Reservation) {
        let Some(rate) = self.rate.filter(|_| reservation.era == self.era) else { return };
        self.held.remove(&reservation.start);
        let (mut start, mut end) = (reservation.start.max(rate.ticks(now)), reservation.end);
        if start >= end {
            return;
        }
        if let Some((&before, _)) =
            self.free.range(..start).next_back().filter(|(_, gap_end)| **gap_end == start)
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

    /// Gives back what was taken last, but no reservation that somebody waits for.
    pub fn refund(&mut self, policy: &Policy, state: &mut [u64], now: Nanos, cost: u32) {
        let before = self.rate.map(|rate| rate.end(state));
        policy.refund(state, now, cost);
        let (Some(rate), Some(before)) = (self.rate, before) else { return };
        let kept = self.held.values().next_back().copied().unwrap_or(0).max(rate.ticks(self.kept_until));
        if rate.end(state) < kept {
            rate.set_end(state, kept.min(before));
        }
        // Free reservations beyond the new end are part of what comes after it.
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
