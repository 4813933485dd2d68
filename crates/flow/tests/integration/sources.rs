//! Rules from texts: JSON in Sentinel's format, and YAML.
#![cfg(not(loom))]

use std::time::Duration;

use tidegate_flow::{
    Arg,
    rules::{
        Behaviour, BreakerRule, FlowRule, HotParamRule, IsolationRule, Measure, MemoryThreshold,
        Origins, ParamKey, ParamMeasure, Relation, Rules, SystemRule, Target, Threshold, Trip,
    },
    sources::{
        RuleUpdate,
        sentinel::{self, ClusterThreshold, Kind},
        yaml,
    },
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn flow(text: &str) -> Vec<FlowRule> {
    sentinel::parse(Kind::Flow, text).unwrap().flow.unwrap()
}

#[test]
fn sentinels_flow_rules() {
    let rules = flow(
        r#"[
        {"resource":"abc","count":20,"grade":1,"controlBehavior":0},
        {"resource":"abc","limitApp":"default","grade":0,"count":5.0,"strategy":0,"clusterMode":false,"app":"x","gmtCreate":7},
        {"resource":"w","count":10,"controlBehavior":1,"warmUpPeriodSec":30,"limitApp":"mobile"},
        {"resource":"t","count":0.5,"controlBehavior":2,"maxQueueingTimeMs":20000,"limitApp":"other","id":7},
        {"resource":"b","count":10,"controlBehavior":3,"strategy":1,"refResource":"write"},
        {"resource":"/users/[0-9]+","count":1,"regex":true,"strategy":2,"refResource":"checkout","statIntervalInMs":60000},
        {"resource":"m","lowMemUsageThreshold":100,"highMemUsageThreshold":10,"memLowWaterMarkBytes":1024,"memHighWaterMarkBytes":2048}
    ]"#,
    );
    assert_eq!(rules[0], FlowRule::new("abc", 20));
    assert_eq!(rules[1], FlowRule::in_flight("abc", 5));
    let warm_up = Behaviour::WarmUp {
        period: Duration::from_secs(30),
        cold_factor: 3.0,
    };
    assert_eq!(
        rules[2],
        FlowRule::new("w", 10)
            .behaviour(warm_up)
            .origins(Origins::Only("mobile".into()))
    );
    let throttle = Behaviour::Throttle {
        max_wait: Duration::from_secs(20),
    };
    let seventh = FlowRule::new("t", 0.5)
        .behaviour(throttle)
        .origins(Origins::Others);
    assert_eq!(rules[3], seventh.id("7"));
    let both = Behaviour::WarmUpThrottle {
        period: Duration::from_secs(10),
        cold_factor: 3.0,
        max_wait: ms(500),
    };
    let unrelated =
        r#"[{"resource":"b","count":10,"controlBehavior":2,"strategy":1,"refResource":"write"}]"#;
    assert_eq!(
        flow(unrelated)[0].relation,
        Relation::Direct,
        "as Sentinel does"
    );
    assert_eq!(
        rules[4],
        FlowRule::new("b", 10)
            .behaviour(both)
            .relation(Relation::Related("write".into()))
    );
    let users =
        FlowRule::new(Target::Pattern("/users/[0-9]+".into()), 1).interval(Duration::from_mins(1));
    assert_eq!(
        rules[5],
        users.relation(Relation::Context("checkout".into()))
    );
    assert!(
        matches!(rules[6].threshold, Threshold::Memory(memory) if (memory.when_scarce - 10.0).abs() < 1e-9)
    );
    let others = flow(r#"[{"resource":"w","count":10,"controlBehavior":1,"limitApp":"other"}]"#);
    let warm_up = Behaviour::WarmUp {
        period: Duration::from_secs(10),
        cold_factor: 3.0,
    };
    assert_eq!(
        others[0],
        FlowRule::new("w", 10)
            .behaviour(warm_up)
            .origins(Origins::Others)
    );
    assert!(
        rules
            .iter()
            .all(|rule| rule.measure == Measure::Rate || rule == &rules[1])
    );
    Rules::from(rules).validate().unwrap();
}

#[test]
fn sentinels_other_rules() {
    let update = sentinel::parse(
        Kind::Degrade,
        r#"[{"resource":"d","grade":0,"count":50,"slowRatioThreshold":0.8,"minRequestAmount":10,"timeWindow":5,"statIntervalMs":20000},
            {"resource":"d","grade":1,"count":0.5,"timeWindow":5},
            {"resource":"d","grade":2,"count":3,"timeWindow":5}]"#,
    );
    let open = Duration::from_secs(5);
    let breaker = |trip| BreakerRule::new("d", trip, open).slots(1);
    let slow = breaker(Trip::SlowRatio {
        rt: ms(50),
        ratio: 0.8,
    });
    let breakers = vec![
        slow.min_calls(10).interval(Duration::from_secs(20)),
        breaker(Trip::ErrorRatio { ratio: 0.5 }),
        breaker(Trip::ErrorCount { count: 3 }),
    ];
    assert_eq!(
        update.unwrap(),
        RuleUpdate {
            breakers: Some(breakers),
            ..RuleUpdate::default()
        }
    );

    let update = sentinel::parse(
        Kind::ParamFlow,
        r#"[{"resource":"p","paramIdx":-1,"count":5,"durationInSec":60,"burstCount":3,
             "paramFlowItemList":[{"object":"7","count":9,"classType":"int"},{"object":"vip","count":8,"classType":"java.lang.String"}]},
            {"resource":"p","paramKey":"user","grade":0,"count":2},
            {"resource":"p","paramIdx":0,"count":2,"controlBehavior":2,"maxQueueingTimeMs":100}]"#,
    );
    let params = vec![
        HotParamRule::new("p", ParamKey::Index(-1), 5)
            .duration(Duration::from_mins(1))
            .burst(3)
            .exception(7, 9)
            .exception("vip", 8),
        HotParamRule::new("p", ParamKey::Name("user".into()), 2).measure(ParamMeasure::InFlight),
        HotParamRule::new("p", ParamKey::Index(0), 2)
            .measure(ParamMeasure::Throttle { max_wait: ms(100) }),
    ];
    assert_eq!(update.unwrap().hot_params.unwrap(), params);

    let text =
        r#"[{"highestSystemLoad":-1,"highestCpuUsage":0.8,"qps":100,"avgRt":50,"maxThread":-1}]"#;
    let system = sentinel::parse(Kind::System, text).unwrap().system.unwrap();
    let want = SystemRule::default().cpu(0.8).qps(100).mean_rt(ms(50));
    assert_eq!(system, [want]);

    let text = r#"[{"resource":"a","limitApp":"x, y","strategy":0},{"resource":"a","limitApp":"z","strategy":1}]"#;
    let authority = sentinel::parse(Kind::Authority, text)
        .unwrap()
        .authority
        .unwrap();
    assert_eq!(
        (authority[0].to_string(), authority[1].to_string()),
        ("allow x,y".into(), "deny z".into())
    );

    let text = r#"[{"resource":"i","threshold":7}]"#;
    let isolation = sentinel::parse(Kind::Isolation, text)
        .unwrap()
        .isolation
        .unwrap();
    assert_eq!(isolation, [IsolationRule::new("i", 7)]);
}

