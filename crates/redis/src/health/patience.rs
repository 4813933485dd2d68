//! The deadlines of the limits of a store: the shortest says how long a heartbeat may take.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a decision may take unless a limit says otherwise.
pub const USUAL: Duration = Duration::from_millis(50);

/// A heartbeat may take as long as the shortest of the deadlines, as long as that is between these; the longest where there
/// is none.
const BOUNDS: std::ops::RangeInclusive<Duration> = USUAL..=Duration::from_secs(1);

/// How many limits have which deadline.
#[derive(Clone, Default)]
pub struct Patience(Arc<Mutex<BTreeMap<Duration, usize>>>);

impl Patience {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Duration, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shortest of the deadlines.
    pub fn shortest(&self) -> Option<Duration> {
        self.lock().first_key_value().map(|(&deadline, _)| deadline)
    }

    /// How long a heartbeat may take: no longer than a decision, or callers would wait for a store that is too slow.
    pub fn get(&self) -> Duration {
        self.shortest().unwrap_or(*BOUNDS.end()).clamp(*BOUNDS.start(), *BOUNDS.end())
    }

    /// A deadline that counts for as long as the claim is kept.
    pub fn claim(&self, deadline: Duration) -> Claim {
        *self.lock().entry(deadline).or_default() += 1;
        Claim { patience: self.clone(), deadline }
    }
}

/// One limit's deadline.
pub struct Claim {
    patience: Patience,
    deadline: Duration,
}

impl Claim {
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut deadlines = self.patience.lock();
        if let Some(count) = deadlines.get_mut(&self.deadline) {
            *count -= 1;
            if *count == 0 {
                deadlines.remove(&self.deadline);
            }
        }
    }
}
