//! The decision on an entry: all rules of the resource, in their order, and then everything taken in one go.
//!
//! What only time and counts decide is first looked at in the order of the rules, so that the first that blocks is the
//! one that is named. Then what lies outside the windows is taken (a value's share, a throttle's place, a breaker's
//! probe), and last the windows themselves: each by one compare-and-swap that sees its rules kept, the resource's own
//! first. Where another thread was faster, all that was taken is given back. So a blocked entry takes nothing, and no
//! threshold is ever passed.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Nanos,
    stats::{Event, Look, Passed},
};

use crate::{
    blocked::{BlockKind, Blocked},
    compiled::Compiled,
    entry::Entry,
    gate::Shared,
    guard::{Extra, Pass},
    node::Node,
    resource::{Kind, Resource},
    rules::{
        BreakerState, FlowRule, Origins, Relation, StateChange,
        breaker::{Breaker, Verdict},
        flow::{Flow, Taken},
        hot_param::{Held, HotParam},
        system::System,
    },
};

/// Which rule blocked, and for how long.
pub(crate) struct Refusal {
    kind: BlockKind,
    rule: Arc<str>,
    retry_after: Option<Duration>,
}

impl Refusal {
    fn new(kind: BlockKind, rule: &Arc<str>, retry_after: Option<Duration>) -> Self {
        Self { kind, rule: rule.clone(), retry_after }
    }
}

/// An entry from nobody in particular, without arguments.
#[inline]
pub(crate) fn admit_plain(resource: &Resource, units: u32, inbound: bool) -> Result<Pass, Blocked> {
    let Resource { shared, state, .. } = resource;
    let now = shared.timer.now();
    match state.kind(shared) {
        Kind::None => state.node.window().pass(now, units),
        Kind::Plain if state.pass_far(now, units) => {}
        Kind::PlainOutbound if !inbound && state.pass_far(now, units) => {}
        _ => return admit_by_rules(resource, units, inbound, now),
    }
    if inbound {
        shared.inbound.window().pass(now, units);
    }
    Ok(Pass::new(now, units, inbound))
}

/// An entry with whatever options.
pub(crate) fn admit(entry: &Entry<'_>) -> Result<Pass, Blocked> {
    let Resource { shared, state, .. } = entry.resource;
    let now = shared.timer.now();
    let rules = (state.kind(shared) != Kind::None).then(|| state.rules());
    Attempt::new(entry, now, rules.as_ref().and_then(|rules| rules.as_ref())).run()
}

fn admit_by_rules(resource: &Resource, units: u32, inbound: bool, now: Nanos) -> Result<Pass, Blocked> {
    let Resource { shared, state, .. } = resource;
    let rules = state.rules();
    let Some(rules) = rules.as_ref() else {
        return admit(&Entry::with(resource, units, inbound)); // Unloaded in between.
    };
    if !rules.is_simple || !rules.breakers.iter().all(|breaker| breaker.is_closed()) {
        return Attempt::new(&Entry::with(resource, units, inbound), now, Some(rules)).run();
    }
    let system = if inbound { &rules.system[..] } else { &[] };
    match admit_simply(resource, rules, system, units, now) {
        Ok(()) => {
            rules.count_watched(units, now);
            if inbound && system.is_empty() {
                shared.inbound.window().pass(now, units);
            }
            let mut pass = Pass::new(now, units, inbound);
            pass.rules = rules.learns().then(|| rules.clone());
            Ok(pass)
        }
        Err(refusal) => Err(block(&Entry::with(resource, units, inbound), now, refusal, None)),
    }
}

/// One step on the resource's window, and one on that of all that comes in where system rules look at it.
#[inline]
fn admit_simply(
    resource: &Resource,
    rules: &Compiled,
    system: &[System],
    units: u32,
    now: Nanos,
) -> Result<(), Refusal> {
    let Resource { shared, state, .. } = resource;
    let own = &*state.node;
    if !system.is_empty() {
        system_lets(system, shared, units, now)?;
    }
    let passed =
        own.window().pass_if(now, units, |look| own_fits(rules, &state.node, look, now, units, shared))?;
    if !system.is_empty() {
        let inside =
            shared.inbound.window().pass_if(now, units, |look| system_fits(system, look, units, now));
        inside.inspect_err(|_| own.window().take_back(units, passed))?;
    }
    Ok(())
}

