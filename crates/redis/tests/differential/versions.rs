//! Values that earlier versions left in the store: this version goes on from them.
//!
//! `tests/values-1.txt` was written by version 0.1, with a line for each algorithm and way to share
//! it. Each line has the policy, who wrote last (`exact`, `leased` or `reported`), the value's
//! shape in the key, the time, the value, the holder's name (permits only), and what was answered
//! to a request for one unit and to a refund of two.

use std::fmt::Write as _;

use tidegate_core::lease::{Mode, Request, Terms};

use super::*;

const FIRST: &str = include_str!("../values-1.txt");

const POLICIES: [&str; 12] = [
    "fixed-window 100/1m",
    "fixed-window:first_hit=true 100/1m",
    "sliding-window 100/1m",
    "sliding-window:slots=60 70000/1h",
    "sliding-counter 100/1m",
    "sliding-counter 1000000/1d",
    "token-bucket 100/1m",
    "token-bucket:burst=17 999983/1h",
    "leaky-bucket 100/1m",
    "sliding-log 100/1m",
    "sliding-log 1000/10s",
    "concurrency:hold=1m 9",
];

const MODES: [&str; 3] = ["exact", "leased", "reported"];

/// A policy and who shares it how; `None` if the algorithm cannot be shared in this way.
fn shared(policy: &str, mode: &str) -> Option<(Terms, Plan)> {
    let policy: Policy = policy.parse().expect("the policy is well formed");
    let slack = Nanos::from_millis(100);
    let (terms, wanted) = match mode {
        "leased" => (
            Terms::leased(policy, slack).without_large_costs(),
            Mode::Leased,
        ),
        "reported" => (Terms::reported(policy, 10, slack), Mode::Reported),
        _ => (Terms::exact(policy), Mode::Exact),
    };
    let plan = Plan::new(*terms.policy()).expect("the policy can be shared");
    (terms.mode() == wanted).then_some((terms, plan))
}

impl Bench {
    /// One decision on a key as the store has it, and the time that it names a holder by.
    pub(super) fn decide(&mut self, plan: &Plan, key: &[u8], cost: u64) -> (Decision, Nanos) {
        let batch = Batch {
            keys: vec![key.to_vec()],
            costs: vec![cost],
            counts: vec![1],
        };
        let script = std::sync::Arc::clone(self.scripts.batch(plan.kind()));
        let told = self.call(&script, &batch.keys, &batch.arguments(plan));
        only(plan, told, cost)
    }

    /// Units come back, and with them the state.
    fn refund(&mut self, plan: &Plan, key: &[u8], cost: u64) -> Decision {
        let script = std::sync::Arc::clone(self.scripts.refund(plan.kind()));
        let told = self.call(
            &script,
            &[key.to_vec()],
            &call::refund_arguments(plan, cost),
        );
        only(plan, told, 0).0
    }

    /// A holder gives its permits back; whether it had any.
    fn settle(&mut self, hold: Nanos, key: &[u8], name: Nanos) -> bool {
        let script = std::sync::Arc::clone(&self.scripts.settle);
        let (_, found) = self.call(
            &script,
            &[key.to_vec()],
            &call::settle_arguments(hold, false, name),
        );
        matches!(&found[..], [Ok(Some(answer))] if answer == b"yes")
    }

    /// A node's call, which takes units ahead or reports what it spent.
    fn lease(&mut self, terms: &Terms, plan: &Plan, key: &[u8], cost: u64) {
        let spent = if terms.mode() == Mode::Reported {
            u32::try_from(cost).unwrap_or(u32::MAX)
        } else {
            0
        };
        let request = Request {
            cost,
            ahead: 4,
            back: None,
            spent,
            sent: Nanos::ZERO,
        };
        let script = self
            .scripts
            .lease(plan.kind())
            .expect("it can be leased")
            .clone();
        let counts = std::iter::once(1);
        let requests = std::iter::once(&request);
        let arguments = call::lease_arguments(plan, terms.mode(), requests, counts);
        self.call(&script, &[key.to_vec()], &arguments);
    }

    /// The rest of a line: the answers for the value under this key, at the bench's time.
    fn answers(&mut self, plan: &Plan, key: &[u8]) -> String {
        let (one, _) = self.decide(plan, key, 1);
        let after = self.refund(plan, key, 2);
        format!("{};{}", told(&one), told(&after))
    }
}

