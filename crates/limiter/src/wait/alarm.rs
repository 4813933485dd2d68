//! The alarm wakes the waiters of a line when its front is due, and each at its deadline.
//!
//! The alarm belongs to the line, not to a waiter: a waiter whose future is held but not polled
//! stops no timer, and a hundred thousand waiters need one. When the front's time has come the
//! alarm wakes the front, which serves the line. If none attends to the line it wakes more, and
//! last all: a waiter that is polled attends within 10 ms, however many others are not. A waiter
//! that was woken and not polled since is not woken again, so it costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use tidegate_core::Nanos;

use super::Ticket;
use crate::Timer;

/// How many waiters the alarm wakes, and how long it then sleeps: together for less than the 10 ms
/// for which unpolled waiters may delay others.
const RINGS: [(usize, Nanos); 3] = [
    (1, Nanos::from_millis(6)),
    (64, Nanos::from_millis(3)),
    (usize::MAX, Nanos::MAX),
];

/// How long before it is needed a sleep may end, to begin again. It costs a wake-up of its thread;
/// to replace a sleep costs as much or less.
const EARLY: Nanos = Nanos::from_millis(2);

pub(super) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A [`Timer`] without its type.
trait AlarmClock: Send + Sync {
    fn now(&self) -> Nanos;
    fn sleep_until(&self, at: Nanos) -> Sleep;
}

impl<T: Timer> AlarmClock for T {
    fn now(&self) -> Nanos {
        tidegate_core::Clock::now(self)
    }

    fn sleep_until(&self, at: Nanos) -> Sleep {
        Box::pin(Timer::sleep_until(self, at))
    }
}

pub(crate) struct Alarm {
    clock: Box<dyn AlarmClock>,
    /// A leaf, except for the tickets' locks.
    status: Mutex<Status>,
}

/// The times that a step of a line gives its alarm.
#[derive(Clone, Copy, Default)]
pub(super) struct Setting {
    /// The steps that set the alarm are numbered.
    pub step: u64,
    /// The number of the front's ticket.
    pub front: u64,
    /// When the front is due, if that is known.
    pub due: Option<Nanos>,
    /// When the next one is due if the front is served on time, as far as that is known: the alarm
    /// sleeps until then in advance, because it is cheaper from the timer's own thread.
    pub then: Option<Nanos>,
}

struct Status {
    /// The waiters that were polled since they were last woken.
    sleepers: BTreeMap<u64, Waker>,
    /// The deadlines of these waiters, and of those who were woken and still wait.
    deadlines: BTreeSet<(Nanos, u64)>,
    setting: Setting,
    /// When the alarm rings next; the end of time if it does not.
    next_ring: Nanos,
    /// How often it has rung since it was set.
    rings: usize,
    /// The sleep until a waiter must be woken, or until an earlier time.
    sleep: Option<(Nanos, Sleep)>,
    /// Whether a thread makes and polls the sleep.
    is_polled: bool,
    /// Whether the sleep was woken, or is no longer right, since it was last polled.
    is_woken: bool,
}

impl Status {
    /// When a waiter must be woken.
    fn next(&self) -> Nanos {
        let deadline = self.deadlines.first();
        deadline.map_or(self.next_ring, |(at, _)| self.next_ring.min(*at))
    }

    /// The end of a new sleep, which may be earlier.
    fn sleep_until(&self) -> Nanos {
        let next = self.next();
        let then = self.setting.then.filter(|_| self.rings > 0);
        then.map_or(next, |then| next.min(then))
    }

    /// Whether a sleep until then ends in time, and not long before.
    fn is_right(&self, until: Nanos) -> bool {
        let next = self.next();
        next < Nanos::MAX && until <= next && self.sleep_until() <= until.saturating_add(EARLY)
    }

    /// Whether the sleep is not the right one.
    fn needs_another_sleep(&self) -> bool {
        match self.sleep {
            Some((until, _)) => !self.is_right(until),
            None => self.next() < Nanos::MAX,
        }
    }

