//! Whatever is done to a key, nothing is admitted beyond the bound that its algorithm documents,
//! with the highest limit that stood meanwhile: random changes of policy, overrides, waits,
//! cancellations, refunds, blocks, joint and partial decisions, against a list of all admissions.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use proptest::prelude::*;
use tidegate_limiter::{
    Admission, Clock, Decision, KeyedLimiter, ManualTimer, Nanos, Policy, Quota, Request, Until,
    WaitError, acquire_all_at, algorithm::LeakyBucket,
};

const WINDOW: Nanos = Nanos::from_secs(1);
const START: Nanos = Nanos::from_secs(100);

#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(u64),
    Acquire(u64),
    UpTo(u64),
    Joint(u64),
    Wait(u64),
    Cancel(usize),
    Refund(u64),
    Block(u64),
    Unblock,
    Change {
        limit: u64,
        slots: bool,
        finish: bool,
    },
    Override {
        limit: u64,
        slots: bool,
    },
    NoOverride,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..400_u64).prop_map(Step::Advance),
        4 => (1..6_u64).prop_map(Step::Acquire),
        1 => (1..9_u64).prop_map(Step::UpTo),
        2 => (1..4_u64).prop_map(Step::Joint),
        3 => (1..5_u64).prop_map(Step::Wait),
        1 => (0..9_usize).prop_map(Step::Cancel),
        1 => (1..4_u64).prop_map(Step::Refund),
        1 => (0..500_u64).prop_map(Step::Block),
        1 => Just(Step::Unblock),
        2 => (1..9_u64, any::<bool>(), any::<bool>())
            .prop_map(|(limit, slots, finish)| Step::Change { limit, slots, finish }),
        1 => (1..9_u64, any::<bool>()).prop_map(|(limit, slots)| Step::Override { limit, slots }),
        1 => Just(Step::NoOverride),
    ]
}

/// What is held to which bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A sliding log, and at times a strict sliding window: the limit in any window.
    Log,
    /// The limit in any window that is aligned to the clock's origin.
    FixedWindow,
    /// The limit for what is left of the window before, and what is in this one.
    SlidingCounter,
    /// In any span the limit, and what flows in meanwhile.
    TokenBucket,
    /// Starts are an interval apart.
    LeakyBucket,
    /// The limit at any time at which somebody comes in.
    Concurrency,
}

impl Kind {
    fn policy(self, limit: u64, slots: bool) -> Policy {
        let quota = Quota::per_second(self.limit(limit));
        match self {
            Self::Log if slots => Policy::sliding_window(quota),
            Self::Log => Policy::sliding_log(quota).unwrap(),
            Self::FixedWindow => Policy::fixed_window(quota),
            Self::SlidingCounter => Policy::sliding_counter(quota),
            Self::TokenBucket => Policy::token_bucket(quota),
            // No queue of these tests is as long: none is cut by a change.
            Self::LeakyBucket => LeakyBucket::new(quota)
                .max_wait(std::time::Duration::from_mins(20))
                .unwrap()
                .into(),
            Self::Concurrency => Policy::concurrency(limit as u32),
        }
    }

    fn limit(self, limit: u64) -> u64 {
        // Those whose interval is a whole number of milliseconds, which is how often a leaky
        // bucket's waiters are polled.
        if self == Self::LeakyBucket {
            [1, 2, 4, 5, 8][limit as usize % 5]
        } else {
            limit
        }
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Admission, WaitError>> + Send + 'a>>;

/// Some units that were admitted together.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    /// When they were asked for.
    asked: Nanos,
    /// When their work starts.
    start: Nanos,
    cost: u64,
}

/// Everything that was admitted, and every limit that stood, with the time at which it came.
struct Oracle {
    kind: Kind,
    admitted: Vec<Admitted>,
    limits: Vec<(Nanos, u64)>,
    /// Whether anything was admitted since the last look.
    is_new: bool,
}

impl Oracle {
    fn admit(&mut self, asked: Nanos, start: Nanos, cost: u64) {
        if cost > 0 {
            self.admitted.push(Admitted { asked, start, cost });
            self.is_new = true;
        }
    }

