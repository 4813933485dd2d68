//! `tidegate top` and `tidegate rules` with a real server, as scripts use them.

mod program;

use std::fs;

use program::{Serving, scratch, tidegate};

const RULES: &str = "limits:
  - {name: busy, limit: 2/1h, algorithm: sliding-log}
  - {name: calm, limit: 5/1m, algorithm: token-bucket, burst: 7, shadow: true, overrides: {\"a b\": {limit: 9/1m}}, deny: [eve]}
";

fn said(arguments: &[&str], server: &str) -> (Option<i32>, String, String) {
    let output = tidegate().args(arguments).arg(server).args(["--timeout", "20s"]).output().unwrap();
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
    let (code, line, _) = said(&["top", "--once", "--json"], &server.admin);
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
    for once in [&["top", "--once"][..], &["top", "--once", "--json"]] {
        let (code, _, error) = said(once, &server.http);
        assert!(code == Some(3) && error.contains("(--admin)"), "{error}");
    }
    let (code, _, error) = said(&["top", "--once"], &server.resp);
    assert!(code == Some(3) && error.contains("takes the address of --admin"), "{error}");
}

#[test]
fn the_printed_rules_can_be_served() {
    let server = serving("top-rules");
    let (code, rules, error) = said(&["rules", "--server"], &server.admin);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let again = scratch("top-rules-again").join("rules.yaml");
    fs::write(&again, &rules).unwrap();
    let second = Serving::with(&["--rules", again.to_str().unwrap()]);
    assert_eq!(said(&["rules", "--server"], &second.admin).1, rules);
    for words in ["burst: 7", "shadow: true", "\"a b\": {", "deny: [\"eve\"]"] {
        assert!(rules.contains(words), "{words} in {rules}");
    }
    let (code, json, _) = said(&["rules", "--json", "--server"], &server.admin);
    assert!(code == Some(0) && json.contains("\"max_keys\""), "{json}");
}
