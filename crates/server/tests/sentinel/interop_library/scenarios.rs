//! Seeded scenarios of each kind of rule, and of mixtures.

use std::{collections::BTreeMap, env, fmt::Write as _};

use super::{super::interop::Random, BEGIN, Decision, ours, theirs};

/// Scenarios that one program of Java takes.
const AT_ONCE: u64 = 1_000;
const CALLS: usize = 60;

/// The calls of a scenario. Each choice is made call by call.
#[derive(Clone, Copy)]
struct Calls {
    /// Units of a call: from 1 to this.
    units: u64,
    /// Milliseconds to the next call: fewer than this.
    pause: u64,
    /// Milliseconds that a call takes: fewer than this, and `least`.
    takes: u64,
    least: u64,
    /// Calls come at multiples of this time, in milliseconds.
    step: u64,
    /// Of ten calls so many fail.
    failing: u64,
    are_inbound: bool,
    are_prioritized: bool,
    resources: &'static [&'static str],
    origins: &'static [&'static str],
    contexts: &'static [&'static str],
    values: &'static [&'static str],
}

const CALLS_OF_ONE: Calls = Calls {
    units: 1,
    pause: 120,
    takes: 1,
    least: 0,
    step: 1,
    failing: 0,
    are_inbound: false,
    are_prioritized: false,
    resources: &["a"],
    origins: &["-"],
    contexts: &["-"],
    values: &["-"],
};

