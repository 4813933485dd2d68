//! The decisions of limits over time, and the overview of all limits, as clients see them.

use crate::harness;

use std::{cell::Cell, time::Duration};

use harness::Running;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_redis_servers::eventually;
use tidegate_server::{
    history::{HISTORY_BYTES, History, OUTCOMES, Size, Step, latency_bounds},
    limits::{Act, Limits},
    rules,
};

const RULES: &str = "
limits:
  - {name: per-user, limit: 2/1h, algorithm: sliding-log, max_keys: 100}
  - {name: trial, limit: 1/1h, shadow: true}
  - {name: all, limit: 1000/1h, global: true}
";

fn sum(list: &Value) -> u64 {
    list.as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .sum()
}

/// A server whose counters have been read once, so that later requests appear in the following
/// seconds.
fn watched(name: &str) -> Running {
    let server = Running::with_rules(name, RULES);
    let begun = || server.get("/v1/history?limit=all").json()["end"] == 1_700_049_600;
    eventually("the history has begun", begun);
    server
}

#[test]
fn the_history_of_a_limit_has_its_decisions_per_second() {
    let server = watched("history-limit");
    for _ in 0..3 {
        server.resp("ACQUIRE per-user alice");
        server.resp("ACQUIRE trial alice");
    }
    server.advance(Duration::from_secs(10));
    let of = |query: &str| server.get(&format!("/v1/history?{query}")).json();
    eventually("the seconds have been looked at", || {
        sum(&of("limit=per-user")["denied"]) == 1
    });
    let told = of("limit=per-user");
    assert_eq!(
        (
            sum(&told["allowed"]),
            sum(&told["denied"]),
            sum(&told["errors"])
        ),
        (2, 1, 0)
    );
    assert_eq!(
        (&told["step_seconds"], &told["end"]),
        (&json!(1), &json!(1_700_049_610))
    );
    assert_eq!(told["memory"]["max_bytes"], 64 << 20);
    let trial = of("limit=trial");
    assert_eq!(
        (sum(&trial["allowed"]), sum(&trial["shadow_denied"])),
        (1, 2)
    );
    let steps = of("limit=per-user&step=10");
    assert_eq!(
        (
            &steps["step_seconds"],
            sum(&steps["allowed"]),
            sum(&steps["denied"])
        ),
        (&json!(10), 2, 1)
    );
    assert_eq!(
        of("limit=per-user&n=3")["allowed"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[test]
fn the_time_that_decisions_of_a_limit_took_is_sampled() {
    let server = watched("history-sample");
    server.resp("ACQUIRE per-user alice");
    server.resp("ACQUIRE per-user alice");
    server.resp("ACQUIRE all");
    server.advance(Duration::from_secs(1));
    let sample = |limit: &str| {
        let told = server.get(&format!("/v1/history?limit={limit}")).json();
        let buckets = told["latency_seconds"].as_array().unwrap().len() + 1;
        let points = told["latency_sample"].as_array().unwrap().clone();
        assert!(
            points
                .iter()
                .all(|point| point.as_array().unwrap().len() == buckets),
            "{told}"
        );
        points.iter().map(sum).sum::<u64>()
    };
    eventually("the second has been looked at", || sample("per-user") == 2);
    assert_eq!(
        (sample("all"), sample("trial")),
        (1, 0),
        "a global limit is measured, too"
    );
}

#[test]
fn latencies_are_returned_by_bucket() {
    let server = watched("history-latency");
    server.resp("ACQUIRE per-user alice");
    server.post("/v1/acquire", r#"{"limit":"per-user","key":"alice"}"#);
    server.advance(Duration::from_secs(1));
    let answers = || {
        let told = server.get("/v1/history").json();
        let buckets = told["latency_seconds"].as_array().unwrap().len() + 1;
        let points = told["answers"].as_array().unwrap().clone();
        assert!(
            points
                .iter()
                .all(|point| point.as_array().unwrap().len() == buckets)
        );
        points.iter().map(sum).sum::<u64>()
    };
    eventually("both answers are in the history", || answers() == 2);
}

#[test]
fn the_overview_has_each_limit_with_its_rule_and_its_counts() {
    let server = watched("history-overview");
    for key in ["alice", "alice", "alice", "bob"] {
        server.resp(&format!("ACQUIRE per-user {key}"));
    }
    server.advance(Duration::from_secs(10));
    let limit = || server.get("/v1/limits?recent=20").json()["limits"][0].clone();
    eventually("the rates are known", || {
        limit()["denied_per_second"] == 0.1
    });
    let told = limit();
    let expected = json!({
        "name": "per-user", "algorithm": "sliding-log", "quota": "2/1h", "options": "", "global": false, "shadow": false,
        "sharing": "local", "keys": 2, "max_keys": told["max_keys"], "bytes": told["bytes"], "allowed": 3, "delayed": 0,
        "denied": 1, "shadow_denied": 0, "errors": 0, "waiting": 0, "waited": 0, "admitted_per_second": 0.3, "denied_per_second": 0.1,
        "recent": told["recent"], "heaviest": {"key": "alice", "share": 0.75},
    });
    assert_eq!(told, expected);
    assert_eq!(
        (
            sum(&told["recent"]["admitted"]),
            sum(&told["recent"]["denied"])
        ),
        (3, 1)
    );
    let all = server.get("/v1/limits").json();
    let names: Vec<_> = all["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| &limit["name"])
        .collect();
    assert_eq!(names, ["per-user", "trial", "all"]);
    assert_eq!(
        (&all["store"], &all["limits"][0]["recent"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        all["limits"][2]["heaviest"],
        Value::Null,
        "a global limit has no keys"
    );
}

#[cfg(feature = "servers")]
#[test]
fn decisions_without_the_store_count_as_errors_for_single_and_joint_decisions() {
    let store = tidegate_redis_servers::Server::start(&[]);
    let server = harness::on_store("history-errors-store", &store.address(), RULES);
    let limit = |at: usize| server.get("/v1/limits").json()["limits"][at].clone();
    assert_eq!(server.resp("ACQUIRE per-user alice"), "[0 2 1 -1 3600000]");
    assert_eq!(
        (&limit(0)["errors"], &limit(0)["sharing"]),
        (&json!(0), &json!("exact"))
    );
    assert_eq!(server.get("/v1/limits").json()["store"]["health"], "up");
    drop(store);
    eventually("it is known to be down", || {
        server.get("/v1/limits").json()["store"]["health"] == "down"
    });
    server.resp("ACQUIRE per-user bob");
    let both = r#"{"all":[{"limit":"per-user","key":"bob"},{"limit":"all"}]}"#;
    assert_eq!(server.post("/v1/acquire", both).status, 200);
    assert_eq!(
        (&limit(0)["errors"], &limit(2)["errors"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(
        (&limit(0)["allowed"], &limit(2)["allowed"]),
        (&json!(3), &json!(1)),
        "these are counted as ever"
    );
}

#[test]
fn an_invalid_request_is_answered_with_advice() {
    let server = Running::with_rules("history-errors", RULES);
    for (path, status, why) in [
        ("/v1/history?limit=per-usr", 404, "the limits are: per-user"),
        (
            "/v1/history?limit=per-user&step=5",
            400,
            "`step` must be 1 or 10",
        ),
        (
            "/v1/history?limit=per-user&n=0",
            400,
            "`n` must be a whole number",
        ),
        ("/v1/limits?recent=901", 400, "from 0 to 900"),
        ("/v1/limits?all=1", 400, "no field `all`: recent"),
        ("/v1/limits?recent=", 400, "from 0 to 900"),
        ("/v1/limits?recent=-1", 400, "from 0 to 900"),
        ("/v1/limits?recent=x", 400, "from 0 to 900"),
        ("/v1/history?n=1&n=2", 400, "`n` twice"),
        ("/v1/history?limit=%FF", 400, "not UTF-8"),
    ] {
        let refused = server.get(path);
        assert!(
            refused.status == status && refused.body.contains(why),
            "{path}: {refused:?}"
        );
    }
    for path in [
        "/v1/history?limit=per%2Duser&n=3",
        "/v1/history?&n=1&limit=per-user",
        "/v1/limits?recent=900",
    ] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let off = Running::with_rules_and("history-off", RULES, |options| options.history_memory = 0);
    for path in ["/v1/history", "/v1/history?limit=all"] {
        let refused = off.get(path);
        assert!(
            refused.status == 409 && refused.body.contains("--history-memory"),
            "{refused:?}"
        );
    }
    let limit = &off.get("/v1/limits").json()["limits"][0];
    assert_eq!(
        (&limit["allowed"], &limit["denied_per_second"]),
        (&json!(0), &Value::Null)
    );
}

/// Limits whose counters a test reads, from second 1,000 on.
struct Watched {
    limits: Limits,
    history: History,
    now: Cell<Nanos>,
}

const TWO: &str = "limits: [{name: a, limit: 2/1h, algorithm: sliding-log}, {name: b, limit: 1/1h, shadow: true}]";

impl Watched {
    fn new(max_bytes: u64) -> Self {
        let now = Nanos::from_secs(1_000);
        let limits = Limits::new(rules::parse(TWO).unwrap(), 8, |_| None, now).unwrap();
        Self {
            limits,
            history: History::new(max_bytes),
            now: Cell::new(now),
        }
    }

    fn ask(&self, limit: &str, times: usize) {
        let limit = self.limits.limit(limit.as_bytes()).unwrap();
        for _ in 0..times {
            let _ = limit.decide_in_memory(Act::Take, b"key", 1, self.now.get());
        }
    }

    fn second(&self) {
        self.now
            .set(self.now.get().saturating_add(Nanos::from_secs(1)));
        self.limits
            .record_second(&self.history, std::array::from_fn(|_| 0), self.now.get());
    }

    fn change(&mut self, text: &str) {
        self.limits = self
            .limits
            .follow(rules::parse(text).unwrap(), self.now.get())
            .unwrap();
    }

    fn told(&self, limit: &str) -> Option<Vec<[u32; OUTCOMES.len()]>> {
        Some(self.history.of(limit, Step::Second, 100)?.points)
    }
}

#[test]
fn a_change_of_rules_keeps_the_history_even_of_a_limit_that_is_reset() {
    let mut watched = Watched::new(HISTORY_BYTES);
    watched.ask("a", 3);
    watched.second();
    // The quota changes, and `b` becomes another limit: its counters start at zero again.
    watched.ask("b", 3);
    watched.second();
    watched.change("limits: [{name: a, limit: 9/1h}, {name: b, limit: 5/1h, global: true}]");
    watched.ask("a", 1);
    watched.ask("b", 1);
    watched.second();
    assert_eq!(
        watched.told("a").unwrap(),
        [[2, 0, 1, 0, 0, 0, 0, 0], [0; 8], [1, 0, 0, 0, 0, 0, 0, 0]]
    );
    assert_eq!(
        watched.told("b").unwrap(),
        [[0; 8], [1, 0, 0, 2, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    );
    watched.change("limits: [{name: a, limit: 9/1h}]");
    watched.second();
    assert_eq!(watched.told("b"), None);
}

#[test]
fn limits_without_room_are_left_out_and_reported() {
    // The help of --history-memory and the book say 252 KiB for all limits and answers together, and 174 KiB for each
    // limit.
    let max_bytes = (252 + 174) << 10;
    let mut watched = Watched::new(max_bytes);
    watched.second();
    let size = watched.history.size();
    assert!(
        (max_bytes - 2 * 1024..=max_bytes).contains(&size.bytes),
        "{size:?}"
    );
    assert_eq!(
        size,
        Size {
            bytes: size.bytes,
            max_bytes,
            left_out: 1
        }
    );
    assert!(watched.told("a").is_some() && watched.told("b").is_none());
    // Freed memory is used.
    watched.change("limits: [{name: b, limit: 1/1h}]");
    watched.second();
    assert!(watched.told("b").is_some());
    assert_eq!(watched.history.size().left_out, 0);
    let off = Watched::new(0);
    off.second();
    assert_eq!(
        (
            off.history.size().bytes,
            off.history.latency(Step::Second, 1)
        ),
        (0, None)
    );
}

/// A history that counts answers of one latency.
struct Answers {
    limits: Limits,
    history: History,
    sum: u64,
}

impl Answers {
    /// From this second on.
    fn new(begin: u64) -> Self {
        let limits = Limits::new(
            rules::parse("limits: [{name: a, limit: 1/1s}]").unwrap(),
            8,
            |_| None,
            Nanos::ZERO,
        )
        .unwrap();
        let mut answers = Self {
            limits,
            history: History::default(),
            sum: 0,
        };
        answers.push(begin + 1, 0);
        answers
    }

    /// So many answers until the second `end`.
    fn push(&mut self, end: u64, count: u64) {
        self.sum += count;
        let mut buckets = std::array::from_fn(|_| 0);
        buckets[2] = self.sum;
        self.limits
            .record_second(&self.history, buckets, Nanos::from_secs(end));
    }

    /// The end of the last step, and the counts.
    fn read(&self, step: Step, most: usize) -> (u64, Vec<u32>) {
        let told = self.history.latency(step, most).unwrap();
        assert_eq!(told.step, if step == Step::Second { 1 } else { 10 });
        (
            told.end,
            told.points.iter().map(|buckets| buckets[2]).collect(),
        )
    }
}

#[test]
fn seconds_and_complete_steps_have_their_end() {
    let mut answers = Answers::new(99);
    for second in 1..=25 {
        answers.push(100 + second, second);
    }
    assert_eq!(answers.read(Step::Second, 2), (125, vec![24, 25]));
    assert_eq!(answers.read(Step::TenSeconds, 2), (120, vec![55, 155]));
    answers.push(125, 1_000);
    assert_eq!(
        answers.read(Step::Second, 1),
        (125, vec![25]),
        "no second has passed"
    );
}

#[test]
fn seconds_without_a_reading_share_the_events_and_a_jump_of_years_is_cheap() {
    let mut answers = Answers::new(0);
    answers.push(5, 11);
    assert_eq!(answers.read(Step::Second, 4), (5, vec![2, 2, 2, 5]));
    answers.push(1_000_000_000, 0);
    assert_eq!(
        answers.read(Step::Second, usize::MAX),
        (1_000_000_000, vec![0; 900])
    );
    answers.push(5, 9);
    assert_eq!(
        answers.read(Step::Second, 1).0,
        1_000_000_000,
        "time does not run backwards"
    );
}

proptest! {
    #[test]
    fn no_event_is_lost_and_no_step_is_kept_for_too_long(
        begin in 0_u64..50, looks in prop::collection::vec((1_u64..40, 0_u64..5_000), 1..400),
    ) {
        let mut answers = Answers::new(begin);
        let mut end = begin + 1;
        for (elapsed, count) in looks {
            end += elapsed;
            answers.push(end, count);
        }
        let (last, seconds) = answers.read(Step::Second, usize::MAX);
        prop_assert_eq!((last, seconds.len() as u64), (end, 900.min(end - begin)));
        let sum = |counts: &[u32]| counts.iter().copied().map(u64::from).sum::<u64>();
        if end - begin <= 900 {
            prop_assert_eq!(sum(&seconds), answers.sum);
        }
        // The rest of it is in the seconds after the last complete step, all within six hours.
        let (complete, steps) = answers.read(Step::TenSeconds, usize::MAX);
        prop_assert_eq!(complete, end / 10 * 10);
        prop_assert_eq!(sum(&steps) + sum(&seconds[seconds.len() - (end - complete).min(end - begin) as usize..]), answers.sum);
    }
}

#[test]
fn the_bounds_are_those_of_the_buckets() {
    let answers = Answers::new(0);
    assert_eq!(
        latency_bounds().count(),
        answers.history.latency(Step::Second, 1).unwrap().points[0].len() - 1
    );
}
