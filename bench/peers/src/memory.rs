//! Resident bytes a key, in a process that does nothing else.

use crate::{
    figure::Memory,
    keys::Counting,
    quota::Quota,
    stores::{self, Store, Visit},
    system,
    work::Algorithm,
};

/// Bounds are multiples of this: a little above the number of keys, as an operator would set it who
/// knows the number.
const BOUND_STEP: u64 = 1 << 20;

/// Who owns its keys, and so has a figure.
pub const fn contestants(algorithm: Algorithm) -> &'static [(&'static str, &'static str)] {
    match algorithm {
        Algorithm::SlidingWindow | Algorithm::SlidingCounter => &[
            ("tidegate", "sliding counter"),
            ("rate-net", "sliding counter"),
            ("trypema", "absolute, 10 slots"),
        ],
        Algorithm::TokenBucket => &[
            ("tidegate", "token bucket"),
            (stores::OWNED, "String keys, DashMap, no bound"),
            ("rate-net", "token bucket"),
            ("throttlecrab", "periodic store, no bound"),
        ],
    }
}

/// The bound of a store for `keys`.
pub const fn bound(keys: u64) -> u64 {
    keys.next_multiple_of(BOUND_STEP)
}

/// Fills a store with `keys` keys, each asked for once.
pub fn measure(who: &str, algorithm: Algorithm, keys: u64) -> Result<Memory, String> {
    // trypema has but one algorithm; what is measured of it is its memory.
    let algorithm = if who == stores::TRYPEMA {
        Algorithm::SlidingWindow
    } else {
        algorithm
    };
    let before = system::resident().map_err(|e| e.to_string())?;
    let max_keys = bound(keys);
    stores::open(
        who,
        algorithm,
        Quota::LASTING,
        max_keys as usize,
        Fill {
            before,
            keys,
            max_keys,
        },
    )
    .ok_or_else(|| format!("{who} has no {}", algorithm.name()))?
    .map_err(|e| e.to_string())
}

struct Fill {
    before: u64,
    keys: u64,
    max_keys: u64,
}

impl Visit for Fill {
    type Out = std::io::Result<Memory>;

    fn visit(self, store: impl Store) -> Self::Out {
        let Self {
            before,
            keys,
            max_keys,
        } = self;
        let (mut hand, mut counting) = (Default::default(), Counting::new("user"));
        for _ in 0..keys {
            store.admit(&mut hand, counting.next());
        }
        let resident_bytes = system::resident()?.saturating_sub(before);
        let bytes_per_key = resident_bytes as f64 / keys as f64;
        Ok(Memory {
            bytes_per_key,
            keys,
            max_keys,
            held: store.held(),
            resident_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_next_multiple_of_a_mebi() {
        assert_eq!(
            (bound(1_000_000), bound(10_000_000)),
            (1_048_576, 10_485_760)
        );
    }

    #[test]
    fn the_store_holds_the_keys_that_are_counted() {
        let memory = measure("tidegate", Algorithm::TokenBucket, 200_000).unwrap();
        assert_eq!((memory.keys, memory.held), (200_000, Some(200_000)));
    }

    #[test]
    fn every_contestant_has_a_figure() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingCounter] {
            for (who, _) in contestants(algorithm) {
                assert!(measure(who, algorithm, 100).is_ok(), "{who}");
            }
        }
    }
}
