//! Each action of an operator is recorded once, on every listener.

use crate::harness;

use std::{
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::Duration,
};

use harness::{Http, Resp, Running, frame, scratch};
use serde_json::{Value, json};
use tidegate_core::{Clock as _, Nanos};
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
    let mut actions = server.get("/v1/audit").json()["actions"]
        .as_array()
        .unwrap()
        .clone();
    actions.reverse();
    for action in &mut actions {
        action.as_object_mut().unwrap().remove("time_ms");
    }
    actions
}

fn written(file: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for action in &mut lines {
        action.as_object_mut().unwrap().remove("time_ms");
    }
    lines
}

#[test]
fn each_action_is_shown_and_written_once() {
    let (server, file) = audited("audit", None);
    let by = |action: &str| json!({"client": "local client", "action": action, "limit": "logins", "key": "eve"});
    let with = |mut action: Value, more: Value| {
        action
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        action
    };
    let block = r#"{"limit":"logins","key":"eve","for":"10m","note":"tries passwords"}"#;
    for (path, body) in [
        ("/v1/block", block),
        ("/v1/unblock", KEY),
        (
            "/v1/override",
            r#"{"limit":"logins","key":"eve","quota":"9/1h"}"#,
        ),
        (
            "/v1/override",
            r#"{"limit":"logins","key":"eve","end":true}"#,
        ),
        ("/v1/reset", KEY),
        ("/v1/refund", r#"{"limit":"logins","key":"eve","cost":2}"#),
        ("/v1/reset", r#"{"limit":"logins"}"#),
        ("/v1/reload", ""),
    ] {
        assert_eq!(server.post(path, body).status, 200, "{path} {body}");
    }
    let mut expected = vec![
        with(
            by("block"),
            json!({"for_ms": 600_000, "note": "tries passwords"}),
        ),
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
    let version = server.get("/v1/rules/file").json()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    let saved = server.post(
        &format!("/v1/rules/save?version={version}"),
        "limits: [{name: logins, limit: 4/1h}]",
    );
    assert_eq!(saved.status, 200);
    let pushed = server.post("/v1/flow/rules", r#"{"app":"shop","rules":"flow: []"}"#);
    assert_eq!(pushed.status, 200);
    let previous = server.get("/v1/audit").json()["actions"][1]["value"].clone();
    assert!(
        previous.as_str().unwrap().ends_with("rules.yaml.previous"),
        "{previous}"
    );
    expected.extend([
        json!({"client": "local client", "action": "save", "value": previous}),
        json!({"client": "local client", "action": "push", "value": "shop"}),
    ]);
    assert_eq!(shown(&server), expected);

    // What changes nothing is no action: neither what was refused, nor what was already so, nor a
    // permit that comes back.
    for (path, body, status) in [
        ("/v1/unblock", KEY, 200),
        (
            "/v1/override",
            r#"{"limit":"logins","key":"eve","end":true}"#,
            200,
        ),
        ("/v1/block", r#"{"limit":"no-such-limit","key":"eve"}"#, 404),
        (
            "/v1/override",
            r#"{"limit":"logins","key":"eve","quota":"many"}"#,
            400,
        ),
        ("/v1/acquire", KEY, 200),
    ] {
        assert_eq!(server.post(path, body).status, status, "{path} {body}");
    }
    assert_eq!(shown(&server), expected);

    eventually("all lines are written", || {
        written(&file).len() == expected.len()
    });
    assert_eq!(written(&file), expected);
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // A file that was moved away is created again.
    std::fs::rename(&file, file.with_extension("1")).unwrap();
    server.post("/v1/block", KEY);
    eventually("the new file has the new line", || {
        written(&file).len() == 1
    });
    assert_eq!(written(&file.with_extension("1")), expected);
}

#[test]
fn actions_in_the_store_are_recorded_where_they_are_made() {
    let store = Server::start(&[]);
    let (server, file) = audited("audit-store", Some(&store.address()));
    assert_eq!(
        server
            .post(
                "/v1/block",
                r#"{"limit":"logins","key":"eve","note":"abuse"}"#
            )
            .status,
        200
    );
    assert_eq!(server.resp("UNBLOCK logins eve"), "1");
    assert_eq!(
        server
            .post("/v1/refund", r#"{"limit":"logins","key":"eve"}"#)
            .status,
        200
    );
    server.resp("REFUND logins eve 1");
    let actions: Vec<Value> = shown(&server)
        .into_iter()
        .map(|action| action["action"].clone())
        .collect();
    assert_eq!(actions, ["block", "unblock", "refund", "refund"]);
    eventually("all lines are written", || written(&file).len() == 4);
}

#[test]
fn blocks_that_the_store_lost_are_recorded_when_they_are_given_again() {
    let mut store = Server::start(&[]);
    let (server, _) = audited("audit-lost", Some(&store.address()));
    for key in ["eve", "mallory"] {
        assert_eq!(server.resp(&format!("BLOCK logins {key}")), "OK");
    }
    store.start_again();
    let last = || shown(&server).pop().expect("there are two blocks");
    eventually("that is recorded", || last()["action"] == "restore-orders");
    let last = last();
    assert_eq!(
        (last["client"].as_str(), last["value"].as_str()),
        (
            Some("this server"),
            Some("since the start: 2 given again, 0 lost")
        ),
        "{last}"
    );
    let metric = r#"tidegate_shared_store_lost_orders_total{outcome="given-again"}"#;
    assert_eq!(server.metric(metric), 2);
}

#[test]
fn a_page_shows_the_actions_and_a_name_cannot_change_it() {
    let (server, _) = audited("audit-page", None);
    let page = || Http::connect(server.admin).send("GET", "/audit", "").body;
    assert!(page().contains("No operator has changed anything"));
    server.post(
        "/v1/block",
        r#"{"limit":"logins","key":"<script>alert(1)</script>","for":"1h","note":"<b>"}"#,
    );
    let shown = page();
    assert!(
        shown.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !shown.contains("<script>alert"),
        "{shown}"
    );
    assert!(
        shown.contains("&lt;b&gt;") && shown.contains("· for 1h ·"),
        "{shown}"
    );
}

#[test]
fn a_named_pipe_gets_the_lines_while_somebody_reads_it() {
    let directory = scratch("audit-pipe");
    let (pipe, rules) = (directory.join("audit.pipe"), directory.join("rules.yaml"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    std::fs::write(&rules, "limits: [{name: logins, limit: 5/1m}]").unwrap();
    let options = || Options {
        rules: Some(rules.clone()),
        audit: Some(pipe.clone()),
        ..Options::default()
    };
    let start = || Running::try_start_at(options(), Nanos::from_secs(1_700_000_000));
    let error = start().err().expect("nothing reads it");
    assert!(error.contains("a named pipe that nothing reads"), "{error}");
    // Open for both ways, so that opening it waits for nobody.
    let reader = std::fs::File::options().read(true).write(true).open(&pipe);
    let server = start().unwrap();
    server.resp("BLOCK logins eve");
    let mut line = String::new();
    BufReader::new(reader.unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("\"action\":\"block\""), "{line}");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    let options = Options {
        audit: Some("/nowhere/audit.jsonl".into()),
        ..Options::default()
    };
    let error = Running::try_start_at(options, Nanos::ZERO)
        .err()
        .expect("the server does not start");
    assert!(
        error.contains("--audit /nowhere/audit.jsonl: cannot append to it: No such file"),
        "{error}"
    );
}

/// The members of the answer to a GET, without the time since when an order is in force, which must
/// be there.
fn orders(server: &Running, path: &str, name: &str) -> Vec<Value> {
    let mut orders = server.get(path).json()[name].as_array().unwrap().clone();
    for order in &mut orders {
        assert!(
            order
                .as_object_mut()
                .unwrap()
                .remove("since_ms")
                .unwrap()
                .is_u64(),
            "{path}"
        );
    }
    orders
}

#[test]
fn blocks_and_overrides_are_listed_while_they_are_in_force() {
    let store = Server::start(&[]);
    for (name, address) in [("orders", None), ("orders-store", Some(store.address()))] {
        let (server, _) = audited(name, address.as_deref());
        for (path, body) in [
            (
                "/v1/block",
                r#"{"limit":"logins","key":"eve","note":"tries passwords"}"#,
            ),
            (
                "/v1/block",
                r#"{"limit":"logins","key":"mallory","for":"1h"}"#,
            ),
            ("/v1/block", r#"{"limit":"logins","key":"trent"}"#),
            ("/v1/block", r#"{"limit":"seats","key":"eve"}"#),
            ("/v1/unblock", r#"{"limit":"logins","key":"trent"}"#),
            (
                "/v1/override",
                r#"{"limit":"logins","key":"bob","quota":"9/1m"}"#,
            ),
            (
                "/v1/override",
                r#"{"limit":"logins","key":"carol","quota":"8/1m"}"#,
            ),
            (
                "/v1/override",
                r#"{"limit":"logins","key":"carol","end":true}"#,
            ),
        ] {
            assert_eq!(server.post(path, body).status, 200, "{path} {body}");
        }
        let until = |order: &Value| order["until_ms"].as_u64();
        let blocks = orders(&server, "/v1/blocks?limit=logins", "blocks");
        let expected = json!({
            "limit_name": "logins", "key": "eve", "until_ms": null, "client": "local client", "note": "tries passwords",
        });
        assert_eq!((blocks.len(), &blocks[0]), (2, &expected), "{name}");
        let (end, hour) = (until(&blocks[1]).unwrap(), 3_600_000);
        assert_eq!(blocks[1]["key"], "mallory", "{name}");
        // Only the store's clock goes on by itself.
        let now = server.clock.now().get() / 1_000_000;
        assert!(
            address.is_some() || end == now + hour,
            "{name}: {end} {now}"
        );
        assert_eq!(orders(&server, "/v1/blocks", "blocks").len(), 3, "{name}");
        for path in ["/v1/blocks?limit=login", "/v1/overrides?limit=login"] {
            let unknown = server.get(path);
            assert_eq!(unknown.status, 404, "{name}: {path}");
            assert!(unknown.body.contains("logins"), "{}", unknown.body);
        }
        let overrides = orders(&server, "/v1/overrides", "overrides");
        let expected = json!({
            "limit_name": "logins", "key": "bob", "quota": "9/1m", "until_ms": null, "client": "local client", "note": null,
        });
        assert_eq!(overrides, [expected], "{name}");
    }
}

#[test]
fn a_rule_blocks_a_key_that_it_denies_and_an_operator_ends_that() {
    const RULES: &str = "
limits:
  - name: logins
    limit: 2/1m
    algorithm: fixed-window
    block_for: 10m, 1d
    block_after: 2
    block_within: 1m
  - {name: everyone, limit: 1000/1m}
";
    let server = Running::with_rules_and("block-for", RULES, |_| {});
    let ask = |path: &str, body: &str| {
        let answer = server.post(path, body);
        (answer.status, answer.json())
    };
    let take = |path: &str| ask(path, r#"{"limit":"logins","key":"eve","cost":1}"#);
    let joint = r#"{"all":[{"limit":"everyone","key":"x"},{"limit":"logins","key":"eve"}]}"#;
    assert_eq!(take("/v1/acquire").0, 200);
    assert_eq!(take("/v1/reserve").0, 200);
    // The first denial counts, in whichever way it is asked for, and the second blocks.
    assert_eq!(take("/v1/reserve").0, 429);
    assert_eq!(orders(&server, "/v1/blocks", "blocks"), [] as [Value; 0]);
    assert_eq!(ask("/v1/acquire", joint).0, 429);
    let (status, denied) = take("/v1/acquire");
    assert_eq!(
        (status, &denied["reason"], denied["retry_after_ms"].as_u64()),
        (429, &json!("blocked"), Some(600_000))
    );
    // A charge counts during the block, and the answer is the block's denial.
    assert_eq!(take("/v1/charge").1["reason"], "blocked");
    let now = server.clock.now().get() / 1_000_000;
    let expected = json!({
        "limit_name": "logins", "key": "eve", "until_ms": now + 600_000, "client": "the rule", "note": null,
    });
    assert_eq!(
        orders(&server, "/v1/blocks?limit=logins", "blocks"),
        [expected]
    );
    let told = server.get("/v1/explain?limit=logins&key=eve").json();
    assert_eq!(
        (&told["reason"], &told["block"]["client"]),
        (&json!("blocked"), &json!("the rule"))
    );
    assert!(
        told["rule"]
            .as_str()
            .unwrap()
            .contains(r#"block_for: "10m,1d""#),
        "{told}"
    );
    let (_, lifted) = ask("/v1/unblock", KEY);
    assert_eq!(lifted, json!({"unblocked": true}));
    assert_eq!(orders(&server, "/v1/blocks", "blocks"), [] as [Value; 0]);
    server.clock.advance(Duration::from_mins(1));
    assert_eq!(take("/v1/acquire").0, 200);
}

#[test]
fn an_explanation_says_what_binds_a_key_and_what_would_admit_it() {
    const RULES: &str = "
limits:
  - {name: logins, limit: 3/1h, algorithm: sliding-log, overrides: {bob: 5/1h}, deny: [mallory]}
  - {name: everyone, limit: 2/1h, global: true}
";
    let server = Running::with_rules_and("explain", RULES, |options| {
        options.trace_keys = Some("100%".parse().unwrap());
    });
    let told = |key: &str| {
        server
            .get(&format!("/v1/explain?limit=logins&key={key}"))
            .json()
    };
    let take = |key: &str, cost: u32| {
        let body = format!(r#"{{"limit":"logins","key":"{key}","cost":{cost}}}"#);
        server.post("/v1/acquire", &body).status
    };
    let fresh = told("eve");
    assert_eq!(
        (&fresh["allowed"], &fresh["reason"], &fresh["mend"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    assert_eq!(
        (fresh["recent"].clone(), &fresh["rule_from"]),
        (json!([]), &json!("limit"))
    );
    assert_eq!(
        [
            take("eve", 2),
            take("eve", 1),
            take("eve", 1),
            take("alice", 1)
        ],
        [200, 200, 429, 200]
    );
    let used = told("eve");
    assert_eq!(
        (&used["allowed"], &used["reason"], &used["remaining"]),
        (&json!(false), &json!("quota"), &json!(0))
    );
    assert!(
        used["retry_after_ms"].as_u64().unwrap() > 3_000_000
            && used["rule"].as_str().unwrap().contains("3/1h")
    );
    let recent: Vec<_> = used["recent"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["cost"], &one["verdict"]))
        .collect();
    let expected = [(1, "denied"), (1, "admitted"), (2, "admitted")]
        .map(|(cost, verdict)| (json!(cost), json!(verdict)));
    assert_eq!(
        recent,
        expected
            .iter()
            .map(|(cost, verdict)| (cost, verdict))
            .collect::<Vec<_>>()
    );
    server.post(
        "/v1/override",
        r#"{"limit":"logins","key":"eve","quota":"9/1h","note":"a partner"}"#,
    );
    let own = told("eve");
    assert_eq!(
        (&own["allowed"], &own["rule_from"], &own["limit"]),
        (&json!(true), &json!("operator"), &json!(9))
    );
    assert!(
        own["override"]["note"] == "a partner" && own["rule"].as_str().unwrap().contains("9/1h"),
        "{own}"
    );
    server.post("/v1/block", r#"{"limit":"logins","key":"eve","for":"1h"}"#);
    let blocked = told("eve");
    assert_eq!(
        (&blocked["reason"], &blocked["block"]["key"]),
        (&json!("blocked"), &json!("eve"))
    );
    assert_eq!(
        blocked["mend"],
        "the end of the block: tidegate unblock logins eve"
    );
    assert_eq!(told("bob")["rule_from"], "overrides");
    let listed = told("mallory");
    assert_eq!(listed["reason"], "deny-listed");
    assert!(
        listed["mend"]
            .as_str()
            .unwrap()
            .contains("`deny` list of `logins`"),
        "{listed}"
    );
    let global = server.get("/v1/explain?limit=everyone").json();
    assert_eq!(
        (&global["allowed"], &global["key"]),
        (&json!(true), &json!(""))
    );
}

#[test]
fn a_file_system_that_hangs_stops_no_action() {
    const WAITING: usize = 16_384;
    let (server, file) = audited("audit-hangs", None);
    // Nothing reads this pipe, so opening it for writing does not return.
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
    let mut client = Resp::connect(server.resp);
    for _ in 0..(WAITING + 100) / 100 {
        client.send(&frame("BLOCK logins eve").repeat(100));
        (0..100).for_each(|_| assert!(!client.reply().contains("ERR")));
    }
    assert_eq!(server.post("/v1/reset", KEY).status, 200);
    assert_eq!(shown(&server).last().unwrap()["action"], "reset");

    let hung = file.with_extension("hung");
    std::fs::rename(&file, &hung).unwrap();
    let its = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&hung)
        .unwrap();
    server.stop();
    let lines = written(&file).len();
    assert!(
        (WAITING - 1..=WAITING).contains(&lines),
        "{lines} actions waited"
    );
    drop(its);
}
