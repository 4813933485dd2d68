//! Priorities in line: who overtakes whom, and that nobody waits for ever; on a clock that the test
//! moves.

use crate::policies;

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
    AllDecision, Clock as _, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Priority, Quota,
    Request, Reservation, WaitAllError, WaitError, WaitUntil, algorithm::TokenBucket, wait_all,
};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), WaitError>> + 'a>>;
type Any<'a> = Pin<Box<dyn Future<Output = Result<(), ()>> + 'a>>;
type WaitingAll<'a> = Pin<Box<dyn Future<Output = Result<AllDecision, WaitAllError>> + 'a>>;

const START: Nanos = Nanos::from_secs(1_000);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn poll<F: Future + ?Sized>(waiting: &mut Pin<Box<F>>) -> Poll<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    waiting.as_mut().poll(&mut cx)
}

fn with(level: u8) -> WaitUntil {
    WaitUntil::new(None).priority(Priority::new(level).unwrap())
}

fn until(at: Nanos, level: u8) -> WaitUntil {
    WaitUntil::new(Some(at)).priority(Priority::new(level).unwrap())
}

fn wait(limiter: &Limiter<ManualTimer>, cost: u64, until: impl Into<WaitUntil>) -> Waiting<'_> {
    let until = until.into();
    Box::pin(async move { limiter.wait(cost, until).await.map(|_| ()) })
}

/// A bucket for one, with so many units a second, and nothing in it.
fn empty(timer: &ManualTimer, per_second: u64) -> Limiter<ManualTimer> {
    let bucket = TokenBucket::new(Quota::per_second(per_second));
    let limiter = Limiter::with_clock(bucket.burst(1).unwrap(), timer.clone());
    assert!(limiter.acquire(1).is_allowed());
    limiter
}

/// Polls all; returns who was served, by their names.
fn served<F: Future<Output = Result<T, E>> + ?Sized, T, E: std::fmt::Debug, N: Copy>(
    line: &mut Vec<(N, Pin<Box<F>>)>,
) -> Vec<N> {
    let mut done = Vec::new();
    line.retain_mut(|(name, waiting)| match poll(waiting) {
        Poll::Ready(result) => {
            result.map(|_| done.push(*name)).unwrap();
            false
        }
        Poll::Pending => true,
    });
    done
}

