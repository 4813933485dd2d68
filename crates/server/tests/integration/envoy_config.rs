//! The configuration of envoyproxy/ratelimit: its meaning and its errors.
#![allow(
    clippy::unnecessary_wraps,
    clippy::zero_sized_map_values,
    reason = "one type for rates and their absence"
)]
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "short texts, once in a test"
)]
#![allow(
    clippy::type_complexity,
    clippy::needless_pass_by_value,
    reason = "the shapes are plain here"
)]

use std::{collections::HashMap, path::PathBuf};

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tidegate_server::{
    envoy::{self, Config},
    rules::{self, Keeping, RulesError},
};

/// An empty directory for one test.
fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-envoy-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn try_config(name: &str, text: &str) -> Result<Config, RulesError> {
    let path = scratch(name).join("limits.yaml");
    std::fs::write(&path, text).unwrap();
    envoy::load(&path, Keeping::Memory)
}

fn config(name: &str, text: &str) -> Config {
    try_config(name, text).unwrap_or_else(|error| panic!("{error}"))
}

/// All problems of a file, without its path.
fn problems(name: &str, text: &str) -> Vec<String> {
    let error = try_config(name, text).expect_err("the file should be refused");
    error.problems().iter().map(ToString::to_string).collect()
}

/// The rule for a descriptor as `N/unit`, and the key of its limit.
fn find(config: &Config, domain: &str, entries: &[(&str, &str)]) -> Option<(String, String)> {
    let mut key = Vec::new();
    let found = config
        .domains
        .find(domain, entries.iter().copied(), &mut key)?;
    let rate = match found.rule.unit {
        Some(unit) => format!("{}/{}", found.rule.requests_per_unit, unit.name()),
        None => "unlimited".to_owned(),
    };
    Some((rate, String::from_utf8(key).unwrap()))
}

fn rate(config: &Config, domain: &str, entries: &[(&str, &str)]) -> Option<String> {
    find(config, domain, entries).map(|(rate, _)| rate)
}

fn some(rate: &str, key: &str) -> Option<(String, String)> {
    Some((rate.to_owned(), key.to_owned()))
}

const MESSAGING: &str = "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: DAY, requests_per_unit: 100}
";

