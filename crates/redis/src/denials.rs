//! Remembered denials: until the wait is over, the store would deny the same request again, unless
//! something changed there: a refund at another node, a reset, a clock that was wrong. So a denial
//! is remembered for a second at most.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};
use tidegate_core::{Decision, DenialReason, Nanos, Standing};

use crate::sync::lock;

/// The number of slots. If two denials hash to the same slot, the later one replaces the earlier.
const SLOTS: usize = 1 << 13;

const LONGEST: Nanos = Nanos::from_secs(1);

/// A bounded set of denials, each for one key and one cost.
pub struct RememberedDenials {
    slots: Box<[Mutex<Option<Denial>>]>,
    /// When the last of them ends. Before the first and after the last, lookups skip the slots.
    last: AtomicU64,
    secrets: RapidSecrets,
    /// The longest time that a denial is remembered.
    longest: Nanos,
}

#[derive(Clone, Copy)]
struct Denial {
    tag: u64,
    cost: u64,
    limit: u64,
    remaining: u64,
    reason: DenialReason,
    /// When it is forgotten.
    ends: Nanos,
    until: Nanos,
    reset: Nanos,
}

impl RememberedDenials {
    pub fn new(seed: u64) -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            last: AtomicU64::new(0),
            secrets: RapidSecrets::seed(seed),
            longest: LONGEST,
        }
    }

    /// A key's hash. Two keys collide with a probability of 2⁻⁶⁴.
    pub fn tag(&self, key: &[u8]) -> u64 {
        rapidhash_v3_micro_inline::<true, true>(key, &self.secrets)
    }

    fn slot(&self, tag: u64) -> MutexGuard<'_, Option<Denial>> {
        lock(&self.slots[tag as usize % SLOTS])
    }

    /// The denial in force for this cost, with the room as it was at the denial; for other costs
    /// the store must be asked.
    pub fn get(&self, tag: u64, cost: u64, now: Nanos) -> Option<Decision> {
        if !self.may_hold_any(now) {
            return None;
        }
        let denial = (*self.slot(tag)).filter(|denial| denial.tag == tag && denial.cost == cost)?;
        (denial.ends > now).then(|| {
            let Denial {
                limit,
                remaining: room,
                reason,
                until,
                reset,
                ..
            } = denial;
            let left = |time: Nanos| time.saturating_since(now).get();
            let standing = Standing {
                limit,
                room,
                unit: 1,
                reset_after: left(reset),
            };
            Decision::deny(standing, left(until)).because(reason)
        })
    }

    /// Whether any denial may still hold.
    pub fn may_hold_any(&self, now: Nanos) -> bool {
        // Relaxed: a denial that is missed costs only a round trip.
        self.last.load(Ordering::Relaxed) > now.get()
    }

    /// Forgets the denial of a key that got a refund.
    pub fn forget(&self, tag: u64) {
        let mut slot = self.slot(tag);
        if slot.is_some_and(|denial| denial.tag == tag) {
            *slot = None;
        }
    }

    /// Remembers a denial. `asked` is when the request was sent: the denial may be older than its
    /// arrival, but never older than that.
    pub fn put(&self, tag: u64, cost: u64, decision: &Decision, asked: Nanos) {
        let (Some(wait), Some(reason)) = (decision.retry_after(), decision.reason()) else {
            return;
        };
        let until = asked.saturating_add(wait.into());
        let reset = asked.saturating_add(decision.reset_after().into());
        let ends = until.min(asked.saturating_add(self.longest));
        self.last.fetch_max(ends.get(), Ordering::Relaxed);
        *self.slot(tag) = Some(Denial {
            tag,
            cost,
            limit: decision.limit(),
            remaining: decision.remaining(),
            reason,
            ends,
            until,
            reset,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(100);
    const HOUR: u64 = Nanos::from_secs(3_600).get();

    fn after(nanos: u64) -> Nanos {
        NOW.saturating_add(Nanos::new(nanos))
    }

    fn denied(room: u64, reset_after: u64, wait: u64) -> Decision {
        Decision::deny(
            Standing {
                limit: 5,
                room,
                unit: 1,
                reset_after,
            },
            wait,
        )
    }

    #[test]
    fn a_denial_applies_to_its_cost_until_its_wait_is_over() {
        let denials = RememberedDenials::new(7);
        let (alice, bob) = (denials.tag(b"alice"), denials.tag(b"bob"));
        denials.put(alice, 2, &denied(1, 9_000, 1_000), NOW);
        let later = after(400);
        assert_eq!(denials.get(alice, 2, later), Some(denied(1, 8_600, 600)));
        assert!(denials.get(alice, 1, later).is_none() && denials.get(bob, 2, later).is_none());
        assert!(denials.get(alice, 2, after(1_000)).is_none());
        denials.forget(bob);
        assert!(denials.get(alice, 2, later).is_some());
        denials.forget(alice);
        assert!(denials.get(alice, 2, later).is_none());
    }

    #[test]
    fn a_denial_is_remembered_for_a_second_at_most_and_says_the_whole_wait() {
        let denials = RememberedDenials::new(7);
        denials.put(1, 1, &denied(0, HOUR, HOUR), NOW);
        let left = HOUR - 999_999_999;
        assert_eq!(
            denials.get(1, 1, after(999_999_999)),
            Some(denied(0, left, left))
        );
        let end = after(1_000_000_000);
        assert!(denials.get(1, 1, end).is_none() && !denials.may_hold_any(end));
    }

    #[test]
    fn a_cost_that_can_never_fit_is_not_remembered() {
        let denials = RememberedDenials::new(7);
        denials.put(
            1,
            9,
            &Decision::deny_for_good(denied(1, 0, 0).standing()),
            NOW,
        );
        assert!(denials.get(1, 9, NOW).is_none());
    }

    /// A part of the protocol that the model can leave out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Guard {
        /// A denial is remembered for a second at most.
        Longest,
        /// The second counts from when the request was sent: what came to the store after that is
        /// not in the denial.
        Sent,
        /// A refund by this node forgets the denial.
        Forgets,
    }

    /// A model of a key that is used up until refunds: this node asks, another node and this one
    /// refund, replies take their time, in every sequence of `depth` steps. Whether this node asks
    /// the store a second after the latest refund, or at once after its own.
    fn asks_in_time(depth: u32, without: Option<Guard>) -> bool {
        const STEP: Nanos = Nanos::from_millis(400);
        let mut denials = RememberedDenials::new(7);
        if without == Some(Guard::Longest) {
            denials.longest = Nanos::MAX;
        }
        (0..5_u32.pow(depth)).all(|mut steps| {
            denials.forget(1);
            let mut now = NOW;
            // When the request in flight was sent, and whether the store denied it.
            let (mut asked, mut other, mut own) = (None, None, false);
            for _ in 0..depth {
                match steps % 5 {
                    0 if asked.is_none() && denials.get(1, 1, now).is_none() => {
                        asked = Some((now, other.is_none() && !own));
                    }
                    1 => {
                        if let Some((sent, true)) = asked.take() {
                            // The reply may be older than a refund by this node.
                            let sent = if without == Some(Guard::Sent) {
                                now
                            } else {
                                sent
                            };
                            denials.put(1, 1, &denied(0, HOUR, HOUR), sent);
                        }
                    }
                    2 if other.is_none() => other = Some(now),
                    3 if asked.is_none() && !own => {
                        own = true;
                        if without != Some(Guard::Forgets) {
                            denials.forget(1);
                        }
                    }
                    4 => now = now.saturating_add(STEP),
                    _ => {}
                }
                steps /= 5;
            }
            let late = other.is_some_and(|refunded| now >= refunded.saturating_add(LONGEST));
            !(late || own) || denials.get(1, 1, now).is_none()
        })
    }

    #[test]
    fn a_refund_anywhere_is_noticed_within_a_second_in_any_order_of_messages() {
        assert!(asks_in_time(7, None));
        for without in [Guard::Longest, Guard::Sent, Guard::Forgets] {
            assert!(!asks_in_time(7, Some(without)), "{without:?}");
        }
    }
}
