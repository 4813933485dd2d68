//! The arrival times of one source's requests, generated in order without storing them all.
//!
//! A source has an exact number of requests over the duration. The duration is halved again and
//! again, and at each halving a binomial draw divides the requests between the two halves. An
//! interval with few requests gets their times by uniform draws, sorted. The left half is finished
//! before the right one is started, so memory is one pending half per halving.
//!
//! * Halves with even chances give uniform times: exactly a Poisson process with a fixed number of
//!   requests.
//! * Halves with uneven chances, the likelier side chosen at random each time, give the b-model of
//!   Wang et al. (2002): bursts within bursts, as measured in web and disk traffic.

use std::{fmt, str::FromStr, time::Duration};

use rand_distr::{Binomial, Distribution};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};

use tidegate_core::Nanos;

/// The maximum number of requests in an interval that is drawn at once.
const DRAWN_AT_ONCE: u64 = 128;
/// The maximum number of requests to distribute one by one, which is faster than a draw from the
/// distribution of their sum.
const FEW: u64 = 16;
/// An interval this short or shorter has no bursts within it: a millisecond.
const SMOOTH: u64 = 1_000_000;

/// How the requests of a source are spread over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// The times of the requests are independent of each other.
    Poisson,
    /// Requests come in bursts, down to a millisecond.
    Bursty {
        /// The share of an interval's requests that falls into one half of it: above 0.5, below 1.
        bias: f64,
    },
}

impl Arrival {
    /// Bursts with the usual bias of web traffic, 0.75.
    pub const BURSTY: Self = Self::Bursty { bias: 0.75 };
}

impl FromStr for Arrival {
    type Err = ParseArrivalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            None if text == "poisson" => Ok(Self::Poisson),
            None if text == "bursty" => Ok(Self::BURSTY),
            Some(("bursty", bias)) => bias
                .parse()
                .ok()
                .filter(|bias| *bias > 0.5 && *bias < 1.0)
                .map(|bias| Self::Bursty { bias })
                .ok_or(ParseArrivalError::Bias),
            _ => Err(ParseArrivalError::Unknown),
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Bursty { bias } => write!(f, "bursty={bias}"),
        }
    }
}

/// Why a text is not an arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseArrivalError {
    /// The text is neither poisson nor bursty.
    #[error("choose poisson, bursty, or bursty with a bias as in bursty=0.8")]
    Unknown,
    /// The bias is not a number above 0.5 and below 1.
    #[error("the bias must be above 0.5 and below 1, as in bursty=0.8")]
    Bias,
}

/// An interval, and the number of requests in it.
#[derive(Clone, Copy, Debug)]
struct Interval {
    start: u64,
    length: u64,
    count: u64,
}

/// The times of one source's requests, in order.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    random: Xoshiro256PlusPlus,
    arrival: Arrival,
    /// Intervals that are still to come, the earliest last.
    pending: Vec<Interval>,
    /// Times that were drawn and not yet returned, the earliest last.
    drawn: Vec<u64>,
}

impl Arrivals {
    /// `count` requests in `[0, duration)`. Different seeds, even similar ones, give independent
    /// times.
    pub fn new(seed: u64, count: u64, duration: Duration, arrival: Arrival) -> Self {
        let length = Nanos::from(duration).get().max(1);
        let pending = vec![Interval {
            start: 0,
            length,
            count,
        }];
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            arrival,
            pending,
            drawn: Vec::new(),
        }
    }

    /// Draws the times of the next interval that is not empty; `false` if there is none.
    fn draw(&mut self) -> bool {
        while let Some(interval) = self.pending.pop() {
            // The chance that a request falls into the left half, if it does not follow from the
            // length alone.
            let bias = match self.arrival {
                Arrival::Bursty { bias } if interval.length > SMOOTH => Some(bias),
                _ => None,
            };
            let at_once = if bias.is_some() { 1 } else { DRAWN_AT_ONCE };
            if interval.count > at_once && interval.length > 1 {
                self.halve(interval, bias);
                continue;
            }
            let count = interval.count.min(DRAWN_AT_ONCE);
            if interval.count > count {
                self.pending.push(Interval {
                    count: interval.count - count,
                    ..interval
                });
            }
            let random = &mut self.random;
            self.drawn
                .extend((0..count).map(|_| interval.start + below(random, interval.length)));
            self.drawn.sort_unstable_by(|a, b| b.cmp(a));
            if count > 0 {
                return true;
            }
        }
        false
    }

    fn halve(&mut self, interval: Interval, bias: Option<f64>) {
        let half = interval.length / 2;
        let share = match bias {
            None => half as f64 / interval.length as f64,
            Some(bias) if self.random.next_u64() >> 63 == 0 => bias,
            Some(bias) => 1.0 - bias,
        };
        let left = binomial(&mut self.random, interval.count, share);
        let right = interval.count - left;
        self.pending.push(Interval {
            start: interval.start + half,
            length: interval.length - half,
            count: right,
        });
        self.pending.push(Interval {
            start: interval.start,
            length: half,
            count: left,
        });
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.drawn.is_empty() && !self.draw() {
            return None;
        }
        self.drawn.pop()
    }
}

/// A number below `bound`, uniform but for a bias below `bound / 2⁶⁴`.
fn below(random: &mut impl Rng, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// How many of `count` requests fall on a side that has this share of the chances.
pub(super) fn binomial(random: &mut Xoshiro256PlusPlus, count: u64, share: f64) -> u64 {
    if count <= FEW {
        // As many bits as a float holds exactly: a number from 0 up to, but not, 1.
        let mut chance = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        return (0..count).filter(|_| chance() < share).count() as u64;
    }
    // A share outside 0..=1 is NaN or off by rounding; with NaN, no request falls on the side.
    Binomial::new(count, share.clamp(0.0, 1.0)).map_or(0, |side| side.sample(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_dealt_by_the_same_law() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(11);
        for count in [1, 5, FEW, FEW + 1, 40] {
            for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
                let draws: Vec<f64> = (0..20_000)
                    .map(|_| binomial(&mut random, count, share) as f64)
                    .collect();
                let mean = draws.iter().sum::<f64>() / 20_000.0;
                let variance =
                    draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 20_000.0;
                let (expected, spread) =
                    (count as f64 * share, count as f64 * share * (1.0 - share));
                // Six standard deviations of the mean; the variance within a tenth.
                assert!(
                    (mean - expected).abs() <= 6.0 * (spread / 20_000.0).sqrt(),
                    "{count} × {share}: {mean}"
                );
                assert!(
                    (variance - spread).abs() <= 0.1 * spread,
                    "{count} × {share}: {variance}"
                );
            }
        }
    }

    #[test]
    fn many_requests_in_no_time_are_not_many_in_memory() {
        let mut crowd = Arrivals::new(3, 1_000_000_000, Duration::from_nanos(2), Arrival::Poisson);
        assert!(crowd.by_ref().take(1_000_000).all(|time| time < 2));
        assert!(crowd.drawn.len() + crowd.pending.len() < 200);
    }
}