#[test]
fn the_examples_of_its_readme_have_the_documented_meaning() {
    // Two values of one key have separate limits; another value has none.
    let mongo = config(
        "mongo",
        "
domain: mongo_cps
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
",
    );
    assert_eq!(
        find(&mongo, "mongo_cps", &[("database", "users")]),
        some("500/second", "")
    );
    assert_eq!(
        find(&mongo, "mongo_cps", &[("database", "default")]),
        some("500/second", "")
    );
    assert_eq!(find(&mongo, "mongo_cps", &[("database", "other")]), None);
    assert_eq!(find(&mongo, "elsewhere", &[("database", "users")]), None);

    // Marketing messages to a number, and all messages to it.
    let messaging = config("messaging", MESSAGING);
    let marketing = [("message_type", "marketing"), ("to_number", "2061234567")];
    assert_eq!(
        find(&messaging, "messaging", &marketing),
        some("5/day", "2061234567")
    );
    assert_eq!(
        find(&messaging, "messaging", &marketing[1..]),
        some("100/day", "2061234567")
    );
    assert_eq!(
        find(&messaging, "messaging", &marketing[..1]),
        None,
        "the descriptor has no limit itself"
    );
    let transactional = [
        ("message_type", "transactional"),
        ("to_number", "2061234567"),
    ];
    assert_eq!(find(&messaging, "messaging", &transactional), None);

    // An address with a separate limit, and a catch-all. A ban is a limit of 0.
    let edge = config(
        "edge",
        "
domain: edge_proxy_per_ip
descriptors:
  - {key: ip_address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: ip_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
",
    );
    assert_eq!(
        find(&edge, "edge_proxy_per_ip", &[("ip_address", "1.2.3.4")]),
        some("10/second", "1.2.3.4")
    );
    assert_eq!(
        find(&edge, "edge_proxy_per_ip", &[("ip_address", "50.0.0.5")]),
        some("0/second", "")
    );

    // A descriptor with neither a limit nor descriptors is unlimited; a key without a value matches
    // the rest.
    let white = config(
        "white",
        "
domain: example4
descriptors:
  - key: key
    descriptors:
      - key: subkey
        value: white
      - {key: subkey, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: key, value: value, rate_limit: {unlimited: true}}
",
    );
    assert_eq!(
        find(&white, "example4", &[("key", "x"), ("subkey", "white")]),
        None
    );
    assert_eq!(
        find(&white, "example4", &[("key", "x"), ("subkey", "other")]),
        some("20/minute", "1:xother")
    );
    assert_eq!(
        rate(&white, "example4", &[("key", "value")]),
        Some("unlimited".to_owned())
    );
    // No backtracking: the exact value matched, and has nothing below it.
    assert_eq!(
        find(&white, "example4", &[("key", "value"), ("subkey", "other")]),
        None
    );

    // Wildcards: each value counts separately unless the threshold is shared.
    let files = config(
        "files",
        "
domain: files
descriptors:
  - {key: path, value: shared/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: path, value: sh*, rate_limit: {unit: hour, requests_per_unit: 8}}
  - {key: path, value: shared/a, rate_limit: {unit: hour, requests_per_unit: 9}}
",
    );
    assert_eq!(
        find(&files, "files", &[("path", "shared/a")]),
        some("9/hour", "")
    );
    assert_eq!(
        find(&files, "files", &[("path", "shared/b")]),
        some("7/hour", "")
    );
    assert_eq!(
        find(&files, "files", &[("path", "shop")]),
        some("8/hour", "shop")
    );
    assert_eq!(find(&files, "files", &[("path", "else")]), None);
}

#[test]
fn a_key_and_value_are_not_joined_by_a_separator() {
    // envoyproxy/ratelimit joins with `_`: there both descriptors match one rule and share one
    // counter.
    let config = config(
        "joined",
        "
domain: d
descriptors:
  - {key: a, value: b_c*, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: a_b, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: a_b, value: x, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: a, value: b_x, rate_limit: {unit: hour, requests_per_unit: 4}}
",
    );
    assert_eq!(find(&config, "d", &[("a_b", "c")]), some("2/hour", "c"));
    assert_eq!(find(&config, "d", &[("a", "b_c")]), some("1/hour", "b_c"));
    assert_eq!(find(&config, "d", &[("a_b", "x")]), some("3/hour", ""));
    assert_eq!(find(&config, "d", &[("a", "b_x")]), some("4/hour", ""));
}

#[test]
fn a_star_in_a_key_is_a_character_if_there_is_a_value() {
    // Envoy Gateway's descriptor of a route without a host name.
    let route = "httproute/default/web/rule/0/match/0/*";
    let text = format!(
        "domain: d\ndescriptors: [{{key: {route}, value: {route}, descriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: 1}}}}]}}]\n"
    );
    let config = config("star", &text);
    assert_eq!(
        rate(&config, "d", &[(route, route), ("user", "ada")]).as_deref(),
        Some("1/hour")
    );
    assert_eq!(
        rate(
            &config,
            "d",
            &[(&route.replace('*', "x"), route), ("user", "ada")]
        ),
        None
    );
}

#[test]
fn a_rule_becomes_a_fixed_window_aligned_to_its_unit_by_default() {
    let config = config(
        "algorithms",
        "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: week, requests_per_unit: 3}}
  - key: b
    shadow_mode: true
    rate_limit:
      {unit: minute, requests_per_unit: 4, algorithm: sliding-window, slots: 20, max_keys: 9, name: n}
  - {key: c, value: v, rate_limit: {unit: month, requests_per_unit: 5, algorithm: token-bucket, burst: 2, sharing: leased, on_error: open}}
",
    );
    let [a, b, c] = config.limits.as_slice() else {
        panic!("{:?}", config.limits)
    };
    assert_eq!(
        (a.name.as_str(), a.global, a.policy.algorithm.name()),
        ("d.a", false, "fixed-window")
    );
    assert_eq!(a.policy.quota(), "3/7d");
    assert_eq!(a.policy.options(), "");
    assert_eq!(
        (b.name.as_str(), b.shadow, b.max_keys, b.policy.options()),
        ("d.b", true, Some(9), "slots: 20".to_owned())
    );
    assert_eq!(
        (c.name.as_str(), c.global, c.policy.options()),
        ("d.c--v", true, "burst: 2".to_owned())
    );
    assert_eq!(c.policy.quota(), "5/30d");
    assert_eq!(c.sharing.options(), "sharing: leased, on_error: open");
    assert_eq!(config.domains.rules()[1].name, "n");
}

#[test]
fn a_month_has_thirty_days_unless_it_follows_the_calendar() {
    let config = config(
        "calendar",
        "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: month, requests_per_unit: 3}}
  - {key: b, rate_limit: {unit: month, requests_per_unit: 3, calendar: true}}
  - {key: c, rate_limit: {unit: year, requests_per_unit: 3, time_zone: Europe/Berlin}}
  - {key: d, rate_limit: {unit: week, requests_per_unit: 3, calendar: true}}
  - {key: e, rate_limit: {unit: week, requests_per_unit: 3, time_zone: UTC}}
  - {key: f, rate_limit: {unit: month, requests_per_unit: 3, time_zone: UTC}}
  - {key: g, rate_limit: {unit: year, requests_per_unit: 3, time_zone: UTC}}
",
    );
    let policies = config
        .limits
        .iter()
        .map(|limit| limit.policy.policy().unwrap().to_string());
    let written = [
        "fixed-window 3/30d",
        "fixed-window 3/month",
        "fixed-window:time-zone=Europe/Berlin 3/year",
        "fixed-window:calendar 3/7d",
        "fixed-window:calendar 3/7d",
        "fixed-window 3/month",
        "fixed-window 3/year",
    ];
    assert_eq!(policies.collect::<Vec<_>>(), written);
}

#[test]
fn all_problems_of_a_file_are_reported_with_line_and_advice() {
    let told = problems(
        "wrong",
        "
domain: d
descriptors:
  - key: a
    rate_limit: {unit: fortnight, requests_per_unit: 5}
  - key: a
    rate_limits: {unit: day}
  - value: v
  - key: b*
  - key: c
    value: 1.5
  - key: e
    share_threshold: true
    rate_limit: {unit: day, unlimited: true}
  - key: f
    rate_limit: {name: me, unit: day, replaces: [{name: me}, {nam: x}]}
  - key: g
    rate_limit: {requests_per_unit: -1, unit: day}
  - key: h
    rate_limit: {unit: day, algorithm: concurrency}
  - key: i
    rate_limit: {unit: day, slots: 4}
  - key: j
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: sliding-windo}
  - key: k
    value: v
    rate_limit: {unit: day, requests_per_unit: 4, shares: {}}
  - key: l
    rate_limit: {unit: day, requests_per_unit: 4, charge: always, shares: {by: tenant}}
  - key: m
    rate_limit: {unit: day, requests_per_unit: 4, shares: {guarantee: {a: 60%, b: 60%}}}
",
    );
    let expected = [
        "line 5: `unit` is `fortnight`; it must be one of: second, minute, hour, day, week, month, year",
        "line 7: a descriptor has no option `rate_limits`; did you mean `rate_limit`?",
        "line 6: the descriptor `a` without a value is already on line 4; keep one of the two",
        "line 8: a descriptor has no key; add `key:`, as in `key: remote_address`",
        "line 9: the key `b*` has a `*`; a wildcard is a part of the value, as in `value: files/*`",
        "line 11: `value` is the number 1.5, which can be written in several ways; quote it: \"1.5\"",
        "line 13: `share_threshold` is for values with a `*`; remove it, or write a value such as `/files/*`",
        "line 14: `d.e` is unlimited, so `unit` has no meaning; remove it, or remove `unlimited`",
        "line 16: the rule `me` replaces itself; name the other rule that it replaces",
        "line 16: an entry of `replaces` has no option `nam`; did you mean `name`?",
        "line 16: an entry of `replaces` has no name; write `- name:` and the `name` of another rate_limit",
        "line 18: `requests_per_unit` is `-1`; it must be a whole number from 0 to 9007199254740991",
        "line 20: `d.h`: concurrency counts requests in flight, which Envoy does not report; choose another, such as token-bucket",
        "line 22: `d.i`: `slots` is an option of sliding-window, not of fixed-window; remove it, or change the algorithm",
        "line 24: `algorithm` is `sliding-windo`; did you mean `sliding-window`?",
        "line 27: `d.k_v`: tenants are the values of one key, and 0 keys have no `value`; leave the value of exactly one key open, as in `{key: tenant}`",
        "line 29: `d.l`: a tenant would take the shares of others by what is denied; remove `charge: always`",
        "line 29: `d.l`, shares has no option `by`; the options are: weights, guarantee, ceiling",
        "line 31: `d.m`, shares: the guarantees are 120 % of the limit together; lower them to at most 100 %",
    ];
    for line in expected {
        assert!(
            told.iter().any(|problem| problem == line),
            "{line}\nis missing in\n{}",
            told.join("\n")
        );
    }
    assert_eq!(told.len(), expected.len(), "{}", told.join("\n"));
}

