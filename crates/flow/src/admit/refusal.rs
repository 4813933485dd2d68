//! Blocked entries.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Nanos, stats::Event};

use crate::{
    blocked::{BlockKind, Blocked},
    entry::Entry,
    node::Node,
    pass::Extra,
    rules::flow::Flow,
    signals,
};

/// The rule that blocked, and the time after which to retry.
pub(super) struct Refusal {
    kind: BlockKind,
    rule: Arc<str>,
    retry_after: Option<Duration>,
    /// Whether the rule's window only lacks room now and lends from its later slots.
    lends: bool,
}

impl Refusal {
    pub(super) fn new(kind: BlockKind, rule: &Arc<str>, retry_after: Option<Duration>) -> Self {
        Self { kind, rule: rule.clone(), retry_after, lends: false }
    }

    pub(super) fn of_flow(flow: &Flow, retry_after: Option<Duration>) -> Self {
        Self { lends: flow.lends(), ..Self::new(BlockKind::Flow, &flow.label, retry_after) }
    }

    /// Whether a prioritized call may borrow instead.
    pub(super) const fn lends(&self) -> bool {
        self.lends
    }
}

/// Counts a blocked entry and returns its error.
#[cold]
pub(super) fn block(entry: &Entry<'_>, now: Nanos, refusal: Refusal, extra: Option<&Extra>) -> Blocked {
    let state = &*entry.resource.state;
    let shared = &*state.shared;
    let units = u64::from(entry.units);
    let count = |node: &Node| node.note(now, Event::Block, units);
    count(&state.node);
    if entry.inbound {
        count(&shared.inbound);
    }
    if let Some(extra) = extra {
        extra.origin.iter().chain(&extra.context).for_each(|node| count(node));
    }
    let Refusal { kind, rule, retry_after, .. } = refusal;
    // By the name of the state: callers can make up names, but the number of states is bounded.
    signals::blocked(&state.name, kind, &rule, units);
    Blocked { kind, rule, resource: entry.resource.shared_name(), retry_after }
}
