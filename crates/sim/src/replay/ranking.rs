//! The most denied of any number of keys, in bounded memory.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// A key that was denied, and the number of denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    /// The key's number in the workload.
    pub key: u32,
    /// The number of its requests.
    pub requests: u64,
    /// The number of denials by each algorithm, in the order of the trial's candidates.
    pub denied: Vec<u64>,
}

impl DeniedKey {
    /// By the most denials of any algorithm, then by requests, then by the lower number.
    fn rank(&self) -> (u64, u64, Reverse<u32>) {
        (
            self.denied.iter().copied().max().unwrap_or(0),
            self.requests,
            Reverse(self.key),
        )
    }
}

impl Ord for DeniedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for DeniedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The keys that rank highest.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranking {
    /// The lowest on top.
    kept: BinaryHeap<Reverse<DeniedKey>>,
}

impl Ranking {
    /// The number of keys that are kept.
    const KEPT: usize = 20;

    pub fn offer(&mut self, candidate: DeniedKey) {
        if self.kept.len() == Self::KEPT {
            if self.kept.peek().is_some_and(|lowest| candidate <= lowest.0) {
                return;
            }
            self.kept.pop();
        }
        self.kept.push(Reverse(candidate));
    }

    pub fn absorb(&mut self, other: Self) {
        other
            .kept
            .into_iter()
            .for_each(|Reverse(key)| self.offer(key));
    }

    /// The highest first.
    pub fn finish(self) -> Vec<DeniedKey> {
        self.kept
            .into_sorted_vec()
            .into_iter()
            .map(|Reverse(key)| key)
            .collect()
    }
}
