//! Functions of every supported shape compile with the attribute as they do without it.
#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::needless_pass_by_value
)] // The functions exist only for their signatures.

use std::{
    error::Error,
    fmt::Display,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tidegate_flow::{Blocked, Gate, rules::Rules};
use tidegate_macros::guard;

fn ready<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it has nothing to wait for"),
    }
}

struct Service {
    gate: Gate,
    other: Arc<Gate>,
    calls: u32,
    names: Vec<String>,
}

fn service() -> Service {
    Service {
        gate: Gate::new(),
        other: Arc::default(),
        calls: 0,
        names: vec!["ann".into()],
    }
}

impl Service {
    #[guard(resource = "lent")]
    fn lent(&self) -> Result<&str, Blocked> {
        Ok(&self.names[0])
    }

    #[guard(resource = "lent")]
    fn lent_to_change(&mut self) -> Result<&mut u32, Blocked> {
        self.calls += 1;
        Ok(&mut self.calls)
    }

    #[guard(resource = "lent", fallback = Self::counter)]
    fn lent_whatever_happens(&mut self) -> &mut u32 {
        self.calls += 1;
        &mut self.calls
    }

    fn counter(&mut self, _: Blocked) -> &mut u32 {
        &mut self.calls
    }

    #[guard(resource = "lent")]
    async fn lent_async(&mut self) -> Result<&mut u32, Blocked> {
        self.calls += 1;
        Ok(&mut self.calls)
    }

    #[guard(resource = "self")]
    fn shared(self: Arc<Self>) -> Result<u32, Blocked> {
        Ok(self.calls)
    }

    #[guard(resource = "self")]
    async fn pinned(self: Pin<&mut Self>) -> Result<u32, Blocked> {
        Ok(self.calls)
    }

    #[guard(resource = "self")]
    fn whole(self) -> Result<Self, Blocked> {
        Ok(self)
    }
}

#[test]
fn a_result_may_borrow_from_what_was_passed() {
    let mut service = service();
    assert_eq!(service.lent().unwrap(), "ann");
    *service.lent_to_change().unwrap() += 10;
    *service.lent_whatever_happens() += 10;
    *ready(service.lent_async()).unwrap() += 10;
    assert_eq!(service.calls, 33);
    assert_eq!(
        service
            .gate
            .resource("lent")
            .node()
            .counts(service.gate.now())
            .success,
        4
    );
}

#[test]
fn a_method_may_take_itself_in_any_way() {
    let mut service = service().whole().unwrap();
    assert_eq!(ready(Pin::new(&mut service).pinned()), Ok(0));
    let service = Arc::new(service);
    assert_eq!(service.clone().shared(), Ok(0));
    assert_eq!(
        service
            .gate
            .resource("self")
            .node()
            .counts(service.gate.now())
            .success,
        3
    );
}

impl Service {
    #[guard(resource = "boxed", fallback = Self::nothing)]
    async fn boxed(&self) -> Box<dyn Display> {
        Box::new(7)
    }

    async fn nothing(&self, blocked: Blocked) -> Box<dyn Display> {
        Box::new(blocked)
    }

    #[guard(resource = "boxed")]
    async fn boxed_result(&self) -> Result<Box<dyn Display>, Blocked> {
        Ok(Box::new(7))
    }

    #[guard(resource = "slice")]
    async fn slice(&self) -> Result<&[u8], Blocked> {
        Ok(&[1, 2])
    }

    #[guard(resource = "any error")]
    async fn any_error(&self, text: &str) -> Result<u32, Box<dyn Error + Send + Sync>> {
        let number = text.parse()?;
        if number == 3 {
            return Err("three".into());
        }
        Ok(number)
    }
}

#[test]
fn what_an_async_function_returns_becomes_what_its_signature_says() {
    let service = service();
    assert_eq!(ready(service.boxed()).to_string(), "7");
    assert_eq!(ready(service.boxed_result()).unwrap().to_string(), "7");
    assert_eq!(ready(service.slice()).unwrap(), [1, 2]);
    let answers = ["5", "3", "x"].map(|text| ready(service.any_error(text)).ok());
    assert_eq!(answers, [Some(5), None, None]);
    assert_eq!(
        service
            .gate
            .resource("any error")
            .node()
            .counts(service.gate.now())
            .exception,
        2
    );
}

/// The closure's argument type is inferred.
#[guard(resource = "said", fallback = no_answer, failed = |answer| answer.is_none_or(|answer| answer == 0))]
fn said(gate: &Gate, answer: Option<u32>) -> Option<u32> {
    answer
}

