//! The line of one key.

mod forecast;

use std::{collections::BTreeMap, sync::Arc};

use tidegate_core::{Algorithm, Decision, Estimate, Nanos, Policy, Priority};

use super::{
    Alarm, Ground, WaitError,
    alarm::Setting,
    place::Place,
    plan::{WaitPlan, WaitTurn, turn},
    reservations::{Reservations, in_the_queue, take},
    ticket::{Admitted, Ticket, Wakes},
};
use crate::{Timer, block::denied_until};

/// The maximum number of tickets that one step adds to a new plan. Behind at most as many waiters
/// an answer is exact.
const PLAN_STEP: usize = 64;

/// The words of a state that is copied to know when the second waiter is due.
const SHORT_STATE: usize = 32;

/// How long the line waits for a caller that takes its units itself, was called and is not polled.
/// After twice this time all that are not polled are passed over: less than the 10 ms for which
/// they may delay others.
pub(crate) const CALL: Nanos = Nanos::from_millis(4);

/// The waiters of one key, and their leaky bucket reservations. Changes only under the key's lock.
#[derive(Debug, Default)]
pub(crate) struct WaitLine {
    waiting: BTreeMap<Place, Waiter>,
    /// Callers that take their units themselves and let others pass, because another of their
    /// limits has no room yet. They keep their places.
    aside: BTreeMap<Place, Waiter>,
    /// The last number.
    last: u64,
    /// When the last caller came. It does not go back while there are others.
    arrival: Nanos,
    reservations: Reservations,
    /// Boxed, as is the next one: many lines have one waiter and no plan.
    plan: Option<Box<WaitPlan>>,
    /// A newer plan that does not include all tickets yet.
    building: Option<Box<WaitPlan>>,
    /// Counts changes that the plan did not foresee.
    version: u64,
    /// Made by the first waiter.
    alarm: Option<Arc<Alarm>>,
    /// When the front is due, as the alarm was last set, and how often that was.
    due: Option<Nanos>,
    settings: u64,
    /// Whether it is listed among the lines that are kept only for free reservations.
    pub is_listed: bool,
}

#[derive(Debug)]
struct Waiter {
    ticket: Arc<Ticket>,
    /// When it is admitted according to the plan at its arrival; the end of time if unknown.
    planned: Nanos,
}

impl Waiter {
    const fn turn(&self) -> WaitTurn {
        match self.planned {
            Nanos::MAX => WaitTurn::Unknown,
            at => WaitTurn::At(at, Nanos::ZERO),
        }
    }
}

/// The result of joining.
pub(crate) enum Joined {
    Admitted(Decision, Estimate),
    Waiting(Arc<Ticket>),
}

