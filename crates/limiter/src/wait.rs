//! Waiting for admission: a line of tickets for each key, first come first served.
//!
//! Only the front of a line asks the limiter; whoever stands behind waits for the front to leave. A future that is
//! dropped gives back what it had reserved: its place in the line, or, while it waits out a leaky bucket's delay, the
//! cost that was taken for it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use crate::table::Tag;
use tidegate_core::{Algorithm, Decision, Nanos, Policy};

use crate::Timer;

/// Why a wait ended without admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost can never fit, or no time can be named at which it does.
    Never(Decision),
    /// It would fit, but after the deadline. Returned as soon as that is known, not when the deadline has passed.
    Deadline(Decision),
}

impl WaitError {
    /// The answer that the wait ended on: a denial, or a leaky bucket's delay that ends after the deadline.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::Never(decision) | Self::Deadline(decision) => decision,
        }
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never(decision) => write!(
                f,
                "no wait makes room for this cost: {} of {} are free",
                decision.remaining(),
                decision.limit()
            ),
            Self::Deadline(decision) => {
                let wait = decision.retry_after().unwrap_or(decision.delay());
                write!(f, "room only after the deadline, in {wait:?}")
            }
        }
    }
}

impl std::error::Error for WaitError {}

/// One cost of one key, as a line asks for it.
pub(crate) trait Admission {
    /// Decides, and takes the cost when admitted, as if nobody waited.
    fn ask(&self, now: Nanos) -> Decision;
    /// What the answer is behind others with these costs; nothing is taken.
    fn ask_behind(&self, costs: &[u32], now: Nanos) -> Decision;
    /// Gives back what was taken.
    fn give_back(&self, now: Nanos);
}

/// The lines of one limiter.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Tickets in all lines: as long as it is 0, nobody looks further.
    waiting: AtomicUsize,
    lines: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: u64,
    lines: HashMap<Tag, VecDeque<Ticket>>,
}

#[derive(Debug)]
struct Ticket {
    id: u64,
    cost: u32,
    waker: Option<Waker>,
}

/// A place in a line. Dropped, it is given up and the next one is called.
struct Place<'a> {
    lines: &'a Lines,
    tag: Tag,
    id: u64,
}

impl Lines {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics with a line half changed.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits at all. Relaxed: who comes at the same moment may be counted before or after.
    #[inline]
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The costs that wait for this key, in order.
    pub fn costs(&self, tag: Tag) -> Vec<u32> {
        let inner = self.inner();
        inner.lines.get(&tag).map(|line| line.iter().map(|ticket| ticket.cost).collect()).unwrap_or_default()
    }

    fn join(&self, tag: Tag, cost: u32) -> Place<'_> {
        let mut inner = self.inner();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.lines.entry(tag).or_default().push_back(Ticket { id, cost, waker: None });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Place { lines: self, tag, id }
    }

    /// Waits in line for `cost`.
    pub async fn wait(
        &self,
        tag: Tag,
        cost: u32,
        deadline: Option<Nanos>,
        timer: &impl Timer,
        admission: &impl Admission,
    ) -> Result<Decision, WaitError> {
        let place = self.join(tag, cost);
        // What stands ahead says already whether the deadline can be met.
        let costs = place.costs_ahead();
        if !costs.is_empty() {
            let now = timer.now();
            give_up(admission.ask_behind(&costs, now), now, deadline)?;
        }
        while !place.is_front() {
            let turn = pin!(place.front());
            match deadline {
                None => turn.await,
                Some(at) => {
                    let late = pin!(timer.sleep_until(at));
                    if !first(turn, late).await && !place.is_front() {
                        return Err(WaitError::Deadline(
                            admission.ask_behind(&place.costs_ahead(), timer.now()),
                        ));
                    }
                }
            }
        }
        loop {
            let now = timer.now();
            let decision = admission.ask(now);
            if decision.is_allowed() {
                drop(place);
                let start = now.saturating_add(decision.delay().into());
                if start > now {
                    let reserved = Reserved(|| admission.give_back(timer.now()));
                    if deadline.is_some_and(|deadline| start > deadline) {
                        return Err(WaitError::Deadline(decision));
                    }
                    timer.sleep_until(start).await;
                    std::mem::forget(reserved);
                }
                return Ok(decision);
            }
            let at = give_up(decision, now, deadline)?;
            timer.sleep_until(at).await;
        }
    }
}

