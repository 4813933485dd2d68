//! Each action of an operator is recorded once, on every listener.

mod harness;

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use harness::{Http, Running, scratch};
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::Options;

const RULES: &str = "
limits:
  - {name: logins, limit: 3/1h, algorithm: sliding-log}
  - {name: seats, limit: 2, algorithm: concurrency, hold: 1m}
";
const KEY: &str = r#"{"limit":"logins","key":"eve"}"#;

/// A server that may write its rules, and its audit file.
fn audited(name: &str, store: Option<&str>) -> (Running, PathBuf) {
    let file = scratch(&format!("{name}-file")).join("audit.jsonl");
    let server = Running::with_rules_and(name, RULES, |options| {
        options.rules_writable = true;
        options.audit = Some(file.clone());
        options.store_deadline = Duration::from_secs(5).into();
        options.store = store.map(ToOwned::to_owned);
    });
    (server, file)
}

/// The actions that the server shows, the oldest first, without their times.
fn shown(server: &Running) -> Vec<Value> {
    let mut actions = server.get("/v1/audit").json()["actions"].as_array().unwrap().clone();
    actions.reverse();
    for action in &mut actions {
        action.as_object_mut().unwrap().remove("time_ms");
    }
    actions
}

fn written(file: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for action in &mut lines {
        action.as_object_mut().unwrap().remove("time_ms");
    }
    lines
}

#[test]
fn each_action_is_shown_and_written_once() {
    let (server, file) = audited("audit", None);
    let by =
        |action: &str| json!({"client": "local client", "action": action, "limit": "logins", "key": "eve"});
    let with = |mut action: Value, more: Value| {
        action.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        action
    };
    let block = r#"{"limit":"logins","key":"eve","for":"10m","note":"tries passwords"}"#;
    for (path, body) in [
        ("/v1/block", block),
        ("/v1/unblock", KEY),
        ("/v1/override", r#"{"limit":"logins","key":"eve","quota":"9/1h"}"#),
        ("/v1/override", r#"{"limit":"logins","key":"eve","end":true}"#),
        ("/v1/reset", KEY),
        ("/v1/refund", r#"{"limit":"logins","key":"eve","cost":2}"#),
        ("/v1/reset", r#"{"limit":"logins"}"#),
        ("/v1/reload", ""),
    ] {
        assert_eq!(server.post(path, body).status, 200, "{path} {body}");
    }
    let mut expected = vec![
        with(by("block"), json!({"for_ms": 600_000, "note": "tries passwords"})),
        by("unblock"),
        with(by("override"), json!({"value": "9/1h"})),
        by("end-override"),
        by("reset"),
        with(by("refund"), json!({"value": "2"})),
        json!({"client": "local client", "action": "reset", "limit": "logins"}),
        json!({"client": "local client", "action": "reload"}),
    ];
    assert_eq!(shown(&server), expected);

    // The Redis protocol.
    for command in [
        "BLOCK logins eve 5000",
        "UNBLOCK logins eve",
        "OVERRIDE logins eve 9/1h",
        "OVERRIDE logins eve END",
        "REFUND logins eve 2",
    ] {
        let reply = server.resp(command);
        assert!(!reply.starts_with('-'), "{command}: {reply}");
    }
    expected.extend([
        with(by("block"), json!({"for_ms": 5_000})),
        by("unblock"),
        with(by("override"), json!({"value": "9/1h"})),
        by("end-override"),
        with(by("refund"), json!({"value": "2"})),
    ]);
    assert_eq!(shown(&server), expected);

    // Other ways to change something: the rules file, and rules for programs.
    let version = server.get("/v1/rules/file").json()["version"].as_str().unwrap().to_owned();
    let saved =
        server.post(&format!("/v1/rules/save?version={version}"), "limits: [{name: logins, limit: 4/1h}]");
    assert_eq!(saved.status, 200);
    let pushed = server.post("/v1/flow/rules", r#"{"app":"shop","rules":"flow: []"}"#);
    assert_eq!(pushed.status, 200);
    let previous = server.get("/v1/audit").json()["actions"][1]["value"].clone();
    assert!(previous.as_str().unwrap().ends_with("rules.yaml.previous"), "{previous}");
    expected.extend([
        json!({"client": "local client", "action": "save", "value": previous}),
        json!({"client": "local client", "action": "push", "value": "shop"}),
    ]);
    assert_eq!(shown(&server), expected);

    // What changes nothing is no action: neither what was refused, nor what was already so, nor a permit that comes back.
    for (path, body, status) in [
        ("/v1/unblock", KEY, 200),
        ("/v1/override", r#"{"limit":"logins","key":"eve","end":true}"#, 200),
        ("/v1/block", r#"{"limit":"no-such-limit","key":"eve"}"#, 404),
        ("/v1/override", r#"{"limit":"logins","key":"eve","quota":"many"}"#, 400),
        ("/v1/acquire", KEY, 200),
    ] {
        assert_eq!(server.post(path, body).status, status, "{path} {body}");
    }
    assert_eq!(shown(&server), expected);

    eventually("all lines are written", || written(&file).len() == expected.len());
    assert_eq!(written(&file), expected);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // A file that was moved away is created again.
    std::fs::rename(&file, file.with_extension("1")).unwrap();
    server.post("/v1/block", KEY);
    eventually("the new file has the new line", || written(&file).len() == 1);
    assert_eq!(written(&file.with_extension("1")), expected);
}

#[test]
fn actions_in_the_store_are_recorded_where_they_are_made() {
    let store = Server::start(&[]);
    let (server, file) = audited("audit-store", Some(&store.address()));
    assert_eq!(server.post("/v1/block", r#"{"limit":"logins","key":"eve","note":"abuse"}"#).status, 200);
    assert_eq!(server.resp("UNBLOCK logins eve"), "1");
    assert_eq!(server.post("/v1/refund", r#"{"limit":"logins","key":"eve"}"#).status, 200);
    server.resp("REFUND logins eve 1");
    let actions: Vec<Value> = shown(&server).into_iter().map(|action| action["action"].clone()).collect();
    assert_eq!(actions, ["block", "unblock", "refund", "refund"]);
    eventually("all lines are written", || written(&file).len() == 4);
}

#[test]
fn a_page_shows_the_actions_and_a_name_cannot_change_it() {
    let (server, _) = audited("audit-page", None);
    let page = || Http::connect(server.admin).send("GET", "/audit", "").body;
    assert!(page().contains("No operator has changed anything"));
    server
        .post("/v1/block", r#"{"limit":"logins","key":"<script>alert(1)</script>","for":"1h","note":"<b>"}"#);
    let shown = page();
    assert!(
        shown.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !shown.contains("<script>alert"),
        "{shown}"
    );
    assert!(shown.contains("&lt;b&gt;") && shown.contains("1\u{a0}h 0\u{a0}min"), "{shown}");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    let options = Options { audit: Some("/nowhere/audit.jsonl".into()), ..Options::default() };
    let error = Running::try_start_at(options, Nanos::ZERO).err().expect("the server does not start");
    assert!(error.contains("--audit /nowhere/audit.jsonl: cannot append to it: No such file"), "{error}");
}
