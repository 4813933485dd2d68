//! Flow rules and isolation, on one thread with a manual clock.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Blocked, Gate, ManualTimer, Resource, Sample,
    rules::{
        AuthorityRule, Behaviour, FlowRule, IsolationRule, MemoryThreshold, Origins, Relation,
        Rules, Target, Threshold,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gate() -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    (Gate::builder().timer(timer.clone()).build(), timer)
}

fn with_flow(rules: Vec<FlowRule>) -> (Gate, Arc<ManualTimer>) {
    let (gate, timer) = gate();
    gate.load(Rules::from(rules)).unwrap();
    (gate, timer)
}

fn passes(resource: &Resource, asked: usize) -> usize {
    (0..asked).filter(|_| resource.enter().is_ok()).count()
}

fn retry_after(blocked: &Blocked) -> u128 {
    blocked.retry_after().unwrap().as_millis()
}

#[test]
fn a_rate_admits_its_threshold_in_each_second() {
    let (gate, timer) = with_flow(vec![FlowRule::new("r", 10)]);
    let r = gate.resource("r");
    assert_eq!(passes(&r, 15), 10);
    assert_eq!(r.node().counts(gate.now()).block, 5);
    let blocked = r.enter().unwrap_err();
    assert_eq!(
        (blocked.kind(), blocked.rule(), blocked.resource()),
        (BlockKind::Flow, "10/1s", "r")
    );
    assert_eq!(retry_after(&blocked), 1_000);
    timer.advance(ms(999));
    assert_eq!(passes(&r, 1), 0);
    timer.advance(ms(1));
    assert_eq!(passes(&r, 15), 10);
    assert!(
        gate.resource("other").enter().is_ok(),
        "the rule does not affect another resource"
    );
}

#[test]
fn a_count_fits_whole_or_not_at_all() {
    let (gate, _timer) = with_flow(vec![FlowRule::new("r", 10)]);
    let r = gate.resource("r");
    assert!(r.entry().count(7).enter().is_ok());
    assert!(r.entry().count(4).enter().is_err());
    assert!(r.entry().count(3).enter().is_ok());
    assert_eq!(
        r.entry().count(11).enter().unwrap_err().retry_after(),
        None,
        "it never fits"
    );
    assert!(r.entry().count(0).enter().is_ok(), "nothing fits always");
    let big = r.entry().count(u32::MAX).enter().unwrap_err();
    assert_eq!(big.kind(), BlockKind::Flow);
}

#[test]
fn a_strict_rate_holds_in_every_second_and_a_balanced_one_in_its_slots() {
    let most = |rule: FlowRule| {
        let (gate, timer) = with_flow(vec![rule]);
        let r = gate.resource("r");
        // The worst case: all units at the end of one slot, and again as soon as that slot has left
        // the window.
        timer.advance(ms(99));
        let mut passed = Vec::new();
        for at in (99..3_000).step_by(3) {
            passed.extend((0..passes(&r, 20)).map(|_| at));
            timer.advance(ms(3));
        }
        passed
            .iter()
            .map(|&from| {
                passed
                    .iter()
                    .filter(|&&at| at >= from && at - from < 1_000)
                    .count()
            })
            .max()
            .unwrap()
    };
    assert_eq!(most(FlowRule::new("r", 10)), 20);
    assert_eq!(most(FlowRule::new("r", 10).strict()), 10);
}

#[test]
fn a_custom_interval_is_counted_apart_from_the_second() {
    for (interval, half) in [(60_000, 30_000), (500, 200), (50, 20)] {
        let (gate, timer) = with_flow(vec![FlowRule::new("r", 4).interval(ms(interval))]);
        timer.set(Nanos::from_secs(1_020)); // A slot of each interval begins here.
        let r = gate.resource("r");
        assert_eq!(passes(&r, 9), 4, "{interval} ms");
        assert_eq!(retry_after(&r.enter().unwrap_err()), u128::from(interval));
        timer.advance(ms(half));
        assert_eq!(passes(&r, 1), 0);
        timer.advance(ms(interval - half));
        assert_eq!(passes(&r, 9), 4, "{interval} ms");
    }
}

#[test]
fn in_flight_counts_calls_that_have_not_ended() {
    let (gate, timer) = with_flow(vec![FlowRule::in_flight("r", 2)]);
    let r = gate.resource("r");
    let first = r.enter().unwrap();
    let second = r.enter().unwrap();
    let blocked = r.enter().unwrap_err();
    assert_eq!(
        (blocked.kind(), blocked.retry_after()),
        (BlockKind::Flow, None)
    );
    timer.advance(ms(60_000));
    assert!(r.enter().is_err());
    drop(first);
    assert!(r.enter().is_ok());
    drop(second);
    assert_eq!(r.node().in_flight(), 0);
}

