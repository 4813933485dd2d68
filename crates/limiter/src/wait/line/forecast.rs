//! When the waiters of a line will have been admitted, and the answers to callers behind them.

use tidegate_core::{Decision, Nanos};

use super::{PLAN_STEP, WaitLine};
use crate::{
    block::denied_until,
    wait::{
        Ground,
        place::Place,
        plan::{WaitPlan, WaitTurn},
        ticket::{Ticket, Wakes},
    },
};

impl WaitLine {
    /// The answer to a caller that may have a ticket here: `None` if no caller is before it.
    pub fn answer_to(
        &mut self,
        ground: &mut Ground<'_>,
        cost: u64,
        ticket: Option<&Ticket>,
        wakes: &mut Wakes,
    ) -> Option<Decision> {
        self.settle(ground, wakes);
        let (first, _) = self.waiting.first_key_value()?;
        match ticket {
            Some(ticket) if ticket.place() <= *first => None,
            Some(ticket) => Some(self.answer_at(ground, cost, ticket)),
            None => Some(self.answer(ground, cost)),
        }
    }

    /// The decision on `cost` at a ticket's place: behind the waiters that came before it. Behind
    /// more than [`PLAN_STEP`] of them, a caller that lets others pass gets the earliest time that is
    /// possible.
    fn answer_at(&mut self, ground: &Ground<'_>, cost: u64, ticket: &Ticket) -> Decision {
        if let Some(denied) = denied_until(ground.policy, ground.blocked, ground.now) {
            return denied;
        }
        let now = ground.now;
        let place = ticket.place();
        if self.waiting.range(place..).next().is_none() {
            return self.planned(ground).denial(cost, now);
        }
        self.planned(ground);
        if let Some(waiter) = self.waiting.get(&place) {
            return waiter.turn().denial(ground, cost);
        }
        match self.plan_before(ground, place) {
            Ok(plan) => plan.denial(cost, now),
            Err(earliest) => earliest.denial(ground, cost),
        }
    }

    /// The state as it will be when the waiters in front of a place have been admitted. Behind more
    /// than [`PLAN_STEP`] of them, the error is when the last of them is.
    pub(super) fn plan_before(
        &self,
        ground: &Ground<'_>,
        place: Place,
    ) -> Result<WaitPlan, WaitTurn> {
        let before = self.waiting.range(..place);
        if before.clone().nth(PLAN_STEP).is_none() {
            let from = ground.now.max(ground.blocked);
            let mut plan = WaitPlan::new(ground.policy, ground.state, from, self.version);
            for (_, waiter) in before {
                plan.add(waiter.ticket.cost);
            }
            return Ok(plan);
        }
        let last = before.last();
        Err(last.map_or(WaitTurn::Unknown, |(_, last)| last.turn()))
    }

    /// Notes a cost in front of waiters whose plan did not foresee it.
    pub(super) fn plan_later(&mut self, place: Place, cost: u64) {
        // Until they are renewed, the plans have it at their end.
        let building = self.building.as_mut().filter(|plan| place < plan.next);
        for plan in self.plan.iter_mut().chain(building) {
            plan.add(cost);
        }
        self.version += 1;
    }

    /// The state as it will be when every waiter has been admitted. Exact behind up to
    /// [`PLAN_STEP`] waiters. Behind more, an outdated plan is renewed that many tickets at a time,
    /// and is used until the new one is complete.
    pub(super) fn planned(&mut self, ground: &Ground<'_>) -> &mut WaitPlan {
        let version = self.version;
        let begin = || {
            let from = ground.now.max(ground.blocked);
            Box::new(WaitPlan::new(ground.policy, ground.state, from, version))
        };
        let overtaken = self
            .plan
            .as_ref()
            .is_none_or(|plan| plan.version != version);
        if overtaken {
            // Without an older plan, or if there is little work, the plan is made in one step.
            let at_once = self.plan.is_none() || self.waiting.len() <= PLAN_STEP;
            if at_once {
                self.building = None;
            }
            let building = self.building.get_or_insert_with(begin);
            let step = if at_once { usize::MAX } else { PLAN_STEP };
            for (place, waiter) in self.waiting.range_mut(building.next..).take(step) {
                waiter.planned = match building.add(waiter.ticket.cost) {
                    WaitTurn::At(at, _) => at,
                    WaitTurn::Unknown | WaitTurn::Never => Nanos::MAX,
                };
                building.next = place.behind();
            }
            let complete = self
                .waiting
                .last_key_value()
                .is_none_or(|(last, _)| *last < building.next);
            if complete {
                self.plan = self.building.take();
            }
        }
        self.plan.get_or_insert_with(begin)
    }
}
