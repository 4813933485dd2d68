//! The end of a call: it updates statistics and breakers, and releases what the call held.

use crate::{
    call::{
        pass::{Outcome, Pass, Scope},
        resource::Resource,
    },
    rules::{adaptive::CallSample, breaker::ProbeOutcome},
    stats::node::Node,
};

#[inline]
pub(crate) fn leave(resource: &Resource, pass: &mut Pass) {
    pass.settle();
    let now = resource.state.shared.timer.now();
    let rt = now.saturating_since(pass.started);
    let failed = pass.outcome == Outcome::Failed;
    let units = pass.units;
    let extra = pass.extra.as_deref();
    let in_force = pass.learns.then(|| resource.state.rules());
    let rules = match extra.and_then(|extra| extra.rules.as_ref()) {
        None => in_force.as_ref().and_then(|rules| rules.as_ref()),
        passed => passed,
    };
    // Read before this call is subtracted.
    let in_flight = rules
        .filter(|rules| !rules.adaptive.is_empty())
        .map(|_| resource.state.node.in_flight());
    let end = |scope: Scope, node: &Node| {
        let borrowed = extra.and_then(|extra| extra.borrowed.iter().find(|(of, _)| *of == scope));
        if let Some((_, slot)) = borrowed {
            node.settle(now);
            if node.borrowed().give_back(*slot, units) {
                // The call ends before its slot has begun. If it was cancelled, it has not passed;
                // otherwise it passed early.
                if pass.outcome == Outcome::Cancelled {
                    return;
                }
                node.pass(now, units);
            }
        }
        match pass.outcome {
            Outcome::Cancelled => node.abandon(now, units, rt),
            Outcome::Well | Outcome::Failed => node.complete(now, units, rt, failed),
        }
    };
    // The reverse of the entry's order: after a short call its last cache line is still this
    // processor's.
    if pass.inbound {
        end(Scope::Inbound, &resource.state.shared.inbound);
    }
    end(Scope::Resource, &resource.state.node);
    if let Some(extra) = extra {
        extra
            .origin
            .iter()
            .for_each(|node| end(Scope::Origin, node));
        extra
            .context
            .iter()
            .for_each(|node| end(Scope::Context, node));
        for (param, held) in &extra.held {
            param.leave(held, units);
        }
    }
    let Some(rules) = rules else { return };
    if pass.outcome != Outcome::Cancelled
        && let Some(in_flight) = in_flight
    {
        for adaptive in &rules.adaptive {
            adaptive.learn(
                now,
                &CallSample {
                    rt,
                    in_flight,
                    failed,
                },
            );
        }
    }
    let tell = resource.tells(now);
    for (at, breaker) in rules.breakers.iter().enumerate() {
        let bad = breaker.is_bad(rt, failed);
        let probe = extra.and_then(|extra| extra.probes.iter().find(|(of, _)| *of == at));
        match (probe, pass.outcome) {
            (Some((_, probe)), Outcome::Cancelled) => {
                breaker.settle(*probe, ProbeOutcome::None, now, &tell);
            }
            (Some((_, probe)), _) if bad => breaker.settle(*probe, ProbeOutcome::Bad, now, &tell),
            (Some((_, probe)), _) => breaker.settle(*probe, ProbeOutcome::Good, now, &tell),
            (None, Outcome::Cancelled) => {}
            (None, _) => breaker.record(pass.started, now, bad, &tell),
        }
    }
}
