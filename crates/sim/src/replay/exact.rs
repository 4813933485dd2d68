//! Exact counts in a sliding window.

use std::collections::VecDeque;

use super::key_state::Owed;

/// The times in the half-open window that ends now: `t` is in it while `now − t < window`.
///
/// Memory is two words per distinct time in the window.
#[derive(Clone, Debug)]
pub(crate) struct RecentTimes {
    window: u64,
    times: VecDeque<(u64, u64)>,
    sum: u64,
}

impl RecentTimes {
    pub fn new(window: u64) -> Self {
        Self {
            window,
            times: VecDeque::new(),
            sum: 0,
        }
    }

    /// The sum of the costs in the window that ends at `now`. Times that are passed in must not
    /// decrease.
    #[inline]
    pub fn count(&mut self, now: u64) -> u64 {
        while let Some(&(time, cost)) = self.times.front()
            && now - time >= self.window
        {
            self.times.pop_front();
            self.sum -= cost;
        }
        self.sum
    }

    /// Adds a cost at `now`. Returns the sum with it.
    #[inline]
    pub fn add(&mut self, now: u64, cost: u64) -> u64 {
        self.sum = self.count(now) + cost;
        match self.times.back_mut() {
            Some((time, sum)) if *time == now => *sum += cost,
            _ => self.times.push_back((now, cost)),
        }
        self.sum
    }

    pub fn clear(&mut self) {
        self.times.clear();
        self.sum = 0;
    }
}

/// The reference for every algorithm: a log of its admissions that admits what fits the limit next
/// to those in the window. It shares no code with the algorithms, so that a fault in theirs shows.
#[derive(Clone, Debug)]
pub(super) struct ExactLog {
    limit: u64,
    admitted: RecentTimes,
    owed: Owed,
}

impl ExactLog {
    pub fn new(limit: u64, window: u64) -> Self {
        Self {
            limit,
            admitted: RecentTimes::new(window),
            owed: Owed::default(),
        }
    }

    /// Admits a request at `now`, whose cost is charged at `end`, unless more than the limit is
    /// charged.
    pub fn admits_and_charges(&mut self, now: u64, end: u64, cost: u64) -> bool {
        let Self {
            limit,
            admitted,
            owed,
        } = self;
        owed.due(now, |time, cost| {
            admitted.add(time, cost);
        });
        let fits = admitted.count(now) <= *limit;
        if fits {
            owed.push(end, cost);
        }
        fits
    }

    #[inline]
    pub fn admits(&mut self, now: u64, cost: u64) -> bool {
        let fits = self.admitted.count(now) + cost <= self.limit;
        if fits {
            self.admitted.add(now, cost);
        }
        fits
    }

    pub fn clear(&mut self) {
        self.admitted.clear();
        self.owed.clear();
    }
}
