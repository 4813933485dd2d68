//! What it takes to serve a line: one wake-up and at most two sleeps for an admission, however many wait,
//! and none for a caller that leaves.

#[path = "integration/policies/mod.rs"]
mod policies;

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
    Admission, AllDecision, Clock, KeyedLimiter, ManualTimer, Nanos, Policy, Quota, Request, Timer,
    WaitAllError, WaitError, wait_all,
};

const START: Nanos = Nanos::from_secs(100);

/// A clock that counts its sleeps.
#[derive(Clone, Default)]
struct Counted {
    timer: ManualTimer,
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Counted {
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many sleeps there are now.
    fn sleeps(&self) -> u64 {
        self.begun() - self.ended.load(Ordering::Relaxed)
    }
}

impl Clock for Counted {
    fn now(&self) -> Nanos {
        self.timer.now()
    }

    fn wall_ahead(&self) -> i64 {
        self.timer.wall_ahead()
    }
}

struct CountsItsEnd(Arc<AtomicU64>);

impl Drop for CountsItsEnd {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Timer for Counted {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let (sleep, end) = (
            self.timer.sleep_until(at),
            CountsItsEnd(Arc::clone(&self.ended)),
        );
        async move {
            let _end = end;
            sleep.await;
        }
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A caller, which is polled only when it was woken.
struct Caller<'a, T> {
    waiting: Waiting<'a, T>,
    bell: Arc<Bell>,
    heard: u64,
}

impl<'a, T> Caller<'a, T> {
    /// A caller that is polled once.
    fn new(waiting: impl Future<Output = T> + 'a) -> Self {
        let mut caller = Self {
            waiting: Box::pin(waiting),
            bell: Arc::default(),
            heard: 0,
        };
        assert!(caller.poll().is_none(), "it waits");
        caller
    }

