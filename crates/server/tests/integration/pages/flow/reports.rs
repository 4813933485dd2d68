//! What a server keeps of reports: clocks that differ, bounds, and restarts.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_server::{Ended, Options};

use super::{app, push};
use crate::{
    harness::{Http, Running, scratch},
    pages::{RULES, page},
};

/// When a server starts.
const START: Nanos = Nanos::from_secs(1_700_049_600);

/// Programs that report over one connection.
struct Programs(Http);

impl Programs {
    fn of(server: &Running) -> Self {
        Self(Http::connect(server.admin))
    }

    fn send(&mut self, report: &Value) -> (u16, Value) {
        let answer = self.0.send("POST", "/v1/flow/report", &report.to_string());
        (answer.status, answer.json())
    }

    /// The status of the answer to a report of an instance whose clock is at `now`.
    fn report(&mut self, instance: &str, now: u64, resources: &Value) -> u16 {
        self.send(&json!({"app": "shop", "instance": instance, "now": now, "resources": resources}))
            .0
    }
}

fn db(seconds: &Value) -> Value {
    json!([{"name": "db", "in_flight": 3, "seconds": seconds, "breakers": [["slow", "open"]], "adaptive": [["vegas", 20]]}])
}

/// What the only resource of the only application has counted in this span: each minute or second,
/// oldest first.
fn told(server: &Running, span: &str, what: &str) -> Vec<u64> {
    serde_json::from_value(app(server)["resources"][0][span][what].clone()).unwrap()
}