#[test]
fn isolation_bounds_units_in_flight() {
    let (gate, _timer) = gate();
    gate.load(Rules::from(vec![IsolationRule::new("r", 5)]))
        .unwrap();
    let r = gate.resource("r");
    let three = r.entry().count(3).enter().unwrap();
    assert_eq!(
        r.entry().count(3).enter().unwrap_err().kind(),
        BlockKind::Isolation
    );
    let two = r.entry().count(2).enter().unwrap();
    drop(three);
    assert!(r.entry().count(3).enter().is_ok());
    drop(two);
}

#[test]
fn throttled_calls_get_their_delay() {
    let rule = FlowRule::new("r", 10).behaviour(Behaviour::Throttle { max_wait: ms(250) });
    let (gate, timer) = with_flow(vec![rule]);
    let r = gate.resource("r");
    let delays: Vec<_> = (0..3).map(|_| r.enter().unwrap().delay()).collect();
    assert_eq!(delays, [ms(0), ms(100), ms(200)]);
    let blocked = r.enter().unwrap_err();
    assert_eq!(retry_after(&blocked), 50);
    timer.advance(ms(50));
    assert_eq!(r.enter().unwrap().delay(), ms(250));
    timer.advance(ms(10_000));
    assert_eq!(r.entry().count(5).enter().unwrap().delay(), ms(0));
    assert_eq!(
        r.entry().count(2).enter().unwrap().delay(),
        ms(200),
        "a batch needs its whole interval before it"
    );
}

#[test]
fn the_intervals_of_high_and_uneven_rates_are_exact_to_the_nanosecond() {
    let after = |nanos| Some(Duration::from_nanos(nanos));
    for (rate, units, delays) in [
        (2_000.0, 1, [after(0), after(500_000)]),
        (1e6, 3, [after(0), after(3_000)]),
        (3.0, 1, [after(0), after(333_333_334)]),
        (f64::MIN_POSITIVE, 1, [after(0), None]),
        (0.0, 1, [None, None]),
    ] {
        let rule = FlowRule::new("r", rate).behaviour(Behaviour::Throttle {
            max_wait: ms(1_000),
        });
        let (gate, _timer) = with_flow(vec![rule]);
        let enter = || {
            gate.resource("r")
                .entry()
                .count(units)
                .enter()
                .map(|guard| guard.delay())
                .ok()
        };
        assert_eq!([enter(), enter()], delays, "{rate:e} a second");
    }
}

#[test]
fn the_wait_for_a_throttle_is_not_part_of_the_response_time() {
    let rule = FlowRule::new("r", 10).behaviour(Behaviour::Throttle { max_wait: ms(500) });
    let (gate, timer) = with_flow(vec![rule]);
    let r = gate.resource("r");
    drop(r.enter());
    let guard = r.enter().unwrap();
    timer.advance(guard.delay() + ms(7));
    drop(guard);
    assert_eq!(r.node().seconds(gate.now())[0].counts.rt, ms(7));
}

#[test]
fn a_cold_resource_warms_up() {
    let rule = FlowRule::new("r", 10).behaviour(Behaviour::WarmUp {
        period: ms(10_000),
        cold_factor: 3.0,
    });
    let (gate, timer) = with_flow(vec![rule]);
    let r = gate.resource("r");
    let mut by_second = Vec::new();
    for _ in 0..20 {
        let mut passed = 0;
        for _ in 0..10 {
            passed += passes(&r, 5);
            timer.advance(ms(100));
        }
        by_second.push(passed);
    }
    assert_eq!(by_second[0], 3, "{by_second:?}");
    assert!(by_second.is_sorted(), "{by_second:?}");
    assert_eq!(by_second[15..], [10; 5], "{by_second:?}");
    timer.advance(ms(100_000));
    assert_eq!(passes(&r, 5), 3, "cold again after an idle time");
}

#[test]
fn a_warm_up_that_would_never_begin_is_refused() {
    for (threshold, seconds, cold_factor, possible) in [
        (2.0, 10, 3.0, false),
        (2.9, 10, 3.0, false),
        (3.0, 10, 3.0, true),
        (10.0, 1, 1.0, false),
        (0.0, 1, 3.0, false),
        (1.0, 1, 3.0, false),
        (1e9, 1_000, 3.0, false),
    ] {
        let warm_up = Behaviour::WarmUp {
            period: ms(seconds * 1_000),
            cold_factor,
        };
        let gate = Gate::new();
        let rules = Rules::from(vec![FlowRule::new("r", threshold).behaviour(warm_up)]);
        assert_eq!(gate.load(rules).is_ok(), possible, "{threshold}");
    }
}

