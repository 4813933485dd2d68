//! The part of a lease under the lock: what it does when the allotment does not suffice for a
//! decision.

use crate::{Decision, Nanos};

use super::{
    GiveBack, Grant, Mode, Request, Terms,
    allotment::{Allotment, OpenAllotment, RefusedCost},
    demand::Demand,
    refusals::Refusals,
};

/// The maximum number of allotments that wait to be returned: older ones stay charged until the
/// algorithm forgets them.
const BACK: usize = 8;

/// Near the limit, an allotment smaller than this is not renewed ahead.
const FEW: u32 = 16;

/// There is plenty while the room is at least this many times the units of an allotment (of a
/// bucket, twice as many times).
const PLENTY: u32 = 32;

/// An allotment, and when the authority's state counted it, on the authority's clock.
#[derive(Clone, Copy, Debug, Default)]
struct HeldAllotment {
    open: OpenAllotment,
    taken: Nanos,
    /// Whether it ends because of the slack, and not with a slot.
    whole: bool,
}

/// The progress of the next allotment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    NotAsked,
    /// A request for it was sent.
    Asked,
    /// The request failed, and no request has been answered since.
    Unanswered,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseState {
    /// The values with which the allotment was opened.
    current: HeldAllotment,
    /// An allotment that was fetched ahead, to be opened when the current one is used up.
    spare: Option<HeldAllotment>,
    /// Units left in the allotment when it was last looked at.
    seen: u32,
    demand: Demand,
    refusals: Refusals,
    back: Vec<GiveBack>,
    next: Next,
    closed: bool,
    round_trip: Nanos,
    /// When units of the allotment were last found spent.
    busy: Nanos,
    /// Whether the limit is near: something was denied, and since then no answer granted all that
    /// was wanted.
    scarce: bool,
    /// The number of callers' requests that wait for an answer.
    out: u32,
    /// Near the limit, while one request waits for an answer, no other is sent before this time.
    probing_until: Nanos,
    /// Units that were used and are in no request yet (`reported`).
    unsent: u32,
    /// Units that were used and are in requests that wait for an answer.
    in_flight: u32,
    reported_at: Nanos,
    /// A request for an allotment was granted nothing: unless a caller waits for the answer, no
    /// other is sent before this time.
    barren_until: Nanos,
    /// The room that the latest answer showed, if units can be held without a loss.
    room: u64,
}

impl LeaseState {
    /// Counts what threads have spent since the last call.
    pub fn look(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) {
        let left = allotment.left();
        let spent = self.seen.saturating_sub(left);
        self.seen = left;
        if spent > 0 {
            self.busy = self.busy.max(now);
            self.demand.add(spent.into());
            if terms.mode() == Mode::Reported {
                self.unsent = self.unsent.saturating_add(spent);
            }
        }
    }

    /// Opens another allotment; the rest of the current one will be returned.
    fn open(&mut self, allotment: &Allotment, terms: &Terms, next: HeldAllotment, now: Nanos) {
        let taken = self.current.taken;
        let mut left = 0;
        allotment.replace(|units| {
            left = units;
            next.open
        });
        // Units spent between the look and the end of the generation.
        let spent = self.seen.saturating_sub(left);
        self.demand.add(spent.into());
        if terms.mode() == Mode::Reported {
            self.unsent = self.unsent.saturating_add(spent);
        } else {
            self.give_back(left, taken);
        }
        self.seen = next.open.units;
        self.current = next;
        if next.open.units > 0 {
            self.busy = self.busy.max(now);
        }
    }

    /// Opens the spare allotment, if there is one that has not expired.
    pub fn open_spare(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) -> bool {
        let Some(mut spare) = self.spare.take() else {
            return false;
        };
        if now >= spare.open.until {
            self.give_back(spare.open.units, spare.taken);
            return false;
        }
        spare.open.refused = self.current.open.refused;
        self.open(allotment, terms, spare, now);
        true
    }

