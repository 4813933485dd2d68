//! A gate's refusals and its breakers' changes, as `tracing` events (feature `events`) and counters
//! of the `metrics` facade (feature `metrics`). Without the features these functions are empty.

use crate::{BlockKind, BlockReason, rules::StateChange};

/// Some units of a resource were blocked.
#[cfg_attr(
    not(feature = "events"),
    allow(unused_variables, reason = "the counter has no label for the rule")
)]
#[inline]
pub(crate) fn blocked(
    resource: &str,
    (kind, reason): (BlockKind, BlockReason),
    rule: &str,
    units: u64,
) {
    #[cfg(feature = "events")]
    tracing::debug!(target: "tidegate_flow", resource, kind = kind.name(), reason = reason.name(), rule, units, "blocked");
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "tidegate_flow_blocked_total",
        "resource" => resource.to_owned(), "kind" => kind.name(), "reason" => reason.name(),
    )
    .increment(units);
}

/// A breaker changed its state.
#[cfg_attr(
    not(any(feature = "events", feature = "metrics")),
    allow(unused_variables, reason = "used with a feature only")
)]
pub(crate) fn breaker_changed(change: &StateChange<'_>) {
    #[cfg(feature = "events")]
    tracing::info!(
        target: "tidegate_flow",
        resource = change.resource,
        rule = %change.rule,
        from = change.from.name(),
        to = change.to.name(),
        "breaker changed",
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("tidegate_flow_breaker_changes_total", "resource" => change.resource.to_owned(), "to" => change.to.name())
        .increment(1);
}
