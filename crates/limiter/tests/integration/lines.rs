//! What holds while somebody waits: nobody is admitted unrecorded or past the line, and whoever
//! makes room is heard.

use crate::policies;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate_limiter::{
    Admission, Algorithm, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Request, Until,
    WaitError, acquire_all_at,
    algorithm::{Concurrency, LeakyBucket, SlidingWindow},
};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + Send + 'a>>;

fn poll(waiting: &mut Waiting<'_>) -> Poll<Result<Admission, WaitError>> {
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn is_admitted(waiting: &mut Waiting<'_>) -> bool {
    matches!(poll(waiting), Poll::Ready(Ok(_)))
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    fn has_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

const START: Nanos = Nanos::from_secs(100);

const ROUNDS: u64 = 50;

fn keyed(policy: impl Into<Policy>) -> (ManualTimer, KeyedLimiter<ManualTimer>) {
    let timer = ManualTimer::new(START);
    (
        timer.clone(),
        KeyedLimiter::builder(policy)
            .max_keys(1_000)
            .clock(timer)
            .build()
            .unwrap(),
    )
}

fn unkeyed(policy: impl Into<Policy>) -> (ManualTimer, Limiter<ManualTimer>) {
    let timer = ManualTimer::new(START);
    (timer.clone(), Limiter::with_clock(policy, timer))
}

/// Two a second, in every algorithm that counts time.
fn two_a_second() -> Vec<Policy> {
    policies::denying(Quota::per_second(2))
}

#[test]
fn a_caller_behind_a_waiter_is_admitted_only_with_what_is_recorded() {
    for policy in two_a_second() {
        let (timer, one) = unkeyed(policy);
        assert_eq!(one.acquire_up_to(2).0, 2);
        let mut waiting: Waiting<'_> = Box::pin(one.wait(1, None));
        assert!(poll(&mut waiting).is_pending());
        timer.advance(Duration::from_millis(2_200));
        let admitted = (0..1_000).filter(|_| one.acquire(1).is_allowed()).count();
        assert_eq!(
            admitted,
            1,
            "{}: one unit is the waiter's, polled or not",
            policy.name()
        );
        assert!(is_admitted(&mut waiting));

        let (timer, keys) = keyed(policy);
        assert_eq!(keys.acquire_up_to("a", 2).0, 2);
        let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
        assert!(poll(&mut waiting).is_pending());
        timer.advance(Duration::from_millis(2_200));
        let admitted = (0..1_000)
            .filter(|_| keys.acquire("a", 1).is_allowed())
            .count();
        assert_eq!(admitted, 1, "{}", policy.name());
        assert!(is_admitted(&mut waiting));
    }
}

#[test]
fn a_caller_behind_a_line_is_admitted_exactly_at_its_retry_time() {
    for policy in two_a_second() {
        let (timer, keys) = keyed(policy);
        assert_eq!(keys.acquire_up_to("a", 2).0, 2);
        let mut line: Vec<Waiting<'_>> = (0..5)
            .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        for waiting in &mut line {
            assert!(poll(waiting).is_pending());
        }
        // Nobody keeps to the plan: the first are admitted late.
        timer.advance(Duration::from_millis(2_300));
        let told = Nanos::from(keys.acquire("a", 1).retry_after().unwrap());
        // Time goes by as the line is served, to the nanosecond before.
        let end = Nanos::new(tidegate_limiter::Clock::now(&timer).get() + told.get());
        while let Some(next) = next_admission(&mut line, &timer, end) {
            timer.set(next);
        }
        timer.set(Nanos::new(end.get() - 1));
        assert!(
            keys.peek("a", 1).is_denied() && keys.acquire("a", 1).is_denied(),
            "{}",
            policy.name()
        );
        timer.set(end);
        assert!(
            keys.peek("a", 1).is_allowed() && keys.acquire("a", 1).is_allowed(),
            "{}",
            policy.name()
        );
    }
}

/// Polls everybody; returns the next time before `end` at which somebody may be admitted, a
/// millisecond at a time.
fn next_admission(line: &mut Vec<Waiting<'_>>, timer: &ManualTimer, end: Nanos) -> Option<Nanos> {
    line.retain_mut(|waiting| poll(waiting).is_pending());
    let next = Nanos::new(tidegate_limiter::Clock::now(timer).get() + 1_000_000);
    (!line.is_empty() && next < end).then_some(next)
}

#[test]
fn joint_and_partial_decisions_do_not_overtake_waiters() {
    let (timer, keys) = keyed(Policy::token_bucket(Quota::per_second(1)));
    let other = Limiter::with_clock(Policy::token_bucket(Quota::per_second(100)), timer.clone());
    assert!(keys.acquire("a", 1).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Duration::from_secs(1));
    let both = [Request::keyed(&keys, b"a", 1), Request::unkeyed(&other, 1)];
    let denied = acquire_all_at(&both, tidegate_limiter::Clock::now(&timer)).unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(
        denied.binding().unwrap().retry_after(),
        Some(Duration::from_secs(1))
    );
    assert_eq!(other.peek(0).remaining(), 100, "nothing was charged");
    assert!(
        is_admitted(&mut waiting),
        "the unit went to whoever waited for it"
    );

    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Duration::from_secs(1));
    assert_eq!(keys.acquire_up_to("a", 1).0, 0);
    assert!(is_admitted(&mut waiting));
}

#[test]
fn a_future_that_is_not_polled_delays_no_other_waiter() {
    let (timer, keys) = keyed(Policy::token_bucket(Quota::per_second(1)));
    assert!(keys.acquire("a", 1).is_allowed());
    let mut held: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    let mut next: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    assert!(poll(&mut held).is_pending());
    assert!(
        next.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    timer.advance(Duration::from_secs(1));
    assert!(!bell.has_rung(), "it is the turn of the first");
    timer.advance(Duration::from_millis(9));
    assert!(bell.has_rung(), "the first was not polled");
    assert!(poll(&mut next).is_pending());
    timer.advance(Duration::from_secs(1));
    assert!(
        is_admitted(&mut next),
        "the unit before was recorded for the first, nine milliseconds late"
    );
    assert!(is_admitted(&mut held));
}

#[test]
fn held_futures_delay_a_waiter_by_less_than_ten_milliseconds_however_many_they_are() {
    for held in [1, 4, 5, 64, 2_000] {
        let (timer, keys) = keyed(Policy::token_bucket(Quota::per_second(1_000)));
        assert_eq!(keys.acquire_up_to("a", 1_000).0, 1_000);
        let mut line: Vec<Waiting<'_>> = (0..=held)
            .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut last = line.pop().unwrap();
        for waiting in &mut line {
            assert!(poll(waiting).is_pending());
        }
        let mut poll_last = || {
            last.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        };
        assert!(!poll_last());
        // The last one is due after `held + 1` milliseconds. Its task runs only when it is woken.
        let (mut rung, mut millis) = (0, 0);
        while millis < held + 11 {
            timer.advance(Duration::from_millis(1));
            millis += 1;
            if bell.0.load(Ordering::Relaxed) > rung {
                rung = bell.0.load(Ordering::Relaxed);
                if poll_last() {
                    break;
                }
            }
        }
        assert!(
            millis <= held + 11 && rung > 0,
            "{held} held: {millis} ms, woken {rung} times"
        );
        assert_eq!(
            keys.peek("a", 0).remaining(),
            millis - held - 1,
            "{held} held: recorded for each, once"
        );
        assert!(line.iter_mut().all(is_admitted));
    }
}

#[test]
fn an_admission_of_a_dropped_waiter_is_refunded() {
    let (timer, keys) = keyed(Policy::sliding_log(Quota::per_second(1)).unwrap());
    assert!(keys.acquire("a", 1).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Duration::from_secs(1));
    assert!(keys.acquire("a", 1).is_denied(), "recorded for the waiter");
    drop(waiting);
    assert!(keys.acquire("a", 1).is_allowed());
}

#[test]
fn leaving_an_old_line_removes_nobody_from_a_new_line() {
    let (timer, keys) = keyed(Policy::sliding_log(Quota::per_second(1)).unwrap());
    assert!(keys.check("a").is_allowed());
    let mut first: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut first).is_pending());
    timer.advance(Duration::from_secs(1));
    // Admits the first, which ends its line, and finds nothing left.
    assert!(keys.check("a").is_denied());
    let mut second: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut second).is_pending());
    drop(first);
    assert!(is_admitted(&mut second), "by what the first gave back");
}

