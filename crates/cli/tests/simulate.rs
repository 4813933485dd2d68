//! `tidegate simulate` as a user runs it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Five requests of one client at once, twice, at the end of one window of 10 s and the start of the next; and one of
/// another client.
fn log() -> String {
    let line = |ip: &str, second: u32| {
        format!("{ip} - - [17/May/2015:10:05:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n")
    };
    [("10.0.0.1", 9, 5), ("10.0.0.1", 10, 5), ("10.0.0.2", 30, 1)]
        .into_iter()
        .flat_map(|(ip, second, count)| std::iter::repeat_n(line(ip, second), count))
        .collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn file(name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = path(name);
    fs::write(&path, contents).unwrap();
    path
}

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("simulate").args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap()
}

fn json(args: &[&str]) -> Vec<Value> {
    let output = simulate(&[args, &["--format", "json"]].concat());
    serde_json::from_str(stdout(&output)).unwrap()
}

fn failure(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn json_has_one_object_for_each_algorithm_with_the_promised_keys() {
    let log = file("objects.log", log());
    let found = json(&[log.to_str().unwrap(), "--limit", "5/10s", "--algorithm", "fixed-window,sliding-log"]);
    let expected = |algorithm: &str, admitted: u64, keys: u64, wrong: u64, worst: u64| {
        serde_json::json!({
            "algorithm": algorithm, "limit": "5/10s", "requests": 11, "keys": 2, "admitted": admitted,
            "denied": 11 - admitted, "denied_keys": keys, "wrongly_admitted": wrong, "wrongly_denied": 0,
            "worst_window": worst,
        })
    };
    assert_eq!(found, [expected("fixed-window", 11, 0, 5, 10), expected("sliding-log", 6, 1, 0, 5)]);
}

#[test]
fn all_six_algorithms_run_when_none_is_named() {
    let log = file("six.log", log());
    let found = json(&[log.to_str().unwrap(), "--limit", "5/10s", "--limit", "3/10s"]);
    let names: Vec<&str> = found.iter().map(|each| each["algorithm"].as_str().unwrap()).collect();
    let six =
        ["fixed-window", "sliding-log", "sliding-window", "sliding-counter", "token-bucket", "leaky-bucket"];
    assert_eq!(names, [six, six].concat());
    assert!(found[3]["estimate"]["mean_difference_billionths"].is_u64());
    assert!(found[5]["delays"]["longest_ms"].is_f64());
}

#[test]
fn the_table_is_for_a_person() {
    let log = file("table.log", log());
    let output = simulate(&[log.to_str().unwrap(), "--limit", "5/10s", "--algorithm", "sliding-log"]);
    let table = stdout(&output);
    assert!(
        table.contains("11 requests by 2 keys (ip), 2015-05-17 10:05:09 to 2015-05-17 10:05:30 UTC"),
        "{table}"
    );
    assert!(table.contains("45.5%"), "{table}");
    assert!(
        table.lines().any(|line| line.trim_start().starts_with("10.0.0.1") && line.ends_with('5')),
        "{table}"
    );
}

#[test]
fn standard_input_is_read_packed_too() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(log().as_bytes()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["simulate", "-", "--limit", "5/10s", "--format", "json", "--algorithm", "sliding-log"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&packed.finish().unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let found: Vec<Value> = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(found[0]["denied"], 5);
}

#[test]
fn lines_that_are_no_requests_are_named_and_the_rest_is_replayed() {
    let log = file("garbage.log", format!("{}no\u{1b}[2J request\n", log()));
    let output = simulate(&[log.to_str().unwrap(), "--limit", "5/10s", "--format", "json"]);
    let found: Vec<Value> = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(found[0]["requests"], 11);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("1 of 12 lines are no requests") && notes.contains("garbage.log:12:"), "{notes}");
    assert!(!notes.contains('\u{1b}'));
}

#[test]
fn a_report_is_one_page_that_obeys_nothing_of_the_log() {
    let evil = log().replace("\"curl\"", "\"<script>alert(1)</script>\"");
    let log = file("evil.log", evil);
    let page = path("report.html");
    let args =
        [log.to_str().unwrap(), "--limit", "2/10s", "--by", "user-agent", "--report", page.to_str().unwrap()];
    stdout(&simulate(&args));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"));
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let tags = |tag: &str| page.matches(tag).count();
    for (open, close) in [("<svg", "</svg>"), ("<table", "</table>"), ("<g", "</g>"), ("<div", "</div>")] {
        assert_eq!(tags(open), tags(close), "{open}");
    }
}

#[test]
fn made_up_traffic_is_the_same_for_a_seed_and_has_the_requests_asked_for() {
    let args =
        ["--synthetic", "--sources", "20", "--requests", "5000", "--arrival", "bursty", "--limit", "5/1s"];
    let one = json(&[&args[..], &["--threads", "1"]].concat());
    assert_eq!(one, json(&[&args[..], &["--threads", "3"]].concat()));
    assert_ne!(one, json(&[&args[..], &["--seed", "2"]].concat()));
    assert_eq!((&one[0]["requests"], &one[0]["keys"]), (&5_000.into(), &20.into()));
    let global = json(&[&args[..], &["--by", "global"]].concat());
    assert_eq!((&global[0]["requests"], &global[0]["keys"]), (&5_000.into(), &1.into()));
}

#[test]
fn a_suggested_limit_denies_little_enough() {
    let log = file("suggest.log", log());
    let log = log.to_str().unwrap();
    let args =
        [log, "--suggest", "--window", "10s", "--deny-keys", "0%", "--algorithm", "sliding-log,fixed-window"];
    let found = json(&args);
    let limits: Vec<&str> = found.iter().map(|each| each["limit"].as_str().unwrap()).collect();
    assert_eq!(limits, ["10/10s", "5/10s"]);
    assert!(found.iter().all(|each| each["denied"] == 0 && each["suggested"] == true));
    let half =
        json(&[log, "--suggest", "--limit", "1/10s", "--deny-requests", "50%", "--algorithm", "sliding-log"]);
    let limits: Vec<&str> = half.iter().map(|each| each["limit"].as_str().unwrap()).collect();
    assert_eq!(limits, ["1/10s", "5/10s"]);
    assert!(half[0].get("suggested").is_none() && half[1]["suggested"] == true);
}

#[test]
fn an_algorithm_that_no_limit_suits_leaves_the_others_their_suggestions() {
    let log = file("unattainable.log", log());
    // Five at once never fit into a bucket of one.
    let list = "token-bucket:burst=1,sliding-log";
    let args = [log.to_str().unwrap(), "--suggest", "--window", "10s", "--deny-keys", "0%", "--algorithm"];
    let output = simulate(&[&args[..], &[list]].concat());
    assert!(stdout(&output).contains("10/10s"));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("token-bucket:burst=1 denies more than 0% of the keys")
    );
    assert!(failure(&[&args[..], &["token-bucket:burst=1"]].concat()).contains("allow a larger share"));
}

