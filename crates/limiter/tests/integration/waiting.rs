//! Waiting in line: first come first served, with a deadline, cancel-safe; on a clock that the test
//! moves.

use crate::policies;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate_limiter::{
    Admission, Clock as _, KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, SystemClock,
    Timer, WaitError, algorithm::LeakyBucket,
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

fn limiter(policy: impl Into<Policy>) -> (ManualTimer, Limiter<ManualTimer>) {
    let timer = ManualTimer::new(Nanos::from_secs(100));
    (timer.clone(), Limiter::with_clock(policy, timer))
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (timer, limiter) = limiter(Policy::token_bucket(Quota::per_second(1)));
    assert!(limiter.acquire(1).is_allowed());
    let mut line: Vec<Waiting<'_>> = (0..3)
        .map(|_| Box::pin(limiter.wait(1, None)) as Waiting<'_>)
        .collect();
    for waiting in &mut line {
        assert!(poll(waiting).is_pending());
    }
    for served in 0..3 {
        timer.advance(Nanos::from_secs(1));
        // The last in line asks first, and still stands behind.
        let ready: Vec<usize> = (served..3)
            .rev()
            .filter(|&at| is_admitted(&mut line[at]))
            .collect();
        assert_eq!(ready, [served]);
    }
}

#[test]
fn callers_that_do_not_wait_never_overtake_waiters() {
    let (timer, limiter) = limiter(Policy::sliding_log(Quota::per_second(1)).unwrap());
    assert!(limiter.acquire(1).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Nanos::from_secs(1));
    let denied = limiter.acquire(1);
    assert_eq!(
        denied.retry_after(),
        Some(Duration::from_secs(1)),
        "one second after the one who waits"
    );
    assert!(is_admitted(&mut waiting));
    timer.advance(Nanos::from_secs(1));
    assert!(limiter.acquire(1).is_allowed());
}

#[test]
fn a_dropped_waiter_gives_its_place_back() {
    let (timer, limiter) = limiter(Policy::token_bucket(Quota::per_second(1)));
    assert!(limiter.acquire(1).is_allowed());
    let mut first: Waiting<'_> = Box::pin(limiter.wait(1, None));
    let mut second: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    timer.advance(Nanos::from_secs(1));
    drop(first);
    assert!(
        is_admitted(&mut second),
        "nothing was taken for the one who left"
    );
    timer.advance(Nanos::from_secs(1));
    assert!(
        limiter.acquire(1).is_allowed(),
        "and nobody is in line any more"
    );
}

#[test]
fn a_permit_with_a_longest_hold_is_waited_for_before_the_hold_ends() {
    let permits = tidegate_limiter::algorithm::Concurrency::new(2);
    let policy: Policy = permits.hold(Duration::from_hours(1)).unwrap().into();
    let (timer, limiter) = limiter(policy);
    let soon = Some(timer.now().saturating_add(Nanos::from_secs(30)));
    assert!(limiter.acquire(2).is_allowed());
    let mut first: Waiting<'_> = Box::pin(limiter.wait(1, soon));
    let mut second: Waiting<'_> = Box::pin(limiter.wait(2, soon));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    limiter.refund(1);
    assert!(is_admitted(&mut first), "the permit was returned");
    // A blocked key is not served before its block ends, whatever is returned.
    limiter.block_for(Duration::from_secs(31));
    let mut late: Waiting<'_> = Box::pin(limiter.wait(1, soon));
    assert!(matches!(
        poll(&mut late),
        Poll::Ready(Err(WaitError::Deadline(_)))
    ));
    limiter.unblock();
    limiter.refund(2);
    assert!(is_admitted(&mut second));
}

#[test]
fn an_unreachable_deadline_is_refused_immediately() {
    let (timer, limiter) = limiter(Policy::fixed_window(Quota::per_second(1)));
    assert!(limiter.acquire(1).is_allowed());
    let soon = Some(Nanos::from_millis(100_500));
    let mut late: Waiting<'_> = Box::pin(limiter.wait(1, soon));
    assert!(matches!(
        poll(&mut late),
        Poll::Ready(Err(WaitError::Deadline(_)))
    ));
    let mut first: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut first).is_pending());
    // Behind the first there is room at 102 s only.
    let mut behind: Waiting<'_> = Box::pin(limiter.wait(1, Some(Nanos::from_millis(101_500))));
    let Poll::Ready(Err(WaitError::Deadline(decision))) = poll(&mut behind) else {
        panic!("not told at once")
    };
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(2)));
    timer.advance(Nanos::from_secs(1));
    assert!(is_admitted(&mut first));
}

