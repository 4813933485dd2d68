//! Rules on part of the traffic: another resource's, that of one origin or of each origin, or a
//! context's.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    Event, Gate, ManualTimer, Resource,
    rules::{Behaviour, FlowRule, Origins, Relation, Rules},
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gate(max_origins: usize, flow: Vec<FlowRule>) -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_020)));
    let gate = Gate::builder()
        .timer(timer.clone())
        .max_origins(max_origins)
        .build();
    load(&gate, flow);
    (gate, timer)
}

fn load(gate: &Gate, flow: Vec<FlowRule>) {
    gate.load(Rules::from(flow)).unwrap();
}

fn passes(resource: &Resource, asked: usize) -> usize {
    (0..asked).filter(|_| resource.enter().is_ok()).count()
}

fn passes_from(resource: &Resource, origin: &str, asked: usize) -> usize {
    (0..asked)
        .filter(|_| resource.entry().origin(origin).enter().is_ok())
        .count()
}

fn throttle(rate: u32, max_wait: Duration) -> FlowRule {
    FlowRule::new("r", rate).behaviour(Behaviour::Throttle { max_wait })
}

#[test]
fn a_related_resource_is_measured_in_any_interval() {
    for interval in [60_000, 1_000, 250] {
        let rule = |limit| {
            FlowRule::new("read", limit)
                .interval(ms(interval))
                .relation(Relation::Related("write".into()))
        };
        let (gate, timer) = gate(9, vec![rule(2), rule(100)]);
        let (read, write) = (gate.resource("read"), gate.resource("write"));
        assert_eq!(passes(&read, 10), 10, "nothing is written, {interval} ms");
        assert!(write.enter().is_ok());
        assert_eq!(passes(&read, 10), 10);
        assert!(write.entry().origin("x").inbound().enter().is_ok());
        assert_eq!(
            passes(&read, 1),
            0,
            "two writes and this read would exceed two"
        );
        assert_eq!(passes(&write, 3), 3, "the writes are not limited");
        let blocked = read.enter().unwrap_err();
        assert_eq!(blocked.retry_after(), Some(ms(interval)));
        timer.advance(ms(interval));
        assert_eq!(passes(&read, 10), 10);
        load(&gate, Vec::new());
        assert_eq!(passes(&write, 3) + passes(&read, 3), 6);
    }
}

#[test]
fn rules_of_two_resources_may_look_at_a_third_and_changing_one_forgets_nothing() {
    let rule = |resource: &str, limit| {
        FlowRule::new(resource, limit)
            .interval(ms(60_000))
            .relation(Relation::Related("write".into()))
    };
    let (gate, _timer) = gate(9, vec![rule("a", 5), rule("b", 3)]);
    let write = gate.resource("write");
    assert_eq!(passes(&write, 4), 4);
    assert_eq!(passes(&gate.resource("b"), 1), 0);
    assert_eq!(passes(&gate.resource("a"), 2), 2);
    load(&gate, vec![rule("a", 4), rule("b", 3)]);
    assert_eq!(
        passes(&gate.resource("a"), 1),
        0,
        "four writes passed, whatever the rule was then"
    );
    assert_eq!(passes(&gate.resource("b"), 1), 0);
}

#[test]
fn a_throttle_cannot_look_at_another_resource_and_says_what_to_do() {
    let rule = throttle(1, ms(10)).relation(Relation::Related("write".into()));
    let error = Rules::from(vec![rule]).validate().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("make the relation direct, or the behaviour reject"),
        "{error}"
    );
}

#[test]
fn each_unnamed_origin_has_its_own_share_of_any_interval() {
    for interval in [60_000, 1_000, 250] {
        let others = FlowRule::new("r", 2)
            .interval(ms(interval))
            .origins(Origins::Others);
        let (gate, timer) = gate(
            4,
            vec![
                others,
                FlowRule::new("r", 99).origins(Origins::Only("named".into())),
            ],
        );
        let r = gate.resource("r");
        for round in 0..2 {
            assert_eq!(
                ["a", "b"].map(|from| passes_from(&r, from, 5)),
                [2, 2],
                "{interval} ms, {round}"
            );
            assert_eq!(
                (passes_from(&r, "named", 5), passes(&r, 5)),
                (5, 2),
                "nobody in particular is another"
            );
            timer.advance(ms(interval));
        }
        // One origin of the flood gets the last place, and all others share one.
        let flood: usize = (0..100)
            .map(|n| passes_from(&r, &format!("made up {n}"), 1))
            .sum();
        assert_eq!(flood, 1 + 2, "{interval} ms");
        assert_eq!(passes_from(&r, "a", 5), 2);
    }
}

#[test]
fn each_unnamed_origin_is_throttled_separately() {
    let (gate, timer) = gate(2, vec![throttle(1, ms(0)).origins(Origins::Others)]);
    let r = gate.resource("r");
    assert_eq!(
        ["a", "b", "c", "d"].map(|from| passes_from(&r, from, 2)),
        [1, 1, 1, 0],
        "c and d share a place"
    );
    timer.advance(ms(999));
    assert_eq!(["a", "b"].map(|from| passes_from(&r, from, 2)), [0, 0]);
    timer.advance(ms(1));
    assert_eq!(["a", "b"].map(|from| passes_from(&r, from, 2)), [1, 1]);
}

