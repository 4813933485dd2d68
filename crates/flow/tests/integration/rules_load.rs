//! Loading rules is atomic, and unchanged rules keep their state.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, BreakerState, Gate, ManualTimer, Resource,
    rules::{
        Behaviour, BreakerRule, FlowRule, HotParamRule, IsolationRule, Origins, ParamKey,
        ParamMeasure, Relation, Rules, SystemRule, Target, Trip,
    },
};

fn gate() -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    (Gate::builder().timer(timer.clone()).build(), timer)
}

#[test]
fn the_version_of_the_rules_changes_with_each_load_and_with_nothing_else() {
    let (gate, _timer) = gate();
    let empty = gate.rules_version();
    gate.load(Rules::from(vec![FlowRule::new("r", 1)])).unwrap();
    let loaded = gate.rules_version();
    assert_ne!(loaded, empty);
    gate.load(Rules::from(vec![FlowRule::new("", 1)]))
        .unwrap_err();
    drop(gate.resource("r").enter());
    assert_eq!(gate.rules_version(), loaded);
    gate.load(Rules::default()).unwrap();
    assert_ne!(gate.rules_version(), loaded);
}

#[test]
fn one_bad_rule_refuses_the_load_with_every_reason_and_the_old_rules_go_on() {
    let (gate, _timer) = gate();
    let good = Rules::from(vec![FlowRule::new("r", 1)]);
    gate.load(good.clone()).unwrap();
    let second = Duration::from_secs(1);
    let bad = Rules::from(vec![
        FlowRule::new("r", 50),
        FlowRule::new("", 1),
        FlowRule::new("r", -1.0),
        FlowRule::new("r", f64::NAN),
        FlowRule::new(Target::Pattern("(".into()), 1),
        FlowRule::new("r", 1).interval(Duration::ZERO),
        FlowRule::new("r", 1).interval(Duration::from_nanos(5)),
        FlowRule::in_flight("r", 1).behaviour(Behaviour::Throttle { max_wait: second }),
        FlowRule::new("r", 1).behaviour(Behaviour::WarmUp {
            period: second,
            cold_factor: 1.0,
        }),
        FlowRule::new("r", 1).origins(Origins::Only(String::new())),
        // This would close the group around the pattern and match more than whole names.
        FlowRule::new(Target::Pattern("a)|(?:b".into()), 1),
    ])
    .and(vec![
        BreakerRule::new("r", Trip::ErrorRatio { ratio: 1.5 }, second),
        BreakerRule::new("r", Trip::ErrorRatio { ratio: 0.5 }, second)
            .probe_timeout(Duration::ZERO),
    ])
    .and(vec![
        HotParamRule::new("r", ParamKey::Index(0), 1).max_values(0),
    ])
    .and(vec![SystemRule::default()])
    .and(vec![IsolationRule::new("", 1)]);
    let error = gate.load(bad).unwrap_err();
    assert_eq!(
        error
            .rules
            .iter()
            .filter(|e| e.kind == BlockKind::Flow)
            .map(|e| e.index)
            .collect::<Vec<_>>(),
        (1..11).collect::<Vec<_>>()
    );
    assert_eq!(error.rules.len(), 15);
    assert!(
        error.to_string().contains(
            "flow rule 2 (-1/1s): the threshold is -1; it must be a number, 0 or greater"
        ),
        "{error}"
    );
    assert_eq!(gate.rules(), good);
    let r = gate.resource("r");
    assert!(r.enter().is_ok());
    assert!(r.enter().is_err(), "the old rule");
}

#[test]
fn an_unchanged_rule_keeps_its_state_and_a_changed_one_starts_anew() {
    let (gate, timer) = gate();
    let breaker =
        BreakerRule::new("r", Trip::ErrorCount { count: 0 }, Duration::from_mins(1)).min_calls(1);
    let throttle = FlowRule::new("t", 1).behaviour(Behaviour::Throttle {
        max_wait: Duration::from_secs(9),
    });
    let rules = Rules::from(vec![breaker.clone()]).and(vec![throttle.clone()]);
    gate.load(rules.clone()).unwrap();
    let (r, t) = (gate.resource("r"), gate.resource("t"));
    r.enter().unwrap().mark_failed();
    drop(t.enter());
    assert_eq!(r.breakers()[0].1, BreakerState::Open);

    gate.update(|rules| rules.flow.insert(0, FlowRule::new("t", 1_000)))
        .unwrap();
    gate.update(|rules| rules.isolation.push(IsolationRule::new("r", 7)))
        .unwrap();
    assert_eq!(r.breakers()[0].1, BreakerState::Open);
    assert_eq!(
        t.enter().unwrap().delay(),
        Duration::from_secs(1),
        "the throttle keeps its last place"
    );

    gate.update(|rules| rules.breakers[0] = breaker.min_calls(2))
        .unwrap();
    assert_eq!(r.breakers()[0].1, BreakerState::Closed);
    gate.load(Rules::default()).unwrap();
    assert!(r.breakers().is_empty());
    assert!(r.enter().is_ok());
    timer.advance(Duration::from_secs(1));
}

