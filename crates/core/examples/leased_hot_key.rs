//! Measures a decision on a hot key from an allotment:
//! `cargo run --release -p tidegate-core --example leased_hot_key`.
//!
//! One lease, one thread and then two, an authority in the same process half a millisecond away is
//! not modelled: it answers at once. Each decision reads the time, as a caller would.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use tidegate_core::lease::{Answer, Lease, Terms};
use tidegate_core::{Algorithm, Nanos, Policy, Quota};

const DECISIONS: u32 = 20_000_000;

#[allow(clippy::disallowed_methods)] // A measurement is about the time that passes.
fn main() {
    let start = Instant::now();
    let now = || Nanos::from(start.elapsed());
    for (name, limit) in [("all admitted", 4_000_000_000), ("most denied", 100_000)] {
        let policy = Policy::sliding_window(Quota::per_second(limit));
        for terms in [
            Terms::leased(policy, Terms::SLACK),
            Terms::reported(policy, Terms::default_unreported(&policy), Terms::SLACK),
        ] {
            for threads in [1, 2] {
                let lease = Lease::new(terms);
                let shared = Mutex::new(vec![0; terms.policy().words()]);
                let work = || {
                    let mut admitted = 0_u64;
                    for _ in 0..DECISIONS {
                        let answer = lease.ask(1, now());
                        let mut decision = answer.decision();
                        if let Some(request) = answer.request() {
                            // A poisoned lock: the other thread has failed, and so does the
                            // measurement.
                            let mut state = shared.lock().expect("the other thread has not failed");
                            let grant = terms.serve(&mut state, now(), &request);
                            drop(state);
                            let granted = lease.granted(request, &grant, now());
                            if matches!(answer, Answer::Refill(_)) {
                                decision = Some(granted);
                            }
                        }
                        admitted +=
                            u64::from(decision.is_some_and(|decision| decision.is_allowed()));
                    }
                    admitted
                };
                let begun = Instant::now();
                let admitted: u64 = thread::scope(|scope| {
                    let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                    threads
                        .into_iter()
                        .filter_map(|thread| thread.join().ok())
                        .sum()
                });
                let took = begun.elapsed();
                let each = took / DECISIONS;
                let rate = f64::from(DECISIONS) / took.as_secs_f64() / 1e6;
                println!(
                    "{:8} {name:12} {threads} threads: {each:?} a decision, {rate:.1} million a second and thread, \
                     {admitted} admitted in {:.2?}",
                    terms.mode().name(),
                    Duration::from_millis(took.as_millis() as u64),
                );
            }
        }
    }
}
