//! Keys, and the order in which they are asked for.

/// Every 64-bit number once, in an order that looks random (`SplitMix64`).
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, evenly to within n / 2⁶⁴.
    pub const fn below(&mut self, n: usize) -> usize {
        ((self.next() as u128 * n as u128) >> 64) as usize
    }

    /// At least 0, below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

const DIGITS: usize = 10;

/// Keys `kind:0000000000`, `kind:0000000001` and so on, written in place: making one allocates
/// nothing.
pub struct Counting {
    text: Vec<u8>,
    begun: bool,
}

impl Counting {
    pub fn new(kind: &str) -> Self {
        Self {
            text: format!("{kind}:{:0DIGITS$}", 0).into_bytes(),
            begun: false,
        }
    }

    /// The key of the next number; after the last one, the first again.
    pub fn next(&mut self) -> &str {
        if self.begun {
            for digit in self.text.iter_mut().rev().take(DIGITS) {
                if *digit < b'9' {
                    *digit += 1;
                    break;
                }
                *digit = b'0';
            }
        }
        self.begun = true;
        str::from_utf8(&self.text).expect("a string and ASCII digits")
    }
}

/// A million users and the requests that they make.
pub struct Trace {
    /// Every key once, in random order: to load a store with.
    pub keys: Vec<&'static str>,
    /// The requests: keys drawn by Zipf's law with exponent 1.
    pub requests: Vec<&'static str>,
}

impl Trace {
    /// The same for the same numbers. The keys are allocated one by one and live until the process
    /// ends; which of them are popular has nothing to do with where they lie.
    pub fn zipf(keys: usize, requests: usize) -> Self {
        let mut random = Random::new(1);
        let mut counting = Counting::new("user");
        let mut keys: Vec<&'static str> = (0..keys)
            .map(|_| &*Box::leak(String::from(counting.next()).into_boxed_str()))
            .collect();
        for at in (1..keys.len()).rev() {
            keys.swap(at, random.below(at + 1));
        }
        // The key at rank r (from 1) is asked for 1/r as often as the first.
        let mut sum = 0.0;
        let cumulative: Vec<f64> = (1..=keys.len())
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        let draw = |_| {
            let at = random.unit() * sum;
            keys[cumulative
                .partition_point(|&below| below <= at)
                .min(keys.len() - 1)]
        };
        let requests = (0..requests).map(draw).collect();
        // The loading order is a third one, so that it favours no limiter.
        for at in (1..keys.len()).rev() {
            keys.swap(at, random.below(at + 1));
        }
        Self { keys, requests }
    }
}

impl Trace {
    /// Of ten requests nine are for one of eight keys, the others for any.
    pub fn hot(keys: usize, requests: usize) -> Self {
        let mut trace = Self::zipf(keys, 0);
        let mut random = Random::new(2);
        let draw = |_| {
            let among = if random.below(10) < 9 { HOT } else { keys };
            trace.keys[random.below(among)]
        };
        trace.requests = (0..requests).map(draw).collect();
        trace
    }
}

/// How many keys are hot.
const HOT: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn keys_count_up() {
        let mut keys = Counting::new("made");
        assert_eq!(keys.next(), "made:0000000000");
        assert_eq!(
            (1..13).map(|_| keys.next().to_owned()).last().as_deref(),
            Some("made:0000000012")
        );
    }

    #[test]
    fn the_second_key_is_asked_for_half_as_often_as_the_first() {
        let trace = Trace::zipf(1_000, 200_000);
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for key in &trace.requests {
            *counts.entry(key).or_default() += 1;
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // 1/H(1000) = 0.1336 of 200,000.
        assert!((26_000..27_500).contains(&counts[0]), "{}", counts[0]);
        assert!((13_000..13_800).contains(&counts[1]), "{}", counts[1]);
    }

    #[test]
    fn every_key_is_there_to_load() {
        let trace = Trace::zipf(1_000, 1);
        let mut keys = trace.keys;
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1_000);
    }
}
