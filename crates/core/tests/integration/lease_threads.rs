//! Threads on one lease, with an authority in the same process: nothing is spent twice, nothing is
//! lost.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tidegate_core::lease::{Answer, Lease, Terms};
use tidegate_core::{Algorithm, Nanos, Policy, Quota};

/// Four threads on each of two leases ask as fast as they can while time moves on with their
/// requests.
fn admitted_by_threads(terms: Terms, asks: u64) -> (u64, u64) {
    let shared = Mutex::new(vec![0; terms.policy().words()]);
    let leases = [Lease::new(terms), Lease::new(terms)];
    let (time, admitted) = (AtomicU64::new(1_000_000), AtomicU64::new(0));
    thread::scope(|scope| {
        for at in 0..8 {
            let (lease, shared, time, admitted) = (&leases[at % 2], &shared, &time, &admitted);
            scope.spawn(move || {
                for _ in 0..asks {
                    let now = Nanos::new(time.fetch_add(100, Ordering::Relaxed));
                    let answer = lease.ask(1, now);
                    let mut allowed = answer
                        .decision()
                        .is_some_and(|decision| decision.is_allowed());
                    if let Some(request) = answer.request() {
                        let grant = {
                            let mut shared = shared.lock().unwrap();
                            // Under the lock, so that the authority's time never falls.
                            let now = Nanos::new(time.fetch_add(100, Ordering::Relaxed));
                            terms.serve(&mut shared, now, &request)
                        };
                        let decision = lease.granted(
                            request,
                            &grant,
                            Nanos::new(time.load(Ordering::Relaxed)),
                        );
                        if matches!(answer, Answer::Refill(_)) {
                            allowed = decision.is_allowed();
                        }
                    }
                    admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                }
            });
        }
    });
    let end = Nanos::new(time.into_inner());
    let mut shared = shared.into_inner().unwrap();
    for lease in &leases {
        for request in lease.close(end) {
            let _ = terms.serve(&mut shared, end, &request);
        }
    }
    (admitted.into_inner(), terms.policy().used(&shared, end))
}

#[test]
fn what_is_charged_in_the_end_is_what_was_admitted() {
    // One window for all of the test.
    let policy = Policy::fixed_window(Quota::per_hour(u32::MAX.into()));
    let all = 8 * 50_000;
    let leased = admitted_by_threads(Terms::leased(policy, Terms::SLACK), 50_000);
    assert_eq!(leased, (all, all));
    let reported = admitted_by_threads(Terms::reported(policy, 500, Terms::SLACK), 50_000);
    assert_eq!(reported, (all, all));
}

#[test]
fn concurrent_threads_never_exceed_the_limit() {
    for limit in [7, 1_000, 100_000] {
        let policy = Policy::fixed_window(Quota::per_hour(limit));
        let (admitted, _) = admitted_by_threads(Terms::leased(policy, Terms::SLACK), 50_000);
        assert!(admitted <= limit, "{admitted} of {limit}");
        let terms = Terms::reported(policy, 50, Terms::SLACK);
        let (admitted, _) = admitted_by_threads(terms, 50_000);
        assert!(admitted <= limit + 2 * 50, "{admitted} of {limit}");
    }
}
