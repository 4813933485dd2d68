//! The decision on an entry: check all rules of the resource in order, then take everything.
//!
//! The first pass checks every rule that depends only on time and counts, in the order of the
//! rules, so that the first rule that blocks is the one reported. The second pass takes everything
//! outside the windows: a value's share, a throttle's place, a breaker's permit. The last pass adds
//! the units to the windows, the resource's own window first. Each addition is one compare-and-swap
//! that also checks the window's rules. If another thread was faster, the entry gives back
//! everything that it took. So a blocked entry consumes nothing, and no threshold is exceeded.

mod attempt;
mod refusal;
mod windows;

use tidegate_core::Nanos;

use crate::{
    call::{compiled::Compiled, entry::Entry, pass::Pass, resource::Resource, state::RulesKind},
    rules::{blocked::Blocked, system::System},
};
use attempt::Attempt;
use refusal::{RuleRefusal, block};
use windows::{own_fits, system_fits, system_lets};

/// Admits an entry without an origin and without arguments.
#[inline]
pub(crate) fn admit_plain(resource: &Resource, units: u32, inbound: bool) -> Result<Pass, Blocked> {
    let state = &*resource.state;
    let shared = &*state.shared;
    let now = shared.timer.now();
    let is_admitted = match state.kind() {
        RulesKind::None => {
            state.node.pass(now, units);
            true
        }
        RulesKind::Plain => state.pass_far(now, units, inbound),
        RulesKind::Any => false,
    };
    if !is_admitted {
        return admit_by_rules(resource, units, inbound, now);
    }
    if inbound {
        shared.inbound.pass(now, units);
    }
    Ok(Pass::new(now, units, inbound))
}

/// Admits an entry with any options.
pub(crate) fn admit(entry: &Entry<'_>) -> Result<Pass, Blocked> {
    let state = &*entry.resource.state;
    let shared = &*state.shared;
    let now = shared.timer.now();
    let rules = (state.kind() != RulesKind::None).then(|| state.rules());
    Attempt::new(entry, now, rules.as_ref().and_then(|rules| rules.as_ref())).run()
}

fn admit_by_rules(
    resource: &Resource,
    units: u32,
    inbound: bool,
    now: Nanos,
) -> Result<Pass, Blocked> {
    let state = &*resource.state;
    let rules = state.rules();
    let Some(rules) = rules.as_ref() else {
        return admit(&Entry::with(resource, units, inbound)); // The rules were unloaded in between.
    };
    if !rules.is_simple || !rules.breakers.iter().all(|breaker| breaker.is_closed()) {
        return Attempt::new(&Entry::with(resource, units, inbound), now, Some(rules)).run();
    }
    let is_far = rules
        .far
        .is_some_and(|far| state.pass_both_far(now, units, inbound, far));
    if !is_far {
        let system = if inbound { &rules.system[..] } else { &[] };
        admit_simply(resource, rules, system, units, now)
            .map_err(|refusal| block(&Entry::with(resource, units, inbound), now, refusal, None))?;
        if inbound && system.is_empty() {
            state.shared.inbound.pass(now, units);
        }
    }
    rules.count_watched(units, now);
    let mut pass = Pass::new(now, units, inbound);
    pass.learns = rules.learns();
    Ok(pass)
}

/// Takes one step on the resource's window, and one on the inbound window if system rules apply.
#[inline]
fn admit_simply(
    resource: &Resource,
    rules: &Compiled,
    system: &[System],
    units: u32,
    now: Nanos,
) -> Result<(), RuleRefusal> {
    let state = &*resource.state;
    let shared = &*state.shared;
    let own = &*state.node;
    if !system.is_empty() {
        system_lets(system, shared, units, now)?;
    }
    let admitted = own.pass_if(now, units, |usage| {
        own_fits(rules, &state.node, usage, now, units, shared)
    })?;
    if !system.is_empty() {
        let inside = shared
            .inbound
            .pass_if(now, units, |usage| system_fits(system, usage, units, now));
        inside.inspect_err(|_| own.take_back(units, admitted))?;
    }
    Ok(())
}