#[test]
fn a_changed_threshold_counts_what_has_passed() {
    let (gate, _timer) = gate();
    gate.load(Rules::from(vec![FlowRule::new("r", 3)])).unwrap();
    let r = gate.resource("r");
    for _ in 0..3 {
        assert!(r.enter().is_ok());
    }
    gate.load(Rules::from(vec![FlowRule::new("r", 5)])).unwrap();
    assert_eq!((0..9).filter(|_| r.enter().is_ok()).count(), 2);
}

#[test]
fn what_is_in_flight_stays_counted_across_a_reload() {
    let (gate, _timer) = gate();
    let param = HotParamRule::new("r", ParamKey::Index(0), 2).measure(ParamMeasure::InFlight);
    let rules = |units| {
        Rules::from(vec![IsolationRule::new("r", units)])
            .and(vec![
                FlowRule::in_flight("r", 9).origins(Origins::Only("o".into())),
            ])
            .and(vec![param.clone()])
    };
    gate.load(rules(3)).unwrap();
    let r = gate.resource("r");
    let enter = || r.entry().origin("o").arg("a").enter_owned();
    let mut inside = vec![enter().unwrap(), enter().unwrap()];
    let kind = || enter().unwrap_err().kind();
    assert_eq!(kind(), BlockKind::HotParam);

    gate.load(rules(2)).unwrap();
    assert_eq!(kind(), BlockKind::HotParam, "the value's count continues");
    assert_eq!(r.enter().unwrap_err().kind(), BlockKind::Isolation);
    gate.load(Rules::from(vec![FlowRule::in_flight("r", 2)]))
        .unwrap();
    assert_eq!(r.enter().unwrap_err().kind(), BlockKind::Flow);
    gate.load(Rules::default()).unwrap();
    assert!(r.enter().is_ok());

    // Calls that entered under the old rules leave the old and the new ones.
    gate.load(rules(2)).unwrap();
    drop(inside.pop());
    inside.push(enter().unwrap());
    assert_eq!(r.enter().unwrap_err().kind(), BlockKind::Isolation);
    inside.clear();
    assert_eq!(
        (r.node().in_flight(), r.origin("o").unwrap().in_flight()),
        (0, 0)
    );
    assert!([enter(), enter()].iter().all(Result::is_ok));
}

#[test]
fn what_is_in_flight_of_a_value_stays_counted_when_the_rules_numbers_change() {
    let (gate, _timer) = gate();
    let rule = |units| {
        HotParamRule::new("r", ParamKey::Index(0), units)
            .measure(ParamMeasure::InFlight)
            .max_values(9)
    };
    let load = |hot_params| {
        gate.load(Rules::from(hot_params)).unwrap();
    };
    let r = gate.resource("r");
    let enter = |value: &'static str| r.entry().arg(value).enter_owned();
    load(vec![rule(2)]);
    let mut inside = vec![enter("a").unwrap(), enter("a").unwrap()];
    let other = enter("b").unwrap();

    load(vec![rule(3).max_values(5)]);
    inside.push(enter("a").unwrap());
    assert!(
        enter("a").is_err(),
        "two calls entered under the old rule and one under the new rule"
    );
    load(vec![rule(1).exception("b", 2)]);
    drop(inside.pop());
    drop(inside.pop());
    assert!(enter("a").is_err(), "one call is still in flight");
    assert_eq!(
        [enter("b"), enter("b")]
            .iter()
            .filter(|entered| entered.is_ok())
            .count(),
        1
    );

    // An added rule counts separately, whatever its position, and the existing rule continues.
    load(vec![rule(7), rule(1).exception("b", 2)]);
    assert_eq!(enter("a").unwrap_err().rule(), "1 in flight for each arg 0");
    inside.clear();
    drop(other);
    load(vec![rule(2)]);
    let _both = [enter("a").unwrap(), enter("a").unwrap()];
    assert!(
        enter("a").is_err(),
        "the exits have not brought a count below zero"
    );

    // A rule that counts something else starts with new state.
    let mut last = rule(2);
    last.key = ParamKey::Index(-1);
    load(vec![last]);
    assert!(enter("a").is_ok());
}

#[test]
fn rules_reach_resources_that_were_there_before_and_that_come_after() {
    let (gate, _timer) = gate();
    let before = gate.resource("a");
    assert!(before.enter().is_ok());
    gate.load(Rules::from(vec![
        FlowRule::new("a", 1),
        FlowRule::new("b", 0),
    ]))
    .unwrap();
    assert!(before.enter().is_err(), "the earlier entry counts");
    assert!(gate.resource("b").enter().is_err());
}

