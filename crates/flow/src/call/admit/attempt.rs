//! An entry whose rules need more than a check of the windows: it takes state step by step and
//! gives it back if a rule blocks.

use std::sync::Arc;

use tidegate_core::{
    Nanos,
    stats::{Event, Passed},
};

use super::{
    refusal::{RuleRefusal, block},
    windows::{own_fits, system_fits, system_lets},
};
use crate::{
    call::{
        compiled::Compiled,
        entry::Entry,
        gate_state::GateState,
        pass::{Extra, Pass, Scope},
    },
    rules::{
        FlowRule, Origins, Relation,
        blocked::{BlockKind, Blocked},
        breaker::ProbeOutcome,
        flow::{Flow, TakenUnits},
        hot_param::{HeldShare, HotParam},
    },
    stats::{borrowed::Usage, node::Node},
};

/// Returns the node that a flow rule measures for an entry; `None` if the rule does not apply to
/// the entry.
fn measured<'n>(entry: &'n Entry<'_>, extra: &'n Extra, flow: &'n Flow) -> Option<&'n Arc<Node>> {
    let by_origin = match &flow.rule.origins {
        Origins::Any => false,
        Origins::Only(origin) if entry.origin == Some(origin) => true,
        Origins::Others
            if entry
                .origin
                .is_none_or(|from| flow.named.iter().all(|of| of != from)) =>
        {
            true
        }
        Origins::Only(_) | Origins::Others => return None,
    };
    match &flow.rule.relation {
        Relation::Related(_) => flow.related.as_ref(),
        Relation::Context(context) if entry.context == Some(context) => extra.context.as_ref(),
        Relation::Context(_) => None,
        Relation::Direct if by_origin => extra.origin.as_ref(),
        Relation::Direct => Some(&entry.resource.state.node),
    }
}

/// The windows that an entry counts in, in the order in which they are checked.
const SCOPES: [Scope; 4] = [
    Scope::Resource,
    Scope::Origin,
    Scope::Context,
    Scope::Inbound,
];

/// An entry in progress, with what it has taken so far.
pub(super) struct Attempt<'e> {
    entry: &'e Entry<'e>,
    now: Nanos,
    rules: Option<&'e Arc<Compiled>>,
    extra: Extra,
    params: Vec<(Arc<HotParam>, HeldShare)>,
    taken: Vec<(&'e Flow, TakenUnits)>,
    /// When the call may proceed: `now` unless a throttle has reserved a later place.
    start: Nanos,
}

impl<'e> Attempt<'e> {
    pub(super) fn new(entry: &'e Entry<'e>, now: Nanos, rules: Option<&'e Arc<Compiled>>) -> Self {
        let state = &*entry.resource.state;
        let shared = &*state.shared;
        let any = |is: &dyn Fn(&FlowRule) -> bool| {
            rules.is_some_and(|r| r.flow.iter().any(|f| is(&f.rule)))
        };
        let others =
            || any(&|rule| rule.origins == Origins::Others && rule.relation == Relation::Direct);
        let origin = |origin| {
            let named = || any(&|rule| matches!(&rule.origins, Origins::Only(of) if of == origin));
            state.origins.node(origin, &shared.room, named, others)
        };
        let context = |context| {
            let named =
                || any(&|rule| matches!(&rule.relation, Relation::Context(of) if of == context));
            state.contexts.node(context, &shared.room, named, || false)
        };
        let extra = Extra {
            origin: match entry.origin {
                Some(name) => origin(name),
                // A rule for all other origins also measures entries without an origin.
                None => others().then(|| state.origins.unnamed(&shared.room)),
            },
            context: entry.context.and_then(context),
            ..Extra::default()
        };
        Self {
            entry,
            now,
            rules,
            extra,
            params: Vec::new(),
            taken: Vec::new(),
            start: now,
        }
    }

    pub(super) fn run(mut self) -> Result<Pass, Blocked> {
        match self
            .check()
            .and_then(|()| self.take())
            .and_then(|()| self.commit())
        {
            Ok(()) => {
                if let Some(rules) = self.rules {
                    rules.count_watched(self.entry.units, self.now);
                }
                Ok(self.pass())
            }
            Err(refusal) => {
                self.give_back();
                Err(block(self.entry, self.now, refusal, Some(&self.extra)))
            }
        }
    }

