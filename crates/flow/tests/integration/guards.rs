//! Guards exit however they are dropped, and count the outcome.
#![cfg(not(loom))]

use std::{
    future::Future,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    BreakerState, Gate, ManualTimer,
    rules::{
        Behaviour, BreakerRule, FlowRule, HotParamRule, IsolationRule, ParamKey, ParamMeasure,
        Rules, Trip,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gate(rules: Rules) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate, timer)
}

fn breaker(probes: u32) -> Rules {
    let rule = BreakerRule::new("r", Trip::ErrorCount { count: 0 }, ms(5_000))
        .min_calls(1)
        .probes(probes);
    Rules::from(vec![rule])
}

#[test]
fn a_guard_counts_how_its_call_went() {
    let (gate, timer) = gate(Rules::default());
    let r = gate.resource("r");
    let guard = r.enter().unwrap();
    timer.advance(ms(30));
    drop(guard);
    r.enter().unwrap().fail(&io::Error::other("broken"));
    let _: Result<(), _> = r.enter().unwrap().done(Err(io::Error::other("broken")));
    let inner = gate.resource("inner");
    gate.load(Rules::from(vec![IsolationRule::new("inner", 0)]))
        .unwrap();
    r.enter().unwrap().fail(&inner.enter().unwrap_err());
    r.enter().unwrap().cancel();
    let counts = r.node().counts(gate.now());
    assert_eq!((counts.pass, counts.success, counts.exception), (5, 5, 2));
    assert_eq!((counts.rt, counts.min_rt), (ms(30), Some(ms(0))));
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn a_guard_leaves_in_a_panic_and_the_call_has_failed() {
    let (gate, _timer) = gate(breaker(1));
    let r = gate.resource("r");
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = r.enter().unwrap();
        panic!("in the call");
    }));
    assert!(caught.is_err());
    assert_eq!(
        (r.node().in_flight(), r.node().counts(gate.now()).exception),
        (0, 1)
    );
    assert_eq!(r.breakers()[0].1, BreakerState::Open);
}

#[test]
fn a_peek_dropped_in_a_panic_is_no_failed_call() {
    let (gate, _timer) = gate(breaker(1));
    let r = gate.resource("r");
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _question = r.entry().count(0).enter().unwrap();
        panic!("while the query runs");
    }));
    assert!(caught.is_err());
    assert_eq!(
        (r.breakers()[0].1, r.node().counts(gate.now()).exception),
        (BreakerState::Closed, 0)
    );
}

