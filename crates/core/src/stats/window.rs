//! The window of one resource: counts of passes, blocks, completions and response times, and the
//! calls in flight.

extern crate alloc;

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    Counts, Event, Head, Headroom, Layout, LayoutError, Ring, Slot, Tally, Trailing, View,
    counts::{COMPLEMENT, from_low, shorter, to_low},
    minute::Minute,
};
use crate::Nanos;

const MIN_RT: usize = 0;
const MAX_IN_FLIGHT: usize = 1;

/// The window of one resource, with an optional minute of seconds.
///
/// Adds never wait for each other or for readers, and readers never stop adds. Counts are exact
/// under any number of threads; sums of a window are exact up to 2⁴⁰ − 2³² (of response times,
/// twelve days). Units in flight are those that have passed and not completed. If one call enters
/// while another leaves, `max_in_flight` may count them as overlapping.
pub struct Window {
    ring: Ring<6, 2>,
    minute: Option<Minute>,
}

impl Window {
    /// A window without a minute.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            ring: Ring::new(layout),
            minute: None,
        }
    }

    /// A window that also keeps the last 60 seconds one by one.
    ///
    /// # Errors
    /// [`LayoutError::NotOfThisRing`] if a second is not a whole number of slots, or longer than
    /// the window.
    pub fn with_minute(layout: Layout) -> Result<Self, LayoutError> {
        layout.view(1, Duration::from_secs(1))?;
        Ok(Self {
            ring: Ring::new(layout),
            minute: Some(Minute::new(layout)),
        })
    }

    /// The layout of the window.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.ring.layout()
    }

    #[inline]
    fn turn_to(&self, now: Nanos) -> Head {
        self.ring.turn_with(now, &|old: Head, new: Head| {
            if let Some(minute) = &self.minute {
                minute.fold(&self.ring, old, new);
            }
        })
    }

    /// Counts `n` of an event at `now`; a number above 2⁴⁰ − 1 counts as that.
    #[inline]
    pub fn add(&self, now: Nanos, event: Event, n: u64) {
        self.turn_to(now);
        let before = self.ring.add_long(event as usize, n);
        if matches!(event, Event::Pass) {
            self.note_in_flight(before, n);
        }
    }

    /// Begins the slot of `now` if it is newer than the newest slot. Returns `now`, or the start of
    /// the newest slot if `now` is older than that.
    #[inline]
    pub fn turn(&self, now: Nanos) -> Nanos {
        let head = self.turn_to(now);
        now.max(Nanos::new(head.slot() * self.layout().slot_nanos()))
    }

    /// Admits `n` units at `now`: they are in flight until [`complete`](Self::complete).
    #[inline]
    pub fn pass(&self, now: Nanos, n: u32) -> Passed {
        self.turn_to(now);
        let before = self.ring.add(Event::Pass as usize, n);
        self.note_in_flight(before, n.into());
        Passed(before)
    }

    /// Admits `n` units at `now` if `check` agrees, in one atomic step: they are added to exactly
    /// what `check` saw. `check` may run several times.
    ///
    /// # Errors
    /// The error that `check` returned.
    #[inline]
    pub fn pass_if<E>(
        &self,
        now: Nanos,
        n: u32,
        mut check: impl FnMut(Look<'_>) -> Result<(), E>,
    ) -> Result<Passed, E> {
        self.turn_to(now);
        let before = self.ring.add_if(Event::Pass as usize, n, |passed, head| {
            check(Look {
                ring: &self.ring,
                passed,
                head,
            })
        })?;
        self.note_in_flight(before, n.into());
        Ok(Passed(before))
    }

    /// Admits `n` units at `now` with one addition, if with them surely at most `limit` have passed
    /// in the view of `headroom`, which must be this window's own, and at most half of
    /// `most_in_flight` are in flight. `None` says nothing about the limits: call
    /// [`pass_if`](Self::pass_if) instead.
    #[inline]
    pub fn pass_far(
        &self,
        now: Nanos,
        n: u32,
        limit: u64,
        most_in_flight: u64,
        headroom: &Headroom,
    ) -> Option<Passed> {
        let head = self.turn_to(now);
        let withdraw = |added| self.take_back(n, Passed(added));
        let before = headroom.add(&self.ring, Event::Pass as usize, n, limit, head, withdraw)?;
        // The ends are read after the addition, so units that were in flight then may have ended.
        // But of all units that are admitted and have not ended at some moment, the one that was
        // added last has seen all others.
        let in_flight = self.in_flight_with(before, n.into());
        if in_flight > most_in_flight / 2 {
            headroom.set_near(head);
            self.take_back(n, Passed(before));
            return None;
        }
        self.ring.note_low(MAX_IN_FLIGHT, to_low(in_flight));
        Some(Passed(before))
    }

    /// Runs `look` on what the check of `pass_if` would see at `now`.
    pub fn look<T>(&self, now: Nanos, look: impl Fn(Look<'_>) -> T) -> T {
        self.turn_to(now);
        let mut seen = None;
        // A refusal that adds nothing only looks.
        let _ = self.ring.add_if(Event::Pass as usize, 0, |passed, head| {
            seen = Some(look(Look {
                ring: &self.ring,
                passed,
                head,
            }));
            Err(())
        });
        seen.unwrap_or_else(|| unreachable!("the check has run"))
    }

    /// The window as an admission at `now` would see it, for a decision that ends with
    /// [`mark`](Self::mark).
    #[must_use]
    pub fn look_now(&self, now: Nanos) -> Look<'_> {
        self.turn_to(now);
        let (passed, head) = self.ring.standing(Event::Pass as usize);
        Look {
            ring: &self.ring,
            passed,
            head,
        }
    }

    /// Makes every admission that has looked at the window, and not yet added to it, look again.
    /// Use it after changing data that is kept next to the window. Returns false, without any
    /// effect, if units have passed since `look`.
    #[must_use]
    pub fn mark(&self, look: Look<'_>) -> bool {
        self.ring.mark(Event::Pass as usize, look.passed)
    }

    /// Takes back what [`pass_if`](Self::pass_if) admitted, because another limit refused the same
    /// call. If its slot has ended, the pass stays counted, as if the call had ended at once.
    pub fn take_back(&self, n: u32, passed: Passed) {
        if !self.ring.undo(Event::Pass as usize, n, passed.0) {
            self.ring.add(Event::Success as usize, n);
        }
    }

    /// Ends a call of `n` units whose response time was `rt`.
    #[inline]
    pub fn complete(&self, now: Nanos, n: u32, rt: Nanos, failed: bool) {
        self.turn_to(now);
        let micros = rt.get() / 1_000;
        self.add_rt(micros, n);
        if failed {
            self.ring.add(Event::Exception as usize, n);
        }
        self.ring.note_low(MIN_RT, micros.min(COMPLEMENT));
        // Last: when units are no longer counted as in flight, all their other counts are in place.
        self.ring.add(Event::Success as usize, n);
    }

    /// Ends a call of `n` units that was abandoned after `rt`. Like [`complete`](Self::complete),
    /// but the time does not count as a response time, nor as the shortest one.
    pub fn abandon(&self, now: Nanos, n: u32, rt: Nanos) {
        self.turn_to(now);
        self.add_rt(rt.get() / 1_000, n);
        self.ring.add(Event::Success as usize, n);
    }

    #[inline]
    fn add_rt(&self, micros: u64, n: u32) {
        // Adding zero costs as much as adding something.
        if micros > 0 {
            self.ring
                .add_long(Event::Rt as usize, micros.saturating_mul(n.into()));
        }
    }

    #[inline]
    fn note_in_flight(&self, before: Tally, n: u64) {
        self.ring
            .note_low(MAX_IN_FLIGHT, to_low(self.in_flight_with(before, n)));
    }

    /// The units in flight with `n` that were added to `before`.
    #[inline]
    fn in_flight_with(&self, before: Tally, n: u64) -> u64 {
        before.since(self.ring.tally(Event::Success as usize)) + n
    }

    /// The units in flight.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u64 {
        // Success first: a call that ends in between makes the answer too high, never negative.
        let ended = self.ring.tally(Event::Success as usize);
        self.ring.tally(Event::Pass as usize).since(ended)
    }

    /// The sum of an event over the slots of `view`, at `now`.
    #[must_use]
    #[inline]
    pub fn sum(&self, now: Nanos, event: Event, view: View) -> u64 {
        self.ring.sum(event as usize, now, view)
    }

    /// The slots in view at `now`, oldest first and the current one last. Slots without traffic are
    /// left out, except for the current one.
    #[must_use]
    pub fn slots(&self, now: Nanos, view: View) -> Vec<Slot> {
        let slot = self.layout().slot_nanos();
        let oldest = (now.get() / slot + 1).saturating_sub(view.slots().into());
        let mut slots = self.slots_since(Nanos::new(oldest.saturating_mul(slot)));
        let current = self.layout().start(now);
        if slots.last().is_none_or(|newest| newest.start < current) {
            let max_in_flight = self.in_flight();
            slots.push(Slot {
                start: current,
                counts: Counts {
                    max_in_flight,
                    ..Counts::default()
                },
            });
        }
        slots
    }

    /// The slots with traffic that began at `start` or later, oldest first.
    #[must_use]
    pub fn slots_since(&self, start: Nanos) -> Vec<Slot> {
        let slot = self.layout().slot_nanos();
        let each =
            |slots: &mut Vec<Slot>, number, events, began: [Tally; 6], gauges: [Option<u64>; 2]| {
                // A slot starts with the units that were already in flight; the gauge knows only
                // those that entered.
                let carried = began[Event::Pass as usize].since(began[Event::Success as usize]);
                let most = gauges[MAX_IN_FLIGHT].map_or(0, from_low).max(carried);
                let counts = Counts::of(events, gauges[MIN_RT], most);
                slots.push(Slot {
                    start: Nanos::new(number * slot),
                    counts,
                });
            };
        self.ring
            .slots_from(start.get().div_ceil(slot), Vec::new, each)
    }

    /// All counts of the slots of `view` at `now`.
    #[must_use]
    pub fn counts(&self, now: Nanos, view: View) -> Counts {
        self.slots(now, view)
            .into_iter()
            .fold(Counts::default(), |sum, slot| sum.and(slot.counts))
    }

    /// The shortest response time in view at `now`, in whole microseconds; `None` if no call ended.
    #[must_use]
    pub fn min_rt(&self, now: Nanos, view: View) -> Option<Duration> {
        self.ring
            .lowest(MIN_RT, now, view)
            .map(Duration::from_micros)
    }

    /// The seconds with traffic among the last 60 at `now`, oldest first, including the current
    /// one. Empty without a minute.
    #[must_use]
    pub fn seconds(&self, now: Nanos) -> Vec<Slot> {
        let Some(minute) = &self.minute else {
            return Vec::new();
        };
        let mut seconds = minute.seconds(&self.ring, now);
        if let Some(last) = seconds.last_mut() {
            // The gauges of a second are folded when it ends; until then they are in its slots.
            let live = self
                .slots_since(last.start)
                .into_iter()
                .map(|slot| slot.counts);
            for counts in live {
                last.counts.min_rt = shorter(last.counts.min_rt, counts.min_rt);
                last.counts.max_in_flight = last.counts.max_in_flight.max(counts.max_in_flight);
            }
        }
        seconds
    }

    /// How many units passed in the last whole second before the one that contains `now`; `None`
    /// without a minute.
    #[must_use]
    pub fn passed_last_second(&self, now: Nanos) -> Option<u64> {
        let minute = self.minute.as_ref()?;
        let last = Nanos::from_secs((now.get() / 1_000_000_000).checked_sub(1)?);
        let passed = |second: &Slot| (second.start == last).then_some(second.counts.pass);
        Some(
            minute
                .seconds(&self.ring, now)
                .iter()
                .rev()
                .take(2)
                .find_map(passed)
                .unwrap_or(0),
        )
    }
}

