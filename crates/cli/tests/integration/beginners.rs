//! What people try in their first hour, with the program, curl and redis-cli: each mistake is
//! answered with what to do.
#![cfg(all(feature = "sim", feature = "servers"))]

use crate::program;

use std::{fs, path::Path, process::Command};

use program::{Serving, scratch, tidegate};

/// The output and the errors of a program.
fn said(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().unwrap(), said)
}

fn check(directory: &Path, limit: &str) -> (i32, String) {
    let text = format!("limits:\n  - {{name: a, {limit}}}\n");
    fs::write(directory.join("rules.yaml"), text).unwrap();
    said(
        tidegate()
            .args(["check", "rules.yaml"])
            .current_dir(directory),
    )
}

#[test]
fn a_unit_of_time_is_a_duration_in_the_rules_and_on_the_command_line() {
    let directory = scratch("beginners-units");
    for (written, shown) in [
        ("100/second", "100/1s"),
        ("100/minute", "100/1m"),
        ("100/hour", "100/1h"),
        ("100/day", "100/1d"),
        ("100/week", "100/7d"),
    ] {
        let (code, told) = check(&directory, &format!("limit: {written}"));
        assert!(
            code == 0 && told.contains(&format!("a      {shown} ")),
            "{written}: {told}"
        );
        let (code, told) = said(tidegate().args([
            "simulate",
            "--synthetic",
            "--requests",
            "100",
            "--limit",
            written,
        ]));
        assert!(
            code == 0 && told.contains(&format!("{shown} denies ")),
            "{written}: {told}"
        );
    }
}

#[test]
fn a_month_of_a_sliding_algorithm_is_shown_with_its_length() {
    let directory = scratch("beginners-month");
    let (_, told) = check(&directory, "limit: 500/month, algorithm: sliding-window");
    assert!(told.contains("500/30d10h29m6s"), "{told}");
    let (_, told) = check(&directory, "limit: 500/month, algorithm: fixed-window");
    assert!(told.contains("500/month"), "{told}");
}

#[test]
fn the_largest_number_of_slots_is_named() {
    let directory = scratch("beginners-slots");
    let (code, told) = check(&directory, "limit: 5/1h, slots: 3601");
    assert!(
        code == 1
            && told.contains("line 2: `slots` is `3601`; it must be a whole number from 1 to 3600"),
        "{told}"
    );
    assert_eq!(check(&directory, "limit: 5/1h, slots: 3600").0, 0);
}

#[test]
fn simulate_without_options_names_what_can_be_tried() {
    let (code, told) = said(tidegate().args(["simulate", "access.log"]));
    assert_eq!(code, 2, "{told}");
    for words in ["--suggest", "--limit 100/1m", "--rules FILE"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_first_request_with_curl_and_redis_cli_is_answered_with_what_to_do() {
    let directory = scratch("beginners-first");
    let rules = directory.join("rules.yaml");
    fs::write(&rules, "limits: [{name: per-user, limit: 100/1m}]\n").unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
    let curl = |path: &str, more: &[&str]| {
        let address = format!("http://{}{path}", server.http);
        said(Command::new("curl").args(["--silent", &address]).args(more)).1
    };
    let asked = r#"{"limit":"per-user","key":"alice"}"#;
    for (path, more, words) in [
        // The shell's prompt begins on its own line.
        ("/v1/acquire", &["-d", asked][..], "\"allowed\":true"),
        ("/v1/acquire", &["-d", "alice"], "JSON"),
        ("/v1/acquire", &[], "POST"),
        ("/v1/aquire", &["-d", asked], "/v1/acquire"),
        ("/healthz", &[], "ok"),
        ("/", &[], "the dashboard is at http://"),
    ] {
        let told = curl(path, more);
        assert!(
            told.contains(words) && told.ends_with('\n'),
            "{path} {more:?}: {told:?}"
        );
    }
    assert!(curl("/", &[]).contains(&server.admin), "{}", curl("/", &[]));
    let (_, port) = server.resp.rsplit_once(':').unwrap();
    let redis = |words: &[&str]| said(Command::new("redis-cli").args(["-p", port]).args(words)).1;
    for (words, told) in [
        (&["ACQUIRE"][..], "usage: ACQUIRE limit key [cost]"),
        (&["ACQUIRE", "per-user"], "give a key"),
        (&["ACQUIRE", "peruser", "alice"], "per-user"),
        (&["AQUIRE", "per-user", "alice"], "did you mean ACQUIRE?"),
        (&["GET", "alice"], "COMMAND DOCS lists the commands"),
    ] {
        let said = redis(words);
        assert!(
            said.starts_with("ERR ") && said.contains(told),
            "{words:?}: {said}"
        );
    }
}