#[test]
fn two_gates_share_no_state() {
    let (one, _timer) = gate();
    let (two, _timer) = gate();
    one.load(Rules::from(vec![FlowRule::new("r", 0)])).unwrap();
    assert!(one.resource("r").enter().is_err());
    assert!(two.resource("r").enter().is_ok());
    assert_eq!(one.resource("r").node().counts(one.now()).pass, 0);
}

#[test]
fn a_handle_from_a_full_gate_gets_the_rules_that_name_it_later() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer).max_resources(0).build();
    let (x, y, other) = (
        gate.resource("x"),
        gate.resource("y"),
        gate.resource("other"),
    );
    let before = [x.enter(), y.enter()].map(Result::unwrap);
    assert!(x.is_overflow() && x.node().in_flight() == 2);
    let related = FlowRule::new("read", 1).relation(Relation::Related("y".into()));
    gate.load(Rules::from(vec![FlowRule::new("x", 1), related]))
        .unwrap();

    let inside = x.enter().unwrap();
    assert_eq!(x.enter().unwrap_err().resource(), "x");
    assert!(x.entry().origin("o").enter().is_err() && x.enter_owned().is_err());
    assert!(!x.is_overflow() && x.origin("o").is_some());
    let counts = gate.resource("x").node().counts(gate.now());
    assert_eq!((counts.pass, counts.block), (1, 3));
    // A resource that a rule of another resource measures also has a place.
    let read = gate.resource("read");
    assert!(read.enter().is_ok());
    drop([y.enter(), y.enter()]);
    assert!(read.enter().is_err());

    // Each guard exits where it entered.
    assert!(other.is_overflow());
    assert_eq!([&x, &other].map(|r| r.node().in_flight()), [1, 2]);
    drop((before, inside));
    assert_eq!([&x, &other].map(|r| r.node().in_flight()), [0, 0]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "the resource r belongs to another gate")]
fn a_resource_is_not_entered_in_another_gate_unnoticed() {
    let _ = Gate::new().enter(&Gate::new().resource("r"));
}

#[test]
fn threads_that_ask_for_a_name_get_one_resource_and_the_bound_holds() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer).max_resources(500).build();
    let names: Vec<String> = (0..700).map(|n| format!("resource {n}")).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gate, names) = (&gate, &names);
            scope.spawn(move || {
                for n in 0..names.len() {
                    // The orders differ, so that each thread is the first for some names.
                    let r = gate.resource(
                        &names[(n * [1, 3, 11, 13][thread] + thread * 100) % names.len()],
                    );
                    drop(r.enter());
                }
            });
        }
    });
    let passed = |r: &Resource| r.node().counts(gate.now()).pass;
    let mut places = gate.resources();
    let overflow = places.pop().unwrap();
    assert_eq!(
        (places.len(), overflow.name(), passed(&overflow)),
        (500, "*overflow*", 4 * 200)
    );
    assert!(places.windows(2).all(|two| two[0].name() < two[1].name()));
    assert!(places.iter().all(|r| passed(r) == 4), "each thread once");
}

#[test]
fn a_dropped_gate_frees_everything() {
    let held = Arc::new(());
    let (gate, _timer) = gate();
    let listener = held.clone();
    gate.on_breaker_change(move |_| drop(listener.clone()));
    let related = FlowRule::new("read", 1).relation(Relation::Related("write".into()));
    gate.load(Rules::from(vec![related])).unwrap();
    let (read, write) = (gate.resource("read"), gate.resource("write"));
    drop(gate);
    // The resources stay usable as long as a handle exists.
    drop(write.enter());
    assert!(read.enter().is_err());
    drop(write);
    assert_eq!(Arc::strong_count(&held), 2);
    drop(read);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn resources_beyond_the_bound_share_one_visible_node() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer).max_resources(3).build();
    let rules = vec![
        FlowRule::new("guarded", 1),
        FlowRule::new(Target::Pattern(".*".into()), 5),
    ];
    gate.load(Rules::from(rules)).unwrap();
    for n in 0..10 {
        let r = gate.resource(&format!("made up {n}"));
        assert_eq!(
            (r.is_overflow(), r.name().into()),
            (n >= 3, format!("made up {n}"))
        );
        let _ = r.enter();
    }
    assert_eq!(gate.overflowed(), 7);
    let names: Vec<_> = gate
        .resources()
        .iter()
        .map(|r| r.name().to_owned())
        .collect();
    assert_eq!(names, ["made up 0", "made up 1", "made up 2", "*overflow*"]);
    let overflow = gate.resource("made up 9");
    let counts = overflow.node().counts(gate.now());
    assert_eq!((counts.pass, counts.block), (5, 2), "they share one limit");
    assert_eq!(overflow.enter().unwrap_err().resource(), "made up 9");
    // A resource that a rule names always has its own place.
    let guarded = gate.resource("guarded");
    assert!(!guarded.is_overflow());
    assert!(guarded.enter().is_ok() && guarded.enter().is_err());
}