#[test]
fn a_warming_throttle_spaces_calls_by_its_current_rate() {
    let behaviour = Behaviour::WarmUpThrottle {
        period: ms(10_000),
        cold_factor: 3.0,
        max_wait: ms(1_000),
    };
    let (gate, _timer) = with_flow(vec![FlowRule::new("r", 10).behaviour(behaviour)]);
    let r = gate.resource("r");
    assert_eq!(r.enter().unwrap().delay(), ms(0));
    // Cold, with 100 tokens, 50 of them above the line: 0.3 s between two calls.
    let delay = r.enter().unwrap().delay();
    assert!(delay.abs_diff(ms(300)) < ms(1), "{delay:?}");
}

#[test]
fn an_origin_has_its_own_share() {
    let (gate, _timer) = with_flow(vec![
        FlowRule::new("r", 2).origins(Origins::Only("mobile".into())),
        FlowRule::new("r", 1).origins(Origins::Others),
        FlowRule::new("r", 5),
    ]);
    let r = gate.resource("r");
    let from = |origin| r.entry().origin(origin).enter().is_ok();
    assert_eq!(
        [from("mobile"), from("mobile"), from("mobile")],
        [true, true, false]
    );
    assert_eq!(
        [from("web"), from("web"), from("tv"), from("tv")],
        [true, false, true, false]
    );
    assert_eq!(
        passes(&r, 9),
        1,
        "entries without an origin count as one of the others"
    );
    assert!(!from("car"), "the common limit is used up");
    assert_eq!(r.origins(), ["car", "mobile", "tv", "web"]);
    let counts = |origin| r.origin(origin).unwrap().counts(gate.now());
    assert_eq!((counts("mobile").pass, counts("mobile").block), (2, 1));
    assert_eq!((counts("car").pass, counts("car").block), (0, 1));
    let all = r.node().counts(gate.now());
    assert_eq!((all.pass, all.block), (5, 12));
}

#[test]
fn a_flood_of_origins_shares_one_place_and_its_limit() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_000)));
    let gate = Gate::builder().timer(timer).max_origins(3).build();
    let rule = FlowRule::new("r", 1).origins(Origins::Others);
    gate.load(Rules::from(vec![rule])).unwrap();
    let r = gate.resource("r");
    let passed = (0..1_000)
        .filter(|n| r.entry().origin(&format!("made up {n}")).enter().is_ok())
        .count();
    assert_eq!(passed, 3 + 1);
    assert_eq!((r.origins().len(), r.crowded()), (3, 997));
}

#[test]
fn a_context_has_its_own_share() {
    let (gate, _timer) = with_flow(vec![
        FlowRule::new("r", 1).relation(Relation::Context("checkout".into())),
    ]);
    let r = gate.resource("r");
    let within = |context| r.entry().context(context).enter().is_ok();
    assert_eq!(
        [
            within("checkout"),
            within("checkout"),
            within("browse"),
            within("browse")
        ],
        [true, false, true, true]
    );
    assert_eq!(passes(&r, 5), 5);
    assert_eq!(r.contexts(), ["browse", "checkout"]);
    assert_eq!(r.context("checkout").unwrap().counts(gate.now()).pass, 1);
}

#[test]
fn a_related_resource_goes_first() {
    let (gate, timer) = with_flow(vec![
        FlowRule::new("read", 2).relation(Relation::Related("write".into())),
    ]);
    let (read, write) = (gate.resource("read"), gate.resource("write"));
    assert_eq!(passes(&read, 50), 50);
    assert_eq!(passes(&write, 2), 2);
    assert_eq!(
        passes(&read, 1),
        0,
        "two writes and this read would exceed two"
    );
    timer.advance(ms(1_000));
    assert_eq!(passes(&read, 1), 1);
}

#[test]
fn a_pattern_is_a_rule_for_each_resource_it_matches() {
    let pattern = Target::Pattern("/users/[0-9]+".into());
    let (gate, _timer) = with_flow(vec![FlowRule::new(pattern, 2)]);
    for name in ["/users/1", "/users/22"] {
        assert_eq!(passes(&gate.resource(name), 5), 2, "{name}");
    }
    for name in ["/users/", "/users/1/orders", "x/users/1"] {
        assert_eq!(
            passes(&gate.resource(name), 5),
            5,
            "the whole name must match: {name}"
        );
    }
}