#[test]
fn a_raised_quota_wakes_waiters() {
    let (_, keys) = keyed(Policy::token_bucket(Quota::per_hour(1)));
    assert!(keys.acquire("a", 1).is_allowed());
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    keys.at(START)
        .set_policy(Policy::token_bucket(Quota::per_hour(2)))
        .unwrap();
    assert!(bell.has_rung());
    assert!(is_admitted(&mut waiting));
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    keys.at(START)
        .set_override("a", Policy::token_bucket(Quota::per_hour(3)))
        .unwrap();
    assert!(is_admitted(&mut waiting));
}

#[test]
fn a_refund_or_an_unblock_wakes_waiters() {
    for _ in 0..2 {
        let (_, keys) = keyed(Policy::sliding_window(Quota::per_hour(1)));
        assert!(keys.acquire("a", 1).is_allowed());
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        keys.refund("a", 1);
        assert!(bell.has_rung() && is_admitted(&mut waiting));
    }
    let (_, keys) = keyed(Policy::sliding_window(Quota::per_hour(1)));
    keys.at(START)
        .block("a", Until(Nanos::from_secs(4_000)))
        .unwrap();
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    assert!(keys.at(START).unblock("a") && is_admitted(&mut waiting));

    let (_, one) = unkeyed(Policy::sliding_window(Quota::per_hour(1)));
    one.block(Until(Nanos::from_secs(4_000)));
    let mut waiting: Waiting<'_> = Box::pin(one.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    assert!(one.unblock() && is_admitted(&mut waiting));
    let mut waiting: Waiting<'_> = Box::pin(one.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    one.refund(1);
    assert!(is_admitted(&mut waiting));
}

