//! A place in a line, and how its future is notified.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tidegate_core::{Decision, Nanos};

use super::{WaitError, reservations::Reservation};

/// A waiter. Shared by the line and the future; its lock is a leaf.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Tickets of one line are served in the order of their numbers.
    pub number: u64,
    pub cost: u32,
    status: Mutex<Status>,
}

#[derive(Debug, Default)]
struct Status {
    /// Boxed, because there may be a hundred thousand waiters and only the first few have an outcome.
    outcome: Option<Box<Outcome>>,
    /// Nothing remains to be returned.
    finished: bool,
    /// Whether it is one of the first waiters, which keep a timer.
    watches: bool,
    /// The time to which its timer was last set.
    armed: Option<Nanos>,
    /// Whether something has changed since the future last checked.
    nudged: bool,
    waker: Option<Waker>,
}

/// How a wait ended.
pub(crate) type Outcome = Result<Admitted, WaitError>;

/// What a future sees when it checks its ticket.
pub(crate) struct Look {
    /// How the wait ended, if it has.
    pub outcome: Option<Outcome>,
    /// Whether it is one of the first waiters, which keep a timer.
    pub watches: bool,
}

/// What was admitted to a ticket, and recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub decision: Decision,
    /// When the work may start: at once, except for a leaky bucket's delay.
    pub start: Nanos,
    /// A leaky bucket's reservation.
    pub reservation: Option<Reservation>,
}

/// The wakers to call when the locks are released, because a waker may run any code.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Waker>);

impl Drop for Wakes {
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}

impl Ticket {
    pub fn new(number: u64, cost: u32) -> Self {
        Self { number, cost, status: Mutex::default() }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // Nothing here panics.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the ticket: changes from now on end the next [`sleep`].
    pub fn look(&self) -> Look {
        let mut status = self.status();
        status.nudged = false;
        Look { outcome: status.outcome.as_deref().copied(), watches: status.watches }
    }

    /// How the wait ended, if it has. Does not reset the notification: a change since the check began must not be lost.
    pub fn outcome(&self) -> Option<Outcome> {
        self.status().outcome.as_deref().copied()
    }

    pub fn is_finished(&self) -> bool {
        self.status().finished
    }

    /// Marks that nothing remains to be returned; returns whether there is a leaky bucket's reservation to update.
    pub fn finish(&self) -> bool {
        let mut status = self.status();
        status.finished = true;
        matches!(status.outcome.as_deref(), Some(Ok(admitted)) if admitted.reservation.is_some())
    }

    /// Ends the wait. Under the key's lock.
    pub fn end(&self, outcome: Outcome, wakes: &mut Wakes) {
        let mut status = self.status();
        status.finished |= outcome.is_err();
        status.outcome = Some(Box::new(outcome));
        status.nudge(wakes);
    }

    /// Makes this ticket check the line again, unless its timer is already set to `due`.
    pub fn watch(&self, due: Option<Nanos>, wakes: &mut Wakes) {
        let mut status = self.status();
        if !status.watches || status.armed != due {
            status.watches = true;
            status.armed = due;
            status.nudge(wakes);
        }
    }

    /// Makes this ticket keep a timer, if it does not.
    pub fn watch_too(&self, wakes: &mut Wakes) {
        let mut status = self.status();
        if !status.watches {
            status.watches = true;
            status.nudge(wakes);
        }
    }

    /// Notes what the timer is about to be set to.
    pub fn arm(&self, due: Option<Nanos>) {
        let mut status = self.status();
        status.armed = due;
        status.nudged = status.outcome.is_some();
    }
}

impl Status {
    fn nudge(&mut self, wakes: &mut Wakes) {
        self.nudged = true;
        wakes.0.extend(self.waker.take());
    }
}

/// Completes when the ticket is notified, or the timer ends.
pub(crate) fn sleep<F: Future<Output = ()>>(
    ticket: &Ticket,
    mut timer: Option<Pin<&mut F>>,
) -> impl Future<Output = ()> {
    poll_fn(move |cx| {
        {
            let mut status = ticket.status();
            if status.nudged {
                return Poll::Ready(());
            }
            if !status.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                status.waker = Some(cx.waker().clone());
            }
        }
        match &mut timer {
            Some(timer) => timer.as_mut().poll(cx),
            None => Poll::Pending,
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        future::Ready,
        pin::{Pin, pin},
        task::Context,
    };

    use super::*;

    #[test]
    fn a_notification_during_a_poll_wakes_the_future() {
        let ticket = Ticket::new(1, 1);
        assert!(!ticket.look().watches);
        // Just now somebody else makes it one of the first in line.
        ticket.watch_too(&mut Wakes::default());
        assert!(ticket.outcome().is_none());
        let sleeping = pin!(sleep(&ticket, None::<Pin<&mut Ready<()>>>));
        assert!(sleeping.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