#[test]
fn a_threshold_follows_the_memory_in_use() {
    let memory = MemoryThreshold {
        when_free: 10.0,
        when_scarce: 2.0,
        low_mark: 1_000,
        high_mark: 2_000,
    };
    let (gate, timer) = with_flow(vec![FlowRule::new("r", 0).clone()]);
    let rule = FlowRule::new("r", Threshold::Memory(memory));
    gate.load(Rules::from(vec![rule])).unwrap();
    let r = gate.resource("r");
    for (used, want) in [
        (0, 10),
        (1_000, 10),
        (1_500, 6),
        (1_999, 2),
        (2_000, 2),
        (u64::MAX, 2),
    ] {
        gate.set_sample(Sample {
            memory: used,
            ..Sample::default()
        });
        assert_eq!(passes(&r, 20), want, "{used} bytes");
        timer.advance(ms(1_000));
    }
}

#[test]
fn a_threshold_that_is_not_an_amount_is_refused() {
    let memory = MemoryThreshold {
        when_free: 1.0,
        when_scarce: 2.0,
        low_mark: 0,
        high_mark: 1,
    };
    let bad = [-1.0, f64::NAN, f64::INFINITY]
        .map(Threshold::Fixed)
        .into_iter()
        .chain([Threshold::Memory(memory)]);
    for threshold in bad {
        let rule = FlowRule::new("r", threshold);
        assert!(
            Gate::new().load(Rules::from(vec![rule])).is_err(),
            "{threshold:?}"
        );
    }
}

#[test]
fn an_authority_rule_looks_at_the_origin() {
    let (gate, _timer) = gate();
    let rules = vec![
        AuthorityRule::allow("a", ["x", "y"]),
        AuthorityRule::deny("d", ["x"]),
    ];
    gate.load(Rules::from(rules)).unwrap();
    let from = |name: &str, origin| gate.resource(name).entry().origin(origin).enter().map(drop);
    assert!(from("a", "x").is_ok() && from("a", "z").is_err());
    assert!(from("d", "x").is_err() && from("d", "z").is_ok());
    assert_eq!(from("a", "z").unwrap_err().kind(), BlockKind::Authority);
    assert!(
        gate.resource("a").enter().is_ok(),
        "an entry without an origin is not checked"
    );
}

#[test]
fn the_first_blocking_rule_is_named_and_the_others_are_not_charged() {
    let (gate, _timer) = with_flow(vec![
        FlowRule::new("r", 3).id("wide"),
        FlowRule::new("r", 100)
            .behaviour(Behaviour::Throttle { max_wait: ms(15) })
            .id("spaced"),
        FlowRule::new("r", 5).interval(ms(60_000)).id("minute"),
    ]);
    let r = gate.resource("r");
    assert!(r.enter().is_ok() && r.enter().is_ok());
    assert_eq!(r.enter().unwrap_err().rule(), "spaced");
    assert_eq!(r.entry().count(2).enter().unwrap_err().rule(), "wide");
    // Neither has used anything: the third of three calls passes at its place.
    let (gate, timer) = with_flow(gate.rules().flow);
    let r = gate.resource("r");
    for _ in 0..3 {
        assert!(r.enter().is_ok());
        let _ = r.entry().count(9).enter();
        timer.advance(ms(10));
    }
    assert_eq!(r.enter().unwrap_err().rule(), "wide");
    timer.advance(ms(1_000));
    assert_eq!(passes(&r, 1), 1);
    timer.advance(ms(10));
    assert_eq!(passes(&r, 1), 1);
    timer.advance(ms(10));
    assert_eq!(r.enter().unwrap_err().rule(), "minute");
}

#[test]
fn a_peek_takes_nothing() {
    let throttle = FlowRule::new("r", 10).behaviour(Behaviour::Throttle { max_wait: ms(99) });
    let (gate, timer) = with_flow(vec![throttle, FlowRule::new("r", 2).interval(ms(60_000))]);
    let r = gate.resource("r");
    let ask = || r.entry().count(0).inbound().enter();
    for _ in 0..100 {
        assert_eq!(ask().unwrap().delay(), ms(0));
        timer.advance(ms(7));
    }
    assert_eq!(r.enter().unwrap().delay(), ms(0));
    timer.advance(ms(50));
    drop(ask());
    assert_eq!(
        r.enter().unwrap().delay(),
        ms(50),
        "the query has not changed the throttle"
    );
    let counts = [r.node(), gate.inbound()].map(|node| node.counts(gate.now()));
    assert_eq!(
        counts.map(|counts| (counts.pass, counts.success)),
        [(2, 2), (0, 0)]
    );
}

