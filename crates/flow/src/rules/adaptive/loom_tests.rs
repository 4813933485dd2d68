//! Adaptive limits in every interleaving of two threads.

use loom::thread;

use super::*;

/// Raises the limit by one unit after each call.
struct Counting;

impl ConcurrencyLimit for Counting {
    fn start(&self) -> f64 {
        1.0
    }

    fn next(&mut self, limit: f64, _: &CallWindow) -> f64 {
        limit + 1.0
    }

    fn pace(&self) -> Pace {
        Pace {
            span: Duration::ZERO,
            calls: 1,
            ..Pace::default()
        }
    }
}

#[test]
fn two_calls_that_end_together_update_the_limit_at_least_once() {
    loom::model(|| {
        let algorithm = AdaptiveAlgorithm::Custom(Arc::new(|| Box::new(Counting)));
        let adaptive = Arc::new(Adaptive::new(AdaptiveRule::new("r", algorithm)));
        let learn = |adaptive: &Adaptive| {
            let call = CallSample {
                rt: Nanos::from_millis(10),
                in_flight: 1,
                failed: false,
            };
            adaptive.learn(Nanos::from_secs(1), &call);
        };
        let other = {
            let adaptive = adaptive.clone();
            thread::spawn(move || learn(&adaptive))
        };
        let seen = adaptive.units();
        learn(&adaptive);
        let after = adaptive.units();
        other.join().unwrap();
        assert!((1..=2).contains(&seen) && after >= seen);
        assert!((2..=3).contains(&adaptive.units()));
        assert!(
            adaptive.learning.try_lock().is_ok(),
            "no thread holds the lock"
        );
    });
}
