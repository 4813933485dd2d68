//! `tidegate import`.

use crate::program;

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
fn limits_of_gateways_and_of_spring_are_printed_as_rules() {
    let printed = |kind: &str, configuration: &str, expected: &[&str]| {
        let expected: Vec<_> = expected
            .iter()
            .map(|policy| policy.parse::<Policy>().unwrap().to_string())
            .collect();
        assert_eq!(policies(kind, configuration), expected, "{kind}");
    };
    printed(
        "flask-limiter",
        "app.config.update(\nRATELIMIT_DEFAULT='200 per day; 50/hour',\nRATELIMIT_STORAGE_URI='redis://x',\n)",
        &[
            "fixed-window:first-hit:count-denied 200/1d",
            "fixed-window:first-hit:count-denied 50/1h",
        ],
    );
    printed(
        "flask-limiter",
        "RATELIMIT_STRATEGY=moving-window\nRATELIMIT_DEFAULT=10 per second\n",
        &["sliding-log:closed 10/1s"],
    );
    printed(
        "bucket4j",
        "
bucket4j:
  enabled: true
  filters:
  - cache-name: buckets
    url: /.*
    rate-limits:
    - cache-key: getRemoteAddress()
      bandwidths:
      - {capacity: 20, refill-capacity: 10, time: 1, unit: seconds, refill-speed: GREEDY}
      - {id: daily, capacity: 1000, time: 1, unit: days, initial-capacity: 1000}
  methods:
  - rateLimit: {bandwidths: [{capacity: 5, time: 100, unit: millis}]}
",
        &[
            "token-bucket:burst=20 10/1s",
            "token-bucket 1000/1d",
            "token-bucket 5/100ms",
        ],
    );
    printed(
        "resilience4j",
        "
resilience4j:
  ratelimiter:
    configs:
      default: {limitForPeriod: 7, limitRefreshPeriod: PT1M}
      quick: {limit-for-period: 3, limit-refresh-period: 500}
    instances:
      a: {timeoutDuration: 0}
      b: {baseConfig: quick, limitForPeriod: 9, register-health-indicator: true}
",
        &["fixed-window 7/1m", "fixed-window 9/500ms"],
    );
    printed(
        "resilience4j",
        "resilience4j.ratelimiter.instances.a: {}",
        &["fixed-window 50/500ns"],
    );
    printed(
        "traefik",
        "
http:
  middlewares:
    slow: {rateLimit: {average: 100, period: 1m, burst: 50, sourceCriterion: {requestHost: true}}}
    plain: {rateLimit: {average: 10}}
    busy: {inFlightReq: {amount: 10}}
",
        &[
            "token-bucket:burst=50 100/1m",
            "token-bucket:burst=1 10/1s",
            "concurrency 10",
        ],
    );
    printed(
        "traefik",
        "{\"kind\": \"Middleware\", \"metadata\": {\"name\": \"slow\"}, \"spec\": {\"rateLimit\": {\"average\": 5, \"period\": 2}}}",
        &["token-bucket:burst=1 5/2s"],
    );
    printed(
        "kong",
        "
services:
- name: a
  plugins:
  - name: rate-limiting
    config: {second: 5, hour: 10000, month: 20, minute: null, policy: local, limit_by: ip}
  - name: cors
",
        &[
            "fixed-window 5/1s",
            "fixed-window 10000/1h",
            "fixed-window:calendar 20/month",
        ],
    );
    printed(
        "kong",
        "{\"name\": \"rate-limiting\", \"config\": {\"minute\": 3}}",
        &["fixed-window 3/1m"],
    );
    printed(
        "apisix",
        r#"{"uri": "/a", "plugins": {
            "limit-count": {"count": 2, "time_window": 60, "rejected_code": 429, "key": "remote_addr", "policy": "redis",
                "redis_host": "x"},
            "limit-req": {"rate": 0.5, "burst": 0},
            "limit-conn": {"conn": 3, "burst": 0, "default_conn_delay": 0.1}}}"#,
        &[
            "fixed-window:first-hit:count-denied 2/1m",
            "token-bucket:burst=1 5/10s",
            "concurrency 3",
        ],
    );
    printed(
        "apisix",
        r#"{"plugins": {"limit-count": {"rules": [{"count": 2, "time_window": 1, "key": "$a"}, {"count": 9, "time_window": 60, "key": "$b"}]},
            "limit-req": {"rate": 10, "burst": 20}}}"#,
        &[
            "fixed-window:first-hit:count-denied 2/1s",
            "fixed-window:first-hit:count-denied 9/1m",
            "leaky-bucket:max-wait=2s 10/1s",
        ],
    );
    printed(
        "cloudflare",
        r#"{"rules": [{"description": "login", "expression": "http.request.uri.path eq \"/login\"", "action": "block",
            "ratelimit": {"characteristics": ["cf.colo.id", "ip.src"], "period": 60, "requests_per_period": 100,
                "mitigation_timeout": 600, "counting_expression": ""}}]}"#,
        &["sliding-counter:block-for=10m 100/1m"],
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
            "flask-limiter",
            "x = 1\nRATELIMIT_STRATEGY = 'sliding-window-counter'",
            "line 2: the strategy `sliding-window-counter` has no equal rule",
        ),
        (
            "bucket4j",
            "bucket4j:\n  filters:\n  - rate-limits:\n    - bandwidths:\n      - {capacity: 5, time: 1, unit: seconds,\n         refill-speed: interval}",
            "line 6: `refill-speed: interval` has no equal rule",
        ),
        (
            "bucket4j",
            "bucket4j.filters:\n- rateLimits:\n  - bandwidths: [{capacity: 5, unit: weeks, initialCapacity: 3, speed: 1}]",
            "the bandwidth has no `time`",
        ),
        (
            "bucket4j",
            "bucket4j.filters:\n- rateLimits:\n  - bandwidths: [{capacity: 5, time: 1, unit: weeks}]",
            "line 3: `unit` is `weeks`; give one of nanos",
        ),
        (
            "bucket4j",
            "bucket4j.filters:\n- rateLimits:\n  - bandwidths: [{capacity: 5, time: 1, unit: days, initialCapacity: 3}]",
            "line 3: `initial-capacity` has no equal rule",
        ),
        (
            "resilience4j",
            "resilience4j.ratelimiter.instances:\n  a:\n    limitForPeriod: many",
            "line 3: `limit-for-period` is `many`",
        ),
        (
            "resilience4j",
            "resilience4j.ratelimiter.instances:\n  a:\n    baseConfig: shared",
            "the base `shared` is not in `configs`",
        ),
        ("resilience4j", "spring: {}", "there is no limit to import"),
        (
            "traefik",
            "http:\n  middlewares:\n    a:\n      rateLimit:\n        burst: 5",
            "line 5: an `average` of 0 limits nothing",
        ),
        (
            "traefik",
            "http: {middlewares: {a: {rateLimit: {average: 5, period: soon}}}}",
            "`period` is `soon`",
        ),
        (
            "kong",
            "plugins:\n- name: rate-limiting-advanced\n  config: {}",
            "line 2: the plugin `rate-limiting-advanced` has no equal rule",
        ),
        (
            "apisix",
            "{\"plugins\": {\"limit-count\": {\"count\": 1, \"time_window\": 60,\n\"window_type\": \"sliding\"}}}",
            "line 2: `window_type` has no equal rule",
        ),
        (
            "apisix",
            "{\"plugins\": {\"limit-count\": {\"count\": \"$a\", \"time_window\": 60}}}",
            "`$a`",
        ),
        (
            "apisix",
            "{\"plugins\": {\"limit-req\": {\"rate\": -1, \"burst\": 0}}}",
            "`rate` is `-1`",
        ),
        (
            "apisix",
            "{\"plugins\": {\"limit-conn\": {\"conn\": 3, \"burst\": 2}}}",
            "`burst` has no equal rule",
        ),
        (
            "cloudflare",
            "{\"rules\": [{\"action\": \"managed_challenge\",\n\"ratelimit\": {\"period\": 60, \"requests_per_period\": 5}}]}",
            "the action `managed_challenge` has no equal rule",
        ),
        (
            "cloudflare",
            "{\"ratelimit\": {\"period\": 60, \"requests_per_period\": 5, \"counting_expression\": \"x\"}}",
            "`counting_expression` has no equal rule",
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
        // A limit with a mistake is one.
        let (nothing, is_alone) = ("there is no limit to import", error.lines().count() == 1);
        assert!(!error.contains(nothing) || is_alone, "{error}");
    }
    let error = import(&["limits", "10/second", "\u{1b}[2Jten"]).unwrap_err();
    assert!(
        error.contains("line 2: `") && !error.contains('\u{1b}'),
        "{error:?}"
    );
}