#[test]
fn a_file_without_the_name_of_its_domain_says_so() {
    for text in [
        "domain:",
        "domain: ~",
        "domain: ''",
        "descriptors: []",
        "domain:\ndescriptors: [{key: a}]",
    ] {
        let told = problems("no-domain", text);
        assert!(
            told.len() == 1 && told[0].contains("there is no `domain:`"),
            "{text}: {told:?}"
        );
    }
}

#[test]
fn numbers_and_booleans_are_taken_as_text_and_a_missing_number_admits_nothing() {
    let config = config(
        "plain",
        "
domain: 5
descriptors:
  - {key: a, value: 5, rate_limit: {unit: Second, requests_per_unit: 1}}
  - {key: a, value: true, rate_limit: {unit: YEAR}}
",
    );
    assert_eq!(
        rate(&config, "5", &[("a", "5")]).as_deref(),
        Some("1/second")
    );
    assert_eq!(
        rate(&config, "5", &[("a", "true")]).as_deref(),
        Some("0/year")
    );
}

#[test]
fn files_of_a_directory_are_read_together_and_refused_together() {
    let directory = scratch("directory");
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    write("a.yaml", MESSAGING);
    write(
        "b.yml",
        "domain: other\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n",
    );
    write(".hidden.yaml", "not: ours\n");
    let below = directory.join("team/rules");
    std::fs::create_dir_all(&below).unwrap();
    let third =
        "domain: third\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]\n";
    std::fs::write(below.join("third"), third).unwrap();
    std::os::unix::fs::symlink("..", below.join(".above")).unwrap();
    let config = envoy::load(&directory, Keeping::Memory).unwrap();
    assert_eq!(config.domains.domains().len(), 3);
    assert_eq!(
        rate(&config, "third", &[("k", "v")]).as_deref(),
        Some("3/day")
    );
    assert_eq!(
        rate(&config, "other", &[("k", "v")]).as_deref(),
        Some("2/hour")
    );
    assert_eq!(
        rate(&config, "messaging", &[("to_number", "1")]).as_deref(),
        Some("100/day")
    );

    write("c.yaml", "domain: other\n");
    write("d.yaml", "domain: d\ndescriptor: []\n");
    let error = envoy::load(&directory, Keeping::Memory)
        .unwrap_err()
        .to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(
        lines[0].contains("c.yaml: line 1: the domain `other` is already in "),
        "{error}"
    );
    assert!(
        lines[1].contains("d.yaml: line 2: the file has no option `descriptor`"),
        "{error}"
    );

    let empty = envoy::load(&scratch("empty"), Keeping::Memory)
        .unwrap_err()
        .to_string();
    assert!(empty.contains("the directory has no file"), "{empty}");
    let round = scratch("round");
    std::os::unix::fs::symlink(&round, round.join("again")).unwrap();
    let error = envoy::load(&round, Keeping::Memory)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nest deeper than 8 levels"), "{error}");
}

