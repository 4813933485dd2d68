//! Reservations of several limits in one step, compared with plain lists of what was taken.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::prelude::*;
use tidegate_limiter::{
    KeyedLimiter, Limiter, ManualTimer, Nanos, Policy, Quota, Reservation, ReserveAll,
    ReserveAllError, WaitAllError, WaitError, WhenFull, algorithm::SlidingLog,
};

const WINDOW: Duration = Duration::from_secs(10);
const LIMITS: [u64; 2] = [100, 60];

struct Bench {
    timer: ManualTimer,
    one: Arc<Limiter<ManualTimer>>,
    keys: Arc<KeyedLimiter<ManualTimer>>,
}

impl Bench {
    fn new() -> Self {
        let timer = ManualTimer::new(Nanos::from_secs(1_000));
        let log = |limit| SlidingLog::new(Quota::new(limit, WINDOW).unwrap()).unwrap();
        Self {
            one: Arc::new(Limiter::with_clock(log(LIMITS[0]), timer.clone())),
            keys: Arc::new(
                KeyedLimiter::builder(log(LIMITS[1]))
                    .clock(timer.clone())
                    .build()
                    .unwrap(),
            ),
            timer,
        }
    }

    fn both(&self, costs: [u64; 2]) -> ReserveAll<ManualTimer> {
        ReserveAll::new()
            .limiter(&self.one, costs[0])
            .key(&self.keys, "a", costs[1])
    }

    fn left(&self) -> [u64; 2] {
        [
            self.one.peek(0).remaining(),
            self.keys.peek("a", 0).remaining(),
        ]
    }
}