#[test]
fn nodes_that_share_a_limit_tell_what_it_costs() {
    let args =
        ["--synthetic", "--sources", "1", "--requests", "20000", "--duration", "4s", "--limit", "3000/1s"];
    let args = [&args[..], &["--algorithm", "sliding-window,leaky-bucket", "--nodes", "4"]].concat();
    let leased = json(&args);
    let shared = &leased[0]["shared"];
    assert_eq!(
        (&shared["mode"], &shared["nodes"], &shared["over"]),
        (&"leased".into(), &4.into(), &0.into())
    );
    assert_eq!((&shared["round_trip_us"], &leased[1]["shared"]["mode"]), (&500.0.into(), &"exact".into()));
    let exact = json(&[&args[..], &["--mode", "exact"]].concat());
    let trips = |found: &[Value]| found[0]["shared"]["round_trips"].as_u64().unwrap();
    assert!(trips(&leased) * 4 < trips(&exact));
    let page = path("fleet.html");
    let args =
        [&args[..], &["--node-life", "1s", "--rtt", "2ms", "--report", page.to_str().unwrap()]].concat();
    let output = simulate(&args);
    let words = "4 nodes, leased, 2ms to the authority and back, each dying after 1s";
    assert!(stdout(&output).contains(words), "{}", stdout(&output));
    assert!(fs::read_to_string(page).unwrap().contains(words));
}

#[test]
fn a_wrong_argument_says_what_to_do() {
    let log = file("arguments.log", log());
    let log = log.to_str().unwrap();
    for (args, mend) in [
        (&[log][..], "--limit <N/DURATION>"),
        (&[log, "--limit", "5"], "a quota is N/duration"),
        (&[log, "--limit", "5/10s", "--algorithm", "windows"], "choose from fixed-window"),
        (&[log, "--limit", "5/10s", "--algorithm", "concurrency"], "such as sliding-window"),
        (&[log, "--limit", "5/10s", "--by", "user"], "choose from ip, path"),
        (&[log, "--limit", "5/10s", "--format-in", "csv"], "jsonl"),
        (&[log, "--limit", "2000000/10s", "--algorithm", "sliding-log"], "leave it out of --algorithm"),
        (&[log, "--limit", "5/10s", "--report", "no/such/dir/page.html"], "no/such/dir/page.html"),
        (&[log, "--suggest"], "--window 1m"),
        (&[log, "--suggest", "--window", "10s", "--deny-keys", "1"], "as in 1%"),
        (&[log, "--suggest", "--window", "0s"], "the window is zero"),
        (&[log, "--limit", "5/10s", "--sources", "5"], "cannot be used with"),
        (&["--synthetic", "--limit", "5/10s", "--by", "path"], "--by global"),
        (&["--synthetic", "--limit", "5/10s", "--sources", "0"], "from 1 to"),
        (&["--synthetic", "--limit", "5/10s", "--arrival", "smooth"], "choose poisson, bursty"),
        (&[log, "--limit", "5/10s", "--mode", "leased"], "--nodes <N>"),
        (&[log, "--limit", "5/10s", "--nodes", "0"], "from 1 to 1000"),
        (&[log, "--limit", "5/10s", "--nodes", "2", "--rtt", "1d"], "at most 1h"),
        (&["--limit", "5/10s"], "<FILE"),
        (&["no-such.log", "--limit", "5/10s"], "cannot open no-such.log"),
    ] {
        let message = failure(args);
        assert!(message.contains(mend), "{args:?}: {message}");
    }
}

#[test]
fn a_log_limit_too_high_for_a_log_leaves_it_out_of_the_default_set() {
    let log = file("high.log", log());
    let output = simulate(&[log.to_str().unwrap(), "--limit", "2000000/10s", "--format", "json"]);
    let found: Vec<Value> = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(found.len(), 5);
    assert!(String::from_utf8_lossy(&output.stderr).contains("sliding-log is left out of 2000000/10s"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["simulate", "--synthetic", "--requests", "1000", "--format", "json"])
        .args((1..400).flat_map(|limit| ["--limit".to_owned(), format!("{limit}/1s")]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // More is written than a pipe holds, so the command is still writing when the reader leaves.
    let mut first = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(first, "[\n");
}