    fn refund(&mut self, cost: u64) {
        if self.kind == Kind::LeakyBucket {
            // Gives time back, of which units of another rate may have taken more or less. Those
            // who wait are not listed yet.
            return self.admitted.clear();
        }
        let mut left = cost;
        while let Some(last) = self.admitted.last_mut().filter(|_| left > 0) {
            let gone = last.cost.min(left);
            (last.cost, left) = (last.cost - gone, left - gone);
            if last.cost == 0 {
                self.admitted.pop();
            }
        }
    }

    fn units(&self, is_meant: impl Fn(Nanos) -> bool) -> u64 {
        self.admitted
            .iter()
            .filter(|some| is_meant(some.start))
            .map(|some| some.cost)
            .sum()
    }

    /// The highest limit that stood at some time that is meant, or later.
    fn highest(&self, is_meant: impl Fn(Nanos) -> bool) -> u64 {
        let last = self.limits.last().map_or(0, |(_, limit)| *limit);
        // A limit stood until the next one came.
        let stood = self
            .limits
            .windows(2)
            .filter(|two| is_meant(two[1].0))
            .map(|two| two[0].1);
        stood.fold(last, u64::max)
    }

    fn check(&mut self, now: Nanos) -> Result<(), TestCaseError> {
        if !std::mem::take(&mut self.is_new) {
            return Ok(());
        }
        let window = WINDOW.get();
        let this = Nanos::new(now.get() - now.get() % window);
        let before = Nanos::new(this.get() - window);
        match self.kind {
            Kind::Log => {
                let is_in = |at: Nanos| now.saturating_since(at) < WINDOW;
                prop_assert!(self.units(is_in) <= self.highest(is_in));
            }
            Kind::FixedWindow => {
                prop_assert!(self.units(|at| at >= this) <= self.highest(|at| at >= this));
            }
            Kind::SlidingCounter => {
                let (last, new) = (
                    self.units(|at| at >= before && at < this),
                    self.units(|at| at >= this),
                );
                let left = (last * (this.get() + window - now.get())).div_ceil(window);
                prop_assert!(
                    left + new <= self.highest(|at| at >= before),
                    "{left} + {new}"
                );
            }
            Kind::TokenBucket => {
                for first in self.admitted.iter().map(|some| some.start) {
                    let most = self.highest(|at| at >= first);
                    let most = most + most * now.saturating_since(first).get() / window;
                    let units = self.units(|at| at >= first);
                    prop_assert!(units <= most, "{units} of {most} since {first}");
                }
            }
            Kind::LeakyBucket => {
                self.admitted.sort_by_key(|some| some.start);
                for two in self.admitted.windows(2) {
                    let most = self.highest(|at| at >= two[0].asked);
                    let apart = two[0].cost * window / most;
                    prop_assert!(
                        two[1].start.saturating_since(two[0].start).get() >= apart,
                        "{two:?}"
                    );
                }
            }
            Kind::Concurrency => {
                prop_assert!(self.units(|_| true) <= self.highest(|at| at >= now));
            }
        }
        Ok(())
    }
}

fn never_over(kind: Kind, first: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let timer = ManualTimer::new(START);
    let limiter = KeyedLimiter::builder(kind.policy(first, false))
        .max_keys(8)
        .clock(timer.clone());
    let limiter = limiter.build().unwrap();
    let other = KeyedLimiter::builder(Policy::sliding_log(Quota::per_second(6)).unwrap());
    let other = other.max_keys(8).clock(timer.clone()).build().unwrap();
    let mut oracle = Oracle {
        kind,
        admitted: Vec::new(),
        limits: Vec::new(),
        is_new: false,
    };
    let (mut general, mut own) = (kind.limit(first), None);
    oracle.limits.push((Nanos::ZERO, general));
    let mut line: Vec<Waiter<'_>> = Vec::new();
    for step in steps {
        let now = timer.now();
        let after = |decision: &Decision| now.saturating_add(decision.delay().into());
        match step {
            Step::Advance(ms) if kind == Kind::LeakyBucket => {
                for _ in 0..ms {
                    timer.advance(Nanos::from_millis(1));
                    serve(&mut line, &mut oracle, timer.now());
                }
            }
            Step::Advance(ms) => timer.advance(Nanos::from_millis(ms)),
            Step::Acquire(cost) => {
                let decision = limiter.acquire("a", cost);
                // Whoever waits is served first, and what is left is decided on.
                serve(&mut line, &mut oracle, now);
                if decision.is_allowed() {
                    oracle.admit(now, after(&decision), cost);
                }
            }
            Step::UpTo(cost) => {
                let (granted, decision) = limiter.acquire_up_to("a", cost);
                serve(&mut line, &mut oracle, now);
                oracle.admit(now, after(&decision), granted);
            }
            Step::Joint(cost) => {
                let both = [
                    Request::keyed(&limiter, b"a", cost),
                    Request::keyed(&other, b"a", 1),
                ];
                let all = acquire_all_at(&both, now).unwrap();
                serve(&mut line, &mut oracle, now);
                if all.is_allowed() {
                    oracle.admit(now, after(&all.decisions()[0]), cost);
                }
            }
            Step::Wait(cost) => {
                line.push(Waiter {
                    since: now,
                    cost,
                    future: Box::pin(limiter.wait("a", cost, None)),
                });
            }
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
                limiter
                    .at(now)
                    .block("a", Until(Nanos::new(now.get() + ms * 1_000_000)))
                    .unwrap();
            }
            Step::Unblock => {
                limiter.at(now).unblock("a");
            }
            Step::Change {
                limit,
                slots,
                finish,
            } => {
                general = kind.limit(limit);
                oracle.limits.push((now, own.unwrap_or(general)));
                let change = limiter
                    .at(now)
                    .set_policy(kind.policy(limit, slots))
                    .unwrap();
                if finish {
                    change.finish_at(now);
                }
            }
            Step::Override { limit, slots } => {
                own = Some(kind.limit(limit));
                oracle.limits.push((now, kind.limit(limit)));
                limiter
                    .at(now)
                    .set_override("a", kind.policy(limit, slots))
                    .unwrap();
            }
            Step::NoOverride => {
                own = None;
                oracle.limits.push((now, general));
                limiter.at(now).remove_override("a");
            }
        }
        serve(&mut line, &mut oracle, timer.now());
        oracle.check(timer.now())?;
    }
    Ok(())
}

