//! Whatever is done to a key, no window ever holds more than the highest limit that stood in it: random changes of policy,
//! overrides, waits, cancellations, refunds, blocks, joint and partial decisions, against a list of all admissions.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;
use tidegate_limiter::{
    Clock, Decision, KeyedLimiter, ManualTimer, Nanos, Policy, Quota, Request, WaitError, acquire_all_at,
};

const WINDOW: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(u64),
    Acquire(u32),
    UpTo(u32),
    Joint(u32),
    Wait(u32),
    Cancel(usize),
    Refund(u32),
    Block(u64),
    Unblock,
    Change { limit: u32, slots: bool, finish: bool },
    Override { limit: u32, slots: bool },
    NoOverride,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..400_u64).prop_map(Step::Advance),
        4 => (1..6_u32).prop_map(Step::Acquire),
        1 => (1..9_u32).prop_map(Step::UpTo),
        2 => (1..4_u32).prop_map(Step::Joint),
        3 => (1..5_u32).prop_map(Step::Wait),
        1 => (0..9_usize).prop_map(Step::Cancel),
        1 => (1..4_u32).prop_map(Step::Refund),
        1 => (0..500_u64).prop_map(Step::Block),
        1 => Just(Step::Unblock),
        2 => (1..9_u32, any::<bool>(), any::<bool>())
            .prop_map(|(limit, slots, finish)| Step::Change { limit, slots, finish }),
        1 => (1..9_u32, any::<bool>()).prop_map(|(limit, slots)| Step::Override { limit, slots }),
        1 => Just(Step::NoOverride),
    ]
}

fn policy(limit: u32, slots: bool) -> Policy {
    let quota = Quota::per_second(limit);
    if slots { Policy::sliding_window(quota) } else { Policy::sliding_log(quota).unwrap() }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Decision, WaitError>> + Send + 'a>>;

/// Everything that was admitted, and every limit that stood, with the time at which it came.
#[derive(Default)]
struct Oracle {
    units: Vec<Nanos>,
    limits: Vec<(Nanos, u32)>,
}

impl Oracle {
    fn admit(&mut self, now: Nanos, cost: u32) {
        self.units.extend((0..cost).map(|_| now));
    }

    fn refund(&mut self, cost: u32) {
        let left = self.units.len().saturating_sub(cost as usize);
        self.units.truncate(left);
    }

    /// How many the window before `now` holds, and the highest limit that stood in it.
    fn window(&self, now: Nanos) -> (usize, u32) {
        let is_in = |at: Nanos| now.saturating_since(at) < WINDOW;
        let units = self.units.iter().filter(|at| is_in(**at)).count();
        // A limit stood until the next one came.
        let last = self.limits.last().map_or(0, |(_, limit)| *limit);
        let stood = self.limits.windows(2).filter(|two| is_in(two[1].0)).map(|two| two[0].1);
        (units, stood.fold(last, u32::max))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_window_holds_more_than_the_highest_limit_that_stood_in_it(
        first in 1..9_u32,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let timer = ManualTimer::new(Nanos::from_secs(100));
        let limiter = KeyedLimiter::builder(policy(first, false)).max_keys(8).clock(timer.clone()).build().unwrap();
        let other = KeyedLimiter::builder(Policy::sliding_log(Quota::per_second(6)).unwrap())
            .max_keys(8)
            .clock(timer.clone())
            .build()
            .unwrap();
        let mut oracle = Oracle::default();
        let (mut general, mut own) = (first, None);
        oracle.limits.push((Nanos::ZERO, first));
        let mut line: Vec<(u32, Waiting<'_>)> = Vec::new();
        for step in steps {
            let now = timer.now();
            match step {
                Step::Advance(ms) => timer.advance(Nanos::from_millis(ms)),
                Step::Acquire(cost) => {
                    let decision = limiter.acquire("a", cost);
                    // Whoever waits is served first, and what is left is decided on.
                    serve(&mut line, &mut oracle, now);
                    if decision.is_allowed() {
                        oracle.admit(now, cost);
                    }
                }
                Step::UpTo(cost) => {
                    let granted = limiter.acquire_up_to("a", cost).0;
                    serve(&mut line, &mut oracle, now);
                    oracle.admit(now, granted);
                }
                Step::Joint(cost) => {
                    let both = [Request::keyed(&limiter, b"a", cost), Request::keyed(&other, b"a", 1)];
                    let all = acquire_all_at(&both, now).unwrap();
                    serve(&mut line, &mut oracle, now);
                    if all.is_allowed() {
                        oracle.admit(now, cost);
                    }
                }
                Step::Wait(cost) => line.push((cost, Box::pin(limiter.wait("a", cost, None)))),
                Step::Cancel(at) => {
                    if at < line.len() {
                        drop(line.remove(at));
                    }
                }
                Step::Refund(cost) => {
                    limiter.refund("a", cost);
                    oracle.refund(cost);
                }
                Step::Block(ms) => {
                    limiter.block_at("a", Nanos::new(now.get() + ms * 1_000_000), now).unwrap();
                }
                Step::Unblock => {
                    limiter.unblock_at("a", now);
                }
                Step::Change { limit, slots, finish } => {
                    general = limit;
                    oracle.limits.push((now, own.unwrap_or(general)));
                    let change = limiter.set_policy_at(policy(limit, slots), now).unwrap();
                    if finish {
                        change.finish_at(now);
                    }
                }
                Step::Override { limit, slots } => {
                    own = Some(limit);
                    oracle.limits.push((now, limit));
                    limiter.set_override_at("a", policy(limit, slots), now).unwrap();
                }
                Step::NoOverride => {
                    own = None;
                    oracle.limits.push((now, general));
                    limiter.remove_override_at("a", now);
                }
            }
            serve(&mut line, &mut oracle, timer.now());
            let (units, most) = oracle.window(timer.now());
            prop_assert!(units <= most as usize, "{units} of {most} after {step:?}");
        }
    }
}

/// Polls everybody who waits, and notes who was admitted.
fn serve(line: &mut Vec<(u32, Waiting<'_>)>, oracle: &mut Oracle, now: Nanos) {
    line.retain_mut(|(cost, waiting)| match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => true,
        Poll::Ready(outcome) => {
            if outcome.is_ok() {
                oracle.admit(now, *cost);
            }
            false
        }
    });
}
