use serde_json::{Value, json};

use super::*;

fn at(second: u64) -> Nanos {
    Nanos::from_secs(1_000 + second)
}

/// A report of an instance whose clock is at this second.
fn report(instance: &str, now: u64, resources: &Value) -> Report {
    let report = json!({"app": "shop", "instance": instance, "now": now, "resources": resources});
    serde_json::from_value(report).unwrap()
}

fn db(seconds: &Value) -> Value {
    json!([{"name": "db", "in_flight": 3, "seconds": seconds, "breakers": [["slow", "open"]], "adaptive": [["vegas", 20]]}])
}

fn only(reports: &Reports, now: Nanos) -> AppSummary {
    let mut apps = reports.summary(None, now);
    assert_eq!(apps.len(), 1);
    apps.remove(0)
}

#[test]
fn an_hour_of_minutes_outlives_the_seconds() {
    let reports = Reports::default();
    for second in 0..7_200 {
        // The program's clock is 500 s behind the server's.
        let seconds = json!([[499 + second, 2, 1, 0, 2, 0, 1]]);
        reports.take(report("a", 500 + second, &db(&seconds)), at(second)).unwrap();
    }
    let shop = only(&reports, at(7_200));
    let db = &shop.resources["db"];
    assert_eq!((db.minute.len(), db.hour.len(), db.hour[0], db.hour[58]), (60, 60, [120, 60], [120, 60]));
    let last = (1_000 + 7_198) % 60 + 1;
    assert_eq!(db.hour[59], [2 * last, last]);
}

#[test]
fn what_is_reported_is_bounded() {
    let reports = Reports::default();
    let many: Vec<_> =
        (0..100).map(|at| json!([format!("{at}{}", "x".repeat(500)), [u64::MAX, 1, 2]])).collect();
    let resources = json!([{"name": "db", "in_flight": 0, "seconds": [], "origins": many, "contexts": many,
        "blocked": (0..100).map(|at| json!([format!("r{at}"), u64::MAX])).collect::<Vec<_>>()}]);
    let own = json!({"text": "x".repeat(20_000), "left_out": vec!["y".repeat(2_000); 100]});
    let all = json!({"app": "shop", "instance": "a", "now": 1, "resources": resources, "own": own});
    let wants_own = reports.take(serde_json::from_value(all).unwrap(), at(0)).unwrap();
    assert!(!wants_own);
    let shop = only(&reports, at(0));
    let db = &shop.resources["db"];
    assert_eq!([db.origins.len(), db.contexts.len(), db.blocked.len()], [16; 3]);
    assert!(db.origins.iter().all(|(name, counts)| name.len() == 64 && counts[0] == 1 << 40));
    let (own, _) = shop.own()[0];
    assert!(own.text.is_empty() && own.left_out.len() == 17 && own.left_out[1].len() == 512);
    assert!(own.left_out[0].contains("20000 bytes"), "{}", own.left_out[0]);
    // A server that was started again knows the rules no more.
    assert_eq!(Reports::default().take(report("a", 500, &json!([])), at(0)), Ok(true));
}

#[test]
fn instances_with_different_clocks_are_added_up_second_by_second() {
    let reports = Reports::default();
    reports.take(report("a", 500, &db(&json!([[498, 10, 1, 0, 10, 20_000, 4]]))), at(0)).unwrap();
    // Its clock is far ahead. The same second is 99,998 there.
    reports
        .take(
            report("b", 100_000, &db(&json!([[99_998, 5, 2, 1, 10, 40_000, 4], [99_999, 7, 0, 0, 0, 0, 1]]))),
            at(0),
        )
        .unwrap();
    let shop = only(&reports, at(1));
    let db = &shop.resources["db"];
    let minute: Vec<_> = db.minute.iter().rev().take(3).map(|second| [second[0], second[1]]).collect();
    assert_eq!((db.minute.len(), minute), (60, vec![[7, 0], [15, 3], [0, 0]]));
    assert_eq!((db.in_flight, db.mean_rt()), (6, Duration::from_millis(3)));
    assert_eq!(db.rates().map(|rate| (rate * 10.0).round() as i64), [22, 3, 1]);
    assert_eq!(db.breakers[&("slow".to_owned(), "open".to_owned())], 2);
    assert_eq!((db.open(), db.adaptive["vegas"]), (2, 40));
}

#[test]
fn a_second_that_is_told_twice_counts_once() {
    let reports = Reports::default();
    let told = json!([[499, 10, 0, 0, 0, 0, 1]]);
    for _ in 0..2 {
        reports.take(report("a", 500, &db(&told)), at(0)).unwrap();
    }
    // The next report was under way for a second longer. The second keeps its place.
    reports.take(report("a", 501, &db(&json!([[500, 4, 0, 0, 0, 0, 1]]))), at(2)).unwrap();
    let minute = &only(&reports, at(2)).resources["db"].minute;
    assert_eq!([minute[58][0], minute[59][0], minute[57][0]], [10, 4, 0]);
}

#[test]
fn who_stops_reporting_is_gone_and_then_forgotten() {
    let reports = Reports::default();
    reports.take(report("a", 0, &db(&json!([]))), at(0)).unwrap();
    assert!(!only(&reports, at(9)).instances[0].is_gone);
    let shop = only(&reports, at(10));
    assert!(shop.instances[0].is_gone && shop.resources.is_empty());
    assert!(reports.summary(None, at(300)).is_empty());
}

