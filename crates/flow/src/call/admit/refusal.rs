//! Blocked entries.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Nanos, stats::Event};

use crate::{
    call::{entry::Entry, pass::Extra, signals},
    rules::{
        FlowRule, Measure,
        arg::Arg,
        blocked::{BlockKind, BlockReason, Blocked},
        flow::Flow,
        hot_param::{HotParam, Short},
    },
    stats::node::Node,
};

/// The rule that blocked, and the time after which to retry.
pub(super) struct RuleRefusal {
    kind: BlockKind,
    reason: BlockReason,
    rule: Arc<str>,
    retry_after: Option<Duration>,
    /// Whether the rule's window only lacks room now and lends from its later slots.
    lends: bool,
}

impl RuleRefusal {
    pub(super) fn new(kind: BlockKind, rule: &Arc<str>, retry_after: Option<Duration>) -> Self {
        Self {
            kind,
            reason: BlockReason::of(kind),
            rule: rule.clone(),
            retry_after,
            lends: false,
        }
    }

    pub(super) fn of_flow(flow: &Flow, units: u32, retry_after: Option<Duration>) -> Self {
        let FlowRule {
            measure, threshold, ..
        } = &flow.rule;
        let reason = reason(*measure == Measure::InFlight, units, threshold.fixed());
        Self {
            lends: flow.lends(),
            reason,
            ..Self::new(BlockKind::Flow, &flow.label, retry_after)
        }
    }

    pub(super) fn of_param(param: &HotParam, arg: &Arg<'_>, units: u32, short: &Short) -> Self {
        let reason = if short.is_full {
            BlockReason::TableFull
        } else {
            reason(param.holds(), units, Some(param.most(arg)))
        };
        Self {
            reason,
            ..Self::new(BlockKind::HotParam, &param.label, short.wait)
        }
    }

    /// Whether a prioritized call may borrow instead.
    pub(super) const fn lends(&self) -> bool {
        self.lends
    }
}

fn reason(in_flight: bool, units: u32, most: Option<u64>) -> BlockReason {
    match most {
        Some(most) if u64::from(units) > most => BlockReason::TooLarge,
        _ if in_flight => BlockReason::InFlight,
        _ => BlockReason::Quota,
    }
}

/// Counts a blocked entry and returns its error.
#[cold]
pub(super) fn block(
    entry: &Entry<'_>,
    now: Nanos,
    refusal: RuleRefusal,
    extra: Option<&Extra>,
) -> Blocked {
    let state = &*entry.resource.state;
    let shared = &*state.shared;
    let units = u64::from(entry.units);
    let count = |node: &Node| node.note(now, Event::Block, units);
    count(&state.node);
    if entry.inbound {
        count(&shared.inbound);
    }
    if let Some(extra) = extra {
        extra
            .origin
            .iter()
            .chain(&extra.context)
            .for_each(|node| count(node));
    }
    let RuleRefusal {
        kind,
        reason,
        rule,
        retry_after,
        ..
    } = refusal;
    state.blocked.add(reason, units);
    // By the name of the state: callers can make up names, but the number of states is bounded.
    signals::blocked(&state.name, (kind, reason), &rule, units);
    Blocked {
        kind,
        reason,
        rule,
        resource: entry.resource.shared_name(),
        retry_after,
    }
}
