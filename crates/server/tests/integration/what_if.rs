//! What other limits would have decided on a trace.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use proptest::prelude::*;
use tidegate_core::{Algorithm, Nanos};
use tidegate_server::{
    rules::{self, LimitSpec},
    trace::{Event, RecordedLimit, Recording, Verdict},
    what_if::{KeysEstimate, WhatIf, what_if},
};

const SECOND: u64 = 1_000_000_000;

fn specs(text: &str) -> Vec<LimitSpec> {
    rules::parse(text).unwrap().limits
}

fn recording(share: &str, events: &[(u64, u64, Verdict)]) -> Recording {
    let limit = RecordedLimit {
        name: "a".to_owned(),
        rule: None,
        requests: None,
        denied: None,
    };
    let event = |&(time, key, verdict)| Event {
        time: time * SECOND,
        key,
        cost: 1,
        limit: 0,
        verdict,
        reason: None,
    };
    let events: Vec<Event> = events.iter().map(event).collect();
    Recording {
        share: share.parse().unwrap(),
        fresh: true,
        from: 0,
        until: events.last().map_or(0, |event| event.time),
        limits: vec![limit],
        names: [(1, "alice".to_owned())].into(),
        events,
        is_cut: false,
    }
}

fn one(recording: &Recording, rules: &str) -> WhatIf {
    what_if(
        recording,
        &specs(rules),
        &|name| (name == "alice").then_some(1),
        10,
    )
    .remove(0)
}

#[test]
fn a_candidate_is_shown_beside_what_happened() {
    use Verdict::{Admitted, Denied};
    let trace = recording(
        "100%",
        &[
            (1, 1, Admitted),
            (2, 1, Admitted),
            (2, 2, Admitted),
            (3, 1, Denied),
            (4, 3, Denied),
            (5, 2, Admitted),
        ],
    );
    let told = one(
        &trace,
        "limits: [{name: a, limit: 1/10s, algorithm: sliding-log}]",
    );
    assert_eq!((told.requests, told.keys), (6, 3));
    assert_eq!((told.denied.requests, told.denied.keys), (2, 2));
    // Each request is in its part of the five seconds; the last is in the last part.
    let sum = told.over_time.iter().fold([0; 3], |sum: [u64; 3], part| {
        std::array::from_fn(|at| sum[at] + part[at])
    });
    assert_eq!(sum, [6, 2, 3]);
    assert_eq!(
        (told.over_time[23], told.over_time[119]),
        ([1, 0, 0], [1, 0, 1])
    );
    assert_eq!((told.would_deny.requests, told.would_deny.keys), (3, 2));
    assert_eq!((told.newly_denied, told.no_longer_denied), (1, 1));
    assert_eq!(
        told.would_deny.all_requests,
        KeysEstimate {
            about: 3,
            margin: 0
        },
        "all keys are in it"
    );
    let first = &told.most_denied[0];
    assert_eq!(
        (first.name.as_deref(), first.was_denied, first.would_deny),
        (Some("alice"), 1, 2)
    );
    assert_eq!(told.most_denied.len(), 3);
    assert!(told.notes.is_empty(), "{:?}", told.notes);
    // A key with its own policy, and a key on the deny list.
    let told = one(
        &trace,
        "limits: [{name: a, limit: 1/10s, algorithm: sliding-log, overrides: {alice: {limit: 3/10s}}, deny: [mallory]}]",
    );
    assert_eq!(told.would_deny.requests, 1);
    assert!(
        told.notes[0].starts_with("the trace does not know 1 key that the rules name"),
        "{:?}",
        told.notes
    );
    let told = one(&trace, "limits: [{name: a, limit: 9/10s, deny: [alice]}]");
    assert_eq!((told.would_deny.requests, told.would_deny.keys), (3, 1));
}

#[test]
fn a_trace_that_begins_in_the_middle_gives_one_window_to_the_states() {
    let mut trace = recording(
        "100%",
        &[
            (0, 1, Verdict::Admitted),
            (9, 1, Verdict::Denied),
            (20, 1, Verdict::Admitted),
        ],
    );
    trace.fresh = false;
    let rules = "limits: [{name: a, limit: 1/10s, algorithm: sliding-log}]";
    let told = one(&trace, rules);
    assert_eq!(
        (
            told.requests,
            told.denied.requests,
            told.would_deny.requests
        ),
        (1, 0, 0)
    );
    assert!(told.notes[0].contains("first 10s"), "{:?}", told.notes);
    trace.until = 15 * SECOND;
    let told = one(&trace, rules);
    assert_eq!((told.requests, told.would_deny.requests), (3, 1));
    assert!(
        told.notes[0].contains("less than two windows"),
        "{:?}",
        told.notes
    );
}