fn no_answer(_: &Gate, _: Option<u32>, _: Blocked) -> Option<u32> {
    None
}

#[guard(resource = "said", failed = |answer| answer.as_ref().is_ok_and(String::is_empty))]
async fn said_async(gate: &Gate, answer: &str) -> Result<String, Blocked> {
    Ok(answer.into())
}

#[guard(resource = "said", failed = Result::is_err)]
fn said_by_a_path(gate: &Gate, is_well: bool) -> Result<(), Failed> {
    if is_well { Ok(()) } else { Err(Failed) }
}

#[derive(Debug, PartialEq)]
struct Failed;

impl From<Blocked> for Failed {
    fn from(_: Blocked) -> Self {
        Self
    }
}

#[test]
fn failure_is_said_by_any_function_of_what_was_returned() {
    let gate = Gate::new();
    let failures = || gate.resource("said").node().counts(gate.now()).exception;
    assert_eq!([said(&gate, Some(7)), said(&gate, None)], [Some(7), None]);
    assert_eq!(failures(), 1);
    assert_eq!(ready(said_async(&gate, "x")).unwrap().len(), 1);
    assert!(ready(said_async(&gate, "")).unwrap().is_empty());
    assert_eq!(failures(), 2);
    assert_eq!(
        [said_by_a_path(&gate, true), said_by_a_path(&gate, false)],
        [Ok(()), Err(Failed)]
    );
    assert_eq!(failures(), 3);
}

impl Service {
    #[guard(resource = "whose", gate = *self.other)]
    fn by_a_dereference(&self) -> Result<(), Blocked> {
        Ok(())
    }

    #[guard(resource = "whose", gate = if left { &self.gate } else { &self.other })]
    fn by_a_choice(&self, left: bool) -> Result<(), Blocked> {
        Ok(())
    }

    #[guard(resource = &format!("table {table}"), gate = &self.other)]
    async fn by_a_table(&self, table: &str) -> Result<(), Blocked> {
        Ok(())
    }
}

#[test]
fn gate_and_resource_may_be_any_expression() {
    let service = service();
    service.by_a_dereference().unwrap();
    service.by_a_choice(true).unwrap();
    service.by_a_choice(false).unwrap();
    ready(service.by_a_table("users")).unwrap();
    let passed = |gate: &Gate, name: &str| gate.resource(name).node().counts(gate.now()).pass;
    assert_eq!(
        (
            passed(&service.gate, "whose"),
            passed(&service.other, "whose")
        ),
        (1, 2)
    );
    assert_eq!(passed(&service.other, "table users"), 1);
}

#[guard(resource = "generic", count = N as u32)]
fn generic<'a, T, const N: usize>(gate: &Gate, all: &'a [T; N]) -> Result<&'a T, Blocked>
where
    T: Display,
{
    Ok(&all[0])
}

#[guard(resource = "generic")]
async fn calls<F, C>(gate: Gate, call: F) -> Result<u32, Blocked>
where
    F: FnOnce(u32) -> C,
    C: Future<Output = u32>,
{
    Ok(call(4).await)
}

#[guard(resource = "generic")]
fn takes_apart(gate: &Gate, (a, b): (u32, u32), [c, ..]: [u32; 3]) -> Result<u32, Blocked> {
    Ok(a + b + c)
}

trait Guarded {
    fn gate(&self) -> Gate;

    #[guard(resource = "trait", gate = self.gate())]
    fn by_default(&self) -> Result<u32, Blocked> {
        Ok(1)
    }
}

impl Guarded for Service {
    fn gate(&self) -> Gate {
        self.gate.clone()
    }
}

#[test]
fn generic_functions_patterns_and_traits_are_guarded() {
    let service = service();
    let gate = &service.gate;
    assert_eq!(generic(gate, &[5, 6, 7]), Ok(&5));
    assert_eq!(ready(calls(gate.clone(), async |n| n + 1)), Ok(5));
    assert_eq!(takes_apart(gate, (1, 2), [3, 4, 5]), Ok(6));
    assert_eq!(service.by_default(), Ok(1));
    let counts = gate.resource("generic").node().counts(gate.now());
    assert_eq!((counts.pass, counts.success), (5, 5));
}

#[test]
fn a_guarded_future_can_go_to_another_thread() {
    fn sent<F: Future + Send>(call: F) -> F {
        call
    }
    let service = service();
    service.gate.load(Rules::default()).unwrap();
    assert!(ready(sent(service.any_error("5"))).is_ok());
    assert!(ready(sent(service.by_a_table("users"))).is_ok());
}
