//! The deadlines of those who ask a store: the shortest says how long a sign of life may take.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use crate::{
    Store,
    store::{DEADLINE, lock},
};

/// A sign of life may take as long as the shortest of the deadlines, as long as that is between these; the longest where there
/// is none.
const PATIENCE: std::ops::RangeInclusive<Duration> = DEADLINE..=Duration::from_secs(1);

/// How many have which deadline.
#[derive(Default)]
pub struct Deadlines(Mutex<BTreeMap<Duration, usize>>);

impl Deadlines {
    /// How long a sign of life may take: no longer than a decision, or callers would wait for a store that is too slow.
    pub fn patience(&self) -> Duration {
        let shortest = lock(&self.0).first_key_value().map(|(&deadline, _)| deadline);
        shortest.unwrap_or(*PATIENCE.end()).clamp(*PATIENCE.start(), *PATIENCE.end())
    }
}

/// A deadline that counts for as long as it is kept.
pub struct Deadline {
    store: Store,
    deadline: Duration,
}

impl Deadline {
    pub fn new(store: &Store, deadline: Duration) -> Self {
        *lock(&store.inner().deadlines.0).entry(deadline).or_default() += 1;
        Self { store: store.clone(), deadline }
    }

    pub const fn get(&self) -> Duration {
        self.deadline
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let mut deadlines = lock(&self.store.inner().deadlines.0);
        if let Some(count) = deadlines.get_mut(&self.deadline) {
            *count -= 1;
            if *count == 0 {
                deadlines.remove(&self.deadline);
            }
        }
    }
}
