//! Guarded functions behave like unguarded ones when the rules admit the call.
#![allow(clippy::needless_pass_by_value, clippy::unused_async)] // Fallbacks take the arguments of the guarded function.

use std::{
    error::Error,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    Blocked, Gate, Layout, ManualTimer, Resource,
    rules::{Behaviour, FlowRule, HotParamRule, IsolationRule, Origins, ParamKey, Rules},
};
use tidegate_macros::guard;

fn gate(rules: Rules) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    (gate, timer)
}

fn flow(rules: Vec<FlowRule>) -> Rules {
    Rules::from(rules)
}

#[derive(Debug, PartialEq)]
enum Failure {
    Blocked(String),
    Odd,
}

impl From<Blocked> for Failure {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(blocked.resource().into())
    }
}

/// Doubles even numbers.
#[guard(resource = "double", inbound)]
fn double(gate: &Gate, n: i32) -> Result<i32, Failure> {
    if n % 2 != 0 {
        return Err(Failure::Odd);
    }
    let same: i32 = n.to_string().parse().map_err(|_| Failure::Odd)?;
    Ok(same * 2)
}

#[test]
fn a_function_runs_in_its_resource_and_its_errors_are_counted() {
    let (gate, _timer) = gate(flow(vec![FlowRule::new("double", 2)]));
    assert_eq!(double(&gate, 4), Ok(8));
    assert_eq!(double(&gate, 3), Err(Failure::Odd));
    assert_eq!(double(&gate, 4), Err(Failure::Blocked("double".into())));
    let counts = gate.resource("double").node().counts(gate.now());
    assert_eq!(
        (counts.pass, counts.block, counts.success, counts.exception),
        (2, 1, 2, 1)
    );
    assert_eq!(gate.inbound().counts(gate.now()).pass, 2);
}

type Outcome<T> = Result<T, Blocked>;

#[guard(resource = "outer")]
fn outer(gate: &Gate) -> Outcome<()> {
    gate.resource("inner").enter_owned().map(drop)
}

#[guard(resource = "outer")]
fn outer_boxed(gate: &Gate, is_odd: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
    if is_odd {
        return Err("odd".into());
    }
    Ok(gate.resource("inner").enter_owned().map(drop)?)
}

#[guard(resource = "outer")]
async fn outer_async(gate: &Gate) -> Result<(), Box<dyn Error>> {
    Ok(gate.resource("inner").enter_owned().map(drop)?)
}

#[guard(resource = "outer", failed = |result: &Result<(), Failure>| matches!(result, Err(Failure::Odd)))]
fn outer_said(gate: &Gate) -> Result<(), Failure> {
    Ok(gate.resource("inner").enter_owned().map(drop)?)
}

/// An error that borrows.
#[guard(resource = "outer")]
fn borrowed<'a>(gate: &Gate, text: &'a str) -> Result<(), Borrowed<'a>> {
    Err(Borrowed(text))
}

/// A generic error type.
#[guard(resource = "outer")]
fn generic<E: From<Blocked>>(gate: &Gate, error: E) -> Result<(), E> {
    Err(error)
}

#[derive(Debug, PartialEq)]
struct Borrowed<'a>(&'a str);

impl From<Blocked> for Borrowed<'_> {
    fn from(_: Blocked) -> Self {
        Self("blocked")
    }
}

#[test]
fn a_block_further_in_is_no_failure() {
    let (gate, _timer) = gate(Rules::from(vec![IsolationRule::new("inner", 0)]));
    let exceptions = || gate.resource("outer").node().counts(gate.now()).exception;
    assert_eq!(outer(&gate).unwrap_err().resource(), "inner");
    assert!(outer_boxed(&gate, false).unwrap_err().is::<Blocked>());
    let Poll::Ready(Err(error)) =
        pin!(outer_async(&gate)).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("it has nothing to wait for");
    };
    assert!(error.is::<Blocked>());
    outer_said(&gate).unwrap_err();
    assert_eq!(exceptions(), 0);
    outer_boxed(&gate, true).unwrap_err();
    assert_eq!(exceptions(), 1);
    assert_eq!(borrowed(&gate, "text"), Err(Borrowed("text")));
    assert_eq!(generic(&gate, Failure::Odd), Err(Failure::Odd));
    assert_eq!(exceptions(), 3);
}

struct Service {
    gate: Gate,
    pool: Resource,
    calls: usize,
}

impl Service {
    #[guard(resource = "greet", origin = from, count = 2, args(name, 7_u64), fallback = Self::no_greeting)]
    fn greet(&mut self, from: &str, name: String) -> String {
        self.calls += 1;
        format!("hello {name} from {from}")
    }

    fn no_greeting(&mut self, _from: &str, name: String, blocked: Blocked) -> String {
        assert!(self.calls > 0);
        format!("{name} is blocked by {}", blocked.rule())
    }

    #[guard(handle = self.pool, failed = |n: &u32| *n == 0, fallback = Self::none)]
    fn pooled(&self, n: u32) -> u32 {
        n
    }

    fn none(&self, _n: u32, blocked: Blocked) -> u32 {
        u32::try_from(blocked.resource().len()).unwrap() + u32::try_from(self.calls).unwrap()
    }