impl WaitLine {
    /// Whether the line has nothing that a decision must consider.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.aside.is_empty() && self.reservations.is_empty()
    }

    /// Whether there are waiters.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many callers are before one that comes now, for each priority.
    pub fn ahead(&self, now: Nanos) -> [usize; Priority::COUNT] {
        let comes = now.max(self.arrival);
        Priority::all().map(|priority| {
            let last = Place {
                rank: priority.rank(comes),
                number: u64::MAX,
            };
            self.waiting.range(..=last).count() + self.aside.range(..=last).count()
        })
    }

    /// The time until which the line must be kept without waiters.
    pub fn kept_until(&self) -> Option<Nanos> {
        self.reservations.last_free()
    }

    /// Drops free reservations that are over.
    pub fn expire(&mut self, now: Nanos) {
        self.reservations.expire(now);
    }

    /// Admits waiters from the front as long as they fit, and records the admissions.
    pub fn settle(&mut self, ground: &mut Ground<'_>, wakes: &mut Wakes) {
        self.reservations
            .refresh(ground.policy, ground.state, ground.now);
        let had_waiters = self.is_waiting();
        while let Some(first) = self.waiting.first_entry() {
            let (cost, planned) = (first.get().ticket.cost, first.get().planned);
            if cost > ground.policy.highest_cost() {
                // The limit was lowered below the cost.
                let denied = ground.policy.peek(ground.state, ground.now, cost);
                let (place, waiter) = first.remove_entry();
                if waiter.ticket.takes_itself {
                    // Its caller looks at all of its limits, of which one may have changed again.
                    waiter.ticket.rouse(wakes);
                    self.aside.insert(place, waiter);
                } else {
                    waiter.ticket.end(Err(WaitError::Never(denied)), wakes);
                }
                self.version += 1;
                continue;
            }
            if ground.blocked > ground.now || ground.site.is_resetting() {
                break;
            }
            if first.get().ticket.takes_itself {
                match first.get().ticket.called_until() {
                    None if ground
                        .policy
                        .peek(ground.state, ground.now, cost)
                        .is_denied() => {}
                    None => first
                        .get()
                        .ticket
                        .call(ground.now.saturating_add(CALL), wakes),
                    Some(until) if ground.now < until => {}
                    Some(_) => {
                        self.pass_over_unpolled(wakes);
                        continue;
                    }
                }
                break;
            }
            match take(&mut self.reservations, ground, cost) {
                Ok(admitted) => {
                    if planned != ground.now {
                        self.version += 1;
                    }
                    if let Some(first) = self.waiting.first_entry() {
                        first.remove().ticket.end(Ok(admitted), wakes);
                    }
                }
                Err(_) => break,
            }
        }
        if self.waiting.is_empty() {
            (self.plan, self.building) = (None, None);
        }
        let due = self.front_due(ground);
        // Without waiters, there is no deadline that the alarm has to sleep for either.
        if due != self.due || (had_waiters && !self.is_waiting()) {
            self.set_alarm(ground, due, wakes);
        }
    }

    /// Puts the front aside, which was not polled or has no room in its other limits after all, and
    /// with it all that were woken before and not polled since. The others of the kind are woken,
    /// so that the next time shows which of them are polled.
    fn pass_over_unpolled(&mut self, wakes: &mut Wakes) {
        let front = self.waiting.pop_first();
        let idle = self.waiting.extract_if(.., |_, waiter| {
            waiter.ticket.takes_itself && !waiter.ticket.rouse(wakes)
        });
        self.aside.extend(front.into_iter().chain(idle));
        self.version += 1;
    }

    fn set_alarm(&mut self, ground: &Ground<'_>, due: Option<Nanos>, wakes: &mut Wakes) {
        let Some(alarm) = &self.alarm else { return };
        self.settings += 1;
        self.due = due;
        let front = self.waiting.first_key_value();
        let setting = Setting {
            step: self.settings,
            front: front.map_or(0, |(place, _)| place.number),
            due,
            then: due.and_then(|due| self.second_due(ground, due)),
        };
        wakes.set(alarm, setting);
    }

    /// When the second waiter is due if the first one is served at `due`.
    fn second_due(&self, ground: &Ground<'_>, due: Nanos) -> Option<Nanos> {
        let mut waiters = self.waiting.values();
        let (first, second) = (&waiters.next()?.ticket, &waiters.next()?.ticket);
        if first.takes_itself || ground.state.len() > SHORT_STATE {
            return None;
        }
        let mut plan = WaitPlan::new(ground.policy, ground.state, due, self.version);
        plan.add(first.cost);
        match plan.turn(second.cost) {
            WaitTurn::At(at, _) => Some(at),
            WaitTurn::Unknown | WaitTurn::Never => None,
        }
    }

    /// When the front will be admitted, as far as is known.
    fn front_due(&self, ground: &Ground<'_>) -> Option<Nanos> {
        let (_, front) = self.waiting.first_key_value()?;
        if let Some(until) = front.ticket.called_until() {
            return Some(until);
        }
        let from = ground.now.max(ground.blocked);
        match turn(ground.policy, ground.state, Some(from), front.ticket.cost) {
            WaitTurn::At(at, _) if ground.blocked < Nanos::MAX => Some(at),
            _ => None,
        }
    }

    /// Decides on a cost after serving the waiters, and behind them. The second value is the
    /// estimate that returns what was taken.
    pub fn decide(
        &mut self,
        ground: &mut Ground<'_>,
        cost: u64,
        wakes: &mut Wakes,
    ) -> (Decision, Estimate) {
        self.settle(ground, wakes);
        if self.is_waiting() {
            return (self.deny(ground, cost, wakes), ground.note(0));
        }
        let free = self
            .reservations
            .take_free(ground.policy, ground.state, ground.now, cost);
        if let Some((decision, _)) = free {
            return (decision, in_the_queue(ground.note(cost)));
        }
        let decision = ground.policy.decide(ground.state, ground.now, cost);
        let taken = if decision.is_allowed() { cost } else { 0 };
        (decision, ground.note(taken))
    }

    /// The result that [`decide`](Self::decide) would have.
    pub fn check(&mut self, ground: &mut Ground<'_>, cost: u64, wakes: &mut Wakes) -> Decision {
        self.settle(ground, wakes);
        if self.is_waiting() && cost > 0 {
            return self.answer(ground, cost);
        }
        let free = self
            .reservations
            .check_free(ground.policy, ground.state, ground.now, cost);
        free.unwrap_or_else(|| ground.policy.peek(ground.state, ground.now, cost))
    }

    /// Takes as much of `cost` as is available: nothing, while there are waiters.
    pub fn decide_up_to(
        &mut self,
        ground: &mut Ground<'_>,
        cost: u64,
        wakes: &mut Wakes,
    ) -> (u64, Decision) {
        self.settle(ground, wakes);
        if self.is_waiting() && cost > 0 {
            return (0, self.deny(ground, cost.min(1), wakes));
        }
        ground.policy.decide_up_to(ground.state, ground.now, cost)
    }

    /// Denies `cost` behind the waiters. The denial counts as any other one.
    fn deny(&mut self, ground: &mut Ground<'_>, cost: u64, wakes: &mut Wakes) -> Decision {
        if ground.policy.count_denial(ground.state, ground.now) {
            self.changed(ground, wakes);
        }
        self.answer(ground, cost)
    }

    /// The decision on `cost` behind the waiters, without taking it.
    pub fn answer(&mut self, ground: &Ground<'_>, cost: u64) -> Decision {
        if let Some(denied) = denied_until(ground.policy, ground.blocked, ground.now) {
            return denied;
        }
        if !self.is_waiting() {
            return ground.policy.peek(ground.state, ground.now, cost);
        }
        let now = ground.now;
        self.planned(ground).denial(cost, now)
    }

    /// Notes that a caller comes, no earlier than the callers in line; returns when.
    pub fn arrive(&mut self, now: Nanos) -> Nanos {
        let is_empty = self.waiting.is_empty() && self.aside.is_empty();
        self.arrival = if is_empty { now } else { now.max(self.arrival) };
        self.arrival
    }

    /// Admits `cost` at once, or gives it a place in line.
    pub fn join(
        &mut self,
        ground: &mut Ground<'_>,
        cost: u64,
        (deadline, priority): (Nanos, Priority),
        timer: &impl Timer,
        wakes: &mut Wakes,
    ) -> Result<Joined, WaitError> {
        self.settle(ground, wakes);
        let rank = priority.rank(self.arrive(ground.now));
        let place = self.next_place(rank);
        let is_first = self.waiting.range(..place).next().is_none();
        let is_last = self.waiting.range(place..).next().is_none();
        let alarm = self.alarm.get_or_insert_with(|| Alarm::new(timer.clone()));
        let alarm = Arc::clone(alarm);
        let Ground { now, blocked, .. } = *ground;
        // A look does not wait behind others, but it waits while the state is over its limit.
        if cost == 0 {
            let look = ground.policy.peek(ground.state, now, 0);
            if look.is_allowed() {
                return Ok(Joined::Admitted(look, ground.note(0)));
            }
        }
        let in_time = |start: Nanos| start <= deadline;
        if is_first && blocked <= now && !ground.site.is_resetting() {
            let taken = take(&mut self.reservations, ground, cost);
            if !is_last {
                self.version += 1;
            }
            match taken {
                Ok(admitted) if admitted.start <= now => {
                    return Ok(Joined::Admitted(admitted.decision, admitted.estimate));
                }
                Ok(admitted) if in_time(admitted.start) => {
                    let ticket = self.ticket(place, cost, deadline, alarm);
                    ticket.end(Ok(admitted), wakes);
                    return Ok(Joined::Waiting(ticket));
                }
                Ok(admitted) => {
                    match admitted.reservation {
                        Some(reservation) => {
                            self.reservations.give_up(ground.state, now, reservation);
                        }
                        None => self.settle_units(ground, admitted.estimate, 0),
                    }
                    return Err(WaitError::Deadline(admitted.decision));
                }
                Err(_) => {}
            }
        }
        let turn = if blocked == Nanos::MAX {
            WaitTurn::Never
        } else if is_first {
            turn(ground.policy, ground.state, Some(now.max(blocked)), cost)
        } else if is_last {
            // Behind many waiters the existing plan suffices: it is renewed on the next request.
            let long = self.waiting.len() > PLAN_STEP;
            match &self.plan {
                Some(plan) if long => plan.turn(cost),
                _ => self.planned(ground).turn(cost),
            }
        } else {
            self.planned(ground);
            match self.plan_before(ground, place) {
                Ok(plan) => plan.turn(cost),
                Err(_) if cost > ground.policy.highest_cost() => WaitTurn::Never,
                Err(earliest) => earliest,
            }
        };
        let refused = |ground: &Ground<'_>| {
            let denied = turn.denial(ground, cost);
            if turn == WaitTurn::Never {
                WaitError::Never(denied)
            } else {
                WaitError::Deadline(denied)
            }
        };
        // Permits may be returned at any time before their holds end.
        let may_return = ground.policy.is_concurrency() && in_time(now.max(blocked));
        let planned = match turn {
            WaitTurn::Never => return Err(refused(ground)),
            WaitTurn::At(at, _) if may_return => at,
            WaitTurn::At(at, delay) if !in_time(at.saturating_add(delay)) => {
                return Err(refused(ground));
            }
            WaitTurn::Unknown if !in_time(now) => return Err(refused(ground)),
            WaitTurn::At(at, _) => at,
            WaitTurn::Unknown => Nanos::MAX,
        };
        let ticket = self.ticket(place, cost, deadline, alarm);
        if is_last {
            if let Some(plan) = &mut self.plan {
                plan.put(cost, turn);
            }
        } else {
            self.plan_later(place, cost);
        }
        self.waiting.insert(
            place,
            Waiter {
                ticket: Arc::clone(&ticket),
                planned,
            },
        );
        if is_first {
            self.recall_second();
            let due = self.front_due(ground);
            self.set_alarm(ground, due, wakes);
        }
        Ok(Joined::Waiting(ticket))
    }

    /// Has the caller behind a new front called again when its turn comes.
    fn recall_second(&self) {
        if let Some(second) = self.waiting.values().nth(1) {
            second.ticket.call_again_later();
        }
    }

    /// Gives a caller that takes its units itself a place. It lets others pass until it is
    /// [placed](Self::place). Its arrival is the same in all of its lines, and no earlier than that
    /// of others there, so that callers have one order in all lines that they share.
    pub fn enter(
        &mut self,
        cost: u64,
        (arrival, priority): (Nanos, Priority),
        timer: &impl Timer,
    ) -> Arc<Ticket> {
        let rank = priority.rank(self.arrive(arrival));
        let alarm = Arc::clone(self.alarm.get_or_insert_with(|| Alarm::new(timer.clone())));
        let place = self.next_place(rank);
        self.last = place.number;
        let ticket = Arc::new(Ticket::for_taker(place, cost, alarm));
        self.aside.insert(
            ticket.place(),
            Waiter {
                ticket: Arc::clone(&ticket),
                planned: Nanos::MAX,
            },
        );
        ticket
    }

    /// Puts a caller that takes its units itself to its place, and returns when its units will be
    /// there if it stays; the end of time if unknown. [`place`](Self::place) must follow.
    pub fn due_of(&mut self, ground: &Ground<'_>, ticket: &Ticket) -> Nanos {
        if let Some((place, waiter)) = self.aside.remove_entry(&ticket.place()) {
            self.waiting.insert(place, waiter);
            self.version += 1;
        }
        self.planned(ground);
        self.waiting
            .get(&ticket.place())
            .map_or(ground.now, |waiter| waiter.planned)
    }

    /// Lets a caller that takes its units itself stay at its place and hold up the callers behind
    /// it, or puts it aside. `until` is the time until which it keeps the front, if it is there and
    /// was called.
    pub fn place(
        &mut self,
        ground: &mut Ground<'_>,
        ticket: &Ticket,
        until: Option<Nanos>,
        wakes: &mut Wakes,
    ) {
        if until.is_none()
            && let Some((place, waiter)) = self.waiting.remove_entry(&ticket.place())
        {
            self.aside.insert(place, waiter);
            self.version += 1;
        }
        if self.waiting.keys().next() == Some(&ticket.place()) {
            self.recall_second();
        }
        ticket.looked(until.filter(|_| ticket.called_until().is_some()));
        self.settle(ground, wakes);
        if ticket.cost > ground.policy.highest_cost() {
            // It is aside again. Its caller has just seen why, so that it need not look once more.
            ticket.looked(None);
        }
        // The alarm that woke the caller rings no more.
        self.set_alarm(ground, self.due, wakes);
    }

    /// Serves the line for one of its waiters, and sets the alarm again.
    pub fn attend(&mut self, ground: &mut Ground<'_>, ticket: &Ticket, wakes: &mut Wakes) {
        // A ticket with an outcome may belong to an earlier line, whose alarm needs no setting.
        if !ticket.has_ended() {
            let settings = self.settings;
            self.settle(ground, wakes);
            if self.settings == settings {
                self.set_alarm(ground, self.due, wakes);
            }
        }
    }

    /// Removes a ticket, or takes back what was admitted to it.
    pub fn leave(&mut self, ground: &mut Ground<'_>, ticket: &Ticket, wakes: &mut Wakes) {
        self.reservations
            .refresh(ground.policy, ground.state, ground.now);
        match ticket.outcome() {
            // A ticket without an outcome is in this line. One with an outcome may belong to an
            // earlier line, and its number may be another ticket's by now.
            None => {
                self.waiting.remove(&ticket.place());
                self.aside.remove(&ticket.place());
                ticket.forget_waker();
                // The alarm need not sleep for its deadline.
                self.set_alarm(ground, self.due, wakes);
            }
            Some(Ok(admitted)) => match admitted.reservation {
                Some(reservation) => {
                    self.reservations
                        .give_up(ground.state, ground.now, reservation);
                }
                None => self.settle_units(ground, admitted.estimate, 0),
            },
            Some(Err(_)) => {}
        }
        ticket.finish();
        self.changed(ground, wakes);
    }

    /// Records that the work of a ticket with a leaky bucket's reservation starts.
    pub fn started(&mut self, ticket: &Ticket) {
        if let Some(Ok(Admitted {
            reservation: Some(reservation),
            ..
        })) = ticket.outcome()
        {
            self.reservations.started(reservation);
        }
    }

    /// Returns the units that were taken last, and serves waiters for whom that makes room.
    pub fn refund(&mut self, ground: &mut Ground<'_>, cost: u64, wakes: &mut Wakes) {
        self.reservations
            .refresh(ground.policy, ground.state, ground.now);
        self.reservations
            .refund(ground.policy, ground.state, ground.now, cost);
        self.changed(ground, wakes);
    }

    /// Charges units, whether they fit or not. All waiters wait longer. Returns the decision on a
    /// cost of 0 afterwards.
    pub fn charge(
        &mut self,
        ground: &mut Ground<'_>,
        charge: impl FnOnce(&Policy, &mut [u64]) -> Decision,
        wakes: &mut Wakes,
    ) -> Decision {
        self.reservations
            .refresh(ground.policy, ground.state, ground.now);
        let standing = charge(ground.policy, ground.state);
        self.changed(ground, wakes);
        standing
    }

    /// Corrects an estimate, and serves waiters if that makes room.
    pub fn correct(
        &mut self,
        ground: &mut Ground<'_>,
        estimate: Estimate,
        actual: u64,
        wakes: &mut Wakes,
    ) {
        self.reservations
            .refresh(ground.policy, ground.state, ground.now);
        self.settle_units(ground, estimate, actual);
        self.changed(ground, wakes);
    }

    fn settle_units(&mut self, ground: &mut Ground<'_>, estimate: Estimate, actual: u64) {
        let Ground {
            policy, site, now, ..
        } = *ground;
        let refund = |state: &mut [u64], units| {
            self.reservations.refund(policy, state, now, units);
        };
        site.settle(policy, ground.state, now, (estimate, actual), refund);
    }

    /// Handles a change that no plan foresaw: of the policy, or a block. Serves waiters for whom it
    /// makes room.
    pub fn changed(&mut self, ground: &mut Ground<'_>, wakes: &mut Wakes) {
        self.version += 1;
        self.settle(ground, wakes);
    }

    /// Sets the alarm for another end of a block, also without knowing the time.
    pub fn block_changed(&mut self, ground: &Ground<'_>, wakes: &mut Wakes) {
        self.version += 1;
        let due = self.front_due(ground);
        self.set_alarm(ground, due, wakes);
    }

    const fn next_place(&self, rank: Nanos) -> Place {
        Place {
            rank,
            number: self.last + 1,
        }
    }

    /// The ticket of the [next place](Self::next_place).
    fn ticket(
        &mut self,
        place: Place,
        cost: u64,
        deadline: Nanos,
        alarm: Arc<Alarm>,
    ) -> Arc<Ticket> {
        self.last = place.number;
        Arc::new(Ticket::new(place, cost, deadline, alarm))
    }
}
