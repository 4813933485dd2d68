//! Waiting for several limits together, on a clock that the test moves.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate_limiter::{
    AllDecision, Clock, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Request, Until,
    WaitAllError, acquire_all_at, wait_all,
};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<AllDecision, WaitAllError>> + 'a>>;

const START: Nanos = Nanos::from_secs(1_000);

fn poll(waiting: &mut Waiting<'_>) -> Poll<Result<AllDecision, WaitAllError>> {
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn is_admitted(waiting: &mut Waiting<'_>) -> bool {
    matches!(poll(waiting), Poll::Ready(Ok(_)))
}

fn wait(requests: Vec<Request<'_, ManualTimer>>, deadline: Option<Nanos>) -> Waiting<'_> {
    Box::pin(async move { wait_all(&requests, deadline).await })
}

fn unkeyed(timer: &ManualTimer, policy: impl Into<Policy>) -> Limiter<ManualTimer> {
    Limiter::with_clock(policy, timer.clone())
}

fn keyed(timer: &ManualTimer, policy: impl Into<Policy>) -> KeyedLimiter<ManualTimer> {
    KeyedLimiter::builder(policy)
        .max_keys(100)
        .clock(timer.clone())
        .build()
        .unwrap()
}

/// 20 units a second, 12 seconds: 2 callers of cost 15 among 32 of cost 1. All ask again as soon as
/// they are served, with a deadline that leaves time for the whole line. Returns how often the large
/// costs were served.
fn large_costs_served<'a>(
    timer: &ManualTimer,
    patience: Option<Nanos>,
    requests: impl Fn(u64) -> Vec<Request<'a, ManualTimer>>,
) -> u64 {
    let deadline = || patience.map(|patience| timer.now().saturating_add(patience));
    let costs: Vec<u64> = (0..34)
        .map(|caller| if caller < 2 { 15 } else { 1 })
        .collect();
    let mut callers: Vec<_> = costs
        .iter()
        .map(|cost| wait(requests(*cost), deadline()))
        .collect();
    let mut served = [0; 34];
    for _ in 0..1_200 {
        for (at, caller) in callers.iter_mut().enumerate() {
            if let Poll::Ready(result) = poll(caller) {
                assert!(result.is_ok(), "none is refused: {result:?}");
                served[at] += 1;
                *caller = wait(requests(costs[at]), deadline());
            }
        }
        timer.advance(Duration::from_millis(10));
    }
    assert!(served[2..].iter().all(|times| *times > 0), "{served:?}");
    let units: u64 = served
        .iter()
        .zip(&costs)
        .map(|(times, cost)| times * cost)
        .sum();
    // Before a large cost the window stays part empty.
    assert!((160..=260).contains(&units), "{units} units in 12 seconds");
    served[0] + served[1]
}

#[test]
fn callers_with_large_costs_are_served_among_many_with_small_ones() {
    let quota = Quota::per_second(20);
    let policies = [
        (Policy::token_bucket(quota), 8),
        (Policy::sliding_window(quota), 6),
        (Policy::sliding_log(quota).unwrap(), 6),
    ];
    // The second limit binds as the first, or never.
    let never = Policy::token_bucket(Quota::per_second(1_000_000));
    let patient = Some(Nanos::from_secs(5));
    for ((policy, at_least), second, patience) in policies
        .into_iter()
        .flat_map(|policy| [(policy, policy.0), (policy, never)])
        .flat_map(|(policy, second)| [(policy, second, None), (policy, second, patient)])
    {
        let timer = ManualTimer::new(START);
        let in_all = unkeyed(&timer, policy);
        let alone = |cost| vec![Request::unkeyed(&in_all, cost)];
        let alone = large_costs_served(&timer, patience, alone);
        let (in_all, per_key) = (unkeyed(&timer, policy), keyed(&timer, second));
        let both = |cost| {
            vec![
                Request::unkeyed(&in_all, cost),
                Request::keyed(&per_key, b"k", cost),
            ]
        };
        let together = large_costs_served(&timer, patience, both);
        assert!(
            together >= at_least,
            "{}: {together} over two limits, {alone} over one",
            policy.name()
        );
        assert!(
            together + 1 >= alone,
            "{}: {together} over two limits, {alone} over one",
            policy.name()
        );
    }
}

#[test]
fn one_waiter_for_several_limits_is_not_starved_by_waiters_for_one() {
    let timer = ManualTimer::new(START);
    let policy = Policy::token_bucket(Quota::per_second(10));
    let (first, second) = (unkeyed(&timer, policy), unkeyed(&timer, policy));
    let mut both = wait(
        vec![Request::unkeyed(&first, 5), Request::unkeyed(&second, 5)],
        None,
    );
    let alone = |limiter| Box::pin(async move { Limiter::wait(limiter, 1, None).await });
    let mut lines: Vec<_> = [&first, &second, &first, &second].map(alone).into();
    let limiters = [&first, &second, &first, &second];
    let mut served = 0;
    for _ in 0..500 {
        for (at, one) in lines.iter_mut().enumerate() {
            if one
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
            {
                *one = alone(limiters[at]);
            }
        }
        if is_admitted(&mut both) {
            served += 1;
            both = wait(
                vec![Request::unkeyed(&first, 5), Request::unkeyed(&second, 5)],
                None,
            );
        }
        timer.advance(Duration::from_millis(10));
    }
    assert!(served >= 5, "{served} in five seconds");
}

#[test]
fn units_that_are_held_count_from_the_moment_of_admission() {
    let timer = ManualTimer::new(START);
    let (first, second) = (
        unkeyed(&timer, Policy::sliding_log(Quota::per_second(2)).unwrap()),
        unkeyed(&timer, Policy::token_bucket(Quota::per_minute(1))),
    );
    assert!(second.acquire(1).is_allowed() && first.acquire(2).is_allowed());
    // The second limit has no room for a minute; then the first one is used up by another caller.
    let mut both = wait(
        vec![Request::unkeyed(&first, 2), Request::unkeyed(&second, 1)],
        None,
    );
    assert!(poll(&mut both).is_pending());
    timer.advance(Duration::from_millis(59_900));
    assert!(poll(&mut both).is_pending() && first.acquire(2).is_allowed());
    timer.advance(Duration::from_millis(100));
    assert!(
        poll(&mut both).is_pending(),
        "the first limit has no room for 0.9 seconds"
    );
    timer.advance(Duration::from_millis(900));
    assert!(is_admitted(&mut both));
    // The log has two units of now, not of any moment before.
    timer.advance(Duration::from_millis(999));
    assert!(first.acquire(1).is_denied());
    timer.advance(Duration::from_millis(1));
    assert!(first.acquire(2).is_allowed());
}

#[test]
fn a_dropped_waiter_gives_everything_back() {
    let timer = ManualTimer::new(START);
    let (first, second) = (
        unkeyed(&timer, Policy::fixed_window(Quota::per_hour(5))),
        unkeyed(&timer, Policy::concurrency(1)),
    );
    let taken = second.permit(1).unwrap();
    let mut both = wait(
        vec![Request::unkeyed(&first, 5), Request::unkeyed(&second, 1)],
        None,
    );
    assert!(poll(&mut both).is_pending());
    drop(both);
    assert!(first.acquire(5).is_allowed(), "nothing of it is taken");
    drop(taken);
    assert!(second.permit(1).is_ok());
}

#[test]
fn callers_that_need_the_same_permits_in_different_order_are_all_served() {
    let timer = ManualTimer::new(START);
    let seats = [(); 3].map(|()| unkeyed(&timer, Policy::concurrency(1)));
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1]];
    let requests = |order: &[usize; 3]| order.map(|at| Request::unkeyed(&seats[at], 1)).into();
    let mut waiting: Vec<_> = orders
        .iter()
        .map(|order| Some(wait(requests(order), None)))
        .collect();
    let mut served = 0;
    for _ in 0..100 {
        for caller in &mut waiting {
            if caller.as_mut().is_some_and(is_admitted) {
                *caller = None;
                served += 1;
                assert!(
                    seats.iter().all(|seat| seat.peek(1).is_denied()),
                    "all three are taken"
                );
                for seat in &seats {
                    seat.refund(1);
                }
            }
        }
    }
    assert_eq!(served, orders.len());
}

