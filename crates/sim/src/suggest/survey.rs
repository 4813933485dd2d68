//! How many requests arrive in a window: of each key in its busiest window, and in all windows.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    time::Duration,
};

use tidegate_core::{Quota, QuotaError};

use super::{
    pass::Allowance,
    sieve::{Bin, Binning},
};
use crate::{progress::Progress, replay::on_threads, workload::Workload};

/// Requests counted in windows that are aligned to the clock.
#[derive(Clone, Debug)]
pub struct Survey {
    window: Duration,
    /// For each number of requests, how many windows had it.
    windows: BTreeMap<u64, u64>,
    /// For each number of requests, how many keys had it in their busiest window.
    busiest: BTreeMap<u64, u64>,
    /// The requests of keys that have many, in parts of a window.
    bins: HashMap<u32, Box<[Bin]>>,
}

impl Survey {
    /// Counts every request once.
    ///
    /// # Errors
    /// If the window is not valid for a quota.
    pub fn new<W: Workload>(
        workload: &W,
        window: Duration,
        threads: NonZeroUsize,
        progress: &Progress,
    ) -> Result<Self, QuotaError> {
        let length = Quota::new(1, window)?.window_nanos();
        let fresh = || Self {
            window,
            windows: BTreeMap::new(),
            busiest: BTreeMap::new(),
            bins: HashMap::new(),
        };
        let key = |survey: &mut Self, key: u32| {
            let (mut end, mut count, mut busiest, mut requests) = (0, 0_u64, 0, 0_u64);
            let mut binning = Binning::new(length);
            for time in workload.times(key) {
                binning.request(time);
                if time >= end {
                    survey.add_window(count);
                    busiest = busiest.max(count);
                    end = (time - time % length).saturating_add(length);
                    count = 0;
                }
                count += 1;
                requests += 1;
            }
            survey.add_window(count);
            if requests > 0 {
                *survey.busiest.entry(busiest.max(count)).or_default() += 1;
            }
            if let Some(bins) = binning.finish(requests).filter(|bins| !bins.is_empty()) {
                survey.bins.insert(key, bins);
            }
            progress.add(requests);
        };
        let add = |sum: &mut Self, other: Self| {
            for (into, from) in [
                (&mut sum.windows, other.windows),
                (&mut sum.busiest, other.busiest),
            ] {
                for (count, times) in from {
                    *into.entry(count).or_default() += times;
                }
            }
            sum.bins.extend(other.bins);
        };
        Ok(on_threads(workload.keys(), threads, fresh, key, add))
    }

    fn add_window(&mut self, count: u64) {
        if count > 0 {
            *self.windows.entry(count).or_default() += 1;
        }
    }

    /// The requests of a key in parts of a window, if it has many.
    pub(super) fn bins(&self, key: u32) -> Option<&[Bin]> {
        self.bins.get(&key).map(|bins| &**bins)
    }

    /// The window.
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// The number of keys with requests.
    pub fn keys(&self) -> u64 {
        self.busiest.values().sum()
    }

    /// The number of requests that `of` keys in a thousand do not exceed in their busiest window:
    /// 500 gives the median key, 1,000 the busiest. 0 without keys.
    pub fn busiest_window(&self, of: u64) -> u64 {
        let rank = (u128::from(self.keys()) * u128::from(of.min(1_000))).div_ceil(1_000) as u64;
        let mut seen = 0;
        for (&count, &keys) in &self.busiest {
            seen += keys;
            if seen >= rank {
                return count;
            }
        }
        0
    }

    /// The smallest limit with which a fixed window denies no more than allowed; 0 if that limit
    /// already does.
    pub(super) fn fixed_window_limit(&self, allowance: Allowance) -> u64 {
        let (mut low, mut high) = (0, self.busiest.keys().next_back().copied().unwrap_or(0));
        while low < high {
            let middle = low + (high - low) / 2;
            let above = |counts: &BTreeMap<u64, u64>| -> Vec<(u64, u64)> {
                counts
                    .range(middle + 1..)
                    .map(|(&count, &times)| (count, times))
                    .collect()
            };
            let denied: u64 = above(&self.windows)
                .iter()
                .map(|(count, times)| (count - middle) * times)
                .sum();
            let denied_keys: u64 = above(&self.busiest).iter().map(|(_, keys)| keys).sum();
            if allowance.covers(super::Denials {
                denied,
                denied_keys,
            }) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }
}