    /// Ends an expired allotment, so that the rest of it is returned.
    pub fn end_if_over(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) {
        if self.seen > 0 && now >= self.current.open.until {
            self.end(allotment, terms, now);
        }
    }

    fn end(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) {
        let open = OpenAllotment {
            refused: self.current.open.refused,
            ..OpenAllotment::default()
        };
        self.open(
            allotment,
            terms,
            HeldAllotment {
                open,
                ..HeldAllotment::default()
            },
            now,
        );
    }

    fn give_back(&mut self, units: u32, taken: Nanos) {
        if units == 0 {
            return;
        }
        if let Some(same) = self.back.iter_mut().find(|back| back.taken == taken) {
            same.units = same.units.saturating_add(units);
            return;
        }
        if self.back.len() == BACK {
            self.back.remove(0);
        }
        self.back.push(GiveBack { units, taken });
    }

    /// The remembered denial of this cost. From now on threads find it without the lock.
    pub fn refusal(
        &mut self,
        allotment: &Allotment,
        terms: &Terms,
        cost: u64,
        now: Nanos,
    ) -> Option<Decision> {
        let refused = self.refusals.find(cost, now)?;
        if self.current.open.refused != refused {
            self.show(allotment, |open| open.refused = refused);
        }
        Some(refused.decision(terms.limit(), allotment.left(), now))
    }

    /// Near the limit, one caller at a time asks the authority; the others are denied until its
    /// answer arrives. Otherwise each caller of a hot key would wait a round trip for the same
    /// answer. If nothing can be taken ahead, the authority makes every decision anyway.
    pub fn probe(
        &mut self,
        allotment: &Allotment,
        terms: &Terms,
        cost: u64,
        now: Nanos,
    ) -> Option<Decision> {
        if !self.scarce || cost == 0 || terms.mode() == Mode::Exact || self.is_far(terms) {
            return None;
        }
        let others = self.out > 0 && now < self.probing_until;
        // The first caller waits a whole round trip for its answer. If it takes longer, the others
        // check again soon; if it takes many times as long, it may never come.
        let trip = self.round_trip.get().max(1_000);
        let until = now.saturating_add(Nanos::new(if others { trip / 4 } else { trip }));
        let refused = RefusedCost {
            cost,
            until,
            reset_at: self.current.open.reset_at.max(until),
        };
        self.show(allotment, |open| open.refused = refused);
        if others {
            return Some(refused.decision(terms.limit(), allotment.left(), now));
        }
        self.probing_until = now.saturating_add(Nanos::new(trip.saturating_mul(8)));
        None
    }

    /// It is unknown whether the limit is near: callers no longer get a denial that is based on a
    /// probe alone.
    fn end_probe(&mut self, allotment: &Allotment) {
        (self.scarce, self.probing_until) = (false, Nanos::ZERO);
        let shown = self.current.open.refused;
        if shown.cost > 0 && !self.refusals.has(&shown) {
            self.show(allotment, |open| open.refused = RefusedCost::default());
        }
    }

    /// Whether the limit is still near after an answer: less was granted than is wanted for the
    /// next while.
    fn is_scarce(&self, request: &Request, grant: &Grant) -> bool {
        match request.ahead {
            // The answer to the request for an allotment will show it.
            0 if self.next == Next::Asked => true,
            0 => grant.decision.remaining() == 0,
            wanted => grant.units < wanted,
        }
    }

    /// Changes the attributes of the allotment, and keeps its units.
    fn show(&mut self, allotment: &Allotment, change: impl FnOnce(&mut OpenAllotment)) {
        let open = &mut self.current.open;
        change(open);
        allotment.replace(|units| OpenAllotment { units, ..*open });
    }

    /// A request for a caller's cost, together with the other requests that are due.
    pub fn request(&mut self, terms: &Terms, cost: u64, now: Nanos) -> Request {
        let ahead = if self.next == Next::Asked || self.closed {
            0
        } else {
            self.wanted(terms, now)
        };
        self.say(cost, ahead, now)
    }

