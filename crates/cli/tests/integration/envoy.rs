//! The configuration of Envoy's rate limit service in `tidegate serve` and `tidegate check`.
#![cfg(feature = "grpc")]

use crate::program;

use std::fs;

use program::{Serving, request, scratch, tidegate};

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

/// A server that is killed knows what was held when it last wrote its state.
#[test]
fn holds_outlive_a_kill_of_the_server() {
    let directory = scratch("envoy-holds");
    let file = directory.join("shop.yaml");
    let config = "domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000, hold: 5m}}
";
    fs::write(&file, config).unwrap();
    let state = directory.join("state");
    let serving = || {
        Serving::with(&[
            "--envoy-config",
            file.to_str().unwrap(),
            "--state",
            state.to_str().unwrap(),
            "--state-interval",
            "1s",
        ])
    };
    let say = |server: &Serving, entries: &str, hits: u32| {
        let entries = format!(r#"{{"key":"user","value":"ada"}}{entries}"#);
        let body = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":[{entries}],"hitsAddend":{hits}}}]}}"#
        );
        let answer = request(&server.http, "POST", "/json", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    };
    let report = r#",{"key":"hold_report"}"#;
    let mut server = serving();
    for hits in [100, 200, 300] {
        say(&server, "", hits);
    }
    say(&server, r#",{"key":"hold_id","value":"7"}"#, 150);
    say(&server, report, 10);
    let written = || {
        let metrics = server.get("/metrics");
        let series = r#"tidegate_state_writes_total{result="ok"} "#;
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |number| number.parse::<u64>().unwrap())
    };
    let before = written();
    tidegate_redis_servers::eventually("the state has been written since", || {
        written() >= before + 2
    });
    server.child.kill().unwrap();
    drop(server);
    let server = serving();
    // 10, 20, 30 and 40 of 1,000 were used; the last report has an id.
    assert!(say(&server, report, 20).contains(r#""limitRemaining":520"#));
    assert!(say(&server, report, 30).contains(r#""limitRemaining":790"#));
    let last = r#",{"key":"hold_report"},{"key":"hold_id","value":"7"}"#;
    assert!(say(&server, last, 40).contains(r#""limitRemaining":900"#));
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
