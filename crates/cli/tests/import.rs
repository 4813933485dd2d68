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
    let printed = tidegate().args(["import", "envoy"]).arg(&directory).output().unwrap();
    assert!(printed.status.success());
    let rules = directory.join("rules.txt");
    fs::write(&rules, &printed.stdout).unwrap();
    let checked = tidegate().arg("check").arg(&rules).output().unwrap();
    let told = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && told.contains("shop.user") && told.contains("10/1m"), "{told}");

    fs::write(&file, "domain: shop\ndescriptor: []\n").unwrap();
    let refused = tidegate().args(["import", "envoy"]).arg(&file).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(
        told.contains("line 2: the file has no option `descriptor`; did you mean `descriptors`?"),
        "{told}"
    );
}
