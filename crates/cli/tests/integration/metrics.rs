//! `tidegate metrics` as a user runs it.
#![cfg(feature = "sim")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

/// 2018-06-26 07:41:44 UTC.
const START: u64 = 1_529_998_904;

/// A separate log for a test: in each second from `first` on, all inbound traffic and one resource.
fn log(name: &str, first: u64, seconds: u64) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let line = |second: u64, resource: &str| {
        let pass = second - first + 1;
        format!("{second}000|2018-06-26 07:41:44|{resource}|{pass}|2|3|1|40|0|5|0\n")
    };
    let both = |second| line(second, "__total_inbound_traffic__") + &line(second, "GET:/orders");
    fs::write(
        &path,
        (first..first + seconds).map(both).collect::<String>(),
    )
    .unwrap();
    path
}

fn metrics(files: &[&Path], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("metrics")
        .args(files)
        .args(args)
        .output()
        .unwrap()
}

fn told(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn shown(output: &Output) -> &str {
    assert!(output.status.success(), "{}", told(output));
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The passes in the lines, read as JSON.
fn passes(files: &[&Path], args: &[&str]) -> Vec<u64> {
    let output = metrics(
        files,
        &[args, &["--format", "json", "--resource", "GET:/orders"]].concat(),
    );
    let value = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["pass"]
            .as_u64()
            .unwrap()
    };
    shown(&output).lines().map(value).collect()
}

#[test]
fn a_table_has_one_row_for_each_line() {
    let log = log("table.log", START, 1);
    assert_eq!(
        shown(&metrics(&[&log], &[])),
        "\
TIME (UTC)           RESOURCE                      PASS    BLOCK  SUCCESS  EXCEPTION    RT MS  IN FLIGHT
2018-06-26 07:41:44  __total_inbound_traffic__        1        2        3          1       40          5
2018-06-26 07:41:44  GET:/orders                      1        2        3          1       40          5
"
    );
}

#[test]
fn json_has_every_field_of_the_line() {
    let log = log("fields.log", START, 1);
    let output = metrics(&[&log], &["--format", "json", "-r", "GET:/orders"]);
    let line: Value = serde_json::from_str(shown(&output)).unwrap();
    let expected = serde_json::json!({
        "at_ms": START * 1_000, "resource": "GET:/orders", "pass": 1, "block": 2, "success": 3, "exception": 1,
        "rt_ms": 40, "occupied": 0, "concurrency": 5, "class": 0,
    });
    assert_eq!(line, expected);
}

#[test]
fn a_span_of_time_can_be_written_in_each_way() {
    let log = log("span.log", START, 5);
    for (from, to) in [
        ("2018-06-26T07:41:45Z", "2018-06-26T09:41:47.5+02:00"),
        ("2018-06-26 07:41:45", "2018-06-26 07:41:47"),
        ("1529998905", "1529998907"),
        ("1529998905999", "1529998907000"),
    ] {
        assert_eq!(
            passes(&[&log], &["--from", from, "--to", to]),
            [2, 3, 4],
            "{from} {to}"
        );
    }
    assert_eq!(passes(&[&log], &["--from", "1529998907"]), [4, 5]);
    assert_eq!(passes(&[&log], &["--to", "1529998905"]), [1, 2]);
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the command reads the same clock"
)]
fn a_time_ago_counts_from_now() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let log = log("ago.log", now - 1_800, 3);
    assert_eq!(passes(&[&log], &["--from", "-2h"]), [1, 2, 3]);
    assert_eq!(
        passes(&[&log], &["--from=-1d12h", "--to", "-10m"]),
        [1, 2, 3]
    );
    assert_eq!(
        passes(&[&log], &["--from", "-10m", "--to", "now"]),
        [0_u64; 0]
    );
}

#[test]
fn rotated_files_are_read_as_one_log_and_index_files_are_ignored() {
    let (first, second) = (
        log("rotated.log.2018-06-26", START, 2),
        log("rotated.log.2018-06-26.1", START + 2, 1),
    );
    let index = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rotated.log.2018-06-26.idx");
    // The second second begins after two lines.
    let offset = fs::read_to_string(&first)
        .unwrap()
        .split_inclusive('\n')
        .take(2)
        .map(str::len)
        .sum::<usize>();
    let entries = [START, 0, START + 1, offset as u64];
    fs::write(&index, entries.map(u64::to_be_bytes).concat()).unwrap();
    assert_eq!(passes(&[&second, &index, &first], &[]), [1, 2, 1]);
    assert_eq!(
        passes(&[&second, &index, &first], &["--from", "1529998905"]),
        [2, 1]
    );
}

#[test]
fn lines_that_cannot_be_read_are_left_out_and_counted() {
    let log = log("bad.log", START, 1);
    let text = fs::read_to_string(&log).unwrap();
    fs::write(
        &log,
        format!("nonsense\n{text}1529998905000|2018-06-26 07:41:45|GET:/ord"),
    )
    .unwrap();
    let output = metrics(&[&log], &["--format", "json"]);
    assert_eq!(shown(&output).lines().count(), 2);
    assert!(
        told(&output).contains("2 lines could not be read"),
        "{}",
        told(&output)
    );
}

#[test]
fn errors_say_what_to_do() {
    let log = log("good.log", START, 1);
    let refused = |files: &[&Path], args: &[&str]| {
        let output = metrics(files, args);
        assert!(!output.status.success() && output.stdout.is_empty());
        told(&output).to_owned()
    };
    let missing = refused(&[&log, Path::new("/nonexistent/app.log")], &[]);
    assert!(
        missing.contains("cannot read /nonexistent/app.log"),
        "{missing}"
    );
    let other = refused(
        &[Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/Cargo.toml"
        ))],
        &[],
    );
    assert!(other.contains("is one of a metric log"), "{other}");
    let directory = refused(&[Path::new(env!("CARGO_TARGET_TMPDIR"))], &[]);
    assert!(directory.contains("name the files in it"), "{directory}");
    let time = refused(&[&log], &["--from", "yesterday"]);
    assert!(
        time.contains("2026-03-14T15:09:26Z") && time.contains("-15m"),
        "{time}"
    );
    let backwards = refused(&[&log], &["--from", "1529998905", "--to", "1529998904"]);
    assert!(
        backwards.contains("2018-06-26 07:41:45) is later"),
        "{backwards}"
    );
    refused(&[], &[]);

    let nothing = metrics(&[&log], &["--resource", "other"]);
    assert!(
        shown(&nothing).is_empty() && told(&nothing).contains("without --resource"),
        "{}",
        told(&nothing)
    );
}

#[test]
fn control_characters_in_names_are_escaped() {
    let log = log("escape.log", START, 1);
    let text = fs::read_to_string(&log)
        .unwrap()
        .replace("GET:/orders", "a\u{1b}[2Jb");
    fs::write(&log, text).unwrap();
    let output = metrics(&[&log], &[]);
    assert!(
        shown(&output).contains("a\\u{1b}[2Jb"),
        "{}",
        shown(&output)
    );
}