/// Rules, calls, and the row of "Differences from Sentinel" that may show, if any.
type Scenario = (Vec<(&'static str, String)>, Calls, Option<&'static str>);

type Make = fn(&mut Random) -> Scenario;

const KINDS: [(&str, Make); 25] = [
    ("reject", |r| {
        (
            vec![flow(&format!(r#""count":{}"#, count(r)))],
            Calls {
                units: 3,
                ..CALLS_OF_ONE
            },
            None,
        )
    }),
    ("threads", threads),
    ("warm-up", warm_up),
    ("throttle", throttle),
    ("warm-up-throttle", warm_up_throttle),
    ("related", |r| {
        let count = count(r);
        let rule = flow(&format!(
            r#""count":{count},"strategy":1,"refResource":"b""#
        ));
        let calls = Calls {
            units: 2,
            resources: &["a", "b"],
            ..CALLS_OF_ONE
        };
        (vec![rule], calls, (count < 2).then_some("above-threshold"))
    }),
    ("chain", |r| {
        let rule = flow(&format!(
            r#""count":{},"strategy":2,"refResource":"web""#,
            count(r)
        ));
        (
            vec![rule],
            Calls {
                units: 2,
                contexts: &["web", "batch"],
                ..CALLS_OF_ONE
            },
            None,
        )
    }),
    ("origins", |r| {
        let rules = ["x", "other", "default"]
            .map(|of| format!(r#""count":{},"limitApp":"{of}""#, count(r)));
        let has_none = tenth(r);
        let origins: &[_] = if has_none {
            &["-", "x", "y"]
        } else {
            &["x", "y", "z"]
        };
        (
            vec![flows(&rules)],
            Calls {
                origins,
                pause: 60,
                ..CALLS_OF_ONE
            },
            has_none.then_some("no-origin"),
        )
    }),
    ("two-flow-rules", |r| {
        let rules = [
            format!(r#""count":{}"#, count(r)),
            format!(r#""count":{},"grade":0"#, 1 + r.below(9)),
        ];
        (
            vec![flows(&rules)],
            Calls {
                takes: 400,
                ..CALLS_OF_ONE
            },
            None,
        )
    }),
    ("prioritized", prioritized),
    ("slow-ratio", |r| {
        let (rt, ratio) = (1 + r.below(80), fraction(r));
        let text = format!(r#""grade":0,"count":{rt},"slowRatioThreshold":{ratio}"#);
        (
            vec![breaker(r, &text)],
            Calls {
                takes: 120,
                ..CALLS_OF_ONE
            },
            None,
        )
    }),
    ("error-ratio", error_ratio),
    ("error-count", |r| {
        let text = format!(r#""grade":2,"count":{}"#, 1 + r.below(9));
        (vec![breaker(r, &text)], failing(r), None)
    }),
    ("two-breakers", |r| {
        let slow = breaker(r, r#""grade":0,"count":60,"slowRatioThreshold":0.5"#).1;
        let errors = breaker(r, r#""grade":2,"count":3"#).1;
        let rules = format!(
            "[{},{}]",
            slow.trim_matches(['[', ']']),
            errors.trim_matches(['[', ']'])
        );
        (vec![("degrade", rules)], failing(r), None)
    }),
    ("hot-values", hot_values),
    ("hot-threads", hot_threads),
    ("hot-throttle", hot_throttle),
    ("system-qps", |r| {
        (
            vec![system(&format!(r#""qps":{}"#, count(r)))],
            inbound(r),
            None,
        )
    }),
    ("system-threads", |r| {
        (
            vec![system(&format!(r#""maxThread":{}"#, 1 + r.below(6)))],
            inbound(r),
            None,
        )
    }),
    ("system-rt", |r| {
        (
            vec![system(&format!(r#""avgRt":{}"#, 10 + r.below(300)))],
            inbound(r),
            None,
        )
    }),
    ("authority", |r| {
        let rule = format!(
            r#"[{{"resource":"a","limitApp":"x,z","strategy":{}}}]"#,
            r.below(2)
        );
        (
            vec![("authority", rule)],
            Calls {
                origins: &["-", "x", "y", "z", "xx"],
                ..CALLS_OF_ONE
            },
            None,
        )
    }),
    ("arguments", arguments),
    ("reserved-origins", reserved_origins),
    ("mixture", mixture),
    ("everything", everything),
];

const VALUES: &[&str] = &["-", "u", "v", "vip"];

fn count(random: &mut Random) -> u64 {
    1 + random.below(25)
}

/// A ratio below one.
fn fraction(random: &mut Random) -> f64 {
    (1 + random.below(9)) as f64 / 10.0
}

/// Whether this one of ten scenarios is where a difference may show.
fn tenth(random: &mut Random) -> bool {
    random.below(10) == 0
}

fn flow(rule: &str) -> (&'static str, String) {
    flows(&[rule.to_owned()])
}

fn flows(rules: &[String]) -> (&'static str, String) {
    let rules: Vec<String> = rules
        .iter()
        .map(|rule| format!(r#"{{"resource":"a",{rule}}}"#))
        .collect();
    ("flow", format!("[{}]", rules.join(",")))
}

fn breaker(random: &mut Random, rule: &str) -> (&'static str, String) {
    let (least, open) = (1 + random.below(8), 1 + random.below(3));
    let interval = [500, 1_000, 3_000][random.below(3) as usize];
    let more =
        format!(r#""minRequestAmount":{least},"timeWindow":{open},"statIntervalMs":{interval}"#);
    ("degrade", format!(r#"[{{"resource":"a",{rule},{more}}}]"#))
}

fn hot(rule: &str) -> (&'static str, String) {
    let items = r#"[{"object":"vip","count":9,"classType":"java.lang.String"}]"#;
    (
        "paramFlow",
        format!(r#"[{{"resource":"a","paramIdx":0,{rule},"paramFlowItemList":{items}}}]"#),
    )
}

fn system(rule: &str) -> (&'static str, String) {
    ("system", format!("[{{{rule}}}]"))
}

fn inbound(random: &mut Random) -> Calls {
    let takes = 1 + random.below(400);
    Calls {
        are_inbound: true,
        takes,
        resources: &["a", "b"],
        ..CALLS_OF_ONE
    }
}

fn failing(random: &mut Random) -> Calls {
    Calls {
        failing: 1 + random.below(9),
        takes: 100,
        ..CALLS_OF_ONE
    }
}

fn threads(random: &mut Random) -> Scenario {
    let rule = flow(&format!(r#""count":{},"grade":0"#, 1 + random.below(9)));
    let many = tenth(random);
    let calls = Calls {
        units: if many { 3 } else { 1 },
        takes: 900,
        ..CALLS_OF_ONE
    };
    (vec![rule], calls, many.then_some("threads"))
}

fn warm_up(random: &mut Random) -> Scenario {
    let (count, period) = (3 + random.below(40), 2 + random.below(9));
    let is_others = tenth(random);
    let (app, origins): (_, &[&str]) = if is_others {
        ("other", &["x", "y"])
    } else {
        ("default", &["-"])
    };
    let rule = format!(
        r#""count":{count},"controlBehavior":1,"warmUpPeriodSec":{period},"limitApp":"{app}""#
    );
    // The only ones of these rules with a rate, at some number of tokens, that Sentinel computes
    // two roundings below a whole number.
    let is_rounded = [(33, 7), (40, 3), (40, 6)].contains(&(count, period));
    let row = if is_others {
        Some("other-warm-up")
    } else {
        is_rounded.then_some("warm-up-rounding")
    };
    (
        vec![flow(&rule)],
        Calls {
            origins,
            pause: 200,
            ..CALLS_OF_ONE
        },
        row,
    )
}

fn throttle(random: &mut Random) -> Scenario {
    let (count, longest) = (1 + random.below(120), random.below(1_000).max(1));
    let rule = format!(r#""count":{count},"controlBehavior":2,"maxQueueingTimeMs":{longest}"#);
    let is_large = tenth(random);
    let units = if is_large { count + 3 } else { count.min(3) };
    let calls = Calls {
        units,
        pause: 60,
        ..CALLS_OF_ONE
    };
    (
        vec![flow(&rule)],
        calls,
        Some(if is_large {
            "above-threshold"
        } else {
            "rounding"
        }),
    )
}

fn warm_up_throttle(random: &mut Random) -> Scenario {
    let (count, period) = (3 + random.below(40), 2 + random.below(9));
    let longest = random.below(1_000);
    let rule = format!(
        r#""count":{count},"controlBehavior":3,"warmUpPeriodSec":{period},"maxQueueingTimeMs":{longest}"#
    );
    (vec![flow(&rule)], CALLS_OF_ONE, Some("waits"))
}

fn prioritized(random: &mut Random) -> Scenario {
    let rule = flow(&format!(r#""count":{}"#, count(random)));
    let many = tenth(random);
    let units = if many { 3 } else { 1 };
    let calls = Calls {
        units,
        pause: 80,
        least: 500,
        are_prioritized: true,
        ..CALLS_OF_ONE
    };
    (vec![rule], calls, many.then_some("prioritized"))
}

fn error_ratio(random: &mut Random) -> Scenario {
    let is_one = tenth(random);
    let ratio = if is_one { 1.0 } else { fraction(random) };
    let rule = breaker(random, &format!(r#""grade":1,"count":{ratio}"#));
    let calls = if is_one {
        Calls {
            failing: 10,
            ..CALLS_OF_ONE
        }
    } else {
        failing(random)
    };
    (vec![rule], calls, is_one.then_some("error-ratio"))
}

fn hot_values(random: &mut Random) -> Scenario {
    let (count, burst, duration) = (1 + random.below(6), random.below(4), 1 + random.below(3));
    let rule = format!(r#""count":{count},"burstCount":{burst},"durationInSec":{duration}"#);
    // No two calls are a whole number of seconds apart, except where the row may show.
    let is_whole = tenth(random);
    let calls = Calls {
        units: 2,
        step: if is_whole { 1 } else { 7 },
        values: VALUES,
        ..CALLS_OF_ONE
    };
    (vec![hot(&rule)], calls, is_whole.then_some("hot-renewal"))
}

fn hot_threads(random: &mut Random) -> Scenario {
    let rule = format!(r#""grade":0,"count":{}"#, 1 + random.below(6));
    let calls = Calls {
        takes: 900,
        values: VALUES,
        ..CALLS_OF_ONE
    };
    (vec![hot(&rule)], calls, None)
}

fn hot_throttle(random: &mut Random) -> Scenario {
    let is_uneven = tenth(random);
    let count = if is_uneven {
        300
    } else {
        [1, 2, 5, 10, 20][random.below(5) as usize]
    };
    let longest = 1 + random.below(900);
    let rule = format!(
        r#""count":{count},"controlBehavior":2,"maxQueueingTimeMs":{longest},"durationInSec":1"#
    );
    (
        vec![hot(&rule)],
        Calls {
            values: &["u", "v"],
            pause: 60,
            ..CALLS_OF_ONE
        },
        is_uneven.then_some("waits"),
    )
}

/// Up to three rules for arguments from the front and from the end, some of which a call lacks.
fn arguments(random: &mut Random) -> Scenario {
    let more = random.below(3);
    // A rule on units alone, or some of which most are on threads, which each call returns.
    let units = if more == 0 || tenth(random) { 2 } else { 1 };
    let rules: Vec<(i64, u64)> = (0..=more)
        .map(|_| (random.below(9).cast_signed() - 4, random.below(units)))
        .collect();
    let is_counted_from_end = rules.iter().any(|(index, _)| *index < 0);
    let takes_units = rules.iter().any(|(_, grade)| *grade == 1);
    let same_number: [&[_]; 3] = [
        &["u", "v", "w"],
        &["u,v", "v,u", "v,v"],
        &["u,v,w", "w,v,u"],
    ];
    let (row, values): (_, &[_]) = if is_counted_from_end && tenth(random) {
        (Some("negative-index"), &["u", "u,v", "v,u,w"])
    } else if is_counted_from_end {
        (None, same_number[random.below(3) as usize])
    } else {
        (
            None,
            &["-", "u", "v", "u,v", "v,v", "u,v,w", "w,v,u", "u,v,w,vip"],
        )
    };
    let texts: Vec<String> = rules
        .iter()
        .map(|(index, grade)| {
            let count = 1 + random.below(6);
            format!(r#"{{"resource":"a","paramIdx":{index},"grade":{grade},"count":{count}}}"#)
        })
        .collect();
    let calls = Calls {
        takes: 300,
        step: 7,
        values,
        ..CALLS_OF_ONE
    };
    let row = row.or((rules.len() > 1 && takes_units).then_some("given-back"));
    (
        vec![("paramFlow", format!("[{}]", texts.join(",")))],
        calls,
        row,
    )
}

/// Callers whose names mean something in a rule.
fn reserved_origins(random: &mut Random) -> Scenario {
    let mut apps = vec!["x", "other", "default"];
    apps.retain(|_| random.below(3) > 0);
    apps.push("default");
    let row = apps.contains(&"other").then_some("reserved-origin");
    let rules: Vec<String> = apps
        .into_iter()
        .map(|app| format!(r#""count":{},"limitApp":"{app}""#, count(random)))
        .collect();
    let authority = format!(
        r#"[{{"resource":"b","limitApp":"{}","strategy":{}}}]"#,
        ["default", "other", "other,x"][random.below(3) as usize],
        random.below(2)
    );
    let calls = Calls {
        pause: 60,
        resources: &["a", "a", "b"],
        origins: &["default", "other", "x", "y"],
        ..CALLS_OF_ONE
    };
    (vec![flows(&rules), ("authority", authority)], calls, row)
}

/// Any of the kinds of rules together, each as its own scenario makes it, under calls that have all
/// that a rule may ask for.
fn everything(random: &mut Random) -> Scenario {
    const MADE: [Make; 9] = [
        threads,
        warm_up,
        throttle,
        error_ratio,
        hot_threads,
        hot_values,
        arguments,
        reserved_origins,
        mixture,
    ];
    let (mut rules, mut row) = (Vec::<(&str, String)>::new(), None);
    for make in MADE {
        let (more, _, its_row) = make(random);
        if random.below(2) == 0 || its_row.is_some() && its_row != Some("rounding") {
            continue;
        }
        for (kind, more) in more {
            // Sentinel does not give back what a value, or a call in a throttle, took.
            let keeps = match kind {
                "flow" => more.contains("\"controlBehavior\":2"),
                "paramFlow" => {
                    more.matches("\"grade\":0").count() < more.matches("\"paramIdx\"").count()
                }
                _ => false,
            };
            if keeps && !tenth(random) {
                continue;
            }
            row = row.or(keeps.then_some("given-back"));
            // The calls have different numbers of arguments.
            let from_end = more.contains("\"paramIdx\":-");
            if from_end && !tenth(random) {
                continue;
            }
            row = row.or(from_end.then_some("negative-index"));
            match rules.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, all)) => {
                    all.pop();
                    *all = format!("{all},{}", &more[1..]);
                }
                None => rules.push((kind, more)),
            }
        }
    }
    let calls = Calls {
        takes: 300,
        step: 7,
        failing: 3,
        are_inbound: true,
        resources: &["a", "a", "a", "b"],
        origins: &["-", "x", "y"],
        contexts: &["-", "web"],
        values: &["-", "u", "v", "vip", "u,v", "v,u,w"],
        ..CALLS_OF_ONE
    };
    (rules, calls, row)
}

/// Rules of several kinds for one resource.
fn mixture(random: &mut Random) -> Scenario {
    let mut rules = vec![flow(&format!(r#""count":{}"#, 1 + random.below(15)))];
    let (slow, ratio) = (20 + random.below(60), fraction(random));
    let slow = format!(r#""grade":0,"count":{slow},"slowRatioThreshold":{ratio}"#);
    rules.push(breaker(random, &slow));
    rules.push(system(&format!(
        r#""qps":{},"maxThread":{}"#,
        3 + random.below(15),
        2 + random.below(9)
    )));
    rules.push((
        "authority",
        r#"[{"resource":"a","limitApp":"x","strategy":1}]"#.to_owned(),
    ));
    let counts_values = tenth(random);
    if counts_values {
        rules.push(hot(&format!(r#""count":{}"#, 2 + random.below(4))));
    }
    let calls = Calls {
        takes: 100,
        step: 7,
        failing: 2,
        are_inbound: true,
        resources: &["a", "a", "b"],
        origins: &["-", "-", "y", "x"],
        values: VALUES,
        ..CALLS_OF_ONE
    };
    (rules, calls, counts_values.then_some("given-back"))
}

/// The steps of a scenario that begins at `begin`.
fn script((rules, calls, _): &Scenario, begin: u64, random: &mut Random) -> String {
    let mut script = format!("begin\nat {begin}\n");
    for (kind, rules) in rules {
        let _ = writeln!(script, "rules {kind} {rules}");
    }
    let (mut now, mut open) = (begin, BTreeMap::<(u64, usize), &str>::new());
    for call in 0..CALLS {
        let pause = if random.below(40) == 0 {
            4_000
        } else {
            calls.pause
        };
        now += calls.step * random.below(pause.div_ceil(calls.step));
        while let Some(first) = open.first_entry().filter(|first| first.key().0 <= now) {
            let ((end, call), how) = first.remove_entry();
            let _ = writeln!(script, "at {end}\nexit {call} {how}");
        }
        let mut one = |of: &[&'static str]| of[random.below(of.len() as u64) as usize];
        let (resource, origin) = (one(calls.resources), one(calls.origins));
        let (context, value) = (one(calls.contexts), one(calls.values));
        let units = 1 + random.below(calls.units);
        let direction = if calls.are_inbound && random.below(8) > 0 {
            "in"
        } else {
            "out"
        };
        let is_prioritized = calls.are_prioritized && random.below(2) == 0;
        let _ = writeln!(
            script,
            "at {now}\nenter {call} {resource} {units} {direction} {is_prioritized} {origin} {context} {value}"
        );
        let how = if random.below(10) < calls.failing {
            "failed"
        } else {
            "ok"
        };
        open.insert((now + calls.least + random.below(calls.takes), call), how);
    }
    script
}

/// The script for Tidegate, with the rules that mean the same there: Sentinel admits one call more
/// than `maxThread`, and no wait for a value's turn that is as long as the longest. The rows
/// `system-threads` and `hot-longest-wait` show both.
fn translated(script: &str) -> String {
    let line = |line: &str| {
        let (key, change) = match line
            .strip_prefix("rules ")
            .and_then(|line| line.split_once(' '))
        {
            Some(("system", _)) => ("\"maxThread\":", 1),
            Some(("paramFlow", _)) => ("\"maxQueueingTimeMs\":", -1),
            _ => return line.to_owned(),
        };
        let Some((before, after)) = line.split_once(key) else {
            return line.to_owned();
        };
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap();
        let number: i64 = after[..end].parse().unwrap();
        format!("{before}{key}{}{}", number + change, &after[end..])
    };
    script.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Where waits differ by more than the row `waits` explains: Sentinel rounds each distance of two
/// calls to a millisecond. Once a call passes with one and is blocked by the other, the calls after
/// it wait for different ones.
fn unexplained_wait(ours: &[Decision], theirs: &[Decision]) -> Option<usize> {
    let pairs = ours.iter().zip(theirs).enumerate();
    let mut same_calls = pairs.take_while(|(_, (ours, theirs))| {
        matches!(ours, Decision::Pass(_)) == matches!(theirs, Decision::Pass(_))
    });
    same_calls.find_map(|(at, pair)| match pair {
        (Decision::Pass(ours), Decision::Pass(theirs)) => {
            (ours.abs_diff(*theirs) > 500_000 * (at as u64 + 1)).then_some(at)
        }
        _ => None,
    })
}

/// The first difference, unless it is a wait that is at most some nanoseconds shorter than the
/// longest with Sentinel, and longer here.
fn unexplained_block(ours: &[Decision], theirs: &[Decision], script: &str) -> Option<usize> {
    let at = ours
        .iter()
        .zip(theirs)
        .position(|(ours, theirs)| !agree(*ours, *theirs))?;
    let (_, longest) = script.split_once("\"maxQueueingTimeMs\":").unwrap();
    let longest: u64 = longest[..longest.find(|c: char| !c.is_ascii_digit()).unwrap()]
        .parse()
        .unwrap();
    let is_at_the_bound = match (ours[at], theirs[at]) {
        (Decision::Block("Flow"), Decision::Pass(wait)) => {
            (longest * 1_000_000).abs_diff(wait) < 100
        }
        _ => false,
    };
    (!is_at_the_bound).then_some(at)
}

/// Whether two decisions are the same. Sentinel rounds the distance of two calls to whole
/// nanoseconds, so their waits may be some nanoseconds apart.
fn agree(ours: Decision, theirs: Decision) -> bool {
    match (ours, theirs) {
        (Decision::Pass(ours), Decision::Pass(theirs)) => ours.abs_diff(theirs) < 100,
        _ => ours == theirs,
    }
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn seeded_scenarios_of_each_kind_are_decided_as_by_sentinels_library() {
    let only = env::var("KIND").ok();
    let scenarios = if env::var_os("TIDEGATE_LONG").is_some() {
        10_000
    } else {
        100
    };
    let mut unexplained = Vec::new();
    let mut all = 0;
    for (kind, make) in KINDS
        .into_iter()
        .filter(|(kind, _)| only.as_ref().is_none_or(|only| only == kind))
    {
        let (mut decisions, mut blocked) = (0, 0);
        let mut differ: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for first in (0..scenarios).step_by(AT_ONCE as usize) {
            let (mut scripts, mut rows) = (Vec::new(), Vec::new());
            for seed in first..(first + AT_ONCE).min(scenarios) {
                let mut random = Random(seed);
                let scenario = make(&mut random);
                // An hour apart, so that the statistics of all inbound calls are those of the
                // scenario.
                scripts.push(script(
                    &scenario,
                    BEGIN + (seed - first + 1) * 3_600_000,
                    &mut random,
                ));
                rows.push(scenario.2);
            }
            let theirs = theirs(&scripts.concat());
            assert_eq!(theirs.len(), CALLS * scripts.len(), "{kind}");
            for ((script, row), theirs) in scripts.iter().zip(rows).zip(theirs.chunks(CALLS)) {
                let ours = ours(&translated(script));
                decisions += ours.len();
                blocked += ours
                    .iter()
                    .filter(|decision| matches!(decision, Decision::Block(_)))
                    .count();
                let first = ours
                    .iter()
                    .zip(theirs)
                    .position(|(ours, theirs)| !agree(*ours, *theirs));
                let (different, of) = differ.entry(row.unwrap_or_default()).or_default();
                *of += 1;
                *different += usize::from(first.is_some());
                let unexplained_at = match row {
                    None => first,
                    Some("waits") => unexplained_wait(&ours, theirs),
                    Some("rounding") => unexplained_block(&ours, theirs, script),
                    Some(_) => None,
                };
                if let Some(at) = unexplained_at {
                    let (ours, theirs) = (ours[at], theirs[at]);
                    unexplained.push(format!(
                        "{kind}, call {at}: ours {ours:?}, theirs {theirs:?}\n{script}"
                    ));
                }
            }
        }
        all += decisions;
        println!("{kind}: {scenarios} scenarios, {decisions} decisions, {blocked} of them blocked");
        for (row, (different, of)) in differ {
            let row = if row.is_empty() {
                "no difference allowed"
            } else {
                row
            };
            println!("    {row}: {different} of {of} scenarios differ");
        }
        assert!(
            blocked > 0 && blocked < decisions,
            "{kind}: {blocked} of {decisions}"
        );
    }
    println!(
        "{all} decisions in all, {} scenarios with a difference that has no row",
        unexplained.len()
    );
    if let Some(path) = env::var_os("TIDEGATE_DIFFERENCES") {
        std::fs::write(path, unexplained.join("\n")).unwrap();
    }
    assert!(unexplained.is_empty(), "{}", unexplained[0]);
}
