//! Sentinel's rules: checked, and served.

use crate::program;

use std::{fs, process::Output};

use program::{scratch, tidegate};

fn check(path: &std::path::Path) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = tidegate().arg("check").arg(path).output().unwrap();
    (
        status.success(),
        String::from_utf8([stdout, stderr].concat()).unwrap(),
    )
}

#[test]
fn check_reads_sentinels_json() {
    let directory = scratch("check-sentinel");
    let cluster = directory.join("shop-flow-rules.json");
    let rule = r#"{"resource":"a","count":10,"clusterMode":true,"clusterConfig":{"flowId":7,"thresholdType":1}}"#;
    fs::write(&cluster, format!("[{rule}]")).unwrap();
    for path in [&cluster, &directory] {
        let (is_valid, said) = check(path);
        assert!(
            is_valid && said.contains("shop.flow.7") && said.contains("10/1s"),
            "{said}"
        );
        assert!(said.contains("is valid: 1 limit."), "{said}");
    }
    for (text, says) in [
        (
            r#"[{"resource":"a","count":5}, {"resource":"b","grade":0,"count":1}]"#,
            "(flow: 2)",
        ),
        (
            r#"[{"resource":"a","grade":0,"count":200,"timeWindow":10}]"#,
            "(breakers: 1)",
        ),
        (
            r#"[{"resource":"a","paramIdx":0,"count":5}]"#,
            "(hot_params: 1)",
        ),
        (r#"[{"highestCpuUsage":0.9}]"#, "(system: 1)"),
        (
            r#"[{"resource":"a","limitApp":"x","strategy":1}]"#,
            "(authority: 1)",
        ),
        ("[] // none", "it has no rules"),
    ] {
        let path = directory.join("rules.json");
        fs::write(&path, text).unwrap();
        let (is_valid, said) = check(&path);
        assert!(is_valid && said.contains(says), "{text}: {said}");
        fs::remove_file(path).unwrap();
    }
    fs::write(
        &cluster,
        format!("[{rule},\n{rule},\n{}]", rule.replace(":7", ":0")),
    )
    .unwrap();
    let (is_valid, said) = check(&cluster);
    assert!(
        !is_valid && said.contains("rule 2 (resource a, line 3): clusterConfig.flowId is missing"),
        "{said}"
    );
    fs::write(&cluster, format!("[{rule},{rule}]")).unwrap();
    assert!(
        check(&cluster)
            .1
            .contains("flowId 7 of resource a is that of another rule")
    );
}

#[test]
fn the_token_server_needs_rules_and_names_the_option() {
    let said = tidegate()
        .args(["serve", "--sentinel-token", "127.0.0.1"])
        .output()
        .unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("--sentinel-rules"), "{said}");
}

#[test]
fn networks_of_programs_are_read_and_a_wrong_one_is_refused() {
    let serve = |networks: &str| {
        let options = [
            "serve",
            "--http",
            "off",
            "--resp",
            "off",
            "--sentinel-dashboard",
            "127.0.0.1",
            "--sentinel-dashboard-networks",
        ];
        let said = tidegate().args(options).arg(networks).output().unwrap();
        assert!(!said.status.success());
        String::from_utf8(said.stderr).unwrap()
    };
    let said = serve("10.0.0.0/8,10.0.0.0/33");
    assert!(
        said.contains("10.0.0.0/33")
            && said.contains("write a network or an address, as in 10.0.0.0/8"),
        "{said}"
    );
    // Programs that send heartbeats are no reason to serve by themselves.
    assert!(serve("10.0.0.0/8,192.0.2.7").contains("all listeners are off"));
}
