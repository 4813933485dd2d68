//! Breakers by themselves and together with other rules.
#![cfg(not(loom))]

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    thread,
    time::Duration,
};

use tidegate_core::{Nanos, clock::block_on};
use tidegate_flow::{
    BlockKind, Breaker, BreakerState, CallError, Gate, Guard, ManualTimer, Resource,
    rules::{BreakerRule, Rules, Target, Trip},
};

type Heard = Arc<Mutex<Vec<(String, BreakerState, BreakerState)>>>;

/// Returns a gate with one breaker for each open time. One failed call has opened all of them.
fn opened(open_seconds: &[u64], probes: u32) -> (Gate, Arc<ManualTimer>, Heard) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let breaker = |seconds: &u64| {
        let trip = Trip::ErrorCount { count: 0 };
        let rule = BreakerRule::new("r", trip, Duration::from_secs(*seconds))
            .min_calls(1)
            .probes(probes);
        rule.id(seconds.to_string())
    };
    gate.load(Rules::from(
        open_seconds.iter().map(breaker).collect::<Vec<_>>(),
    ))
    .unwrap();
    gate.resource("r").enter().unwrap().mark_failed();
    let heard = Heard::default();
    let told = heard.clone();
    gate.on_breaker_change(move |change| {
        told.lock()
            .unwrap()
            .push((change.rule.id.clone().unwrap(), change.from, change.to));
    });
    (gate, timer, heard)
}

#[test]
fn a_breaker_whose_probe_is_refused_by_another_reopens_and_tells_its_listeners() {
    let (gate, timer, heard) = opened(&[1, 20], 1);
    let r = gate.resource("r");
    timer.advance(Duration::from_secs(1));
    assert_eq!(r.enter().unwrap_err().rule(), "20");
    assert_eq!(r.breakers()[0], ("1".to_owned(), BreakerState::Open));
    let (open, half) = (BreakerState::Open, BreakerState::HalfOpen);
    assert_eq!(
        *heard.lock().unwrap(),
        [("1".to_owned(), open, half), ("1".to_owned(), half, open)]
    );
    // Both admit the same probe, and close.
    timer.advance(Duration::from_secs(19));
    drop(r.enter().unwrap());
    assert!(
        r.breakers()
            .iter()
            .all(|(_, state)| *state == BreakerState::Closed)
    );
}