    /// A request for a caller's cost that no allotment can hold.
    pub fn request_alone(&mut self, cost: u64, now: Nanos) -> Request {
        self.say(cost, 0, now)
    }

    fn say(&mut self, cost: u64, ahead: u32, now: Nanos) -> Request {
        if ahead > 0 {
            self.next = Next::Asked;
        }
        self.out = self.out.saturating_add(u32::from(cost > 0));
        let spent = std::mem::take(&mut self.unsent);
        self.in_flight = self.in_flight.saturating_add(spent);
        if spent > 0 {
            self.reported_at = now;
        }
        let back = if self.back.is_empty() {
            None
        } else {
            Some(self.back.remove(0))
        };
        Request {
            cost,
            ahead,
            back,
            spent,
            sent: now,
        }
    }

    /// A request for another allotment, unless one was sent or none is wanted.
    pub fn renewal(&mut self, terms: &Terms, now: Nanos) -> Option<Request> {
        // Near the limit, a few units do not show that more can be had; the next caller will ask.
        let few = self.scarce && self.current.open.units < FEW;
        // A small allotment of a key with plenty of room is renewed with those of other keys (see
        // `idle`).
        let later = (1..=self.in_plenty(terms)).contains(&self.current.open.units);
        if self.next == Next::Asked || self.closed || self.spare.is_some() || few || later {
            return None;
        }
        let request = self.request(terms, 0, now);
        let says_something = request.ahead > 0 || request.back.is_some() || request.spent > 0;
        says_something.then_some(request)
    }

    /// A request for an allotment, after a cost that was too large for the current allotment and is
    /// decided elsewhere.
    pub fn ahead_for(
        &mut self,
        allotment: &Allotment,
        terms: &Terms,
        cost: u64,
        now: Nanos,
    ) -> Option<Request> {
        if now < self.barren_until || self.refusal(allotment, terms, cost, now).is_some() {
            return None;
        }
        self.asked_for(cost);
        self.renewal(terms, now)
    }

    fn wanted(&mut self, terms: &Terms, now: Nanos) -> u32 {
        match terms.mode() {
            Mode::Exact => 0,
            // Each late answer loses an allotment, so the next one is requested only after an
            // answer came in time.
            Mode::Leased if self.next == Next::Unanswered => 0,
            Mode::Leased if self.is_far(terms) => 0,
            Mode::Leased => {
                let wanted = self
                    .demand
                    .allotment(now, self.target(terms), terms.refills());
                wanted
                    .max(self.in_plenty(terms))
                    .min(u32::try_from(terms.limit()).unwrap_or(u32::MAX))
            }
            Mode::Reported => terms.unreported(),
        }
    }

    /// The units for a whole slack of a key with few but steady requests, if nobody else needs
    /// them; 0 for any other key.
    fn in_plenty(&self, terms: &Terms) -> u32 {
        let units = self.demand.for_a_slack();
        let room = self.room / u64::from(PLENTY << u32::from(terms.refills()));
        let plenty = terms.mode() == Mode::Leased && !self.scarce && room >= units.into();
        if plenty && !self.is_far(terms) {
            units
        } else {
            0
        }
    }

    /// Whether the allotment of a key with plenty of room is used up, or ends, before `idle` is
    /// called for the next time.
    fn ends_soon(&self, terms: &Terms, now: Nanos) -> bool {
        let next = now
            .saturating_add(Nanos::new(terms.slack().get() / 4))
            .saturating_add(self.round_trip);
        let over = if self.current.whole { next } else { now };
        self.seen <= self.in_plenty(terms) / 3 || self.current.open.until <= over
    }

    /// Whether an allotment would have expired, or nearly, when it arrives.
    fn is_far(&self, terms: &Terms) -> bool {
        terms.mode() == Mode::Leased
            && self.round_trip.get().saturating_mul(2) >= terms.slack().get()
    }

