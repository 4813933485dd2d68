//! The commands that ask a server from a shell: their output and exit codes.

use crate::program;

use std::fs;

use program::{Serving, scratch, tidegate};
use tidegate_redis_servers::eventually;

/// The exit code, standard output and standard error of a command for this server.
fn ask(server: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = tidegate()
        .args(arguments)
        .args(["--server", server, "--timeout", "20s"])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn serving(name: &str) -> Serving {
    let rules = scratch(name).join("rules.yaml");
    let limits = "limits:\n  - {name: cron, limit: 2/1h, algorithm: sliding-log, deny: [outlaw]}\n  - {name: quick, limit: 1/300ms, algorithm: sliding-log}\n";
    fs::write(&rules, limits).unwrap();
    Serving::with(&["--rules", rules.to_str().unwrap()])
}

#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let directory = scratch("client-full");
    let (usage, rules) = (directory.join("usage"), directory.join("rules.yaml"));
    fs::create_dir(&usage).unwrap();
    fs::write(&rules, "limits: [{name: a, limit: 1/1s}]").unwrap();
    let server = serving("client-full-server");
    let run = |arguments: &[&str], out: std::process::Stdio| {
        let output = tidegate().args(arguments).stdout(out).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), told)
    };
    for (arguments, code) in [
        (&["usage", usage.to_str().unwrap()][..], 1),
        (&["token", "shop"], 1),
        (&["import", "limits", "5/second"], 1),
        (&["check", rules.to_str().unwrap()], 1),
        (&["completions", "bash"], 1),
        (&["man"], 1),
        (&["ratelimit", "--options"], 1),
        (&["rules", "--server", &server.admin], 3),
        (&["blocks", "--server", &server.admin], 3),
        (&["audit", "--format", "json", "--server", &server.admin], 3),
        // What was decided shows in the exit code all the same.
        (&["acquire", "cron", "a", "--server", &server.http], 0),
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (ended, told) = run(arguments, full.into());
        let says = told.contains("cannot write to standard output");
        assert!(ended == Some(code) && says, "{arguments:?}: {told}");
        // A reader that has gone has seen enough.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (ended, told) = run(arguments, writer.into());
        assert_eq!((ended, told.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_device_that_a_trace_is_recorded_to_stays_one() {
    let rules = scratch("client-record").join("rules.yaml");
    fs::write(&rules, "limits: [{name: a, limit: 1/1s}]").unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--trace-keys", "100%"]);
    let (pipe, link) = (
        rules.with_file_name("pipe"),
        rules.with_file_name("link.jsonl"),
    );
    let target = rules.with_file_name("target.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let record = |path: &std::path::Path| {
        let (code, _, told) = ask(&server.admin, &["record", "-o", path.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{told}");
    };
    record(&pipe);
    assert!(reader.join().unwrap().starts_with("{\"tidegate_trace\":"));
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    record(&link);
    assert!(link.is_symlink());
    assert!(fs::metadata(&target).unwrap().len() > 0);
}

#[test]
fn what_this_client_cannot_use_is_not_the_servers_fault() {
    let server = serving("client-own");
    let https = format!("https://{}", server.http);
    let rules = scratch("client-own-files").join("rules.yaml");
    fs::write(&rules, "limits: []").unwrap();
    let rules = rules.to_str().unwrap();
    for (arguments, expected) in [
        (
            &["--server", &https, "--ca", "/none.pem"][..],
            "--ca /none.pem: ",
        ),
        (&["--server", &https, "--ca", rules], "has no certificate"),
        (
            &["--server", &server.http, "--token", "a\nb"],
            "the token has a line break",
        ),
    ] {
        let output = tidegate()
            .args(["peek", "cron", "a"])
            .args(arguments)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(
            told.contains(expected) && !told.contains("is a server running"),
            "{told}"
        );
    }
    // A server that takes connections and does not reply.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = tidegate()
        .args([
            "peek",
            "cron",
            "a",
            "--server",
            &address,
            "--timeout",
            "10ms",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("has not replied within 10ms"), "{told}");
}

#[test]
fn a_shell_script_is_limited_by_exit_codes() {
    let server = serving("client-acquire");
    let operate = |arguments: &[&str]| ask(&server.admin, arguments);
    let ask = |arguments: &[&str]| ask(&server.http, arguments);
    let said = |(code, out, _): (Option<i32>, String, String)| (code, out);
    assert_eq!(
        said(ask(&["peek", "cron", "nightly"])),
        (Some(0), "allowed, remaining 2".into())
    );
    assert_eq!(
        said(ask(&["acquire", "cron", "nightly", "--cost", "2"])),
        (Some(0), "allowed, remaining 0".into())
    );
    let (code, denied) = said(ask(&["acquire", "cron", "nightly"]));
    assert!(
        code == Some(1) && denied == "denied (quota), remaining 0, retry after 1h",
        "{denied}"
    );
    // It would have to wait longer, which it knows immediately.
    assert_eq!(
        ask(&["acquire", "cron", "nightly", "--wait", "5s"]).0,
        Some(1)
    );
    assert_eq!(
        said(ask(&["refund", "cron", "nightly"])),
        (Some(0), "refunded up to 1, remaining 1".into())
    );
    assert_eq!(ask(&["acquire", "cron", "nightly"]).0, Some(0));
    let effect = |arguments: &[&str]| said(operate(arguments));
    let is = |code, words: &str| (Some(code), words.to_owned());
    assert_eq!(
        effect(&["block", "cron", "mallory", "--for", "90m"]),
        is(0, "blocked mallory in cron for 1h30m")
    );
    let line = server.logs("action=\"block\"");
    assert!(
        line.contains("key=\"mallory\" ") && !line.contains("Some("),
        "{line}"
    );
    assert_eq!(ask(&["peek", "cron", "mallory"]).0, Some(1));
    assert_eq!(
        effect(&["unblock", "cron", "mallory"]),
        is(0, "unblocked mallory in cron")
    );
    assert_eq!(
        effect(&["unblock", "cron", "mallory"]),
        is(1, "mallory in cron was not blocked")
    );
    assert_eq!(
        effect(&["block", "cron", "a\u{1b}b"]),
        is(0, "blocked a\u{fffd}b in cron until it is unblocked")
    );
    assert_eq!(
        effect(&["block", "cron", "outlaw", "--for", "1h"]),
        is(
            0,
            "blocked outlaw in cron for 1h; it is denied in any case, because it is on the deny list of the rules"
        )
    );
    assert_eq!(
        effect(&["override", "cron", "vip", "9/1h", "--for", "1h"]),
        is(0, "vip in cron has 9/1h for 1h")
    );
    assert_eq!(
        said(ask(&["acquire", "cron", "vip"])),
        (Some(0), "allowed, remaining 8".into())
    );
    let (_, rules, _) = operate(&["rules"]);
    assert!(
        rules.contains("# by an operator, while the server runs: \"vip\": 9/1h"),
        "{rules}"
    );
    assert_eq!(
        effect(&["override", "cron", "vip", "--end"]),
        is(0, "vip in cron has the quota of the rules again")
    );
    assert_eq!(
        effect(&["override", "cron", "vip", "--end"]),
        is(1, "vip in cron had no override")
    );
    let (code, _, error) = operate(&["override", "cron", "vip", "9"]);
    assert!(
        code == Some(3) && error.contains("`9` is not a quota for limit `cron`"),
        "{error}"
    );
    assert_eq!(
        operate(&["override", "cron", "vip"]).0,
        Some(2),
        "a quota, or --end"
    );
    assert_eq!(ask(&["acquire", "cron", "nightly"]).0, Some(1));
    assert_eq!(
        effect(&["reset", "cron", "nightly"]),
        is(0, "reset nightly in cron: nothing counts as used")
    );
    assert_eq!(ask(&["acquire", "cron", "nightly"]).0, Some(0));
    // Usage that is known only afterwards: a question of cost 0, and a charge of more than is left.
    assert_eq!(
        said(ask(&["acquire", "cron", "late", "--cost", "0"])),
        (Some(0), "allowed, remaining 2".into())
    );
    assert_eq!(
        said(ask(&["charge", "cron", "late", "--cost", "2"])),
        (Some(0), "charged 2, remaining 0".into())
    );
    assert_eq!(
        said(ask(&["charge", "cron", "late", "--cost", "5"])),
        (Some(1), "charged 5, remaining 0".into())
    );
    assert_eq!(ask(&["acquire", "cron", "late", "--cost", "0"]).0, Some(1));
    let (code, _, error) = ask(&["block", "cron", "mallory"]);
    assert!(code == Some(3) && error.contains("(--admin)"), "{error}");
    let (code, _, error) = ask(&["acquire", "corn", "nightly"]);
    assert!(
        code == Some(3) && error.contains("404") && error.contains("cron"),
        "{error}"
    );
    assert_eq!(
        tidegate().args(["acquire"]).output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn a_job_waits_until_its_limit_admits_it() {
    let server = serving("client-wait");
    for _ in 0..3 {
        assert_eq!(
            ask(&server.http, &["acquire", "quick", "job", "--wait", "30s"]).0,
            Some(0)
        );
    }
}

#[test]
fn a_job_that_waits_is_in_line_and_runs_as_soon_as_there_is_room() {
    let server = serving("client-line");
    assert_eq!(
        ask(&server.http, &["acquire", "cron", "nightly", "--cost", "2"]).0,
        Some(0)
    );
    // One call, for longer than its timeout.
    let mut waiting = tidegate()
        .args(["acquire", "cron", "nightly", "--wait", "2h"])
        .args(["--server", &server.http, "--timeout", "20s"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the job is in line", || {
        server
            .get("/metrics")
            .contains("tidegate_waiting{limit=\"cron\"} 1\n")
    });
    assert_eq!(waiting.try_wait().unwrap(), None);
    assert_eq!(ask(&server.http, &["refund", "cron", "nightly"]).0, Some(0));
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"allowed, remaining 0\n");
}

#[test]
fn a_job_of_a_higher_priority_runs_first() {
    let server = serving("client-priority");
    assert_eq!(
        ask(&server.http, &["acquire", "cron", "nightly", "--cost", "2"]).0,
        Some(0)
    );
    let wait = |level: &str, callers: u64| {
        let waiting = tidegate()
            .args(["acquire", "cron", "nightly", "--cost", "2", "--wait", "1h"])
            .args(["--server", &server.http, "--priority", level])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the job is in line", || {
            server
                .get("/metrics")
                .contains(&format!("tidegate_waiting{{limit=\"cron\"}} {callers}\n"))
        });
        waiting
    };
    let (mut low, high) = (wait("1", 1), wait("7", 2));
    let free = ["refund", "cron", "nightly", "--cost", "2"];
    assert_eq!(ask(&server.http, &free).0, Some(0));
    assert!(high.wait_with_output().unwrap().status.success());
    assert_eq!(low.try_wait().unwrap(), None);
    assert_eq!(ask(&server.http, &free).0, Some(0));
    assert!(low.wait().unwrap().success());
    // What is wrong is said before anything is asked.
    for (wrong, why) in [
        (&["--priority", "7"][..], "--wait"),
        (
            &["--wait", "1s", "--priority", "10"],
            "a priority is a whole number from 0 to 9",
        ),
    ] {
        let (code, _, error) = ask(&server.http, &[&["acquire", "cron", "x"], wrong].concat());
        assert!(code == Some(2) && error.contains(why), "{wrong:?}: {error}");
    }
}

#[test]
fn a_health_check_distinguishes_a_ready_server_from_none() {
    let server = serving("client-health");
    assert_eq!(
        ask(&server.http, &["health"]),
        (Some(0), "ready".into(), String::new())
    );
    assert_eq!(
        ask(&server.http, &["health", "--live"]),
        (Some(0), "ok".into(), String::new())
    );
    // A server with another protocol, and a closed port.
    let (code, _, error) = ask(&server.resp, &["health"]);
    assert!(code == Some(3) && error.contains("--http"), "{error}");
    // The system gives port 1 to no other test.
    let (code, _, error) = ask("127.0.0.1:1", &["health"]);
    assert!(
        code == Some(3) && error.contains("is a server running there?"),
        "{error}"
    );
    let bad = tidegate()
        .args(["health", "--server", "ftp://a:1"])
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn an_operator_reloads_the_rules_and_sees_their_problems() {
    let server = serving("client-reload");
    let rules = scratch("client-reload-next").join("rules.yaml");
    fs::write(&rules, "limits: [{name: first, limit: 1/1s}]").unwrap();
    let server_with = Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--reload-interval",
        "1h",
    ]);
    fs::write(
        &rules,
        "limits: [{name: second, limit: 1/1s}, {name: third, limit: 1/1s}]",
    )
    .unwrap();
    assert_eq!(
        ask(&server_with.admin, &["reload"]),
        (Some(0), "2 limits are in force".into(), String::new())
    );
    assert!(server_with.get("/v1/rules").contains("\"name\":\"third\""));
    fs::write(&rules, "limits: [{name: fourth, limit: 100}]").unwrap();
    let (code, _, error) = ask(&server_with.admin, &["reload"]);
    assert!(
        code == Some(3) && error.contains("line 1") && error.contains("previous rules stay"),
        "{error}"
    );
    assert!(server_with.get("/v1/rules").contains("second"));
    let (code, _, error) = ask(&server.http, &["reload"]);
    assert!(code == Some(3) && error.contains("(--admin)"), "{error}");
}

#[test]
fn an_operator_sees_what_is_in_force_and_why_a_key_is_denied() {
    let server = serving("client-orders");
    let operate = |arguments: &[&str]| ask(&server.admin, arguments);
    let text = |arguments: &[&str]| {
        let (code, out, error) = operate(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {error}");
        out
    };
    assert_eq!(
        operate(&[
            "block",
            "cron",
            "mallory",
            "--for",
            "1h",
            "--note",
            "scrapes & floods"
        ])
        .0,
        Some(0)
    );
    assert_eq!(
        operate(&["block", "quick", "é b&c", "--note", "a\nb"]).0,
        Some(0)
    );
    assert_eq!(
        operate(&["override", "cron", "vip", "9/1h", "--note", "a partner"]).0,
        Some(0)
    );
    let blocks = text(&["blocks"]);
    let lines: Vec<&str> = blocks.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["LIMIT", "KEY", "SINCE", "UNTIL", "CLIENT", "NOTE"]
    );
    assert!(lines[1].starts_with("cron   mallory  "), "{blocks}");
    // On a busy machine seconds pass until the list is asked for.
    let is_an_hour = ["  in 1h  ", "  in 59m"]
        .iter()
        .any(|text| lines[1].contains(text));
    assert!(is_an_hour, "{blocks}");
    assert!(
        lines[1].ends_with("local client  scrapes & floods"),
        "{blocks}"
    );
    assert!(
        lines.len() == 3 && lines[2].ends_with("a\u{fffd}b"),
        "{blocks}"
    );
    assert_eq!(text(&["blocks", "quick"]).lines().count(), 2);
    assert!(
        text(&["overrides"]).contains("9/1h") && text(&["overrides", "quick"]).lines().count() == 1
    );
    let json: serde_json::Value =
        serde_json::from_str(&text(&["overrides", "--format", "json"])).unwrap();
    assert_eq!(
        (
            &json["overrides"][0]["quota"],
            json["overrides"].as_array().unwrap().len()
        ),
        (&"9/1h".into(), 1)
    );
    let audit = text(&["audit"]);
    assert!(
        audit.lines().nth(1).unwrap().contains("override") && audit.contains("1h"),
        "{audit}"
    );
    let (code, told, _) = operate(&["explain", "cron", "mallory"]);
    assert_eq!(code, Some(1));
    for part in [
        "verdict      denied (blocked), remaining 0 of 2",
        "by local client: scrapes & floods",
        "rule         {algorithm: sliding-log, limit: 2/1h}, the limit's own",
        "requests     not counted: serve --trace-keys",
        "what helps   the end of the block: tidegate unblock cron mallory",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = text(&["explain", "cron", "vip"]);
    assert!(
        told.contains("admitted, remaining 9 of 9") && told.contains(", given by an operator"),
        "{told}"
    );
    let (_, told, _) = operate(&["explain", "quick", "é b&c", "--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["key"], &told["block"]["note"]),
        (&"é b&c".into(), &"a\nb".into())
    );
    let (code, _, error) = operate(&["explain", "crn", "vip"]);
    assert!(code == Some(3) && error.contains("cron"), "{error}");
}

#[test]
fn a_deployment_marks_the_charts() {
    let server = serving("client-mark");
    let marked = |arguments: &[&str]| ask(&server.admin, arguments);
    assert_eq!(
        marked(&["mark", "shop 1.4 deployed"]),
        (
            Some(0),
            "marked in all charts: shop 1.4 deployed".to_owned(),
            String::new()
        )
    );
    let (code, out, _) = marked(&["mark", "a\u{1b}", "--limit", "cron"]);
    assert!(
        code == Some(0)
            && out.starts_with("marked in the charts of cron: a")
            && !out.contains('\u{1b}'),
        "{out}"
    );
    let (code, _, error) = marked(&["mark", ""]);
    assert!(
        code == Some(3) && error.contains("1 to 200 bytes"),
        "{error}"
    );
    let (code, _, error) = marked(&["mark", "x", "--limit", "crn"]);
    assert!(code == Some(3) && error.contains("cron"), "{error}");
    let (_, out, _) = marked(&["audit"]);
    assert!(
        out.contains("mark") && out.contains("shop 1.4 deployed"),
        "{out}"
    );
}

/// Each command about a server, what it prints as JSON, and the code with which it exits.
#[test]
fn each_command_prints_json_for_programs() {
    let server = serving("client-json");
    let (http, admin) = (&server.http, &server.admin);
    for (at, arguments, code, member) in [
        (http, "health", 0, "status"),
        (http, "acquire cron a", 0, "allowed"),
        (http, "peek cron a --cost 9", 1, "allowed"),
        (http, "charge cron a", 0, "remaining"),
        (http, "refund cron a", 0, "remaining"),
        (admin, "block cron a", 0, "blocked"),
        (admin, "unblock cron a", 0, "unblocked"),
        (admin, "unblock cron a", 1, "unblocked"),
        (admin, "override cron a 9/1h", 0, "overridden"),
        (admin, "override cron a --end", 0, "ended"),
        (admin, "override cron a --end", 1, "ended"),
        (admin, "reset cron a", 0, "reset"),
        (admin, "mark deployed", 0, "marked"),
        (admin, "reload", 0, "limits"),
        (admin, "blocks", 0, "blocks"),
        (admin, "overrides", 0, "overrides"),
        (admin, "audit", 0, "actions"),
        (admin, "rules", 0, "limits"),
        (admin, "explain cron a", 0, "facts"),
        #[cfg(feature = "top")]
        (admin, "top --once", 0, "limits"),
    ] {
        let words: Vec<&str> = arguments.split(' ').chain(["--format", "json"]).collect();
        let (exited, out, error) = ask(at, &words);
        assert_eq!(exited, Some(code), "{arguments}: {out}{error}");
        assert_eq!(out.lines().count(), 1, "{arguments}: {out}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(!answer[member].is_null(), "{arguments}: {out}");
    }
}

#[test]
fn a_printed_command_can_be_pasted_into_a_shell() {
    let server = serving("client-quoting");
    for key in ["a b; touch /tmp/x", "it's", "-x", "$(id)"] {
        let about = |command: &str| {
            let output = tidegate()
                .args([command, "cron", "--server", &server.admin, "--", key])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        about("block");
        let told = about("explain");
        let (_, command) = told
            .rsplit_once("the end of the block: tidegate ")
            .unwrap_or_else(|| panic!("{told}"));
        let pasted = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("\"$0\" {command}"),
                env!("CARGO_BIN_EXE_tidegate"),
            ])
            .env("TIDEGATE_ADMIN_SERVER", &server.admin)
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&pasted.stdout);
        assert_eq!(out, format!("unblocked {key} in cron\n"), "{command}");
    }
}

#[test]
fn denials_are_counted_instead_of_listed() {
    let rules = scratch("client-denials").join("rules.yaml");
    fs::write(
        &rules,
        "limits: [{name: cron, limit: 2/1h, algorithm: sliding-log}]\n",
    )
    .unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--trace-keys", "100%"]);
    for _ in 0..30 {
        ask(&server.http, &["acquire", "cron", "eve"]);
    }
    let (_, told, _) = ask(&server.admin, &["explain", "cron", "eve"]);
    let denials: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("denials"))
        .collect();
    assert_eq!(denials.len(), 1, "{told}");
    assert!(
        denials[0].contains(" 28 (quota): the first ")
            && denials[0].contains(" ago, the last ")
            && denials[0].contains(" a second between"),
        "{told}"
    );
    assert!(
        told.contains("requests     30 requests, the first "),
        "{told}"
    );
}

/// The table of exit codes in the book has each command of the program, and no other.
#[cfg(all(feature = "sim", feature = "top"))]
#[test]
fn the_book_has_the_exit_codes_of_each_command() {
    let book = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/commands.md");
    let book = fs::read_to_string(book).unwrap();
    let listed: std::collections::BTreeSet<&str> = book
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| line.split('|').nth(1).unwrap().split('`'))
        .filter(|word| !word.trim().is_empty() && !word.contains(','))
        .collect();
    let help = tidegate().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known: std::collections::BTreeSet<&str> = help
        .split("Commands:\n")
        .nth(1)
        .unwrap()
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert_eq!(listed, known);
}

/// Whether a terminal would act on a character, or a reader take it for another line.
fn acts(c: char) -> bool {
    c.is_control() && c != '\n'
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn no_command_prints_what_a_terminal_would_act_on() {
    const HOSTILE: &str = "a\u{1b}[31mred\nWARN forged\r\u{7}\u{9b}31m\u{202e}";
    let directory = scratch("client-hostile");
    let (rules, usage) = (directory.join("rules.yaml"), directory.join("usage"));
    fs::write(
        &rules,
        "limits:\n  - {name: api, limit: 1/1h, algorithm: token-bucket, thresholds: [50%]}\n",
    )
    .unwrap();
    let server = Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--usage",
        usage.to_str().unwrap(),
        "--trace-keys",
        "100%",
    ]);
    let mut said = Vec::new();
    let mut run = |of: &str, arguments: &[&str]| {
        let (_, out, error) = ask(of, arguments);
        said.push((arguments.join(" "), out, error));
    };
    for cost in ["1", "1", "2000000"] {
        run(&server.http, &["acquire", "api", HOSTILE, "--cost", cost]);
    }
    run(&server.http, &["peek", "api", HOSTILE]);
    run(&server.http, &["peek", HOSTILE, HOSTILE]);
    run(
        &server.admin,
        &["block", "api", HOSTILE, "--for", "1h", "--note", HOSTILE],
    );
    run(
        &server.admin,
        &[
            "override", "api", HOSTILE, "9/1h", "--for", "1h", "--note", HOSTILE,
        ],
    );
    run(&server.admin, &["override", "api", HOSTILE, HOSTILE]);
    for command in ["blocks", "overrides", "audit", "rules"] {
        run(&server.admin, &[command]);
    }
    run(&server.admin, &["explain", "api", HOSTILE]);
    run(&server.admin, &["explain", HOSTILE, HOSTILE]);
    run(&server.admin, &["unblock", "api", HOSTILE]);
    run(&server.admin, &["reset", "api", HOSTILE]);
    let trace = directory.join("trace.jsonl");
    run(
        &server.admin,
        &["record", "--output", trace.to_str().unwrap()],
    );
    server.logs("a key has used");
    let shell = |arguments: &[&str]| {
        let output = tidegate().args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            arguments.join(" "),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let files = [
        (
            "nginx",
            "limit_req_zone $a\u{1b}[31m zone=\u{202e}x:1m rate=\u{7}r/s;\n",
        ),
        ("limits", "5/\u{1b}[31mminute\n"),
        (
            "express-rate-limit",
            "{\"a\\u001b[31m\\u202e\": 1, \"limit\": \"\\u0007\"}",
        ),
        (
            "rate-limiter-flexible",
            "{\"a\\u001b[31m\\u202e\": 1, \"points\": \"\\u0007\"}",
        ),
        (
            "envoy",
            "domain: \"a\\e[31m\"\ndescriptors: [{key: \"b\\a\\u202e\", rate_limit: {unit: \"x\\e\"}}]\n",
        ),
        (
            "sentinel",
            "[{\"resource\": \"a\\u001b[31m\\u202e\", \"count\": \"\\u0007\"}]",
        ),
    ];
    for (format, text) in files {
        let file = directory.join(format);
        fs::write(&file, text).unwrap();
        said.push(shell(&["import", format, file.to_str().unwrap()]));
        said.push(shell(&["check", file.to_str().unwrap()]));
    }
    said.push(shell(&[
        "simulate",
        "--rules",
        rules.to_str().unwrap(),
        trace.to_str().unwrap(),
    ]));
    drop(server);
    said.push(shell(&["usage", usage.to_str().unwrap()]));
    let mut faults = Vec::new();
    for (command, out, error) in said {
        assert!(
            !out.is_empty() || !error.is_empty(),
            "{command} printed nothing"
        );
        // A key has a line feed, and no line of the output begins with what follows it.
        let forged = |text: &str| text.lines().any(|line| line.starts_with("WARN forged"));
        for text in [out, error] {
            if text.chars().any(acts) || forged(&text) {
                faults.push(format!("{command:?}: {text:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
