//! The alarm wakes the waiters of a line when its front is due.
//!
//! The alarm belongs to the line, not to a waiter: a waiter whose future is held but not polled
//! stops no timer. When the front's time has come the alarm wakes the first few waiters. If none of
//! them attends to the line it wakes more, and last all: a waiter that is polled attends within 10
//! ms, however many others are not. A waiter that was woken and not polled since is not woken
//! again, so it costs nothing.

use std::{
    collections::BTreeMap,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use tidegate_core::Nanos;

use super::Ticket;
use crate::Timer;

/// How many waiters the alarm wakes, at once and each [`LATER`].
const RINGS: [usize; 4] = [4, 64, 1_024, usize::MAX];

/// Three times this is less than the 10 ms for which unpolled waiters may delay others.
const LATER: Nanos = Nanos::from_millis(3);

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Alarm {
    /// Makes a future that completes at a time.
    sleep_until: Box<dyn Fn(Nanos) -> Sleep + Send + Sync>,
    /// A leaf, except for the tickets' locks.
    status: Mutex<Status>,
}

#[derive(Default)]
struct Status {
    /// The waiters that were polled since they were last woken.
    sleepers: BTreeMap<u64, Waker>,
    /// The step of the line that set the alarm.
    set_by: u64,
    due: Nanos,
    /// How often it has rung since it was set.
    rings: usize,
    sleep: Option<Sleep>,
    /// Whether a thread polls the sleep.
    is_polled: bool,
    /// Whether the sleep was woken or replaced since it was last polled.
    is_woken: bool,
}

impl Alarm {
    pub fn new(timer: impl Timer) -> Arc<Self> {
        let sleep_until = move |at| Box::pin(timer.sleep_until(at)) as Sleep;
        Arc::new(Self {
            sleep_until: Box::new(sleep_until),
            status: Mutex::default(),
        })
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // No step panics midway.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the alarm to the time when the front is due, if that is known. Steps of a line are
    /// numbered: an older step than the last one changes nothing.
    pub fn set(self: &Arc<Self>, step: u64, due: Option<Nanos>) {
        let sleep = due.map(|due| (self.sleep_until)(due));
        let mut status = self.status();
        if step <= status.set_by {
            return;
        }
        (status.set_by, status.rings, status.is_woken) = (step, 0, true);
        status.due = due.unwrap_or(Nanos::MAX);
        let before = mem::replace(&mut status.sleep, sleep);
        drop(status);
        drop(before); // Outside the lock, as it may run any code.
        self.advance();
    }

    /// Polls the sleep, and rings when it has ended.
    fn advance(self: &Arc<Self>) {
        let mut status = self.status();
        if status.is_polled {
            return; // The thread that polls it sees that it was woken.
        }
        status.is_polled = true;
        let waker = Waker::from(Arc::clone(self));
        while mem::take(&mut status.is_woken) {
            let Some(mut sleep) = status.sleep.take() else {
                continue;
            };
            let set_by = status.set_by;
            drop(status);
            let has_ended = sleep
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready();
            status = self.status();
            if status.set_by == set_by && !has_ended {
                status.sleep = Some(sleep);
                continue;
            }
            let woken = if status.set_by == set_by {
                self.ring(&mut status)
            } else {
                Vec::new()
            };
            drop((status, sleep));
            woken.into_iter().for_each(Waker::wake);
            status = self.status();
        }
        status.is_polled = false;
    }

    /// Takes the wakers of the first sleepers, and prepares to take more of them a little later.
    fn ring(&self, status: &mut Status) -> Vec<Waker> {
        let woken = std::iter::from_fn(|| status.sleepers.pop_first()).map(|(_, waker)| waker);
        let woken = woken.take(RINGS[status.rings]).collect();
        status.rings += 1;
        if status.rings < RINGS.len() {
            let later = Nanos::new(LATER.get() * status.rings as u64);
            status.sleep = Some((self.sleep_until)(status.due.saturating_add(later)));
            status.is_woken = true;
        }
        woken
    }

    /// Whether the waiter of this ticket must look at its line again: it was woken, its wait has
    /// ended, or the alarm has rung and no waiter has attended to the line since. Otherwise the
    /// waiter sleeps.
    pub fn poll_woken(&self, ticket: &Ticket, was_asleep: bool, waker: &Waker) -> Poll<()> {
        let mut status = self.status();
        let sleeps = status.sleepers.contains_key(&ticket.number);
        if (was_asleep && !sleeps) || status.rings > 0 || ticket.outcome().is_some() {
            status.sleepers.remove(&ticket.number);
            return Poll::Ready(());
        }
        let known = status
            .sleepers
            .get(&ticket.number)
            .is_some_and(|known| known.will_wake(waker));
        let before = if known {
            None
        } else {
            status.sleepers.insert(ticket.number, waker.clone())
        };
        drop(status);
        drop(before);
        Poll::Pending
    }

    /// The waker of a waiter that sleeps, which is no longer known here.
    pub fn take(&self, number: u64) -> Option<Waker> {
        self.status().sleepers.remove(&number)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.status().is_woken = true;
        self.advance();
    }
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}