fn instances(server: &Running) -> Vec<Value> {
    app(server)["instances"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

#[test]
fn an_hour_of_minutes_outlives_the_seconds() {
    let server = Running::with_rules("flow-hour", RULES);
    let mut programs = Programs::of(&server);
    // The program's clock is far behind the server's. Half of its last minute is over.
    for (from, to) in (0..120)
        .map(|minute| (60 * minute, 60 * minute + 60))
        .chain([(7_200, 7_230)])
    {
        server.advance(Duration::from_secs(to - from));
        let seconds: Vec<_> = (from..to)
            .map(|second| json!([second, 2, 1, 0, 2, 0, 1]))
            .collect();
        assert_eq!(programs.report("a", to, &db(&json!(seconds))), 200);
    }
    assert_eq!(told(&server, "minute", "pass"), [2; 60]);
    let hour = |full, last| [vec![full; 59], vec![last]].concat();
    assert_eq!(
        [
            told(&server, "hour", "pass"),
            told(&server, "hour", "block")
        ],
        [hour(120, 60), hour(60, 30)]
    );
}

#[test]
fn instances_with_different_clocks_are_added_up_second_by_second() {
    let server = Running::with_rules("flow-clocks", RULES);
    let mut programs = Programs::of(&server);
    programs.report("a", 500, &db(&json!([[498, 10, 1, 0, 10, 20_000, 4]])));
    // Its clock is far ahead. The same second is 99,998 there.
    let seconds = json!([[99_998, 5, 2, 1, 10, 40_000, 4], [99_999, 7, 0, 0, 0, 0, 1]]);
    programs.report("b", 100_000, &db(&seconds));
    assert_eq!(told(&server, "minute", "pass")[57..], [0, 15, 7]);
    assert_eq!(told(&server, "minute", "block")[57..], [0, 3, 0]);
    let db = &app(&server)["resources"][0];
    let rates = [
        "pass_per_second",
        "block_per_second",
        "exceptions_per_second",
        "mean_rt_ms",
    ]
    .map(|of| &db[of]);
    assert_eq!(rates, [&json!(2.2), &json!(0.3), &json!(0.1), &json!(3.0)]);
    assert_eq!(
        (&db["in_flight"], &db["adaptive"]),
        (&json!(6), &json!([{"rule": "vegas", "limit": 40}]))
    );
    assert_eq!(
        db["breakers"],
        json!([{"rule": "slow", "state": "open", "instances": 2}])
    );
}

#[test]
fn a_second_that_is_told_twice_counts_once() {
    let server = Running::with_rules("flow-twice", RULES);
    let mut programs = Programs::of(&server);
    for _ in 0..2 {
        programs.report("a", 500, &db(&json!([[499, 10, 0, 0, 0, 0, 1]])));
    }
    // The next report was under way for a second longer. The second keeps its place.
    server.advance(Duration::from_secs(2));
    programs.report("a", 501, &db(&json!([[500, 4, 0, 0, 0, 0, 1]])));
    assert_eq!(told(&server, "minute", "pass")[57..], [0, 10, 4]);
}

#[test]
fn who_stops_reporting_is_gone_and_then_forgotten() {
    let server = Running::with_rules("flow-gone", RULES);
    Programs::of(&server).report("a", 0, &db(&json!([])));
    let is_gone = || instances(&server)[0]["gone"].clone();
    server.advance(Duration::from_secs(9));
    assert_eq!(is_gone(), false);
    server.advance(Duration::from_secs(1));
    assert_eq!(
        (
            is_gone(),
            app(&server)["resources"].as_array().map(Vec::len)
        ),
        (json!(true), Some(0))
    );
    server.advance(Duration::from_secs(290));
    assert_eq!(app(&server), Value::Null);
}

#[test]
fn what_is_reported_is_bounded_and_nothing_overflows() {
    let server = Running::with_rules("flow-bounded", RULES);
    let mut programs = Programs::of(&server);
    let most = u64::MAX;
    let many = |name: &str, count: &Value| {
        (0..100)
            .map(|at| json!([format!("{name}{at}"), count]))
            .collect::<Value>()
    };
    let [long, parts] = ["x".repeat(256), "y".repeat(50)];
    let resources = json!([
        {"name": "db", "in_flight": most, "seconds": [[most - 1, most, most, most, most, most, most]],
         "origins": many(&parts, &json!([most, 1, 2])), "contexts": many("c", &json!([1, 2, 3])),
         "blocked": many("r", &json!(most)), "breakers": [["r".repeat(500), "made up"]]},
        {"name": long, "in_flight": 0, "seconds": []},
        {"name": format!("{long}x"), "in_flight": 0, "seconds": []},
    ]);
    let own = json!({"text": "x".repeat(20_000), "left_out": ["y".repeat(2_000)]});
    let report =
        json!({"app": "shop", "instance": "a", "now": most, "resources": resources, "own": own});
    for instance in ["a", "b"] {
        let mut report = report.clone();
        report["instance"] = json!(instance);
        assert_eq!(
            programs.send(&report),
            (200, json!({"rules": null, "wants_own": false}))
        );
    }
    let shop = app(&server);
    assert_eq!(
        (
            shop["resources"].as_array().unwrap().len(),
            &shop["instances"][0]["left_out"]
        ),
        (2, &json!(1))
    );
    let db = &shop["resources"][0];
    assert_eq!(
        ["origins", "contexts"].map(|of| db[of].as_array().map(Vec::len)),
        [Some(16); 2]
    );
    assert_eq!(
        db["blocked"].as_object().map(serde_json::Map::len),
        Some(16)
    );
    assert_eq!(
        (&db["in_flight"], &db["origins"][0]["pass_per_second"]),
        (&json!(2_u64 << 40), &json!(2_u64 << 40))
    );
    assert_eq!(
        db["breakers"],
        json!([{"rule": "r".repeat(64), "state": "unknown", "instances": 2}])
    );
    assert_eq!(shop["instances"][0]["rules"], "");
    let body = page(&server, "/flow?app=shop").body;
    assert!(
        body.contains("20000 bytes")
            && body.contains(&"y".repeat(512))
            && !body.contains(&"y".repeat(513)),
        "{body}"
    );
    // A server that was started again knows the rules no more.
    let again = Running::with_rules("flow-bounded-again", RULES);
    let report = json!({"app": "shop", "instance": "a", "now": 500, "resources": []});
    assert_eq!(Programs::of(&again).send(&report).1["wants_own"], true);
}

#[test]
fn all_instances_together_are_bounded() {
    let server = Running::with_rules("flow-many", RULES);
    let mut programs = Programs::of(&server);
    let many: Value = (0..1_300)
        .map(|n| json!({"name": format!("r{n}"), "in_flight": 0, "seconds": []}))
        .collect();
    for n in 0..8 {
        assert_eq!(programs.report(&format!("i{n}"), 0, &many), 200);
    }
    let left_out: u64 = instances(&server)
        .iter()
        .map(|one| one["left_out"].as_u64().unwrap())
        .sum();
    assert_eq!(left_out, 8 * 1_300 - 10_000);
    for n in 8..1_000 {
        assert_eq!(programs.report(&format!("i{n}"), 0, &json!([])), 200);
    }
    assert_eq!(programs.report("one more", 0, &json!([])), 503);
    assert_eq!(programs.report("", 0, &json!([])), 400);
    // Another application has places left, for its resources, too.
    let other = json!({"app": "zoo", "instance": "i0", "now": 0, "resources": many});
    assert_eq!(programs.send(&other).0, 200);
    let zoo = &server.get("/v1/flow").json()["apps"][1];
    assert_eq!(zoo["instances"][0]["left_out"], 0, "{zoo}");
    // The one that was silent longest gives way, once it is gone.
    server.advance(Duration::from_secs(5));
    programs.report("i0", 0, &json!([]));
    server.advance(Duration::from_secs(4));
    assert_eq!(programs.report("one more", 0, &json!([])), 503);
    server.advance(Duration::from_secs(1));
    assert_eq!(programs.report("one more", 0, &json!([])), 200);
    let names: Vec<_> = instances(&server)
        .iter()
        .map(|one| one["instance"].clone())
        .collect();
    assert!(names.len() == 1_000 && names.contains(&json!("i0")));
}

#[test]
fn the_hour_outlives_a_restart_and_no_second_counts_twice() {
    let directory = scratch("flow-hours");
    let options = Options {
        flow_rules: Some(directory.clone()),
        ..Options::default()
    };
    let start = |seconds| {
        Running::start_at(
            options.clone(),
            START.saturating_add(Nanos::from_secs(seconds)),
        )
    };
    let sum =
        |server: &Running| ["pass", "block"].map(|of| told(server, "hour", of).iter().sum::<u64>());
    let last_minute = |to: u64| {
        (to - 60..to)
            .map(|at| json!([at, 2, 1, 0, 2, 0, 1]))
            .collect::<Value>()
    };

    let server = start(0);
    let mut programs = Programs::of(&server);
    for second in 0..=100 {
        programs.report("a", 500 + second, &db(&last_minute(500 + second)));
        server.advance(Duration::from_secs(1));
    }
    programs.report("b", 500, &db(&json!([[499, 7, 0, 0, 7, 0, 1]])));
    let all = sum(&server);
    assert_eq!(all, [2 * 160 + 7, 160]);
    assert_eq!(server.stop(), Ended::Complete);

    let server = start(111);
    assert_eq!(sum(&server), all);
    // The program sends its last minute again, and ten seconds more.
    Programs::of(&server).report("a", 610, &db(&last_minute(610)));
    assert_eq!(sum(&server), [all[0] + 20, all[1] + 10]);
    // The other one has not come back: it is gone, then forgotten.
    let gone = || {
        instances(&server)
            .iter()
            .filter(|one| one["gone"] == true)
            .count()
    };
    server.advance(Duration::from_secs(9));
    assert_eq!(gone(), 0);
    server.advance(Duration::from_secs(2));
    assert_eq!(gone(), 2);
    let kept = std::fs::read(directory.join("hours.json")).unwrap();
    assert_eq!(server.stop(), Ended::Complete);

    // An hour later nothing is left to show, and a broken file costs only the hours.
    std::fs::write(directory.join("hours.json"), kept).unwrap();
    let late = start(3_800);
    assert_eq!(sum(&late), [0, 0]);
    assert_eq!(late.stop(), Ended::Complete);
    std::fs::write(directory.join("hours.json"), "[{").unwrap();
    assert_eq!(app(&start(110)), Value::Null);
}

#[test]
fn pushed_rules_have_a_file_for_each_application_and_the_one_before() {
    let directory = scratch("flow-pushed");
    let options = Options {
        flow_rules: Some(directory.clone()),
        ..Options::default()
    };
    let server = Running::start(options.clone());
    let (_, first) = push(&server, "my/shop", "flow: [{resource: db, limit: 5/1s}]");
    let (_, second) = push(&server, "my/shop", "flow: []");
    assert_eq!(push(&server, "my/shop", "flow: nonsense").0, 422);
    assert!(directory.join("my%2Fshop.yaml.previous").exists());
    assert_eq!(server.stop(), Ended::Complete);
    let server = Running::start(options.clone());
    let asks = |version: &Value| {
        let report = json!({"app": "my/shop", "instance": "a", "now": 1, "version": version, "resources": []});
        Programs::of(&server).send(&report).1["rules"]["text"].clone()
    };
    assert_eq!(
        [asks(&first["version"]), asks(&second["version"])],
        [json!("flow: []"), Value::Null]
    );
    assert_eq!(server.stop(), Ended::Complete);
    // The error for a file with a mistake names the file.
    std::fs::write(directory.join("other.yaml"), "flow: nonsense").unwrap();
    let error = Running::try_start_at(options, START).err().unwrap();
    assert!(error.contains("other.yaml"), "{error}");
}

#[test]
fn a_chart_has_the_newest_second_at_the_right_and_what_is_blocked_on_top() {
    let server = Running::with_rules("flow-chart", RULES);
    let mut programs = Programs::of(&server);
    assert_eq!(
        programs.report("a", 101, &db(&json!([[100, 5, 5, 0, 5, 0, 1]]))),
        200
    );
    let body = page(&server, "/flow?app=shop&resource=db").body;
    // Fifty-nine minutes without a call.
    let idle = "h59";
    assert!(
        body.contains(&format!(r#"class="admitted" d="M0 120{idle}v-60h1V120z""#)),
        "{body}"
    );
    assert!(
        body.contains(&format!(r#"class="denied" d="M0 120{idle}v-120h1V120z""#)),
        "{body}"
    );
}

#[test]
fn numbers_are_short() {
    let server = Running::with_rules("flow-numbers", RULES);
    let rates = [
        (0, "0.0"),
        (999, "99.9"),
        (1_000, "100"),
        (123_450, "12.3k"),
        (500_000_000, "50.0M"),
    ];
    let counts = [
        (0, "0"),
        (999, "999"),
        (1_000, "1,000"),
        (50_000_000, "50,000,000"),
        (7, "7"),
    ];
    let resource = |(at, ((passed, _), (in_flight, _)))| json!({"name": format!("r{at}"), "in_flight": in_flight, "seconds": [[100, passed, 0, 0, 0, 0, 0]]});
    let resources: Vec<Value> = rates
        .into_iter()
        .zip(counts)
        .enumerate()
        .map(resource)
        .collect();
    assert_eq!(
        Programs::of(&server).report("a", 101, &json!(resources)),
        200
    );
    let body = page(&server, "/flow?app=shop").body;
    for (at, ((_, rate), (_, count))) in rates.into_iter().zip(counts).enumerate() {
        assert!(
            body.contains(&format!("data-head=\"Passed/s\">{rate}<")),
            "{rate}: {body}"
        );
        let body = page(&server, &format!("/flow?app=shop&resource=r{at}")).body;
        assert!(
            body.contains(&format!("<li>{count} in flight")),
            "{count}: {body}"
        );
    }
}
