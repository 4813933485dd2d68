//! `tidegate import`.

mod program;

use std::fs;

use program::{scratch, tidegate};
use tidegate_core::Policy;
use tidegate_server::rules;

#[test]
fn a_configuration_of_envoyproxy_ratelimit_is_printed_as_rules_that_check_accepts() {
    let directory = scratch("import");
    let file = directory.join("config.yaml");
    fs::write(
        &file,
        "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}\n",
    )
    .unwrap();
    let printed = tidegate()
        .args(["import", "envoy"])
        .arg(&directory)
        .output()
        .unwrap();
    assert!(printed.status.success());
    let rules = directory.join("rules.txt");
    fs::write(&rules, &printed.stdout).unwrap();
    let checked = tidegate().arg("check").arg(&rules).output().unwrap();
    let told = String::from_utf8(checked.stdout).unwrap();
    assert!(
        checked.status.success() && told.contains("shop.user") && told.contains("10/1m"),
        "{told}"
    );

    fs::write(&file, "domain: shop\ndescriptor: []\n").unwrap();
    let refused = tidegate()
        .args(["import", "envoy"])
        .arg(&file)
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(
        told.contains("line 2: the file has no option `descriptor`; did you mean `descriptors`?"),
        "{told}"
    );
}

#[test]
fn rules_of_sentinel_are_printed_as_yaml_that_check_accepts() {
    let directory = scratch("import-sentinel");
    let (flow, breakers) = (directory.join("flow.json"), directory.join("degrade.json"));
    fs::write(
        &flow,
        r#"[{"resource":"a","count":"20.0",}, {"resource":"b","grade":0,"count":3}] // two"#,
    )
    .unwrap();
    fs::write(
        &breakers,
        r#"[{"resource":"a","grade":0,"count":200,"timeWindow":10}]"#,
    )
    .unwrap();
    let printed = tidegate()
        .args(["import", "sentinel"])
        .args([&flow, &breakers])
        .output()
        .unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.status.success()
            && text.starts_with("gate: sentinel\nflow:\n  - { resource: \"a\", limit: 20/1s }")
    );
    let rules = directory.join("rules.yaml");
    fs::write(&rules, text).unwrap();
    let checked = tidegate().arg("check").arg(&rules).output().unwrap();
    let told = String::from_utf8([checked.stdout, checked.stderr].concat()).unwrap();
    assert!(
        checked.status.success() && told.contains("(flow: 2, breakers: 1)"),
        "{told}"
    );

    fs::write(&flow, r#"[{"resource":"a","count":1},{"resource":"b"}]"#).unwrap();
    let refused = tidegate()
        .args(["import", "sentinel"])
        .arg(&flow)
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && told.contains("rule 1 (resource b, line 1): count is missing"),
        "{told}"
    );
}

/// What `tidegate import` prints, or what it says on standard error if it refuses.
fn import(arguments: &[&str]) -> Result<(String, String), String> {
    let output = tidegate().arg("import").args(arguments).output().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.success() {
        Ok((out, error))
    } else {
        assert_eq!(out, "");
        Err(error)
    }
}

/// The policies of the rules that are printed for this configuration.
fn policies(kind: &str, configuration: &str) -> Vec<String> {
    let file = scratch(&format!("import-{kind}-{}", configuration.len())).join("configuration");
    fs::write(&file, configuration).unwrap();
    let (printed, _) =
        import(&[kind, file.to_str().unwrap()]).unwrap_or_else(|error| panic!("{error}"));
    of_rules(&printed)
}

fn of_rules(printed: &str) -> Vec<String> {
    let limits = rules::parse(printed).unwrap().limits;
    let policy = |limit: &rules::LimitSpec| limit.policy.policy().unwrap().to_string();
    limits.iter().map(policy).collect()
}

/// The rule that was measured to be equal to a package, with fixtures of its decisions.
fn measured(name: &str) -> String {
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate/tests/migrate");
    let text = fs::read_to_string(format!("{traces}/{name}.txt")).unwrap();
    assert!(text.contains("\ndiffer 0\n"), "{name} is not equal");
    let rule = text
        .lines()
        .find_map(|line| line.strip_prefix("rule "))
        .unwrap();
    rule.parse::<Policy>().unwrap().to_string()
}

