//! Programs that report what their resources do, and get rules: `flow::report` with a real server.

mod reports;

use std::{io::Read as _, sync::mpsc, time::Duration};

use ring::digest;
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_flow::{Gate, ManualTimer, sources::yaml};
use tidegate_flow_net::report::Report;
use tidegate_redis_servers::eventually;
use tidegate_server::{Ended, Options};

use crate::{
    harness::{Http, Running, scratch},
    pages::{RULES, page},
};

fn push(server: &Running, app: &str, rules: &str) -> (u16, Value) {
    let response = server.post(
        "/v1/flow/rules",
        &json!({"app": app, "rules": rules}).to_string(),
    );
    (response.status, response.json())
}

/// The only application.
fn app(server: &Running) -> Value {
    server.get("/v1/flow").json()["apps"][0].clone()
}

#[test]
fn a_program_is_on_the_page_gets_rules_and_outlasts_a_restart_of_the_server() {
    let directory = scratch("flow-rules");
    let mut options = Options {
        flow_rules: Some(directory),
        ..Options::default()
    };
    let server = Running::start(options.clone());
    // The program's clock is not the server's.
    let timer = ManualTimer::new(Nanos::from_secs(50));
    let gate = Gate::builder().timer(timer.clone()).build();
    let (told, heard) = mpsc::channel();
    let report = Report::to(format!("http://{}", server.admin), "shop <1>").instance("a-1");
    let told = move |loaded: Result<(), &_>| drop(told.send(loaded.map_err(ToString::to_string)));
    let reporter = report.start(&gate, told).unwrap();
    let db = gate.resource("db");
    drop(db.enter().unwrap());
    let held = db.enter().unwrap();
    timer.advance(Duration::from_secs(1));
    let body = |path| page(&server, path).body;
    eventually("the second is on the page", || {
        body("/flow?app=shop%20%3C1%3E").contains("2 passed and 0 blocked in the last minute")
    });
    assert!(
        body("/flow").contains("shop &lt;1&gt;")
            && body("/flow?app=shop%20%3C1%3E").contains("has its own rules")
    );
    assert_eq!(page(&server, "/flow?app=nobody").status, 404);

    // Rules with a mistake change nothing. Good ones arrive.
    let (status, problem) = push(&server, "shop <1>", "flow: [{resource: db, limit: none}]");
    assert_eq!(
        (status, problem["title"].as_str()),
        (422, Some("Rules rejected")),
        "{problem}"
    );
    let rules =
        "flow: [{resource: db, limit: 1/1s}]\nbreakers: [{resource: db, errors: 3, open: 5s}]\n";
    let (status, pushed) = push(&server, "shop <1>", rules);
    assert_eq!(status, 200, "{pushed}");
    eventually("the rules arrive", || gate.rules().flow.len() == 1);
    assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    drop(db.enter().unwrap());
    assert!(db.enter().is_err());
    timer.advance(Duration::from_secs(1));
    eventually("the block is told", || {
        app(&server)["resources"][0]["minute"]["block"][59] == 1
    });
    let shop = app(&server);
    let resource = &shop["resources"][0];
    assert_eq!(
        (&resource["in_flight"], &resource["breakers"][0]["state"]),
        (&json!(1), &json!("closed")),
        "{shop}"
    );
    assert_eq!(
        (&shop["instances"][0]["version"], &shop["rules"]["version"]),
        (&pushed["version"], &pushed["version"])
    );
    assert!(body("/flow?app=shop%20%3C1%3E").contains("has the pushed rules"));

    // Without the server the rules stay, and calls go on.
    options.admin = Some(server.admin.to_string());
    assert_eq!(server.stop(), Ended::Complete);
    eventually("the server is missed", || {
        reporter
            .failure()
            .is_some_and(|why| why.contains("does not answer"))
    });
    assert!(
        heard
            .recv_timeout(Duration::from_secs(20))
            .unwrap()
            .unwrap_err()
            .contains("does not answer")
    );
    drop(held);
    drop(db.enter().unwrap());
    assert!(db.enter().is_err());
    timer.advance(Duration::from_secs(1));

    // It comes back with the rules that were pushed, and gets the second that it missed.
    let server = Running::start(options);
    eventually("the missed second is told", || {
        app(&server)["resources"][0]["minute"]["block"][59] == 1
    });
    assert_eq!(
        app(&server)["rules"],
        json!({"version": pushed["version"], "text": rules})
    );
    let hour = |of| {
        app(&server)["resources"][0]["hour"][of]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .sum::<u64>()
    };
    assert_eq!([hour("pass"), hour("block")], [4, 2], "of both servers");
    eventually("all is well again", || reporter.failure().is_none());
    assert!(
        heard.try_recv().is_err(),
        "the same rules were loaded twice"
    );
    // A program that ends is gone from the page.
    drop(reporter);
    server.advance(Duration::from_secs(10));
    eventually("it is gone", || {
        app(&server)["instances"][0]["gone"] == true
    });
}