#[test]
fn a_cost_that_never_fits_is_refused_immediately() {
    let (_, limiter) = limiter(Policy::sliding_window(Quota::per_second(5)));
    let mut waiting: Waiting<'_> = Box::pin(limiter.wait(6, None));
    assert!(matches!(
        poll(&mut waiting),
        Poll::Ready(Err(WaitError::Never(_)))
    ));
}

#[test]
fn a_leaky_bucket_is_waited_out() {
    let bucket = LeakyBucket::new(Quota::per_second(10))
        .max_wait(Duration::from_secs(1))
        .unwrap();
    let (timer, limiter) = limiter(bucket);
    assert!(limiter.acquire(1).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Nanos::from_millis(99));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Nanos::from_millis(1));
    assert!(is_admitted(&mut waiting));
}

#[test]
fn a_dropped_delay_is_refunded() {
    let bucket = LeakyBucket::new(Quota::per_second(10))
        .max_wait(Duration::from_secs(1))
        .unwrap();
    let (timer, limiter) = limiter(bucket);
    assert!(limiter.acquire(1).is_allowed());
    let mut dropped: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut dropped).is_pending());
    drop(dropped);
    let mut late: Waiting<'_> = Box::pin(limiter.wait(1, Some(Nanos::from_millis(100_099))));
    assert!(matches!(
        poll(&mut late),
        Poll::Ready(Err(WaitError::Deadline(_)))
    ));
    let mut next: Waiting<'_> = Box::pin(limiter.wait(1, Some(Nanos::from_millis(100_100))));
    assert!(
        poll(&mut next).is_pending(),
        "the first place after now is free again"
    );
    timer.advance(Nanos::from_millis(100));
    assert!(is_admitted(&mut next));
}

#[test]
fn each_key_has_its_own_line() {
    let timer = ManualTimer::new(Nanos::from_secs(100));
    let policy = Policy::token_bucket(Quota::per_second(1));
    let limiter = KeyedLimiter::builder(policy)
        .clock(timer.clone())
        .build()
        .unwrap();
    assert!(limiter.acquire("a", 1).is_allowed());
    let mut a: Waiting<'_> = Box::pin(limiter.wait("a", 1, None));
    assert!(poll(&mut a).is_pending());
    let mut b: Waiting<'_> = Box::pin(limiter.wait("b", 1, None));
    assert!(is_admitted(&mut b), "nobody is before b");
    assert!(limiter.acquire("a", 1).is_denied() && limiter.acquire("c", 1).is_allowed());
    timer.advance(Nanos::from_secs(1));
    assert!(is_admitted(&mut a));
}

#[test]
fn waiting_needs_no_runtime_and_works_with_the_system_clock() {
    let limiter = Limiter::with_clock(
        Policy::token_bucket(Quota::per_second(200)),
        SystemClock::new(),
    );
    let before = limiter.acquire_up_to(200).0;
    futures::executor::block_on(async {
        for _ in 0..3 {
            let _ = limiter.wait(1, None).await.unwrap();
        }
    });
    assert_eq!(before, 200);
}

#[test]
fn a_wait_beyond_the_end_of_time_is_refused_immediately() {
    let year = Quota::new(1, Duration::from_hours(366 * 24)).unwrap();
    for policy in policies::of(year) {
        let (_, limiter) = limiter(policy);
        assert!(limiter.acquire(1).is_allowed());
        let mut line: Vec<Waiting<'_>> = Vec::new();
        let refused = (0..400).find(|_| {
            let mut waiting: Waiting<'_> = Box::pin(limiter.wait(1, None));
            let answer = poll(&mut waiting);
            line.push(waiting);
            matches!(answer, Poll::Ready(Err(WaitError::Never(_))))
        });
        // Time ends after 146 years; a sliding counter admits one in two windows.
        assert!(
            refused.is_some_and(|at| at > 70),
            "{}: {refused:?}",
            policy.name()
        );
        assert!(
            limiter.acquire(1).retry_after().is_none(),
            "{}",
            policy.name()
        );
    }
}

