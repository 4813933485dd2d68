//! `tidegate top` and `tidegate rules` with a real server, as scripts use them.
#![cfg(feature = "top")]

mod program;

use std::fs;

use program::{Serving, scratch, tidegate};

const RULES: &str = "limits:
  - {name: busy, limit: 2/1h, algorithm: sliding-log}
  - {name: calm, limit: 5/1m, algorithm: token-bucket, burst: 7, shadow: true, overrides: {\"a b\": {limit: 9/1m}}, deny: [eve]}
";

fn said(arguments: &[&str], server: &str) -> (Option<i32>, String, String) {
    let output = tidegate().args(arguments).args(["--server", server, "--timeout", "20s"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn serving(name: &str) -> Serving {
    let rules = scratch(name).join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    Serving::with(&["--rules", rules.to_str().unwrap()])
}

#[test]
fn a_script_gets_the_table_once_or_json_line_by_line() {
    let server = serving("top-once");
    for _ in 0..3 {
        server.ask("ACQUIRE busy alice");
    }
    let (code, table, _) = said(&["top", "--once", "--sort", "name"], &server.admin);
    let lines: Vec<_> = table.lines().collect();
    assert!(code == Some(0) && lines.len() == 3, "{table}");
    assert!(
        lines[1].starts_with("busy") && lines[1].contains("2/1h") && lines[1].ends_with("100% alice"),
        "{table}"
    );
    assert!(lines[2].starts_with("calm (shadow)"), "{table}");
    let (_, filtered, _) = said(&["top", "--once", "--filter", "cal"], &server.admin);
    assert_eq!(filtered.lines().count(), 2, "{filtered}");
    let (code, line, _) = said(&["top", "--once", "--format", "json"], &server.admin);
    let overview: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert_eq!((code, line.lines().count()), (Some(0), 1));
    assert_eq!(
        (&overview["limits"][0]["denied"], &overview["limits"][0]["heaviest"]["key"]),
        (&1.into(), &"alice".into())
    );
}

#[test]
fn errors_say_what_to_do() {
    let server = serving("top-errors");
    let (code, _, error) = said(&["top"], &server.admin);
    assert!(code == Some(2) && error.contains("--once"), "{error}");
    for once in [&["top", "--once"][..], &["top", "--once", "--format", "json"]] {
        let (code, _, error) = said(once, &server.http);
        assert!(code == Some(3) && error.contains("(--admin)"), "{error}");
    }
    let (code, _, error) = said(&["top", "--once"], &server.resp);
    assert!(code == Some(3) && error.contains("the address of the server's --admin"), "{error}");
}

#[test]
fn the_printed_rules_can_be_served() {
    let server = serving("top-rules");
    let (code, rules, error) = said(&["rules"], &server.admin);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let again = scratch("top-rules-again").join("rules.yaml");
    fs::write(&again, &rules).unwrap();
    let second = Serving::with(&["--rules", again.to_str().unwrap()]);
    assert_eq!(said(&["rules"], &second.admin).1, rules);
    for words in ["burst: 7", "shadow: true", "\"a b\": {", "deny: [\"eve\"]"] {
        assert!(rules.contains(words), "{words} in {rules}");
    }
    let (code, json, _) = said(&["rules", "--format", "json"], &server.admin);
    assert!(code == Some(0) && json.contains("\"max_keys\""), "{json}");
}

/// Runs a command; its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = tidegate().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn live_traffic_is_recorded_and_other_limits_are_tried_on_it() {
    let directory = scratch("top-record");
    let rules = directory.join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--trace-keys", "100%"]);
    for _ in 0..3 {
        server.ask("ACQUIRE busy alice");
        server.ask("ACQUIRE calm bob");
    }
    let file = directory.join("trace.jsonl");
    let file = file.to_str().unwrap();
    let (code, _, error) = run(&["record", "--server", &server.admin, "-o", file, "--timeout", "20s"]);
    assert_eq!(code, Some(0), "{error}");
    let candidate = directory.join("candidate.yaml");
    fs::write(&candidate, "limits: [{name: busy, limit: 1/1h, algorithm: sliding-log}]\n").unwrap();
    let candidate = candidate.to_str().unwrap();
    let (code, table, error) = run(&["simulate", file, "--rules", candidate]);
    assert_eq!(code, Some(0), "{error}");
    let row = |name: &str| {
        let line = table.lines().find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {table}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(table.contains("in place of {algorithm: sliding-log, limit: 2/1h}"), "{table}");
    assert_eq!(row("denied of 3 requests")[4..], ["1", "(33.333%)", "2", "(66.667%)"]);
    assert_eq!(row("alice"), ["alice", "3", "1", "2"]);
    // The same from the server itself, as JSON, and from a packed file.
    let from =
        ["simulate", "--server", &server.admin, "--timeout", "20s", "--rules", candidate, "--format", "json"];
    let (_, told, error) = run(&from);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{error}"));
    assert_eq!(told["limits"][0]["would_deny"]["requests"], 2);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &fs::read(file).unwrap()).unwrap();
    let gz = directory.join("trace.gz");
    fs::write(&gz, packed.finish().unwrap()).unwrap();
    assert!(
        run(&["simulate", gz.to_str().unwrap(), "--rules", candidate]).1.contains("denied of 3 requests")
    );
    // A trace is a log, too.
    let (code, told, error) =
        run(&["simulate", file, "--limit", "2/1h", "--algorithm", "sliding-log", "--format", "json"]);
    assert_eq!(code, Some(0), "{error}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let algorithm = &told["trials"][0]["results"][0];
    assert_eq!((&algorithm["admitted"], &algorithm["denied"]), (&4.into(), &2.into()), "{told}");
    assert!(error.contains("the trace has 100% of all keys"), "{error}");
}

#[test]
fn a_trace_that_cannot_be_had_is_told_with_what_to_do() {
    let server = serving("top-no-trace");
    let directory = scratch("top-no-trace-file");
    let file = directory.join("trace.jsonl");
    fs::write(&file, "kept").unwrap();
    let (code, _, error) =
        run(&["record", "--server", &server.admin, "-o", file.to_str().unwrap(), "--timeout", "20s"]);
    assert!(code == Some(3) && error.contains("--trace-keys 10%"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept", "it was replaced by nothing");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
    let (code, _, error) = run(&["record", "--server", &server.resp, "-o", "-", "--timeout", "20s"]);
    assert!(code == Some(3) && error.contains("(--admin)") | error.contains("--admin"), "{error}");
    let (code, _, error) =
        run(&["simulate", "--server", &server.admin, "--timeout", "20s", "--limit", "1/1s"]);
    assert!(code == Some(1) && error.contains("--trace-keys 10%"), "{error}");
    let cut = directory.join("cut.jsonl");
    let head = r#"{"tidegate_trace":1,"share":"10%","fresh":true,"from":"1.0","until":"9.0"}"#;
    fs::write(&cut, format!("{head}\n")).unwrap();
    let (code, _, error) = run(&["simulate", cut.to_str().unwrap(), "--limit", "1/1s"]);
    assert!(code == Some(1) && error.contains("no requests yet"), "{error}");
    fs::write(&cut, "{\"tidegate_trace\":9}\n").unwrap();
    assert!(run(&["simulate", cut.to_str().unwrap(), "--limit", "1/1s"]).2.contains("format 9"));
    assert_eq!(run(&["serve", "--trace-keys", "10"]).0, Some(2));
    assert_eq!(run(&["serve", "--trace-keys", "10%", "--trace-memory", "1KiB"]).0, Some(2));
}
