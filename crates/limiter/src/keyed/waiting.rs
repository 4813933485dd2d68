//! The lines of callers that wait for a key.

use std::time::Duration;

use tidegate_core::{
    Admission, Algorithm, Decision, Estimate, Key, Nanos, Policy, Priority, clock::block_on,
};

use super::{KeyedAt, KeyedLimiter};
use crate::{
    Timer, WaitError, WaitUntil,
    block::refused_until,
    eras::Site,
    table::Tag,
    wait::{Ground, Ticket, WaitLine, Wakes, wait},
};

impl<C: ?Sized> KeyedLimiter<C> {
    /// One atomic step on a key's state and its line, or on the state alone if it has no line. The
    /// error is the denial of a new key for which the table has no room.
    pub(super) fn on_line<R>(
        &self,
        tag: Tag,
        now: Nanos,
        on_line: impl FnOnce(&mut WaitLine, &mut Ground<'_>, &mut Wakes) -> R,
        alone: impl FnOnce(&Policy, &mut [u64], Site<'_>) -> R,
    ) -> Result<R, Decision> {
        // Declared first, so that it is dropped last: no task is woken under a lock.
        let mut wakes = Wakes::default();
        let stepped = self.with_state(tag, now, |policy, state, site| {
            if self.marks.has(tag) {
                let blocked = self.exceptions.blocked(tag);
                let behind = |line: &mut WaitLine| {
                    let ground = &mut Ground {
                        policy,
                        state: &mut *state,
                        site,
                        blocked,
                        now,
                    };
                    on_line(line, ground, &mut wakes)
                };
                if let Some(found) = self.lines.find(&self.marks, tag, behind) {
                    return found;
                }
            }
            alone(policy, state, site)
        });
        stepped.map_err(|until| refused_until(&self.policy(), until, now))
    }

    /// Serves the waiters of a key, after a change that may have made room.
    pub(super) fn serve(&self, tag: Tag, now: Nanos) {
        // Checked under the key's lock: a waiter that joins later has seen the room. A key without
        // a line is not added for it.
        let has_line =
            |_: &Policy, _: &mut [u64]| self.lines.find(&self.marks, tag, |_| ()).is_some();
        if self.marks.has(tag) && self.look(tag, now, has_line) {
            // A waiter of a key without a place asks again when there may be one.
            let _ = self.on_line(tag, now, WaitLine::changed, |_, _, _| ());
        }
    }

    /// Serves all waiters.
    pub(super) fn serve_all(&self, now: Nanos) {
        for tag in self.lines.keys() {
            self.serve(tag, now);
        }
    }

    /// Announces a line of a key, before the key's lock is taken: a thread that decides afterwards
    /// sees that there is one.
    pub(crate) fn announce_line(&self, tag: Tag) {
        self.marks.add(tag);
    }

    /// A step on the line of a key, which was [announced](Self::announce_line), for a joint
    /// decision, which holds the key's lock.
    pub(crate) fn with_line<R>(
        &self,
        tag: Tag,
        ground: &mut Ground<'_>,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>) -> R,
    ) -> R {
        ground.blocked = self.exceptions.blocked(tag);
        let now = ground.now;
        self.lines
            .with(&self.marks, tag, now, |line| step(line, ground))
    }

    /// Whether a key may have a line. If not, none comes while its lock is held.
    pub(crate) fn may_have_line(&self, tag: Tag) -> bool {
        self.marks.has(tag)
    }

    /// A step on the line of a key, if it has one, for a joint decision, which holds the key's
    /// lock.
    pub(crate) fn find_line<R>(
        &self,
        tag: Tag,
        ground: &mut Ground<'_>,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>) -> R,
    ) -> Option<R> {
        if !self.marks.has(tag) {
            return None;
        }
        ground.blocked = self.exceptions.blocked(tag);
        self.lines.find(&self.marks, tag, |line| step(line, ground))
    }

    /// Withdraws the announcement of a line.
    pub(crate) fn withdraw_line(&self, tag: Tag) {
        self.marks.remove(tag);
    }

    /// Gives up a place in the line of a key.
    pub(crate) fn leave_line(&self, tag: Tag, ticket: &Ticket, now: Nanos) {
        let home = OneKey { limiter: self, tag };
        crate::wait::Home::step(&home, now, |line, ground, wakes| {
            line.leave(ground, ticket, wakes);
        });
    }
}

impl<C: ?Sized> KeyedAt<'_, C> {
    /// How many callers wait in line before one that comes at this time, for each priority, from 0
    /// on; `None` if no caller waits for the key. Takes time in proportion to the callers in line.
    pub fn ahead(self, key: impl Key) -> Option<[usize; Priority::COUNT]> {
        let Self { limiter, now } = self;
        let tag = limiter.tag_of(&key);
        let ahead = |_: &Policy, _: &mut [u64]| {
            limiter
                .lines
                .find(&limiter.marks, tag, |line| line.ahead(now))
                .filter(|ahead| *ahead != [0; Priority::COUNT])
        };
        limiter
            .marks
            .has(tag)
            .then(|| limiter.look(tag, now, ahead))
            .flatten()
    }
}

impl<C: ?Sized> KeyedLimiter<C> {
    /// [`wait_estimate`](Self::wait_estimate) by a timer that is not the limiter's own clock, for a
    /// limiter whose times are arguments. All operations on the limiter need times of this timer.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_estimate_by<T: Timer>(
        &self,
        timer: &T,
        key: impl Key,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> impl Future<Output = Result<(Admission, Estimate), WaitError>> {
        let tag = self.tag_of(&key);
        let home = OneKey { limiter: self, tag };
        wait(home, cost, until.into(), timer, |admission, estimate| {
            (admission, estimate)
        })
    }
}

impl<T: Timer> KeyedLimiter<T> {
    /// Waits until `cost` is admitted for this key, after all callers that already wait for it, or
    /// before those that its [`Priority`](crate::Priority) lets it overtake. `until` is the
    /// deadline, or [more](WaitUntil).
    /// Dropping the future gives up the place in the queue.
    ///
    /// # Errors
    /// If waiting cannot help, or the cost would not be admitted by the deadline. Both errors are
    /// returned at once.
    pub fn wait(
        &self,
        key: impl Key,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> impl Future<Output = Result<Admission, WaitError>> {
        let (tag, timer) = (self.tag_of(&key), &self.clock);
        let home = OneKey { limiter: self, tag };
        wait(home, cost, until.into(), timer, |admission, _| admission)
    }

    /// [`wait`](Self::wait) for units that may return. The second value is what was taken, for
    /// [`KeyedAt::settle`].
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_estimate(
        &self,
        key: impl Key,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> impl Future<Output = Result<(Admission, Estimate), WaitError>> {
        self.wait_estimate_by(&self.clock, key, cost, until)
    }

    /// [`wait`](Self::wait) for a thread without an async runtime: it blocks the thread.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_blocking(
        &self,
        key: impl Key,
        cost: u64,
        until: impl Into<WaitUntil>,
    ) -> Result<Admission, WaitError> {
        block_on(self.wait(key, cost, until))
    }

    /// [`wait`](Self::wait) for at most `span`.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub async fn wait_for(
        &self,
        key: impl Key,
        cost: u64,
        span: Duration,
    ) -> Result<Admission, WaitError> {
        self.wait(
            key,
            cost,
            Some(self.clock.now().saturating_add(span.into())),
        )
        .await
    }
}

/// A key with a waiter.
struct OneKey<'a, C: ?Sized> {
    limiter: &'a KeyedLimiter<C>,
    tag: Tag,
}