/// The answer, if it is there without a wait.
fn poll<T>(answer: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    answer.poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Reserve([u64; 2]),
    /// End one of those that are open with these actual costs.
    Settle(usize, [u64; 2]),
    Drop(usize),
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = || [0..50_u64, 0..50];
    let step = prop_oneof![
        (1..5_000_u64).prop_map(Step::Pass),
        cost().prop_map(Step::Reserve),
        (0..4_usize, cost()).prop_map(|(at, costs)| Step::Settle(at, costs)),
        (0..4_usize).prop_map(Step::Drop),
        (0..4_usize).prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn both_limits_count_what_was_taken_together_and_settled_apart(steps in steps()) {
        let bench = Bench::new();
        // For each limit: the millisecond and the units of each reservation.
        let mut taken = [Vec::new(), Vec::new()];
        let mut open = Vec::new();
        let mut now = 0;
        let used = |taken: &[Vec<(u64, u64)>; 2], now: u64| {
            [0, 1].map(|limit| {
                let counts = taken[limit].iter().filter(|(at, _)| at + 10_000 > now);
                counts.map(|(_, units)| units).sum::<u64>()
            })
        };
        for step in steps {
            match step {
                Step::Pass(millis) => {
                    now += millis;
                    bench.timer.advance(Duration::from_millis(millis));
                }
                Step::Reserve(costs) => {
                    let used = used(&taken, now);
                    let fits = (0..2).all(|limit| used[limit] + costs[limit] <= LIMITS[limit]);
                    match bench.both(costs).take() {
                        Ok(reserved) => {
                            prop_assert!(fits);
                            let held: Vec<_> = reserved.iter().map(Reservation::cost).collect();
                            prop_assert_eq!(held, costs);
                            open.push((taken[0].len(), reserved));
                            for limit in 0..2 {
                                taken[limit].push((now, costs[limit]));
                            }
                        }
                        Err(ReserveAllError::Denied(_)) => prop_assert!(!fits),
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    }
                }
                Step::Settle(at, actual) if at < open.len() => {
                    let (index, reserved): (usize, Vec<_>) = open.swap_remove(at);
                    for (limit, reserved) in reserved.into_iter().enumerate() {
                        // Never beyond the estimate: how a log counts that is another test's matter.
                        let actual = actual[limit].min(reserved.cost());
                        reserved.settle(actual);
                        taken[limit][index].1 = actual;
                    }
                }
                Step::Drop(at) if at < open.len() => drop(open.swap_remove(at)),
                Step::Cancel(at) if at < open.len() => {
                    let (index, reserved) = open.swap_remove(at);
                    reserved.into_iter().for_each(Reservation::cancel);
                    (0..2).for_each(|limit| taken[limit][index].1 = 0);
                }
                _ => {}
            }
            let used = used(&taken, now);
            prop_assert_eq!(bench.left(), [LIMITS[0] - used[0], LIMITS[1] - used[1]]);
        }
    }
}

#[test]
fn a_wait_takes_both_estimates_when_both_are_there_and_nothing_before() {
    let bench = Bench::new();
    let first = bench.both([50, 60]).take().unwrap();
    bench.timer.advance(Duration::from_secs(4));
    let mut wait = pin!(bench.both([60, 30]).wait(None));
    assert!(poll(wait.as_mut()).is_pending());
    assert_eq!(bench.left(), [50, 0]);
    // What the first returns to the key leaves the other limit short.
    let [one, key] = first.try_into().unwrap();
    key.settle(30);
    assert!(poll(wait.as_mut()).is_pending());
    assert_eq!(bench.left(), [50, 30]);
    one.settle(40);
    let Poll::Ready(Ok(reserved)) = poll(wait.as_mut()) else {
        panic!("both limits have room");
    };
    assert_eq!(bench.left(), [0, 0]);
    reserved.into_iter().for_each(Reservation::cancel);
    assert_eq!(bench.left(), [60, 30]);
}

#[test]
fn a_wait_that_is_given_up_or_cannot_be_met_takes_nothing() {
    let bench = Bench::new();
    let _kept = bench.both([100, 0]).take().unwrap();
    {
        let mut wait = pin!(bench.both([1, 1]).wait(None));
        assert!(poll(wait.as_mut()).is_pending());
    }
    let deadline = Some(Nanos::from_secs(1_005));
    assert!(matches!(
        poll(pin!(bench.both([1, 1]).wait(deadline))),
        Poll::Ready(Err(WaitAllError::Deadline(_)))
    ));
    assert!(matches!(
        poll(pin!(bench.both([1, 61]).wait(None))),
        Poll::Ready(Err(WaitAllError::Never(_)))
    ));
    assert_eq!(bench.left(), [0, 60]);
    bench.timer.advance(WINDOW);
    assert_eq!(bench.left(), [100, 60]);
}

#[test]
fn a_reservation_waits_in_line_and_is_settled_where_it_was_taken() {
    let bench = Bench::new();
    let _kept = bench.both([100, 60]).take().unwrap();
    bench.timer.advance(Duration::from_secs(1));
    let mut one = pin!(Reservation::wait(&bench.one, 80, None));
    let mut key = pin!(Reservation::wait_key(&bench.keys, "a", 50, None));
    let late = Some(Nanos::from_secs(1_009));
    assert!(poll(one.as_mut()).is_pending() && poll(key.as_mut()).is_pending());
    assert!(matches!(
        poll(pin!(Reservation::wait_key(&bench.keys, "a", 1, late))),
        Poll::Ready(Err(WaitError::Deadline(_)))
    ));
    bench.timer.advance(Duration::from_secs(9));
    let (Poll::Ready(Ok(one)), Poll::Ready(Ok(key))) = (poll(one.as_mut()), poll(key.as_mut()))
    else {
        panic!("the units have left the window");
    };
    assert_eq!(bench.left(), [20, 10]);
    one.settle(10);
    key.cancel();
    assert_eq!(bench.left(), [90, 60]);
}

#[test]
fn no_estimates_are_taken_if_the_keys_have_no_room() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let keys = KeyedLimiter::builder(Policy::sliding_window(Quota::per_minute(10)))
        .max_keys(1)
        .when_full(WhenFull::Deny)
        .clock(timer.clone())
        .build()
        .unwrap();
    let keys = Arc::new(keys);
    let one = Arc::new(Limiter::with_clock(
        Policy::token_bucket(Quota::per_minute(10)),
        timer,
    ));
    let mut many = ReserveAll::new().limiter(&one, 1);
    for key in 0..=8 {
        many = many.key(&keys, format!("key{key}"), 1);
    }
    let error = many.take().unwrap_err();
    assert!(
        matches!(
            &error,
            ReserveAllError::Denied(_) | ReserveAllError::Full(_)
        ),
        "{error}"
    );
    assert_eq!(one.peek(0).remaining(), 10);
    assert!(ReserveAll::<ManualTimer>::new().take().unwrap().is_empty());
}
