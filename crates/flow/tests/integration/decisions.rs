//! The order in which an entry's rules are checked, and what happens to an entry that is refused
//! late.
#![cfg(not(loom))]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, BreakerState, Event, Gate, ManualTimer, Resource,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, AuthorityRule, Behaviour, BreakerRule, FlowRule,
        HotParamRule, IsolationRule, ParamKey, Rules, SystemRule, Trip,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gate(rules: Rules) -> (Gate, Resource, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_020)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(rules).unwrap();
    let resource = gate.resource("r");
    (gate, resource, timer)
}

/// Returns a breaker that opens at the first failure, for one second.
fn breaker() -> BreakerRule {
    BreakerRule::new("r", Trip::ErrorCount { count: 0 }, ms(1_000)).min_calls(1)
}

#[test]
fn checks_run_in_one_order_and_the_first_that_blocks_is_named() {
    let (gate, r, _timer) = gate(Rules::from(vec![breaker()]));
    let _inside = r.enter().unwrap();
    r.enter().unwrap().mark_failed();
    let system = SystemRule::default().qps(0);
    let aimd = AdaptiveAlgorithm::Aimd(tidegate_flow::rules::Aimd::default());
    let rules = Rules::from(vec![breaker()])
        .and(vec![AuthorityRule::deny("r", ["o"])])
        .and(vec![system])
        .and(vec![HotParamRule::new("r", ParamKey::Index(0), 0)])
        .and(vec![FlowRule::new("r", 0)])
        .and(vec![IsolationRule::new("r", 0)])
        .and(vec![AdaptiveRule::new("r", aimd).bounds(1, 1)]);
    gate.load(rules).unwrap();
    let enter = || {
        r.entry()
            .inbound()
            .origin("o")
            .arg("v")
            .enter()
            .map_err(|blocked| blocked.kind())
    };
    let mut blocked_by = Vec::new();
    while let Err(kind) = enter() {
        blocked_by.push(kind);
        gate.update(|rules| match kind {
            BlockKind::Authority => rules.authority.clear(),
            BlockKind::System => rules.system.clear(),
            BlockKind::HotParam => rules.hot_params.clear(),
            BlockKind::Flow => rules.flow.clear(),
            BlockKind::Isolation => rules.isolation.clear(),
            BlockKind::Adaptive => rules.adaptive.clear(),
            _ => rules.breakers.clear(),
        })
        .unwrap();
    }
    let order = [
        BlockKind::Authority,
        BlockKind::System,
        BlockKind::HotParam,
        BlockKind::Flow,
        BlockKind::Isolation,
        BlockKind::Adaptive,
        BlockKind::Breaker,
    ];
    assert_eq!(blocked_by, order);
}

/// Runs `meanwhile` in the middle of the next entry that finds a breaker half-open: after all rules
/// were checked and before anything is taken. This reproduces a slightly faster thread
/// deterministically.
fn in_the_middle(gate: &Gate, meanwhile: impl Fn(&Gate) + Send + Sync + 'static) {
    let again = Mutex::new(gate.clone());
    gate.on_breaker_change(move |change| {
        if change.to == BreakerState::HalfOpen {
            let gate = again.lock().unwrap().clone();
            meanwhile(&gate);
        }
    });
}

#[test]
fn an_entry_refused_late_returns_what_its_earlier_rules_took() {
    let throttle = FlowRule::new("r", 0.5).behaviour(Behaviour::Throttle {
        max_wait: ms(9_000),
    });
    let (gate, r, timer) = gate(
        Rules::from(vec![
            FlowRule::new("r", 3).interval(ms(60_000)),
            throttle,
            FlowRule::new("r", 1),
        ])
        .and(vec![breaker().probes(2)]),
    );
    in_the_middle(&gate, |gate| {
        assert_eq!(gate.resource("r").enter().unwrap().delay(), ms(0));
    });
    r.enter().unwrap().mark_failed();
    timer.advance(ms(2_000));
    let refused = r.enter().unwrap_err();
    assert_eq!(
        (refused.kind(), refused.rule()),
        (BlockKind::Flow, "1/1s"),
        "the other call was faster"
    );
    timer.advance(ms(1_000));
    let third = r.enter().expect("the third in a minute");
    assert_eq!(
        third.delay(),
        ms(1_000),
        "it queues behind the other call, not behind the refused one"
    );
    drop(third);
    assert_eq!(
        r.breakers()[0].1,
        BreakerState::Closed,
        "it was not a probe"
    );
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn an_entry_refused_late_by_a_system_rule_is_counted_nowhere_as_passed() {
    let system = SystemRule::default().qps(1);
    let (gate, r, timer) = gate(Rules::from(vec![system]).and(vec![breaker()]));
    in_the_middle(&gate, |gate| {
        drop(gate.resource("other").entry().inbound().enter().unwrap());
    });
    r.enter().unwrap().mark_failed();
    timer.advance(ms(2_000));
    let refused = r
        .entry()
        .inbound()
        .origin("o")
        .context("c")
        .enter()
        .unwrap_err();
    assert_eq!(refused.kind(), BlockKind::System);
    let (origin, context) = (r.origin("o").unwrap(), r.context("c").unwrap());
    for node in [r.node(), &*origin, &*context] {
        let counts = [Event::Pass, Event::Block].map(|event| node.sum(gate.now(), event));
        assert_eq!((counts, node.in_flight()), ([0, 1], 0));
    }
    assert_eq!(
        (
            gate.inbound().sum(gate.now(), Event::Pass),
            gate.inbound().in_flight()
        ),
        (1, 0)
    );
}
