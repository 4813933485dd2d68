//! Several throttles on one entry: each spaces its calls by their actual starts.
#![cfg(not(loom))]

use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tidegate_core::{Clock, Nanos};
use tidegate_flow::{
    Blocked, Gate, ManualTimer, Resource,
    rules::{Behaviour, FlowRule, HotParamRule, Origins, ParamKey, ParamMeasure, Relation, Rules},
};

const START: u64 = 1_000_000_000_000;

/// The rates and longest waits in ms of four throttles with an interval of 1 s: for all calls, for
/// origin x, within context c, and for each value.
type Throttles = [(u32, u64); 4];

fn resource(throttles: Throttles) -> (Resource, Arc<ManualTimer>) {
    let [
        (all, all_wait),
        (origin, origin_wait),
        (context, context_wait),
        (value, value_wait),
    ] = throttles;
    let throttle = |rate: u32, max_wait| {
        let max_wait = Duration::from_millis(max_wait);
        FlowRule::new("r", rate).behaviour(Behaviour::Throttle { max_wait })
    };
    let value = HotParamRule::new("r", ParamKey::Index(0), value);
    let rules = Rules::from(vec![
        throttle(all, all_wait),
        throttle(origin, origin_wait).origins(Origins::Only("x".into())),
        throttle(context, context_wait).relation(Relation::Context("c".into())),
    ])
    .and(vec![value.measure(ParamMeasure::Throttle {
        max_wait: Duration::from_millis(value_wait),
    })]);
    let timer = Arc::new(ManualTimer::new(Nanos::new(START)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate.resource("r"), timer)
}

/// A call: whether it is from x and within c, its value, and its units.
#[derive(Clone, Copy, Debug)]
struct Call {
    from_x: bool,
    within_c: bool,
    value: Option<u32>,
    n: u32,
}

impl Call {
    fn enter(self, r: &Resource) -> Result<Duration, Blocked> {
        let mut entry = r
            .entry()
            .count(self.n)
            .origin(if self.from_x { "x" } else { "y" });
        if self.within_c {
            entry = entry.context("c");
        }
        if let Some(value) = self.value {
            entry = entry.arg(value);
        }
        entry.enter().map(|guard| guard.delay())
    }

    /// Returns the throttles that apply to the call, as indices of [`Throttles`] in the order of
    /// the checks, and the queue in each.
    fn queues(self) -> Vec<(usize, u32)> {
        let value = self.value.map(|value| (3, value));
        let flow = [
            Some((0, 0)),
            self.from_x.then_some((1, 0)),
            self.within_c.then_some((2, 0)),
        ];
        value
            .into_iter()
            .chain(flow.into_iter().flatten())
            .collect()
    }
}

fn cost(throttles: Throttles, (at, _): (usize, u32), n: u32) -> u64 {
    (u64::from(n) * 1_000_000_000).div_ceil(throttles[at].0.into())
}

/// Checks the distances between all calls that started.
fn assert_spaced(throttles: Throttles, started: &[(Call, u64)]) {
    let mut queues: Vec<_> = started.iter().flat_map(|(call, _)| call.queues()).collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        let inside = started
            .iter()
            .filter(|(call, _)| call.queues().contains(&queue));
        let mut inside: Vec<_> = inside.map(|(call, start)| (*start, call.n)).collect();
        inside.sort_unstable();
        for two in inside.windows(2) {
            let apart = two[1].0 - two[0].0;
            assert!(
                apart >= cost(throttles, queue, two[1].1),
                "{queue:?}: {two:?}"
            );
        }
    }
}

#[test]
fn a_call_delayed_by_one_throttle_takes_the_later_slot_in_all() {
    let throttles = [(10, 9_000), (1, 9_000), (1_000, 0), (1_000, 0)];
    let (r, _timer) = resource(throttles);
    let call = |from_x| Call {
        from_x,
        within_c: false,
        value: None,
        n: 1,
    };
    let calls = [true, true].into_iter().chain([false; 5]);
    let started: Vec<_> = calls
        .map(|from_x| call(from_x).enter(&r).unwrap().as_millis())
        .collect();
    assert_eq!(started, [0, 1_000, 1_100, 1_200, 1_300, 1_400, 1_500]);
}

