//! The table "Differences from Sentinel's library" of the book: each row has a scenario here, and
//! each scenario a row.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use super::{super::interop::Random, BEGIN, Decision, ours, theirs};
use Decision::{Block, Pass};

/// The steps of a row, what Sentinel decides in the end, and what Tidegate does.
struct Row {
    id: &'static str,
    script: String,
    theirs: Vec<Decision>,
    ours: Vec<Decision>,
}

const SECOND: u64 = 1_000_000_000;

/// A call of `units` of `resource` at so many milliseconds. Its number is the time.
fn at(ms: u64, resource: &str, units: u64, rest: &str) -> String {
    format!("at {}\nenter {ms} {resource} {units} {rest}\n", BEGIN + ms)
}

const PLAIN: &str = "out false - - -";

fn row(id: &'static str, script: String, theirs: &[Decision], ours: &[Decision]) -> Row {
    Row {
        id,
        script,
        theirs: theirs.to_vec(),
        ours: ours.to_vec(),
    }
}

fn rows_of_flow_rules() -> Vec<Row> {
    let throttle =
        r#"rules flow [{"resource":"a","count":10,"controlBehavior":2,"maxQueueingTimeMs":5000}]"#;
    let slow = r#"{"resource":"a","count":1,"controlBehavior":2,"maxQueueingTimeMs":5000}"#;
    let related = r#"{"resource":"b","count":1,"strategy":1,"refResource":"a"}"#;
    vec![
        row(
            "above-threshold",
            format!("{throttle}\n{}", at(0, "a", 11, PLAIN)),
            &[Pass(0)],
            &[Block("Flow")],
        ),
        row(
            "throttle-wait",
            format!(
                "moves\nrules flow [{slow},{related}]\n{}{}{}",
                at(0, "a", 1, PLAIN),
                at(1, "a", 1, PLAIN),
                at(1_000, "b", 1, PLAIN)
            ),
            &[Pass(0), Pass(999_000_000), Block("Flow")],
            &[Pass(0), Pass(999_000_000), Pass(0)],
        ),
        row(
            "rounding",
            {
                let calls: String = (0..4)
                    .map(|call| {
                        at(0, "a", 1, PLAIN).replacen("enter 0", &format!("enter {call}"), 1)
                    })
                    .collect();
                format!(
                    "rules flow [{{\"resource\":\"a\",\"count\":3,\"controlBehavior\":2,\"maxQueueingTimeMs\":1000}}]\n{calls}"
                )
            },
            &[
                Pass(0),
                Pass(333_333_333),
                Pass(666_666_666),
                Pass(999_999_999),
            ],
            &[Pass(0), Pass(333_333_334), Pass(666_666_668), Block("Flow")],
        ),
        row(
            "no-queueing-time",
            format!(
                "rules flow [{{\"resource\":\"a\",\"count\":1,\"controlBehavior\":2,\"maxQueueingTimeMs\":0}}]\n{}{}",
                at(0, "a", 1, PLAIN),
                at(1, "a", 1, PLAIN)
            ),
            &[Pass(0), Pass(0)],
            &[Pass(0), Block("Flow")],
        ),
        row(
            "warm-up-rounding",
            {
                let calls: String = (0..10)
                    .chain(1_500..1_515)
                    .map(|ms| at(ms, "a", 1, PLAIN))
                    .collect();
                format!(
                    "rules flow [{{\"resource\":\"a\",\"count\":40,\"controlBehavior\":1,\"warmUpPeriodSec\":3}}]\n{calls}"
                )
            },
            &[[Pass(0); 24].as_slice(), &[Block("Flow")]].concat(),
            &[Pass(0); 25],
        ),
        row(
            "threads",
            {
                let calls: String = (0..7).map(|ms| at(ms, "a", 5, PLAIN)).collect();
                format!("rules flow [{{\"resource\":\"a\",\"count\":10,\"grade\":0}}]\n{calls}")
            },
            &[
                Pass(0),
                Pass(0),
                Pass(0),
                Pass(0),
                Pass(0),
                Pass(0),
                Block("Flow"),
            ],
            &[
                Pass(0),
                Pass(0),
                Block("Flow"),
                Block("Flow"),
                Block("Flow"),
                Block("Flow"),
                Block("Flow"),
            ],
        ),
        row(
            "reload",
            format!(
                "rules flow [{slow}]\n{}{}rules flow [{slow},{related}]\n{}",
                at(0, "a", 1, PLAIN),
                at(1, "a", 1, PLAIN),
                at(2, "a", 1, PLAIN)
            ),
            &[Pass(0), Pass(SECOND - 1_000_000), Pass(0)],
            &[
                Pass(0),
                Pass(SECOND - 1_000_000),
                Pass(2 * SECOND - 2_000_000),
            ],
        ),
        row(
            "no-origin",
            format!(
                "rules flow [{{\"resource\":\"a\",\"count\":1,\"limitApp\":\"other\"}}]\n{}{}",
                at(0, "a", 1, PLAIN),
                at(1, "a", 1, PLAIN)
            ),
            &[Pass(0), Pass(0)],
            &[Pass(0), Block("Flow")],
        ),
    ]
}