pub(super) fn only(
    plan: &Plan,
    (now, found): (Nanos, Vec<Before>),
    cost: u64,
) -> (Decision, Nanos) {
    let [Ok(before)] = &found[..] else {
        panic!("{plan:?} finds no value of its own: {found:?}")
    };
    let mut told = None;
    plan.decisions(before.as_deref(), now, &[cost], |_, decision, name| {
        told = Some((decision, name));
    })
    .unwrap_or_else(|| panic!("{plan:?}: {before:?} is no state"));
    told.expect("there is one decision")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a `String` takes all that is written");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().as_chunks::<2>();
    let digit = |byte| {
        char::from(byte)
            .to_digit(16)
            .expect("the value is hexadecimal") as u8
    };
    pairs
        .0
        .iter()
        .map(|&[high, low]| digit(high) << 4 | digit(low))
        .collect()
}

fn told(decision: &Decision) -> String {
    format!(
        "{} {} {}",
        decision.is_allowed(),
        decision.remaining(),
        decision.reset_after_nanos()
    )
}

/// The values that this version writes, in the form of the file.
fn written() -> String {
    let mut bench = Bench::new(50);
    let mut lines = String::new();
    for (policy, mode) in POLICIES
        .iter()
        .flat_map(|policy| MODES.map(|mode| (policy, mode)))
    {
        let Some((terms, plan)) = shared(policy, mode) else {
            continue;
        };
        let key = format!("{policy} {mode}").into_bytes();
        let mut holder = Nanos::ZERO;
        for cost in [3, 2] {
            bench.now += 7_654;
            if terms.mode() == Mode::Exact {
                (_, holder) = bench.decide(&plan, &key, cost);
            } else {
                bench.lease(&terms, &plan, &key, cost);
            }
        }
        bench.now += 1_234;
        let value: Vec<u8> = redis::cmd("GET")
            .arg(&key)
            .query(&mut bench.connection)
            .expect("the value is a string");
        let (now, shape, holder) = (
            bench.now,
            plan.shape(),
            plan.hold().map_or(0, |_| holder.get()),
        );
        let answers = bench.answers(&plan, &key);
        writeln!(
            lines,
            "{policy};{mode};{shape};{now};{};{holder};{answers}",
            hex(&value)
        )
        .expect("a `String` takes all that is written");
    }
    lines
}

#[test]
fn values_of_version_0_1_are_read_as_they_were_meant() {
    if std::env::var_os("TIDEGATE_WRITE_VALUES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/values-new.txt");
        std::fs::write(path, written()).expect("the file can be written");
        return;
    }
    let mut bench = Bench::new(51);
    let mut read = Vec::new();
    for line in FIRST.lines() {
        let [policy, mode, shape, now, value, holder, rest] =
            line.splitn(7, ';').collect::<Vec<_>>()[..]
        else {
            panic!("{line} is no line of the file")
        };
        let (terms, plan) =
            shared(policy, mode).unwrap_or_else(|| panic!("{policy} is no longer {mode}"));
        assert_eq!(
            plan.shape(),
            shape,
            "{policy}: the value is under another key"
        );
        let value = unhex(value);
        bench.now = now.parse().expect("the time is a number");
        let [key, again, fresh] =
            ["old", "settled", "fresh"].map(|key| format!("{key} {line}").into_bytes());
        for key in [&key, &again] {
            let () = redis::cmd("SET")
                .arg(key)
                .arg(&value)
                .query(&mut bench.connection)
                .expect("it is set");
        }
        assert_ne!(
            bench.answers(&plan, &fresh),
            rest,
            "{policy}: a fresh key would say the same"
        );
        assert_eq!(bench.answers(&plan, &key), rest, "{policy}, {mode}");
        if let Some(hold) = plan.hold() {
            let name = Nanos::new(holder.parse().expect("the name is a number"));
            let before = bench.decide(&plan, &again, 0).0.remaining();
            assert!(
                bench.settle(hold, &again, name),
                "{policy}: the holder is not known"
            );
            assert_eq!(
                bench.decide(&plan, &again, 0).0.remaining(),
                before + 2,
                "it held two"
            );
        } else if terms.mode() != Mode::Exact {
            // A node goes on from it as well.
            bench.lease(&terms, &plan, &again, 1);
            assert!(
                bench.decide(&plan, &again, 0).0.remaining() < plan.policy().limit(),
                "{policy}"
            );
        }
        read.push(format!("{policy} {mode}"));
    }
    let all = POLICIES
        .iter()
        .flat_map(|policy| MODES.map(|mode| (policy, mode)));
    let all = all.filter(|(policy, mode)| shared(policy, mode).is_some());
    assert_eq!(
        read,
        all.map(|(policy, mode)| format!("{policy} {mode}"))
            .collect::<Vec<_>>()
    );
}
