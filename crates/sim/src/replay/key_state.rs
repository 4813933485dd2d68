//! A policy with the state of one key, used for one key after another.

use std::{cmp::Reverse, collections::BinaryHeap};

use tidegate_core::{Algorithm, Decision, Nanos, Policy};

/// The number of words above which a state (a sliding log of a high limit) is cleared only as far
/// as a key can have touched it.
const LARGE: usize = 4_096;

#[derive(Clone, Debug)]
pub(crate) struct KeyState {
    policy: Policy,
    words: Vec<u64>,
}

impl KeyState {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            words: vec![0; policy.words()],
        }
    }

    #[inline]
    pub fn decide(&mut self, time: u64, cost: u64) -> Decision {
        self.policy.decide(&mut self.words, Nanos::new(time), cost)
    }

    pub fn charge(&mut self, time: u64, cost: u64) {
        self.policy.charge(&mut self.words, Nanos::new(time), cost);
    }

    /// Whether the state has recovered completely.
    pub fn is_recovered(&self, now: Nanos) -> bool {
        self.policy.is_recovered(&self.words, now)
    }

    /// The state's words, for a caller that decides in another way.
    pub fn words(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Resets the state after a key whose requests cost this much together.
    pub fn clear(&mut self, cost: u64) {
        let words = self.words.len();
        // Only a log is that large. Its entries fill the words in order from the first one, one
        // entry for each unit.
        let touched = usize::try_from(cost)
            .unwrap_or(words)
            .saturating_add(1)
            .min(words);
        self.words[..if words > LARGE { touched } else { words }].fill(0);
        // A block by the rule is in the last words.
        let own = self.policy.units_of(&self.words).len();
        self.words[own..].fill(0);
        debug_assert!(
            self.words.iter().all(|&word| word == 0),
            "a key begins with a fresh state"
        );
    }
}

/// The costs of admitted requests that are not charged yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owed(BinaryHeap<Reverse<(u64, u64)>>);

impl Owed {
    /// Adds a cost that is charged at a time.
    pub fn push(&mut self, time: u64, cost: u64) {
        self.0.push(Reverse((time, cost)));
    }

    /// Passes on what is charged until `now`, in order of time.
    #[inline]
    pub fn due(&mut self, now: u64, mut charge: impl FnMut(u64, u64)) {
        while let Some(&Reverse((time, cost))) = self.0.peek()
            && time <= now
        {
            self.0.pop();
            charge(time, cost);
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