#[test]
fn each_unnamed_origin_warms_up_separately() {
    let warm_up = Behaviour::WarmUp {
        period: Duration::from_secs(10),
        cold_factor: 3.0,
    };
    let (gate, timer) = gate(
        9,
        vec![
            FlowRule::new("r", 10)
                .behaviour(warm_up)
                .origins(Origins::Others),
        ],
    );
    let r = gate.resource("r");
    let busy = (0..30).map(|_| {
        timer.advance(ms(1_000));
        passes_from(&r, "a", 10)
    });
    let busy: Vec<_> = busy.collect();
    assert_eq!((busy[0], busy[29]), (3, 10), "{busy:?}");
    timer.advance(ms(1_000));
    assert_eq!(["a", "b"].map(|from| passes_from(&r, from, 10)), [10, 3]);

    let both = Behaviour::WarmUpThrottle {
        period: Duration::from_secs(10),
        cold_factor: 3.0,
        max_wait: Duration::ZERO,
    };
    load(
        &gate,
        vec![
            FlowRule::new("r", 10)
                .behaviour(both)
                .origins(Origins::Others),
        ],
    );
    timer.advance(ms(1_000));
    assert_eq!(["a", "b"].map(|from| passes_from(&r, from, 2)), [1, 1]);
}

#[test]
fn other_means_origins_that_no_current_rule_names() {
    let others = || FlowRule::new("r", 1).origins(Origins::Others);
    let (gate, _timer) = gate(9, vec![others()]);
    let r = gate.resource("r");
    assert_eq!(passes_from(&r, "web", 3), 1);
    load(
        &gate,
        vec![
            others(),
            FlowRule::new("r", 3).origins(Origins::Only("web".into())),
        ],
    );
    assert_eq!(
        passes_from(&r, "web", 5),
        2,
        "the origin shares three in all, because a rule now names it"
    );
    load(&gate, vec![others()]);
    assert_eq!(passes_from(&r, "web", 1), 0);
}

#[test]
fn named_origins_keep_their_nodes_in_a_flood() {
    let (gate, _timer) = gate(
        2,
        vec![
            FlowRule::new("r", 1).origins(Origins::Only("named".into())),
            FlowRule::new("r", 1).relation(Relation::Context("work".into())),
        ],
    );
    let r = gate.resource("r");
    for n in 0..50 {
        let name = format!("made up {n}");
        assert!(r.entry().origin(&name).context(&name).enter().is_ok());
    }
    assert_eq!((r.origins().len(), r.contexts().len()), (2, 2));
    assert_eq!(passes_from(&r, "named", 3), 1);
    let within = (0..3)
        .filter(|_| r.entry().context("work").enter().is_ok())
        .count();
    assert_eq!(within, 1);
    assert_eq!(r.origin("named").unwrap().counts(gate.now()).pass, 1);
    assert_eq!(r.context("work").unwrap().counts(gate.now()).pass, 1);
}

#[test]
fn a_flood_of_origins_and_contexts_of_all_resources_is_bounded() {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(1_020)));
    let gate = Gate::builder()
        .timer(timer)
        .max_origins(20)
        .max_origins_in_all(50)
        .build();
    let others = FlowRule::new("r9", 1).origins(Origins::Others);
    load(
        &gate,
        vec![
            FlowRule::new("r9", 1).origins(Origins::Only("named".into())),
            others,
        ],
    );
    let resources: Vec<_> = (0..10).map(|n| gate.resource(&format!("r{n}"))).collect();
    let mut passed = 0;
    for resource in &resources {
        for n in 0..30 {
            let (origin, context) = (format!("origin {n}"), format!("context {n}"));
            passed += usize::from(
                resource
                    .entry()
                    .origin(&origin)
                    .context(&context)
                    .enter()
                    .is_ok(),
            );
        }
    }
    assert_eq!(passed, 9 * 30 + 1, "if others have a limit, they share it");
    let kept = |resource: &Resource| (resource.origins().len(), resource.contexts().len());
    assert_eq!(
        resources[..4].iter().map(kept).collect::<Vec<_>>(),
        [(20, 20), (5, 5), (0, 0), (0, 0)]
    );
    assert_eq!(
        resources.iter().map(Resource::crowded).sum::<u64>(),
        600 - 50
    );
    assert_eq!(passes_from(&resources[9], "named", 2), 1);
    assert_eq!(kept(&resources[9]), (1, 0));
}

#[test]
fn blocks_are_counted_for_the_origin_and_for_the_context() {
    let (gate, _timer) = gate(9, vec![FlowRule::new("r", 1)]);
    let r = gate.resource("r");
    for _ in 0..3 {
        drop(
            r.entry()
                .origin("o")
                .context("c")
                .count(1)
                .inbound()
                .enter(),
        );
    }
    let (origin, context) = (r.origin("o").unwrap(), r.context("c").unwrap());
    for node in [r.node(), &*origin, &*context, gate.inbound()] {
        assert_eq!(
            [Event::Pass, Event::Block].map(|event| node.sum(gate.now(), event)),
            [1, 2]
        );
    }
}

#[test]
fn a_strict_custom_interval_holds_at_every_offset() {
    let most = |rule: FlowRule| {
        let (gate, timer) = gate(9, vec![rule]);
        let r = gate.resource("r");
        timer.advance(ms(999));
        let mut passed = Vec::new();
        for at in (999..30_000).step_by(10) {
            passed.extend((0..passes(&r, 9)).map(|_| at));
            timer.advance(ms(10));
        }
        let inside = |from: i32| {
            passed
                .iter()
                .filter(|&&at| at >= from && at - from < 10_000)
                .count()
        };
        passed.iter().map(|&from| inside(from)).max().unwrap()
    };
    let rule = FlowRule::new("r", 4).interval(ms(10_000));
    assert_eq!((most(rule.clone()), most(rule.strict())), (8, 4));
}