#[test]
fn a_push_starts_from_the_rules_in_force_and_changes_only_what_was_edited() {
    let server = Running::with_rules("flow-own", RULES);
    let gate = Gate::builder()
        .timer(ManualTimer::new(Nanos::from_secs(50)))
        .build();
    let own = "flow:\n  - { resource: \"db\", limit: 2/1s }\n\
               breakers:\n  - { resource: \"db\", errors: 3, interval: 1s, slots: 1, min_calls: 5, open: 5s }\n\
               adaptive:\n  - { resource: \"db\", algorithm: vegas, initial: 20, min: 1, max: 50 }\n";
    gate.load(yaml::parse(own).unwrap()).unwrap();
    let _db = gate.resource("db");
    let report = || Report::to(format!("http://{}", server.admin), "shop").instance("a-1");
    let _reporter = report().start(&gate, |_| ()).unwrap();
    let shown = || page(&server, "/flow?app=shop").body;
    let form = || {
        let body = shown();
        let (_, form) = body.split_once("<textarea").unwrap();
        form.split_once("</textarea>")
            .unwrap()
            .0
            .split_once('\n')
            .unwrap()
            .1
            .replace("&quot;", "\"")
    };
    eventually("the rules are told", || {
        app(&server)["instances"][0]["rules"].is_string()
    });
    let text = form();
    assert_eq!(yaml::parse(&text).unwrap(), gate.rules(), "{text}");
    assert!(
        shown().contains("name=\"version\" value=\"\"") && shown().contains("flow 2/1s"),
        "{}",
        shown()
    );
    // Rules that the program loads by itself are shown, too.
    gate.load(yaml::parse(&own.replace("2/1s", "7/1s")).unwrap())
        .unwrap();
    eventually("the change is told", || form().contains("7/1s"));
    let edited = form().replace("7/1s", "4/1s");
    let post = |version: &str, rules: &str| {
        let body = json!({"app": "shop", "rules": rules, "version": version});
        let answer = server.post("/v1/flow/rules", &body.to_string());
        (answer.status, answer.json())
    };
    let (status, pushed) = post("", &edited);
    assert_eq!(status, 200, "{pushed}");
    eventually("the rules arrive", || {
        gate.rules().flow[0].threshold == 4.into()
    });
    let now = gate.rules();
    assert_eq!(
        (now.breakers.len(), now.adaptive.len()),
        (1, 1),
        "the rest stays as it was"
    );
    // Another operator has read the page before that push.
    let (status, problem) = post("", "flow: []");
    assert!(
        status == 409
            && problem["detail"]
                .as_str()
                .unwrap()
                .contains("load them again"),
        "{problem}"
    );
    assert_eq!(app(&server)["rules"]["version"], pushed["version"]);
    let version = pushed["version"].as_str().unwrap();
    assert!(shown().contains(&format!("name=\"version\" value=\"{version}\"")));
    assert_eq!(post(version, &edited).0, 200);
    // A second instance with other rules is no secret.
    let other = Gate::new();
    let _other = report().instance("a-2").start(&other, |_| ()).unwrap();
    eventually("it gets the pushed rules", || other.rules() == gate.rules());
}

