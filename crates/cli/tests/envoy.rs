//! The configuration of Envoy's rate limit service in `tidegate serve` and `tidegate check`.
#![cfg(feature = "grpc")]

mod program;

use std::fs;

use program::{Serving, scratch, tidegate};

const CONFIG: &str = "domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
";

#[test]
fn a_configuration_of_envoyproxy_ratelimit_is_served_over_grpc_and_loaded_again_on_a_signal() {
    let directory = scratch("envoy-serve");
    fs::write(directory.join("shop.yaml"), CONFIG).unwrap();
    let path = directory.to_str().unwrap();
    let server = Serving::with(&["--envoy-config", path, "--grpc", "127.0.0.1:0"]);
    assert!(
        server.told.contains("gRPC") && server.told.contains("shop.user"),
        "{}",
        server.told
    );
    assert!(
        !server.told.contains("per-user"),
        "the built-in examples are not served beside it"
    );
    fs::write(
        directory.join("bad.yaml"),
        "domain: other\ndescriptor: []\n",
    )
    .unwrap();
    server.signal("HUP");
    let line = server.logs("rules rejected");
    assert!(
        line.contains("bad.yaml") && line.contains("did you mean"),
        "{line}"
    );
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn check_reports_the_problems_of_a_configuration() {
    let directory = scratch("envoy-check");
    let file = directory.join("shop.yaml");
    fs::write(&file, CONFIG).unwrap();
    for path in [&file, &directory] {
        let checked = tidegate().arg("check").arg(path).output().unwrap();
        let told = String::from_utf8(checked.stdout).unwrap();
        assert!(
            checked.status.success() && told.contains("shop.user") && told.contains("10/1d"),
            "{told}"
        );
    }
    fs::write(
        &file,
        CONFIG.replace("day", "fortnight").replace("key:", "kee:"),
    )
    .unwrap();
    let refused = tidegate().arg("check").arg(&file).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && told.lines().count() >= 3,
        "{told}"
    );
    assert!(
        told.contains("shop.yaml: line 3: `unit` is `fortnight`"),
        "{told}"
    );
}

#[test]
fn grpc_without_a_configuration_is_refused() {
    let refused = tidegate()
        .args(["serve", "--grpc", "127.0.0.1:0"])
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && told.contains("--envoy-config"),
        "{told}"
    );
}