#[test]
fn whatever_is_reported_memory_is_bounded_and_nothing_overflows() {
    let reports = Reports::default();
    let most = u64::MAX;
    let many: Vec<Value> = (0..2_000)
        .map(|n| json!({"name": format!("r{n}"), "in_flight": most, "seconds": [[most - 1, most, most, most, most, most, most]]}))
        .collect();
    for n in 0..8 {
        reports.take(report(&format!("i{n}"), most, &json!(many)), at(0)).unwrap();
    }
    let shop = only(&reports, at(0));
    assert_eq!(shop.resources.len(), 2_000);
    let left_out: usize = shop.instances.iter().map(|instance| instance.left_out).sum();
    assert_eq!(left_out, 8 * 2_000 - MAX_RESOURCES);
    let longer = json!([{"name": "x".repeat(257), "in_flight": 0, "seconds": [], "breakers": [["r".repeat(500), "made up"]]}]);
    reports.take(report("i0", 0, &longer), at(0)).unwrap();
    for n in 8..MAX_INSTANCES {
        reports.take(report(&format!("i{n}"), 0, &json!([])), at(0)).unwrap();
    }
    assert_eq!(reports.take(report("one more", 0, &json!([])), at(0)), Err(ReportError::TooMany));
    assert_eq!(reports.take(report("", 0, &json!([])), at(0)), Err(ReportError::Name("instance")));
    // The one that was silent longest gives way, once it is gone.
    reports.take(report("i0", 0, &json!([])), at(5)).unwrap();
    assert_eq!(reports.take(report("one more", 0, &json!([])), at(9)), Err(ReportError::TooMany));
    assert_eq!(reports.take(report("one more", 0, &json!([])), at(10)), Ok(true));
    let names: Vec<String> = only(&reports, at(10)).instances.into_iter().map(|one| one.name).collect();
    assert!(names.len() == MAX_INSTANCES && names.contains(&"i0".to_owned()));
}

#[test]
fn the_hour_outlives_a_restart_and_no_second_counts_twice() {
    let directory = std::env::temp_dir().join(format!("tidegate-hours-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let before = Flow::open(Some(&directory), at(0)).unwrap();
    let seconds =
        |to: u64| json!((to.saturating_sub(59)..to).map(|at| [at, 2, 1, 0, 2, 0, 1]).collect::<Vec<_>>());
    for second in 0..=100 {
        before.reports.take(report("a", 500 + second, &db(&seconds(500 + second))), at(second)).unwrap();
    }
    before.reports.take(report("b", 500, &db(&json!([[499, 7, 0, 0, 7, 0, 1]]))), at(100)).unwrap();
    before.hours.write(&before.reports, at(100));
    let sum = |flow: &Flow, now| {
        let hour = only(&flow.reports, now).resources["db"].hour.clone();
        hour.iter().fold([0, 0], |sum, minute| [sum[0] + minute[0], sum[1] + minute[1]])
    };
    let all = sum(&before, at(100));
    assert_eq!(all, [2 * 159 + 7, 159]);

    let after = Flow::open(Some(&directory), at(110)).unwrap();
    assert_eq!(sum(&after, at(110)), all);
    // The program sends its last minute again, and ten seconds more.
    after.reports.take(report("a", 610, &db(&seconds(610))), at(110)).unwrap();
    assert_eq!(sum(&after, at(110)), [all[0] + 20, all[1] + 10]);
    // The other one has not come back: it is gone, then forgotten.
    let gone = |now| only(&after.reports, now).instances.into_iter().filter(|one| one.is_gone).count();
    assert_eq!((gone(at(119)), gone(at(121))), (0, 2));
    assert!(after.reports.summary(None, at(500)).is_empty());

    // An hour later nothing is left to show, and a broken file costs only the hours.
    let late = Flow::open(Some(&directory), at(3_800)).unwrap();
    assert_eq!(sum(&late, at(3_800)), [0, 0]);
    std::fs::write(directory.join("hours.json"), "[{").unwrap();
    assert!(Flow::open(Some(&directory), at(110)).unwrap().reports.summary(None, at(110)).is_empty());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn pushed_rules_survive_a_restart_and_the_version_is_that_of_the_text() {
    let directory = std::env::temp_dir().join(format!("tidegate-pushed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let pushed = Pushed::open(Some(&directory)).unwrap();
    let first = pushed.push("my/shop", "flow: [{resource: db, limit: 5/1s}]", None).unwrap();
    let second = pushed.push("my/shop", "flow: []", None).unwrap();
    assert!(matches!(pushed.push("my/shop", "flow: nonsense", None), Err(PushError::Rules(_))));
    let again = Pushed::open(Some(&directory)).unwrap();
    assert_eq!(again.apps(), ["my/shop"]);
    assert_eq!(again.get("my/shop").unwrap().text, "flow: []");
    assert!(
        again.newer("my/shop", Some(&second)).is_none() && again.newer("my/shop", Some(&first)).is_some()
    );
    assert!(directory.join("my%2Fshop.yaml.previous").exists());
    // The error for a file with a mistake names the file.
    std::fs::write(directory.join("other.yaml"), "flow: nonsense").unwrap();
    let error = Pushed::open(Some(&directory)).unwrap_err().to_string();
    assert!(error.contains("other.yaml"), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}