/// Whether the system rules would let the units in.
fn system_lets(system: &[System], shared: &Shared, units: u32, now: Nanos) -> Result<(), Refusal> {
    let inbound = &shared.inbound;
    inbound.window().look(now, |look| system_fits(system, look, units, now))?;
    for system in system {
        if !system.is_well(inbound, inbound.in_flight(), now, &shared.sample) {
            return Err(Refusal::new(BlockKind::System, &system.label, None));
        }
    }
    Ok(())
}

/// The system rules that the window of all that comes in decides.
#[inline]
fn system_fits(system: &[System], look: Look<'_>, units: u32, now: Nanos) -> Result<(), Refusal> {
    for system in system {
        system.fits(look, now, units).map_err(|wait| Refusal::new(BlockKind::System, &system.label, wait))?;
    }
    Ok(())
}

/// The rules that the resource's own window decides.
#[inline]
fn own_fits(
    rules: &Compiled,
    own: &Arc<Node>,
    look: Look<'_>,
    now: Nanos,
    n: u32,
    shared: &Shared,
) -> Result<(), Refusal> {
    for flow in &rules.flow {
        if flow.rule.origins == Origins::Any && flow.rule.relation == Relation::Direct {
            flow.fits(own, look, now, n, &shared.sample)
                .map_err(|wait| Refusal::new(BlockKind::Flow, &flow.label, wait))?;
        }
    }
    for (rule, label) in &rules.isolation {
        if look.in_flight() + u64::from(n) > rule.threshold.units(&shared.sample) {
            return Err(Refusal::new(BlockKind::Isolation, label, None));
        }
    }
    for adaptive in &rules.adaptive {
        if look.in_flight() + u64::from(n) > adaptive.units() {
            return Err(Refusal::new(BlockKind::Adaptive, &adaptive.label, None));
        }
    }
    Ok(())
}

#[cold]
fn block(entry: &Entry<'_>, now: Nanos, refusal: Refusal, extra: Option<&Extra>) -> Blocked {
    let Resource { shared, state, .. } = entry.resource;
    let units = u64::from(entry.units);
    let count = |node: &Node| node.window().add(now, Event::Block, units);
    count(&state.node);
    if entry.inbound {
        count(&shared.inbound);
    }
    if let Some(extra) = extra {
        extra.origin.iter().chain(&extra.context).for_each(|node| count(node));
    }
    let Refusal { kind, rule, retry_after } = refusal;
    Blocked { kind, rule, resource: entry.resource.shared_name(), retry_after }
}

