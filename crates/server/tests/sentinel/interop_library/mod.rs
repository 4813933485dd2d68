//! Sentinel's library as the oracle: the same steps go through its jar, on a clock of ours, and
//! through `tidegate::flow`. Run by `scripts/test.sh --interop`.

mod differences;
mod scenarios;

use std::collections::HashMap;

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, ManualTimer, OwnedGuard,
    rules::Rules,
    sources::sentinel::{Kind, parse},
};

pub use differences::listed;

use super::interop::{answers, sentinel};

/// When the scripts begin, in milliseconds since 1970: a whole second.
const BEGIN: u64 = 1_700_049_600_000;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It passes after these nanoseconds.
    Pass(u64),
    Block(&'static str),
}

/// The decisions of Sentinel's jar on a script (the steps are described in `Scenarios.java`).
fn theirs(script: &str) -> Vec<Decision> {
    let said = answers(sentinel("Scenarios").spawn().unwrap(), script);
    let kinds = ["Authority", "System", "ParamFlow", "Flow", "Degrade"];
    let decision = |line: &str| match line.split_at(1) {
        ("P", wait) => Decision::Pass(wait.parse().unwrap()),
        (_, kind) => Decision::Block(kinds.into_iter().find(|known| *known == kind).unwrap()),
    };
    said.lines().map(decision).collect()
}

/// The decisions of Tidegate on the same script.
fn ours(script: &str) -> Vec<Decision> {
    let timer = ManualTimer::new(millis(BEGIN));
    let build = || Gate::sentinel().timer(timer.clone()).build();
    let (mut gate, mut calls, mut decisions) = (build(), HashMap::new(), Vec::new());
    for line in script.lines() {
        let words: Vec<&str> = line
            .splitn(if line.starts_with("rules") { 3 } else { 9 }, ' ')
            .collect();
        match *words.as_slice() {
            ["begin"] => {
                calls.clear();
                gate = build();
            }
            // Here no call sleeps: its caller does.
            ["moves"] => {}
            ["at", ms] => timer.set(millis(ms.parse().unwrap())),
            ["rules", kind, json] => {
                let kind = Kind::OF_COMMANDS
                    .into_iter()
                    .find(|known| known.name() == kind)
                    .unwrap();
                let update = parse(kind, json).unwrap_or_else(|e| panic!("{json}: {e}"));
                gate.update(|rules: &mut Rules| update.apply(rules))
                    .unwrap_or_else(|e| panic!("{json}: {e}"));
            }
            ["enter", call, ref words @ ..] => match enter(&gate, words) {
                Ok(guard) => {
                    decisions.push(Decision::Pass(
                        u64::try_from(guard.delay().as_nanos()).unwrap(),
                    ));
                    calls.insert(call.to_owned(), guard);
                }
                Err(kind) => decisions.push(Decision::Block(kind)),
            },
            ["exit", call, how] => {
                if let Some(mut guard) = calls.remove(call) {
                    if how == "failed" {
                        guard.mark_failed();
                    }
                    drop(guard);
                }
            }
            _ => panic!("{line}"),
        }
    }
    decisions
}

fn enter(gate: &Gate, words: &[&str]) -> Result<OwnedGuard, &'static str> {
    let &[
        resource,
        count,
        direction,
        is_prioritized,
        origin,
        context,
        value,
    ] = words
    else {
        panic!("{words:?}");
    };
    let resource = gate.resource(resource);
    let mut entry = resource.entry().count(count.parse().unwrap());
    if direction == "in" {
        entry = entry.inbound();
    }
    if is_prioritized == "true" {
        entry = entry.prioritized();
    }
    if origin != "-" {
        entry = entry.origin(origin);
    }
    if context != "-" {
        entry = entry.context(context);
    }
    for value in value.split(',').filter(|value| *value != "-") {
        entry = entry.arg(value);
    }
    entry.enter_owned().map_err(|blocked| match blocked.kind() {
        BlockKind::Authority => "Authority",
        BlockKind::System => "System",
        BlockKind::HotParam => "ParamFlow",
        BlockKind::Flow => "Flow",
        BlockKind::Breaker => "Degrade",
        other => panic!("no rule of {other:?} was loaded"),
    })
}

const fn millis(ms: u64) -> Nanos {
    Nanos::new(ms * 1_000_000)
}
