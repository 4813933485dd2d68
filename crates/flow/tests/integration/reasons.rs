//! Each blocked entry has one reason, which is also counted by resource.
#![cfg(not(loom))]

use std::time::Duration;

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, BlockReason, Gate, ManualTimer,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, AuthorityRule, BreakerRule, FlowRule, HotParamRule,
        IsolationRule, Measure, ParamKey, ParamMeasure, Rules, SystemRule, Trip, Vegas,
    },
};

fn gate(rules: Rules) -> Gate {
    let gate = Gate::builder()
        .timer(ManualTimer::new(Nanos::from_secs(1_000)))
        .build();
    gate.load(rules).unwrap();
    gate
}

/// The kind and the reason of the first entry that is blocked, of entries with these units that
/// stay in flight.
fn first(rules: Rules, units: u32) -> (BlockKind, BlockReason) {
    let gate = gate(rules);
    let r = gate.resource("r");
    let mut held = Vec::new();
    loop {
        match r
            .entry()
            .count(units)
            .origin("o")
            .arg("a")
            .inbound()
            .enter()
        {
            Ok(guard) => held.push(guard),
            Err(blocked) => {
                assert_eq!(r.blocked(), [(blocked.reason(), u64::from(units))]);
                return (blocked.kind(), blocked.reason());
            }
        }
        assert!(held.len() < 10_000);
    }
}

#[test]
fn each_rule_gives_its_reason() {
    let flow = |rule| Rules::from(vec![rule]);
    let param = |measure| {
        Rules::from(vec![
            HotParamRule::new("r", ParamKey::Index(0), 5)
                .burst(2)
                .measure(measure),
        ])
    };
    let in_flight = FlowRule::new("r", 5).measure(Measure::InFlight);
    let throttle = ParamMeasure::Throttle {
        max_wait: Duration::ZERO,
    };
    let isolation = Rules::from(vec![IsolationRule::new("r", 5)]);
    let adaptive = Rules::from(vec![AdaptiveRule::new(
        "r",
        AdaptiveAlgorithm::Vegas(Vegas::default()),
    )]);
    let authority = Rules::from(vec![AuthorityRule::deny("r", ["o"])]);
    let system = Rules::from(vec![SystemRule::default().qps(5)]);
    for (rules, units, kind, reason) in [
        (
            flow(FlowRule::new("r", 5)),
            1,
            BlockKind::Flow,
            BlockReason::Quota,
        ),
        (
            flow(FlowRule::new("r", 5)),
            5,
            BlockKind::Flow,
            BlockReason::Quota,
        ),
        (
            flow(FlowRule::new("r", 5)),
            6,
            BlockKind::Flow,
            BlockReason::TooLarge,
        ),
        (
            flow(in_flight.clone()),
            5,
            BlockKind::Flow,
            BlockReason::InFlight,
        ),
        (flow(in_flight), 6, BlockKind::Flow, BlockReason::TooLarge),
        (
            param(ParamMeasure::Rate),
            7,
            BlockKind::HotParam,
            BlockReason::Quota,
        ),
        (
            param(ParamMeasure::Rate),
            8,
            BlockKind::HotParam,
            BlockReason::TooLarge,
        ),
        (
            param(ParamMeasure::InFlight),
            5,
            BlockKind::HotParam,
            BlockReason::InFlight,
        ),
        (param(throttle), 1, BlockKind::HotParam, BlockReason::Quota),
        (
            param(throttle),
            6,
            BlockKind::HotParam,
            BlockReason::TooLarge,
        ),
        (isolation, 1, BlockKind::Isolation, BlockReason::InFlight),
        (adaptive, 1, BlockKind::Adaptive, BlockReason::InFlight),
        (authority, 1, BlockKind::Authority, BlockReason::DenyListed),
        (system, 1, BlockKind::System, BlockReason::Overloaded),
    ] {
        assert_eq!(
            first(rules.clone(), units),
            (kind, reason),
            "{units} of {rules:?}"
        );
    }
}

#[test]
fn an_open_breaker_is_a_reason_and_reasons_add_up() {
    let breaker =
        BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_secs(5)).min_calls(1);
    let gate = gate(Rules::from(vec![breaker]).and(vec![FlowRule::new("r", 5)]));
    let r = gate.resource("r");
    assert!(r.blocked().is_empty());
    assert!(r.entry().count(9).enter().is_err());
    r.enter().unwrap().mark_failed();
    assert_eq!(r.enter().unwrap_err().reason(), BlockReason::BreakerOpen);
    assert!(r.entry().count(3).enter().is_err());
    assert_eq!(
        r.blocked(),
        [(BlockReason::TooLarge, 9), (BlockReason::BreakerOpen, 4)]
    );
    let names: Vec<_> = BlockReason::ALL
        .into_iter()
        .map(BlockReason::name)
        .collect();
    assert_eq!(
        names,
        [
            "quota",
            "too-large",
            "in-flight",
            "table-full",
            "deny-listed",
            "overloaded",
            "breaker-open"
        ]
    );
}

#[test]
fn a_value_without_a_place_is_refused_for_the_full_table() {
    let rule = HotParamRule::new("r", ParamKey::Index(0), 1)
        .duration(Duration::from_mins(1))
        .max_values(1)
        .deny_when_full();
    let gate = gate(Rules::from(vec![rule]));
    let r = gate.resource("r");
    let values: Vec<String> = (0..200).map(|at| format!("value {at}")).collect();
    let reasons: Vec<_> = values
        .iter()
        .filter_map(|value| {
            r.entry()
                .arg(&**value)
                .enter()
                .err()
                .map(|blocked| blocked.reason())
        })
        .collect();
    assert!(
        !reasons.is_empty()
            && reasons
                .iter()
                .all(|reason| *reason == BlockReason::TableFull),
        "{reasons:?}"
    );
    assert_eq!(
        r.entry().arg(&*values[0]).enter().unwrap_err().reason(),
        BlockReason::Quota
    );
    assert_eq!(
        r.blocked(),
        [
            (BlockReason::Quota, 1),
            (BlockReason::TableFull, reasons.len() as u64)
        ]
    );
}
