//! A layer's refusals as `tracing` events (feature `events`) and counters of the `metrics` facade
//! (feature `metrics`). Without the features these functions are empty. They are here and not in
//! the limiter: a layer's limits have names, and a program that asks a limiter itself holds the
//! decision in its hands.

use crate::Refusal;

/// A request was refused.
#[cfg_attr(
    not(any(feature = "events", feature = "metrics")),
    allow(unused_variables, reason = "used with a feature only")
)]
#[inline]
pub(crate) fn refused(refusal: &Refusal<'_>) {
    #[cfg(feature = "events")]
    tracing::debug!(
        target: "tidegate_tower",
        limit = refusal.name,
        reason = refusal.reason.name(),
        decision = %refusal.decision,
        "refused"
    );
    #[cfg(feature = "metrics")]
    count("tidegate_tower_refused_total", refusal);
}

/// A request was admitted that a limit in a dry run would have refused.
#[cfg_attr(
    not(feature = "metrics"),
    allow(unused_variables, reason = "used with a feature only")
)]
#[inline]
pub(crate) fn refused_in_a_dry_run(refusal: &Refusal<'_>) {
    #[cfg(feature = "metrics")]
    count("tidegate_tower_dry_run_refused_total", refusal);
}

#[cfg(feature = "metrics")]
fn count(name: &'static str, refusal: &Refusal<'_>) {
    let (limit, reason) = (refusal.name.to_owned(), refusal.reason.name());
    metrics::counter!(name, "limit" => limit, "reason" => reason).increment(1);
}
