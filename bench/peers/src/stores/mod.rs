//! The keyed stores, each behind the same small face.

mod governor;
mod pingora;
mod rate_net;
mod throttlecrab;
mod tidegate;
mod trypema;

pub use self::governor::{BORROWED, Borrowed as GovernorBorrowed, OWNED, quota as governor_quota};
pub use self::rate_net::algorithm as rate_net_algorithm;
pub use self::tidegate::{NAME as TIDEGATE, open as tidegate_store, quota as tidegate_quota};
pub use self::trypema::NAME as TRYPEMA;

use self::rate_net::{RateNet, TscClock};

use crate::{quota::Quota, work::Algorithm};

/// A keyed limiter. A thread that asks often keeps a `Hand`, a buffer for the limiter's form of
/// keys.
pub trait Store: Send + Sync + 'static {
    /// A caller's buffer, if the limiter needs keys in another form.
    type Hand: Default;

    /// Asks for one; whether it was admitted.
    fn admit(&self, hand: &mut Self::Hand, key: &str) -> bool;

    /// The number of keys held now, if the limiter reports it.
    fn held(&self) -> Option<u64>;
}

/// A use of a store of any type.
pub trait Visit {
    type Out;

    fn visit(self, store: impl Store) -> Self::Out;
}

/// Who has a keyed store of this algorithm, and how it is used. The first is Tidegate.
pub const fn contestants(algorithm: Algorithm) -> &'static [(&'static str, &'static str)] {
    match algorithm {
        Algorithm::TokenBucket => &[
            (tidegate::NAME, "token bucket"),
            (OWNED, "String keys, DashMap"),
            (rate_net::NAME, "token bucket, check_bytes"),
            (
                rate_net::ON_TSC,
                "token bucket, check_bytes, Tidegate's clock",
            ),
            (pingora::NAME, "count-min sketch: approximate"),
            (throttlecrab::NAME, "periodic store behind a mutex"),
        ],
        Algorithm::SlidingWindow => &[
            (tidegate::NAME, "sliding window, strict, 10 slots"),
            (trypema::NAME, "absolute, 10 slots: may overshoot"),
            (rate_net::NAME, "sliding counter, check_bytes"),
        ],
        Algorithm::SlidingCounter => &[
            (tidegate::NAME, "sliding counter"),
            (rate_net::NAME, "sliding counter, check_bytes"),
            (
                rate_net::ON_TSC,
                "sliding counter, check_bytes, Tidegate's clock",
            ),
        ],
    }
}

/// Makes a store for up to `bound` keys, if it has a bound. `None` if it does not have the
/// algorithm.
pub fn open<V: Visit>(
    who: &str,
    algorithm: Algorithm,
    quota: Quota,
    bound: usize,
    visit: V,
) -> Option<V::Out> {
    Some(match who {
        tidegate::NAME => visit.visit(tidegate::open(algorithm, quota, bound)),
        rate_net::NAME => visit.visit(RateNet::open(algorithm, quota, bound)),
        rate_net::ON_TSC => visit.visit(RateNet::on(TscClock::new(), algorithm, quota, bound)),
        OWNED if algorithm == Algorithm::TokenBucket => visit.visit(governor::Owned::open(quota)),
        trypema::NAME if algorithm == Algorithm::SlidingWindow => visit.visit(trypema::open(quota)),
        pingora::NAME => visit.visit(pingora::open(quota)),
        throttlecrab::NAME => visit.visit(throttlecrab::open(quota, bound)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AskThrice;

    impl Visit for AskThrice {
        type Out = [bool; 3];

        fn visit(self, store: impl Store) -> [bool; 3] {
            let mut hand = Default::default();
            [0; 3].map(|_| store.admit(&mut hand, "alice"))
        }
    }

    #[test]
    fn everybody_means_the_same_by_a_quota() {
        let two_an_hour = Quota {
            limit: 2,
            per: std::time::Duration::from_hours(1),
        };
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::SlidingWindow,
            Algorithm::SlidingCounter,
        ] {
            for &(who, _) in contestants(algorithm) {
                let answers = open(who, algorithm, two_an_hour, 1_000, AskThrice);
                assert_eq!(answers, Some([true, true, false]), "{who}, {algorithm:?}");
            }
        }
    }
}