#[test]
fn a_peek_takes_no_probe_and_changes_no_breaker() {
    let (gate, timer) = gate(breaker(1));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    gate.on_breaker_change(move |change| listener.lock().unwrap().push(change.to));
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    let ask = || r.entry().count(0).enter();
    assert_eq!(ask().unwrap_err().retry_after(), Some(ms(5_000)));
    timer.advance(ms(5_000));
    let question = ask().unwrap();
    assert_eq!(
        (r.breakers()[0].1, heard.lock().unwrap().as_slice()),
        (BreakerState::Open, &[BreakerState::Open][..])
    );
    let probe = r.enter().expect("the query has not taken the probe permit");
    assert!(ask().is_err());
    drop((question, probe));
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn an_owned_guard_goes_to_another_thread() {
    let (gate, _timer) = gate(Rules::default());
    let r = gate.resource("r");
    let guard = r
        .entry()
        .inbound()
        .origin("o")
        .context("c")
        .enter_owned()
        .unwrap();
    assert_eq!([r.node().in_flight(), gate.inbound().in_flight()], [1, 1]);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let in_flight = [
        r.node(),
        gate.inbound(),
        &r.origin("o").unwrap(),
        &r.context("c").unwrap(),
    ];
    assert!(
        in_flight
            .iter()
            .all(|node| node.in_flight() == 0 && node.counts(gate.now()).success == 1)
    );
}

struct CountWakes(Mutex<u32>);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

fn throttled() -> Rules {
    let rule = FlowRule::new("r", 10).behaviour(Behaviour::Throttle { max_wait: ms(500) });
    Rules::from(vec![rule])
}

#[test]
fn an_async_entry_is_ready_when_its_delay_is_over_and_blocks_no_thread() {
    let (gate, timer) = gate(throttled());
    let r = gate.resource("r");
    drop(r.enter());
    let wakes = Arc::new(CountWakes(Mutex::new(0)));
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let mut entering = pin!(r.entry().enter_async());
    assert!(entering.as_mut().poll(&mut cx).is_pending());
    timer.advance(ms(99));
    assert!(entering.as_mut().poll(&mut cx).is_pending());
    assert_eq!(*wakes.0.lock().unwrap(), 0);
    timer.advance(ms(1));
    assert_eq!(*wakes.0.lock().unwrap(), 1);
    let Poll::Ready(Ok(guard)) = entering.as_mut().poll(&mut cx) else {
        panic!("its time has come")
    };
    assert_eq!(r.node().in_flight(), 1);
    drop(guard);
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn an_async_entry_dropped_while_it_waits_leaves_and_gives_its_probe_back() {
    let (gate, timer) = gate(throttled().and(breaker(1)));
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    timer.advance(ms(5_000));
    drop(r.entry().enter().map(tidegate_flow::Guard::cancel));
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut entering = pin!(r.entry().enter_async());
        assert!(entering.as_mut().poll(&mut cx).is_pending());
        assert_eq!(
            (r.node().in_flight(), r.breakers()[0].1),
            (1, BreakerState::HalfOpen)
        );
        assert!(r.enter().is_err(), "the only probe permit is in use");
    }
    assert_eq!(r.node().in_flight(), 0);
    assert!(r.enter().is_ok(), "its permit is free again");
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn a_call_started_before_an_outage_does_not_affect_the_breaker_after_it() {
    let (gate, timer) = gate(breaker(1));
    let r = gate.resource("r");
    let mut long = r.enter().unwrap();
    r.enter().unwrap().mark_failed();
    timer.advance(ms(5_000));
    drop(r.enter().unwrap());
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
    timer.advance(ms(1));
    long.mark_failed();
    drop(long);
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn slow_calls_open_a_breaker_and_a_fast_probe_closes_it() {
    let slow = Trip::SlowRatio {
        rt: ms(50),
        ratio: 0.5,
    };
    let rule = BreakerRule::new("r", slow, ms(5_000)).min_calls(3);
    let (gate, timer) = gate(Rules::from(vec![rule]));
    let r = gate.resource("r");
    let call = |rt: u64| {
        let guard = r.enter().unwrap();
        timer.advance(ms(rt));
        drop(guard);
        r.breakers()[0].1
    };
    assert_eq!(
        [50, 51, 51].map(call),
        [
            BreakerState::Closed,
            BreakerState::Closed,
            BreakerState::Open
        ]
    );
    timer.advance(ms(5_000));
    assert_eq!(call(51), BreakerState::Open);
    timer.advance(ms(5_000));
    assert_eq!(call(50), BreakerState::Closed);
}

#[test]
fn a_call_that_runs_in_its_guard_is_cancelled_when_dropped() {
    let (gate, timer) = gate(breaker(1));
    let r = gate.resource("r");
    let mut cx = Context::from_waker(Waker::noop());
    let failing = r
        .enter()
        .unwrap()
        .run(async { Err::<(), _>("broken") }, Result::is_err);
    assert_eq!(pin!(failing).poll(&mut cx), Poll::Ready(Err("broken")));
    assert_eq!(r.breakers()[0].1, BreakerState::Open);
    timer.advance(ms(5_000));
    {
        let mut hanging = pin!(
            r.enter()
                .unwrap()
                .run(std::future::pending::<()>(), |()| false)
        );
        assert!(hanging.as_mut().poll(&mut cx).is_pending());
        assert!(r.enter().is_err());
    }
    assert_eq!(
        (r.breakers()[0].1, r.node().in_flight()),
        (BreakerState::Open, 0)
    );
    let good = r
        .enter()
        .unwrap()
        .run(async { Ok::<_, ()>(7) }, Result::is_err);
    assert_eq!(pin!(good).poll(&mut cx), Poll::Ready(Ok(7)));
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn a_probe_blocked_by_another_rule_is_returned() {
    // Both breakers open at the same failure. The first may try a probe while the second still
    // blocks.
    let mut rules = breaker(1);
    let first = rules.breakers[0].clone().id("first");
    let mut second = first.clone().id("second");
    second.open_time = ms(60_000);
    rules.breakers = vec![first, second];
    let (gate, timer) = gate(rules);
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    timer.advance(ms(5_000));
    for _ in 0..10 {
        let blocked = r.enter().unwrap_err();
        assert_eq!(blocked.rule(), "second");
        assert_eq!(
            r.breakers()[0].1,
            BreakerState::Open,
            "the first breaker admitted a probe, which gave its permit back"
        );
    }
    timer.advance(ms(55_000));
    assert!(r.enter().is_ok());
    assert_eq!(
        r.breakers().iter().map(|b| b.1).collect::<Vec<_>>(),
        [BreakerState::Closed; 2]
    );
}

#[test]
fn listeners_are_told_of_breaker_changes() {
    let (gate, timer) = gate(breaker(1));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    gate.on_breaker_change(move |change| {
        listener.lock().unwrap().push((
            change.resource.to_owned(),
            change.from,
            change.to,
            change.at,
        ));
    });
    let r = gate.resource("r");
    r.enter().unwrap().mark_failed();
    timer.advance(ms(5_000));
    drop(r.enter());
    let at = |s| Nanos::from_secs(s);
    let name = || "r".to_owned();
    assert_eq!(
        *heard.lock().unwrap(),
        [
            (name(), BreakerState::Closed, BreakerState::Open, at(1_000)),
            (
                name(),
                BreakerState::Open,
                BreakerState::HalfOpen,
                at(1_005)
            ),
            (
                name(),
                BreakerState::HalfOpen,
                BreakerState::Closed,
                at(1_005)
            ),
        ]
    );
}

#[test]
fn a_panicking_listener_breaks_nothing_else() {
    let in_flight = HotParamRule::new("r", ParamKey::Index(0), 1).measure(ParamMeasure::InFlight);
    let (gate, timer) = gate(breaker(1).and(vec![in_flight]));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = heard.clone();
    gate.on_breaker_change(|_| panic!("in the listener"));
    gate.on_breaker_change(move |change| listener.lock().unwrap().push(change.to));
    let r = gate.resource("r");
    let call = || r.entry().arg("a").enter();
    // A guard that exits during a panic: a second panic would abort the process.
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = call().unwrap();
        panic!("in the call");
    }));
    assert!(caught.is_err());
    timer.advance(ms(5_000));
    drop(call().expect("the probe"));
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
    assert!(
        call().is_ok(),
        "the entry gave back the value's whole share"
    );
    assert_eq!(
        *heard.lock().unwrap(),
        [
            BreakerState::Open,
            BreakerState::HalfOpen,
            BreakerState::Closed
        ]
    );
}