#[test]
fn a_good_probe_after_a_cancelled_one_closes_the_breaker_however_much_later_it_comes() {
    let (gate, timer, _) = opened(&[1], 1);
    let r = gate.resource("r");
    timer.advance(Duration::from_secs(1));
    r.enter().unwrap().cancel();
    assert_eq!(
        r.breakers()[0].1,
        BreakerState::Open,
        "no probe is in flight"
    );
    timer.advance(Duration::from_secs(10));
    let probe = r.enter().unwrap();
    timer.advance(Duration::from_millis(1));
    let refused = r.enter().unwrap_err();
    assert_eq!(
        (refused.kind(), r.breakers()[0].1),
        (BlockKind::Breaker, BreakerState::HalfOpen)
    );
    drop(probe);
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn two_good_calls_every_five_seconds_close_a_breaker_that_wants_five() {
    let (gate, timer, _) = opened(&[1], 5);
    let r = gate.resource("r");
    for free in [2, 2, 1] {
        timer.advance(Duration::from_secs(5));
        let calls = [r.enter(), r.enter()];
        assert_eq!(
            calls.iter().filter(|call| call.is_ok()).count(),
            free,
            "five permits in all"
        );
        timer.advance(Duration::from_millis(10));
    }
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn a_call_reports_to_the_breakers_that_were_in_force_when_it_began() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let breaker = |resource: &str| {
        BreakerRule::new(
            resource,
            Trip::ErrorCount { count: 0 },
            Duration::from_secs(5),
        )
        .min_calls(1)
    };
    let load = |breakers| {
        gate.load(Rules::from(breakers)).unwrap();
    };
    let r = gate.resource("r");
    let state = || r.breakers()[0].1;
    load(vec![breaker("r")]);
    let mut call = r.enter().unwrap();
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r"), breaker("other")]);
    call.mark_failed();
    drop(call);
    assert_eq!(
        state(),
        BreakerState::Open,
        "the same rule, loaded again, keeps its breaker"
    );

    load(Vec::new());
    let mut before = r.enter().unwrap();
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r")]);
    let mut after = r.enter().unwrap();
    before.mark_failed();
    drop(before);
    assert_eq!(state(), BreakerState::Closed, "it began before the rule");
    load(vec![breaker("other")]);
    assert_eq!(r.breakers(), [], "the rule was removed");
    timer.advance(Duration::from_millis(10));
    load(vec![breaker("r")]);
    after.mark_failed();
    drop(after);
    assert_eq!(
        state(),
        BreakerState::Closed,
        "it passed another breaker, which was removed"
    );
    let mut now = r.enter().unwrap();
    now.mark_failed();
    drop(now);
    assert_eq!(state(), BreakerState::Open);
}

/// A resource with one breaker, and the time.
struct Db {
    timer: Arc<ManualTimer>,
    gate: Gate,
    r: Resource,
}

impl Db {
    fn new(rule: BreakerRule) -> Self {
        let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
        let gate = Gate::builder().timer(timer.clone()).build();
        gate.load(Rules::from(vec![rule])).unwrap();
        let r = gate.resource("r");
        Self { timer, gate, r }
    }

    /// A breaker that looks at 20 seconds, and opens for five.
    fn of(trip: Trip, min_calls: u32) -> Self {
        let rule = BreakerRule::new("r", trip, Duration::from_secs(5));
        Self::new(rule.interval(Duration::from_secs(20)).min_calls(min_calls))
    }

    /// A breaker that one failed call has opened at the time 0.
    fn opened(probes: u32) -> Self {
        let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(5))
            .min_calls(1);
        let db = Self::new(rule.probes(probes));
        db.run(0, true).unwrap();
        assert_eq!(db.state(), BreakerState::Open);
        db
    }

    /// Sets the time, in milliseconds.
    fn at(&self, ms: u64) -> &Self {
        self.timer
            .set(Nanos::from_secs(1_000).saturating_add(Nanos::from_millis(ms)));
        self
    }

    fn state(&self) -> BreakerState {
        self.r.breakers()[0].1
    }

    /// Begins a call; the error is the time until the next probe.
    fn enter(&self) -> Result<Guard<'_>, Option<Duration>> {
        self.r.enter().map_err(|blocked| blocked.retry_after())
    }

    /// A whole call that takes so many milliseconds.
    fn run(&self, takes: u64, failed: bool) -> Result<(), Option<Duration>> {
        let mut call = self.enter()?;
        self.timer.advance(Duration::from_millis(takes));
        if failed {
            call.mark_failed();
        }
        Ok(())
    }
}