    #[guard(resource = "slow", fallback = Self::busy)]
    async fn slow(&self, wait: impl Future<Output = ()> + Send, n: u32) -> Result<u32, Failure> {
        wait.await;
        if n == 0 { Err(Failure::Odd) } else { Ok(n) }
    }

    async fn busy(
        &self,
        _wait: impl Future<Output = ()> + Send,
        n: u32,
        _: Blocked,
    ) -> Result<u32, Failure> {
        Ok(n + 100)
    }
}

fn service(rules: Rules) -> (Service, Arc<ManualTimer>) {
    let (gate, timer) = gate(rules);
    (
        Service {
            pool: gate.resource("pool"),
            gate,
            calls: 0,
        },
        timer,
    )
}

#[test]
fn a_method_has_a_fallback_with_the_same_arguments() {
    let rules = Rules::from(vec![
        FlowRule::new("greet", 2).origins(Origins::Only("web".into())),
    ])
    .and(vec![HotParamRule::new("greet", ParamKey::Index(0), 4)]);
    let (mut service, _timer) = service(rules);
    assert_eq!(service.greet("web", "ann".into()), "hello ann from web");
    assert_eq!(
        service.greet("web", "ann".into()),
        "ann is blocked by 2/1s from web"
    );
    assert_eq!(service.greet("tv", "ann".into()), "hello ann from tv");
    assert_eq!(
        service.greet("tv", "ann".into()),
        "ann is blocked by 4/1s for each arg 0"
    );
    assert_eq!(service.calls, 2);
}

#[test]
fn a_handle_needs_no_gate_and_failure_is_what_one_says() {
    let (service, _timer) = service(Rules::default());
    assert_eq!([service.pooled(0), service.pooled(3)], [0, 3]);
    assert_eq!(service.pool.node().counts(service.gate.now()).exception, 1);
    service
        .gate
        .load(Rules::from(vec![IsolationRule::new("pool", 0)]))
        .unwrap();
    assert_eq!(service.pooled(1), 4);
}

#[test]
fn an_async_method_waits_for_its_turn_and_is_cancelled_when_dropped() {
    let throttle = FlowRule::new("slow", 10).behaviour(Behaviour::Throttle {
        max_wait: Duration::from_millis(150),
    });
    let (service, timer) = service(flow(vec![throttle]));
    let mut cx = Context::from_waker(Waker::noop());
    let node = || service.gate.resource("slow");
    assert_eq!(
        pin!(service.slow(async {}, 1)).poll(&mut cx),
        Poll::Ready(Ok(1))
    );
    let mut second = pin!(service.slow(async {}, 0));
    assert_eq!(second.as_mut().poll(&mut cx), Poll::Pending);
    assert_eq!(
        pin!(service.slow(async {}, 1)).poll(&mut cx),
        Poll::Ready(Ok(101)),
        "too long to wait"
    );
    timer.advance(Duration::from_millis(100));
    assert_eq!(
        second.as_mut().poll(&mut cx),
        Poll::Ready(Err(Failure::Odd))
    );
    timer.advance(Duration::from_millis(100));
    {
        let mut hanging = pin!(service.slow(std::future::pending(), 1));
        assert!(hanging.as_mut().poll(&mut cx).is_pending());
        assert_eq!(node().node().in_flight(), 1);
    }
    let counts = node().node().counts(service.gate.now());
    assert_eq!(
        (counts.pass, counts.block, counts.success, counts.exception),
        (3, 1, 3, 1)
    );
    assert_eq!(node().node().in_flight(), 0);
}

#[test]
fn a_prioritized_function_borrows_from_the_next_slot_and_waits_for_it() {
    #[guard(resource = "urgent", prioritized)]
    async fn urgent(gate: &Gate) -> Result<Nanos, Blocked> {
        Ok(gate.now())
    }
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let layout = Layout::new(2, Duration::from_secs(1)).unwrap();
    let gate = Gate::builder()
        .timer(timer.clone())
        .layout(layout)
        .unwrap()
        .build();
    gate.load(flow(vec![FlowRule::new("urgent", 1)])).unwrap();
    drop(gate.resource("urgent").enter().unwrap());
    timer.advance(Duration::from_millis(600));
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = pin!(urgent(&gate));
    assert!(
        call.as_mut().poll(&mut cx).is_pending(),
        "the window has no room now"
    );
    timer.advance(Duration::from_millis(400));
    assert_eq!(
        call.as_mut().poll(&mut cx),
        Poll::Ready(Ok(Nanos::from_secs(1_001)))
    );
}

#[test]
fn a_sync_function_waits_out_its_delay() {
    #[guard(resource = "spaced")]
    fn spaced(gate: &Gate) -> Result<u64, Blocked> {
        Ok(gate.now().get() / 1_000_000)
    }
    let throttle = FlowRule::new("spaced", 10).behaviour(Behaviour::Throttle {
        max_wait: Duration::from_secs(1),
    });
    let (gate, timer) = gate(flow(vec![throttle]));
    assert_eq!(spaced(&gate), Ok(1_000_000));
    let waiting = std::thread::spawn(move || spaced(&gate));
    // Under any thread schedule, the second call proceeds when the clock reaches its time, and not
    // before.
    while !waiting.is_finished() {
        timer.advance(Duration::from_millis(1));
        std::thread::yield_now();
    }
    assert!(waiting.join().unwrap().unwrap() >= 1_000_100);
}
