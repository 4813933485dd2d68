//! A place in a line, and how its future is notified.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tidegate_core::{Decision, Estimate, Nanos};

use super::{Alarm, WaitError, place::Place, reservations::Reservation};

/// A waiter. Shared by the line and the future; its lock is a leaf.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Tickets of one line are served in the order of their ranks, and of one rank in the order of
    /// their numbers.
    rank: Nanos,
    pub number: u64,
    pub cost: u64,
    /// Whether the caller takes the units itself, together with those of other limits.
    pub takes_itself: bool,
    alarm: Arc<Alarm>,
    status: Mutex<Status>,
}

#[derive(Debug, Default)]
struct Status {
    /// For a caller that takes its units itself: its turn has come, and it keeps the front of the
    /// line until this time.
    called_until: Option<Nanos>,
    /// Whether it was woken to look at its lines, and has not looked since.
    is_called: bool,
    /// Boxed, because there may be a hundred thousand waiters and only the first few have an
    /// outcome.
    outcome: Option<Box<WaitOutcome>>,
    /// Nothing remains to be returned.
    finished: bool,
}

/// How a wait ended.
pub(crate) type WaitOutcome = Result<Admitted, WaitError>;

/// The admission of a ticket, which is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub decision: Decision,
    /// Returns the units.
    pub estimate: Estimate,
    /// When the work may start: at once, except for a leaky bucket's delay.
    pub start: Nanos,
    /// A leaky bucket's reservation.
    pub reservation: Option<Reservation>,
}

/// Wakers to call and an alarm to set when the locks are released, because a waker or a timer may
/// run any code.
#[derive(Default)]
pub(crate) struct Wakes {
    wakers: Vec<Waker>,
    /// The alarms to be set, by which step of their line, and to which time.
    alarms: Vec<(Arc<Alarm>, u64, Option<Nanos>)>,
}

impl Wakes {
    /// Sets the alarm of a line that has changed. Of several settings of one line, the last one
    /// counts.
    pub fn set(&mut self, alarm: &Arc<Alarm>, step: u64, due: Option<Nanos>) {
        self.alarms.push((Arc::clone(alarm), step, due));
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        for (alarm, step, due) in self.alarms.drain(..) {
            alarm.set(step, due);
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

impl Ticket {
    pub fn new(place: Place, cost: u64, takes_itself: bool, alarm: Arc<Alarm>) -> Self {
        Self {
            rank: place.rank,
            number: place.number,
            cost,
            takes_itself,
            alarm,
            status: Mutex::default(),
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // Nothing here panics.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub const fn place(&self) -> Place {
        Place {
            rank: self.rank,
            number: self.number,
        }
    }

    /// Until when a caller that takes its units itself keeps the front of the line, if its turn has
    /// come.
    pub fn called_until(&self) -> Option<Nanos> {
        self.status().called_until
    }

    /// Wakes a caller that takes its units itself.
    pub fn call(&self, until: Nanos, wakes: &mut Wakes) {
        {
            let mut status = self.status();
            (status.called_until, status.is_called) = (Some(until), true);
        }
        wakes.wakers.extend(self.alarm.take(self.number));
    }

    /// Another caller goes before one whose turn had come: it is called again.
    pub fn call_again_later(&self) {
        self.status().called_until = None;
    }

    /// Wakes a caller that takes its units itself, so that it looks at its lines. False if it was
    /// woken before and has not looked since.
    pub fn rouse(&self, wakes: &mut Wakes) -> bool {
        if std::mem::replace(&mut self.status().is_called, true) {
            return false;
        }
        wakes.wakers.extend(self.alarm.take(self.number));
        true
    }

    /// The caller has looked at all its lines; it keeps the front until this time if its turn has
    /// come there.
    pub fn looked(&self, until: Option<Nanos>) {
        let mut status = self.status();
        (status.called_until, status.is_called) = (until, false);
    }

    /// How the wait ended, if it has.
    pub fn outcome(&self) -> Option<WaitOutcome> {
        self.status().outcome.as_deref().copied()
    }

    pub fn is_finished(&self) -> bool {
        self.status().finished
    }

    /// Marks that nothing remains to be returned; returns whether there is a leaky bucket's
    /// reservation to update.
    pub fn finish(&self) -> bool {
        let mut status = self.status();
        status.finished = true;
        matches!(status.outcome.as_deref(), Some(Ok(admitted)) if admitted.reservation.is_some())
    }

    /// Ends the wait. Under the key's lock.
    pub fn end(&self, outcome: WaitOutcome, wakes: &mut Wakes) {
        {
            let mut status = self.status();
            status.finished |= outcome.is_err();
            status.outcome = Some(Box::new(outcome));
        }
        // Afterwards: a future that is about to sleep sees the outcome, or its waker is here.
        wakes.wakers.extend(self.alarm.take(self.number));
    }

    /// Whether the future must look at its lines again; otherwise its waker is kept.
    pub fn poll_called(&self, was_asleep: bool, waker: &Waker) -> Poll<()> {
        if self.status().is_called {
            return Poll::Ready(());
        }
        self.alarm.poll_woken(self, was_asleep, waker)
    }

    /// The ticket's future is no longer to be woken.
    pub fn forget_waker(&self) {
        drop(self.alarm.take(self.number));
    }
}

/// Completes when the ticket's future must look at its line again, or the timer ends.
pub(crate) fn sleep<F: Future<Output = ()>>(
    ticket: &Ticket,
    mut timer: Option<Pin<&mut F>>,
) -> impl Future<Output = ()> {
    let mut was_asleep = false;
    poll_fn(move |cx| {
        if ticket
            .alarm
            .poll_woken(ticket, was_asleep, cx.waker())
            .is_ready()
        {
            return Poll::Ready(());
        }
        was_asleep = true;
        match &mut timer {
            Some(timer) => timer.as_mut().poll(cx),
            None => Poll::Pending,
        }
    })
}
