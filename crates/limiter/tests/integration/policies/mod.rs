//! A policy of every algorithm that limits a rate, from the registry: a new algorithm is tested
//! with the others.

use tidegate_limiter::{AlgorithmSpec, Policy, Quota};

/// In the registry's order, with default options.
pub fn of(quota: Quota) -> Vec<Policy> {
    let rates = AlgorithmSpec::all().filter(AlgorithmSpec::limits_rate);
    rates.map(|spec| spec.policy(quota).unwrap()).collect()
}

/// Those that deny what does not fit now, instead of delaying it.
#[allow(
    dead_code,
    reason = "not every test that has this module asks for them"
)]
pub fn denying(quota: Quota) -> Vec<Policy> {
    of(quota)
        .into_iter()
        .filter(|policy| policy.name() != "leaky-bucket")
        .collect()
}
