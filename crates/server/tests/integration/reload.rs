//! Changes of the rules while the server runs.

use crate::harness;

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use harness::{Http, Resp, Running, replace, scratch};
use tidegate_redis_servers::eventually;
use tidegate_server::{Options, Order};

/// A server that checks its rules file continuously, and the file.
fn following(name: &str, rules: &str) -> (Running, PathBuf) {
    let path = scratch(name).join("rules.yaml");
    fs::write(&path, rules).unwrap();
    (following_file(path.clone()), path)
}

fn following_file(path: PathBuf) -> Running {
    Running::start(Options {
        rules: Some(path),
        reload_interval: Duration::from_millis(10),
        ..Options::default()
    })
}

fn limits(lines: &[&str]) -> String {
    let items: Vec<String> = lines.iter().map(|line| format!("  - {{{line}}}")).collect();
    format!("limits:\n{}\n", items.join("\n"))
}

const A: &str = "name: a, limit: 3/1m, algorithm: sliding-log";

#[test]
fn an_unchanged_limit_keeps_its_state_and_a_changed_quota_keeps_the_use() {
    let (mut server, path) = following(
        "reload-state",
        &limits(&[
            A,
            "name: b, limit: 3/1m, algorithm: sliding-log",
            "name: gone, limit: 1/1s",
        ]),
    );
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("ACQUIRE a alice 2"), "[0 3 1 -1 60000]");
    assert_eq!(client.ask("ACQUIRE b alice 2"), "[0 3 1 -1 60000]");
    let next = limits(&[
        A,
        "name: b, limit: 10/2m, algorithm: sliding-log",
        "name: new, limit: 1/1s",
    ]);
    server.reloading(|| replace(&path, next));
    assert_eq!(client.ask("PEEK a alice"), "[0 3 1 -1 60000]");
    // The use carries over to the new window.
    assert_eq!(client.ask("PEEK b alice"), "[0 10 8 -1 120000]");
    assert!(
        client
            .ask("PEEK gone alice")
            .starts_with("ERR no limit is named `gone`")
    );
    assert!(client.ask("PEEK new alice").starts_with("[0 1 1"));
    // Counters continue, too, except those of the removed limit.
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="b",outcome="allowed"}"#),
        1
    );
    assert!(!server.get("/metrics").body.contains("gone"));
    // With another algorithm, the units in use count as taken now.
    server.reloading(|| {
        replace(
            &path,
            limits(&["name: b, limit: 10/1m, algorithm: token-bucket"]),
        );
    });
    assert_eq!(client.ask("PEEK b alice"), "[0 10 8 -1 12000]");
}