fn fails(mut call: Guard<'_>) {
    call.mark_failed();
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn slow_calls_open_it_and_a_fast_probe_closes_it() {
    let db = Db::of(
        Trip::SlowRatio {
            rt: MS * 50,
            ratio: 0.8,
        },
        10,
    );
    for call in 0..10 {
        db.run(if call < 7 { 51 } else { 50 }, false).unwrap();
    }
    assert_eq!(db.state(), BreakerState::Closed, "7 of 10 is not above 0.8");
    for _ in 0..6 {
        assert_eq!(db.state(), BreakerState::Closed);
        db.run(60, false).unwrap();
    }
    assert_eq!(db.state(), BreakerState::Open, "13 of 16 is");
    db.timer.advance(MS * 1_000);
    assert_eq!(db.run(1, false), Err(Some(Duration::from_secs(4))));
    db.timer.advance(MS * 4_000);
    assert!(db.run(60, false).is_ok(), "a probe");
    assert_eq!(db.state(), BreakerState::Open, "it was slow");
    db.timer.advance(MS * 4_999);
    assert!(db.run(1, false).is_err());
    db.timer.advance(MS);
    assert!(db.run(1, false).is_ok());
    assert_eq!(db.state(), BreakerState::Closed);
    // The earlier calls are forgotten: one slow call among few does not open the breaker.
    for _ in 0..9 {
        db.run(60, false).unwrap();
    }
    assert_eq!(db.state(), BreakerState::Closed);
    db.run(60, false).unwrap();
    assert_eq!(db.state(), BreakerState::Open);
}

#[test]
fn errors_open_it_above_their_ratio_or_count() {
    let ratio = Db::of(Trip::ErrorRatio { ratio: 0.5 }, 10);
    for call in 0..10 {
        assert_eq!(ratio.state(), BreakerState::Closed);
        ratio.run(1, call < 6 || call == 9).unwrap();
    }
    assert_eq!(ratio.state(), BreakerState::Open);

    let count = Db::of(Trip::ErrorCount { count: 2 }, 1);
    for failed in [true, false, true, true] {
        assert_eq!(count.state(), BreakerState::Closed);
        count.run(1, failed).unwrap();
    }
    assert_eq!(count.state(), BreakerState::Open);
}

#[test]
fn a_ratio_of_one_opens_when_all_are_bad() {
    let all = Db::of(
        Trip::SlowRatio {
            rt: MS * 10,
            ratio: 1.0,
        },
        3,
    );
    for _ in 0..3 {
        all.run(20, false).unwrap();
    }
    assert_eq!(all.state(), BreakerState::Open);
}

#[test]
fn calls_expire_from_the_interval_slot_by_slot() {
    let db = Db::of(Trip::ErrorCount { count: 4 }, 1);
    for at in (0..20_000).step_by(5_000) {
        db.at(at).run(0, true).unwrap();
    }
    // The first of the four has left the interval when the fifth arrives.
    db.at(20_000).run(0, true).unwrap();
    assert_eq!(db.state(), BreakerState::Closed);
    db.at(20_001).run(0, true).unwrap();
    assert_eq!(db.state(), BreakerState::Open);
}

#[test]
fn exactly_its_probes_pass_and_all_must_be_good() {
    let db = Db::opened(3);
    db.at(5_000);
    let [first, second, third] = [(); 3].map(|()| db.enter().unwrap());
    assert_eq!(db.enter().err(), Some(None));
    db.at(5_001);
    drop((first, second));
    assert_eq!(db.state(), BreakerState::HalfOpen);
    assert_eq!(db.state().name(), "half-open");
    assert_eq!(
        db.enter().err(),
        Some(None),
        "a successful probe keeps its permit"
    );
    drop(third);
    assert_eq!(db.state(), BreakerState::Closed);

    let db = Db::opened(2);
    db.at(5_000);
    let [bad, late] = [(); 2].map(|()| db.enter().unwrap());
    db.at(6_000);
    fails(bad);
    assert_eq!(db.state(), BreakerState::Open);
    drop(late);
    assert_eq!(
        db.state(),
        BreakerState::Open,
        "a late probe of an earlier half-open state is ignored"
    );
    assert_eq!(db.at(10_999).enter().err(), Some(Some(MS)));
    assert!(db.at(11_000).enter().is_ok());
}

#[test]
fn a_cancelled_probe_is_returned() {
    let db = Db::opened(1);
    for at in 5_000..5_010 {
        let probe = db.at(at).enter().unwrap();
        assert_eq!(db.enter().err(), Some(None));
        probe.cancel();
        assert_eq!(db.state(), BreakerState::Open, "no probe is in flight");
    }
    db.at(6_000).run(0, false).unwrap();
    assert_eq!(db.state(), BreakerState::Closed);
}

#[test]
fn probes_that_never_report_do_not_keep_it_half_open() {
    let db = Db::opened(1);
    let lost = db.at(5_000).enter().unwrap();
    assert_eq!(db.at(54_999).enter().err(), Some(None));
    assert_eq!(
        db.at(55_000).enter().err(),
        Some(Some(Duration::from_secs(5)))
    );
    assert_eq!(db.state(), BreakerState::Open);
    let probe = db.at(60_000).enter().unwrap();
    db.at(60_001);
    fails(lost);
    drop(probe);
    assert_eq!(db.state(), BreakerState::Closed);
}

#[test]
fn probes_that_ended_well_still_count_after_one_was_given_up() {
    let db = Db::opened(2);
    db.at(5_000).run(1, false).unwrap();
    db.enter().unwrap().cancel();
    assert_eq!(db.state(), BreakerState::Open);
    db.at(5_004).run(1, false).unwrap();
    assert_eq!(db.state(), BreakerState::Closed);
}

#[test]
fn a_call_from_before_an_outage_does_not_reopen_the_breaker() {
    let db = Db::new(BreakerRule::new("r", Trip::ErrorCount { count: 0 }, MS).min_calls(1));
    let before = db.at(4_999).enter().unwrap();
    db.run(0, true).unwrap();
    db.at(5_000).run(0, false).unwrap();
    assert_eq!(db.state(), BreakerState::Closed);
    let after = db.enter().unwrap();
    db.at(5_001);
    fails(before);
    assert_eq!(
        db.state(),
        BreakerState::Closed,
        "it began before the probe had closed it"
    );
    fails(after);
    assert_eq!(db.state(), BreakerState::Open);
}

#[test]
fn a_query_is_answered_as_an_entry_would_be_and_changes_nothing() {
    let db = Db::opened(2);
    let query = |at: u64| {
        db.at(at);
        db.r.entry()
            .count(0)
            .enter()
            .map(drop)
            .map_err(|blocked| blocked.retry_after())
    };
    assert_eq!(query(4_999), Err(Some(MS)));
    assert_eq!((query(5_000), db.state()), (Ok(()), BreakerState::Open));
    let mut probes = Vec::new();
    for _ in 0..2 {
        assert_eq!(query(5_000), Ok(()));
        probes.push(db.enter().unwrap());
    }
    assert_eq!(query(5_000), Err(None));
    assert_eq!(
        query(55_000),
        Err(Some(Duration::from_secs(5))),
        "its probes are lost"
    );
    assert_eq!(db.state(), BreakerState::HalfOpen);
}

#[test]
fn listeners_are_told_each_change_once() {
    let (gate, timer, heard) = opened(&[5], 1);
    timer.advance(Duration::from_secs(5));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| drop(gate.resource("r").enter()));
        }
    });
    let changes: Vec<_> = heard
        .lock()
        .unwrap()
        .iter()
        .map(|(_, from, to)| (*from, *to))
        .collect();
    let expected = [
        (BreakerState::Open, BreakerState::HalfOpen),
        (BreakerState::HalfOpen, BreakerState::Closed),
    ];
    assert_eq!(changes, expected);
}

