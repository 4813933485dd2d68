//! A place in a line, and how its future is notified.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tidegate_core::{Decision, Estimate, Nanos};

use super::{Alarm, WaitError, alarm::Setting, place::Place, reservations::Reservation};

/// A waiter. Shared by the line and the future; its lock is a leaf.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Tickets of one line are served in the order of their ranks, and of one rank in the order of
    /// their numbers.
    rank: Nanos,
    pub number: u64,
    pub cost: u64,
    /// When the wait ends; the end of time if that is open, or if the caller sees to it.
    pub deadline: Nanos,
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
    alarms: Vec<(Arc<Alarm>, Setting)>,
}

impl Wakes {
    /// Sets the alarm of a line that has changed. Of several settings of one line, the last one
    /// counts.
    pub(super) fn set(&mut self, alarm: &Arc<Alarm>, setting: Setting) {
        self.alarms.push((Arc::clone(alarm), setting));
    }

    #[cold]
    fn wake(&mut self) {
        for (alarm, setting) in self.alarms.drain(..) {
            alarm.set(setting);
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        // Most steps are on states without a line.
        if !(self.alarms.is_empty() && self.wakers.is_empty()) {
            self.wake();
        }
    }
}

impl Ticket {
    /// A ticket of a caller who waits until `deadline`.
    pub fn new(place: Place, cost: u64, deadline: Nanos, alarm: Arc<Alarm>) -> Self {
        Self {
            rank: place.rank,
            number: place.number,
            cost,
            deadline,
            takes_itself: false,
            alarm,
            status: Mutex::default(),
        }
    }

    /// A ticket of a caller who takes the units itself.
    pub fn for_taker(place: Place, cost: u64, alarm: Arc<Alarm>) -> Self {
        Self {
            takes_itself: true,
            ..Self::new(place, cost, Nanos::MAX, alarm)
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
        wakes.wakers.extend(self.alarm.take(self));
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
        wakes.wakers.extend(self.alarm.take(self));
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

    /// Whether there is an [outcome](Self::outcome).
    pub fn has_ended(&self) -> bool {
        self.status().outcome.is_some()
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
        wakes.wakers.extend(self.alarm.take(self));
    }

    /// Whether the future must look at its line again; otherwise its waker is kept.
    pub fn poll_woken(&self, was_asleep: bool, waker: &Waker) -> Poll<()> {
        self.alarm.poll_woken(self, was_asleep, waker)
    }

    /// [`poll_woken`](Self::poll_woken) for a caller that takes its units itself, who may have been
    /// called.
    pub fn poll_called(&self, was_asleep: bool, waker: &Waker) -> Poll<()> {
        if self.status().is_called {
            return Poll::Ready(());
        }
        self.poll_woken(was_asleep, waker)
    }

    /// The ticket's future is no longer to be woken.
    pub fn forget_waker(&self) {
        drop(self.alarm.take(self));
    }
}