#[test]
fn options_of_packages_are_printed_as_the_rules_that_were_measured_to_be_equal() {
    let flexible = |json: &str| policies("rate-limiter-flexible", json);
    assert_eq!(
        flexible(r#"{"points": 10, "duration": 1}"#),
        [measured("flexible")]
    );
    assert_eq!(
        flexible(r#"[{"points": 10, "blockDuration": 3}, {"keyPrefix": "login", "points": 10}]"#),
        [measured("flexible-block"), measured("flexible")]
    );
    assert_eq!(
        policies(
            "express-rate-limit",
            r#"{"limit": 10, "windowMs": 1000, "statusCode": 503}"#
        ),
        [measured("express")]
    );
    let strings = |strategy: &str, text: &str| {
        let (printed, _) = import(&["limits", "--strategy", strategy, text]).unwrap();
        of_rules(&printed)
    };
    assert_eq!(
        strings("fixed-window", "10/second"),
        [measured("limits-fixed")]
    );
    assert_eq!(
        strings("moving-window", "10 per 1 second"),
        [measured("limits-moving")]
    );
    assert_eq!(
        strings(
            "moving-window",
            "10/second; 7 per 2 Hours,5 per month|1/year"
        ),
        ["10/1s", "7/2h", "5/30d", "1/360d"].map(|quota| {
            format!("sliding-log:closed=true {quota}")
                .parse::<Policy>()
                .unwrap()
                .to_string()
        })
    );
}

#[test]
fn limits_of_nginx_are_printed_as_rules() {
    let configuration = "
http {
    limit_req_zone $binary_remote_addr zone=plain:1m rate=10r/s; # a comment; with one
    limit_req_zone '$server_name' zone=now:1m rate=30r/m;
    limit_req_zone $uri
        zone=later:1m rate=10r/s;
    limit_conn_zone $binary_remote_addr zone=open:1m;
    server {
        limit_req zone=plain;
        location /now { limit_req zone=now burst=20 nodelay; }
        location /later { limit_req burst=20 zone=later; limit_conn open 5; }
    }
}
";
    assert_eq!(
        policies("nginx", configuration),
        [
            "token-bucket:burst=1 10/1s",
            "token-bucket:burst=21 30/1m",
            "leaky-bucket:max-wait=2s 10/1s",
            "concurrency 5"
        ]
        .map(|policy| policy.parse::<Policy>().unwrap().to_string())
    );
}

#[test]
fn what_has_no_equal_rule_is_refused_with_its_line() {
    for (kind, configuration, expected) in [
        (
            "rate-limiter-flexible",
            "{\n\"points\": 3,\n\"duration\": 0}",
            "line 3: `duration: 0` has no equal rule",
        ),
        (
            "rate-limiter-flexible",
            "{\"execEvenly\": true}",
            "line 1: `execEvenly` has no equal rule",
        ),
        (
            "rate-limiter-flexible",
            "{\"duration\": 60,\n\"blockDuration\": 5}",
            "line 2: `blockDuration` below `duration`",
        ),
        (
            "rate-limiter-flexible",
            "{\"point\": 3}",
            "did you mean `points`?",
        ),
        (
            "rate-limiter-flexible",
            "[{},\n{\"keyPrefix\": \"a b\"}]",
            "line 2: `a b` cannot be the name of a rule; use 1 to 64 letters",
        ),
        ("rate-limiter-flexible", "", "there is no limit to import"),
        (
            "express-rate-limit",
            "{\n\"skipFailedRequests\": true}",
            "line 2: `skipFailedRequests` has no equal rule",
        ),
        (
            "express-rate-limit",
            "{\"limit\": 3, \"max\": 4}",
            "keep one of them",
        ),
        (
            "express-rate-limit",
            "{\"windowMs\": 0.5}",
            "whole number from 1",
        ),
        (
            "nginx",
            "limit_req zone=a;",
            "line 1: `limit_req` names no zone of this file",
        ),
        (
            "nginx",
            "\nlimit_req_zone $a zone=a:1m rate=x;",
            "line 2: `rate=x` is not a rate",
        ),
        (
            "nginx",
            "limit_req_zone $a zone=a:1m rate=1r/s;\nlimit_req zone=a delay=3;",
            "line 2: `delay=` has no equal rule",
        ),
        (
            "nginx",
            "limit_req_zone $a zone=a:1m rate=1r/s;\nlimit_req zone=a;\nlimit_req zone=a burst=2;",
            "line 3: the zone `a` is used in two ways",
        ),
        (
            "nginx",
            "limit_conn_zone $a zone=a:1m;\nlimit_conn a 1;\nlimit_req_dry_run on;",
            "line 3: `limit_req_dry_run` concerns",
        ),
    ] {
        let file = scratch("import-refused").join("configuration");
        fs::write(&file, configuration).unwrap();
        let error = import(&[kind, file.to_str().unwrap()]).unwrap_err();
        assert!(error.contains(expected), "{configuration}\nsaid: {error}");
    }
    let error = import(&["limits", "10/second", "\u{1b}[2Jten"]).unwrap_err();
    assert!(
        error.contains("line 2: `") && !error.contains('\u{1b}'),
        "{error:?}"
    );
}