#[test]
fn metrics_show_the_values_that_the_configuration_selects() {
    let config = config(
        "metrics",
        "
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: hour}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour}
  - key: way
    value_to_metric: true
    descriptors:
      - {key: path, value: a*, rate_limit: {unit: hour}}
      - {key: path, value: s*, share_threshold: true, value_to_metric: true, rate_limit: {unit: hour}}
",
    );
    let path = |entries: &[(&str, &str)]| {
        let entries = entries.iter().copied();
        let found = config
            .domains
            .find("d", entries.clone(), &mut Vec::new())
            .unwrap();
        config
            .domains
            .metric_path(found, entries)
            .unwrap_or_else(|| found.rule.path.clone())
    };
    assert_eq!(path(&[("plain", "x")]), "plain");
    assert_eq!(path(&[("detailed", "x")]), "detailed_x");
    assert_eq!(path(&[("way", "x"), ("path", "abc")]), "way_x.path_a*");
    assert_eq!(path(&[("way", "x"), ("path", "sbc")]), "way_x.path_s*");
}

#[test]
fn an_imported_configuration_is_a_rules_file_with_the_same_limits() {
    let config = config(
        "import",
        "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding-window, slots: 6}
  - key: tier
    value: gold
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: path
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 2, sharing: leased, slack: 1s}}
  - {key: admin, rate_limit: {unlimited: true}}