#[test]
fn a_thread_waits_without_a_runtime() {
    let limiter = Limiter::new(Policy::token_bucket(Quota::per_second(1_000)));
    let keyed = KeyedLimiter::new(Policy::token_bucket(Quota::per_second(1_000))).unwrap();
    for _ in 0..3 {
        limiter.wait_blocking(1_000, None).unwrap();
        keyed.wait_blocking("a", 1_000, None).unwrap();
    }
    assert!(matches!(
        limiter.wait_blocking(1_001, None),
        Err(WaitError::Never(_))
    ));
}

#[test]
fn an_owned_permit_keeps_its_limiter_and_returns_to_it() {
    use std::sync::Arc;
    use tidegate_limiter::OwnedPermit;
    let seats = Arc::new(Limiter::new(Policy::concurrency(1)));
    let keyed = Arc::new(KeyedLimiter::new(Policy::concurrency(1)).unwrap());
    let (one, key) = (
        OwnedPermit::of(&seats, 1).unwrap(),
        OwnedPermit::of_key(&keyed, "a", 1).unwrap(),
    );
    assert!(OwnedPermit::of(&seats, 1).is_err() && OwnedPermit::of_key(&keyed, "a", 1).is_err());
    std::thread::spawn(move || drop((one, key))).join().unwrap();
    let waited = OwnedPermit::wait(&seats, 1, None);
    let again = futures::executor::block_on(waited).unwrap();
    let of_key = futures::executor::block_on(OwnedPermit::wait_key(&keyed, "a", 1, None)).unwrap();
    again.keep();
    drop(of_key);
    assert!(seats.permit(1).is_err() && keyed.permit("a", 1).is_ok());
}

#[test]
fn a_reset_forgets_use_and_serves_the_line() {
    let (timer, limiter) = limiter(Policy::fixed_window(Quota::per_hour(2)));
    assert!(limiter.acquire(2).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    assert!(limiter.reset());
    assert!(is_admitted(&mut waiting));
    assert_eq!(limiter.peek(0).remaining(), 1);
    timer.advance(Nanos::from_secs(3_600));
    assert!(!limiter.reset(), "nothing was in use");
}

#[test]
fn a_sleeper_waits_in_one_place_however_often_it_is_polled_and_in_none_when_it_is_dropped() {
    struct Noted;

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {}
    }

    let noted = Arc::new(Noted);
    let waker = Waker::from(Arc::clone(&noted));
    let mut cx = Context::from_waker(&waker);
    // Each place holds a waker.
    let sleepers = || Arc::strong_count(&noted) - 2;
    let timer = ManualTimer::default();
    let mut sleeps: Vec<_> = (1..=100)
        .map(|at| Box::pin(timer.sleep_until(Nanos::from_secs(at))))
        .collect();
    for _ in 0..3 {
        for sleep in &mut sleeps {
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(sleepers(), 100);
    }
    timer.set(Nanos::from_secs(40));
    assert_eq!(sleepers(), 60, "those whose time has come were woken");
    assert!(
        sleeps[39].as_mut().poll(&mut cx).is_ready()
            && sleeps[40].as_mut().poll(&mut cx).is_pending()
    );
    sleeps.truncate(70);
    assert_eq!(sleepers(), 30);
}

#[test]
fn a_block_that_is_made_shorter_holds_nobody_up_for_longer() {
    let (timer, limiter) = limiter(Policy::token_bucket(Quota::per_second(1)));
    assert!(limiter.acquire(1).is_allowed());
    let mut waiting: Waiting<'_> = Box::pin(limiter.wait(1, None));
    assert!(poll(&mut waiting).is_pending());
    limiter.block_for(Duration::from_hours(1));
    timer.advance(Duration::from_secs(1));
    assert!(poll(&mut waiting).is_pending());
    limiter.block_for(Duration::from_secs(5));
    timer.advance(Duration::from_millis(4_999));
    assert!(poll(&mut waiting).is_pending());
    timer.advance(Duration::from_millis(1));
    assert!(is_admitted(&mut waiting));
}