/// A window at the moment of an admission.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    ring: &'a Ring<6, 2>,
    passed: Tally,
    head: Head,
}

impl Look<'_> {
    /// The units that passed in view. `None` if another thread has turned the window: then the
    /// admission fails and looks again, also if the check admits.
    #[inline]
    #[must_use]
    pub fn passed(&self, trailing: &Trailing) -> Option<u64> {
        trailing.used(self.ring, Event::Pass as usize, self.passed, self.head)
    }

    /// The units that passed in the slots of `view`, for callers without a [`Trailing`] for this
    /// window. `None` as in [`passed`](Self::passed).
    #[must_use]
    pub fn passed_in(&self, view: View) -> Option<u64> {
        let began = self.ring.base(Event::Pass as usize, self.head, view)?;
        Some(self.passed.since(began))
    }

    /// The number of the newest slot: its start divided by a slot's length.
    #[must_use]
    #[inline]
    pub const fn slot(&self) -> u64 {
        self.head.slot()
    }

    /// The units that passed in the slots from number `oldest` on. `None` as for
    /// [`passed`](Self::passed).
    #[must_use]
    pub fn passed_from(&self, oldest: u64) -> Option<u64> {
        if oldest > self.head.slot() {
            return Some(0);
        }
        Some(
            self.passed.since(
                self.ring
                    .note_from(Event::Pass as usize, self.head, oldest)?,
            ),
        )
    }

    /// The units in flight. If the number is over a limit, it was so at this instant. If it is not,
    /// the admission succeeds only if no other call has entered.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.passed.since(self.ring.tally(Event::Success as usize))
    }

    /// The time from `now` until at most `goal` of the units in view still count, with no other
    /// traffic.
    #[must_use]
    pub fn fits_after(&self, now: Nanos, view: View, goal: u64) -> Duration {
        self.ring.fits_after(
            Event::Pass as usize,
            self.passed,
            self.head,
            now,
            view,
            goal,
        )
    }
}

/// What [`Window::pass_if`] admitted, so that it can be taken back.
#[derive(Clone, Copy, Debug)]
pub struct Passed(Tally);
