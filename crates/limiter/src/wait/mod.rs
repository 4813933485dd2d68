//! Waiting for admission: a queue of tickets (a line) for each key, by priority, and first come
//! first served within one.
//!
//! A line is kept next to its key's state and changes only under the key's lock, so an admission
//! and its record are one atomic step. Every operation on the key serves the line first
//! ([`WaitLine::settle`]): a request, a refund, a change of policy, the end of a block, a waiter
//! whose time has come. No request is admitted past the line.
//!
//! Time alone makes room without an operation. So a line has an [alarm](alarm): waiters whose
//! futures are held but not polled delay the others by less than 10 ms.

mod alarm;
mod line;
mod lines;
mod place;
mod plan;
mod reservations;
mod ticket;

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tidegate_core::{Admission, Decision, Estimate, Nanos, Policy, Priority};

use crate::{Timer, eras::Site};
use alarm::{Alarm, Sleep};
pub(crate) use line::{CALL, Joined, WaitLine};
pub(crate) use lines::{Lines, OneLine};
pub use place::WaitUntil;
use ticket::WaitOutcome;
pub(crate) use ticket::{Ticket, Wakes};

/// Why a wait ended without admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost can never fit, or it is unknown when it fits.
    #[error("waiting cannot make room for this cost: {} of {} are free", _0.remaining(), _0.limit())]
    Never(Decision),
    /// The cost would fit only after the deadline. Returned as soon as that is known, not when the
    /// deadline has passed.
    #[error("{}", after_the_deadline(_0))]
    Deadline(Decision),
}

impl WaitError {
    /// The decision that ended the wait: a denial, or a leaky bucket's delay that ends after the
    /// deadline.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::Never(decision) | Self::Deadline(decision) => decision,
        }
    }
}

fn after_the_deadline(decision: &Decision) -> String {
    match decision.retry_after() {
        None if decision.is_denied() => "no room before the deadline".to_owned(),
        wait => format!(
            "room only after the deadline, in {:?}",
            wait.unwrap_or(decision.delay())
        ),
    }
}

/// The state that a step on a line sees under the key's lock.
pub(crate) struct Ground<'a> {
    pub policy: &'a Policy,
    pub state: &'a mut [u64],
    pub site: Site<'a>,
    /// The key is denied until this time.
    pub blocked: Nanos,
    pub now: Nanos,
}

impl Ground<'_> {
    /// The estimate of units that were just taken.
    fn note(&self, cost: u64) -> Estimate {
        self.site.note(self.policy, self.state, cost, self.now)
    }
}

/// The owner of a line and its state.
pub(crate) trait Home {
    /// One atomic step on a state and its line. Tasks are woken after it.
    fn step<R>(
        &self,
        now: Nanos,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>, &mut Wakes) -> R,
    ) -> R;
}

/// Waits in line for `cost`. Returns what `result` makes of the admission and of the estimate that
/// returns the units.
pub(crate) fn wait<R, H: Home + Unpin>(
    home: H,
    cost: u64,
    WaitUntil { deadline, priority }: WaitUntil,
    timer: &impl Timer,
    result: impl Fn(Admission, Estimate) -> R + Unpin,
) -> impl Future<Output = Result<R, WaitError>> {
    Seat {
        home,
        timer,
        result,
        progress: Progress::Asks(cost, deadline.unwrap_or(Nanos::MAX), priority),
    }
}

/// The future of a caller. When dropped, it leaves the line, or returns what was admitted to it.
// An async function would hold its arguments and what it has made of them, and there may be a
// hundred thousand waiters.
struct Seat<'a, H: Home, T: Timer, F> {
    home: H,
    timer: &'a T,
    result: F,
    progress: Progress,
}

enum Progress {
    /// It has not asked yet: the cost, the deadline and the priority.
    Asks(u64, Nanos, Priority),
    /// It has a ticket. Whether its waker is known.
    Waits(Arc<Ticket>, bool),
    /// It is admitted, and waits for a leaky bucket's delay.
    Delayed(Arc<Ticket>, Sleep),
    Ended,
}