    /// How long an allotment should last: a quarter of the slack, so that it is used up before it
    /// must be returned; or four round trips, up to half the slack.
    fn target(&self, terms: &Terms) -> Nanos {
        let slack = terms.slack().get();
        Nanos::new((slack / 4).max(self.round_trip.get().saturating_mul(4).min(slack / 2)))
    }

    pub fn in_turn(&mut self, mut first: Request, more: &[u64]) -> Vec<Request> {
        let (ahead, sent) = (std::mem::take(&mut first.ahead), first.sent);
        let mut requests = Vec::with_capacity(1 + more.len());
        requests.push(first);
        for &cost in more {
            self.asked_for(cost);
            self.out = self.out.saturating_add(u32::from(cost > 0));
            requests.push(Request {
                cost,
                ahead: 0,
                back: None,
                spent: 0,
                sent,
            });
        }
        if let Some(last) = requests.last_mut() {
            last.ahead = ahead;
        }
        requests
    }

    pub fn asked_for(&mut self, cost: u64) {
        self.demand.add(cost);
    }

    pub fn granted(
        &mut self,
        allotment: &Allotment,
        terms: &Terms,
        request: &Request,
        grant: &Grant,
        now: Nanos,
    ) {
        self.look(allotment, terms, now);
        self.round_trip = now.saturating_since(request.sent);
        if self.next == Next::Unanswered {
            self.next = Next::NotAsked;
        }
        self.in_flight = self.in_flight.saturating_sub(request.spent);
        self.answered(request);
        // What a bucket that is not full would have refilled is lost with units that are not used.
        // And however many nodes there are, half of the limit is left to those that need it.
        let loses = terms.refills()
            && grant.decision.reset_after_nanos() > terms.slack().get().saturating_mul(2);
        let room = grant.decision.remaining();
        self.room = if loses || room < terms.limit() / 2 {
            0
        } else {
            room
        };
        // A cost that no allotment can hold says nothing about the others.
        if request.cost <= terms.limit() {
            self.scarce =
                grant.decision.is_denied() || (self.scarce && self.is_scarce(request, grant));
        }
        if grant.decision.is_denied() {
            // A denial that consumes units, or may block the key, must be asked for each time.
            if terms.policy().counts_denied() || terms.policy().penalty().is_some() {
                return;
            }
            if let Some(refused) =
                self.refusals
                    .remember(request.cost, &grant.decision, request.sent)
            {
                self.show(allotment, |open| open.refused = refused);
            }
        } else {
            // A granted allotment shows as much as a decision: what was denied before fits now.
            // Without this the denial would be found before the spare allotment is opened.
            let fits = request.cost.max(grant.units.into());
            self.refusals.admitted(fits);
            if (1..=fits).contains(&self.current.open.refused.cost) {
                self.show(allotment, |open| open.refused = RefusedCost::default());
            }
        }
        if request.ahead == 0 {
            return;
        }
        self.next = Next::NotAsked;
        if grant.units == 0 {
            self.barren_until = now.saturating_add(self.target(terms));
        }
        let units = match terms.mode() {
            Mode::Exact => 0,
            Mode::Leased => grant.units,
            // Unreported units may not be charged yet. The allotment is ended first, so that no
            // thread adds to them before the count.
            Mode::Reported => {
                self.end(allotment, terms, now);
                let out = self.unsent.saturating_add(self.in_flight);
                grant.units.min(terms.unreported()).saturating_sub(out)
            }
        };
        let held = self.held(terms, units, request, grant);
        self.take_in(allotment, terms, held, now);
    }

