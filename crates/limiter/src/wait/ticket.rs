//! A place in a line, and how its future is told.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tidegate_core::{Decision, Nanos};

use super::{WaitError, reservations::Reservation};

/// Somebody who waits. Shared by the line and the future; its lock is a leaf.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Tickets of one line are served in the order of their numbers.
    pub number: u64,
    pub cost: u32,
    status: Mutex<Status>,
}

#[derive(Debug, Default)]
struct Status {
    /// Boxed, because a hundred thousand may wait and only the first few have one.
    outcome: Option<Box<Outcome>>,
    /// Nothing is to be given back any more.
    finished: bool,
    /// One of the first in line: it keeps a timer.
    watches: bool,
    /// What its timer was last set to.
    armed: Option<Nanos>,
    /// Something has changed since the future last looked.
    nudged: bool,
    waker: Option<Waker>,
}

/// How a wait ended.
pub(crate) type Outcome = Result<Admitted, WaitError>;

/// What a future finds when it looks at its ticket.
pub(crate) struct Look {
    /// How the wait ended, once it has.
    pub outcome: Option<Outcome>,
    /// It is one of the first in line and keeps a timer.
    pub watches: bool,
}

/// What was admitted to a ticket, and recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub decision: Decision,
    /// When the work may start: at once, but for a leaky bucket's delay.
    pub start: Nanos,
    /// A leaky bucket's reservation.
    pub reservation: Option<Reservation>,
}

/// Who is to be woken when the locks are released: a waker may run anything.
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
        // Nothing in here panics.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks anew: what happens from here on is news, and ends the next [`sleep`].
    pub fn look(&self) -> Look {
        let mut status = self.status();
        status.nudged = false;
        Look { outcome: status.outcome.as_deref().copied(), watches: status.watches }
    }

    /// How the wait ended, once it has. Leaves the news alone: what came since the look began must not be lost.
    pub fn outcome(&self) -> Option<Outcome> {
        self.status().outcome.as_deref().copied()
    }

    pub fn is_finished(&self) -> bool {
        self.status().finished
    }

    /// Nothing is to be given back from here on; returns whether there is a leaky bucket's reservation to be told of it.
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

    /// Has this ticket look at the line again, where it is not set to do so at `due`.
    pub fn watch(&self, due: Option<Nanos>, wakes: &mut Wakes) {
        let mut status = self.status();
        if !status.watches || status.armed != due {
            status.watches = true;
            status.armed = due;
            status.nudge(wakes);
        }
    }

    /// Has this ticket keep a timer, if it does not.
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

/// Completes when the ticket has news, or the timer ends.
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
    fn news_that_comes_while_a_future_looks_ends_its_sleep() {
        let ticket = Ticket::new(1, 1);
        assert!(!ticket.look().watches);
        // Just now somebody else makes it one of the first in line.
        ticket.watch_too(&mut Wakes::default());
        assert!(ticket.outcome().is_none());
        let sleeping = pin!(sleep(&ticket, None::<Pin<&mut Ready<()>>>));
        assert!(sleeping.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