#[test]
fn sixty_four_threads_get_exactly_the_probes_of_each_period() {
    let db = Db::opened(3);
    for period in 1..200_u64 {
        db.at(period * 5_000);
        let probes = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    probes
                        .lock()
                        .unwrap()
                        .extend(db.gate.resource("r").enter_owned().ok());
                });
            }
        });
        let mut probes = probes.into_inner().unwrap();
        assert_eq!(probes.len(), 3);
        probes[0].mark_failed();
    }
}

fn alone(timer: &ManualTimer) -> Breaker {
    let trip = Trip::ErrorCount { count: 1 };
    let rule = BreakerRule::new("db", trip, Duration::from_secs(5)).min_calls(1);
    Breaker::with_timer(rule, timer.clone()).unwrap()
}

fn down() -> Result<(), &'static str> {
    Err("down")
}

#[test]
fn it_opens_after_failures_and_a_probe_closes_it() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let db = alone(&timer);
    for _ in 0..2 {
        assert_eq!(db.call(down), Err(CallError::Failed("down")));
    }
    assert_eq!(db.state(), BreakerState::Open);
    let error = db
        .call(|| -> Result<(), &str> { panic!("an open breaker runs nothing") })
        .unwrap_err();
    let CallError::Open(blocked) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(blocked.retry_after(), Some(Duration::from_secs(5)));
    assert!(error.to_string().contains("db"), "{error}");
    timer.advance(Duration::from_secs(5));
    assert_eq!(block_on(db.call_async(async { Ok::<_, &str>(7) })), Ok(7));
    assert_eq!(db.state(), BreakerState::Closed);
}

#[test]
fn a_panic_is_a_failure_and_a_dropped_future_is_not() {
    let db = alone(&ManualTimer::new(Nanos::from_secs(1_000)));
    for _ in 0..3 {
        let call = pin!(db.call_async(std::future::pending::<Result<(), &str>>()));
        assert!(
            call.poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    assert_eq!(db.state(), BreakerState::Closed);
    for _ in 0..2 {
        let call = || db.call(|| -> Result<(), &str> { panic!("down") });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
    }
    assert_eq!(db.state(), BreakerState::Open);
}

#[test]
fn the_name_is_not_a_pattern_and_a_wrong_rule_is_refused() {
    let rule = |ratio| {
        BreakerRule::new(
            Target::Pattern("a.*".to_owned()),
            Trip::ErrorRatio { ratio },
            Duration::from_secs(1),
        )
    };
    assert_eq!(
        Breaker::new(rule(0.5))
            .unwrap()
            .enter()
            .unwrap()
            .resource()
            .name(),
        "a.*"
    );
    assert!(
        Breaker::new(rule(1.5))
            .unwrap_err()
            .to_string()
            .contains("1.5")
    );
}