#[test]
fn a_deadline_and_a_cost_that_never_fits_are_refused_at_once() {
    let timer = ManualTimer::new(START);
    let (first, second) = (
        unkeyed(&timer, Policy::token_bucket(Quota::per_hour(1))),
        unkeyed(&timer, Policy::token_bucket(Quota::per_second(5))),
    );
    assert!(first.acquire(1).is_allowed());
    let requests = |cost| vec![Request::unkeyed(&second, cost), Request::unkeyed(&first, 1)];
    let soon = Some(START.saturating_add(Nanos::from_secs(60)));
    assert!(matches!(
        poll(&mut wait(requests(1), soon)),
        Poll::Ready(Err(WaitAllError::Deadline(_)))
    ));
    assert!(matches!(
        poll(&mut wait(requests(6), None)),
        Poll::Ready(Err(WaitAllError::Never(_)))
    ));
    assert_eq!(second.peek(0).remaining(), 5, "nothing was taken");
}

fn note(admitted: &mut [Vec<(Nanos, u64)>], parts: &[(usize, u64)], now: Nanos) {
    for &(at, cost) in parts {
        admitted[at].push((now, cost));
    }
}

/// Random callers, costs and cancellations on three windows: what is admitted in any window is at
/// most its limit.
#[test]
fn no_window_ever_has_more_than_its_limit() {
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..60 {
        let timer = ManualTimer::new(START);
        let windows =
            [1_u64, 2, 3].map(|seconds| Quota::new(5, Duration::from_secs(seconds)).unwrap());
        let limits = windows.map(|quota| unkeyed(&timer, Policy::sliding_log(quota).unwrap()));
        let mut admitted: [Vec<(Nanos, u64)>; 3] = Default::default();
        let mut waiting: Vec<(Vec<(usize, u64)>, Waiting<'_>)> = Vec::new();
        for _ in 0..400 {
            let count = 1 + next(3) as usize;
            let parts: Vec<_> = (0..count).map(|part| (part, 1 + next(4))).collect();
            let requests: Vec<_> = parts
                .iter()
                .map(|&(at, cost)| Request::unkeyed(&limits[at], cost))
                .collect();
            let now = timer.now();
            match next(8) {
                0 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(next(waiting.len() as u64) as usize));
                }
                1 if acquire_all_at(&requests, now).unwrap().is_allowed() => {
                    note(&mut admitted, &parts, now);
                }
                1 => {}
                _ if waiting.len() < 6 => waiting.push((parts, wait(requests, None))),
                _ => {}
            }
            // Whoever was polled later may have admitted one that was polled before.
            for _ in 0..=waiting.len() {
                waiting.retain_mut(|(parts, caller)| {
                    let is_served = is_admitted(caller);
                    if is_served {
                        note(&mut admitted, parts, now);
                    }
                    !is_served
                });
            }
            for (at, quota) in windows.iter().enumerate() {
                let from = now.saturating_since(Nanos::from(quota.window()));
                let used: u64 = admitted[at]
                    .iter()
                    .filter(|(when, _)| *when > from)
                    .map(|(_, cost)| cost)
                    .sum();
                assert!(used <= 5, "{used} of 5 in window {at}");
            }
            timer.advance(Duration::from_millis(next(400)));
        }
        assert!(
            admitted.iter().all(|all| all.len() > 10),
            "callers are served"
        );
    }
}

