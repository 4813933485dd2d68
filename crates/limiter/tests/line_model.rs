//! Every short history of a line, with the real line: callers join, are polled, are held unpolled,
//! cancel, ask and change the policy, in every order. After each history all callers that are still
//! polled must be served, with a delay of at most 10 ms for each unit, however many callers are
//! held.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate_limiter::{Admission, Limiter, ManualTimer, Nanos, Policy, Quota, WaitError};

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + 'a>>;

const START: Nanos = Nanos::from_secs(1_000);
/// The time of one unit of the slower policy.
const UNIT: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A caller joins whose task is polled whenever it is woken.
    Join,
    /// A caller joins, and is then held unpolled.
    JoinHeld,
    /// The task of the first caller that is polled is held from now on.
    Hold,
    /// The first caller, or the last, gives up.
    CancelFirst,
    CancelLast,
    /// A caller that does not wait.
    Ask,
    /// Twice the rate, or the slower one again.
    Faster,
    Slower,
    /// The time of one unit passes, and a little.
    Pass,
}

use Step::{Ask, CancelFirst, CancelLast, Faster, Hold, Join, JoinHeld, Pass, Slower};

const STEPS: [Step; 9] = [
    Join,
    JoinHeld,
    Hold,
    CancelFirst,
    CancelLast,
    Ask,
    Faster,
    Slower,
    Pass,
];

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Caller<'a> {
    waiting: Waiting<'a>,
    woken: Arc<Woken>,
    is_held: bool,
}

impl Caller<'_> {
    /// Runs the task if it was woken; returns whether the caller was served.
    fn run(&mut self) -> bool {
        if self.is_held || !self.woken.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.poll()
    }

    fn poll(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(served) => {
                assert!(served.is_ok());
                true
            }
            Poll::Pending => false,
        }
    }
}

fn run_all(callers: &mut Vec<Caller<'_>>) {
    // A task may wake another one.
    loop {
        let before = callers.len();
        callers.retain_mut(|caller| !caller.run());
        if callers.len() == before {
            return;
        }
    }
}

fn policy(per_second: u64) -> Policy {
    let bucket = tidegate_limiter::algorithm::TokenBucket::new(Quota::per_second(per_second));
    bucket.burst(1).unwrap().into()
}

fn check(history: &[Step]) {
    let timer = ManualTimer::new(START);
    let limiter = Limiter::with_clock(policy(10), timer.clone());
    assert!(limiter.acquire(1).is_allowed());
    let mut callers: Vec<Caller<'_>> = Vec::new();
    for step in history {
        match step {
            Join | JoinHeld => {
                let mut caller = Caller {
                    waiting: Box::pin(limiter.wait(1, None)),
                    woken: Arc::default(),
                    is_held: *step == JoinHeld,
                };
                if !caller.poll() {
                    callers.push(caller);
                }
            }
            Hold => {
                if let Some(caller) = callers.iter_mut().find(|caller| !caller.is_held) {
                    caller.is_held = true;
                }
            }
            CancelFirst if !callers.is_empty() => drop(callers.remove(0)),
            CancelLast => drop(callers.pop()),
            Ask if callers.is_empty() => {}
            Ask => {
                let _ = limiter.acquire(1);
            }
            Faster => limiter.set_policy(policy(20)),
            Slower => limiter.set_policy(policy(10)),
            Pass => timer.advance(UNIT + Duration::from_millis(1)),
            CancelFirst => {}
        }
        run_all(&mut callers);
    }
    // In steps of a millisecond: one unit for each caller, and 10 ms.
    let patience = (UNIT + Duration::from_millis(10)) * (callers.len() as u32 + 1);
    for _ in 0..patience.as_millis() {
        if callers.iter().all(|caller| caller.is_held) {
            break;
        }
        timer.advance(Duration::from_millis(1));
        run_all(&mut callers);
    }
    let left = callers.iter().filter(|caller| !caller.is_held).count();
    assert_eq!(
        left, 0,
        "{left} callers that are polled were not served after {history:?}"
    );
}

/// Every history of this length, by counting in the base of the number of steps.
fn check_all(length: u32) {
    for number in 0..STEPS.len().pow(length) {
        let digits = (0..length).map(|at| number / STEPS.len().pow(at) % STEPS.len());
        check(&digits.map(|digit| STEPS[digit]).collect::<Vec<_>>());
    }
}

#[test]
fn in_every_short_history_the_callers_that_are_polled_are_served() {
    check_all(5);
    // The front is held by more than a few; then every history.
    for number in 0..STEPS.len().pow(2) {
        for held in [4, 5, 70] {
            let mut history = vec![JoinHeld; held];
            history.extend([
                Join,
                STEPS[number % STEPS.len()],
                STEPS[number / STEPS.len()],
            ]);
            check(&history);
        }
    }
}

/// About a minute in release.
#[test]
#[ignore = "a long test"]
fn in_every_longer_history_the_callers_that_are_polled_are_served() {
    check_all(7);
}