#[test]
fn a_higher_priority_goes_first_and_within_one_the_first_to_come() {
    let timer = ManualTimer::new(START);
    let one = empty(&timer, 1);
    let mut line: Vec<(usize, Waiting<'_>)> = Vec::new();
    for (name, level) in [5, 0, 9, 5, 9, 0, 6].into_iter().enumerate() {
        // The default is 5.
        let waiting = if name == 3 {
            wait(&one, 1, None)
        } else {
            wait(&one, 1, with(level))
        };
        line.push((name, waiting));
        assert!(served(&mut line).is_empty());
    }
    let mut order = Vec::new();
    while !line.is_empty() {
        timer.advance(SECOND);
        order.extend(served(&mut line));
    }
    assert_eq!(order, [2, 4, 6, 0, 3, 1, 5]);
}

#[test]
fn a_caller_that_comes_is_served_behind_as_many_as_are_said_to_be_ahead() {
    let timer = ManualTimer::new(START);
    let permits = Policy::concurrency(1);
    let new = || {
        let limiter = KeyedLimiter::builder(permits)
            .clock(timer.clone())
            .build()
            .unwrap();
        assert!(limiter.acquire("a", 1).is_allowed());
        limiter
    };
    let ahead = |limiter: &KeyedLimiter<ManualTimer>| limiter.at(timer.now()).ahead("a");
    assert_eq!(ahead(&new()), None);
    for level in 0..10 {
        let limiter = new();
        let mut line: Vec<(usize, Waiting<'_>)> = Vec::new();
        for (name, before) in [5, 0, 9, 5, 3, 9, 7, 0].into_iter().enumerate() {
            let until = with(before);
            let limiter = &limiter;
            line.push((
                name,
                Box::pin(async move { limiter.wait("a", 1, until).await.map(|_| ()) }),
            ));
            assert!(served(&mut line).is_empty());
            timer.advance(7 * SECOND);
        }
        let expected = ahead(&limiter).unwrap()[usize::from(level)];
        let until = with(level);
        let shared = &limiter;
        line.push((
            8,
            Box::pin(async move { shared.wait("a", 1, until).await.map(|_| ()) }),
        ));
        assert!(served(&mut line).is_empty());
        let mut order = Vec::new();
        while !line.is_empty() {
            limiter.refund("a", 1);
            order.extend(served(&mut line));
        }
        assert_eq!(
            order.iter().position(|name| *name == 8),
            Some(expected),
            "{order:?}"
        );
        assert_eq!(ahead(&limiter), None);
    }
}

#[test]
fn a_caller_is_overtaken_only_by_higher_priorities_that_come_less_than_ten_seconds_a_level_later() {
    for (gap, is_first) in [(39_999, true), (40_000, false), (40_001, false)] {
        let timer = ManualTimer::new(START);
        let one = Limiter::with_clock(Policy::concurrency(1), timer.clone());
        assert!(one.acquire(1).is_allowed());
        let mut early = wait(&one, 1, with(3));
        assert!(poll(&mut early).is_pending());
        timer.advance(Duration::from_millis(gap));
        let mut late = wait(&one, 1, with(7));
        assert!(poll(&mut late).is_pending());
        one.refund(1);
        assert_eq!(poll(&mut late).is_ready(), is_first, "{gap} ms");
        assert_eq!(poll(&mut early).is_ready(), !is_first, "{gap} ms");
    }
}

#[test]
fn a_higher_priority_takes_at_once_what_is_too_little_for_those_in_front() {
    let timer = ManualTimer::new(START);
    let one = Limiter::with_clock(Policy::token_bucket(Quota::per_second(10)), timer.clone());
    assert!(one.acquire(8).is_allowed());
    let mut large = wait(&one, 10, None);
    assert!(poll(&mut large).is_pending());
    assert!(one.acquire(1).is_denied(), "without a wait it is behind");
    assert!(
        poll(&mut wait(&one, 1, with(5))).is_pending(),
        "the same priority is behind"
    );
    assert!(poll(&mut wait(&one, 1, with(6))).is_ready());
    // It had eight units to wait for, and has nine now.
    timer.advance(Duration::from_millis(899));
    assert!(poll(&mut large).is_pending());
    timer.advance(Duration::from_millis(1));
    assert!(poll(&mut large).is_ready());
}

#[test]
fn a_large_cost_of_the_lowest_priority_is_served_under_a_steady_load_of_the_highest() {
    for policy in policies::denying(Quota::per_second(10)) {
        let timer = ManualTimer::new(START);
        let one = Limiter::with_clock(policy, timer.clone());
        let other = Limiter::with_clock(Policy::token_bucket(Quota::per_second(10)), timer.clone());
        let both = [Request::unkeyed(&one, 10), Request::unkeyed(&other, 10)];
        for is_joint in [false, true] {
            let began = timer.now();
            assert_eq!(one.acquire_up_to(10).0, 10, "{policy}");
            let mut alone = wait(&one, 10, with(0));
            let mut joint: WaitingAll<'_> = Box::pin(wait_all(&both, with(0)));
            let mut is_served = || {
                if is_joint {
                    poll(&mut joint).is_ready()
                } else {
                    poll(&mut alone).is_ready()
                }
            };
            assert!(!is_served());
            let mut line: Vec<((), Waiting<'_>)> = Vec::new();
            let (mut spent, mut others) = (0, 0);
            let took = loop {
                // Twice what the limit admits, each for at most a second.
                let soon = timer.now().saturating_add(SECOND.into());
                let mut urgent = wait(&one, 1, until(soon, 9));
                match poll(&mut urgent) {
                    Poll::Pending => line.push(((), urgent)),
                    Poll::Ready(admitted) => others += u64::from(admitted.is_ok()),
                }
                timer.advance(Duration::from_millis(50));
                spent += 50;
                let is_done = is_served();
                line.retain_mut(|((), waiting)| match poll(waiting) {
                    Poll::Pending => true,
                    Poll::Ready(admitted) => {
                        others += u64::from(admitted.is_ok());
                        false
                    }
                });
                if is_done {
                    break spent;
                }
                assert!(spent < 200_000, "{policy}: it waits for ever");
            };
            // What came within 90 s goes first. Then it needs a whole window, or two of a counter.
            assert!(
                (85_000..=93_500).contains(&took),
                "{policy}, joint: {is_joint}: {took} ms"
            );
            assert!(others > 600, "{policy}: {others} others in 90 s");
            drop((line, alone, joint));
            timer.set(began.saturating_add(Nanos::from_secs(1_000)));
        }
    }
}

#[test]
fn no_clock_that_goes_back_lets_a_caller_pass_one_of_its_priority() {
    let timer = ManualTimer::new(START);
    let one = empty(&timer, 1);
    let other = Limiter::with_clock(Policy::token_bucket(Quota::per_second(100)), timer.clone());
    let both = [Request::unkeyed(&one, 1), Request::unkeyed(&other, 1)];
    let join = |level, is_joint: bool| -> Any<'_> {
        let (alone, both) = (wait(&one, 1, with(level)), &both);
        Box::pin(async move {
            if is_joint {
                wait_all(both, with(level)).await.map(drop).map_err(drop)
            } else {
                alone.await.map_err(drop)
            }
        })
    };
    let mut line: Vec<(u64, Any<'_>)> = Vec::new();
    let hour = Nanos::from_secs(500);
    for (name, back, level, is_joint) in [
        (0, Nanos::ZERO, 5, false),
        (1, hour, 5, false),
        (2, hour, 5, true),
        (3, hour, 9, true),
        (4, Nanos::ZERO, 9, false),
        (5, hour, 1, false),
        (6, Nanos::ZERO, 1, true),
    ] {
        timer.set(Nanos::new(START.get() - back.get()));
        line.push((name, join(level, is_joint)));
        assert!(served(&mut line).is_empty(), "{name}");
    }
    timer.set(START);
    let mut order = Vec::new();
    for _ in 0..700 {
        timer.advance(Duration::from_millis(10));
        order.extend(served(&mut line));
    }
    assert_eq!(order, [3, 4, 0, 1, 2, 5, 6]);
}

/// The line of one limit has a later last arrival than that of the other, so two callers could have
/// different orders there, and wait for each other.
#[test]
fn callers_of_several_limits_have_one_order_in_all_lines() {
    let timer = ManualTimer::new(START);
    let rare = TokenBucket::new(Quota::new(1, Duration::from_hours(1)).unwrap());
    let [x, y] = [0, 1].map(|_| Limiter::with_clock(rare, timer.clone()));
    assert!(x.acquire(1).is_allowed() && y.acquire(1).is_allowed());
    let mut in_x = wait(&x, 1, with(9));
    assert!(poll(&mut in_x).is_pending());
    timer.set(Nanos::new(START.get() - 5_000_000_000));
    let mut in_y = wait(&y, 1, with(9));
    assert!(poll(&mut in_y).is_pending());
    let both = [Request::unkeyed(&x, 1), Request::unkeyed(&y, 1)];
    let mut early: WaitingAll<'_> = Box::pin(wait_all(&both, with(4)));
    assert!(poll(&mut early).is_pending());
    // By the arrival in `x` the late one is in front, and by that in `y` behind.
    timer.set(START.saturating_add(Nanos::from_millis(9_500)));
    let turned = [Request::unkeyed(&y, 1), Request::unkeyed(&x, 1)];
    let mut late: WaitingAll<'_> = Box::pin(wait_all(&turned, with(5)));
    assert!(poll(&mut late).is_pending());
    drop((in_x, in_y));
    let mut line = vec![("early", early), ("late", late)];
    x.refund(1);
    y.refund(1);
    // No time passes.
    let first: Vec<_> = (0..3).flat_map(|_| served(&mut line)).collect();
    assert_eq!(first, ["late"]);
    x.refund(1);
    y.refund(1);
    let second: Vec<_> = (0..3).flat_map(|_| served(&mut line)).collect();
    assert_eq!(second, ["early"]);
}

#[test]
fn random_callers_of_several_permits_are_all_served_whatever_their_priorities() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = move |most: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % most
    };
    let timer = ManualTimer::new(START);
    let permits: Vec<_> = (0..3)
        .map(|_| Limiter::with_clock(Policy::concurrency(2), timer.clone()))
        .collect();
    let keys = KeyedLimiter::builder(Policy::concurrency(1))
        .max_keys(100)
        .clock(timer.clone())
        .build()
        .unwrap();
    let names = [&b"a"[..], b"b"];
    let mut line: Vec<(usize, WaitingAll<'_>)> = Vec::new();
    let mut asked: Vec<Vec<(usize, u64)>> = Vec::new();
    let mut held: Vec<usize> = Vec::new();
    let rounds = 3_000;
    for round in 0..rounds {
        if below(3) > 0 && line.len() < 12 {
            let mut parts: Vec<(usize, u64)> = Vec::new();
            for at in 0..5 {
                if below(2) == 0 {
                    parts.push((at, 1 + if at < 3 { below(2) } else { 0 }));
                }
            }
            if below(2) == 0 {
                parts.reverse();
            }
            let wanted = parts.clone();
            let (permits, keys) = (&permits, &keys);
            let level = below(10) as u8;
            let waiting = async move {
                let request = |&(at, cost): &(usize, u64)| match at {
                    0..3 => Request::unkeyed(&permits[at], cost),
                    _ => Request::keyed(keys, names[at - 3], cost),
                };
                let requests: Vec<_> = wanted.iter().map(request).collect();
                wait_all(&requests, with(level)).await
            };
            line.push((asked.len(), Box::pin(waiting)));
            asked.push(parts);
        }
        if below(8) == 0 && !line.is_empty() {
            drop(line.swap_remove(below(line.len() as u64) as usize));
        }
        held.extend(served(&mut line));
        timer.advance(Duration::from_millis(below(2_000)));
        if below(9) == 0 {
            timer.set(Nanos::new(timer.now().get() - 300_000_000));
        }
        if !held.is_empty() && (below(2) == 0 || round > rounds - 50) {
            let back = held.swap_remove(below(held.len() as u64) as usize);
            for &(at, cost) in &asked[back] {
                match at {
                    0..3 => permits[at].refund(cost),
                    _ => keys.refund(names[at - 3], cost),
                }
            }
        }
        for permits in &permits {
            assert!(permits.peek(0).remaining() <= 2);
        }
    }
    // Nobody joins any more. Everybody is served as permits return.
    for _ in 0..2_000 {
        held.extend(served(&mut line));
        timer.advance(Duration::from_millis(500));
        for back in held.drain(..) {
            for &(at, cost) in &asked[back] {
                match at {
                    0..3 => permits[at].refund(cost),
                    _ => keys.refund(names[at - 3], cost),
                }
            }
        }
    }
    assert!(
        line.is_empty(),
        "{} callers wait for each other",
        line.len()
    );
    assert!(asked.len() > 1_000);
}

#[test]
fn a_joint_caller_whose_turn_was_taken_by_a_higher_priority_is_called_again() {
    let timer = ManualTimer::new(START);
    let bucket = TokenBucket::new(Quota::per_second(1)).burst(2).unwrap();
    let one = Limiter::with_clock(bucket, timer.clone());
    assert!(one.acquire(2).is_allowed());
    let other = Limiter::with_clock(Policy::token_bucket(Quota::per_second(100)), timer.clone());
    let both = [Request::unkeyed(&one, 1), Request::unkeyed(&other, 1)];
    let mut joint: WaitingAll<'_> = Box::pin(wait_all(&both, None));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut poll_joint = || {
        let mut cx = Context::from_waker(&waker);
        joint.as_mut().poll(&mut cx).is_ready()
    };
    assert!(!poll_joint());
    timer.advance(SECOND);
    assert!(one.acquire(1).is_denied() && woken.0.swap(false, Ordering::Relaxed));
    // Before its task runs another one goes in front, with a cost that does not fit yet.
    let mut urgent = wait(&one, 2, with(9));
    assert!(poll(&mut urgent).is_pending());
    assert!(!poll_joint(), "it is behind");
    timer.advance(SECOND / 2);
    assert!(!woken.0.load(Ordering::Relaxed));
    drop(urgent);
    assert!(woken.0.load(Ordering::Relaxed), "its turn has come again");
    assert!(poll_joint());
}

#[test]
fn a_deadline_counts_those_in_front_of_the_place() {
    let timer = ManualTimer::new(START);
    let one = empty(&timer, 1);
    let other = Limiter::with_clock(Policy::token_bucket(Quota::per_second(100)), timer.clone());
    let both = [Request::unkeyed(&one, 1), Request::unkeyed(&other, 1)];
    let at = |secs| START.saturating_add(Nanos::from_secs(secs));
    let mut line: Vec<(u8, Waiting<'_>)> = Vec::new();
    for level in [5, 9, 5, 7, 5, 1] {
        line.push((level, wait(&one, 1, with(level))));
        assert!(served(&mut line).is_empty());
    }
    // Behind those of the same or a higher priority, and in front of the others.
    for (level, due) in [
        (9, 2),
        (8, 2),
        (7, 3),
        (6, 3),
        (5, 6),
        (2, 6),
        (1, 7),
        (0, 7),
    ] {
        let refused = poll(&mut wait(
            &one,
            1,
            until(Nanos::new(at(due).get() - 1), level),
        ));
        let Poll::Ready(Err(WaitError::Deadline(decision))) = refused else {
            panic!("{level}: {refused:?}");
        };
        let told = decision.retry_after();
        assert_eq!(told, Some(Duration::from_secs(due)), "{level}");
        let in_time = poll(&mut wait(&one, 1, until(at(due), level)));
        assert!(in_time.is_pending(), "{level}: {in_time:?}");
        let late = until(Nanos::new(at(due).get() - 1), level);
        let mut late: WaitingAll<'_> = Box::pin(wait_all(&both, late));
        let refused = poll(&mut late);
        assert!(
            matches!(&refused, Poll::Ready(Err(WaitAllError::Deadline(all))) if all.binding().unwrap().retry_after() == Some(Duration::from_secs(due))),
            "{level}: {refused:?}"
        );
        let mut in_time: WaitingAll<'_> = Box::pin(wait_all(&both, until(at(due), level)));
        assert!(poll(&mut in_time).is_pending(), "{level}");
    }
    assert_eq!(
        one.acquire(1).retry_after(),
        Some(Duration::from_secs(7)),
        "without a wait it is behind all"
    );
}

/// In a long line the times in the middle are bounds: nobody is refused who would be in time.
#[test]
fn in_a_long_line_no_caller_is_refused_that_would_be_in_time() {
    let mut seed = 0xD1B5_4A32_D192_ED03_u64;
    let mut below = move |most: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % most
    };
    let timer = ManualTimer::new(START);
    let one = empty(&timer, 1_000);
    let mut line: Vec<(u64, Waiting<'_>)> = Vec::new();
    let (mut refused, mut exact) = (0, 0);
    for _ in 0..2_000 {
        let level = below(10);
        let front = line.iter().filter(|(other, _)| *other >= level).count() as u64;
        // A unit each millisecond; all have come in the same moment.
        let due = START.get() + (front + 1) * 1_000_000;
        let deadline = Nanos::new((due + below(200_000_000)).saturating_sub(100_000_000));
        let mut waiting = wait(&one, 1, until(deadline.max(START), level as u8));
        match poll(&mut waiting) {
            Poll::Pending => line.push((level, waiting)),
            Poll::Ready(result) => {
                assert!(result.is_err() && deadline.get() < due, "{front} in front");
                refused += 1;
                continue;
            }
        }
        exact += u64::from(deadline.get() >= due);
    }
    assert!(
        refused > 300 && exact > 300,
        "{refused} refused, {exact} in time"
    );
    // All that would be in time are served, in their order.
    let mut left = line.len();
    while !line.is_empty() {
        timer.advance(Duration::from_millis(1));
        line.retain_mut(|(_, waiting)| poll(waiting).is_pending());
        assert!(line.len() < left || timer.now().get() < START.get() + 5_000_000_000);
        left = line.len();
    }
}

#[test]
fn behind_a_line_of_priorities_the_retry_time_is_exact() {
    for (waiters, asks) in [(10, 1), (64, 1), (500, 9)] {
        let timer = ManualTimer::new(START);
        let one = empty(&timer, 1_000);
        let mut line: Vec<(u64, Waiting<'_>)> = Vec::new();
        for number in 0..waiters {
            line.push((number, wait(&one, 1, with((number * 7 % 10) as u8))));
            assert!(served(&mut line).is_empty());
        }
        let told = (0..asks).map(|_| one.acquire(1).retry_after()).last();
        assert_eq!(told, Some(Some(Duration::from_millis(waiters + 1))));
    }
}

#[test]
fn permits_and_reservations_wait_with_priorities() {
    let timer = ManualTimer::new(START);
    let keys = KeyedLimiter::builder(Policy::concurrency(1))
        .max_keys(100)
        .clock(timer.clone())
        .build()
        .unwrap();
    let keys = Arc::new(keys);
    let held = keys.permit("a", 1).unwrap();
    let mut permit = Box::pin(keys.wait_permit("a", 1, with(1)));
    let mut reserved = Box::pin(Reservation::wait_key(&keys, "a", 1, with(8)));
    assert!(poll(&mut permit).is_pending() && poll(&mut reserved).is_pending());
    drop(held);
    assert!(poll(&mut permit).is_pending());
    let Poll::Ready(Ok(reservation)) = poll(&mut reserved) else {
        panic!("it is the first")
    };
    reservation.settle(0);
    assert!(matches!(poll(&mut permit), Poll::Ready(Ok(_))));
}