",
    );
    let text = envoy::to_yaml(&config);
    let read = rules::parse(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    assert_eq!(read.limits, config.limits, "{text}");
    assert!(text.contains("# unlimited: shop admin"), "{text}");
}

/// A domain, and the keys and values of the descriptors down to a limit.
type Place = (String, Vec<(String, Option<String>)>);

/// The name of the limit at a place.
fn name((domain, path): &Place) -> String {
    let rate_limit = json!({"unit": "hour", "requests_per_unit": 1});
    let below = path
        .iter()
        .rev()
        .fold(None, |below: Option<Json>, (key, value)| {
            let mut descriptor = json!({"key": key});
            if let Some(value) = value {
                descriptor["value"] = json!(value);
            }
            match below {
                Some(below) => descriptor["descriptors"] = json!([below]),
                None => descriptor["rate_limit"] = rate_limit.clone(),
            }
            Some(descriptor)
        });
    let text = json!({"domain": domain, "descriptors": [below]}).to_string();
    let file = envoy::parse(&text, 0, Keeping::Memory)
        .unwrap_or_else(|problems| panic!("{problems:?}: {text}"));
    file.into_config().limits[0].name.clone()
}

#[test]
fn plain_names_are_readable_and_others_are_unambiguous() {
    let of = |domain: &str, path: &[(&str, Option<&str>)]| {
        name(&(
            domain.to_owned(),
            path.iter()
                .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
                .collect(),
        ))
    };
    assert_eq!(of("shop", &[("user", None)]), "shop.user");
    assert_eq!(
        of("shop", &[("tier", Some("gold")), ("user_id", None)]),
        "shop.tier--gold.user_id"
    );
    let odd = of("shop", &[("path", Some("/a"))]);
    assert!(odd.starts_with("shop.path---a-"), "{odd}");
    assert_ne!(odd, of("shop", &[("path", Some(":a"))]));
    assert_ne!(
        of("a.b", &[("c", None)]),
        of("a", &[("b", None), ("c", None)])
    );
    assert_ne!(of("a", &[("b--c", None)]), of("a", &[("b", Some("c"))]));
    let long = "x".repeat(100);
    assert_ne!(of(&long, &[("a", None)]), of(&long, &[("b", None)]));
}