    fn held(&self, terms: &Terms, units: u32, request: &Request, grant: &Grant) -> HeldAllotment {
        // The use of two round trips, but at least a quarter and at most half.
        let trips = u64::from(units).saturating_mul(self.round_trip.get().saturating_mul(2))
            / self.target(terms).get().max(1);
        let low = (units / 2)
            .min(u32::try_from(trips).unwrap_or(u32::MAX))
            .max(units / 4);
        let remaining = grant.decision.remaining();
        let (low, beyond) = match terms.mode() {
            Mode::Reported => (units / 2, remaining.saturating_sub(units.into())),
            _ => (low, remaining),
        };
        let open = OpenAllotment {
            units,
            // Counted from the time of sending: the authority decided later than that.
            until: request.sent.saturating_add(grant.usable_for),
            low,
            beyond,
            reset_at: request
                .sent
                .saturating_add(Nanos::new(grant.decision.reset_after_nanos())),
            refused: self.current.open.refused,
        };
        let whole = grant.usable_for == terms.usable_for(Nanos::MAX);
        HeldAllotment {
            open,
            taken: grant.now,
            whole,
        }
    }

    fn take_in(&mut self, allotment: &Allotment, terms: &Terms, held: HeldAllotment, now: Nanos) {
        if terms.mode() == Mode::Reported {
            // The newer view of what is free replaces the older one.
            return self.open(allotment, terms, held, now);
        }
        if held.open.units == 0 {
            return;
        }
        if self.closed || now >= held.open.until {
            self.give_back(held.open.units, held.taken);
        } else if self.seen > 0 && now < self.current.open.until {
            if let Some(older) = self.spare.replace(held) {
                self.give_back(older.open.units, older.taken);
            }
        } else {
            self.open(allotment, terms, held, now);
        }
    }

    fn answered(&mut self, request: &Request) {
        self.out = self.out.saturating_sub(u32::from(request.cost > 0));
    }

    pub fn failed(&mut self, allotment: &Allotment, request: &Request) {
        if request.ahead > 0 {
            self.next = Next::Unanswered;
        }
        self.answered(request);
        if request.cost > 0 {
            self.end_probe(allotment);
        }
        // The report may have arrived: charge it twice rather than not at all.
        self.in_flight = self.in_flight.saturating_sub(request.spent);
        self.unsent = self.unsent.saturating_add(request.spent);
    }

    pub fn idle(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) -> Option<Request> {
        self.look(allotment, terms, now);
        self.demand.look(now, terms.slack());
        let plenty = self.in_plenty(terms) > 0 && !self.closed;
        let quiet =
            !terms.refills() && !plenty && now.saturating_since(self.busy) >= self.target(terms);
        if terms.mode() == Mode::Leased {
            if let Some(spare) = self.spare.take_if(|spare| quiet || now >= spare.open.until) {
                self.give_back(spare.open.units, spare.taken);
            }
            if self.seen > 0 && (quiet || now >= self.current.open.until) {
                self.end(allotment, terms, now);
            }
        }
        if plenty
            && self.next == Next::NotAsked
            && self.spare.is_none()
            && self.ends_soon(terms, now)
        {
            return Some(self.request(terms, 0, now));
        }
        let due = self.closed || now.saturating_since(self.reported_at) >= terms.slack();
        if !self.back.is_empty() || (self.unsent > 0 && due) {
            // A report also fetches the newest view of what is free; a node that returns units
            // wants nothing.
            let ahead = if self.next == Next::Asked || self.closed {
                0
            } else {
                terms.unreported()
            };
            return Some(self.say(0, ahead, now));
        }
        None
    }

    pub fn is_idle(&self, terms: &Terms) -> bool {
        // Units that were only seen to be free (`reported`) are not missing elsewhere.
        let holds = terms.mode() == Mode::Leased && (self.seen > 0 || self.spare.is_some());
        !holds
            && self.next != Next::Asked
            && self.back.is_empty()
            && self.unsent == 0
            && self.in_flight == 0
    }

    pub fn close(&mut self, allotment: &Allotment, terms: &Terms, now: Nanos) {
        self.closed = true;
        self.look(allotment, terms, now);
        if let Some(spare) = self.spare.take() {
            self.give_back(spare.open.units, spare.taken);
        }
        self.end(allotment, terms, now);
    }
}