#[test]
fn a_bad_file_is_rejected_and_the_previous_rules_stay_active() {
    let (mut server, path) = following("reload-bad", &limits(&[A]));
    let mut client = Resp::connect(server.resp);
    client.ask("ACQUIRE a alice 2");
    for bad in [
        "limits:\n  - {name: a, limit: 9/1m}\n  - {name: b, limit: 100}\n",
        "",
        "limits: [",
        "\u{0}",
    ] {
        server.reloading(|| replace(&path, bad));
        assert_eq!(
            client.ask("PEEK a alice"),
            "[0 3 1 -1 60000]",
            "after {bad:?}"
        );
    }
    assert_eq!(
        server.metric(r#"tidegate_rules_reloads_total{result="failed"}"#),
        4
    );
    server.reloading(|| {
        replace(
            &path,
            limits(&["name: a, limit: 4/1m, algorithm: sliding-log"]),
        );
    });
    assert_eq!(client.ask("PEEK a alice"), "[0 4 2 -1 60000]");
    assert_eq!(
        server.metric(r#"tidegate_rules_reloads_total{result="ok"}"#),
        1
    );
}

#[test]
fn a_file_renamed_into_place_and_a_config_map_are_followed() {
    let (mut server, path) = following("reload-rename", &limits(&[A]));
    let other = path.with_extension("tmp");
    fs::write(&other, limits(&["name: renamed, limit: 1/1s"])).unwrap();
    server.reloading(|| fs::rename(&other, &path).unwrap());
    assert!(server.resp("PEEK renamed x").starts_with("[0"));

    // As the kubelet does it: the path goes through the symlink `..data`, which a rename replaces.
    let volume = scratch("reload-configmap");
    for (version, name) in [("..v1", "first"), ("..v2", "second")] {
        fs::create_dir(volume.join(version)).unwrap();
        fs::write(
            volume.join(version).join("rules.yaml"),
            limits(&[&format!("name: {name}, limit: 1/1s")]),
        )
        .unwrap();
    }
    symlink("..v1", volume.join("..data")).unwrap();
    symlink("..data/rules.yaml", volume.join("rules.yaml")).unwrap();
    let mut server = following_file(volume.join("rules.yaml"));
    assert!(server.resp("PEEK first x").starts_with("[0"));
    server.reloading(|| {
        symlink("..v2", volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        fs::remove_dir_all(volume.join("..v1")).unwrap();
    });
    assert!(server.resp("PEEK second x").starts_with("[0"));
}

#[test]
fn what_an_operator_gave_a_key_outlives_a_change_of_the_rules() {
    let (mut server, path) = following("reload-runtime-override", &limits(&[A]));
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("OVERRIDE a vip 9/1m"), "OK");
    assert_eq!(client.ask("ACQUIRE a vip 2"), "[0 9 7 -1 60000]");
    // Rules that say something else about the key, and that change the limit around it.
    let own = "name: a, limit: 5/1m, algorithm: sliding-log, overrides: {vip: 4/1m}";
    server.reloading(|| replace(&path, limits(&[own])));
    // A file may be seen while it is being written, and then the rules before stay for a moment.
    eventually("the rules are loaded", || {
        client.ask("PEEK a bob") == "[0 5 5 -1 0]"
    });
    assert_eq!(client.ask("PEEK a vip"), "[0 9 7 -1 60000]");
    // It follows the limit's algorithm.
    let bucket = "name: a, limit: 6/1m, algorithm: token-bucket, overrides: {vip: 4/1m}";
    server.reloading(|| replace(&path, limits(&[bucket])));
    eventually("the rules are loaded", || {
        client.ask("PEEK a bob") == "[0 6 6 -1 0]"
    });
    assert_eq!(client.ask("PEEK a vip"), "[0 9 7 -1 13334]");
    // At its end the rules' own override holds.
    assert_eq!(client.ask("OVERRIDE a vip END"), "1");
    assert_eq!(client.ask("PEEK a vip"), "[0 4 2 -1 30000]");
    // An algorithm that cannot count by the quota ends it.
    assert_eq!(client.ask("OVERRIDE a vip 9/1m"), "OK");
    server.reloading(|| {
        replace(
            &path,
            limits(&["name: a, limit: 3, algorithm: concurrency"]),
        );
    });
    eventually("the rules are loaded", || {
        client.ask("PEEK a vip").starts_with("[0 3 ")
    });
    assert_eq!(client.ask("OVERRIDE a vip END"), "0");
}

#[test]
fn an_order_reloads_an_unchanged_file() {
    let path = scratch("reload-order").join("rules.yaml");
    fs::write(&path, limits(&[A])).unwrap();
    let options = Options {
        rules: Some(path.clone()),
        reload_interval: Duration::from_secs(1_000_000),
        ..Options::default()
    };
    let mut server = Running::start(options);
    fs::write(&path, limits(&["name: b, limit: 1/1s"])).unwrap();
    let orders = server.orders();
    server.reloading(|| orders.blocking_send(Order::Reload).unwrap());
    assert!(server.resp("PEEK b x").starts_with("[0"));
}

#[test]
fn overrides_and_the_deny_list_follow_the_file() {
    let with = |rest: &str| limits(&[&format!("{A}{rest}")]);
    let (mut server, path) = following(
        "reload-exceptions",
        &with(", deny: [mallory, trudy], overrides: {admin: 10/1m, root: 5/1m}"),
    );
    let mut client = Resp::connect(server.resp);
    client.ask("ACQUIRE a admin 2");
    client.ask("BLOCK a eve");
    let next = with(", deny: [trudy, oscar], overrides: {admin: 20/1m, boss: 7/1m}");
    server.reloading(|| replace(&path, next));
    for (key, expected) in [
        ("mallory", "[0 3 3 -1 0]"),
        ("trudy", "[1 3 0 -1 -1]"),
        ("oscar", "[1 3 0 -1 -1]"),
        ("admin", "[0 20 18 -1 60000]"),
        ("root", "[0 3 3 -1 0]"),
        ("boss", "[0 7 7 -1 0]"),
        // A request blocked it, not the rules, so the block stays.
        ("eve", "[1 3 0 -1 -1]"),
    ] {
        assert_eq!(client.ask(&format!("PEEK a {key}")), expected, "{key}");
    }
    // Removing the override keeps the use.
    server.reloading(|| replace(&path, with("")));
    assert_eq!(client.ask("PEEK a admin"), "[0 3 1 -1 60000]");
}

#[test]
fn a_changed_bound_keeps_the_states_and_a_shadow_limit_can_be_enforced() {
    let with = |rest: &str| limits(&[&format!("{A}{rest}")]);
    let (mut server, path) = following(
        "reload-bound",
        &with(", max_keys: 100, shadow: true, overrides: {admin: 9/1m}"),
    );
    let mut client = Resp::connect(server.resp);
    client.ask("ACQUIRE a alice 3");
    client.ask("ACQUIRE a admin 4");
    client.ask("BLOCK a eve 5000");
    assert!(client.ask("ACQUIRE a alice").starts_with("[0"));
    server.reloading(|| {
        replace(
            &path,
            with(", max_keys: 50, overrides: {admin: 9/1m}, deny: [bob]"),
        );
    });
    assert_eq!(server.metric(r#"tidegate_keys_max{limit="a"}"#), 50);
    assert_eq!(client.ask("PEEK a alice"), "[1 3 0 60000 60000]");
    assert_eq!(client.ask("PEEK a admin"), "[0 9 5 -1 60000]");
    assert_eq!(client.ask("PEEK a eve"), "[1 3 0 5000 5000]");
    assert_eq!(client.ask("PEEK a bob"), "[1 3 0 -1 -1]");
    assert_eq!(
        server.metric(r#"tidegate_decisions_total{limit="a",outcome="allowed"}"#),
        2
    );
}

#[test]
fn rules_that_do_not_fit_into_memory_are_rejected() {
    let with = |limit: &str, deny: &str| {
        limits(&[
            &format!("name: first, limit: {limit}, algorithm: sliding-log"),
            &format!("{A}, max_keys: 2, deny: [{deny}]"),
        ])
    };
    let (mut server, path) = following("reload-room", &with("3/1m", "x"));
    let mut client = Resp::connect(server.resp);
    client.ask("ACQUIRE first alice");
    // The deny list may have as many keys as the limit.
    server.reloading(|| replace(&path, with("9/1m", "u, v, w")));
    assert_eq!(
        server.metric(r#"tidegate_rules_reloads_total{result="failed"}"#),
        1
    );
    assert_eq!(client.ask("PEEK first alice"), "[0 3 2 -1 60000]");
    for (key, denied) in [("u", false), ("v", false), ("w", false), ("x", true)] {
        assert_eq!(
            client.ask(&format!("PEEK a {key}")).starts_with("[1"),
            denied,
            "{key}"
        );
    }
    server.reloading(|| replace(&path, with("9/1m", "u, v")));
    assert_eq!(client.ask("PEEK first alice"), "[0 9 8 -1 60000]");
    assert!(client.ask("PEEK a v").starts_with("[1"));
}

#[test]
fn reloads_beside_joint_decisions_never_deadlock_and_never_admit_too_much() {
    const LIMIT: usize = 300;
    let rules = |round: usize| {
        let algorithm = ["sliding-log", "fixed-window"][round % 2];
        let max_keys = [100, 1_000, 50][round % 3];
        let one =
            format!("name: one, limit: {LIMIT}/1h, algorithm: {algorithm}, max_keys: {max_keys}");
        let two = format!(
            "name: two, limit: 10000/1h, algorithm: {algorithm}, max_keys: 100, overrides: {{vip: {}/1h}}",
            round + 1
        );
        // The order of the limits, which is their lock order, changes too.
        if round.is_multiple_of(2) {
            limits(&[&one, &two])
        } else {
            limits(&[&two, &one])
        }
    };
    let path = scratch("reload-joint").join("rules.yaml");
    fs::write(&path, rules(0)).unwrap();
    let options = Options {
        rules: Some(path.clone()),
        reload_interval: Duration::from_secs(1_000_000),
        ..Options::default()
    };
    let mut server = Running::start(options);
    let (address, resp, orders) = (server.http, server.resp, server.orders());
    let (stop, admitted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (stop, admitted) = (&stop, &admitted);
            scope.spawn(move || {
                let mut names = ["one", "two"];
                names.rotate_left(thread % 2);
                let [first, second] =
                    names.map(|name| serde_json::json!({"limit": name, "key": "k"}));
                let body = serde_json::json!({"all": [first, second]}).to_string();
                let (mut http, mut client) = (Http::connect(address), Resp::connect(resp));
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds < LIMIT {
                    let joint = http.send("POST", "/v1/acquire", &body).status == 200;
                    let alone = client.ask("ACQUIRE one k").starts_with("[0");
                    admitted.fetch_add(usize::from(joint) + usize::from(alone), Ordering::Relaxed);
                    rounds += 1;
                }
            });
        }
        for round in 1..=60 {
            fs::write(&path, rules(round)).unwrap();
            server.reloading(|| orders.blocking_send(Order::Reload).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.into_inner(), LIMIT);
    assert_eq!(
        server.metric(r#"tidegate_rules_reloads_total{result="ok"}"#),
        60
    );
}

/// Somebody sets the machine's clock, which was three hours behind at the start.
#[test]
fn days_follow_the_systems_time_through_reloads_and_overrides() {
    let days = "name: days, limit: 3/day, algorithm: fixed-window, calendar: true";
    let rate = "name: rate, limit: 3/1d, algorithm: fixed-window";
    let (mut server, path) = following("reload-clock", &limits(&[days, rate]));
    let ask = |command: &str| server.resp(command);
    let noon = 12 * 3_600_000;
    assert_eq!(ask("OVERRIDE days vip 5/day"), "OK");
    for key in ["days alice", "days vip", "rate alice"] {
        let left = if key == "days vip" { 3 } else { 1 };
        let limit = left + 2;
        assert_eq!(
            ask(&format!("ACQUIRE {key} 2")),
            format!("[0 {limit} {left} -1 {noon}]")
        );
    }
    server.clock.set_wall_ahead(3 * 3_600_000_000_000);
    let evening = 9 * 3_600_000;
    let follows = || {
        let days = format!("[0 3 1 -1 {evening}]");
        server.resp("PEEK days alice") == days
    };
    eventually("the day follows", follows);
    let vip = format!("[0 5 3 -1 {evening}]");
    eventually("a key's own limit, too", || {
        server.resp("PEEK days vip") == vip
    });
    assert_eq!(server.resp("PEEK rate alice"), format!("[0 3 1 -1 {noon}]"));
    assert_eq!(server.metric("tidegate_clock_steps_total"), 1);
    assert_eq!(server.metric("tidegate_clock_off_seconds"), 3 * 3_600);
    let more = days.replace("3/day", "4/day");
    server.reloading(|| replace(&path, limits(&[&more, rate])));
    assert_eq!(
        server.resp("PEEK days alice"),
        format!("[0 4 2 -1 {evening}]")
    );
    server.advance(Duration::from_millis(evening));
    assert!(server.resp("PEEK days alice").starts_with("[0 4 4 "));
    assert!(server.resp("PEEK days vip").starts_with("[0 5 5 "));
    assert_eq!(
        server.resp("PEEK rate alice"),
        format!("[0 3 1 -1 {}]", noon - evening)
    );
    // Back over midnight: the day that was reached goes on.
    assert!(server.resp("ACQUIRE days alice 4").starts_with("[0 4 0 "));
    server.clock.set_wall_ahead(0);
    eventually("it follows back", || {
        server.metric("tidegate_clock_steps_total") == 2
    });
    let denied = format!("[1 4 0 {0} {0}]", 27 * 3_600_000);
    eventually("so does the limit", || {
        server.resp("PEEK days alice") == denied
    });
}