impl<C: ?Sized> crate::wait::Home for OneKey<'_, C> {
    fn step<R>(
        &self,
        now: Nanos,
        step: impl FnOnce(&mut WaitLine, &mut Ground<'_>, &mut Wakes) -> R,
    ) -> R {
        let Self { limiter, tag } = *self;
        let mut wakes = Wakes::default();
        // Set before the key's lock is taken: a thread that decides after this step sees that there
        // is a line.
        limiter.marks.add(tag);
        let mut step = Some(step);
        let mut on_line = |policy: &Policy, state: &mut [u64], site: Site<'_>, blocked: Nanos| {
            let step = step.take()?;
            let mut ground = Ground {
                policy,
                state,
                site,
                blocked,
                now,
            };
            Some(limiter.lines.with(&limiter.marks, tag, now, |line| {
                step(line, &mut ground, &mut wakes)
            }))
        };
        let stepped = limiter.with_state(tag, now, |policy, state, site| {
            on_line(policy, state, site, limiter.exceptions.blocked(tag))
        });
        let stepped = stepped.unwrap_or_else(|until| {
            // A new key without a place counts as blocked until then, and has used nothing.
            let policy = limiter.policy();
            on_line(
                &policy,
                &mut vec![0; policy.words()],
                limiter.eras.site(0, Some(tag)),
                until.max(limiter.exceptions.blocked(tag)),
            )
        });
        stepped.expect("the step is made once")
    }
}
