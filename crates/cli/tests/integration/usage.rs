//! `serve --usage` and `usage` as an operator runs them.

use crate::program;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use program::{PATIENCE, Serving, request, scratch, tidegate};
use tidegate_redis_servers::eventually;

fn usage(directory: &Path, arguments: &[&str]) -> Output {
    let output = tidegate()
        .arg("usage")
        .arg(directory)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn lines(directory: &Path, arguments: &[&str]) -> Vec<String> {
    let output = usage(directory, arguments);
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn serve(directory: &Path) -> Serving {
    let rules = directory.join("rules.yaml");
    fs::write(
        &rules,
        "limits:
  - {name: tokens, limit: 100/1d, algorithm: fixed-window}
  - {name: all, limit: 1000/1d, global: true}
",
    )
    .unwrap();
    let usage = directory.join("usage");
    Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--usage",
        usage.to_str().unwrap(),
    ])
}

/// The only day of a ledger.
fn file_of(ledger: &Path) -> PathBuf {
    let mut days = fs::read_dir(ledger)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    days.next().unwrap()
}

#[test]
fn files_that_may_not_grow_have_whole_lines() {
    let directory = scratch("usage-full");
    let (rules, ledger) = (directory.join("rules.yaml"), directory.join("usage"));
    let audit = directory.join("audit.jsonl");
    fs::write(
        &rules,
        "limits: [{name: tokens, limit: 100/1d, algorithm: fixed-window}]",
    )
    .unwrap();
    // The system writes what fits into the bound, and then fails, as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate"), "serve"]);
    command.args([
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    for (option, path) in [
        ("--rules", &rules),
        ("--usage", &ledger),
        ("--audit", &audit),
    ] {
        command.arg(option).arg(path);
    }
    let server = Serving::run(&mut command);
    server.ask("ACQUIRE tokens alice 1");
    eventually("the use is written", || {
        ledger.is_dir() && lines(&ledger, &["--format", "csv"]).len() == 2
    });
    let before = fs::read(file_of(&ledger)).unwrap();
    for key in 0..40 {
        server.ask(&format!("ACQUIRE tokens key-{key} 1"));
        server.ask(&format!("BLOCK tokens key-{key}"));
    }
    server.logs("is missing in the audit file");
    server.signal("TERM");
    server.logs("since it was last written is lost");
    assert_eq!(server.ended(), Some(0));
    assert_eq!(fs::read(file_of(&ledger)).unwrap(), before);
    let text = fs::read_to_string(&audit).unwrap();
    assert!(text.ends_with('\n') && text.len() > 800, "{text}");
    for line in text.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[test]
fn a_directory_belongs_to_one_server() {
    let directory = scratch("usage-shared");
    let first = serve(&directory);
    let usage = directory.join("usage");
    let refused = tidegate()
        .args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--usage",
            usage.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    let holder = format!("the server with process id {} uses it", first.child.id());
    assert!(
        error.contains(&holder) && error.contains("--usage"),
        "{error}"
    );
}

#[test]
fn the_use_of_each_key_is_exact_after_a_kill() {
    let directory = scratch("usage-kill");
    let ledger = directory.join("usage");
    let csv = ["--format", "csv"];
    let header = "limit,key,used,requests,denied";
    let mut first = serve(&directory);
    for command in [
        "ACQUIRE tokens alice 60",
        "ACQUIRE tokens alice 60",
        "CHARGE tokens alice 70",
        "REFUND tokens alice 10",
        "PEEK tokens alice",
        "ACQUIRE all '' 3",
        "ACQUIRE tokens 'a,\"b' 1",
    ] {
        assert!(!first.ask(command).contains("ERR"), "{command}");
    }
    let reserved = request(
        &first.http,
        "POST",
        "/v1/reserve",
        r#"{"ttl": "1h", "all": [{"limit": "tokens", "key": "bob", "cost": 50}]}"#,
    );
    let id = reserved
        .split_once(r#""id":""#)
        .and_then(|(_, rest)| rest.split_once('"'))
        .unwrap()
        .0;
    request(
        &first.http,
        "POST",
        "/v1/settle",
        &format!(r#"{{"id": "{id}", "costs": [20]}}"#),
    );
    let expected = [
        header,
        "all,,3,1,0",
        "tokens,\"a,\"\"b\",1,1,0",
        "tokens,alice,120,2,1",
        "tokens,bob,20,1,0",
    ];
    eventually("the use is written", || {
        ledger.is_dir() && lines(&ledger, &csv) == expected
    });
    // Nothing has been used since the last write, so the kill loses nothing.
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    // A line that the kill tore, and a server that goes on in the same file.
    let file = file_of(&ledger);
    let torn = [fs::read(&file).unwrap(), b"{\"at\":\"2026-".to_vec()].concat();
    fs::write(&file, torn).unwrap();
    let second = serve(&directory);
    assert!(!second.ask("ACQUIRE tokens bob 30").contains("ERR"));
    // The last write is made when the server stops.
    second.signal("TERM");
    assert_eq!(second.ended(), Some(0));
    let output = usage(&ledger, &["--by", "limit", "--format", "jsonl"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "{\"at\":null,\"limit\":\"all\",\"key\":null,\"used\":3,\"requests\":1,\"denied\":0}\n\
         {\"at\":null,\"limit\":\"tokens\",\"key\":null,\"used\":171,\"requests\":5,\"denied\":1}\n"
    );
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("left out, as not whole: 1 line")
    );
}

#[test]
fn buckets_that_clients_bring_are_in_the_ledger() {
    let directory = scratch("usage-throttle");
    let ledger = directory.join("usage");
    let server = serve(&directory);
    for command in [
        "CL.THROTTLE alice 1 10 3600 2",
        "CL.THROTTLE alice 1 10 3600 2",
        "CL.THROTTLE alice 1 10 3600 0",
        "GCRA bob 5 10 60 TOKENS 3",
    ] {
        assert!(!server.ask(command).contains("ERR"), "{command}");
    }
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));
    assert_eq!(
        lines(&ledger, &["--format", "csv"]),
        [
            "limit,key,used,requests,denied",
            "CL.THROTTLE,alice,2,1,1",
            "CL.THROTTLE,bob,3,1,0",
        ]
    );
}

#[test]
fn a_range_and_a_period_are_chosen() {
    let directory = scratch("usage-range");
    let line = |at: &str, key: &str, used: i64| {
        format!(
            "{{\"at\":\"{at}:00:00Z\",\"limit\":\"l\",\"key\":{key},\"used\":{used},\"requests\":1,\"denied\":0}}\n"
        )
    };
    let text = [
        line("2026-02-28T23", "\"a\"", 1),
        line("2026-03-01T00", "\"a\"", 2),
        line("2026-03-01T01", "\"\\u001b[2J\"", 4),
        line("2026-03-01T01", "null", 8),
        line("2026-03-02T00", "\"a\"", 16),
    ];
    fs::write(directory.join("usage-2026-02-28.jsonl"), text.concat()).unwrap();
    let used = |arguments: &[&str]| {
        lines(
            &directory,
            &[arguments, &["--by", "limit", "--format", "csv"]].concat(),
        )
    };
    assert_eq!(used(&["--from", "2026-03-01"])[1..], ["l,30,4,0"]);
    assert_eq!(used(&["--to", "2026-03-01T01"])[1..], ["l,3,2,0"]);
    let days = used(&["--each", "day"]);
    assert_eq!(
        days,
        [
            "at,limit,used,requests,denied",
            "2026-02-28,l,1,1,0",
            "2026-03-01,l,14,3,0",
            "2026-03-02,l,16,1,0"
        ]
    );
    assert_eq!(
        used(&["--each", "month"])[1..],
        ["2026-02,l,1,1,0", "2026-03,l,30,4,0"]
    );
    assert_eq!(
        lines(
            &directory,
            &[
                "--from",
                "2026-03-01T01",
                "--to",
                "2026-03-02",
                "--each",
                "hour"
            ]
        ),
        [
            "at             limit  key        used  requests  denied",
            "2026-03-01T01  l      -          8     1         0",
            "2026-03-01T01  l      \\u{1b}[2J  4     1         0",
        ]
    );
    for wrong in ["yesterday", "2026-13-01", "2026-03-32", "2026-03-01T24"] {
        let refused = tidegate()
            .arg("usage")
            .arg(&directory)
            .args(["--from", wrong])
            .output()
            .unwrap();
        assert!(
            String::from_utf8(refused.stderr)
                .unwrap()
                .contains("write a date, as in 2026-11-25")
        );
    }
    let backwards = tidegate()
        .arg("usage")
        .arg(&directory)
        .args(["--from", "2026-03-02", "--to", "2026-03-01T05"])
        .output()
        .unwrap();
    assert_eq!(backwards.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&backwards.stderr).contains("swap them"));
    let refused = tidegate()
        .arg("usage")
        .arg(directory.join("none"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
}

/// The body of a request, which is answered with a status.
fn posted(stream: TcpStream, status: u16) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    reader.into_inner().write_all(answer.as_bytes()).unwrap();
    String::from_utf8(body).unwrap()
}

#[test]
#[cfg(feature = "webhook")]
fn a_webhook_gets_each_threshold_also_if_it_fails_first() {
    let rules = scratch("webhook").join("rules.yaml");
    fs::write(
        &rules,
        "limits: [{name: l, limit: 10/1d, algorithm: fixed-window, thresholds: [80%, 100%]}]",
    )
    .unwrap();
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    let server = Serving::with(&["--rules", rules.to_str().unwrap(), "--webhook", &url]);
    assert!(!server.ask("ACQUIRE l alice 8").contains("ERR"));
    assert!(!server.ask("ACQUIRE l alice 2").contains("ERR"));
    let mut next = |status| posted(receiver.accept().unwrap().0, status);
    // Several senders: what failed is sent again after the others.
    let bodies = [500, 200, 200].map(&mut next);
    let begins = [
        r#"{"limit":"l","key":"alice","percent":80,"used":8,"of":10,"time_ms":1"#,
        r#"{"limit":"l","key":"alice","percent":100,"used":10,"of":10,"time_ms":1"#,
    ];
    for begin in begins {
        let times = bodies.iter().filter(|body| body.starts_with(begin)).count();
        let failed = usize::from(bodies[0].starts_with(begin));
        assert_eq!(times, 1 + failed, "{bodies:?}");
    }
    eventually("the metrics say so", || {
        let page = server.get("/metrics");
        [("sent", 2), ("failed", 1), ("dropped", 0)]
            .iter()
            .all(|(result, count)| {
                page.contains(&format!(
                    "tidegate_webhook_events_total{{result=\"{result}\"}} {count}\n"
                ))
            })
    });
    let refused = tidegate()
        .args(["serve", "--webhook", "ftp://x"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(refused.stderr)
            .unwrap()
            .contains("such as https://example.com/hook")
    );
}