#[test]
fn a_resource_has_a_page_with_reasons_an_hour_origins_and_entry_points() {
    let server = Running::with_rules("flow-resource", RULES);
    let timer = ManualTimer::new(Nanos::from_secs(50));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(
        yaml::parse(
            "flow: [{pattern: 'd.', limit: 2/1s}]\nisolation: [{resource: db, in_flight: 9}]\n",
        )
        .unwrap(),
    )
    .unwrap();
    let report = Report::to(format!("http://{}", server.admin), "shop").instance("a-1");
    let _reporter = report.start(&gate, |_| ()).unwrap();
    let db = gate.resource("db");
    for origin in ["<mobile>", "<mobile>", "web", "web", "web"] {
        drop(db.entry().origin(origin).context("checkout").enter());
    }
    assert!(db.entry().count(3).enter().is_err());
    let resource = || app(&server)["resources"][0].clone();
    eventually("the origins are told", || {
        resource()["origins"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    timer.advance(Duration::from_secs(1));
    eventually("the second is told", || {
        resource()["hour"]["block"][59] == 6
    });
    let told = resource();
    assert_eq!(
        told["blocked"],
        json!({"quota": 3, "too-large": 3}),
        "{told}"
    );
    assert_eq!(
        (
            &told["hour"]["pass"][59],
            told["hour"]["pass"].as_array().unwrap().len()
        ),
        (&json!(2), 60),
        "{told}"
    );
    let body = page(&server, "/flow?app=shop&resource=db").body;
    for words in [
        "The last hour (UTC): 2 passed and 6 blocked",
        "The last minute (UTC): 2 passed and 6 blocked",
        "Blocked since the start: 3 quota, 3 too-large.",
        "flow 2/1s",
        "isolation 9 in flight",
        "&lt;mobile&gt;",
        "checkout",
        "a-1",
        "data-live=\"/live?app=shop&amp;resource=db\"",
    ] {
        assert!(body.contains(words), "{words} is not in {body}");
    }
    let all = page(&server, "/flow?app=shop").body;
    assert!(
        all.contains("/flow?app=shop&amp;resource=db")
            && all.contains("blocked: 3 quota, 3 too-large"),
        "{all}"
    );
    assert_eq!(page(&server, "/flow?app=shop&resource=nothing").status, 404);
    let mut live = Http::connect(server.admin);
    live.write(b"GET /live?app=shop&resource=db HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut seen = [0; 4096];
    let read = live.stream().read(&mut seen).unwrap();
    assert!(String::from_utf8_lossy(&seen[..read]).contains("text/event-stream"));
}

#[test]
fn a_report_needs_its_role_and_a_push_the_one_of_operators() {
    let file = scratch("flow-access").join("access.yaml");
    let entry = |name: &str, role: &str| {
        let digest = digest::digest(
            &digest::SHA256,
            format!("{name}-token-{name}-token").as_bytes(),
        );
        let hex = digest
            .as_ref()
            .iter()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        format!("  - {{name: {name}, roles: [{role}], limits: [sho], tokens: ['sha256:{hex}']}}\n")
    };
    let entries = entry("program", "report") + &entry("ops", "operate");
    std::fs::write(&file, format!("access:\n{entries}")).unwrap();
    let server =
        Running::with_rules_and("flow-rights", RULES, |options| options.access = Some(file));
    let post = |who: &str, path: &str, body: &Value| {
        let (body, token) = (body.to_string(), format!("{who}-token-{who}-token"));
        let mut client = Http::connect(server.admin);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: {}",
            body.len()
        );
        client.write(format!("{head}\r\n\r\n{body}").as_bytes());
        let answer = client.read();
        (answer.status, answer.body)
    };
    let report = |app: &str| json!({"app": app, "instance": "a", "now": 1, "resources": []});
    let rules = json!({"app": "shop", "rules": "flow: []"});
    assert_eq!(post("program", "/v1/flow/report", &report("shop")).0, 200);
    for (who, path, body, needed) in [
        (
            "program",
            "/v1/flow/report",
            report("other"),
            "may not use the application `other`",
        ),
        (
            "ops",
            "/v1/flow/report",
            report("shop"),
            "needs the role `report`",
        ),
        (
            "program",
            "/v1/flow/rules",
            rules.clone(),
            "needs the role `operate`",
        ),
        (
            "program",
            "/v1/block",
            json!({"limit": "shop"}),
            "needs the role `operate`",
        ),
    ] {
        let (status, told) = post(who, path, &body);
        assert!(
            status == 403 && told.contains(needed),
            "{who} {path}: {status} {told}"
        );
    }
    assert_eq!(post("nobody", "/v1/flow/report", &report("shop")).0, 401);
    assert_eq!(post("ops", "/v1/flow/rules", &rules).0, 200);
    // The library says what is wrong.
    let gate = Gate::new();
    let report =
        Report::to(format!("http://{}", server.admin), "shop").token("not-the-token-of-anybody");
    let reporter = report.start(&gate, |_| ()).unwrap();
    eventually("the refusal is told", || {
        reporter
            .failure()
            .is_some_and(|why| why.contains("refused the report with 401"))
    });
}

#[test]
fn what_is_no_report_is_refused_with_its_mistake() {
    let server = Running::with_rules("flow-bad", RULES);
    for (body, why) in [
        ("", "the body is empty"),
        ("[", "not JSON"),
        (
            r#"{"app":"a","instance":"i","now":1}"#,
            "missing field `resources`",
        ),
        (
            r#"{"app":"a","instance":"i","now":-1,"resources":[]}"#,
            "#/now",
        ),
        (
            r#"{"app":"","instance":"i","now":1,"resources":[]}"#,
            "1 to 64 bytes",
        ),
        (
            r#"{"app":"a","instance":"i","now":1,"resources":[{"name":"r","in_flight":0,"seconds":[[1,2]]}]}"#,
            "#/resources/0/seconds/0",
        ),
    ] {
        let answer = server.post("/v1/flow/report", body);
        assert!(
            answer.status == 400 && answer.body.contains(why),
            "{body}: {} {}",
            answer.status,
            answer.body
        );
    }
    let (status, _) = push(&server, "", "flow: []");
    assert_eq!(status, 400);
    assert_eq!(server.get("/v1/flow?application=a").status, 400);
    for (report, why) in [
        (Report::to("127.0.0.1:8082", "shop"), "is not a URL"),
        (
            Report::to("http://127.0.0.1:8082", ""),
            "name of the application",
        ),
        (
            Report::to("https://127.0.0.1:8082", "shop").authority("/no/such/file"),
            "/no/such/file",
        ),
        (
            Report::to("http://127.0.0.1:8082", "shop").token("two words"),
            "token",
        ),
    ] {
        let error = report.start(&Gate::new(), |_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