fn rows_of_other_rules() -> Vec<Row> {
    let value = "out false - - u";
    vec![
        row(
            "zero-units",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":0,\"count\":0}}]\n{}",
                at(0, "a", 0, value)
            ),
            &[Block("ParamFlow")],
            &[Pass(0)],
        ),
        row(
            "given-back",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":0,\"count\":1}}]\nrules flow [{{\"resource\":\"a\",\"count\":0}}]\n\
                 {}rules flow []\n{}",
                at(0, "a", 1, value),
                at(1, "a", 1, value)
            ),
            &[Block("Flow"), Block("ParamFlow")],
            &[Block("Flow"), Pass(0)],
        ),
        row(
            "waits",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":0,\"count\":300,\"controlBehavior\":2,\"maxQueueingTimeMs\":500}}]\n\
                 {}{}",
                at(0, "a", 1, value),
                at(1, "a", 1, value)
            ),
            &[Pass(0), Pass(2_000_000)],
            &[Pass(0), Pass(2_333_334)],
        ),
        row(
            "error-ratio",
            {
                let rule = r#"rules degrade [{"resource":"a","grade":1,"count":1.0,"timeWindow":5,"minRequestAmount":5}]"#;
                let call = |ms| format!("{}exit {ms} failed\n", at(ms, "a", 1, PLAIN));
                format!(
                    "{rule}\n{}{}",
                    (0..6).map(call).collect::<String>(),
                    at(10, "a", 1, PLAIN)
                )
            },
            &[Pass(0); 7],
            &[
                Pass(0),
                Pass(0),
                Pass(0),
                Pass(0),
                Pass(0),
                Block("Degrade"),
                Block("Degrade"),
            ],
        ),
        row(
            "system-threads",
            {
                let calls: String = (0..5).map(|ms| at(ms, "a", 1, "in false - - -")).collect();
                format!("rules system [{{\"maxThread\":3}}]\n{calls}")
            },
            &[Pass(0), Pass(0), Pass(0), Pass(0), Block("System")],
            &[Pass(0), Pass(0), Pass(0), Block("System"), Block("System")],
        ),
        row(
            "hot-renewal",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":0,\"count\":1}}]\n{}{}{}",
                at(0, "a", 1, value),
                at(1_000, "a", 1, value),
                at(1_001, "a", 1, value)
            ),
            &[Pass(0), Block("ParamFlow"), Pass(0)],
            &[Pass(0), Pass(0), Block("ParamFlow")],
        ),
        row(
            "hot-longest-wait",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":0,\"count\":10,\"controlBehavior\":2,\"maxQueueingTimeMs\":100}}]\n\
                 {}{}",
                at(0, "a", 1, value),
                at(0, "a", 1, value)
            ),
            &[Pass(0), Block("ParamFlow")],
            &[Pass(0), Pass(100_000_000)],
        ),
        row(
            "negative-index",
            format!(
                "rules paramFlow [{{\"resource\":\"a\",\"paramIdx\":-1,\"count\":1}}]\n{}{}{}{}",
                at(0, "a", 1, "out false - - u"),
                at(1, "a", 1, "out false - - v,w"),
                at(2, "a", 1, "out false - - x,w"),
                at(3, "a", 1, "out false - - v,y")
            ),
            &[Pass(0), Pass(0), Pass(0), Block("ParamFlow")],
            &[Pass(0), Pass(0), Block("ParamFlow"), Pass(0)],
        ),
        row(
            "reserved-origin",
            format!(
                "rules flow [{{\"resource\":\"a\",\"count\":1,\"limitApp\":\"other\"}}]\n{}{}",
                at(0, "a", 1, "out false other - -"),
                at(1, "a", 1, "out false other - -")
            ),
            &[Pass(0), Pass(0)],
            &[Pass(0), Block("Flow")],
        ),
        row(
            "blanks",
            format!(
                "rules authority [{{\"resource\":\"a\",\"limitApp\":\"a, b\",\"strategy\":1}}]\n{}{}",
                at(0, "a", 1, "out false a - -"),
                at(1, "a", 1, "out false b - -")
            ),
            &[Block("Authority"), Pass(0)],
            &[Block("Authority"), Block("Authority")],
        ),
    ]
}

