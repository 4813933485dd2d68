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

use std::{pin::pin, sync::Arc};

use tidegate_core::{Admission, Decision, Estimate, Nanos, Policy};

use crate::{Timer, eras::Site};
use alarm::Alarm;
pub(crate) use line::{CALL, Joined, WaitLine};
pub(crate) use lines::{Lines, OneLine};
pub use place::WaitUntil;
pub(crate) use ticket::{Ticket, Wakes};
use ticket::{WaitOutcome, sleep};

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
// The future of an async function would hold the arguments twice, and there may be a hundred
// thousand waiters.
#[allow(clippy::manual_async_fn)]
pub(crate) fn wait<R>(
    home: impl Home,
    cost: u64,
    WaitUntil { deadline, priority }: WaitUntil,
    timer: &impl Timer,
    result: impl FnOnce(Admission, Estimate) -> R,
) -> impl Future<Output = Result<R, WaitError>> {
    async move {
        let join = |line: &mut WaitLine, ground: &mut Ground<'_>, wakes: &mut Wakes| {
            line.join(ground, cost, (deadline, priority), timer, wakes)
        };
        // No variable holds what was joined: the future would hold it, too.
        let seat = match home.step(timer.now(), join)? {
            Joined::Admitted(decision, estimate) => {
                return Ok(result(admitted(decision), estimate));
            }
            Joined::Waiting(ticket) => Seat {
                home: &home,
                timer,
                ticket,
            },
        };
        // The decision stays in the ticket: what is held during the sleep makes the future larger.
        let start = loop {
            match deadline {
                Some(at) => sleep(&seat.ticket, Some(pin!(timer.sleep_until(at)))).await,
                None => {
                    sleep(
                        &seat.ticket,
                        None::<std::pin::Pin<&mut std::future::Ready<()>>>,
                    )
                    .await;
                }
            }
            if let Some(outcome) = seat.look(deadline) {
                break outcome?.start;
            }
        };
        // If it is dropped while it waits for a leaky bucket's delay, the seat gives up its place.
        if start > timer.now() {
            timer.sleep_until(start).await;
        }
        let outcome = seat.ticket.outcome();
        seat.taken();
        outcome
            .unwrap_or_else(|| unreachable!("a wait ends with an outcome"))
            .map(|last| result(admitted(last.decision), last.estimate))
    }
}

fn admitted(decision: Decision) -> Admission {
    decision
        .into_result()
        .unwrap_or_else(|denied| unreachable!("a wait ends with {denied}"))
}

/// The ticket of a future. When dropped, it leaves the line, or returns what was admitted to it.
struct Seat<'a, H: Home, T: Timer> {
    home: &'a H,
    timer: &'a T,
    ticket: Arc<Ticket>,
}

impl<H: Home, T: Timer> Seat<'_, H, T> {
    /// How the wait has ended. If it has not, this serves the line.
    fn look(&self, deadline: Option<Nanos>) -> Option<WaitOutcome> {
        let outcome = self.ticket.outcome();
        if outcome.is_some() {
            return outcome;
        }
        let now = self.timer.now();
        self.home.step(now, |line, ground, wakes| {
            line.attend(ground, &self.ticket, wakes);
        });
        let outcome = self.ticket.outcome();
        let late = outcome.is_none() && deadline.is_some_and(|deadline| now >= deadline);
        if late {
            Some(Err(WaitError::Deadline(self.refused(now))))
        } else {
            outcome
        }
    }

    /// The decision that shows why room comes too late.
    fn refused(&self, now: Nanos) -> Decision {
        self.home.step(now, |line, ground, wakes| {
            line.leave(ground, &self.ticket, wakes);
            line.answer(ground, self.ticket.cost)
        })
    }

    fn taken(self) {
        if self.ticket.finish() {
            self.home
                .step(self.timer.now(), |line, _, _| line.started(&self.ticket));
        }
    }
}

impl<H: Home, T: Timer> Drop for Seat<'_, H, T> {
    fn drop(&mut self) {
        if !self.ticket.is_finished() {
            self.home.step(self.timer.now(), |line, ground, wakes| {
                line.leave(ground, &self.ticket, wakes);
            });
        }
    }
}
