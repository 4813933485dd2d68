//! The keys with the most requests and the most denials, as clients see them.

use crate::harness;

use std::{collections::BTreeMap, time::Duration};

use harness::{Resp, Running, replace};
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_server::{
    heavy::{PERIOD, Top, TopKey},
    limits::{Act, Capacity, Limits},
    rules,
};

const RULES: &str = "
limits:
  - {name: per-user, limit: 3/1h, algorithm: sliding-log}
  - {name: per-ip, limit: 100/1h}
  - {name: trial, limit: 1/1h, shadow: true}
  - {name: all, limit: 1000/1h, global: true}
";

fn keys(list: &Value) -> Vec<(&str, u64)> {
    let keys = list.as_array().unwrap().iter();
    keys.map(|key| (key["key"].as_str().unwrap(), key["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn a_key_is_denied_since_the_first_denial_after_which_no_period_was_without_one() {
    let rules = "limits: [{name: logins, limit: 1/1h, algorithm: sliding-log, deny: [eve]}]";
    let server = Running::with_rules("heavy-since", rules);
    let deny_after = |minutes: u64| {
        server.advance(Duration::from_mins(minutes));
        server.resp("ACQUIRE logins eve");
        let denied = server.get("/v1/denied").json();
        let since = denied["keys"][0]["since_ms"].as_u64().unwrap();
        let page = harness::Http::connect(server.admin)
            .send("GET", "/", "")
            .body;
        (since, page)
    };
    let (first, page) = deny_after(0);
    assert!(page.contains("/s, since 0s ago"), "{page}");
    for minute in [4, 8, 12, 16] {
        let (since, page) = deny_after(4);
        assert_eq!(since, first, "denied after {minute} minutes");
        let ago = format!("since {minute}m ago");
        assert!(page.contains(&ago), "{ago}: {page}");
    }
    // A whole period without a denial.
    let (since, _) = deny_after(10);
    assert_eq!(since, first + 26 * 60_000);
}

#[test]
fn both_protocols_return_the_heavy_keys() {
    let server = Running::with_rules("heavy-both", RULES);
    let mut client = Resp::connect(server.resp);
    for _ in 0..5 {
        client.ask("ACQUIRE per-user alice");
    }
    for _ in 0..2 {
        assert_eq!(
            server
                .post("/v1/acquire", r#"{"limit":"per-user","key":"bob"}"#)
                .status,
            200
        );
    }
    // A blocked request is a denial; a peek, a cost of 0 and a refund are not counted.
    client.ask("BLOCK per-user eve");
    for command in ["ACQUIRE", "PEEK", "REFUND"] {
        client.ask(&format!("{command} per-user eve"));
    }
    client.ask("ACQUIRE per-user carol 0");
    server.advance(Duration::from_secs(2));
    let top = server.get("/v1/top?limit=per-user").json();
    assert_eq!(
        keys(&top["asked_most"]),
        [("alice", 5), ("bob", 2), ("eve", 1)]
    );
    assert_eq!(keys(&top["denied_most"]), [("alice", 2), ("eve", 1)]);
    assert_eq!(
        top["asked_most"][0],
        json!({"key": "alice", "count": 5, "at_least": 5, "at_most": 5, "since_ms": 1_700_049_600_000_u64})
    );
    assert_eq!(
        [
            &top["seconds"],
            &top["one_in"],
            &top["names"],
            &top["requests"],
            &top["denials"]
        ],
        [&json!(2.0), &json!(1), &json!(1000), &json!(8), &json!(3)]
    );
    assert_eq!(
        client.ask("TOP per-user 1"),
        "[seconds 2 one_in 1 asked_most [[alice 5 5 5]] denied_most [[alice 2 2 2]]]"
    );
    assert_eq!(
        keys(&server.get("/v1/top?limit=per-user&n=2").json()["asked_most"]).len(),
        2
    );
}

#[test]
fn a_joint_decision_counts_for_the_limits_that_bound_it() {
    let server = Running::with_rules("heavy-joint", RULES);
    let both =
        r#"{"all":[{"limit":"per-user","key":"alice"},{"limit":"per-ip","key":"10.0.0.1"}]}"#;
    let statuses: Vec<_> = (0..4)
        .map(|_| server.post("/v1/acquire", both).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let user = server.get("/v1/top?limit=per-user").json();
    assert_eq!(
        (keys(&user["asked_most"]), keys(&user["denied_most"])),
        (vec![("alice", 4)], vec![("alice", 1)])
    );
    // As in the metrics: a limit that would have admitted counts as neither.
    let ip = server.get("/v1/top?limit=per-ip").json();
    assert_eq!(
        (keys(&ip["asked_most"]), keys(&ip["denied_most"])),
        (vec![("10.0.0.1", 3)], vec![])
    );
}

#[test]
fn a_shadow_limit_reports_the_keys_it_would_deny() {
    let server = Running::with_rules("heavy-shadow", RULES);
    for _ in 0..3 {
        assert_eq!(
            server
                .post("/v1/acquire", r#"{"limit":"trial","key":"alice"}"#)
                .status,
            200
        );
    }
    assert_eq!(
        keys(&server.get("/v1/top?limit=trial").json()["denied_most"]),
        [("alice", 2)]
    );
}

#[test]
fn new_rules_keep_the_counts_and_a_new_limit_starts_at_zero() {
    let mut server = Running::with_rules("heavy-reload", RULES);
    server.resp("ACQUIRE per-user alice");
    let path = std::env::temp_dir().join(format!(
        "tidegate-server-{}-heavy-reload/rules.yaml",
        std::process::id()
    ));
    let changed = RULES.replace("3/1h", "2/1m") + "  - {name: fresh, limit: 1/1s}\n";
    server.reloading(|| replace(&path, changed));
    assert_eq!(
        keys(&server.get("/v1/top?limit=per-user").json()["asked_most"]),
        [("alice", 1)]
    );
    let fresh = server.get("/v1/top?limit=fresh").json();
    assert_eq!(
        (keys(&fresh["asked_most"]), &fresh["seconds"]),
        (vec![], &json!(0.0))
    );
}

#[test]
fn names_are_bounded_and_counts_have_bounds() {
    let server = Running::with_rules_and("heavy-bounded", RULES, |options| options.top_keys = 2);
    let mut client = Resp::connect(server.resp);
    for key in ["alice", "alice", "bob", "carol"] {
        client.ask(&format!("ACQUIRE per-ip {key}"));
    }
    let top = server.get("/v1/top?limit=per-ip").json();
    assert_eq!(keys(&top["asked_most"]), [("alice", 2), ("carol", 2)]);
    assert_eq!(
        top["asked_most"][1],
        json!({"key": "carol", "count": 2, "at_least": 1, "at_most": 2, "since_ms": 1_700_049_600_000_u64})
    );
    assert_eq!((&top["names"], &top["requests"]), (&json!(2), &json!(4)));
}

#[test]
fn keys_that_are_not_text_are_marked() {
    let server = Running::with_rules("heavy-bytes", RULES);
    let mut client = Resp::connect(server.resp);
    client.send(b"*3\r\n$7\r\nACQUIRE\r\n$8\r\nper-user\r\n$2\r\n\xff1\r\n");
    client.reply();
    let key = &server.get("/v1/top?limit=per-user").json()["asked_most"][0];
    assert_eq!(
        (&key["key"], &key["not_utf8"]),
        (&json!("\u{fffd}1"), &json!(true))
    );
}

#[test]
fn an_invalid_request_is_answered_with_advice() {
    let server = Running::with_rules("heavy-errors", RULES);
    for (query, status, why) in [
        ("", 400, "limit=..."),
        ("?limit=per-usr", 404, "the nearest names are: per-user"),
        ("?limit=all", 409, "it is global"),
        ("?limit=per-user&n=0", 400, "from 1 to 100000"),
        ("?limit=per-user&top=1", 400, "no field `top`: limit, n"),
    ] {
        let refused = server.get(&format!("/v1/top{query}"));
        assert!(
            refused.status == status && refused.body.contains(why),
            "{query}: {refused:?}"
        );
    }
    for (command, why) in [
        (
            "TOP",
            "ERR wrong number of arguments for 'top' command; usage: TOP limit [count]",
        ),
        ("TOP per-usr", "ERR no limit is named `per-usr`"),
        (
            "TOP all",
            "ERR no heavy keys are kept for limit `all`: it is global",
        ),
        (
            "TOP per-user many",
            "ERR count is 'many'; it must be a whole number from 1 to 100000",
        ),
    ] {
        let reply = server.resp(command);
        assert!(reply.starts_with(why), "{command}: {reply}");
    }
    let off = Running::with_rules_and("heavy-off", RULES, |options| options.top_keys = 0);
    off.resp("ACQUIRE per-user alice");
    assert!(
        off.get("/v1/top?limit=per-user")
            .body
            .contains("the server runs with --top-keys 0")
    );
}

/// The lines of a server's trace.
fn trace(server: &Running, query: &str) -> Vec<Value> {
    let body = server.get(&format!("/v1/trace{query}")).body;
    body.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn traced(name: &str, share: &str) -> Running {
    Running::with_rules_and(name, RULES, |options| {
        options.trace_keys = Some(share.parse().unwrap());
    })
}

/// The verdicts about a key that the trace knows by name, with their costs.
fn verdicts(lines: &[Value], limit: &str, name: &str) -> Vec<(String, u64)> {
    let hash = lines
        .iter()
        .find(|line| line["name"] == name)
        .map(|line| &line["key"])
        .unwrap();
    let requests = lines
        .iter()
        .filter(|line| line["time"].is_string() && line["limit"] == limit);
    let of_key = requests.filter(|line| line["key"] == *hash);
    of_key
        .map(|line| {
            (
                line["verdict"].as_str().unwrap().to_owned(),
                line["cost"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_trace_has_what_every_protocol_asked_in_its_order() {
    let server = traced("trace-all", "100%");
    let mut client = Resp::connect(server.resp);
    client.ask("ACQUIRE per-user alice 2");
    server.advance(Duration::from_millis(1_500));
    server.post("/v1/acquire", r#"{"limit":"per-user","key":"alice"}"#);
    client.ask("ACQUIRE per-user alice");
    client.ask("REFUND per-user alice 1");
    // Neither of these is a request.
    client.ask("PEEK per-user alice");
    client.ask("ACQUIRE per-user alice 0");
    client.ask("CHARGE per-user alice 5");
    client.ask("ACQUIRE trial alice");
    client.ask("ACQUIRE trial alice");
    client.ask("ACQUIRE all");
    client.ask("CL.THROTTLE alice 0 1 60");
    client.ask("CL.THROTTLE alice 0 1 60 3");
    let lines = trace(&server, "");
    let word = |verdict: &str, cost| (verdict.to_owned(), cost);
    assert_eq!(
        verdicts(&lines, "per-user", "alice"),
        [
            word("admitted", 2),
            word("admitted", 1),
            word("denied", 1),
            word("refunded", 1),
            word("charged", 5)
        ]
    );
    assert_eq!(
        verdicts(&lines, "trial", "alice"),
        [word("admitted", 1), word("shadow_denied", 1)]
    );
    assert_eq!(
        verdicts(&lines, "CL.THROTTLE", "alice"),
        [word("admitted", 1), word("denied", 3)]
    );
    assert_eq!(
        (&lines[0]["share"], &lines[0]["fresh"]),
        (&json!("100%"), &json!(true))
    );
    assert!(
        lines
            .iter()
            .any(|line| line["limit"] == "all" && line["time"].is_string()),
        "a global limit, too"
    );
    assert_eq!(lines.last().unwrap(), &json!({"end": 10}));
    let first = lines.iter().find(|line| line["time"].is_string()).unwrap();
    assert_eq!(first["time"], "1700049600.000000000");
    // A part of it: of one limit, or of the last second.
    assert_eq!(
        trace(&server, "?limit=trial").last().unwrap(),
        &json!({"end": 2})
    );
    let last = trace(&server, "?seconds=1");
    assert_eq!(
        (last.last().unwrap(), &last[0]["fresh"]),
        (&json!({"end": 9}), &json!(false))
    );
    assert_eq!(server.get("/v1/trace?limit=per-usr").status, 404);
    assert!(
        trace(&server, "?names=false")
            .iter()
            .all(|line| line["name"].is_null())
    );
    assert_eq!(server.get("/v1/trace?names=perhaps").status, 400);
}

#[test]
fn a_joint_decision_is_traced_for_the_limits_that_counted_it() {
    let server = traced("trace-joint", "100%");
    let both =
        r#"{"all":[{"limit":"per-user","key":"alice"},{"limit":"per-ip","key":"10.0.0.1"}]}"#;
    for _ in 0..4 {
        server.post("/v1/acquire", both);
    }
    let lines = trace(&server, "");
    assert_eq!(verdicts(&lines, "per-user", "alice").len(), 4);
    // The fourth took nothing from it.
    assert_eq!(verdicts(&lines, "per-ip", "10.0.0.1").len(), 3);
}

#[test]
fn a_part_of_the_keys_is_traced_whole_and_new_rules_are_traced_too() {
    let mut server = traced("trace-part", "50%");
    let mut client = Resp::connect(server.resp);
    for _ in 0..3 {
        for key in 0..100 {
            client.ask(&format!("ACQUIRE per-ip key-{key}"));
        }
    }
    client.ask("ACQUIRE all");
    let count = |lines: &[Value], limit: &str| {
        let keys = lines
            .iter()
            .filter(|line| line["time"].is_string() && line["limit"] == limit);
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        keys.for_each(|line| *counts.entry(line["key"].to_string()).or_default() += 1);
        counts
    };
    let lines = trace(&server, "");
    let counts = count(&lines, "per-ip");
    // Six standard deviations: the hash keys are random.
    assert!(
        (20..80).contains(&counts.len()) && counts.values().all(|count| *count == 3),
        "{counts:?}"
    );
    assert!(
        count(&lines, "all").is_empty(),
        "a global limit is no part of a sample"
    );
    let path = std::env::temp_dir().join(format!(
        "tidegate-server-{}-trace-part/rules.yaml",
        std::process::id()
    ));
    let changed = RULES.replace("100/1h", "200/1h") + "  - {name: fresh, limit: 9/1s}\n";
    server.reloading(|| replace(&path, changed));
    for key in 0..100 {
        client.ask(&format!("ACQUIRE fresh key-{key}"));
        client.ask(&format!("ACQUIRE per-ip key-{key}"));
    }
    let lines = trace(&server, "");
    // The same keys are chosen in each limit.
    assert_eq!(
        count(&lines, "fresh").keys().collect::<Vec<_>>(),
        counts.keys().collect::<Vec<_>>()
    );
    assert!(count(&lines, "per-ip").values().all(|count| *count == 4));
}

#[test]
fn other_rules_are_tried_on_the_trace_before_they_are_served() {
    let server = traced("trace-what-if", "100%");
    let mut client = Resp::connect(server.resp);
    for _ in 0..5 {
        client.ask("ACQUIRE per-user alice");
    }
    client.ask("ACQUIRE per-user bob");
    let told = server.post(
        "/v1/what-if",
        "limits:\n  - {name: per-user, limit: 5/1h, algorithm: sliding-log, deny: [bob]}\n  - {name: new, limit: 1/1s}\n",
    );
    assert_eq!(told.status, 200, "{told:?}");
    let told = told.json();
    let first = &told["limits"][0];
    assert_eq!(
        (
            &first["denied"]["requests"],
            &first["would_deny"]["requests"]
        ),
        (&json!(2), &json!(1))
    );
    assert_eq!(
        (&first["newly_denied"], &first["no_longer_denied"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(first["most_denied"][0]["name"], "bob");
    assert!(
        told["limits"][1]["notes"][0]
            .as_str()
            .unwrap()
            .contains("no request"),
        "{told}"
    );
    // Nothing was taken, and no rule has changed.
    assert!(server.resp("PEEK per-user carol").starts_with("[0 3 3"));
    let wrong = server.post("/v1/what-if", "limits:\n  - {name: a, limit: 5}\n");
    assert_eq!(
        (wrong.status, &wrong.json()["mistakes"][0]["line"]),
        (422, &json!(2)),
        "{wrong:?}"
    );
    let none = Running::with_rules("trace-none", RULES);
    for refused in [
        none.get("/v1/trace"),
        none.post("/v1/what-if", "limits: [{name: a, limit: 1/1s}]"),
    ] {
        assert!(
            refused.status == 409 && refused.body.contains("--trace-keys 10%"),
            "{refused:?}"
        );
    }
}

#[test]
fn heavy_keys_of_cl_throttle_have_names() {
    let server = Running::with_rules("heavy-throttle", RULES);
    let mut client = Resp::connect(server.resp);
    for _ in 0..3 {
        client.ask("CL.THROTTLE alice 0 1 60");
    }
    client.ask("CL.THROTTLE bob 0 1 60 0");
    let top = server.get("/v1/top?limit=CL.THROTTLE").json();
    assert_eq!(
        (keys(&top["asked_most"]), keys(&top["denied_most"])),
        (vec![("alice", 3)], vec![("alice", 2)])
    );
    assert!(
        client
            .ask("TOP cl.throttle 1")
            .contains("asked_most [[alice 3 3 3]]")
    );
}

/// A limit that counts heavy keys.
struct Asked(Limits);

impl Asked {
    fn new(top_keys: usize) -> Self {
        let rules =
            rules::parse("limits: [{name: a, limit: 1000000000/1s, algorithm: token-bucket}]")
                .unwrap();
        let capacity = Capacity {
            top_keys,
            ..Capacity::from(100)
        };
        Self(Limits::new(rules, capacity, |_| None, Nanos::ZERO).unwrap())
    }

    fn ask(&self, key: &[u8], denied: bool, now: Nanos) {
        let cost = if denied { 2_000_000_000 } else { 1 };
        let decision = self.0.limits()[0]
            .decide_in_memory(Act::Take, key, cost, now)
            .unwrap();
        assert_eq!(decision.is_denied(), denied);
    }

    fn top(&self, now: Nanos) -> Top {
        self.0.limits()[0].top(usize::MAX, now).unwrap()
    }
}

fn bounds(keys: &[TopKey]) -> Vec<(&[u8], u64, u64, u64)> {
    keys.iter()
        .map(|key| (&*key.key, key.count, key.at_least, key.at_most))
        .collect()
}

#[test]
fn counts_of_the_period_before_are_shown_and_older_ones_are_forgotten() {
    let asked = Asked::new(10);
    let begin = Nanos::new(1_000 * PERIOD.get());
    asked.ask(b"old", false, begin);
    // Time that jumps back counts in the period under way.
    asked.ask(
        b"old",
        false,
        begin.saturating_since(Nanos::from_millis(500)),
    );
    let next = begin.saturating_add(PERIOD);
    asked.ask(b"new", true, next);
    let top = asked.top(next);
    assert_eq!(
        bounds(&top.asked),
        [(&b"old"[..], 2, 2, 2), (b"new", 1, 1, 1)]
    );
    assert_eq!(
        (bounds(&top.denied), top.requests, top.denials),
        (vec![(&b"new"[..], 1, 1, 1)], 3, 1)
    );
    assert_eq!(top.span, PERIOD);
    let later = next.saturating_add(PERIOD);
    assert_eq!(bounds(&asked.top(later).asked), [(&b"new"[..], 1, 1, 1)]);
    assert_eq!(
        asked.top(later).span,
        PERIOD,
        "the span that is shown, not the server's age"
    );
    assert!(asked.top(later.saturating_add(PERIOD)).asked.is_empty());
}

#[test]
fn a_flood_costs_no_more_than_the_budget_its_keys_are_found_and_later_all_decisions_are_counted_again()
 {
    const FLOOD: u64 = 1_500_000;
    let asked = Asked::new(100);
    let begin = 5_000 * PERIOD.get();
    let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    // A million requests a second. Three keys have a sixteenth each, in a rhythm that sampling at a
    // fixed stride would miss.
    for number in 0..FLOOD {
        let heavy = number % 16 < 3;
        let key = if heavy {
            format!("heavy-{}", number % 16)
        } else {
            format!("made-up-{number}")
        };
        asked.ask(
            key.as_bytes(),
            number % 16 == 1,
            Nanos::new(begin + number * 1_000),
        );
        if heavy {
            *exact.entry(key.into_bytes()).or_default() += 1;
        }
    }
    let top = asked.top(Nanos::new(begin + FLOOD * 1_000));
    // A second has a budget of 4,096, and at that the rate is halved.
    assert!((128..=1_024).contains(&top.one_in), "one in {}", top.one_in);
    for key in &top.asked[..3] {
        let exact = exact
            .get(&*key.key)
            .unwrap_or_else(|| panic!("{key:?} is none of the heavy ones"));
        assert!(
            (key.at_least..=key.at_most).contains(exact),
            "{exact} is not within {key:?}"
        );
        assert!(key.at_least > 50_000, "the bound is useful: {key:?}");
    }
    assert_eq!(
        (&*top.denied[0].key, top.denied.len()),
        (&b"heavy-1"[..], 1)
    );
    let mut now = Nanos::new(begin + FLOOD * 1_000);
    // Each decision that is counted may double the share that is counted, from 1 in 256: on average
    // after 511 decisions.
    for _ in 0..20_000 {
        now = now.saturating_add(Nanos::from_secs(1));
        asked.ask(b"a", false, now);
    }
    assert_eq!(asked.top(now).one_in, 1);
}

proptest! {
    /// The bounds over two periods when all decisions are counted.
    #[test]
    fn exact_counts_lie_within_the_bounds_of_both_periods(
        capacity in 1_usize..8,
        asks in prop::collection::vec((0_u8..20, any::<bool>()), 0..300),
        change in 0_usize..300,
    ) {
        let asked = Asked::new(capacity);
        let mut exact: BTreeMap<(bool, u8), u64> = BTreeMap::new();
        let begin = 77 * PERIOD.get();
        for (at, (key, denied)) in asks.iter().enumerate() {
            asked.ask(&[*key], *denied, Nanos::new(begin + if at < change { 0 } else { PERIOD.get() }));
            *exact.entry((false, *key)).or_default() += 1;
            if *denied {
                *exact.entry((true, *key)).or_default() += 1;
            }
        }
        let top = asked.top(Nanos::new(begin + PERIOD.get()));
        for (kind, keys) in [(false, &top.asked), (true, &top.denied)] {
            prop_assert!(keys.len() <= 2 * capacity);
            for key in keys {
                let exact = exact.remove(&(kind, key.key[0])).unwrap_or(0);
                prop_assert!((key.at_least..=key.at_most).contains(&exact), "{} {:?}", exact, key);
            }
        }
        // A key without a name has at most the share of a named one in each period.
        for ((denied, _), count) in exact {
            let total = if denied { top.denials } else { top.requests };
            prop_assert!(count <= total / capacity as u64, "{} of {}", count, total);
        }
    }
}