impl<H: Home + Unpin, T: Timer, R, F: Fn(Admission, Estimate) -> R + Unpin> Future
    for Seat<'_, H, T, F>
{
    type Output = Result<R, WaitError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let seat = self.get_mut();
        Poll::Ready(
            ready!(seat.poll_admitted(cx))
                .map(|(decision, estimate)| (seat.result)(admitted(decision), estimate)),
        )
    }
}

fn admitted(decision: Decision) -> Admission {
    decision
        .into_result()
        .unwrap_or_else(|denied| unreachable!("a wait ends with {denied}"))
}

impl<H: Home, T: Timer, F> Seat<'_, H, T, F> {
    fn poll_admitted(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Decision, Estimate), WaitError>> {
        loop {
            match &mut self.progress {
                Progress::Asks(cost, deadline, priority) => {
                    let (cost, until) = (*cost, (*deadline, *priority));
                    self.progress = Progress::Ended;
                    let joined = self.home.step(self.timer.now(), |line, ground, wakes| {
                        line.join(ground, cost, until, self.timer, wakes)
                    });
                    match joined? {
                        Joined::Admitted(decision, estimate) => {
                            return Poll::Ready(Ok((decision, estimate)));
                        }
                        Joined::Waiting(ticket) => self.progress = Progress::Waits(ticket, false),
                    }
                }
                Progress::Waits(ticket, is_asleep) => {
                    let was_asleep = mem::replace(is_asleep, true);
                    ready!(ticket.poll_woken(was_asleep, cx.waker()));
                    *is_asleep = false;
                    let ticket = Arc::clone(ticket);
                    let Some(outcome) = self.look(&ticket) else {
                        continue;
                    };
                    let start = outcome?.start;
                    if start <= self.timer.now() {
                        return Poll::Ready(self.taken(&ticket));
                    }
                    // If it is dropped during the delay, the seat gives up its place.
                    let sleep = Box::pin(self.timer.sleep_until(start));
                    self.progress = Progress::Delayed(ticket, sleep);
                }
                Progress::Delayed(ticket, sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    let ticket = Arc::clone(ticket);
                    return Poll::Ready(self.taken(&ticket));
                }
                Progress::Ended => unreachable!("a future that has ended is polled"),
            }
        }
    }

    /// How the wait has ended. If it has not, this serves the line.
    fn look(&self, ticket: &Ticket) -> Option<WaitOutcome> {
        let outcome = ticket.outcome();
        if outcome.is_some() {
            return outcome;
        }
        let now = self.timer.now();
        self.home.step(now, |line, ground, wakes| {
            line.attend(ground, ticket, wakes);
        });
        let outcome = ticket.outcome();
        let late = outcome.is_none() && now >= ticket.deadline;
        if late {
            Some(Err(WaitError::Deadline(self.refused(ticket, now))))
        } else {
            outcome
        }
    }

    /// The decision that shows why room comes too late.
    fn refused(&self, ticket: &Ticket, now: Nanos) -> Decision {
        self.home.step(now, |line, ground, wakes| {
            line.leave(ground, ticket, wakes);
            line.answer(ground, ticket.cost)
        })
    }

    fn taken(&mut self, ticket: &Ticket) -> Result<(Decision, Estimate), WaitError> {
        self.progress = Progress::Ended;
        if ticket.finish() {
            self.home
                .step(self.timer.now(), |line, _, _| line.started(ticket));
        }
        let outcome = ticket.outcome();
        let admitted = outcome.unwrap_or_else(|| unreachable!("a wait ends with an outcome"))?;
        Ok((admitted.decision, admitted.estimate))
    }
}

impl<H: Home, T: Timer, F> Drop for Seat<'_, H, T, F> {
    fn drop(&mut self) {
        let (Progress::Waits(ticket, _) | Progress::Delayed(ticket, _)) = &self.progress else {
            return;
        };
        if !ticket.is_finished() {
            self.home.step(self.timer.now(), |line, ground, wakes| {
                line.leave(ground, ticket, wakes);
            });
        }
    }
}