#[test]
fn a_caller_that_waits_for_its_own_key_delays_nobody() {
    let timer = ManualTimer::new(START);
    let (in_all, per_key) = (
        unkeyed(&timer, Policy::token_bucket(Quota::per_second(10))),
        keyed(&timer, Policy::fixed_window(Quota::per_hour(1))),
    );
    assert!(per_key.acquire(b"slow", 1).is_allowed());
    let slow = || {
        vec![
            Request::unkeyed(&in_all, 10),
            Request::keyed(&per_key, b"slow", 1),
        ]
    };
    let mut waiting: Vec<_> = (0..100).map(|_| wait(slow(), None)).collect();
    assert!(waiting.iter_mut().all(|caller| poll(caller).is_pending()));
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += u64::from(in_all.acquire(1).is_allowed());
        timer.advance(Duration::from_millis(100));
        assert!(waiting.iter_mut().all(|caller| poll(caller).is_pending()));
    }
    assert_eq!(admitted, 100, "all that others may have in ten seconds");
    // When the hour is over the first of them gets its place before others.
    timer.advance(Duration::from_hours(1));
    assert!(is_admitted(&mut waiting[0]));
    assert!(in_all.acquire(1).is_denied());
}

#[test]
fn callers_that_are_not_polled_delay_others_by_ten_milliseconds() {
    let timer = ManualTimer::new(START);
    let limits = [(); 2].map(|()| unkeyed(&timer, Policy::token_bucket(Quota::per_second(10))));
    assert!(limits.iter().all(|limit| limit.acquire(10).is_allowed()));
    let both = || {
        vec![
            Request::unkeyed(&limits[0], 1),
            Request::unkeyed(&limits[1], 1),
        ]
    };
    let mut held: Vec<_> = (0..9).map(|_| wait(both(), None)).collect();
    assert!(held.iter_mut().all(|caller| poll(caller).is_pending()));
    let mut polled = wait(both(), None);
    assert!(poll(&mut polled).is_pending());
    // The units of all ten are there after a second; nine callers are never polled again.
    timer.advance(Duration::from_secs(1));
    let mut late = 0;
    while !is_admitted(&mut polled) {
        timer.advance(Duration::from_millis(1));
        late += 1;
        assert!(late <= 10, "{late} ms after its units");
    }
    assert!(is_admitted(&mut held[0]), "its place is not lost");
}