#[test]
fn a_block_is_waited_out() {
    let (timer, keys) = keyed(Policy::token_bucket(Quota::per_second(1)));
    keys.at(START)
        .block("a", Until(Nanos::from_secs(105)))
        .unwrap();
    let mut waiting: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(poll(&mut waiting).is_pending());
    let mut late: Waiting<'_> = Box::pin(keys.wait("a", 1, Some(Nanos::from_millis(105_999))));
    let Poll::Ready(Err(WaitError::Deadline(told))) = poll(&mut late) else {
        panic!("not told at once")
    };
    assert!(told.retry_after().is_some());
    timer.advance(Duration::from_secs(5));
    assert!(is_admitted(&mut waiting));
    keys.at(Nanos::from_secs(105))
        .block("a", Until::UNBLOCKED)
        .unwrap();
    let mut never: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
    assert!(matches!(
        poll(&mut never),
        Poll::Ready(Err(WaitError::Never(_)))
    ));
}

#[test]
fn waiting_for_a_permit_ends_when_one_comes_back() {
    for policy in [
        Policy::concurrency(2),
        Concurrency::new(2)
            .hold(Duration::from_hours(1))
            .unwrap()
            .into(),
    ] {
        let (timer, keys) = keyed(policy);
        assert_eq!(keys.acquire_up_to("a", 2).0, 2);
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut first: Waiting<'_> = Box::pin(keys.wait("a", 1, None));
        let mut second: Waiting<'_> = Box::pin(keys.wait("a", 1, Some(Nanos::from_secs(8_000))));
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        assert!(poll(&mut second).is_pending());
        assert!(keys.acquire("a", 1).is_denied());
        keys.refund("a", 1);
        assert!(bell.has_rung());
        assert!(
            keys.acquire("a", 1).is_denied(),
            "the permit is the waiter's"
        );
        assert!(poll(&mut second).is_pending() && is_admitted(&mut first));
        keys.refund("a", 1);
        assert!(is_admitted(&mut second));
        let mut late: Waiting<'_> = Box::pin(keys.wait("a", 1, Some(Nanos::from_millis(100_500))));
        let told = poll(&mut late);
        timer.advance(Duration::from_secs(1));
        let told = if told.is_pending() {
            poll(&mut late)
        } else {
            told
        };
        assert!(matches!(told, Poll::Ready(Err(WaitError::Deadline(_)))));
        let mut never: Waiting<'_> = Box::pin(keys.wait("a", 3, None));
        assert!(matches!(
            poll(&mut never),
            Poll::Ready(Err(WaitError::Never(_)))
        ));
    }
}