#[test]
fn a_rule_that_blocks_keys_gets_its_longest_block_to_begin_with() {
    use Verdict::{Admitted, Denied};
    let mut trace = recording(
        "100%",
        &[
            (1, 1, Denied),
            (2, 1, Admitted),
            (3, 1, Admitted),
            (30, 1, Admitted),
            (31, 1, Admitted),
            (32, 1, Denied),
            (45, 1, Admitted),
            (60, 1, Admitted),
        ],
    );
    let rules = "limits: [{name: a, limit: 2/10s, algorithm: sliding-log, block_for: 20s}]";
    // The fourth is admitted, and the third of the next burst blocks the key for 20 seconds.
    let told = one(&trace, rules);
    assert_eq!((told.requests, told.would_deny.requests), (8, 3));
    trace.fresh = false;
    let told = one(&trace, rules);
    assert_eq!((told.requests, told.would_deny.requests), (5, 2));
    assert!(
        told.notes[0].contains("the first 20s of the trace"),
        "{:?}",
        told.notes
    );
    // It would have to be 80 seconds long.
    let told = one(&trace, &rules.replace("20s", "[20s, 40s]"));
    assert!(told.notes[0].contains("blocks of 40s"), "{:?}", told.notes);
}

#[test]
fn what_is_charged_after_the_answer_is_debt_of_the_candidate() {
    use Verdict::{Charged, Denied, Refunded};
    let mut trace = recording(
        "100%",
        &[
            (1, 1, Charged),
            (2, 1, Charged),
            (3, 1, Charged),
            (4, 1, Denied),
        ],
    );
    let costs = [300, 300, 500, 0];
    trace
        .events
        .iter_mut()
        .zip(costs)
        .for_each(|(event, cost)| event.cost = cost);
    let denied = |trace: &Recording, limit: u32| {
        let told = one(
            trace,
            &format!("limits: [{{name: a, limit: {limit}/1m, algorithm: sliding-log}}]"),
        );
        assert!(
            told.notes[0].starts_with("a charge counts as a request"),
            "{:?}",
            told.notes
        );
        (
            told.requests,
            told.denied.requests,
            told.would_deny.requests,
        )
    };
    // The third charge exceeds 1,000, so the question after it is denied. It does not exceed 1,100.
    assert_eq!(denied(&trace, 1_000), (4, 1, 1));
    assert_eq!(denied(&trace, 1_100), (4, 1, 0));
    // The second one exceeds 599: what comes then is neither admitted nor charged.
    assert_eq!(denied(&trace, 599), (4, 1, 2));
    trace.events[2].verdict = Refunded;
    assert_eq!(denied(&trace, 599), (3, 1, 0));
}

#[test]
fn a_month_ends_where_the_calendar_ends_it() {
    use Verdict::Admitted;
    // 2024-02-29T22:59:58Z is two seconds before March in Berlin, and an hour and two seconds
    // before March in UTC.
    let leap_day = 1_709_247_598;
    let trace = recording(
        "100%",
        &[0, 1, 2, 3, 3_601, 3_602, 3_603].map(|after| (leap_day + after, 1, Admitted)),
    );
    let denied = |rest: &str| {
        let rules = format!("limits: [{{name: a, algorithm: fixed-window, {rest}}}]");
        one(&trace, &rules).would_deny.requests
    };
    // Berlin: 2 requests in February, 5 in March. UTC: 5 and 2.
    assert_eq!(denied("limit: 4/month, time_zone: Europe/Berlin"), 1);
    assert_eq!(denied("limit: 1/month, time_zone: Europe/Berlin"), 1 + 4);
    assert_eq!(denied("limit: 4/month"), 1);
    assert_eq!(denied("limit: 1/month"), 4 + 1);
    assert_eq!(denied("limit: 2/month, time_zone: Europe/Berlin"), 3);
    // A period that starts on another day does not end here: all 7 are in one.
    assert_eq!(
        denied("limit: 2/month, time_zone: Europe/Berlin, starts: 15"),
        5
    );
    // An override of the only key, by the name that the trace has for it, keeps the limit's zone.
    assert_eq!(
        denied("limit: 1/month, time_zone: Europe/Berlin, overrides: {alice: 3/month}"),
        2
    );
}