/// The node that a flow rule measures for an entry; `None` where it is not about it.
fn measured<'n>(entry: &'n Entry<'_>, extra: &'n Extra, flow: &'n Flow) -> Option<&'n Arc<Node>> {
    let by_origin = match &flow.rule.origins {
        Origins::Any => false,
        Origins::Only(origin) if entry.origin == Some(origin) => true,
        Origins::Others if entry.origin.is_some_and(|from| flow.named.iter().all(|of| of != from)) => true,
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

/// An entry on its way, with what it has taken so far.
struct Attempt<'e> {
    entry: &'e Entry<'e>,
    now: Nanos,
    rules: Option<&'e Arc<Compiled>>,
    extra: Extra,
    params: Vec<(Arc<HotParam>, Held)>,
    taken: Vec<(&'e Flow, Taken)>,
    /// When the call may go ahead: `now` unless a throttle has given it a later place.
    start: Nanos,
}

impl<'e> Attempt<'e> {
    fn new(entry: &'e Entry<'e>, now: Nanos, rules: Option<&'e Arc<Compiled>>) -> Self {
        let Resource { shared, state, .. } = entry.resource;
        let any = |is: &dyn Fn(&FlowRule) -> bool| rules.is_some_and(|r| r.flow.iter().any(|f| is(&f.rule)));
        let origin = |origin| {
            let named = || any(&|rule| matches!(&rule.origins, Origins::Only(of) if of == origin));
            let measured =
                || any(&|rule| rule.origins == Origins::Others && rule.relation == Relation::Direct);
            state.origins.node(origin, shared, named, measured)
        };
        let context = |context| {
            let named = || any(&|rule| matches!(&rule.relation, Relation::Context(of) if of == context));
            state.contexts.node(context, shared, named, || false)
        };
        let extra = Extra {
            origin: entry.origin.and_then(origin),
            context: entry.context.and_then(context),
            ..Extra::default()
        };
        Self { entry, now, rules, extra, params: Vec::new(), taken: Vec::new(), start: now }
    }

    fn run(mut self) -> Result<Pass, Blocked> {
        match self.check().and_then(|()| self.take()).and_then(|()| self.commit()) {
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

    fn shared(&self) -> &'e Shared {
        &self.entry.resource.shared
    }

    fn own(&self) -> &'e Arc<Node> {
        &self.entry.resource.state.node
    }

    fn measured<'n>(&'n self, flow: &'n Flow) -> Option<&'n Arc<Node>> {
        measured(self.entry, &self.extra, flow)
    }

    /// Looks at every rule in order; takes what cannot be looked at without taking.
    fn check(&mut self) -> Result<(), Refusal> {
        let Some(rules) = self.rules else { return Ok(()) };
        let (now, n, shared) = (self.now, self.entry.units, self.shared());
        for (rule, label) in &rules.authority {
            if !rule.lets(self.entry.origin) {
                return Err(Refusal::new(BlockKind::Authority, label, None));
            }
        }
        if self.entry.inbound && !rules.system.is_empty() {
            system_lets(&rules.system, shared, n, now)?;
        }
        for param in &rules.params {
            let Some(arg) = param.pick(&self.entry.args, &self.entry.named) else { continue };
            let held = param
                .take(arg, now, self.start, n)
                .map_err(|wait| Refusal::new(BlockKind::HotParam, &param.label, wait))?;
            self.start = held.start;
            self.params.push((param.clone(), held));
        }
        for flow in &rules.flow {
            if let Some(node) = self.measured(flow) {
                node.window()
                    .look(now, |look| flow.fits(node, look, now, n, &shared.sample))
                    .and_then(|()| flow.peek(node, now, n, &shared.sample))
                    .map_err(|wait| Refusal::new(BlockKind::Flow, &flow.label, wait))?;
            }
        }
        if !rules.isolation.is_empty() || !rules.adaptive.is_empty() {
            self.own().window().look(now, |look| own_fits(rules, self.own(), look, now, n, shared))?;
        }
        self.enter_breakers(rules)
    }

    fn enter_breakers(&mut self, rules: &Compiled) -> Result<(), Refusal> {
        let (resource, at) = (self.entry.resource, self.now);
        let tell = |breaker: &Breaker, from: BreakerState, to: BreakerState| {
            resource.shared.tell(&StateChange {
                resource: resource.name(),
                rule: &breaker.rule,
                from,
                to,
                at,
            });
        };
        for (index, breaker) in rules.breakers.iter().enumerate() {
            if self.entry.units == 0 {
                let blocks = |wait| Refusal::new(BlockKind::Breaker, &breaker.label, wait);
                breaker.peek(at).map_err(blocks)?;
                continue;
            }
            let probe = breaker
                .enter(at, &tell)
                .map_err(|wait| Refusal::new(BlockKind::Breaker, &breaker.label, wait))?;
            self.extra.probes.extend(probe.map(|probe| (index, probe)));
        }
        Ok(())
    }

    /// Takes what flow rules keep beside the windows.
    fn take(&mut self) -> Result<(), Refusal> {
        let Some(rules) = self.rules else { return Ok(()) };
        if self.entry.units == 0 {
            return Ok(());
        }
        for flow in rules.flow.iter().filter(|flow| flow.takes()) {
            let Some(node) = measured(self.entry, &self.extra, flow) else { continue };
            let taken = flow
                .take(node, (self.now, self.start), self.entry.units, &self.shared().sample)
                .map_err(|wait| Refusal::new(BlockKind::Flow, &flow.label, wait))?;
            let Some(taken) = taken else { continue };
            if let Taken::Place(place) = &taken {
                self.start = place.start();
            }
            self.taken.push((flow, taken));
        }
        // One alone agrees with itself.
        if self.params.len() + self.taken.len() > 1 { self.start_together() } else { Ok(()) }
    }

    /// Gives the places in all throttles one start, the latest: in a throttle that had given an earlier one the next
    /// call would come too close to this.
    fn start_together(&mut self) -> Result<(), Refusal> {
        let (entry, mut agreed) = (self.entry, Nanos::ZERO);
        while agreed < self.start {
            agreed = self.start;
            for (param, held) in &mut self.params {
                let Some(arg) = param.pick(&entry.args, &entry.named) else { continue };
                param
                    .put_off(arg, held, entry.units, self.start)
                    .map_err(|wait| Refusal::new(BlockKind::HotParam, &param.label, wait))?;
                self.start = self.start.max(held.start);
            }
            for (flow, taken) in &mut self.taken {
                let Taken::Place(place) = taken else { continue };
                let Some(node) = measured(entry, &self.extra, flow) else { continue };
                flow.put_off(node, place, self.start)
                    .map_err(|wait| Refusal::new(BlockKind::Flow, &flow.label, wait))?;
                self.start = self.start.max(place.start());
            }
        }
        Ok(())
    }

    /// Lets the units into the windows, each of which sees its own rules kept.
    fn commit(&mut self) -> Result<(), Refusal> {
        let (now, n, shared) = (self.now, self.entry.units, self.shared());
        let mut done: [Option<(&Node, Passed)>; 3] = [None, None, None];
        let own = self.own();
        let passed = own.window().pass_if(now, n, |look| match self.rules {
            Some(rules) => own_fits(rules, own, look, now, n, shared),
            None => Ok(()),
        })?;
        done[0] = Some((own, passed));
        let result = (|| {
            for (at, node) in [(1, &self.extra.origin), (2, &self.extra.context)] {
                let Some(node) = node else { continue };
                done[at] = Some((node, node.window().pass_if(now, n, |look| self.part_fits(node, look))?));
            }
            if self.entry.inbound {
                let system = self.rules.map_or(&[][..], |rules| &rules.system);
                shared.inbound.window().pass_if(now, n, |look| system_fits(system, look, n, now))?;
            }
            Ok(())
        })();
        if result.is_err() {
            for (node, passed) in done.into_iter().flatten() {
                node.window().take_back(n, passed);
            }
        }
        result
    }

    /// The flow rules that an origin's or a context's window decides.
    fn part_fits(&self, node: &Arc<Node>, look: Look<'_>) -> Result<(), Refusal> {
        for flow in self.rules.iter().flat_map(|rules| &rules.flow) {
            let is_its = !matches!(flow.rule.relation, Relation::Related(_))
                && self.measured(flow).is_some_and(|measured| Arc::ptr_eq(measured, node));
            if is_its {
                flow.fits(node, look, self.now, self.entry.units, &self.shared().sample)
                    .map_err(|wait| Refusal::new(BlockKind::Flow, &flow.label, wait))?;
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
            // Giving a place back changes no state: nobody is told.
            breaker.inspect(|breaker| breaker.settle(probe, Verdict::None, self.now, &|_, _, _| ()));
        }
    }

    fn pass(self) -> Pass {
        let Self { entry, now, rules, mut extra, params, start, .. } = self;
        extra.held = params.into_iter().filter(|(param, _)| param.holds()).collect();
        let mut pass = Pass::new(start, entry.units, entry.inbound);
        pass.delay = start.saturating_since(now).get();
        let is_bare = extra.origin.is_none()
            && extra.context.is_none()
            && extra.probes.is_empty()
            && extra.held.is_empty();
        pass.extra = (!is_bare).then(|| Box::new(extra));
        pass.rules = rules.filter(|rules| rules.learns()).cloned();
        pass
    }
}