#[test]
fn meaningless_rules_are_refused_with_their_position() {
    let error = |kind, text| sentinel::parse(kind, text).unwrap_err().to_string();
    let said = error(Kind::Flow, "[{\"resource\":\"a\",\n\"count\":\"many\"}]");
    assert!(said.contains("line 2") && said.contains("many"), "{said}");
    let said = error(
        Kind::Flow,
        "[{\"resource\":\"a\",\"count\":1},{\"resource\":\"a\",\"id\":7,\"grade\":9},\n{\"resource\":\"b\",\"strategy\":\"x\"}]",
    );
    assert!(
        said.contains(
            "rule 1 (resource a, id 7, line 1): grade is 9; it must be 0 (threads) or 1 (QPS)"
        ),
        "{said}"
    );
    assert!(
        said.contains("rule 2 (resource b, line 2): strategy: \"x\" is not a whole number"),
        "{said}"
    );
    for (kind, text) in [
        (Kind::Degrade, r#"[{"resource":"a","grade":3}]"#),
        (Kind::Degrade, r#"[{"resource":"a","count":-1}]"#),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":-1}]"#,
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":1,"paramFlowItemList":[{"object":"x","count":1,"classType":"int"}]}]"#,
        ),
        (Kind::Authority, r#"[{"resource":"a"}]"#),
        (Kind::Flow, "{}"),
        (Kind::Flow, r#"[{"resource":"a","count":1,"grade":0.5}]"#),
        (
            Kind::Flow,
            r#"[{"resource":"a","count":1,"regex":"perhaps"}]"#,
        ),
        (Kind::Flow, r#"[{"resource":"a","count":1} /* no end"#),
    ] {
        assert!(sentinel::parse(kind, text).is_err(), "{text}");
    }
}

#[test]
fn sentinels_flow_rules_in_go() {
    let text = |rest: &str| format!(r#"[{{"resource":"r","threshold":10,{rest}}}]"#);
    let read = |rest: &str| flow(&text(rest)).remove(0);
    let (period, cold_factor) = (Duration::from_secs(20), 3.0);
    let throttle = Behaviour::Throttle { max_wait: ms(700) };
    let written = r#""relationStrategy":0,"refResource":"","warmUpPeriodSec":20,"warmUpColdFactor":0,"maxQueueingTimeMs":700,
        "statIntervalInMs":0,"lowMemUsageThreshold":9,"highMemUsageThreshold":3,"memLowWaterMarkBytes":1,"memHighWaterMarkBytes":2"#;
    let both = |strategy, behaviour| {
        read(&format!(
            r#"{written},"tokenCalculateStrategy":{strategy},"controlBehavior":{behaviour}"#
        ))
    };
    assert_eq!(both(0, 0), FlowRule::new("r", 10));
    assert_eq!(both(0, 1), FlowRule::new("r", 10).behaviour(throttle));
    assert_eq!(
        both(1, 0),
        FlowRule::new("r", 10).behaviour(Behaviour::WarmUp {
            period,
            cold_factor
        })
    );
    let slowly = Behaviour::WarmUpThrottle {
        period,
        cold_factor,
        max_wait: ms(700),
    };
    assert_eq!(both(1, 1), FlowRule::new("r", 10).behaviour(slowly));
    let memory = MemoryThreshold {
        when_free: 9.0,
        when_scarce: 3.0,
        low_mark: 1,
        high_mark: 2,
    };
    assert_eq!(both(2, 0), FlowRule::new("r", Threshold::Memory(memory)));
    assert_eq!(
        both(2, 1),
        FlowRule::new("r", Threshold::Memory(memory)).behaviour(throttle)
    );
    let related = read(r#""relationStrategy":1,"refResource":"w""#);
    assert_eq!(
        related,
        FlowRule::new("r", 10).relation(Relation::Related("w".into()))
    );
    for (rest, says) in [
        (
            r#""controlBehavior":1,"maxQueueingTimeMs":500"#,
            "write count for the former",
        ),
        (
            r#""tokenCalculateStrategy":0,"controlBehavior":2"#,
            "controlBehavior is 2",
        ),
        (
            r#""tokenCalculateStrategy":3"#,
            "tokenCalculateStrategy is 3",
        ),
        (r#""count":10"#, "leave one of them out"),
    ] {
        let said = sentinel::parse(Kind::Flow, &text(rest))
            .unwrap_err()
            .to_string();
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn ambiguous_rules_are_refused() {
    for (kind, text, says) in [
        (
            Kind::Flow,
            r#"[{"resource":"a","cuont":10}]"#,
            "rule 0 (resource a, line 1): count is missing, or misspelt",
        ),
        (
            Kind::Degrade,
            r#"[{"resource":"a","timeWindow":5}]"#,
            "count is missing",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0}]"#,
            "count is missing",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","param":1,"count":5}]"#,
            "rule 0 (resource a, line 1): paramIdx is missing, or misspelt",
        ),
        (Kind::Isolation, r#"[{"resource":"a"}]"#, "threshold"),
        (
            Kind::System,
            r#"[{"higestCpuUsage":0.8}]"#,
            "the rule names no limit; it needs highestSystemLoad",
        ),
        (
            Kind::Flow,
            r#"[{"resource":"a","memHighWaterMarkBytes":2048}]"#,
            "lowMemUsageThreshold is missing",
        ),
        (
            Kind::Flow,
            r#"[{"resource":"a","memHighWaterMarkBytes":2048,"lowMemUsageThreshold":5}]"#,
            "highMemUsageThreshold is missing",
        ),
        (
            Kind::Flow,
            r#"[{"resource":"a","count":1,"controlBehavior":2,"maxQueueingTimeMs":-1}]"#,
            "is -1",
        ),
        (
            Kind::Degrade,
            r#"[{"resource":"a","count":1,"grade":2,"timeWindow":5,"minRequestAmount":-1}]"#,
            "is -1",
        ),
        (
            Kind::Degrade,
            r#"[{"resource":"a","strategy":1,"threshold":0.5,"retryTimeoutMs":5000}]"#,
            "strategy is a field of Sentinel for Go",
        ),
        (
            Kind::System,
            r#"[{"metricType":1,"triggerCount":5}]"#,
            "metricType is a field of Sentinel for Go",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIndex":1,"metricType":0,"threshold":5}]"#,
            "paramIndex is a field of Sentinel for Go, which is not read here; write paramIdx",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","count":5,"specificItems":[]}]"#,
            "write paramFlowItemList",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":5,"paramFlowItemList":[{"object":"7","classType":"Integer","count":1}]}]"#,
            "has the classType Integer; it must be int",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":5,"paramFlowItemList":[{"object":7.5,"count":1,"classType":"int"}]}]"#,
            "the exception 7.5 is not a valid int",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":5,"paramFlowItemList":[{"object":7}]}]"#,
            "the exception's count is missing",
        ),
    ] {
        let said = sentinel::parse(kind, text).expect_err(text).to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
}

#[test]
fn empty_fields_of_dashboards_count_as_absent() {
    let rules = flow(
        r#"[{"id":null,"resource":"a","limitApp":null,"grade":null,"count":5,"strategy":null,"refResource":null,
             "controlBehavior":null,"warmUpPeriodSec":null,"maxQueueingTimeMs":-1,"clusterMode":null,"regex":null},
            {"resource":"a","count":5,"grade":0,"statIntervalInMs":-1,"warmUpPeriodSec":-1}]"#,
    );
    assert_eq!(rules, [FlowRule::new("a", 5), FlowRule::in_flight("a", 5)]);
    let text = r#"[{"resource":"p","paramIdx":0,"count":5,"paramFlowItemList":null,"burstCount":null,"maxQueueingTimeMs":-1},
        {"resource":"p","paramIdx":0,"count":5,"grade":0,"burstCount":-1,"durationInSec":-1,
         "paramFlowItemList":[{"object":7,"count":9},{"object":true,"count":8,"classType":null},{"object":7,"count":6,"classType":"String"}]}]"#;
    let first = HotParamRule::new("p", ParamKey::Index(0), 5);
    let second = first.clone().measure(ParamMeasure::InFlight);
    let second = second.exception(7, 9).exception(true, 8).exception("7", 6);
    assert_eq!(
        sentinel::parse(Kind::ParamFlow, text)
            .unwrap()
            .hot_params
            .unwrap(),
        [first, second]
    );
    let text = r#"[{"highestSystemLoad":-1,"highestCpuUsage":-1,"qps":-1,"avgRt":-1,"maxThread":-1},{"qps":7,"avgRt":null}]"#;
    let want = SystemRule::default().qps(7);
    assert_eq!(
        sentinel::parse(Kind::System, text).unwrap().system.unwrap(),
        [want]
    );
}

#[test]
fn yaml_says_the_same_as_code() {
    let text = r#"
flow:
  - { resource: a, limit: 100/1m, strict: true, id: first }
  - { resource: b, limit: 10/1s, behaviour: warm-up-throttle, warm_up: 30s, cold_factor: 4, max_wait: 1s }
  - { pattern: "x.*", in_flight: 3, each_other_origin: true, context: c }
hot_params:
  - { resource: p, name: user, limit: 5/1m, burst: 1, exceptions: { vip: 9, 7: 8, true: 1 }, max_values: 10 }
system:
  - { load: 2.5, mean_rt: 50ms, in_flight: 100 }
authority:
  - { resource: a, deny: [x] }
"#;
    let rules = yaml::parse(text).unwrap();
    let first = FlowRule::new("a", 100)
        .interval(Duration::from_mins(1))
        .strict();
    let both = Behaviour::WarmUpThrottle {
        period: Duration::from_secs(30),
        cold_factor: 4.0,
        max_wait: Duration::from_secs(1),
    };
    let third = FlowRule::in_flight(Target::Pattern("x.*".into()), 3);
    let flow = vec![
        first.id("first"),
        FlowRule::new("b", 10).behaviour(both),
        third
            .origins(Origins::Others)
            .relation(Relation::Context("c".into())),
    ];
    assert_eq!(rules.flow, flow);
    let mut exceptions = rules.hot_params[0].exceptions.clone();
    exceptions.sort_by_key(|(_, units)| *units);
    assert_eq!(
        exceptions,
        [
            (Arg::from(true), 1),
            (Arg::from(7), 8),
            (Arg::from("vip"), 9)
        ]
    );
    assert_eq!(
        (rules.system[0].load, rules.authority[0].allow),
        (Some(2.5), false)
    );
    assert_eq!(yaml::parse("").unwrap(), Rules::default());
}

#[test]
fn wrong_yaml_is_refused_with_a_hint() {
    let error = |text: &str| yaml::parse(text).unwrap_err().to_string();
    for (text, says) in [
        (
            "flow:\n  - { resource: a, limit: 5/1s, beahviour: throttle }",
            "did you mean `behaviour`?",
        ),
        (
            "flow:\n  - { resource: a, limit: 5/1s, behaviour: trottle }",
            "did you mean `throttle`?",
        ),
        (
            "flow:\n  - { resource: a, limit: many }",
            "`limit` is `many`: a quota is N/duration",
        ),
        (
            "flow:\n  - { resource: a }",
            "line 2: flow rule 1: give it a limit",
        ),
        (
            "flow:\n  - { limit: 5/1s }",
            "line 2: flow rule 1: give it a resource or a pattern",
        ),
        (
            "flow:\n  - { resource: a, limit: 5/1s, max_wait: 1s }",
            "max_wait is for the behaviours throttle",
        ),
        (
            "flow:\n  - { resource: a, limit: 5/1s, memory: { when_scarce: 1 } }",
            "has no `high_mark`",
        ),
        (
            "flow:\n  - { pattern: '(', limit: 5/1s }",
            "does not compile",
        ),
        (
            "breakers:\n  - { resource: a, open: 5s }",
            "breaker 1: give it slower_than and ratio",
        ),
        (
            "breakers:\n  - { resource: a, errors: 5 }",
            "as in open: 5s",
        ),
        (
            "isolation:\n  - { resource: a, in_flight: -1 }",
            "a whole number from 0",
        ),
        ("adaptive:\n  - { resource: a }", "aimd, gradient2 or vegas"),
        (
            "hot_params:\n  - { resource: a, arg: 0, limit: 5/1s, exceptions: { vip: many } }",
            "`vip`: `many`",
        ),
        (
            "hot_params:\n  - { resource: a, arg: 0, limit: 5/1s, exceptions: [vip] }",
            "as in { vip: 100 }",
        ),
        (
            "system:\n  - { cpu: 90 }",
            "line 2: system rule 1: the CPU usage must be from 0 to 1",
        ),
        ("system:\n  - { load: .inf }", "a number such as 0.5"),
        (
            "authority:\n  - { resource: a, allow: office }",
            "write a list of names",
        ),
        (
            "flow: { resource: a, limit: 5/1s }",
            "write a list of rules; a rule's fields are: id, resource",
        ),
        ("flow: [", "line 2: not YAML"),
        ("flwo: []", "did you mean `flow`?"),
    ] {
        assert!(error(text).contains(says), "{text}: {}", error(text));
    }
}

#[test]
fn all_mistakes_of_a_yaml_file_are_reported_with_their_lines() {
    let text = "
isolation:
  - resource: a
    in_flight: few
flow:
  - { resource: a, limit: 5/1s }
  - resource: b
    limit: 5
    strict: maybe
  - { limit: 5/1s }
";
    assert_eq!(
        yaml::parse(text).unwrap_err().to_string(),
        "the rules are not well formed: \
         line 4: `in_flight` is `few`; it must be a whole number from 0 to 4294967295 | \
         line 8: `limit` is `5`: a quota is N/duration, as in 100/1m | \
         line 9: `strict` is `maybe`; it must be true or false | \
         line 10: flow rule 3: give it a resource or a pattern, and not both"
    );
}

#[test]
fn the_file_of_the_server_serves_a_gate_too() {
    let text = "
limits:
  - { name: per-user, limit: 100/1m }
flow:
  - { resource: a, limit: 5/1s }
";
    assert_eq!(
        yaml::parse(text).unwrap(),
        Rules::from(vec![FlowRule::new("a", 5)])
    );
}

#[test]
fn rules_as_dashboards_wrap_them_are_read() {
    let text = r#"[{"id":12,"app":"shop","ip":"10.0.0.1","port":8719,"gmtCreate":1,"gmtModified":null,
        "rule":{"resource":"p","paramIdx":0,"count":5,"limitApp":null,"clusterConfig":null,
            "paramFlowItemList":[
                {"object":"1.5","count":1,"classType":"double"},{"object":"0.1","count":2,"classType":"float"},
                {"object":"x","count":3,"classType":"char"},{"object":"TRUE","count":4,"classType":"boolean"},
                {"object":2.5,"count":5}]}}]"#;
    let rule = HotParamRule::new("p", ParamKey::Index(0), 5)
        .exception(1.5, 1)
        .exception(0.1_f32, 2)
        .exception('x', 3)
        .exception(true, 4)
        .exception(2.5, 5);
    let read = sentinel::parse(Kind::ParamFlow, text)
        .unwrap()
        .hot_params
        .unwrap();
    assert_eq!(read, [rule.id("12")]);
    let text =
        r#"[{"id":3,"app":"shop","rule":{"id":4,"resource":"a","limitApp":"x","strategy":1}}]"#;
    let read = sentinel::parse(Kind::Authority, text)
        .unwrap()
        .authority
        .unwrap();
    assert_eq!((read[0].id.as_deref(), read[0].allow), (Some("4"), false));
}

#[test]
fn a_refusal_names_the_rules_number_its_resource_and_the_field() {
    for (kind, text, says) in [
        (
            Kind::Flow,
            "[{\"resource\":\"a\",\"count\":1},\n{\"resource\":\"b\",\n\"count\":\"many\"}]",
            "rule 1 (resource b, line 2): count: \"many\" is not a number (line 3)",
        ),
        (
            Kind::ParamFlow,
            r#"[{"resource":"a","paramIdx":0,"count":1,"paramFlowItemList":[{"object":1,"count":"x"}]}]"#,
            "rule 0 (resource a, line 1): paramFlowItemList[0].count: ",
        ),
        (
            Kind::Authority,
            r#"[{"id":1,"rule":{"resource":"a","limitApp":null,"strategy":0}}]"#,
            "rule 0 (resource a, id 1, line 1): limitApp is missing",
        ),
        (
            Kind::Flow,
            r#"[{"resource":"route","resourceMode":0,"count":5,"intervalSec":10}]"#,
            "rule 0 (resource route, line 1): intervalSec is a field of Sentinel's gateway rules",
        ),
        (
            Kind::Flow,
            r#"[{"resource":"route","count":5,"paramItem":{"parseStrategy":0}}]"#,
            "paramItem is a field of Sentinel's gateway rules, which are not read here; write a hot-parameter rule",
        ),
    ] {
        let said = sentinel::parse(kind, text).expect_err(text).to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
}

#[test]
fn what_sentinels_reader_accepts_is_accepted() {
    for text in ["", " \n", "null", "\u{feff}[]", "[] // none"] {
        assert_eq!(flow(text), [], "{text:?}");
    }
    let text = "\u{feff}[ // the rules
        {\"resource\": \"a # no comment\", \"count\": \"10\", \"grade\": 1.0, \"strategy\": \"0\", /* direct */
         \"regex\": \"false\", \"warmUpPeriodSec\": \"\", \"clusterMode\": 0,},
    ]";
    assert_eq!(flow(text), [FlowRule::new("a # no comment", 10)]);
    let text =
        r#"[{"resource":"b","grade":"2","count":"3","timeWindow":"10","minRequestAmount":5.0}]"#;
    let breakers = sentinel::parse(Kind::Degrade, text)
        .unwrap()
        .breakers
        .unwrap();
    let wanted =
        BreakerRule::new("b", Trip::ErrorCount { count: 3 }, Duration::from_secs(10)).min_calls(5);
    assert_eq!(breakers, [wanted.slots(1)]);
    let text = r#"[{"resource":"c","paramIdx":"0","count":"5","paramFlowItemList":[{"object":"x","count":"7"}]}]"#;
    let params = sentinel::parse(Kind::ParamFlow, text)
        .unwrap()
        .hot_params
        .unwrap();
    assert_eq!(
        params,
        [HotParamRule::new("c", ParamKey::Index(0), 5).exception("x", 7)]
    );
}

#[test]
fn rules_that_fastjson_reads_are_read_and_those_that_block_all_calls_are_refused() {
    let five = |resource: &str| [FlowRule::new(resource, 5)];
    // Each text was read by Sentinel 1.8.9 with fastjson 1.2.83.
    for (text, resource) in [
        ("[{'resource':'a','count':5}]", "a"),
        ("[{resource : 'a', count:5}]", "a"),
        (r#"[{"Resource":"a","COUNT":5}]"#, "a"),
        (r#"[{"resource":7,"count":5}]"#, "7"),
        (r#"[{"resource":true,"count":5}]"#, "true"),
        (r#"[null,{"resource":"a","count":5}]"#, "a"),
        (r#"[{'resource':'a"b\'c','count':5}]"#, "a\"b'c"),
        (r"[{'resource':'a\x41\u0042\v','count':5}]", "aAB\u{b}"),
        (
            "[{ // it's a comment\n'resource':'a // none', /* don't */ 'count':5}]",
            "a // none",
        ),
    ] {
        assert_eq!(flow(text), five(resource), "{text}");
    }
    for name in ["limit_app", "limit-app", "LIMITAPP", "limitApp"] {
        let text = format!(r#"[{{"resource":"a","{name}":"x","count":5}}]"#);
        let [rule] = &flow(&text)[..] else {
            panic!("{text}")
        };
        assert_eq!(rule.origins, Origins::Only("x".into()), "{text}");
    }
    // A string that is no name stays, and so does the line of a mistake.
    assert_eq!(flow("[{'resource':'COUNT','count':5}]"), five("COUNT"));
    for (kind, text, says) in [
        (
            Kind::Flow,
            "[{'resource':'a','count':null}]",
            "count is missing",
        ),
        (
            Kind::Flow,
            "[{'resource':\n{'x':1},'count':5}]",
            "resource: {\"x\":1} is not a text (line 2)",
        ),
        (
            Kind::Flow,
            "[{'resource':'a','count':5,'COUNT':6}]",
            "duplicate field",
        ),
        (
            Kind::System,
            "[{'highestCpuUsage':80,'qps':3}]",
            "from 0 to 1",
        ),
    ] {
        let said = sentinel::parse(kind, text).expect_err(text).to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
}

#[test]
fn a_cluster_rule_applies_to_a_gate_if_it_falls_back_to_the_program() {
    let rule = |cluster: &str| format!(r#"[{{"resource":"a","count":5,"paramIdx":0,{cluster}}}]"#);
    let fallback = |on| {
        format!(
            r#""clusterMode":true,"clusterConfig":{{"flowId":1,"fallbackToLocalWhenFail":{on}}}"#
        )
    };
    let counts = |cluster: &str| {
        let text = rule(cluster);
        let params = sentinel::parse(Kind::ParamFlow, &text)
            .unwrap()
            .hot_params
            .unwrap();
        (flow(&text).len(), params.len())
    };
    assert_eq!(counts(r#""clusterMode":false"#), (1, 1));
    assert_eq!(counts(&fallback(true)), (1, 1));
    assert_eq!(counts(&fallback(false)), (0, 0));
    assert_eq!(
        counts(r#""clusterMode":true"#),
        (1, 0),
        "the default of each kind"
    );
}

#[test]
fn a_token_server_reads_cluster_rules_of_both_kinds() {
    let text = r#"[
        {"resource":"local","count":5},
        {"resource":"all","count":10,"clusterMode":true,"clusterConfig":{"flowId":101,"thresholdType":1}},
        {"resource":"each","count":2.5,"clusterMode":true,
         "clusterConfig":{"flowId":"102","sampleCount":4,"windowIntervalMs":2000}},
        {"app":"shop","rule":{"resource":"values","count":3,"paramIdx":0,"clusterMode":true,
         "clusterConfig":{"flowId":101,"thresholdType":1},
         "paramFlowItemList":[{"object":"vip","count":5,"classType":"java.lang.String"}]}}]"#;
    let rules = sentinel::parse_cluster(text).unwrap();
    let told: Vec<_> = rules
        .iter()
        .map(|rule| (rule.flow_id, rule.threshold, rule.units(rule.count)))
        .collect();
    let [global, each] = [ClusterThreshold::Global, ClusterThreshold::AverageLocal];
    assert_eq!(told, [(101, global, 10), (102, each, 5), (101, global, 3)]);
    assert_eq!(
        (rules[1].window, rules[1].slots),
        (Duration::from_secs(2), 4)
    );
    assert_eq!(rules[2].exceptions, Some(vec![(Arg::from("vip"), 5)]));
    assert_eq!(
        (
            &rules[0].exceptions,
            sentinel::parse_cluster("").unwrap().len()
        ),
        (&None, 0)
    );
    let said = |config: &str| {
        let text = format!(
            r#"[{{"resource":"a","count":1,"clusterMode":true,"clusterConfig":{config}}}]"#
        );
        sentinel::parse_cluster(&text).unwrap_err().to_string()
    };
    for (config, what) in [
        ("{}", "flowId is missing"),
        (r#"{"flowId":0}"#, "flowId is missing"),
        (r#"{"flowId":1,"thresholdType":2}"#, "thresholdType is 2"),
        (
            r#"{"flowId":1,"sampleCount":7}"#,
            "must divide the interval",
        ),
        (
            r#"{"flowId":1,"sampleCount":0}"#,
            "must divide the interval",
        ),
        (
            r#"{"flowId":1,"windowIntervalMs":-5}"#,
            "windowIntervalMs is -5",
        ),
        (r#"{"flowId":1,"strategy":1}"#, "strategy is 1"),
        ("7", "clusterConfig"),
    ] {
        assert!(said(config).contains(what), "{config}: {}", said(config));
    }
    let rule = r#"{"resource":"a","count":1,"clusterMode":true,"clusterConfig":{"flowId":1}}"#;
    let said = sentinel::parse_cluster(&format!("[{rule},{rule}]"))
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("flowId 1 of resource a is that of another rule"),
        "{said}"
    );
}
