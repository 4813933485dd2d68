//! The end of a call: statistics, breakers, and what it held.

use crate::{
    node::Node,
    pass::{Outcome, Pass},
    resource::Resource,
    rules::{CallSample, breaker::Verdict},
};

#[inline]
pub(crate) fn leave(resource: &Resource, pass: &mut Pass) {
    pass.settle();
    let now = resource.state.shared.timer.now();
    let rt = now.saturating_since(pass.started);
    let failed = pass.outcome == Outcome::Failed;
    let units = pass.units;
    let in_flight = || resource.state.node.in_flight();
    // Before this call is out of it.
    let in_flight = pass.rules.as_ref().filter(|rules| !rules.adaptive.is_empty()).map(|_| in_flight());
    let end = |node: &Node| match pass.outcome {
        Outcome::Cancelled => node.window().abandon(now, units, rt),
        Outcome::Well | Outcome::Failed => node.window().complete(now, units, rt, failed),
    };
    end(&resource.state.node);
    if pass.inbound {
        end(&resource.state.shared.inbound);
    }
    let extra = pass.extra.as_deref();
    if let Some(extra) = extra {
        extra.origin.iter().chain(&extra.context).for_each(|node| end(node));
        for (param, held) in &extra.held {
            param.leave(held, units);
        }
    }
    let Some(rules) = &pass.rules else { return };
    if pass.outcome != Outcome::Cancelled
        && let Some(in_flight) = in_flight
    {
        for adaptive in &rules.adaptive {
            adaptive.learn(&CallSample { rt: rt.into(), in_flight, failed });
        }
    }
    let tell = resource.tells(now);
    for (at, breaker) in rules.breakers.iter().enumerate() {
        let bad = breaker.is_bad(rt, failed);
        let probe = extra.and_then(|extra| extra.probes.iter().find(|(of, _)| *of == at));
        match (probe, pass.outcome) {
            (Some((_, probe)), Outcome::Cancelled) => breaker.settle(*probe, Verdict::None, now, &tell),
            (Some((_, probe)), _) if bad => breaker.settle(*probe, Verdict::Bad, now, &tell),
            (Some((_, probe)), _) => breaker.settle(*probe, Verdict::Good, now, &tell),
            (None, Outcome::Cancelled) => {}
            (None, _) => breaker.record(pass.started, now, bad, &tell),
        }
    }
}
