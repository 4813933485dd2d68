//! Synthetic traffic: sources whose popularity follows Zipf's law.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
use tidegate_core::{MAX_WINDOW, Nanos};

use super::{
    Workload,
    arrivals::{Arrival, Arrivals, binomial},
};

/// The parameters of synthetic traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The number of sources: 1 to 100,000,000.
    pub sources: u32,
    /// The exact number of requests of all sources together: 1 to 1,000,000,000,000.
    pub requests: u64,
    /// The time over which the requests are spread: above zero, at most 366 days.
    pub duration: Duration,
    /// The Zipf exponent, 0 to 10: the source of rank `r` has a share in proportion to `1 / rˢ`.
    /// With 0 all are equal.
    pub zipf: f64,
    /// How each source's requests are spread over the duration.
    pub arrival: Arrival,
    /// The same seed gives the same traffic, however many threads replay it.
    pub seed: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            sources: 10_000,
            requests: 1_000_000,
            duration: Duration::from_hours(1),
            zipf: 1.0,
            arrival: Arrival::Poisson,
            seed: 1,
        }
    }
}

/// Traffic with one key per source. It is generated during the replay; only one number per source
/// is stored.
#[derive(Clone, Debug)]
pub struct Synthetic {
    traffic: Traffic,
    /// The number of requests of each source.
    counts: Vec<u64>,
}

impl Synthetic {
    /// Distributes the requests over the sources with a multinomial draw: a source's requests vary
    /// like those of a Poisson process, and their sum is exact.
    ///
    /// # Errors
    /// If a number is out of its bounds (see [`Traffic`]).
    pub fn new(traffic: Traffic) -> Result<Self, SyntheticError> {
        if !(1..=100_000_000).contains(&traffic.sources) {
            return Err(SyntheticError::Sources);
        }
        if !(1..=1_000_000_000_000).contains(&traffic.requests) {
            return Err(SyntheticError::Requests);
        }
        if traffic.duration.is_zero() || traffic.duration > MAX_WINDOW {
            return Err(SyntheticError::Duration);
        }
        if !(0.0..=10.0).contains(&traffic.zipf) {
            return Err(SyntheticError::Zipf);
        }
        Ok(Self {
            traffic,
            counts: deal(&traffic),
        })
    }

    /// The same traffic with one key for all sources.
    pub const fn global(&self) -> GlobalSynthetic<'_> {
        GlobalSynthetic(self)
    }

    fn arrivals(&self, source: usize) -> Arrivals {
        let Traffic {
            seed,
            duration,
            arrival,
            ..
        } = self.traffic;
        Arrivals::new(
            stream(seed, source as u64 + 1),
            self.counts[source],
            duration,
            arrival,
        )
    }
}

/// The number of requests of each source: a binomial draw from the requests left, with the source's
/// share of the chances left.
fn deal(traffic: &Traffic) -> Vec<u64> {
    let weight = |source: u32| (f64::from(source) + 1.0).powf(-traffic.zipf);
    // Sums from each source to the last, added up from the smallest.
    let mut tails = vec![0.0; traffic.sources as usize];
    let mut tail = 0.0;
    for source in (0..traffic.sources).rev() {
        tail += weight(source);
        tails[source as usize] = tail;
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(stream(traffic.seed, 0));
    let mut left = traffic.requests;
    let mut counts: Vec<u64> = (0..traffic.sources)
        .map(|source| {
            let count = binomial(&mut random, left, weight(source) / tails[source as usize]);
            left -= count;
            count
        })
        .collect();
    // The last source's share is 1 up to rounding.
    counts[traffic.sources as usize - 1] += left;
    counts
}

/// Neighbouring numbers end up far apart: the finaliser of `SplitMix64`.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The seed of one of many independent streams.
fn stream(seed: u64, number: u64) -> u64 {
    mix(seed ^ mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

impl Workload for Synthetic {
    fn keys(&self) -> u32 {
        self.traffic.sources
    }

    fn requests(&self) -> u64 {
        self.traffic.requests
    }

    fn span(&self) -> (u64, u64) {
        (0, Nanos::from(self.traffic.duration).get())
    }

    fn has_dates(&self) -> bool {
        false
    }

    fn label(&self, key: u32) -> String {
        format!("source {}", u64::from(key) + 1)
    }

    fn times(&self, key: u32) -> impl Iterator<Item = u64> {
        self.arrivals(key as usize)
    }
}

/// Synthetic traffic as one key.
///
/// The sum of Poisson processes is a Poisson process, so it is generated directly. The sum of
/// bursty sources is not one bursty source, so these are merged, at about a kilobyte of memory
/// each.
#[derive(Clone, Copy, Debug)]
pub struct GlobalSynthetic<'a>(&'a Synthetic);

impl Workload for GlobalSynthetic<'_> {
    fn keys(&self) -> u32 {
        1
    }

    fn requests(&self) -> u64 {
        self.0.requests()
    }

    fn span(&self) -> (u64, u64) {
        self.0.span()
    }

    fn has_dates(&self) -> bool {
        false
    }

    fn label(&self, _key: u32) -> String {
        "everything".to_owned()
    }

    fn times(&self, _key: u32) -> impl Iterator<Item = u64> {
        let Traffic {
            seed,
            requests,
            duration,
            arrival,
            sources,
            ..
        } = self.0.traffic;
        match arrival {
            Arrival::Poisson => Merged::new(vec![Arrivals::new(
                stream(seed, 1),
                requests,
                duration,
                arrival,
            )]),
            Arrival::Bursty { .. } => Merged::new(
                (0..sources as usize)
                    .map(|source| self.0.arrivals(source))
                    .collect(),
            ),
        }
    }
}

/// The requests of many sources in one order of time.
struct Merged {
    sources: Vec<Arrivals>,
    /// The next request of each source that has one.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Merged {
    fn new(mut sources: Vec<Arrivals>) -> Self {
        let first =
            |(number, source): (usize, &mut Arrivals)| Some(Reverse((source.next()?, number)));
        let next = sources.iter_mut().enumerate().filter_map(first).collect();
        Self { sources, next }
    }
}

impl Iterator for Merged {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let mut top = self.next.peek_mut()?;
        let Reverse((time, source)) = *top;
        match self.sources[source].next() {
            Some(following) => *top = Reverse((following, source)),
            None => drop(std::collections::binary_heap::PeekMut::pop(top)),
        }
        Some(time)
    }
}

/// Why the traffic cannot be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// The number of sources is out of bounds.
    #[error("--sources must be from 1 to 100000000")]
    Sources,
    /// The number of requests is out of bounds.
    #[error("--requests must be from 1 to 1000000000000")]
    Requests,
    /// The duration is out of bounds.
    #[error("--duration must be longer than nothing and at most 366 days, as in 1h or 10m")]
    Duration,
    /// The exponent is out of bounds.
    #[error("--zipf must be from 0 (all sources alike) to 10")]
    Zipf,
}
