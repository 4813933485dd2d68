//! No input panics or overflows: times that jump, costs and answers that nobody sensible would
//! send.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::lease::{GiveBack, Grant, Lease, Request, Terms};
use tidegate_core::{Algorithm, Decision, Nanos, Policy, Quota, Standing, StoredState};

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..200, any::<u64>(), Just(u64::MAX), Just(0)]
}

fn requests() -> impl Strategy<Value = Request> {
    let back = prop::option::of((any::<u32>(), numbers()));
    (any::<u64>(), any::<u32>(), back, any::<u32>(), numbers()).prop_map(
        |(cost, ahead, back, spent, sent)| {
            let back = back.map(|(units, taken)| GiveBack {
                units,
                taken: Nanos::new(taken),
            });
            Request {
                cost,
                ahead,
                back,
                spent,
                sent: Nanos::new(sent),
            }
        },
    )
}

fn grants() -> impl Strategy<Value = Grant> {
    (
        any::<u32>(),
        numbers(),
        numbers(),
        any::<bool>(),
        any::<u64>(),
        numbers(),
    )
        .prop_map(|(units, usable, now, denied, limit, figure)| {
            let decision = if denied {
                Decision::deny(
                    Standing {
                        limit,
                        room: figure,
                        unit: 1,
                        reset_after: figure,
                    },
                    figure,
                )
            } else {
                Decision::allow(Standing {
                    limit,
                    room: figure,
                    unit: 1,
                    reset_after: figure,
                })
            };
            Grant {
                decision,
                units,
                usable_for: Nanos::new(usable),
                now: Nanos::new(now),
            }
        })
}

fn limits() -> impl Strategy<Value = Terms> {
    (
        0_u64..300,
        1_u64..31_622_400_000_000_000,
        0_usize..7,
        0_u8..3,
        numbers(),
        any::<u32>(),
    )
        .prop_map(|(limit, window, which, mode, slack, unreported)| {
            let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
            let policy = match which {
                0 => Policy::fixed_window(quota),
                1 => Policy::sliding_log(quota).unwrap(),
                2 => Policy::sliding_window(quota),
                3 => Policy::sliding_counter(quota),
                4 => Policy::token_bucket(quota),
                5 => Policy::leaky_bucket(quota),
                _ => Policy::concurrency(limit as u32),
            };
            match mode {
                0 => Terms::exact(policy),
                1 => Terms::leased(policy, Nanos::new(slack)),
                _ => Terms::reported(policy, unreported, Nanos::new(slack)),
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_input_overflows(
        terms in limits(),
        steps in prop::collection::vec((0_u8..6, numbers(), any::<u64>(), requests(), grants()), 1..40)
    ) {
        let (lease, mut state) = (Lease::new(terms), vec![0; terms.policy().words()]);
        let mut out = Vec::new();
        for (what, now, cost, request, grant) in steps {
            let now = Nanos::new(now);
            match what {
                0 | 1 => out.extend(lease.ask(cost >> (cost % 32), now).request()),
                2 => out.extend(lease.returning(now)),
                3 => {
                    for request in out.drain(..) {
                        let grant = terms.serve(&mut state, now, &request);
                        let _ = lease.granted(request, &grant, now);
                    }
                }
                4 => {
                    let grant = if cost % 2 == 0 { terms.serve(&mut state, now, &request) } else { grant };
                    let _ = lease.granted(request, &grant, now);
                }
                _ if cost % 4 == 0 => out.extend(lease.close(now)),
                _ => lease.failed(request),
            }
            prop_assert!(terms.policy().accepts(&state));
        }
    }
}

#[test]
fn an_allotment_of_an_endless_room_is_used_up() {
    let lease = Lease::new(Terms::leased(
        Policy::fixed_window(Quota::new(100, Duration::from_mins(1)).unwrap()),
        Nanos::from_secs(1),
    ));
    let request = Request {
        ahead: 10,
        ..lease.ask(1, Nanos::ZERO).request().unwrap()
    };
    let endless = Standing {
        limit: 100,
        room: u64::MAX,
        unit: 1,
        reset_after: 0,
    };
    let grant = Grant {
        decision: Decision::allow(endless),
        units: 10,
        usable_for: Nanos::from_secs(1),
        now: Nanos::ZERO,
    };
    let _ = lease.granted(request, &grant, Nanos::ZERO);
    for _ in 0..5 {
        assert!(lease.ask_quickly(1, Nanos::ZERO).is_some());
    }
}