/// The key of a limit below three descriptors without a value.
fn key_of(values: [&str; 3]) -> Vec<u8> {
    let text = "domain: d\ndescriptors: [{key: a, descriptors: [{key: b, descriptors: [{key: c, rate_limit: {unit: hour, requests_per_unit: 1}}]}]}]";
    let config = envoy::parse(text, 0, Keeping::Memory)
        .unwrap()
        .into_config();
    let mut key = Vec::new();
    config
        .domains
        .find("d", ["a", "b", "c"].into_iter().zip(values), &mut key)
        .unwrap();
    key
}

#[test]
fn long_values_have_short_keys_and_no_value_imitates_a_digest() {
    let of = |value: &str| key_of(["", "GET", value]);
    let long = "a".repeat(60_000);
    assert!(of(&long).len() < 128);
    assert_ne!(of(&long), of(&"a".repeat(60_001)));
    let digest = String::from_utf8(of(&long)).unwrap();
    let digest = &digest[digest.find("60000#").unwrap()..];
    assert_ne!(of(&long), of(digest));
    assert!(of(&"b".repeat(256)).ends_with(b"bbb"));
}

fn place() -> impl Strategy<Value = Place> {
    let text = || "[a.:_-]{1,3}";
    (
        text(),
        proptest::collection::vec((text(), proptest::option::of(text())), 1..4),
    )
}

proptest! {
    #[test]
    fn no_two_lists_of_values_share_a_key(one in ["[0-9:a]{0,4}", "[0-9:a]{0,4}", "[0-9:a]{0,4}"], other in ["[0-9:a]{0,4}", "[0-9:a]{0,4}", "[0-9:a]{0,4}"]) {
        let key = |values: &[String; 3]| key_of(values.each_ref().map(String::as_str));
        prop_assert_eq!(one == other, key(&one) == key(&other));
    }

    #[test]
    fn no_two_places_share_a_name(one in place(), other in place()) {
        prop_assert_eq!(one == other, name(&one) == name(&other));
        let name = name(&one);
        prop_assert!(name.len() <= 64);
        prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)));
    }
}

/// A descriptor of a generated configuration: key, value, whether it has a limit, and the
/// descriptors below it.
#[derive(Clone, Debug)]
struct Made {
    key: &'static str,
    value: Option<&'static str>,
    limited: bool,
    below: Vec<Made>,
}

const KEYS: [&str; 3] = ["a", "b", "a_b"];
const VALUES: [&str; 10] = [
    "x", "xy", "b_x", "x*", "xy*", "*", "*y", "x*x", "b*x*z", "**x",
];

fn made() -> impl Strategy<Value = Vec<Made>> {
    let one = || {
        let value = proptest::option::of(proptest::sample::select(VALUES.as_slice()));
        (
            proptest::sample::select(KEYS.as_slice()),
            value,
            any::<bool>(),
        )
    };
    let leaf = one().prop_map(|(key, value, limited)| Made {
        key,
        value,
        limited,
        below: Vec::new(),
    });
    let tree = leaf.prop_recursive(3, 24, 4, move |inner| {
        (one(), proptest::collection::vec(inner, 0..4)).prop_map(
            |((key, value, limited), below)| Made {
                key,
                value,
                limited,
                below,
            },
        )
    });
    proptest::collection::vec(tree, 1..5).prop_map(distinct)
}

/// The first of several descriptors with the same key and value.
fn distinct(list: Vec<Made>) -> Vec<Made> {
    let mut seen = HashMap::new();
    let kept = list
        .into_iter()
        .filter(|made| seen.insert((made.key, made.value), ()).is_none());
    kept.map(|made| Made {
        below: distinct(made.below),
        ..made
    })
    .collect()
}