#[test]
fn threads_that_wait_for_permits_of_several_limits_are_all_served() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let seats = [(); 3].map(|()| Limiter::new(Policy::concurrency(2)));
    let rate = Limiter::new(Policy::token_bucket(Quota::per_second(2_000)));
    let inside = [(); 3].map(|()| AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (seats, rate, inside) = (&seats, &rate, &inside);
            scope.spawn(move || {
                for round in 0..40 {
                    let pair = [(thread + round) % 3, (thread + 2 * round + 1) % 3];
                    let pair = if pair[0] == pair[1] {
                        &pair[..1]
                    } else {
                        &pair[..]
                    };
                    let mut requests: Vec<_> = pair
                        .iter()
                        .map(|&at| Request::unkeyed(&seats[at], 1))
                        .collect();
                    requests.push(Request::unkeyed(rate, 1));
                    assert!(
                        futures::executor::block_on(wait_all(&requests, None))
                            .unwrap()
                            .is_allowed()
                    );
                    for &at in pair {
                        assert!(
                            inside[at].fetch_add(1, Ordering::Relaxed) < 2,
                            "two permits"
                        );
                    }
                    std::thread::yield_now();
                    for &at in pair {
                        inside[at].fetch_sub(1, Ordering::Relaxed);
                        seats[at].refund(1);
                    }
                }
            });
        }
    });
}

#[test]
fn permits_with_a_longest_hold_are_waited_for_with_other_limits_before_the_hold_ends() {
    let timer = ManualTimer::new(START);
    let permits = tidegate_limiter::algorithm::Concurrency::new(1);
    let jobs = unkeyed(&timer, permits.hold(Duration::from_hours(1)).unwrap());
    let rate = unkeyed(&timer, Policy::token_bucket(Quota::per_second(1)));
    let soon = Some(START.saturating_add(Nanos::from_secs(30)));
    let both = || vec![Request::unkeyed(&jobs, 1), Request::unkeyed(&rate, 1)];
    assert!(jobs.acquire(1).is_allowed() && rate.acquire(1).is_allowed());
    let mut waiting = wait(both(), soon);
    assert!(poll(&mut waiting).is_pending());
    // The permit alone is not enough, and neither are the units of the rate.
    jobs.refund(1);
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Duration::from_secs(1));
    assert!(is_admitted(&mut waiting));
    // A rate that is too slow is refused at once, although a permit may return.
    assert!(rate.charge(40).is_denied());
    let mut late = wait(both(), soon);
    assert!(matches!(
        poll(&mut late),
        Poll::Ready(Err(WaitAllError::Deadline(_)))
    ));
}

/// A rate with room, and permits that are in use.
fn rate_and_permits(timer: &ManualTimer) -> [Limiter<ManualTimer>; 2] {
    let rate = unkeyed(timer, Policy::token_bucket(Quota::per_second(10)));
    let permits = unkeyed(timer, Policy::concurrency(1));
    assert!(permits.acquire(1).is_allowed());
    [rate, permits]
}

#[test]
fn a_limit_that_is_lowered_below_the_cost_ends_the_wait_for_another_limits_permits() {
    let timer = ManualTimer::new(START);
    let [rate, permits] = rate_and_permits(&timer);
    let requests = vec![Request::unkeyed(&rate, 5), Request::unkeyed(&permits, 1)];
    let mut waiting = wait(requests, None);
    assert!(poll(&mut waiting).is_pending());
    rate.set_policy(Policy::token_bucket(Quota::per_second(3)));
    assert!(matches!(
        poll(&mut waiting),
        Poll::Ready(Err(WaitAllError::Never(_)))
    ));
}

