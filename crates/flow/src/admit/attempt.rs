//! An entry whose rules ask for more than a look at windows: what it takes on its way, and gives back if it is blocked.

use std::sync::Arc;

use tidegate_core::{
    Nanos,
    stats::{Look, Passed},
};

use super::{
    refusal::{Refusal, block},
    windows::{own_fits, system_fits, system_lets},
};
use crate::{
    blocked::{BlockKind, Blocked},
    compiled::Compiled,
    entry::Entry,
    node::Node,
    pass::{Extra, Pass},
    rules::{
        FlowRule, Origins, Relation,
        breaker::Verdict,
        flow::{Flow, Taken},
        hot_param::{Held, HotParam},
    },
    shared::Shared,
};

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
pub(super) struct Attempt<'e> {
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
    pub(super) fn new(entry: &'e Entry<'e>, now: Nanos, rules: Option<&'e Arc<Compiled>>) -> Self {
        let state = &*entry.resource.state;
        let shared = &*state.shared;
        let any = |is: &dyn Fn(&FlowRule) -> bool| rules.is_some_and(|r| r.flow.iter().any(|f| is(&f.rule)));
        let origin = |origin| {
            let named = || any(&|rule| matches!(&rule.origins, Origins::Only(of) if of == origin));
            let measured =
                || any(&|rule| rule.origins == Origins::Others && rule.relation == Relation::Direct);
            state.origins.node(origin, &shared.room, named, measured)
        };
        let context = |context| {
            let named = || any(&|rule| matches!(&rule.relation, Relation::Context(of) if of == context));
            state.contexts.node(context, &shared.room, named, || false)
        };
        let extra = Extra {
            origin: entry.origin.and_then(origin),
            context: entry.context.and_then(context),
            ..Extra::default()
        };
        Self { entry, now, rules, extra, params: Vec::new(), taken: Vec::new(), start: now }
    }

    pub(super) fn run(mut self) -> Result<Pass, Blocked> {
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
        &self.entry.resource.state.shared
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
        let at = self.now;
        let tell = self.entry.resource.tells(at);
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
