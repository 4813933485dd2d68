//! Rules that are written read back as the same.
#![cfg(not(loom))]

use std::{sync::Arc, time::Duration};

use tidegate_core::Nanos;
use tidegate_flow::{
    ManualTimer,
    rules::{
        AdaptiveAlgorithm, AdaptiveRule, Aimd, AuthorityRule, Behaviour, BreakerRule, CallWindow,
        ConcurrencyLimit, FlowRule, Gradient2, HotParamRule, IsolationRule, MemoryThreshold,
        Origins, ParamKey, ParamMeasure, Relation, Rules, SystemRule, Target, Threshold, Trip,
        Vegas,
    },
    sources::{
        SourceError,
        sentinel::{self, Kind},
        yaml,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// One rule of each kind and form that both formats have.
fn rules() -> Rules {
    let (max_wait, period) = (Duration::from_millis(250), 20 * SECOND);
    let flow = FlowRule::new("GET:/a \"b\" \\ ü", 20);
    Rules::from(vec![
        flow.clone().id("7"),
        FlowRule::in_flight(Target::Pattern("/users/[0-9]+".into()), 10),
        flow.clone().behaviour(Behaviour::WarmUp {
            period,
            cold_factor: 3.0,
        }),
        flow.clone()
            .behaviour(Behaviour::Throttle { max_wait })
            .origins(Origins::Others),
        flow.clone().relation(Relation::Related("db".into())),
        flow.behaviour(Behaviour::WarmUpThrottle {
            period,
            cold_factor: 4.0,
            max_wait,
        })
        .relation(Relation::Context("web".into()))
        .origins(Origins::Only("app: a".into())),
    ])
    .and(vec![IsolationRule::new("db", 5)])
    .and(
        [
            Trip::SlowRatio {
                rt: Duration::from_millis(50),
                ratio: 0.8,
            },
            Trip::ErrorRatio { ratio: 1.0 },
            Trip::ErrorCount { count: 9 },
        ]
        .map(|trip| {
            BreakerRule::new("db", trip, 5 * SECOND)
                .interval(20 * SECOND)
                .slots(1)
        })
        .to_vec(),
    )
    .and(vec![
        HotParamRule::new("search", ParamKey::Index(-1), 5)
            .burst(3)
            .exception("vip", 100)
            .exception(7, 9),
        HotParamRule::new("search", ParamKey::Name("user".into()), 5)
            .measure(ParamMeasure::InFlight),
        HotParamRule::new("search", ParamKey::Index(0), 5)
            .measure(ParamMeasure::Throttle { max_wait })
            .duration(2 * SECOND),
    ])
    .and(vec![
        SystemRule::default().qps(5_000).cpu(0.9),
        SystemRule::default()
            .load(4.5)
            .in_flight(9)
            .mean_rt(Duration::from_millis(80)),
    ])
    .and(vec![
        AuthorityRule::allow("admin", ["a", "b"]),
        AuthorityRule::deny("admin", ["c"]),
    ])
}

#[test]
fn rules_written_as_yaml_read_back() {
    let mut rules = rules();
    let memory = MemoryThreshold {
        when_free: 100.0,
        when_scarce: 10.0,
        low_mark: 1_000,
        high_mark: 2_000,
    };
    rules
        .flow
        .push(FlowRule::new("m", Threshold::Memory(memory)).strict());
    rules.hot_params.push(
        HotParamRule::new("x", ParamKey::Index(0), 1)
            .max_values(9)
            .deny_when_full(),
    );
    let (text, notes) = yaml::write(&rules);
    assert_eq!(
        (yaml::parse(&text).unwrap(), notes.len()),
        (rules, 0),
        "{text}"
    );
    // A throttle keeps its pace.
    let throttle = FlowRule::new("r", 2.5).behaviour(Behaviour::Throttle { max_wait: SECOND });
    let warm_up = FlowRule::new("w", 2.5).behaviour(Behaviour::WarmUp {
        period: SECOND,
        cold_factor: 3.0,
    });
    let (text, notes) = yaml::write(&Rules::from(vec![throttle, warm_up]));
    assert!(
        text.contains("limit: 2500/16m40s") && text.contains("limit: 2/1s"),
        "{text}"
    );
    assert!(
        notes.len() == 1 && notes[0].contains("fraction of the threshold 2.5"),
        "{notes:?}"
    );
}

struct Fixed;
impl ConcurrencyLimit for Fixed {
    fn start(&self) -> f64 {
        5.0
    }
    fn next(&mut self, limit: f64, _: &CallWindow) -> f64 {
        limit
    }
}

#[test]
fn adaptive_rules_are_written_but_for_what_is_a_part_of_the_program() {
    let rule = |algorithm| AdaptiveRule::new("r", algorithm);
    let slow = Duration::from_millis(80);
    let written = vec![
        rule(AdaptiveAlgorithm::Vegas(Vegas::default().initial(7))).bounds(2, 90),
        rule(AdaptiveAlgorithm::Aimd(Aimd::default().slow(slow))).ignore_errors(),
        rule(AdaptiveAlgorithm::Gradient2(Gradient2::default())),
    ];
    let (text, notes) = yaml::write(&Rules::from(written.clone()));
    assert_eq!(
        (yaml::parse(&text).unwrap().adaptive, notes.len()),
        (written, 0),
        "{text}"
    );

    let custom = rule(AdaptiveAlgorithm::Custom(Arc::new(|| Box::new(Fixed))));
    let slack = rule(AdaptiveAlgorithm::Aimd(Aimd::default().backoff(0.5)));
    let (text, notes) = yaml::write(&Rules::from(vec![custom, slack]));
    assert_eq!(
        yaml::parse(&text).unwrap().adaptive,
        [rule(AdaptiveAlgorithm::Aimd(Aimd::default()))]
    );
    assert!(
        notes[0].contains("a part of the program") && notes[1].contains("factors of aimd"),
        "{notes:?}"
    );
}

#[test]
fn rules_written_as_sentinels_json_read_back() {
    let rules = rules();
    let mut read = Rules::default();
    for kind in [
        Kind::Flow,
        Kind::Degrade,
        Kind::ParamFlow,
        Kind::System,
        Kind::Authority,
        Kind::Isolation,
    ] {
        let (text, left_out) = sentinel::write(kind, &rules);
        assert!(left_out.is_empty(), "{left_out:?}");
        sentinel::parse(kind, &text).unwrap().apply(&mut read);
    }
    assert_eq!(read, rules);
    let strict = FlowRule::new("s", 1).strict();
    let probing = rules.breakers[0].clone().probes(3);
    let rules = Rules::from(vec![strict]).and(vec![probing]);
    for kind in [Kind::Flow, Kind::Degrade] {
        let (text, left_out) = sentinel::write(kind, &rules);
        assert_eq!((&*text, left_out.len()), ("[]", 1));
    }
}

#[test]
fn a_key_of_the_document_chooses_sentinels_slots() {
    // A second after 0.45 s: with two slots the call's slot has left the second at 1.05 s, with ten
    // it has not.
    let passes = |text: &str| {
        let timer = ManualTimer::new(Nanos::from_secs(1_000));
        let gate = yaml::builder(text)?.timer(timer.clone()).build();
        gate.load(Rules::from(vec![FlowRule::new("r", 1)])).unwrap();
        timer.advance(Duration::from_millis(450));
        drop(gate.resource("r").enter().unwrap());
        timer.advance(Duration::from_millis(600));
        Ok::<_, SourceError>(gate.resource("r").enter().is_ok())
    };
    assert_eq!(
        ["gate: sentinel\nflow: []", "flow: []", ""].map(|text| passes(text).unwrap()),
        [true, false, false]
    );
    assert!(yaml::parse("gate: sentinel\nflow: [{ resource: a, limit: 1/1s }]").is_ok());
    for wrong in [
        passes("gate: java").unwrap_err(),
        yaml::parse("gate: java").unwrap_err(),
    ] {
        assert!(
            wrong
                .to_string()
                .contains("line 1: `gate` is `java`; write gate: sentinel"),
            "{wrong}"
        );
    }
}