macro_rules! never_over {
    ($($name:ident: $kind:ident),* $(,)?) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(first in 1..9_u64, steps in proptest::collection::vec(step(), 1..80)) {
                    never_over(Kind::$kind, first, steps)?;
                }
            )*
        }
    };
}

never_over! {
    no_window_holds_more_than_the_highest_limit_that_stood_in_it: Log,
    no_aligned_window_holds_more_than_the_highest_limit_that_stood_in_it: FixedWindow,
    what_a_sliding_counter_counts_is_never_above_the_highest_limit_that_stood_in_its_two_windows: SlidingCounter,
    no_span_holds_more_than_a_token_bucket_of_the_highest_limit_that_stood_in_it: TokenBucket,
    no_two_starts_of_a_leaky_bucket_are_closer_than_the_highest_rate_that_stood_meanwhile: LeakyBucket,
    nobody_comes_in_above_the_number_of_permits: Concurrency,
}

struct Waiter<'a> {
    since: Nanos,
    cost: u64,
    future: Waiting<'a>,
}

/// Polls everybody who waits, and notes who was admitted.
fn serve(line: &mut Vec<Waiter<'_>>, oracle: &mut Oracle, now: Nanos) {
    let mut cx = Context::from_waker(Waker::noop());
    line.retain_mut(|waiter| match waiter.future.as_mut().poll(&mut cx) {
        Poll::Pending => true,
        Poll::Ready(outcome) => {
            if outcome.is_ok() {
                oracle.admit(waiter.since, now, waiter.cost);
            }
            false
        }
    });
}
