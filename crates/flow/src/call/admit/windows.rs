//! The rules that the windows decide: the resource's own window and the inbound window.

use std::sync::Arc;

use tidegate_core::Nanos;

use super::refusal::RuleRefusal;
use crate::{
    call::{compiled::Compiled, gate_state::GateState},
    rules::{Origins, Relation, blocked::BlockKind, system::System},
    stats::{borrowed::Usage, node::Node},
};

/// Checks whether the system rules would admit the units.
pub(super) fn system_lets(
    system: &[System],
    shared: &GateState,
    units: u32,
    now: Nanos,
) -> Result<(), RuleRefusal> {
    let inbound = &shared.inbound;
    inbound.look(now, false, |usage| system_fits(system, usage, units, now))?;
    for system in system {
        if !system.is_well(inbound, inbound.in_flight(), now, &shared.sample) {
            return Err(RuleRefusal::new(BlockKind::System, &system.label, None));
        }
    }
    Ok(())
}

/// Checks the system rules that the inbound window decides.
#[inline]
pub(super) fn system_fits(
    system: &[System],
    usage: Usage<'_>,
    units: u32,
    now: Nanos,
) -> Result<(), RuleRefusal> {
    for system in system {
        system
            .fits(usage, now, units)
            .map_err(|wait| RuleRefusal::new(BlockKind::System, &system.label, wait))?;
    }
    Ok(())
}

/// Checks the rules that the resource's own window decides.
#[inline]
pub(super) fn own_fits(
    rules: &Compiled,
    own: &Arc<Node>,
    usage: Usage<'_>,
    now: Nanos,
    n: u32,
    shared: &GateState,
) -> Result<(), RuleRefusal> {
    for flow in &rules.flow {
        if flow.rule.origins == Origins::Any && flow.rule.relation == Relation::Direct {
            flow.fits(own, usage, now, n, &shared.sample)
                .map_err(|wait| RuleRefusal::of_flow(flow, n, wait))?;
        }
    }
    for (rule, label) in &rules.isolation {
        if !usage.in_flight_fits(n, rule.threshold.units(&shared.sample)) {
            return Err(RuleRefusal::new(BlockKind::Isolation, label, None));
        }
    }
    for adaptive in &rules.adaptive {
        if !usage.in_flight_fits(n, adaptive.units()) {
            adaptive.note_blocked(n);
            return Err(RuleRefusal::new(BlockKind::Adaptive, &adaptive.label, None));
        }
    }
    Ok(())
}