    fn shared(&self) -> &'e GateState {
        &self.entry.resource.state.shared
    }

    fn own(&self) -> &'e Arc<Node> {
        &self.entry.resource.state.node
    }

    fn measured<'n>(&'n self, flow: &'n Flow) -> Option<&'n Arc<Node>> {
        measured(self.entry, &self.extra, flow)
    }

    /// Checks every rule in order, and takes what cannot be checked without taking it.
    fn check(&mut self) -> Result<(), RuleRefusal> {
        let Some(rules) = self.rules else {
            return Ok(());
        };
        let (now, n, shared) = (self.now, self.entry.units, self.shared());
        // If a window has no room, the call may borrow once every other rule admits it. A query
        // borrows nothing.
        let may_borrow = self.entry.prioritized && n > 0;
        for (rule, label) in &rules.authority {
            if !rule.lets(self.entry.origin) {
                return Err(RuleRefusal::new(BlockKind::Authority, label, None));
            }
        }
        if self.entry.inbound && !rules.system.is_empty() {
            system_lets(&rules.system, shared, n, now)?;
        }
        for param in &rules.params {
            let Some(arg) = param.pick(&self.entry.args, &self.entry.named) else {
                continue;
            };
            let held = param
                .take(arg, now, self.start, n)
                .map_err(|short| RuleRefusal::of_param(param, arg, n, &short))?;
            self.start = held.start;
            self.params.push((param.clone(), held));
        }
        for flow in &rules.flow {
            if let Some(node) = self.measured(flow) {
                node.look(now, may_borrow, |usage| {
                    flow.fits(node, usage, now, n, &shared.sample)
                })
                .and_then(|()| flow.peek(node, now, n, &shared.sample))
                .map_err(|wait| RuleRefusal::of_flow(flow, n, wait))?;
            }
        }
        if !rules.isolation.is_empty() || !rules.adaptive.is_empty() {
            self.own().look(now, may_borrow, |usage| {
                own_fits(rules, self.own(), usage, now, n, shared)
            })?;
        }
        self.enter_breakers(rules)
    }

    fn enter_breakers(&mut self, rules: &Compiled) -> Result<(), RuleRefusal> {
        let at = self.now;
        let tell = self.entry.resource.tells(at);
        for (index, breaker) in rules.breakers.iter().enumerate() {
            if self.entry.units == 0 {
                let blocks = |wait| RuleRefusal::new(BlockKind::Breaker, &breaker.label, wait);
                breaker.peek(at).map_err(blocks)?;
                continue;
            }
            let probe = breaker
                .enter(at, &tell)
                .map_err(|wait| RuleRefusal::new(BlockKind::Breaker, &breaker.label, wait))?;
            self.extra.probes.extend(probe.map(|probe| (index, probe)));
        }
        Ok(())
    }

    /// Takes what flow rules keep outside the windows.
    fn take(&mut self) -> Result<(), RuleRefusal> {
        let Some(rules) = self.rules else {
            return Ok(());
        };
        if self.entry.units == 0 {
            return Ok(());
        }
        for flow in rules.flow.iter().filter(|flow| flow.takes()) {
            let Some(node) = measured(self.entry, &self.extra, flow) else {
                continue;
            };
            let taken = flow
                .take(
                    node,
                    (self.now, self.start),
                    self.entry.units,
                    &self.shared().sample,
                )
                .map_err(|wait| RuleRefusal::of_flow(flow, self.entry.units, wait))?;
            let Some(taken) = taken else { continue };
            if let TakenUnits::Reservation(reservation) = &taken {
                self.start = reservation.start();
            }
            self.taken.push((flow, taken));
        }
        // A single throttle needs no agreement.
        if self.params.len() + self.taken.len() > 1 {
            self.start_together()
        } else {
            Ok(())
        }
    }

    /// Moves the places in all throttles to the latest of their starts. Otherwise the next call in
    /// a throttle with an earlier start could come too close to this one.
    fn start_together(&mut self) -> Result<(), RuleRefusal> {
        let (entry, mut agreed) = (self.entry, Nanos::ZERO);
        while agreed < self.start {
            agreed = self.start;
            for (param, held) in &mut self.params {
                let Some(arg) = param.pick(&entry.args, &entry.named) else {
                    continue;
                };
                param
                    .put_off(arg, held, entry.units, self.start)
                    .map_err(|short| RuleRefusal::of_param(param, arg, entry.units, &short))?;
                self.start = self.start.max(held.start);
            }
            for (flow, taken) in &mut self.taken {
                let TakenUnits::Reservation(reservation) = taken else {
                    continue;
                };
                let Some(node) = measured(entry, &self.extra, flow) else {
                    continue;
                };
                flow.put_off(node, reservation, self.start)
                    .map_err(|wait| RuleRefusal::of_flow(flow, self.entry.units, wait))?;
                self.start = self.start.max(reservation.start());
            }
        }
        Ok(())
    }

    /// Adds the units to the windows, or to future slots if that is needed and allowed.
    fn commit(&mut self) -> Result<(), RuleRefusal> {
        match self.pass_now() {
            Err(refusal) if self.entry.prioritized && self.entry.units > 0 && refusal.lends() => {
                self.borrow(refusal)
            }
            result => result,
        }
    }

    /// Adds the units to the windows. Each addition checks the window's own rules in the same step.
    fn pass_now(&mut self) -> Result<(), RuleRefusal> {
        let (now, n) = (self.now, self.entry.units);
        let mut done: [Option<(&Node, Passed)>; SCOPES.len()] = [None; SCOPES.len()];
        for (at, scope) in SCOPES.into_iter().enumerate() {
            let Some(node) = self.node_of(scope) else {
                continue;
            };
            match node.pass_if(now, n, |usage| self.scope_fits(scope, usage)) {
                Ok(admitted) => done[at] = Some((node, admitted)),
                Err(refusal) => {
                    for (node, admitted) in done.into_iter().flatten() {
                        node.take_back(n, admitted);
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    /// Reserves the units in the first future slot with room for them, and makes the call wait for
    /// that slot.
    ///
    /// # Errors
    /// `refusal` if no slot that begins soon enough has room, or the refusal of another rule.
    fn borrow(&mut self, refusal: RuleRefusal) -> Result<(), RuleRefusal> {
        let (now, shared) = (self.now, self.shared());
        let length = shared.layout.slot_nanos();
        let current = now.get() / length;
        for slot in current + 1..=current + u64::from(shared.layout.slots()) {
            let wait = Nanos::new(slot * length).saturating_since(now);
            if wait >= shared.max_priority_wait.into() {
                break;
            }
            match self.reserve(slot) {
                Ok(()) => {
                    let latest = self
                        .extra
                        .borrowed
                        .iter()
                        .map(|(_, slot)| slot * length)
                        .max();
                    self.start = self.start.max(Nanos::new(latest.unwrap_or(0)));
                    let together = self.start_together();
                    if together.is_err() {
                        self.give_borrowed_back();
                    }
                    return together.inspect(|()| self.count_occupied());
                }
                Err(other) if !other.lends() => return Err(other),
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Reserves the units in one slot in each window that the entry counts in.
    fn reserve(&mut self, slot: u64) -> Result<(), RuleRefusal> {
        for scope in SCOPES {
            let Some(node) = self.node_of(scope) else {
                continue;
            };
            match node.reserve(self.now, slot, self.entry.units, |usage| {
                self.scope_fits(scope, usage)
            }) {
                Ok(slot) => self.extra.borrowed.push((scope, slot)),
                Err(refusal) => {
                    self.give_borrowed_back();
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    fn give_borrowed_back(&mut self) {
        for (scope, slot) in std::mem::take(&mut self.extra.borrowed) {
            let Some(node) = self.node_of(scope) else {
                continue;
            };
            if !node.borrowed().give_back(slot, self.entry.units) {
                // The slot has begun and the units are counted as passed, so they end immediately.
                node.abandon(self.now, self.entry.units, Nanos::ZERO);
            }
        }
    }

    fn count_occupied(&self) {
        for scope in SCOPES {
            let node = self.node_of(scope);
            node.inspect(|node| node.note(self.now, Event::OccupiedPass, self.entry.units.into()));
        }
    }

    /// Returns the node of one of the windows that the entry counts in.
    fn node_of(&self, scope: Scope) -> Option<&Node> {
        let counts = scope != Scope::Inbound || self.entry.inbound;
        self.extra
            .node(scope, self.entry.resource)
            .filter(|_| counts)
    }

    /// Checks the rules that one window decides.
    fn scope_fits(&self, scope: Scope, usage: Usage<'_>) -> Result<(), RuleRefusal> {
        let (now, n, shared) = (self.now, self.entry.units, self.shared());
        let Some(rules) = self.rules else {
            return Ok(());
        };
        let node = match scope {
            Scope::Resource => return own_fits(rules, self.own(), usage, now, n, shared),
            Scope::Inbound => return system_fits(&rules.system, usage, n, now),
            Scope::Origin => self.extra.origin.as_ref(),
            Scope::Context => self.extra.context.as_ref(),
        };
        let Some(node) = node else { return Ok(()) };
        for flow in &rules.flow {
            let is_its = !matches!(flow.rule.relation, Relation::Related(_))
                && self
                    .measured(flow)
                    .is_some_and(|measured| Arc::ptr_eq(measured, node));
            if is_its {
                flow.fits(node, usage, now, n, &shared.sample)
                    .map_err(|wait| RuleRefusal::of_flow(flow, n, wait))?;
            }
        }
        Ok(())
    }

    fn give_back(&mut self) {
        let units = self.entry.units;
        for (flow, taken) in self.taken.drain(..).rev() {
            if let Some(node) = measured(self.entry, &self.extra, flow) {
                flow.give_back(node, units, &taken);
            }
        }
        for (param, held) in self.params.drain(..) {
            param.give_back(&held, units);
        }
        for (at, probe) in self.extra.probes.drain(..) {
            let breaker = self.rules.and_then(|rules| rules.breakers.get(at));
            let tell = self.entry.resource.tells(self.now);
            breaker.inspect(|breaker| breaker.settle(probe, ProbeOutcome::None, self.now, &tell));
        }
    }

    fn pass(self) -> Pass {
        let Self {
            entry,
            now,
            rules,
            mut extra,
            params,
            start,
            ..
        } = self;
        extra.held = params
            .into_iter()
            .filter(|(param, _)| param.holds())
            .collect();
        if !extra.probes.is_empty() {
            extra.rules = rules.cloned();
        }
        let mut pass = Pass::new(start, entry.units, entry.inbound);
        pass.delay = start.saturating_since(now).get();
        let is_bare = extra.origin.is_none()
            && extra.context.is_none()
            && extra.probes.is_empty()
            && extra.held.is_empty()
            && extra.borrowed.is_empty();
        pass.extra = (!is_bare).then(|| Box::new(extra));
        pass.learns = rules.is_some_and(|rules| rules.learns());
        pass
    }
}
