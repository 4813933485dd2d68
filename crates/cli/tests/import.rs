//! `tidegate import`.

mod program;

use std::fs;

use program::{scratch, tidegate};

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