/// A cost that was taken for work that has not started. Dropped, it is given back.
struct Reserved<F: Fn()>(F);

impl<F: Fn()> Drop for Reserved<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// When to ask again after a denial, or the error that says that it is no use.
fn give_up(decision: Decision, now: Nanos, deadline: Option<Nanos>) -> Result<Nanos, WaitError> {
    let wait = match (decision.is_denied(), decision.retry_after()) {
        (false, _) => Duration::ZERO,
        (true, Some(wait)) => wait,
        (true, None) => return Err(WaitError::Never(decision)),
    };
    let at = now.saturating_add(wait.into());
    match deadline {
        Some(deadline) if at > deadline => Err(WaitError::Deadline(decision)),
        _ => Ok(at),
    }
}

/// The decision on `cost` behind the `costs` that wait already, on a copy of the state: when the last of them is
/// admitted, each as early as it can be.
pub(crate) fn decide_behind(
    policy: &Policy,
    state: &mut [u64],
    costs: &[u32],
    cost: u32,
    now: Nanos,
) -> Decision {
    let mut at = now;
    let mut last = None;
    for &cost in costs.iter().chain([&cost]) {
        let mut decision = policy.decide(state, at, cost);
        while let Some(wait) = decision.retry_after() {
            if wait > Nanos::MAX.saturating_since(at).into() {
                return Decision::deny_for_good(decision.limit() as u32, 0, 1, u64::MAX);
            }
            at = at.saturating_add(wait.into());
            decision = policy.decide(state, at, cost);
        }
        last = Some(decision);
        if decision.is_denied() {
            break;
        }
    }
    let wait = at.saturating_since(now).get();
    match last {
        // Something ahead never gets through by itself.
        Some(decision) if decision.is_denied() => decision,
        Some(decision) if wait == 0 => decision,
        Some(decision) => {
            Decision::deny(decision.limit() as u32, wait, 0, 1, decision.reset_after_nanos() + wait)
        }
        None => policy.check(state, now, cost),
    }
}

/// Whether `one` completes before `other` does.
async fn first(mut one: std::pin::Pin<&mut impl Future>, mut other: std::pin::Pin<&mut impl Future>) -> bool {
    poll_fn(|cx| {
        if one.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(cx).map(|_| false)
    })
    .await
}

impl Place<'_> {
    fn is_front(&self) -> bool {
        let inner = self.lines.inner();
        inner.lines.get(&self.tag).and_then(VecDeque::front).is_some_and(|ticket| ticket.id == self.id)
    }

    fn costs_ahead(&self) -> Vec<u32> {
        let inner = self.lines.inner();
        let line = inner.lines.get(&self.tag);
        line.into_iter().flatten().take_while(|ticket| ticket.id != self.id).map(|t| t.cost).collect()
    }

    /// Completes when this place is the front of its line.
    fn front(&self) -> impl Future<Output = ()> + Send + use<'_> {
        poll_fn(|cx| {
            let mut inner = self.lines.inner();
            let Some(line) = inner.lines.get_mut(&self.tag) else { return Poll::Ready(()) };
            match line.iter_mut().enumerate().find(|(_, ticket)| ticket.id == self.id) {
                Some((at, ticket)) if at > 0 => {
                    ticket.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let next = {
            let mut inner = self.lines.inner();
            let Some(line) = inner.lines.get_mut(&self.tag) else { return };
            let was_front = line.front().is_some_and(|ticket| ticket.id == self.id);
            line.retain(|ticket| ticket.id != self.id);
            let next = if was_front { line.front_mut().and_then(|ticket| ticket.waker.take()) } else { None };
            if line.is_empty() {
                inner.lines.remove(&self.tag);
            }
            next
        };
        self.lines.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