#[test]
fn a_values_throttle_and_the_resources_agree_whichever_is_the_slower() {
    let call = |value| Call {
        from_x: false,
        within_c: false,
        value: Some(value),
        n: 1,
    };
    for (all, of_value, want) in [
        (10, 1, [0, 1_000, 1_100, 2_000]),
        (1, 10, [0, 1_000, 2_000, 3_000]),
    ] {
        let (r, _timer) = resource([(all, 9_000), (1, 0), (1, 0), (of_value, 9_000)]);
        let started = [1, 1, 2, 1].map(|value| call(value).enter(&r).unwrap().as_millis());
        assert_eq!(started, want);
    }
}

proptest! {
    #[test]
    fn several_throttles_do_as_one_queue_each_would(
        rates in prop::array::uniform4((1..40_u32, 0..900_u64)),
        calls in prop::collection::vec(
            (any::<bool>(), any::<bool>(), prop::option::of(0..3_u32), 1..4_u32, 0..300_u64),
            1..120,
        ),
    ) {
        let (r, timer) = resource(rates);
        let mut now = START;
        let mut started: Vec<(Call, u64)> = Vec::new();
        for (from_x, within_c, value, n, later) in calls {
            now += later * 1_000_000;
            timer.set(Nanos::new(now));
            let call = Call { from_x, within_c, value, n };
            let free = |queue: (usize, u32)| {
                let last = started.iter().filter(|(call, _)| call.queues().contains(&queue)).map(|(_, at)| at).max();
                last.map_or(now, |last| last + cost(rates, queue, n)).max(now)
            };
            // When a throttle would admit the call that it blocks; never, if the call is larger
            // than its threshold.
            let blocks = |queue: &(usize, u32)| {
                let over = (free(*queue) - now).checked_sub(rates[queue.0].1 * 1_000_000).filter(|over| *over > 0);
                if n > rates[queue.0].0 { Some(None) } else { over.map(Some) }
            };
            match call.enter(&r) {
                Ok(delay) => {
                    prop_assert!(call.queues().iter().all(|queue| blocks(queue).is_none()));
                    let start = call.queues().into_iter().map(free).max().unwrap();
                    prop_assert_eq!(delay, Duration::from_nanos(start - now));
                    started.push((call, start));
                }
                Err(blocked) => {
                    let over = call.queues().iter().find_map(blocks);
                    prop_assert_eq!(Some(blocked.retry_after()), over.map(|over| over.map(Duration::from_nanos)));
                }
            }
        }
        assert_spaced(rates, &started);
    }
}

#[test]
fn threads_that_meet_in_several_throttles_stay_apart_in_each() {
    const THREADS: u32 = 32;
    let throttles = [(4_000, 300), (1_500, 250), (1_000, 200), (900, 250)];
    let (r, timer) = resource(throttles);
    let (barrier, started) = (Barrier::new(THREADS as usize), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (r, timer, barrier, started) = (&r, &timer, &barrier, &started);
            scope.spawn(move || {
                for step in 0..40 {
                    if barrier.wait().is_leader() {
                        timer.set(Nanos::new(START + step * 17_000_000));
                    }
                    barrier.wait();
                    for round in 0..6 {
                        let mix = thread + round;
                        let value = (!mix.is_multiple_of(3)).then_some(mix % 4);
                        let call = Call {
                            from_x: mix.is_multiple_of(2),
                            within_c: (mix / 2).is_multiple_of(2),
                            value,
                            n: 1 + mix % 2,
                        };
                        let Ok(delay) = call.enter(r) else { continue };
                        let start = timer.now().saturating_add(delay.into()).get();
                        started.lock().unwrap().push((call, start));
                    }
                    barrier.wait();
                }
            });
        }
    });
    let started = started.into_inner().unwrap();
    assert!(started.len() > 500, "{}", started.len());
    assert_spaced(throttles, &started);
}