/// The YAML. Each limit has a different number, increasing in the order of the file.
fn yaml(list: &[Made], indent: usize, number: &mut u32, text: &mut String) {
    for made in list {
        let space = " ".repeat(indent);
        text.push_str(&format!("{space}- key: {}\n", made.key));
        if let Some(value) = made.value {
            text.push_str(&format!("{space}  value: \"{value}\"\n"));
        }
        if made.limited {
            *number += 1;
            text.push_str(&format!(
                "{space}  rate_limit: {{unit: hour, requests_per_unit: {number}}}\n"
            ));
        }
        if !made.below.is_empty() {
            text.push_str(&format!("{space}  descriptors:\n"));
            yaml(&made.below, indent + 4, number, text);
        }
    }
}

/// A simple model of the lookup: the number of the limit, and the values in its key.
fn oracle(list: &[Made], entries: &[(&str, &str)], before: &mut u32) -> Option<(u32, Vec<String>)> {
    let (first, rest) = entries.split_first()?;
    let of_key = || {
        list.iter()
            .enumerate()
            .filter(|(_, made)| made.key == first.0)
    };
    let exact = of_key().find(|(_, made)| made.value == Some(first.1));
    let wildcard = of_key().find(|(_, made)| {
        made.value
            .is_some_and(|value| value.contains('*') && fits(value.as_bytes(), first.1.as_bytes()))
    });
    let (at, taken) = exact
        .or(wildcard)
        .or_else(|| of_key().find(|(_, made)| made.value.is_none()))?;
    for made in &list[..at] {
        *before += count(made);
    }
    *before += u32::from(taken.limited);
    let open = taken.value.is_none_or(|value| value.contains('*'));
    let mut values: Vec<String> = if open {
        vec![first.1.to_owned()]
    } else {
        Vec::new()
    };
    if rest.is_empty() {
        return taken.limited.then_some((*before, values));
    }
    let (number, below) = oracle(&taken.below, rest, before)?;
    values.extend(below);
    Some((number, values))
}

/// Whether a value fits a pattern in which `*` stands for any characters.
fn fits(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern, value) {
        ([], value) => value.is_empty(),
        ([b'*', rest @ ..], _) => (0..=value.len()).any(|skipped| fits(rest, &value[skipped..])),
        ([first, pattern @ ..], [other, value @ ..]) => first == other && fits(pattern, value),
        (_, []) => false,
    }
}

fn count(made: &Made) -> u32 {
    u32::from(made.limited) + made.below.iter().map(count).sum::<u32>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_lookup_agrees_with_a_simple_model(
        list in made(),
        asked in proptest::collection::vec(
            proptest::collection::vec(
                (proptest::sample::select(KEYS.as_slice()),
                 proptest::sample::select(["x", "xy", "xyz", "b_x", "z", "", "xx", "xyx", "b_x_z", "bz"].as_slice())), 1..4), 1..12),
    ) {
        let mut text = String::from("domain: d\ndescriptors:\n");
        yaml(&list, 2, &mut 0, &mut text);
        let file = envoy::parse(&text, 0, Keeping::Memory).map_err(|p| TestCaseError::fail(format!("{p:?}\n{text}")))?;
        let config = file.into_config();
        for entries in asked {
            let expected = oracle(&list, &entries, &mut 0);
            let mut key = Vec::new();
            let found = config.domains.find("d", entries.iter().copied(), &mut key);
            let number = found.map(|found| found.rule.requests_per_unit);
            prop_assert_eq!(number, expected.as_ref().map(|(number, _)| u64::from(*number)), "{:?} in\n{}", entries, text);
            if let Some((_, values)) = expected {
                let (last, before) = values.split_last().map_or(("", &[][..]), |(l, b)| (l.as_str(), b));
                let mut plain: String = before.iter().map(|value| format!("{}:{value}", value.len())).collect();
                plain.push_str(last);
                prop_assert_eq!(String::from_utf8(key).unwrap(), plain);
            }
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(?s)[a-z:\\-\\*\\[\\]\\{\\} \n\"',0-9]{0,200}") {
        let _ = envoy::parse(&text, 0, Keeping::Memory);
        let _ = envoy::parse(&format!("domain: d\ndescriptors:\n{text}"), 0, Keeping::Store);
    }
}