#[test]
fn a_limit_that_is_not_in_the_trace_says_so() {
    let trace = recording("10%", &[(1, 1, Verdict::Admitted)]);
    let told = what_if(
        &trace,
        &specs(
            "limits: [{name: b, limit: 1/1s, global: true, shadow: true}, {name: a, limit: 1, algorithm: concurrency}]",
        ),
        &|_| None,
        1,
    );
    assert!(
        told[0].notes[0].contains("--trace-keys 100%") && told[0].notes[1].contains("shadow"),
        "{told:?}"
    );
    assert!(
        told[1].notes[0].contains("in flight") && told[1].requests == 0,
        "{told:?}"
    );
    let shared = one(&trace, "limits: [{name: a, limit: 9/1s, shares: {}}]");
    assert!(shared.notes[0].contains("tenants share it"), "{shared:?}");
    let none = one(&trace, "limits: [{name: a, limit: 9/1s}]");
    assert_eq!(
        none.would_deny.all_keys,
        KeysEstimate {
            about: 0,
            margin: 30
        },
        "none seen is not none at all"
    );
}

/// A trace of a sample of the keys is an estimate for all: in about 95 of 100 cases the truth is
/// within the margin.
#[test]
fn the_margin_holds_as_often_as_it_says() {
    let keys = 2_000_u64;
    // Key `k` asks up to eight times in a second, of which the candidate admits four.
    let asks = |key: u64| 1 + key % 8;
    let truth: u64 = (0..keys).map(|key| asks(key).saturating_sub(4)).sum();
    let denied_keys = (0..keys).filter(|key| asks(*key) > 4).count() as u64;
    let (mut within_requests, mut within_keys) = (0, 0);
    for _ in 0..100 {
        // As a trace chooses: by a hash with random keys.
        let hashes = RandomState::new();
        let chosen: Vec<u64> = (0..keys)
            .filter(|key| hashes.hash_one(key) % 10 == 0)
            .collect();
        let mut events: Vec<(u64, u64, Verdict)> = Vec::new();
        for key in chosen {
            events.extend((0..asks(key)).map(|_| (1, key, Verdict::Admitted)));
        }
        let told = one(
            &recording("10%", &events),
            "limits: [{name: a, limit: 4/1h, algorithm: sliding-log}]",
        );
        let holds = |estimate: KeysEstimate, truth: u64| {
            u32::from(estimate.about.abs_diff(truth) <= estimate.margin)
        };
        within_requests += holds(told.would_deny.all_requests, truth);
        within_keys += holds(told.would_deny.all_keys, denied_keys);
    }
    // 95 of 100 are expected, with a standard deviation of 2; the hash keys are random.
    assert!((80..=100).contains(&within_requests), "{within_requests}");
    assert!((80..=100).contains(&within_keys), "{within_keys}");
}

proptest! {
    /// The policy that decided says in a replay what it said then.
    #[test]
    fn the_same_limit_denies_the_same(
        steps in prop::collection::vec((0_u64..3, 0_u64..4, 1_u64..4, prop::bool::weighted(0.1)), 1..200),
        algorithm in prop::sample::select(vec!["sliding-log", "token-bucket", "fixed-window", "sliding-window"]),
    ) {
        let text = format!("limits: [{{name: a, limit: 5/4s, algorithm: {algorithm}}}]");
        let policy = specs(&text)[0].policy.policy().unwrap();
        let mut states: HashMap<u64, Vec<u64>> = HashMap::new();
        let (mut time, mut events) = (0, Vec::new());
        for (gap, key, cost, is_refund) in steps {
            time += gap * SECOND;
            let state = states.entry(key).or_insert_with(|| vec![0; policy.words()]);
            let verdict = if is_refund {
                policy.refund(state, Nanos::new(time), cost);
                Verdict::Refunded
            } else {
                match policy.decide(state, Nanos::new(time), cost) {
                    decision if decision.is_denied() => Verdict::Denied,
                    _ => Verdict::Admitted,
                }
            };
            events.push(Event { time, key, cost, limit: 0, verdict, reason: None });
        }
        let trace = Recording { until: time, events, ..recording("100%", &[]) };
        let told = one(&trace, &text);
        prop_assert_eq!(told.denied, told.would_deny);
        prop_assert_eq!((told.newly_denied, told.no_longer_denied), (0, 0));
    }
}
