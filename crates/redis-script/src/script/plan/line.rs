//! Lines of requests that wait, under keys next to those of the limit.

use tidegate_core::{Algorithm, Decision, Nanos, Priority};

use super::{Plan, ValueLayout, block::key_beside, numbers};
use crate::{
    StoreError,
    script::call::{Before, Found},
};

/// The letter of a line in `joint.lua`, and in place of a shape in its key.
const LETTER: &str = "q";
/// How long tickets stay without a call of their server, which is how long a server that dies
/// holds up the others.
const TICKETS_STAY: Nanos = Nanos::from_secs(5);
/// The maximum number of steps with which a time is computed exactly. A step takes as much as the
/// limit admits at once.
const STEPS: u32 = 64;

/// The tickets in a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSeen {
    pub tickets: u64,
    /// The cost of all of them, or of those in front of the request's place. Of more than 64 in
    /// front, while there are others behind, that of the first 64.
    pub cost: u64,
}

impl Plan {
    /// The same plan for a limit with a line. Only a joint decision knows it.
    #[must_use]
    pub fn with_line(self) -> Self {
        Self {
            has_line: true,
            ..self
        }
    }

    /// Whether requests can wait in line for this limit.
    #[must_use]
    pub const fn has_line(&self) -> bool {
        self.has_line
    }

    /// Whether only a joint decision knows everything about this limit's keys.
    #[doc(hidden)]
    pub const fn is_joint(&self) -> bool {
        self.has_line || self.penalty.is_some() || self.has_shares()
    }

    /// The same plan for a request that joins the line now: what it is told counts only those in
    /// front of its place.
    #[must_use]
    pub fn joining(&self, priority: Priority) -> Self {
        Self {
            joins: Some(priority),
            ..self.clone()
        }
    }

    /// The numbers of `line.lua`.
    #[doc(hidden)]
    pub fn line_numbers(joins: Option<Priority>) -> Vec<u8> {
        // From 1, because a number that is left out is 0.
        let joins = joins.map_or(0, |priority| u64::from(priority.level()) + 1);
        let [stay, step] = [TICKETS_STAY, Priority::STEP].map(|span| span.get() / 1_000);
        numbers::pack(&[stay, step, joins])
    }

    /// The arguments of what is next to the limit at this index of a joint decision, from 0: its
    /// block, its line, and its shares.
    #[doc(hidden)]
    pub fn arguments_beside(&self, at: usize) -> impl Iterator<Item = [Vec<u8>; 3]> {
        let line = || {
            let index = (at + 1).to_string().into_bytes();
            [LETTER.into(), Self::line_numbers(self.joins), index]
        };
        let line = self.has_line.then(line);
        let block = self.block_arguments(at).into_iter();
        block.chain(line).chain(self.share_arguments(at))
    }

    /// The keys of the same.
    #[doc(hidden)]
    pub fn keys_beside(&self, whole: &[u8], is_cluster: bool) -> impl Iterator<Item = Vec<u8>> {
        let line = self.has_line.then(|| Self::line_key(whole, is_cluster));
        let block = self.block_key(whole, is_cluster).into_iter();
        let shares = self.share_keys(whole, is_cluster);
        block.chain(line).chain(shares.into_iter().flatten())
    }

    /// The key of the line at a limit's key.
    #[doc(hidden)]
    pub fn line_key(whole: &[u8], is_cluster: bool) -> Vec<u8> {
        key_beside(whole, is_cluster, LETTER)
    }

    /// The same decision for a request behind those that wait.
    pub(super) fn behind_line(
        &self,
        made: Decision,
        found: &Found,
        now: Nanos,
        cost: u64,
    ) -> Decision {
        let line = found.line.unwrap_or_default();
        if line.tickets == 0 || cost == 0 || made.exceeds_limit() {
            return made;
        }
        let total = line.cost.saturating_add(cost);
        let wait = self.wait_of(found.value.as_deref(), now, total);
        let own = made.retry_after().map_or(0, |wait| Nanos::from(wait).get());
        let wait = wait.map_or(0, Nanos::get).max(own).max(1);
        let denied = Decision::deny(made.standing(), wait);
        made.reason()
            .map_or(denied, |reason| denied.because(reason))
    }

    /// The time until units with this cost in total have all been admitted, as many as the limit
    /// admits at once in each step; later ones are estimated after 64 steps. `None` for logs and
    /// permits, whose reply has the time of one cost.
    #[doc(hidden)]
    #[must_use]
    pub fn wait_of(&self, value: Option<&[u8]>, now: Nanos, total: u64) -> Option<Nanos> {
        if matches!(self.layout, ValueLayout::Log { .. }) {
            return None;
        }
        let mut state = self.state(value)?;
        let (mut at, mut left, mut delay) = (now, total, 0);
        for _ in 0..STEPS {
            let part = left.min(self.policy.limit());
            let seen = self.policy.peek(&state, at, part);
            if let Some(wait) = seen.retry_after() {
                at = at.saturating_add(Nanos::from(wait).max(Nanos::new(1)));
                continue;
            }
            if seen.is_denied() {
                return None;
            }
            delay = Nanos::from(seen.delay()).get();
            self.policy.record(&mut state, at, part);
            left -= part;
            if left == 0 {
                break;
            }
        }
        let waited = at.saturating_since(now).get().saturating_add(delay);
        let scaled = u128::from(waited) * u128::from(total) / u128::from((total - left).max(1));
        Some(Nanos::new(u64::try_from(scaled).unwrap_or(u64::MAX)))
    }
}

/// The tickets in a line's part of a reply.
pub fn seen(value: Before) -> Result<LineSeen, StoreError> {
    let Some(value) = value? else {
        return Ok(LineSeen::default());
    };
    let numbers: Option<(&[u8; 8], &[u8; 8])> = value
        .split_first_chunk()
        .and_then(|(tickets, cost)| Some((tickets, cost.try_into().ok()?)));
    let (tickets, cost) = numbers.ok_or(StoreError::BadReply)?;
    Ok(LineSeen {
        tickets: u64::from_le_bytes(*tickets),
        cost: u64::from_le_bytes(*cost),
    })
}