#[test]
fn a_cancelled_slot_of_a_leaky_bucket_goes_to_the_next_caller() {
    // 300/1s is no whole number of nanoseconds apart.
    for limit in [10, 300] {
        let interval = Duration::from_secs(1) / limit;
        let bucket = LeakyBucket::new(Quota::per_second(limit.into()))
            .max_wait(Duration::from_mins(1))
            .unwrap();
        let (timer, one) = unkeyed(bucket);
        assert!(one.acquire(1).is_allowed());
        let mut line: Vec<Option<Waiting<'_>>> = (0..100)
            .map(|_| Some(Box::pin(one.wait(1, None)) as Waiting<'_>))
            .collect();
        for waiting in line.iter_mut().flatten() {
            assert!(poll(waiting).is_pending());
        }
        for waiting in line.iter_mut().step_by(2) {
            *waiting = None;
        }
        for _ in 0..50 {
            let mut next: Waiting<'_> = Box::pin(one.wait(1, None));
            assert!(poll(&mut next).is_pending());
            line.push(Some(next));
        }
        // Everybody has a start of their own: the hundred places after the first, and no more.
        let mut starts: Vec<Nanos> = Vec::new();
        for at in 1..=100 {
            let due = START.get()
                + (Duration::from_secs(at).as_nanos() as u64).div_ceil(u64::from(limit));
            timer.set(Nanos::new(due));
            for waiting in &mut line {
                if waiting.as_mut().is_some_and(is_admitted) {
                    *waiting = None;
                    starts.push(Nanos::new(due));
                }
            }
        }
        assert_eq!(starts.len(), 100, "limit {limit}");
        assert!(starts.windows(2).all(
            |two| two[1].saturating_since(two[0]) >= Nanos::new(interval.as_nanos() as u64 - 1)
        ));
        assert!(
            one.acquire(1).delay() <= interval + Duration::from_nanos(1),
            "no place was lost"
        );
    }
}

#[test]
fn a_refund_does_not_take_the_slot_of_a_waiter() {
    let (timer, one) = unkeyed(Policy::leaky_bucket(Quota::per_second(10)));
    let mut mine: Waiting<'_> = Box::pin(one.wait(1, None));
    assert!(is_admitted(&mut mine));
    let taken = one.acquire(1);
    assert_eq!(taken.delay(), Duration::from_millis(100));
    let mut waiting: Waiting<'_> = Box::pin(one.wait(1, None));
    assert!(poll(&mut waiting).is_pending(), "starts at 200 ms");
    one.refund(1);
    assert_eq!(
        one.acquire(1).delay(),
        Duration::from_millis(300),
        "nobody starts beside the one who waits"
    );
    timer.advance(Duration::from_millis(200));
    assert!(is_admitted(&mut waiting));
}

#[test]
fn a_waiting_future_is_at_most_three_cache_lines() {
    let (_, one) = unkeyed(Policy::token_bucket(Quota::per_second(1)));
    let (_, keys) = keyed(Policy::token_bucket(Quota::per_second(1)));
    assert!(size_of_val(&one.wait(1, None)) <= 192);
    assert!(size_of_val(&keys.wait("a", 1, None)) <= 192);
}

#[test]
fn a_hundred_thousand_join_one_line_and_leave_it() {
    let (_, keys) = keyed(Policy::token_bucket(Quota::per_second(1_000)));
    assert_eq!(keys.acquire_up_to("a", 1_000).0, 1_000);
    let mut line: Vec<Waiting<'_>> = (0..100_000)
        .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
        .collect();
    for waiting in &mut line {
        assert!(poll(waiting).is_pending());
    }
    assert_eq!(
        keys.acquire("a", 1).retry_after(),
        Some(Duration::from_millis(100_001))
    );
    // From the middle, the front and the end.
    line.drain(20_000..80_000);
    line.drain(..10_000);
    line.truncate(1);
    assert_eq!(
        keys.acquire("a", 1).retry_after(),
        Some(Duration::from_millis(2))
    );
    drop(line);
    assert_eq!(
        keys.acquire("a", 1).retry_after(),
        Some(Duration::from_millis(1))
    );
}

#[test]
fn restoring_a_leaky_bucket_admits_nobody_beside_its_waiters() {
    let leaky = LeakyBucket::new(Quota::per_second(10))
        .max_wait(Duration::from_mins(1))
        .unwrap();
    // By way of another algorithm, and of another rate.
    let slower = LeakyBucket::new(Quota::per_second(9))
        .max_wait(Duration::from_mins(1))
        .unwrap();
    for between in [
        Policy::token_bucket(Quota::per_second(40)),
        Policy::concurrency(40),
        slower.into(),
    ] {
        let (timer, keys) = keyed(leaky);
        let one = Limiter::with_clock(leaky, timer.clone());
        assert!(keys.acquire("a", 1).is_allowed() && one.acquire(1).is_allowed());
        let mut line: Vec<Waiting<'_>> = (0..20)
            .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        line.extend((0..20).map(|_| Box::pin(one.wait(1, None)) as Waiting<'_>));
        for waiting in &mut line {
            assert!(poll(waiting).is_pending());
        }
        // The last of each starts 2 s after the first.
        for policy in [between, leaky.into()] {
            keys.at(START).set_policy(policy).unwrap();
            one.at(START).set_policy(policy);
        }
        for decision in [keys.acquire("a", 1), one.acquire(1)] {
            assert!(
                decision.delay() >= Duration::from_millis(2_100),
                "{}: {decision:?}",
                between.name()
            );
        }
        timer.advance(Duration::from_secs(2));
        assert!(line.iter_mut().all(is_admitted));
        drop(line);
        timer.advance(Duration::from_mins(1));
        assert_eq!(
            (keys.acquire("a", 1).delay(), one.acquire(1).delay()),
            (Duration::ZERO, Duration::ZERO)
        );
    }
}

#[test]
fn ten_thousand_in_line_are_served_at_the_rate_of_their_policy() {
    let quota = Quota::per_second(1_000);
    let slots = |slots| Policy::from(SlidingWindow::new(quota).slots(slots).unwrap());
    // A strict sliding window counts each unit for a slot longer than the window.
    let policies = [
        (Policy::fixed_window(quota), 1_000.0),
        (Policy::sliding_log(quota).unwrap(), 1_000.0),
        (Policy::sliding_counter(quota), 1_000.0),
        (Policy::token_bucket(quota), 1_000.0),
        (
            LeakyBucket::new(quota)
                .max_wait(Duration::from_mins(1))
                .unwrap()
                .into(),
            1_000.0,
        ),
        (slots(100), 990.1),
        (slots(10), 909.1),
        (SlidingWindow::new(quota).balanced().into(), 1_000.0),
    ];
    for (policy, rate) in policies {
        let (timer, keys) = keyed(policy);
        assert_eq!(keys.acquire_up_to("a", 1_000).0, 1_000);
        let mut line: std::collections::VecDeque<Waiting<'_>> = (0..10_000)
            .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        for waiting in &mut line {
            assert!(poll(waiting).is_pending());
        }
        // When somebody was served, in milliseconds, and how many were in line then.
        let mut served: Vec<(u64, usize)> = Vec::new();
        for ms in 1..20_000 {
            timer.advance(Duration::from_millis(1));
            let before = line.len();
            // In order, so behind the first that is not ready nobody is.
            while line.front_mut().is_some_and(is_admitted) {
                line.pop_front();
            }
            if line.len() < before {
                served.push((ms, line.len()));
            }
            assert!(
                line.len() < 4
                    || policy.name() == "leaky-bucket"
                    || keys.acquire("a", 1).is_denied()
            );
        }
        let ((first, left), (last, none)) = (served[0], served[served.len() - 1]);
        assert_eq!(none, 0, "{policy}: still in line");
        let served = left as f64 / ((last - first) as f64 / 1_000.0);
        assert!(
            (served / rate - 1.0).abs() < 0.01,
            "{policy}: {served:.1}/s instead of {rate}/s"
        );
    }
}

#[test]
fn behind_a_shortened_line_the_retry_time_is_exact_after_one_ask_per_64_waiters() {
    for policy in [
        Policy::token_bucket(Quota::per_second(1_000)),
        Policy::sliding_window(Quota::per_second(10)),
    ] {
        let (_, keys) = keyed(policy);
        let limit = policy.limit();
        assert_eq!(keys.acquire_up_to("a", limit).0, limit);
        let mut line: Vec<Waiting<'_>> = (0..5_000)
            .map(|_| Box::pin(keys.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        for waiting in &mut line {
            assert!(poll(waiting).is_pending());
        }
        let told = |keys: &KeyedLimiter<_>| keys.acquire("a", 1).retry_after().unwrap();
        let before = told(&keys);
        line.drain(1_000..3_000);
        // Renewed 64 at a time; until then the answer is that of the line as it was.
        let mut answers: Vec<Duration> =
            (0..=3_000_u64.div_ceil(64)).map(|_| told(&keys)).collect();
        let exact = answers.pop().unwrap();
        assert!(
            answers
                .iter()
                .all(|&answer| answer == before || answer == exact)
        );
        let (_, fresh) = keyed(policy);
        assert_eq!(fresh.acquire_up_to("a", limit).0, limit);
        let mut same: Vec<Waiting<'_>> = (0..3_000)
            .map(|_| Box::pin(fresh.wait("a", 1, None)) as Waiting<'_>)
            .collect();
        for waiting in &mut same {
            assert!(poll(waiting).is_pending());
        }
        assert_eq!(exact, told(&fresh), "{policy}");
    }
}

#[test]
fn waiting_threads_never_exceed_the_highest_limit_while_the_policy_changes() {
    let timer = ManualTimer::new(START);
    let log = |limit| Policy::sliding_log(Quota::per_second(limit)).unwrap();
    let one = Limiter::with_clock(log(100), timer.clone());
    let (by_wait, by_call) = (AtomicU64::new(0), AtomicU64::new(0));
    let goal = ROUNDS * 40;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..goal / 2 {
                    let _ = futures::executor::block_on(one.wait(1, None)).unwrap();
                    by_wait.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while by_wait.load(Ordering::Relaxed) < goal {
                by_call.fetch_add(u64::from(one.acquire(1).is_allowed()), Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let limits = (50..=100).chain((50..100).rev()).cycle();
            for limit in limits.take_while(|_| by_wait.load(Ordering::Relaxed) < goal) {
                one.set_policy(log(limit));
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while by_wait.load(Ordering::Relaxed) < goal {
                timer.advance(Duration::from_millis(5));
                std::thread::yield_now();
            }
        });
    });
    let spent = tidegate_limiter::Clock::now(&timer)
        .saturating_since(START)
        .get();
    let total = by_wait.into_inner() + by_call.into_inner();
    let most = (spent / 1_000_000_000 + 1) * 100;
    assert!(total <= most, "{total} of {most}");
}

#[test]
fn waiting_and_other_threads_together_never_exceed_the_limit() {
    let timer = ManualTimer::new(START);
    let keys = KeyedLimiter::builder(Policy::sliding_log(Quota::per_second(100)).unwrap())
        .max_keys(64)
        .clock(timer.clone())
        .build()
        .unwrap();
    let (by_wait, by_call) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS * 20 {
                    let _ = futures::executor::block_on(keys.wait("a", 1, None)).unwrap();
                    by_wait.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS * 2_000 {
                by_call.fetch_add(
                    u64::from(keys.acquire("a", 1).is_allowed()),
                    Ordering::Relaxed,
                );
                let mut impatient: Waiting<'_> = Box::pin(keys.wait("a", 2, None));
                if is_admitted(&mut impatient) {
                    by_call.fetch_add(2, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            while by_wait.load(Ordering::Relaxed) < ROUNDS * 60 {
                timer.advance(Duration::from_millis(5));
                std::thread::yield_now();
            }
        });
    });
    let spent = tidegate_limiter::Clock::now(&timer)
        .saturating_since(START)
        .get();
    let total = by_wait.into_inner() + by_call.into_inner();
    let most = (spent / 1_000_000_000 + 1) * 100;
    assert!(total <= most, "{total} of {most}");
}

#[test]
fn a_dropped_permit_goes_to_a_waiter() {
    let (_, keys) = keyed(Policy::concurrency(1));
    let first = keys.permit("a", 1).unwrap();
    assert!(keys.permit("a", 1).is_err() && keys.permit("b", 1).is_ok());
    let mut waiting = Box::pin(keys.wait_permit("a", 1, None));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    drop(first);
    let Poll::Ready(Ok(second)) = waiting.as_mut().poll(&mut cx) else {
        panic!("the permit is back")
    };
    assert!(keys.check("a").is_denied());
    second.keep();
    assert!(keys.check("a").is_denied(), "kept for good");

    let (_, one) = unkeyed(Policy::concurrency(1));
    let first = one.permit(1).unwrap();
    assert!(one.check().is_denied());
    drop(first);
    assert!(one.check().is_allowed());
}

#[test]
fn a_wait_with_a_timeout_ends_with_the_timeout() {
    let (timer, keys) = keyed(Policy::token_bucket(Quota::per_second(1)));
    assert!(keys.check("a").is_allowed());
    let mut late: Waiting<'_> = Box::pin(keys.wait_for("a", 1, Duration::from_millis(999)));
    assert!(matches!(
        poll(&mut late),
        Poll::Ready(Err(WaitError::Deadline(_)))
    ));
    let mut in_time: Waiting<'_> = Box::pin(keys.wait_for("a", 1, Duration::from_secs(1)));
    assert!(poll(&mut in_time).is_pending());
    timer.advance(Duration::from_secs(1));
    assert!(is_admitted(&mut in_time));
    keys.block_for("a", Duration::from_secs(9)).unwrap();
    assert!(keys.check("a").is_denied() && keys.unblock("a"));
}