    /// Takes the wakers of those whose deadlines are not after `until`. If the alarm is to ring by
    /// then, takes those of the first sleepers, and prepares to take more of them a little later.
    fn wake_due(&mut self, until: Nanos, now: Nanos) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(&(deadline, number)) = self.deadlines.first()
            && deadline <= until
        {
            self.deadlines.pop_first();
            woken.extend(self.sleepers.remove(&number));
        }
        if self.next_ring <= until {
            let front = self.sleepers.remove(&self.setting.front);
            let others = std::iter::from_fn(|| self.sleepers.pop_first()).map(|(_, waker)| waker);
            let (count, later) = RINGS[self.rings];
            woken.extend(front.into_iter().chain(others).take(count));
            self.rings += 1;
            self.next_ring = now.saturating_add(later);
        }
        self.setting.then = self.setting.then.filter(|then| *then > now);
        woken
    }
}

impl Alarm {
    pub fn new(timer: impl Timer) -> Arc<Self> {
        Arc::new(Self {
            clock: Box::new(timer),
            status: Mutex::new(Status {
                sleepers: BTreeMap::new(),
                deadlines: BTreeSet::new(),
                setting: Setting::default(),
                next_ring: Nanos::MAX,
                rings: 0,
                sleep: None,
                is_polled: false,
                is_woken: false,
            }),
        })
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // No step panics midway.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the alarm, unless a later step has set it.
    pub(super) fn set(self: &Arc<Self>, setting: Setting) {
        let mut status = self.status();
        if setting.step <= status.setting.step {
            return;
        }
        (status.setting, status.rings) = (setting, 0);
        status.next_ring = setting.due.unwrap_or(Nanos::MAX);
        self.sleep_again(status);
    }

    /// Replaces the sleep if it ends too late, or is not needed.
    fn sleep_again<'a>(self: &'a Arc<Self>, mut status: MutexGuard<'a, Status>) {
        // A thread that polls the sleep has taken it, and looks again.
        status.is_woken |= status.is_polled || status.needs_another_sleep();
        self.advance(status);
    }

    /// Makes and polls the sleep, and wakes those whose time has come.
    fn advance<'a>(self: &'a Arc<Self>, mut status: MutexGuard<'a, Status>) {
        if status.is_polled || !status.is_woken {
            return;
        }
        status.is_polled = true;
        let waker = Waker::from(Arc::clone(self));
        while mem::take(&mut status.is_woken) {
            let until = status.sleep_until();
            let before = status.sleep.take();
            let is_right = before.as_ref().map(|(until, _)| status.is_right(*until));
            // Outside the lock, as sleeps and wakers may run any code.
            drop(status);
            let kept = before.filter(|_| is_right == Some(true));
            let another = || (until < Nanos::MAX).then(|| (until, self.clock.sleep_until(until)));
            let sleep = kept.or_else(another);
            let Some((until, mut sleep)) = sleep else {
                status = self.status();
                continue;
            };
            let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                status = self.status();
                status.sleep = Some((until, sleep));
                continue;
            }
            drop(sleep);
            let now = self.clock.now();
            status = self.status();
            let woken = status.wake_due(until, now);
            // Another sleep may be needed.
            status.is_woken = true;
            drop(status);
            woken.into_iter().for_each(Waker::wake);
            status = self.status();
        }
        status.is_polled = false;
    }

    /// Whether the waiter of this ticket must look at its line again: it was woken, its wait has
    /// ended, or the alarm has rung and no waiter has attended to the line since. Otherwise the
    /// waiter sleeps.
    pub fn poll_woken(
        self: &Arc<Self>,
        ticket: &Ticket,
        was_asleep: bool,
        waker: &Waker,
    ) -> Poll<()> {
        let (number, deadline) = (ticket.number, ticket.deadline);
        let mut status = self.status();
        let known = status.sleepers.get(&number);
        if (was_asleep && known.is_none()) || status.rings > 0 || ticket.has_ended() {
            let before = status.sleepers.remove(&number);
            drop(status);
            drop(before);
            return Poll::Ready(());
        }
        if known.is_some_and(|known| known.will_wake(waker)) {
            return Poll::Pending;
        }
        let before = status.sleepers.insert(number, waker.clone());
        if deadline < Nanos::MAX {
            status.deadlines.insert((deadline, number));
        }
        self.sleep_again(status);
        drop(before);
        Poll::Pending
    }

    /// The waker of a ticket's future, which is no longer to be woken.
    pub fn take(&self, ticket: &Ticket) -> Option<Waker> {
        let mut status = self.status();
        if ticket.deadline < Nanos::MAX {
            status.deadlines.remove(&(ticket.deadline, ticket.number));
        }
        status.sleepers.remove(&ticket.number)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let mut status = self.status();
        status.is_woken = true;
        self.advance(status);
    }
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}
