//! The contents of a rules file, and the errors for invalid ones.

use std::time::Duration;

use tidegate_core::Nanos;
use tidegate_limiter::WhenFull;
use tidegate_server::{
    limits::{Capacity, Limits},
    rules::{self, PolicySpec},
};

/// The problems of a text, one per line.
fn complaints(text: &str) -> String {
    let problems = rules::parse(text).expect_err("the rules should be refused");
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// A file with one limit of these lines, indented.
fn one(lines: &str) -> String {
    format!(
        "limits:\n  - name: a\n    {}\n",
        lines.trim().replace('\n', "\n    ")
    )
}

#[test]
fn the_example_agrees_with_the_documentation() {
    let rules = rules::example();
    let names: Vec<_> = rules
        .limits
        .iter()
        .map(|limit| limit.name.as_str())
        .collect();
    assert_eq!(names, ["per-user", "logins", "everyone"]);
    let logins = &rules.limits[1];
    assert_eq!(logins.overrides["admin"].quota(), "100/10m");
    assert_eq!(logins.overrides["admin"].algorithm.name(), "sliding-log");
    assert!(logins.deny.contains("mallory"));
    assert!(rules.limits[2].global && rules.limits[2].shadow);
}

#[test]
fn a_limit_selects_requests_of_a_log() {
    let limits = rules::parse(
        "limits: [{name: a, limit: 1/1s, match: {path: /login, method: POST}, by: [ip, path]}, \
         {name: b, limit: 1/1s, by: user-agent}, {name: c, limit: 1/1s}]",
    )
    .unwrap()
    .limits;
    let pair = |field: &str, pattern: &str| (field.to_owned(), pattern.to_owned());
    assert_eq!(
        limits[0].traffic.conditions,
        [pair("path", "/login"), pair("method", "POST")]
    );
    assert_eq!(
        (&limits[0].traffic.by[..], &limits[1].traffic.by[..]),
        (
            &["ip".to_owned(), "path".to_owned()][..],
            &["user-agent".to_owned()][..]
        )
    );
    assert_eq!(limits[2].traffic, rules::TrafficSpec::default());
    let told = complaints(&one("limit: 1/1s\nglobal: true\nby: ip\nmatch: [path]"));
    assert!(
        told.contains("it has no keys, so `by` has no meaning"),
        "{told}"
    );
    assert!(
        told.contains("as in `match: {path: /login, method: POST}`"),
        "{told}"
    );
    assert!(complaints(&one("limit: 1/1s\nby: {a: b}")).contains("as in `by: ip` or"));
}

#[test]
fn with_a_store_blocks_reserve_no_table_of_all_keys() {
    let most = Capacity::from(10_000_000);
    let keys = |limits: Limits| limits.limits()[0].limiter().stats().max_keys;
    let of_a_store = |text: &str| {
        keys(Limits::for_a_store(rules::parse(text).unwrap(), most, Nanos::ZERO).unwrap())
    };
    let plain = "limits: [{name: a, limit: 5/1s}]";
    assert_eq!(
        keys(Limits::new(rules::parse(plain).unwrap(), most, |_| None, Nanos::ZERO).unwrap()),
        10_000_000
    );
    assert_eq!(of_a_store(plain), 65_536);
    // If the rules deny more keys than that, all of them are denied.
    let deny: Vec<String> = (0..70_000).map(|key| format!("k{key}")).collect();
    assert_eq!(
        of_a_store(&format!(
            "limits: [{{name: a, limit: 5/1s, deny: [{}]}}]",
            deny.join(", ")
        )),
        140_000
    );
}

#[test]
fn a_month_that_does_not_follow_the_calendar_is_shown_with_its_length() {
    for (options, shown) in [
        ("limit: 500/month", "500/30d10h29m6s"),
        (
            "limit: 500/month, algorithm: token-bucket",
            "500/30d10h29m6s",
        ),
        (
            "limit: 500/year, algorithm: sliding-counter",
            "500/365d5h49m12s",
        ),
        ("limit: 500/month, algorithm: fixed-window", "500/month"),
        (
            "limit: 5/month, algorithm: fixed-window, first_hit: true",
            "5/30d10h29m6s",
        ),
        ("limit: 100/minute", "100/1m"),
        ("limit: 100/hour", "100/1h"),
        ("limit: 100/second", "100/1s"),
        ("limit: 100/day", "100/1d"),
    ] {
        let text = format!("limits: [{{name: a, {options}}}]");
        let rules = rules::parse(&text).unwrap();
        let policy = &rules.limits[0].policy;
        assert_eq!(policy.quota(), shown, "{options}");
        // The shown text means the same policy.
        let again = policy.with_quota(shown).unwrap();
        assert_eq!(again.policy().unwrap(), policy.policy().unwrap());
    }
}

#[test]
fn every_option_of_every_algorithm_is_parsed() {
    let text = "
limits:
  - {name: a, algorithm: fixed-window, limit: 5/10s, first_hit: true, count_denied: true}
  - {name: b, algorithm: sliding-log, limit: 5/500ms, closed: true}
  - {name: c, algorithm: sliding-window, limit: 5/2h, slots: 60, mode: balanced, max_keys: 1000}
  - {name: d, algorithm: sliding-counter, limit: 5/1d}
  - {name: e, algorithm: token-bucket, limit: 5/1m30s, burst: 20}
  - {name: f, algorithm: leaky-bucket, limit: 5/1s, max_wait: 250ms}
  - {name: g, algorithm: concurrency, limit: 8, hold: 30s}
  - {name: h, limit: 1/1s, when_full: deny}
  - name: i
    algorithm: fixed-window
    limit: 1000/month
    time_zone: Europe/Berlin
    starts: 15
    overrides: {admin: 5000/month, bob: {limit: 9/week, starts: 1}}
  - {name: j, algorithm: fixed-window, limit: 9/week, calendar: true}
";
    let limits = rules::parse(text).unwrap().limits;
    assert_eq!(
        limits[8].policy.to_string(),
        "{algorithm: fixed-window, limit: 1000/month, time_zone: Europe/Berlin, starts: 15}"
    );
    assert_eq!(
        limits[8].policy.policy().unwrap().spec().to_string(),
        "fixed-window:time-zone=Europe/Berlin:starts=15"
    );
    assert_eq!(limits[8].overrides["admin"].quota(), "5000/month");
    assert_eq!(limits[9].policy.options(), "calendar: true");
    assert_eq!(
        limits[0].policy.options(),
        "first_hit: true, count_denied: true"
    );
    assert_eq!(limits[1].policy.options(), "closed: true");
    assert_eq!(limits[2].policy.options(), "slots: 60, mode: balanced");
    assert_eq!(limits[2].max_keys, Some(1000));
    assert_eq!(limits[3].policy.window, Some(Duration::from_hours(24)));
    assert_eq!(limits[4].policy.options(), "burst: 20");
    assert_eq!(limits[5].policy.options(), "max_wait: 250ms");
    assert_eq!(
        (limits[6].policy.limit, limits[6].policy.options().as_str()),
        (8, "hold: 30s")
    );
    assert_eq!(limits[7].policy.algorithm.name(), "sliding-window");
    assert_eq!(
        (limits[6].when_full, limits[7].when_full),
        (WhenFull::Forget, WhenFull::Deny)
    );
    for limit in &limits {
        let written = limit.policy.to_string();
        assert_eq!(
            rules::parse_policy(&written).unwrap(),
            limit.policy,
            "{written} reads back"
        );
        assert_eq!(
            limit.policy.policy().unwrap().name(),
            limit.policy.algorithm.name()
        );
    }
}

#[test]
fn an_override_changes_only_the_options_it_has() {
    let text = one(
        "algorithm: token-bucket\nlimit: 10/1s\nburst: 20\noverrides:\n  big: 100/1s\n  wide: {burst: 50}",
    );
    let limit = &rules::parse(&text).unwrap().limits[0];
    assert_eq!(
        limit.overrides["big"],
        PolicySpec {
            limit: 100,
            ..limit.policy.clone()
        }
    );
    let algorithm = "token-bucket:burst=50".parse().unwrap();
    assert_eq!(
        limit.overrides["wide"],
        PolicySpec {
            algorithm,
            ..limit.policy.clone()
        }
    );
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_with_line_reason_and_advice() {
    let text = "limits:
  - name: per-user
    limit: 100
    algoritm: token-bucket
  - name: per-user
    limit: 5/10x
    shadow: maybe
  - limit: 1/1s
    slots: many
";
    assert_eq!(
        complaints(text),
        "\
line 3: `limit` is `100`: a quota is N/duration, as in 100/1m; for example 10/500ms, 100/1m or 5000/1d
line 4: limit `per-user` has no option `algoritm`; did you mean `algorithm`?
line 6: `limit` is `5/10x`: a duration is a number with a unit of ns, us, ms, s, m, h or d, as in 500ms, 10s, 1m30s, 2h, 1d; for example 10/500ms, 100/1m or 5000/1d
line 7: `shadow` is `maybe`; it must be true or false
line 8: limit number 3 has no name; add `name:`; requests and metrics use it
line 9: `slots` is `many`; it must be a whole number from 1 to 3600"
    );
}

#[test]
fn each_kind_of_mistake_has_specific_advice() {
    for (lines, expected) in [
        (
            "limit: 5/1s\nalgorithm: token-buket",
            "did you mean `token-bucket`?",
        ),
        (
            "limit: 5/1s\nalgorithm: best",
            "choose one of: fixed-window, sliding-log",
        ),
        (
            "limit: 5/1s\nburst: 3",
            "`burst` is an option of fixed-window and token-bucket, not of sliding-window",
        ),
        (
            "limit: 5/1s\nalgorithm: concurrency",
            "write a whole number, as in `limit: 10`",
        ),
        ("limit: 5/0s", "the window is zero"),
        ("limit: -1/1s", "whole number from 0"),
        ("limit: 5/400d", "longer than 366 days"),
        (
            "limit: 2000000/1d\nalgorithm: sliding-log",
            "choose sliding-window",
        ),
        (
            "limit: 5/1s\nslots: 4000",
            "`slots` is `4000`; it must be a whole number from 1 to 3600",
        ),
        ("limit: 5/1s\nlimit: 6/1s", "given twice"),
        ("algorithm: token-bucket", "add one, as in `limit: 100/1m`"),
        (
            "limit: 5/1s\nglobal: true\ndeny: [x]",
            "is global: it has no keys",
        ),
        ("limit: 5/1s\ndeny: mallory", "write a list of keys"),
        ("limit: 5/1s\ndeny: [[x]]", "write the key as text"),
        (
            "limit: 5/1s\nmatch: {path: /a, path: /b}",
            "`path` is given twice in `match`",
        ),
        (
            "limit: 5/1s\nblock_for: 60s, 10s",
            "none shorter than the one before",
        ),
        (
            "limit: 5/1s\noverrides: {x: 1/1s}\ndeny: [x]",
            "both denied and overridden",
        ),
        ("limit: 5/1s\noverrides: {x: many}", "`limit` is `many`"),
        (
            "limit: 5/1s\noverrides: {x: {slot: 3}}",
            "did you mean `slots`?",
        ),
        (
            "limit: 5/1s\noverrides: {x: {algorithm: sliding-log}}",
            "has no option `algorithm`",
        ),
        (
            "limit: 5\nalgorithm: concurrency\ncount_denied: true",
            "remove `count_denied`",
        ),
        (
            "limit: 5\nalgorithm: concurrency\nblock_for: 1m",
            "denials of permits do not block a key",
        ),
        (
            "limit: 5/1s\nblock_for: soon",
            "wants one to three durations",
        ),
        (
            "limit: 5/1s\nblock_for: [1m, [x]]",
            "it must be one to three durations",
        ),
        (
            "limit: 5/1s\nblock_for: 1m\nblock_after: 0",
            "whole number from 1",
        ),
        (
            "limit: 5/1s\nblock_for: 1m\nblock_after: 2",
            "block_after needs block_within",
        ),
        ("limit: 5/1s\nblock_within: 1m", "need block_for"),
        (
            "limit: 5/1s\nsoft: true\nblock_for: 1m",
            "`block_for` has no meaning",
        ),
        ("limit: 5/1s\nmax_keys: 0", "whole number from 1"),
        (
            "limit: 5/1s\nmode: loose",
            "choose one of: strict, balanced",
        ),
        ("limit: &x 5/1s", "anchors and aliases"),
    ] {
        let told = complaints(&one(lines));
        assert!(told.contains(expected), "{lines}\nsaid: {told}");
        assert!(told.starts_with("line "), "{told}");
    }
    for (text, expected) in [
        ("", "the file is empty"),
        ("limits: []", "an empty list"),
        ("limits:", "`limits` is nothing"),
        ("limit: 5", "did you mean `limits`?"),
        ("limits: [5]", "limit number 1 must be a mapping, not `5`"),
        ("limits: [{name: a b, limit: 1/1s}]", "use 1 to 64 letters"),
        (
            "limits: [{name: CL.THROTTLE, limit: 1/1s}]",
            "is reserved for the command",
        ),
        (
            "limits:\n  - name: a\n    limit: 1/1s\n  - name: a\n    limit: 1/1s",
            "already taken on line 2",
        ),
        ("limits: {a: [", "not YAML"),
        ("- name: a", "the file must be a mapping, not a list"),
    ] {
        assert!(
            complaints(text).contains(expected),
            "{text}\nsaid: {}",
            complaints(text)
        );
    }
}

#[test]
fn flow_control_is_allowed_beside_limits_and_is_checked_with_them() {
    let flow =
        "flow: [{resource: a, limit: 5/1s}]\nbreakers: [{resource: a, errors: 5, open: 5s}]\n";
    let rules = rules::parse(&format!("{}{flow}", one("limit: 5/1s"))).unwrap();
    assert_eq!(
        (
            rules.limits.len(),
            rules.gate.flow.len(),
            rules.gate.breakers.len()
        ),
        (1, 1, 1)
    );
    assert_eq!(
        rules.gate,
        tidegate_flow::sources::yaml::parse(flow).unwrap()
    );
    let alone = rules::parse(flow).unwrap();
    assert_eq!((alone.limits.len(), alone.gate), (0, rules.gate));
    assert_eq!(
        complaints(
            "flow:\n  - {resource: a, limit: 5}\nlimits:\n  - {name: a b, limit: 1/1s}\nbraekers: []\n"
        ),
        "\
line 2: `limit` is `5`: a quota is N/duration, as in 100/1m
line 4: `name` is `a b`; use 1 to 64 letters, digits, `.`, `_` or `-`
line 5: the file has no option `braekers`; did you mean `breakers`?"
    );
}

#[test]
fn an_unreadable_file_is_reported_with_its_path() {
    let missing = std::path::Path::new("/nonexistent/rules.yaml");
    let error = rules::load(missing, rules::Keeping::Memory)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nonexistent/rules.yaml") && error.contains("check the path"),
        "{error}"
    );
}

proptest::proptest! {
    /// Whatever bytes a file has, it is accepted or rejected with reasons; the parser never panics.
    #[test]
    fn any_text_is_parsed_or_refused(text in "(limits|name|limit|algorithm|deny|[-: {}\\[\\],\"'#&*!|>\\n ]|[a-z0-9/]{1,4}){0,60}") {
        if let Err(problems) = rules::parse(&text) {
            proptest::prop_assert!(!problems.is_empty());
        }
    }
}

#[test]
fn limits_that_cannot_be_shared_are_reported_with_their_line() {
    let text = "limits:
  - name: a
    limit: 5/1s
    sharing: lease
    on_error: close
    deadline: 6s
  - name: b
    limit: 5/1s
    count_denied: true
    on_error: open
  - name: c
    limit: 3
    algorithm: concurrency
    shadow: true
  - name: d
    limit: 5/1s
    overrides:
      x: {limit: 10/1s, slots: 7}
  - name: e:f
    limit: 5/1s
  - name: g
    limit: 5/1s
    block_for: 1m
  - name: h
    limit: 5/1s
    algorithm: fixed-window
    burst: 9
";
    // Sharing options are always checked; whether a limit can be shared is checked only for servers
    // with a store.
    let told = |keeping| -> Vec<String> {
        let problems = rules::parse_for(text, keeping).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    };
    let begins = |told: &[String], begins: &[&str]| {
        assert_eq!(told.len(), begins.len(), "{told:?}");
        for (told, begin) in told.iter().zip(begins) {
            assert!(told.starts_with(begin), "{told}, not {begin}");
        }
    };
    let everywhere = [
        "line 4: `sharing` is `lease`",
        "line 5: `on_error` is `close`",
        "line 6: limit `a`: `deadline` must be above 0 and at most 5s",
        "line 8: limit `b` cannot be shared: a shared limit cannot count denied requests",
        "line 19: `name` is `e:f`",
    ];
    begins(&told(rules::Keeping::Memory), &everywhere);
    let shared = [
        "line 13: limit `c` cannot be shared: shared permits need a longest hold",
        "line 18: limit `d` cannot be shared: for `x`: the slots of a shared limit must be a whole number",
    ];
    // A window that saves what is left can be shared.
    begins(
        &told(rules::Keeping::Store),
        &[&everywhere[..4], &shared[..], &everywhere[4..]].concat(),
    );
    assert!(told(rules::Keeping::Memory)[1].contains("did you mean `closed`?"));
}

#[test]
fn a_number_of_bytes_has_one_unit_at_most() {
    for (text, bytes) in [
        ("512MiB", 512 << 20),
        ("1 GiB", 1 << 30),
        ("2Ti", 2 << 40),
        ("9B", 9),
        ("7", 7),
        ("512MB", 512_000_000),
    ] {
        assert_eq!(rules::parse_bytes(text), Some(bytes), "{text}");
    }
    for text in ["512MiBBBB", "512mb", "MiB", "0", "-1", "5BB", "5KiBiB"] {
        assert_eq!(rules::parse_bytes(text), None, "{text}");
    }
}

#[test]
fn sharing_options_are_parsed_and_invalid_ones_reported() {
    let read =
        |limit: &str| rules::parse(&format!("limits: [{{name: a, limit: 500/1m, {limit}}}]"));
    for text in [
        "sharing: leased, slack: 1s500ms",
        "sharing: reported, slack: 1h, unreported: 7, on_error: open",
        "sharing: reported, unreported: 4294967295",
        "sharing: exact, line: true",
        "line: true",
    ] {
        let limits = read(text)
            .unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
            .limits;
        assert_eq!(limits[0].sharing.options(), text);
    }
    for (text, told) in [
        (
            "slack: 1s",
            "`slack` is for limits that are not exact; add `sharing: leased`",
        ),
        (
            "sharing: exact, slack: 1s",
            "`slack` is for limits that are not exact",
        ),
        (
            "sharing: leased, slack: 999us",
            "`slack` must be from 1ms to 1h",
        ),
        (
            "sharing: leased, slack: 2h",
            "`slack` must be from 1ms to 1h",
        ),
        (
            "sharing: leased, slack: 3",
            "`slack` is `3`; it must be a duration",
        ),
        (
            "sharing: leased, unreported: 3",
            "`unreported` is for reported limits",
        ),
        ("sharing: leased, line: true", "`line` is for exact limits"),
        ("line: perhaps", "`line` is `perhaps`"),
        (
            "sharing: reported, unreported: 0",
            "`unreported` is `0`; it must be a whole number from 1",
        ),
        (
            "sharing: reportd, unreported: 3",
            "did you mean `reported`?",
        ),
    ] {
        let problems = read(text).expect_err(text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(
            problems[0].to_string().contains(told),
            "{text}: {}",
            problems[0]
        );
    }
}

#[test]
fn the_example_can_be_shared() {
    assert!(rules::parse_for(rules::EXAMPLE, rules::Keeping::Store).is_ok());
}

#[test]
fn memory_that_is_too_small_for_the_limits_is_refused_with_advice() {
    let rules = |text: &str| rules::parse(text).unwrap();
    let capacity = |bytes| Capacity {
        max_keys: 1 << 20,
        max_memory: Some(bytes),
        ..Capacity::from(0)
    };
    let text = "limits: [{name: a, limit: 1/1h, max_keys: 1000000}, {name: b, limit: 1/1h}]";
    let refused = Limits::new(rules(text), capacity(1 << 20), |_| None, Nanos::ZERO)
        .err()
        .unwrap();
    assert!(
        refused.to_string().contains("raise max_memory"),
        "{refused}"
    );
    // The rules can set it, too, but the option takes precedence.
    let text = "max_memory: 1MiB\nlimits: [{name: b, limit: 1/1h}]";
    let limits = Limits::new(rules(text), 1 << 20, |_| None, Nanos::ZERO).unwrap();
    assert_eq!(limits.max_memory(), Some(1 << 20));
    let limits = Limits::new(rules(text), capacity(2 << 20), |_| None, Nanos::ZERO).unwrap();
    assert_eq!(limits.max_memory(), Some(2 << 20));
    // What the container has comes last.
    let container = |max_memory| Capacity {
        max_memory,
        container: Some(3 << 20),
        ..Capacity::from(1 << 20)
    };
    let alone = "limits: [{name: b, limit: 1/1h}]";
    for (text, option, expected) in [(alone, None, 3), (text, None, 1), (text, Some(2 << 20), 2)] {
        let limits = Limits::new(rules(text), container(option), |_| None, Nanos::ZERO).unwrap();
        assert_eq!(limits.max_memory(), Some(expected << 20));
    }
    for bad in ["0", "much", "1.5GiB", "5MB5", "99999999999TiB"] {
        let problems = rules::parse(&format!(
            "max_memory: {bad}\nlimits: [{{name: b, limit: 1/1h}}]"
        ))
        .unwrap_err();
        assert!(
            problems[0].to_string().contains("512MiB"),
            "{bad}: {}",
            problems[0]
        );
    }
}

#[cfg(feature = "sentinel")]
#[test]
fn a_cluster_rule_becomes_a_limit_that_counts_as_sentinel_counts_and_a_files_name_is_its_namespace()
{
    let directory = std::env::temp_dir().join(format!("tidegate-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let load = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        tidegate_server::cluster::load_cluster(&path).map_err(|error| error.to_string())
    };
    let text = r#"[{"resource":"a","count":2.5,"clusterMode":true,
        "clusterConfig":{"flowId":7,"thresholdType":1,"windowIntervalMs":2000,"sampleCount":4}},
        {"resource":"b","paramIdx":0,"count":3,"clusterMode":true,"clusterConfig":{"flowId":7},
         "paramFlowItemList":[{"object":"vip","count":5},{"object":7,"count":6}]}]"#;
    for name in [
        "shop.json",
        "shop-flow-rules.json",
        "shop-param-flow-rules",
        "shop-param-rules.json",
    ] {
        let loaded = load(name, text).unwrap();
        let names: Vec<_> = loaded
            .tokens
            .iter()
            .map(|rule| (&*rule.namespace, rule.limit.as_str()))
            .collect();
        assert_eq!(
            names,
            [("shop", "shop.flow.7"), ("shop", "shop.param.7")],
            "{name}"
        );
        let [all, each] = &loaded.limits[..] else {
            panic!("{loaded:?}")
        };
        assert_eq!(
            all.policy.to_string(),
            "{algorithm: sliding-window, limit: 5/2s, slots: 4, mode: balanced}"
        );
        assert_eq!((all.global, all.sharing.unshared), (true, false));
        assert_eq!(loaded.tokens[0].slot, Duration::from_millis(500));
        assert_eq!(
            (each.global, each.sharing.unshared, each.overrides.len()),
            (false, true, 0)
        );
        assert!(
            loaded.tokens[0].per_connection.is_none() && loaded.tokens[1].per_connection.is_some()
        );
    }
    for name in ["a b.json", "-flow-rules.json", &"x".repeat(33)] {
        assert!(load(name, text).is_err(), "{name}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}