#[test]
fn an_empty_origin_is_no_origin_and_other_includes_it() {
    let white_list = AuthorityRule::allow("w", ["app"]);
    let gate = Gate::new();
    gate.load(Rules::from(vec![white_list]).and(vec![
        FlowRule::new("f", 100).origins(Origins::Only("app".into())),
        FlowRule::new("f", 2).origins(Origins::Others),
    ]))
    .unwrap();
    let (w, f) = (gate.resource("w"), gate.resource("f"));
    assert!(
        w.entry().origin("").enter().is_ok(),
        "an allow list admits entries without an origin"
    );
    assert!(w.entry().origin("stranger").enter().is_err());
    let passed = (0..3)
        .filter(|_| f.entry().origin("").enter().is_ok())
        .count();
    let more = (0..3).filter(|_| f.enter().is_ok()).count();
    assert_eq!(
        (passed, more),
        (2, 0),
        "entries without an origin count as one of the others"
    );
    assert!(
        f.entry().origin("other").enter().is_ok(),
        "each other origin has its own limit"
    );
    assert_eq!(f.origins(), ["other"]);
}

#[test]
fn a_call_above_the_threshold_is_blocked_and_a_look_passes_in_every_kind_of_rule() {
    let throttle = Behaviour::Throttle {
        max_wait: ms(60_000),
    };
    let warm_up = Behaviour::WarmUpThrottle {
        period: ms(10_000),
        cold_factor: 3.0,
        max_wait: ms(60_000),
    };
    for behaviour in [Behaviour::Reject, throttle, warm_up] {
        let (gate, _timer) = with_flow(vec![FlowRule::new("r", 3).behaviour(behaviour)]);
        let r = gate.resource("r");
        assert!(
            r.entry().count(4).enter().is_err(),
            "{behaviour:?}: a fresh rule"
        );
        assert!(r.entry().count(0).enter().is_ok());
        let first = r.entry().count(1).enter().unwrap();
        let look = r.entry().count(0).enter().unwrap();
        assert_eq!((first.delay(), look.delay()), (ms(0), ms(0)));
        // Without any units, only a look passes. A warm-up needs some.
        if behaviour == warm_up {
            continue;
        }
        let (gate, _timer) = with_flow(vec![FlowRule::new("r", 0).behaviour(behaviour)]);
        let r = gate.resource("r");
        assert!(
            r.entry().count(0).enter().is_ok() && r.enter().is_err(),
            "{behaviour:?}"
        );
    }
    // Half a unit in a second is one unit in two.
    let (gate, timer) = with_flow(vec![FlowRule::new("r", 0.5).behaviour(throttle)]);
    let r = gate.resource("r");
    drop(r.enter().unwrap());
    assert_eq!(r.enter().unwrap().delay(), ms(2_000));
    drop(timer);
}

#[test]
fn a_gate_as_sentinels_counts_over_two_slots() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let gate = Gate::sentinel().timer(timer.clone()).build();
    gate.load(Rules::from(vec![FlowRule::new("r", 2)])).unwrap();
    let r = gate.resource("r");
    timer.advance(ms(400));
    drop([r.enter().unwrap(), r.enter().unwrap()]);
    timer.advance(ms(599));
    assert!(r.enter().is_err());
    // 999 ms after the beginning of the slot they still count; at its end they do not.
    timer.advance(ms(1));
    assert!(r.enter().is_ok());
}

#[test]
fn a_call_above_the_threshold_is_blocked_and_a_look_passes_in_rules_of_other_kinds() {
    use tidegate_flow::rules::{HotParamRule, ParamKey, ParamMeasure, SystemRule};

    for threshold in [0_u32, 3] {
        let param = HotParamRule::new("r", ParamKey::Index(0), threshold);
        let of = |rules: Rules| {
            let gate = Gate::new();
            gate.load(rules).unwrap();
            gate.resource("r")
        };
        for (name, r) in [
            ("param", of(Rules::from(vec![param.clone()]))),
            (
                "param in flight",
                of(Rules::from(vec![param.measure(ParamMeasure::InFlight)])),
            ),
            (
                "isolation",
                of(Rules::from(vec![IsolationRule::new("r", threshold)])),
            ),
            (
                "system",
                of(Rules::from(vec![
                    SystemRule::default().qps(threshold.into()),
                ])),
            ),
        ] {
            let enter = |units| r.entry().count(units).inbound().arg("v").enter().is_ok();
            assert!(!enter(threshold + 1), "{name} of {threshold}: a fresh rule");
            assert!(
                enter(0) && (threshold == 0 || enter(threshold)),
                "{name} of {threshold}"
            );
            assert!(enter(0), "{name} of {threshold}");
        }
    }
}
