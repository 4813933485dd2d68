//! `tidegate check` of streams, and its results for programs.

use crate::program;

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use program::{scratch, tidegate};
use serde_json::{Value, json};

const BROKEN: &str =
    "limits:\n  - name: per-user\n    limit: 100/1x\n  - name: \"a b\"\n    limit: 5/1s\n";

/// Runs `tidegate check` with a text on standard input.
fn piped(text: &str, arguments: &[&str]) -> Output {
    let mut check = tidegate();
    check
        .arg("check")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    // A program that refuses its arguments closes its input.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    child.wait_with_output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn standard_input_is_checked_as_a_file_of_any_kind() {
    for (text, told) in [
        (
            "limits: [{name: per-user, limit: 100/1m}]",
            "- is valid: 1 limit.",
        ),
        (
            "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}]",
            "- is valid: 1 limit.",
        ),
        (
            "access: [{name: ops, addresses: [127.0.0.1], roles: [operate]}]",
            "- is valid: 1 client.",
        ),
        (
            r#"[{"resource": "GET:/a", "count": 5}]"#,
            "- is valid: flow control",
        ),
    ] {
        let (stdout, stderr) = texts(&piped(text, &["-"]));
        assert!(stdout.contains(told), "{text}: {stdout}{stderr}");
    }
    let output = piped(BROKEN, &["-"]);
    let (_, stderr) = texts(&output);
    assert!(
        !output.status.success() && stderr.starts_with("-: line 3: "),
        "{stderr}"
    );
    assert!(stderr.contains("- has 2 problems"), "{stderr}");
    let (_, empty) = texts(&piped("", &["-"]));
    assert!(empty.starts_with("-: "), "{empty}");
}

#[test]
fn a_pipe_is_checked_and_nothing_stays_behind() {
    let directory = scratch("check-pipe");
    let program = tidegate().get_program().to_owned();
    let script = "'limits: [{name: a, limit: 1/1s}]' | \"$0\" check /dev/stdin";
    let mut shell = Command::new("sh");
    let output = shell
        .arg("-c")
        .arg(format!("echo {script}"))
        .arg(program)
        .env("TMPDIR", &directory)
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(
        stdout.contains("/dev/stdin is valid: 1 limit."),
        "{stdout}{stderr}"
    );
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_result_for_programs_has_each_problem_with_its_line() {
    let file = scratch("check-json").join("rules.yaml");
    fs::write(&file, BROKEN).unwrap();
    let name = file.to_str().unwrap();
    let output = tidegate()
        .args(["check", name, "--format", "json"])
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            told["valid"].as_bool(),
            told["file"].as_str(),
            output.status.code()
        ),
        (Some(false), Some(name), Some(1))
    );
    let problems = told["problems"].as_array().unwrap();
    let lines: Vec<_> = problems
        .iter()
        .map(|problem| problem["line"].as_u64())
        .collect();
    assert_eq!(lines, [Some(3), Some(4)]);
    assert!(
        problems
            .iter()
            .all(|problem| problem["file"] == name && problem["problem"].is_string()),
        "{told}"
    );

    let config = scratch("check-config").join("tidegate.yaml");
    fs::write(
        &config,
        "http: 127.0.0.1:0\naccess: /etc/tidegate/access.yaml\n",
    )
    .unwrap();
    let output = tidegate().arg("check").arg(&config).output().unwrap();
    let (_, told) = texts(&output);
    assert!(
        output.status.code() == Some(1) && told.contains("start tidegate serve --config"),
        "{told}"
    );

    let output = tidegate()
        .args(["check", name, "--format", "github"])
        .output()
        .unwrap();
    let (stdout, _) = texts(&output);
    let expected = format!("::error file={name},line=3::");
    assert!(
        stdout.starts_with(&expected) && stdout.lines().count() == 2,
        "{stdout}"
    );

    let piped = piped(
        "limits: [{name: per-user, limit: 100/1m}]",
        &["-", "--format", "json"],
    );
    let told: Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!(
        told,
        json!({"file": "-", "valid": true, "limits": ["per-user"], "problems": []})
    );
}
