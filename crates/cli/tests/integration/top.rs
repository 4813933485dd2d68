//! `tidegate top` and `tidegate rules` with a real server, as scripts use them.
#![cfg(feature = "top")]

#[cfg(target_os = "linux")]
use crate::certificates;
use crate::program;
#[cfg(target_os = "linux")]
use crate::terminal;

use std::fs;

use program::{Serving, scratch, tidegate};

const RULES: &str = "limits:
  - {name: busy, limit: 2/1h, algorithm: sliding-log}
  - {name: calm, limit: 5/1m, algorithm: token-bucket, burst: 7, shadow: true, overrides: {\"a b\": {limit: 9/1m}}, deny: [eve]}
";

fn said(arguments: &[&str], server: &str) -> (Option<i32>, String, String) {
    let output = tidegate()
        .args(arguments)
        .args(["--server", server, "--timeout", "20s"])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
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
        lines[1].starts_with("busy")
            && lines[1].contains("2/1h")
            && lines[1].ends_with("100% alice"),
        "{table}"
    );
    assert!(lines[2].starts_with("calm (shadow)"), "{table}");
    let (_, filtered, _) = said(&["top", "--once", "--filter", "cal"], &server.admin);
    assert_eq!(filtered.lines().count(), 2, "{filtered}");
    let (code, line, _) = said(&["top", "--once", "--format", "json"], &server.admin);
    let overview: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
    assert_eq!((code, line.lines().count()), (Some(0), 1));
    assert_eq!(
        (
            &overview["limits"][0]["denied"],
            &overview["limits"][0]["heaviest"]["key"]
        ),
        (&1.into(), &"alice".into())
    );
}

#[test]
fn errors_say_what_to_do() {
    let server = serving("top-errors");
    let (code, _, error) = said(&["top"], &server.admin);
    assert!(code == Some(2) && error.contains("--once"), "{error}");
    for once in [
        &["top", "--once"][..],
        &["top", "--once", "--format", "json"],
    ] {
        let (code, _, error) = said(once, &server.http);
        assert!(code == Some(3) && error.contains("(--admin)"), "{error}");
    }
    let (code, _, error) = said(&["top", "--once"], &server.resp);
    assert!(
        code == Some(3) && error.contains("the address of the server's --admin"),
        "{error}"
    );
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
    let text = "limits:
  - {name: warns, limit: 2/1h, algorithm: sliding-log, thresholds: [80%, 100%], max_keys: 9, when_full: deny, \
                on_expiry: release, match: {\"path\": \"/a*\"}, by: [\"ip\",\"path\"], soft: true}
";
    let text = text.replace("                ", "");
    fs::write(&again, &text).unwrap();
    let third = Serving::with(&["--rules", again.to_str().unwrap()]);
    assert_eq!(said(&["rules"], &third.admin).1, text);
    let (code, json, _) = said(&["rules", "--format", "json"], &server.admin);
    assert!(code == Some(0) && json.contains("\"max_keys\""), "{json}");
}

/// Runs a command; its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = tidegate().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
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
    let (code, _, error) = run(&[
        "record",
        "--server",
        &server.admin,
        "-o",
        file,
        "--timeout",
        "20s",
    ]);
    assert_eq!(code, Some(0), "{error}");
    let candidate = directory.join("candidate.yaml");
    fs::write(
        &candidate,
        "limits: [{name: busy, limit: 1/1h, algorithm: sliding-log}]\n",
    )
    .unwrap();
    let candidate = candidate.to_str().unwrap();
    let (code, table, error) = run(&["simulate", file, "--rules", candidate]);
    assert_eq!(code, Some(0), "{error}");
    let row = |name: &str| {
        let line = table
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {table}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(
        table.contains("in place of {algorithm: sliding-log, limit: 2/1h}"),
        "{table}"
    );
    assert_eq!(
        row("denied of 3 requests")[4..],
        ["1", "(33.333%)", "2", "(66.667%)"]
    );
    assert_eq!(row("alice"), ["alice", "3", "1", "2"]);
    // The same from the server itself, as JSON, and from a packed file.
    let from = [
        "simulate",
        "--server",
        &server.admin,
        "--timeout",
        "20s",
        "--rules",
        candidate,
        "--format",
        "json",
    ];
    let (_, told, error) = run(&from);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{error}"));
    assert_eq!(told["limits"][0]["would_deny"]["requests"], 2);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &fs::read(file).unwrap()).unwrap();
    let gz = directory.join("trace.gz");
    fs::write(&gz, packed.finish().unwrap()).unwrap();
    assert!(
        run(&["simulate", gz.to_str().unwrap(), "--rules", candidate])
            .1
            .contains("denied of 3 requests")
    );
    // A trace is a log, too.
    let (code, told, error) = run(&[
        "simulate",
        file,
        "--limit",
        "2/1h",
        "--algorithm",
        "sliding-log",
        "--format",
        "json",
    ]);
    assert_eq!(code, Some(0), "{error}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let algorithm = &told["trials"][0]["results"][0];
    assert_eq!(
        (&algorithm["admitted"], &algorithm["denied"]),
        (&4.into(), &2.into()),
        "{told}"
    );
    assert!(error.contains("the trace has 100% of all keys"), "{error}");
}

#[test]
fn a_trace_that_cannot_be_had_is_told_with_what_to_do() {
    let server = serving("top-no-trace");
    let directory = scratch("top-no-trace-file");
    let file = directory.join("trace.jsonl");
    fs::write(&file, "kept").unwrap();
    let (code, _, error) = run(&[
        "record",
        "--server",
        &server.admin,
        "-o",
        file.to_str().unwrap(),
        "--timeout",
        "20s",
    ]);
    assert!(
        code == Some(3) && error.contains("--trace-keys 10%"),
        "{error}"
    );
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "kept",
        "it was replaced by nothing"
    );
    assert_eq!(
        fs::read_dir(&directory).unwrap().count(),
        1,
        "nothing is left beside it"
    );
    let (code, _, error) = run(&[
        "record",
        "--server",
        &server.resp,
        "-o",
        "-",
        "--timeout",
        "20s",
    ]);
    assert!(
        code == Some(3) && error.contains("(--admin)") | error.contains("--admin"),
        "{error}"
    );
    let (code, _, error) = run(&[
        "simulate",
        "--server",
        &server.admin,
        "--timeout",
        "20s",
        "--limit",
        "1/1s",
    ]);
    assert!(
        code == Some(1) && error.contains("--trace-keys 10%"),
        "{error}"
    );
    let cut = directory.join("cut.jsonl");
    let head = r#"{"tidegate_trace":1,"share":"10%","fresh":true,"from":"1.0","until":"9.0"}"#;
    fs::write(&cut, format!("{head}\n")).unwrap();
    let (code, _, error) = run(&["simulate", cut.to_str().unwrap(), "--limit", "1/1s"]);
    assert!(
        code == Some(1) && error.contains("no requests yet"),
        "{error}"
    );
    fs::write(&cut, "{\"tidegate_trace\":9}\n").unwrap();
    assert!(
        run(&["simulate", cut.to_str().unwrap(), "--limit", "1/1s"])
            .2
            .contains("format 9")
    );
    assert_eq!(run(&["serve", "--trace-keys", "10"]).0, Some(2));
    assert_eq!(
        run(&["serve", "--trace-keys", "10%", "--trace-memory", "1KiB"]).0,
        Some(2)
    );
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use std::{fs, time::Duration};

    use serde_json::{Value, json};

    use super::{
        RULES,
        certificates::Authority,
        program::{Serving, scratch},
        said,
        terminal::{Control, Terminal},
    };

    const ENTER: &str = "\r";
    const ESC: &str = "\u{1b}";
    const BACKSPACE: &str = "\u{7f}";

    fn limit(name: &str, admitted: f64, denied: f64, key: &str) -> Value {
        json!({
            "name": name, "algorithm": "token-bucket", "quota": "100/1m", "options": "burst: 20", "global": false,
            "shadow": name == "trial", "sharing": "local", "keys": 12, "max_keys": 1000, "bytes": 4096, "allowed": 900,
            "delayed": 0, "denied": 100, "shadow_denied": 7, "errors": 0, "waiting": 3, "waited": 25, "admitted_per_second": admitted,
            "denied_per_second": denied, "recent": {"end": 9, "admitted": vec![1; 60], "denied": (0..60).collect::<Vec<_>>()},
            "heaviest": {"key": key, "share": 0.25},
        })
    }

    fn control() -> Control {
        let limits = vec![
            limit("per-ip", 120.0, 0.5, "10.0.0.1"),
            limit("logins", 3.0, 40.0, "eve\u{1b}[31m"),
            limit("trial", 12_345.0, 12.0, "alice"),
        ];
        let top = json!({
            "limit_name": "logins", "seconds": 61.0, "one_in": 4, "names": 1000, "requests": 10, "denials": 5,
            "asked_most": [{"key": "bob", "count": 90, "at_least": 80, "at_most": 100}],
            "denied_most": [
                {"key": "eve", "count": 40, "at_least": 40, "at_most": 40, "since_ms": 1},
                {"key": "\u{fffd}", "not_utf8": true, "count": 3, "at_least": 3, "at_most": 3},
            ],
        });
        let explained = json!({"facts": [
            {"name": "verdict", "text": "denied (quota), remaining 0 of 20"},
            {"name": "admitted in", "text": "1s500ms"},
            {"name": "what helps", "text": "time, or `tidegate reset logins eve\u{1b}[31m`"},
        ]});
        Control::new(limits, top, explained)
    }

    /// The names in the table, from above.
    fn names(lines: &[String]) -> Vec<&str> {
        lines[3..6]
            .iter()
            .filter_map(|line| line.split_whitespace().next())
            .collect()
    }

    #[test]
    fn the_overview_fits_80_by_24_with_most_denied_first_and_no_control_characters() {
        let control = control();
        let mut top = Terminal::new(&control, 80, 24);
        let lines = top.after("", &["per-ip", "q quit"]);
        assert_eq!(
            lines[0],
            format!("tidegate 0.1.0  {}  store up, 1 server", control.address)
        );
        assert_eq!(lines[1], "3 of 3 limits by denied per second");
        assert_eq!(lines[23], "Enter open  s sort  / filter  ? keys  q quit");
        for (line, words) in [
            (2, ["LIMIT", "ADMIT/s", "DENIED", "HEAVIEST"]),
            (3, ["logins", "100/1m", "40.0", "93%"]),
            (4, ["trial", "12.3k", "12.0", "25% alice"]),
            (5, ["per-ip", "120", "0.5", "25% 10.0"]),
        ] {
            assert!(
                words.iter().all(|word| lines[line].contains(word)),
                "{words:?} in {:?}",
                lines[line]
            );
        }
        // The escape sequence in the key is text.
        assert!(
            lines[3].contains("eve") && lines[3].ends_with("[31m"),
            "{lines:?}"
        );
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn limits_are_sorted_and_filtered_and_a_filter_can_be_removed() {
        let mut top = Terminal::new(&control(), 80, 24);
        assert_eq!(
            names(&top.after("", &["by denied per second"])),
            ["logins", "trial", "per-ip"]
        );
        for (by, expected) in [
            ("share denied", ["logins", "per-ip", "trial"]),
            ("admitted per second", ["trial", "per-ip", "logins"]),
            ("name", ["logins", "per-ip", "trial"]),
        ] {
            assert_eq!(
                names(&top.after("s", &[&format!("limits by {by}")])),
                expected,
                "{by}"
            );
        }
        top.after("/q-ip", &["filter: q-ip_"]);
        top.after(&BACKSPACE.repeat(4), &["filter: _"]);
        let lines = top.after(
            &format!("-ip{ENTER}"),
            &["1 of 3 limits by name, with `-ip`"],
        );
        assert_eq!(names(&lines), ["per-ip"]);
        top.after("/", &["filter: -ip_"]);
        assert_eq!(names(&top.after(ESC, &["3 of 3 limits"])).len(), 3);
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn a_limit_and_then_a_key_can_be_opened_and_closed() {
        let control = control();
        let mut top = Terminal::new(&control, 80, 24);
        top.after("", &["logins"]);
        let words = [
            "token-bucket 100/1m, burst: 20; sharing: local",
            "12 keys of 1,000",
            "Keys with most denials in the last 1m1s, one in 4 counted (Tab: most requests)",
            "eve",
            "exact",
        ];
        top.after(ENTER, &words);
        top.after("\t", &["80 to 100", "bob"]);
        top.after("\t", &["eve"]);
        let words = [
            "eve of logins",
            "verdict      denied (quota), remaining 0 of 20",
            "admitted in  1s500ms",
            "what helps   time, or `tidegate reset logins eve",
            "was denied 40 times in the last 1m1s",
        ];
        top.after(ENTER, &words);
        top.after(ESC, &["Keys with most denials"]);
        // The rules may lose a limit while it is on the screen.
        control
            .limits
            .lock()
            .unwrap()
            .retain(|limit| limit["name"] != "logins");
        top.after(ENTER, &["eve of logins"]);
        top.after(ESC, &["limit logins is no longer in the rules"]);
        assert_eq!(
            names(&top.after(ESC, &["2 of 2 limits"]))[..2],
            ["trial", "per-ip"]
        );
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn a_block_asks_for_how_long_and_why() {
        let control = control();
        let mut top = Terminal::new(&control, 80, 24);
        top.after("", &["logins"]);
        top.after("b", &["open a limit first"]);
        top.after(ENTER, &["eve"]);
        let asks = [
            "Block eve in logins?",
            "for:  1h_",
            "note: ",
            "Enter yes  Esc no",
        ];
        top.after("b", &asks);
        // Esc cancels, and other keys are text.
        top.without(ESC, "Block eve");
        top.after("u", &["Unblock eve in logins?", "note: _"]);
        top.without(ESC, "Unblock eve");
        assert_eq!(*control.changes.lock().unwrap(), []);
        let ever = ["for:  _ (until it is unblocked)"];
        top.after(&format!("b{}", BACKSPACE.repeat(2)), &ever);
        top.after(
            "2h\ttries passwords",
            &["for:  2h", "note: tries passwords_"],
        );
        top.after(ENTER, &["! blocked"]);
        top.after(&format!("utested{ENTER}"), &["! unblocked"]);
        // A key that is not text cannot be selected here.
        top.after("jb", &["! no key to block here"]);
        let of = |path: &str, more: serde_json::Value| {
            let mut body = json!({"limit": "logins", "key": "eve"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            (path.to_owned(), body)
        };
        assert_eq!(
            *control.changes.lock().unwrap(),
            [
                of("/v1/block", json!({"for": "2h", "note": "tries passwords"})),
                of("/v1/unblock", json!({"note": "tested"})),
            ]
        );
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn what_is_wrong_with_the_server_is_above_the_limits() {
        let control = control();
        control.conditions.lock().unwrap().push(json!({
            "name": "store", "state": "the store is down: refused\u{1b}[2J", "since_ms": 1, "effect": "requests are denied",
            "remedy": "check the store", "is_wrong": true,
        }));
        let mut top = Terminal::new(&control, 100, 24);
        let lines = top.after("", &["logins", "per-ip"]);
        assert!(
            lines[2].starts_with("WRONG: the store is down: refused")
                && lines[2].contains("[2J (since ")
                && lines[2].trim_end().ends_with("ago)"),
            "{lines:?}"
        );
        assert_eq!(lines[3].trim(), "requests are denied; check the store");
        assert!(lines[4].starts_with("LIMIT"), "{lines:?}");
        assert_eq!(top.ends("q"), Some(0));
        let (code, text, _) = said(&["top", "--once"], &control.address);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            code == Some(0)
                && lines[0].starts_with("WRONG: the store is down: refused\u{fffd}[2J (since ")
                && lines[1] == "  requests are denied; check the store"
                && lines[2].starts_with("LIMIT"),
            "{text}"
        );
        // A low screen has room for the state.
        let mut top = Terminal::new(&control, 100, 12);
        let lines = top.after("", &["logins", "per-ip"]);
        assert!(
            lines[2].starts_with("WRONG") && lines[3].starts_with("LIMIT"),
            "{lines:?}"
        );
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn a_real_server_says_what_is_wrong_with_its_certificate_rules_and_keys() {
        let directory = scratch("top-certificate");
        let ours = Authority::new(&directory, "ours");
        let in_three_days = Duration::from_hours(3 * 24);
        let [cert, key] = ours.issue_for("server", &["127.0.0.1"], in_three_days);
        let rules = directory.join("rules.yaml");
        fs::write(&rules, RULES).unwrap();
        let server = Serving::with(&[
            "--rules",
            rules.to_str().unwrap(),
            "--reload-interval",
            "100ms",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
        ]);
        let options = format!("--server https://{} --ca {}", server.admin, ours.file());
        let mut top = Terminal::with(&options, 180, 30);
        let certificate = [
            "warning: the certificate of --tls-cert expires in 3d (since ",
            "until then none; clients then refuse to connect; replace the file",
        ];
        top.after("", &certificate);
        fs::write(&rules, "limits:\n  - {name: busy, limit: 2}\n").unwrap();
        let rejected = [
            certificate[0],
            "warning: the rules were rejected: ",
            "line 2",
            "the previous rules stay active; correct the file",
        ];
        top.after("", &rejected);
        fs::write(&rules, RULES).unwrap();
        top.without("", "the rules were rejected");
        assert_eq!(top.ends("q"), Some(0));

        let small = "limits: [{name: small, limit: 1/1h, algorithm: sliding-log, max_keys: 8}]";
        fs::write(&rules, small).unwrap();
        let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
        let mut top = Terminal::with(&format!("--server {}", server.admin), 180, 30);
        top.after("", &["small"]);
        let forgotten = || {
            let metrics = server.get("/metrics");
            !metrics.contains("tidegate_keys_forgotten_exhausted_total{limit=\"small\"} 0\n")
        };
        let mut keys = 0..;
        while !forgotten() {
            let commands: Vec<String> = (0..500)
                .map(|_| format!("ACQUIRE small key-{}", keys.next().unwrap()))
                .collect();
            server.ask(&commands.join("\r\n"));
        }
        let words = [
            "WRONG: ",
            " forgotten because the table was full: small (the last ",
            "each of them may use its limit a second time; raise max_keys",
        ];
        top.after("", &words);
        assert_eq!(top.ends("q"), Some(0));
    }

    #[cfg(feature = "servers")]
    #[test]
    fn a_real_store_that_dies_and_returns_is_above_the_limits() {
        let mut store = tidegate_redis_servers::Server::start(&[]);
        let rules = scratch("top-store").join("rules.yaml");
        let limit = "limits: [{name: checkout, limit: 100/1h, on_error: closed}]";
        fs::write(&rules, limit).unwrap();
        let server = Serving::with(&[
            "--rules",
            rules.to_str().unwrap(),
            "--store",
            &store.address(),
        ]);
        let mut top = Terminal::with(&format!("--server {}", server.admin), 180, 30);
        top.after("", &["checkout", "store up, 1 server"]);
        let (code, _, error) = said(&["block", "checkout", "eve"], &server.admin);
        assert_eq!(code, Some(0), "{error}");
        store.kill();
        let down = [
            "WRONG: the store is down: ",
            "requests to checkout are denied (on_error: closed); check the store at ",
        ];
        top.after("", &down);
        // An innocent customer.
        server.ask("ACQUIRE checkout alice");
        top.after(ENTER, &["Keys with most denials", "alice"]);
        top.after(ENTER, &["denied (store-down)", "the return of the store"]);
        top.after("b", &["! a block does not help here"]);
        top.without("", "b block");
        store.start_again();
        let returned = [
            "store up",
            "warning: the store had lost blocks and overrides",
            "1 given again, 0 lost",
            "admitted, remaining",
            "b block  u unblock",
        ];
        top.after("", &returned);
        top.without("", "the store is down");
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn the_size_of_the_terminal_is_used_and_a_key_shows_all_keys() {
        let control = control();
        let mut top = Terminal::new(&control, 200, 50);
        let lines = top.after("", &["logins"]);
        // A column for each second: all but the first have denials.
        let bars = lines[3].chars().filter(|c| ('▁'..='█').contains(c)).count();
        assert_eq!(bars, 59, "{}", lines[3]);
        top.after("?", &["arrows, j k", "quit", "any key closes this"]);
        let lines = top.after(
            &format!("x{ENTER}"),
            &[
                "Keys with most denials",
                "Keys with most requests",
                "eve",
                "80 to 100",
            ],
        );
        let both = lines.iter().find(|line| line.contains("eve")).unwrap();
        assert!(both.contains("bob"), "{lines:?}");
        let bars = |line: &&String| line.chars().any(|c| ('▁'..='█').contains(&c));
        assert!(lines.iter().filter(bars).count() > 8, "{lines:?}");
        assert_eq!(top.ends("q"), Some(0));
    }

    #[test]
    fn small_screens_and_long_lists_are_drawn_without_a_panic() {
        let (name, key) = ("a".repeat(200), "b".repeat(200));
        let keys = json!([{"key": key, "count": 9, "at_least": 9, "at_most": 9}]);
        let top = json!({
            "limit_name": name, "seconds": 61.0, "one_in": 1, "names": 1, "requests": 9, "denials": 9, "asked_most": keys,
            "denied_most": keys,
        });
        let limits = (0..200).map(|_| limit(&name, 1.0, 1.0, &key)).collect();
        let control = Control::new(
            limits,
            top,
            json!({"facts": [{"name": "verdict", "text": "admitted"}]}),
        );
        for (columns, rows) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
            let top = Terminal::new(&control, columns, rows);
            let keys = format!("?xjG{ENTER}bn{ESC}{ENTER}b n{ESC}{ESC}{ESC}q");
            assert_eq!(top.ends(&keys), Some(0), "{columns} by {rows}");
        }
    }

    #[test]
    fn the_plain_text_has_a_line_for_each_limit() {
        let (code, text, _) = said(&["top", "--once"], &control().address);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((code, lines.len()), (Some(0), 4));
        assert!(
            lines[0].starts_with("LIMIT") && lines[1].starts_with("logins"),
            "{text}"
        );
        // A trend: sums of five seconds each, with the highest last.
        assert!(lines[1].contains('█') && !text.contains('\u{1b}'), "{text}");
    }
}