    fn rung(&self) -> u64 {
        self.bell.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) -> Option<T> {
        self.heard = self.rung();
        let waker = Waker::from(Arc::clone(&self.bell));
        match self.waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// The result, if it was woken and has one.
    fn poll_if_woken(&mut self) -> Option<T> {
        if self.rung() > self.heard {
            self.poll()
        } else {
            None
        }
    }
}

fn used_up(policy: impl Into<Policy>, used: u64) -> (Counted, KeyedLimiter<Counted>) {
    let clock = Counted::default();
    clock.timer.set(START);
    let builder = KeyedLimiter::builder(policy).max_keys(1_000);
    let limiter = builder.clock(clock.clone()).build().unwrap();
    assert_eq!(limiter.acquire_up_to("a", used).0, used);
    (clock, limiter)
}

/// Lets time go by until all callers are served; returns their results in that order.
fn serve<T>(clock: &Counted, mut line: Vec<Caller<'_, T>>, step: Duration) -> Vec<T> {
    let mut results = Vec::new();
    for _ in 0..1_000_000 {
        if line.is_empty() {
            return results;
        }
        clock.timer.advance(step);
        while line.iter().any(|caller| caller.rung() > caller.heard) {
            line.retain_mut(|caller| match caller.poll_if_woken() {
                Some(result) => {
                    results.push(result);
                    false
                }
                None => true,
            });
        }
    }
    panic!("{} callers are not served", line.len());
}

#[test]
fn an_admission_takes_one_wake_and_two_sleeps_at_most_whatever_the_policy() {
    const CALLERS: u64 = 300;
    for policy in policies::denying(Quota::per_second(10)) {
        for deadline in [None, Some(Nanos::from_secs(10_000))] {
            let (clock, limiter) = used_up(policy, 10);
            let begun = clock.begun();
            let line: Vec<Caller<'_, Result<Admission, WaitError>>> = (0..CALLERS)
                .map(|_| Caller::new(limiter.wait("a", 1, deadline)))
                .collect();
            assert!(clock.sleeps() <= 1, "{}: the line's", policy.name());
            let bells: Vec<_> = line.iter().map(|caller| Arc::clone(&caller.bell)).collect();
            let admitted = serve(&clock, line, Duration::from_millis(1));
            assert!(admitted.iter().all(Result::is_ok), "{}", policy.name());
            let woken = bells.iter().map(|bell| bell.0.load(Ordering::Relaxed));
            assert!(
                woken.clone().all(|times| times == 1),
                "{}: {:?}",
                policy.name(),
                woken.collect::<Vec<_>>()
            );
            assert!(
                clock.begun() - begun <= 2 * CALLERS + 1,
                "{}: {} sleeps",
                policy.name(),
                clock.begun() - begun
            );
            assert_eq!(clock.sleeps(), 0, "{}: the line is empty", policy.name());
        }
    }
}

#[test]
fn callers_that_are_due_soon_after_another_take_one_sleep_each() {
    const CALLERS: u64 = 1_000;
    let (clock, limiter) = used_up(Policy::token_bucket(Quota::per_second(500)), 500);
    let line = (0..CALLERS)
        .map(|_| Caller::new(limiter.wait("a", 1, None)))
        .collect();
    let admitted: Vec<Result<Admission, WaitError>> = serve(&clock, line, Duration::from_millis(1));
    assert!(admitted.iter().all(Result::is_ok));
    assert!(clock.begun() <= CALLERS + 2, "{} sleeps", clock.begun());
}

#[test]
fn a_wait_for_all_of_one_limit_takes_no_more() {
    let (clock, limiter) = used_up(Policy::token_bucket(Quota::per_second(10)), 10);
    let request = [Request::keyed(&limiter, b"a", 1)];
    let line: Vec<Caller<'_, Result<AllDecision, WaitAllError>>> = (0..100)
        .map(|_| Caller::new(wait_all(&request, Some(Nanos::from_secs(10_000)))))
        .collect();
    assert_eq!(clock.sleeps(), 1);
    let bells: Vec<_> = line.iter().map(|caller| Arc::clone(&caller.bell)).collect();
    let admitted = serve(&clock, line, Duration::from_millis(1));
    assert!(admitted.iter().all(Result::is_ok));
    assert!(bells.iter().all(|bell| bell.0.load(Ordering::Relaxed) == 1));
    assert_eq!(clock.sleeps(), 0);
}

#[test]
fn who_is_held_up_is_woken_at_its_own_deadline_alone() {
    let (clock, limiter) = used_up(Policy::token_bucket(Quota::per_second(10)), 10);
    // The last to come has the first deadline.
    let deadlines = [40, 30, 20, 10].map(|after| START.saturating_add(Nanos::from_secs(after)));
    let mut line: Vec<_> = deadlines
        .iter()
        .map(|at| Caller::new(limiter.wait("a", 1, Some(*at))))
        .collect();
    let hour = Duration::from_hours(1);
    limiter.block_for("a", hour).unwrap();
    for served in (0..4).rev() {
        clock.timer.set(Nanos::new(deadlines[served].get() - 1));
        assert!(line.iter().all(|caller| caller.rung() == caller.heard));
        clock.timer.set(deadlines[served]);
        let mut last = line.pop().unwrap();
        assert!(line.iter().all(|caller| caller.rung() == caller.heard));
        let Some(Err(WaitError::Deadline(denied))) = last.poll_if_woken() else {
            panic!("it was not woken");
        };
        assert!(denied.is_denied());
    }
    drop(line);
    assert_eq!(clock.sleeps(), 0, "nobody waits");
}

#[test]
fn the_deadline_of_a_caller_who_has_left_wakes_nobody_and_leaves_no_sleep() {
    // The time of a permit is unknown, so the line sleeps for deadlines alone.
    let (clock, limiter) = used_up(Policy::concurrency(10), 10);
    let at = |after| Some(START.saturating_add(Nanos::from_secs(after)));
    let first = Caller::new(limiter.wait("a", 1, at(10)));
    let mut second = Caller::new(limiter.wait("a", 1, at(20)));
    assert_eq!(clock.sleeps(), 1);
    drop(first);
    clock.timer.advance(Duration::from_secs(15));
    assert_eq!(second.rung(), 0);
    limiter.refund("a", 1);
    assert!(matches!(second.poll_if_woken(), Some(Ok(_))));
    assert_eq!(second.rung(), 1);
    assert_eq!(clock.sleeps(), 0, "the deadline is not slept for");
    let third = Caller::new(limiter.wait("a", 1, at(100)));
    assert_eq!(clock.sleeps(), 1);
    drop(third);
    assert_eq!(clock.sleeps(), 0);
}