#[test]
fn a_limit_that_is_lowered_below_the_cost_and_raised_again_keeps_its_caller() {
    let timer = ManualTimer::new(START);
    let [rate, permits] = rate_and_permits(&timer);
    let requests = vec![Request::unkeyed(&rate, 5), Request::unkeyed(&permits, 1)];
    let mut waiting = wait(requests, None);
    assert!(poll(&mut waiting).is_pending());
    for limit in [3, 10] {
        rate.set_policy(Policy::token_bucket(Quota::per_second(limit)));
    }
    assert!(poll(&mut waiting).is_pending());
    assert!(rate.acquire(1).is_denied(), "it has its place again");
    permits.refund(1);
    assert!(is_admitted(&mut waiting));
    assert!(rate.acquire(5).is_allowed() && rate.acquire(1).is_denied());
}

/// The line of a limit does not know the policy that comes with a request.
#[test]
fn a_cost_that_fits_the_requests_own_policy_is_waited_for() {
    let timer = ManualTimer::new(START);
    let own = Policy::token_bucket(Quota::per_second(100));
    let small = keyed(&timer, Policy::token_bucket(Quota::per_second(10)));
    let permits = unkeyed(&timer, Policy::concurrency(1));
    assert!(permits.acquire(1).is_allowed());
    let large = Request::keyed(&small, b"k", 50).with_policy(Some(&own));
    let mut waiting = wait(vec![large, Request::unkeyed(&permits, 1)], None);
    assert!(poll(&mut waiting).is_pending());
    permits.refund(1);
    assert!(is_admitted(&mut waiting));
}

/// Changes a limit's policy when it is woken, once it is armed.
struct ChangeOnWake {
    limit: Limiter<ManualTimer>,
    to: Policy,
    is_armed: AtomicBool,
}

impl Wake for ChangeOnWake {
    fn wake(self: Arc<Self>) {
        if self.is_armed.swap(false, Ordering::Relaxed) {
            self.limit.set_policy(self.to);
        }
    }
}

#[test]
fn a_policy_that_changes_just_after_the_decision_does_not_end_the_wait() {
    let timer = ManualTimer::new(START);
    let rate = Policy::token_bucket(Quota::per_second(1));
    let permits = tidegate_limiter::algorithm::Concurrency::new(2);
    let permits = permits.hold(Duration::from_secs(10)).unwrap();
    let change = Arc::new(ChangeOnWake {
        limit: unkeyed(&timer, permits),
        to: rate,
        is_armed: AtomicBool::new(false),
    });
    let other = unkeyed(&timer, rate);
    assert!(change.limit.acquire(2).is_allowed());
    let waker = Waker::from(Arc::clone(&change));
    let [mut front, mut behind] = [(), ()].map(|()| Box::pin(change.limit.wait(1, None)));
    let mut noop = Context::from_waker(Waker::noop());
    assert!(front.as_mut().poll(&mut noop).is_pending());
    let polled = behind.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let both = vec![
        Request::unkeyed(&change.limit, 1),
        Request::unkeyed(&other, 1),
    ];
    let mut waiting = wait(both, Some(START.saturating_add(Nanos::from_secs(15))));
    assert!(poll(&mut waiting).is_pending());
    // The permits have ended, and the alarm wakes the front. The next look of the caller behind
    // admits both waiters, and the second is woken after the look.
    timer.advance(Duration::from_secs(10));
    change.is_armed.store(true, Ordering::Relaxed);
    let polled = poll(&mut waiting);
    assert!(!change.is_armed.load(Ordering::Relaxed), "it has changed");
    assert!(polled.is_pending(), "{polled:?}");
    timer.advance(Duration::from_secs(3));
    assert!(is_admitted(&mut waiting), "there is room now");
}

#[test]
fn a_block_without_an_end_ends_a_wait_for_permits_too() {
    for policy in [
        Policy::concurrency(1),
        Policy::token_bucket(Quota::per_second(1)),
    ] {
        let timer = ManualTimer::new(START);
        let (keys, other) = (keyed(&timer, policy), unkeyed(&timer, policy));
        keys.at(START).block("a", Until::UNBLOCKED).unwrap();
        let requests = vec![Request::keyed(&keys, b"a", 1), Request::unkeyed(&other, 1)];
        let polled = poll(&mut wait(requests, None));
        assert!(
            matches!(polled, Poll::Ready(Err(WaitAllError::Never(_)))),
            "{polled:?}"
        );
    }
}
