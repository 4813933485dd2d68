//! Waiting for admission: a line of tickets for each key, first come first served.
//!
//! A line stands beside its key's state and changes only under the key's lock, so whatever it admits is recorded in the
//! same atomic step. Everybody who touches the key serves the line first ([`Line::settle`]): a caller who asks, one who
//! gives back, a change of policy, an unblocking, a waiter whose time has come. Nobody is admitted past it.
//!
//! Time is the only thing that makes room unannounced. So the first few of a line watch the clock, each with a timer of its
//! own: one whose future is held and not polled does not hold up the others.

mod line;
mod lines;
mod plan;
mod reservations;
mod ticket;

use std::{pin::pin, sync::Arc};

use tidegate_core::{Decision, Nanos, Policy};

use crate::Timer;
pub(crate) use line::{Joined, Line};
pub(crate) use lines::{Lines, OneLine};
pub(crate) use ticket::Wakes;
use ticket::{Admitted, Outcome, Ticket, sleep};

/// Why a wait ended without admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost can never fit, or it is unknown when it fits.
    #[error("waiting cannot make room for this cost: {} of {} are free", _0.remaining(), _0.limit())]
    Never(Decision),
    /// The cost would fit only after the deadline. Returned as soon as that is known, not when the deadline has passed.
    #[error("{}", after_the_deadline(_0))]
    Deadline(Decision),
}

impl WaitError {
    /// The decision that ended the wait: a denial, or a leaky bucket's delay that ends after the deadline.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::Never(decision) | Self::Deadline(decision) => decision,
        }
    }
}

fn after_the_deadline(decision: &Decision) -> String {
    match decision.retry_after() {
        None if decision.is_denied() => "no room before the deadline".to_owned(),
        wait => format!("room only after the deadline, in {:?}", wait.unwrap_or(decision.delay())),
    }
}

/// What a step on a line sees, under the key's lock.
pub(crate) struct Ground<'a> {
    pub policy: &'a Policy,
    pub state: &'a mut [u64],
    /// The key is denied until then.
    pub blocked: Nanos,
    pub now: Nanos,
}

/// Where a line and its state live.
pub(crate) trait Home {
    /// One atomic step on a state and on the line beside it. Who is to be woken is woken after it.
    fn step<R>(&self, now: Nanos, step: impl FnOnce(&mut Line, &mut Ground<'_>, &mut Wakes) -> R) -> R;
}

/// Waits in line for `cost`.
// An async function's future holds the arguments twice, and a hundred thousand may wait.
#[allow(clippy::manual_async_fn)]
pub(crate) fn wait(
    home: impl Home,
    cost: u32,
    deadline: Option<Nanos>,
    timer: &impl Timer,
) -> impl Future<Output = Result<Decision, WaitError>> {
    async move {
        let joined =
            home.step(timer.now(), |line, ground, wakes| line.join(ground, cost, deadline, wakes))?;
        let seat = match joined {
            Joined::Admitted(decision) => return Ok(decision),
            Joined::Waiting(ticket) => Seat { home: &home, timer, ticket },
        };
        // Not all that was admitted: what is held while it sleeps makes the future larger.
        let Admitted { decision, start, .. } = loop {
            let until = match seat.look(deadline) {
                Looked::Ended(outcome) => break outcome?,
                Looked::Until(until) => until,
            };
            match until {
                Some(at) => sleep(&seat.ticket, Some(pin!(timer.sleep_until(at)))).await,
                None => sleep(&seat.ticket, None::<std::pin::Pin<&mut std::future::Ready<()>>>).await,
            }
        };
        // Dropped while it waits out a leaky bucket's delay, the seat gives its place back.
        if start > timer.now() {
            timer.sleep_until(start).await;
        }
        seat.taken();
        Ok(decision)
    }
}

/// What a future does after a look at its ticket.
enum Looked {
    Ended(Outcome),
    /// It sleeps until then at most.
    Until(Option<Nanos>),
}

/// A ticket in the hands of a future. Dropped, it leaves the line, or gives back what was admitted to it.
struct Seat<'a, H: Home, T: Timer> {
    home: &'a H,
    timer: &'a T,
    ticket: Arc<Ticket>,
}

impl<H: Home, T: Timer> Seat<'_, H, T> {
    /// Serves the line if it is this ticket's turn to do so.
    fn look(&self, deadline: Option<Nanos>) -> Looked {
        let look = self.ticket.look();
        if let Some(outcome) = look.outcome {
            return Looked::Ended(outcome);
        }
        if !look.watches && deadline.is_none() {
            return Looked::Until(None);
        }
        let now = self.timer.now();
        let late = deadline.is_some_and(|deadline| now >= deadline);
        let due = if late || look.watches { self.attend(now) } else { None };
        if let Some(outcome) = self.ticket.outcome() {
            return Looked::Ended(outcome);
        }
        if late {
            return Looked::Ended(Err(WaitError::Deadline(self.refused(now))));
        }
        Looked::Until([due, deadline].into_iter().flatten().min())
    }

    /// Serves the line; returns when this ticket should look again.
    fn attend(&self, now: Nanos) -> Option<Nanos> {
        self.home.step(now, |line, ground, wakes| line.attend(ground, &self.ticket, wakes))
    }

    /// Why there is no room in time.
    fn refused(&self, now: Nanos) -> Decision {
        self.home.step(now, |line, ground, wakes| {
            line.leave(ground, &self.ticket, wakes);
            line.answer(ground, self.ticket.cost)
        })
    }

    fn taken(self) {
        if self.ticket.finish() {
            self.home.step(self.timer.now(), |line, _, _| line.started(&self.ticket));
        }
    }
}

impl<H: Home, T: Timer> Drop for Seat<'_, H, T> {
    fn drop(&mut self) {
        if !self.ticket.is_finished() {
            self.home.step(self.timer.now(), |line, ground, wakes| line.leave(ground, &self.ticket, wakes));
        }
    }
}