/// The ids of the rows of the book's table under this heading.
pub fn listed(heading: &str) -> BTreeSet<String> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/sentinel.md");
    let book = fs::read_to_string(book).unwrap();
    let (_, table) = book.split_once(&format!("### {heading}\n")).unwrap();
    let rows = table
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            line.split('|')
                .nth(1)
                .unwrap()
                .trim()
                .trim_matches('`')
                .to_owned()
        })
        .collect()
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn each_row_of_the_differences_is_what_both_decide() {
    let mut shown = BTreeSet::new();
    for Row {
        id,
        script,
        theirs: want_theirs,
        ours: want_ours,
    } in rows_of_flow_rules()
        .into_iter()
        .chain(rows_of_other_rules())
    {
        let script = format!("begin\nat {BEGIN}\n{script}");
        assert_eq!(
            theirs(&script),
            want_theirs,
            "Sentinel's decisions for `{id}`\n{script}"
        );
        assert_eq!(
            ours(&script),
            want_ours,
            "Tidegate's decisions for `{id}`\n{script}"
        );
        assert_ne!(want_theirs, want_ours, "`{id}` is no difference");
        shown.insert(id.to_owned());
    }
    shown.insert("prioritized".to_owned());
    prioritized_calls_exceed_the_threshold_with_sentinel();
    shown.insert("other-warm-up".to_owned());
    origins_without_a_rule_warm_up_together_with_sentinel();
    assert_eq!(
        listed("Differences from Sentinel's library"),
        shown,
        "rows of the book, and scenarios of this test"
    );
}

/// The most units that start in a second of two slots.
fn most_in_a_second(decisions: &[(u64, u64, Decision)]) -> u64 {
    let starts: Vec<(u64, u64)> = decisions
        .iter()
        .filter_map(|(ms, units, decision)| match decision {
            Pass(wait) => Some((ms + wait / 1_000_000, *units)),
            Block(_) => None,
        })
        .collect();
    let last = starts.iter().map(|(ms, _)| *ms).max().unwrap();
    let within = |begin: u64| {
        starts
            .iter()
            .filter(move |(ms, _)| (begin..begin + 1_000).contains(ms))
    };
    (0..=last)
        .step_by(500)
        .map(|begin| within(begin).map(|(_, units)| units).sum())
        .max()
        .unwrap()
}

fn prioritized_calls_exceed_the_threshold_with_sentinel() {
    const CALLS: usize = 100;
    let (mut script, mut calls) = (String::new(), Vec::new());
    for seed in 0..200 {
        let (mut random, begin) = (Random(seed), seed * 3_600_000);
        script.push_str("begin\nrules flow [{\"resource\":\"a\",\"count\":2}]\n");
        let mut now = begin;
        for call in 0..CALLS {
            now += random.below(300);
            let units = 1 + random.below(2);
            let _ = writeln!(
                script,
                "at {}\nenter {call} a {units} out true - - -",
                BEGIN + now
            );
            calls.push((now - begin, units));
        }
    }
    let [theirs, ours] = [theirs(&script), ours(&script)].map(|decisions| {
        let timed = calls
            .iter()
            .zip(decisions)
            .map(|((ms, units), decision)| (*ms, *units, decision));
        let timed: Vec<_> = timed.collect();
        timed.chunks(CALLS).map(most_in_a_second).max().unwrap()
    });
    println!(
        "prioritized calls, 2/s: up to {theirs} units in a second with Sentinel, {ours} with Tidegate"
    );
    assert!(ours <= 2 && theirs > 2, "{theirs} {ours}");
}

fn origins_without_a_rule_warm_up_together_with_sentinel() {
    let rule =
        r#"{"resource":"a","count":12,"controlBehavior":1,"warmUpPeriodSec":4,"limitApp":"other"}"#;
    let warm: String = (0..300)
        .map(|call| at(call * 80, "a", 1, "out false x - -"))
        .collect();
    let then: String = (0..12)
        .map(|call| at(24_000 + call, "a", 1, "out false y - -"))
        .collect();
    let script = format!("begin\nrules flow [{rule}]\n{warm}{then}");
    let [theirs, ours] = [theirs(&script), ours(&script)].map(|decisions| {
        decisions[300..]
            .iter()
            .filter(|decision| matches!(decision, Pass(_)))
            .count()
    });
    println!(
        "another origin after 24 s of warm-up, 12/s: {theirs} of 12 pass with Sentinel, {ours} with Tidegate"
    );
    assert!(ours == 4 && theirs > ours, "{theirs} {ours}");
}
