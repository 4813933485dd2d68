//! `tidegate simulate` as a user runs it.
#![cfg(feature = "sim")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tidegate_core::{Nanos, Policy};
use tidegate_server::{
    limits::{Act, Limits},
    rules,
};

/// Five concurrent requests of one client, twice: at the end of a window of 10 s and at the start
/// of the next; and one request of another client.
fn log() -> String {
    let line = |ip: &str, second: u32| {
        format!(
            "{ip} - - [17/May/2015:10:05:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n"
        )
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
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("simulate")
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The whole document, and the results of all trials in one list.
fn document(args: &[&str]) -> Value {
    let output = simulate(&[args, &["--format", "json"]].concat());
    serde_json::from_str(stdout(&output)).unwrap()
}

fn results(document: &Value) -> Vec<Value> {
    let trials = document["trials"].as_array().unwrap();
    trials
        .iter()
        .flat_map(|trial| trial["results"].as_array().unwrap().clone())
        .collect()
}

fn json(args: &[&str]) -> Vec<Value> {
    results(&document(args))
}

fn failure(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(!output.status.success() && output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn json_has_one_object_for_each_algorithm_with_the_documented_keys() {
    let log = file("objects.log", log());
    let mut found = json(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--algorithm",
        "fixed-window,sliding-log",
    ]);
    for row in &mut found {
        let over_time = row
            .as_object_mut()
            .unwrap()
            .remove("denied_over_time")
            .unwrap();
        let denied: u64 = over_time
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(row["denied"], denied);
    }
    let expected = |algorithm: &str, admitted: u64, keys: u64, wrong: u64, worst: u64| {
        serde_json::json!({
            "algorithm": algorithm, "limit": "5/10s", "requests": 11, "keys": 2, "admitted": admitted,
            "denied": 11 - admitted, "denied_keys": keys, "wrongly_admitted": wrong, "wrongly_denied": 0,
            "worst_window": worst,
        })
    };
    assert_eq!(
        found,
        [
            expected("fixed-window", 11, 0, 5, 10),
            expected("sliding-log", 6, 1, 0, 5)
        ]
    );
}

#[test]
fn all_six_algorithms_run_when_none_is_named() {
    let log = file("six.log", log());
    let found = json(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--limit",
        "3/10s",
    ]);
    let names: Vec<&str> = found
        .iter()
        .map(|each| each["algorithm"].as_str().unwrap())
        .collect();
    let six = [
        "fixed-window",
        "sliding-log",
        "sliding-window",
        "sliding-counter",
        "token-bucket",
        "leaky-bucket",
    ];
    assert_eq!(names, [six, six].concat());
    assert!(found[3]["estimate"]["mean_difference_billionths"].is_u64());
    assert!(found[5]["delays"]["longest_ms"].is_f64());
}

#[test]
fn the_table_is_readable() {
    let log = file("table.log", log());
    let output = simulate(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--algorithm",
        "sliding-log",
    ]);
    let table = stdout(&output);
    assert!(
        table
            .contains("11 requests by 2 keys (ip), 2015-05-17 10:05:09 to 2015-05-17 10:05:30 UTC"),
        "{table}"
    );
    assert!(table.contains("45.5%"), "{table}");
    assert!(
        table
            .lines()
            .any(|line| line.trim_start().starts_with("10.0.0.1") && line.ends_with('5')),
        "{table}"
    );
}

/// Every whole number in a JSON document, also those within its texts.
fn numbers_of(document: &Value, into: &mut BTreeSet<u64>) {
    match document {
        Value::Number(number) => into.extend(number.as_u64()),
        Value::String(text) => into.extend(
            text.split(|c: char| !c.is_ascii_digit() && c != ',')
                .filter_map(|word| word.replace(',', "").parse::<u64>().ok()),
        ),
        Value::Array(values) => values.iter().for_each(|value| numbers_of(value, into)),
        Value::Object(fields) => fields.values().for_each(|value| numbers_of(value, into)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[test]
fn json_has_every_count_that_the_table_and_the_report_show() {
    let page = path("complete.html");
    let args = [
        "--synthetic",
        "--sources",
        "700",
        "--requests",
        "60000",
        "--duration",
        "5m",
        "--seed",
        "7",
    ];
    let sharing = [
        "--limit",
        "60/1m",
        "--algorithm",
        "sliding-window,sliding-counter,leaky-bucket",
        "--nodes",
        "3",
    ];
    let suggestion = [
        "--suggest",
        "--window",
        "1m",
        "--deny-keys",
        "2%",
        "--algorithm",
        "token-bucket",
    ];
    for more in [&sharing[..], &suggestion] {
        let args = [&args[..], more].concat();
        let mut known = BTreeSet::new();
        numbers_of(&document(&args), &mut known);
        let output = simulate(&[&args[..], &["--report", page.to_str().unwrap()]].concat());
        let page = fs::read_to_string(&page).unwrap();
        // The texts between the tags of the page's body, without the charts: those draw
        // `requests_over_time` and `denied_over_time`, and label them with their differences.
        let body = page.split_once("</style>").unwrap().1;
        let texts = body
            .split("<svg")
            .filter_map(|part| part.rsplit("</svg>").next());
        let texts = texts
            .flat_map(|part| part.split('<'))
            .filter_map(|tag| Some(tag.split_once('>')?.1));
        let words = texts
            .chain(stdout(&output).lines())
            .flat_map(str::split_whitespace);
        let count = |word: &str| {
            word.trim_end_matches([',', ':', '.', ';'])
                .replace(',', "")
                .parse::<u64>()
                .ok()
        };
        let shown: BTreeSet<u64> = words.filter_map(count).collect();
        assert!(shown.len() > 40, "only {} counts are shown", shown.len());
        let missing: Vec<_> = shown.difference(&known).collect();
        assert!(missing.is_empty(), "{more:?}: not in JSON: {missing:?}");
    }
}

#[test]
fn compressed_standard_input_is_read() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(log().as_bytes()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args([
            "simulate",
            "-",
            "--limit",
            "5/10s",
            "--format",
            "json",
            "--algorithm",
            "sliding-log",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&packed.finish().unwrap())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let found = results(&serde_json::from_str(stdout(&output)).unwrap());
    assert_eq!(found[0]["denied"], 5);
}

#[test]
fn lines_that_are_not_requests_are_shown_and_the_rest_is_replayed() {
    let log = file("garbage.log", format!("{}no\u{1b}[2J request\n", log()));
    let output = simulate(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--format",
        "json",
    ]);
    let found = results(&serde_json::from_str(stdout(&output)).unwrap());
    assert_eq!(found[0]["requests"], 11);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(
        notes.contains("1 of 12 lines are not requests") && notes.contains("garbage.log:12:"),
        "{notes}"
    );
    assert!(!notes.contains('\u{1b}'));
}

#[test]
fn a_report_is_one_page_that_escapes_the_log() {
    let evil = log().replace("\"curl\"", "\"<script>alert(1)</script>\"");
    let log = file("evil.log", evil);
    let page = path("report.html");
    let args = [
        log.to_str().unwrap(),
        "--limit",
        "2/10s",
        "--by",
        "user-agent",
        "--report",
        page.to_str().unwrap(),
    ];
    stdout(&simulate(&args));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"));
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let tags = |tag: &str| page.matches(tag).count();
    for (open, close) in [
        ("<svg", "</svg>"),
        ("<table", "</table>"),
        ("<g", "</g>"),
        ("<div", "</div>"),
    ] {
        assert_eq!(tags(open), tags(close), "{open}");
    }
}

#[test]
fn synthetic_traffic_is_determined_by_its_seed_and_has_the_requested_number_of_requests() {
    let args = [
        "--synthetic",
        "--sources",
        "20",
        "--requests",
        "5000",
        "--arrival",
        "bursty",
        "--limit",
        "5/1s",
    ];
    let one = json(&[&args[..], &["--threads", "1"]].concat());
    assert_eq!(one, json(&[&args[..], &["--threads", "3"]].concat()));
    assert_ne!(one, json(&[&args[..], &["--seed", "2"]].concat()));
    assert_eq!(
        (&one[0]["requests"], &one[0]["keys"]),
        (&5_000.into(), &20.into())
    );
    let global = json(&[&args[..], &["--by", "global"]].concat());
    assert_eq!(
        (&global[0]["requests"], &global[0]["keys"]),
        (&5_000.into(), &1.into())
    );
}

#[test]
fn a_suggested_limit_denies_little_enough() {
    let log = file("suggest.log", log());
    let log = log.to_str().unwrap();
    let args = [
        log,
        "--suggest",
        "--window",
        "10s",
        "--deny-keys",
        "0%",
        "--algorithm",
        "sliding-log,fixed-window",
    ];
    let found = json(&args);
    let limits: Vec<&str> = found
        .iter()
        .map(|each| each["limit"].as_str().unwrap())
        .collect();
    assert_eq!(limits, ["10/10s", "5/10s"]);
    assert!(
        found
            .iter()
            .all(|each| each["denied"] == 0 && each["suggested"] == true)
    );
    let half = json(&[
        log,
        "--suggest",
        "--limit",
        "1/10s",
        "--deny-requests",
        "50%",
        "--algorithm",
        "sliding-log",
    ]);
    let limits: Vec<&str> = half
        .iter()
        .map(|each| each["limit"].as_str().unwrap())
        .collect();
    assert_eq!(limits, ["1/10s", "5/10s"]);
    assert!(half[0].get("suggested").is_none() && half[1]["suggested"] == true);
}

#[test]
fn an_algorithm_without_a_suitable_limit_does_not_affect_other_suggestions() {
    let log = file("unattainable.log", log());
    // Five concurrent requests never fit into a bucket of one.
    let list = "token-bucket:burst=1,sliding-log";
    let args = [
        log.to_str().unwrap(),
        "--suggest",
        "--window",
        "10s",
        "--deny-keys",
        "0%",
        "--algorithm",
    ];
    let output = simulate(&[&args[..], &[list]].concat());
    assert!(stdout(&output).contains("10/10s"));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("token-bucket:burst=1 denies more than 0% of the keys")
    );
    assert!(
        failure(&[&args[..], &["token-bucket:burst=1"]].concat()).contains("allow a larger share")
    );
}

#[test]
fn the_report_shows_the_cost_of_sharing_a_limit() {
    let args = [
        "--synthetic",
        "--sources",
        "1",
        "--requests",
        "20000",
        "--duration",
        "4s",
        "--limit",
        "3000/1s",
    ];
    let args = [
        &args[..],
        &["--algorithm", "sliding-window,leaky-bucket", "--nodes", "4"],
    ]
    .concat();
    let leased = json(&args);
    let shared = &leased[0]["shared"];
    assert_eq!(
        (&shared["mode"], &shared["nodes"], &shared["over"]),
        (&"leased".into(), &4.into(), &0.into())
    );
    assert_eq!(
        (&shared["round_trip_us"], &leased[1]["shared"]["mode"]),
        (&500.0.into(), &"exact".into())
    );
    let exact = json(&[&args[..], &["--mode", "exact"]].concat());
    let trips = |found: &[Value]| found[0]["shared"]["round_trips"].as_u64().unwrap();
    assert!(trips(&leased) * 4 < trips(&exact));
    let page = path("fleet.html");
    let args = [
        &args[..],
        &[
            "--node-life",
            "1s",
            "--rtt",
            "2ms",
            "--report",
            page.to_str().unwrap(),
        ],
    ]
    .concat();
    let output = simulate(&args);
    let words = "4 nodes, leased, 2ms to the authority and back, each dying after 1s";
    assert!(stdout(&output).contains(words), "{}", stdout(&output));
    assert!(fs::read_to_string(page).unwrap().contains(words));
}

#[test]
fn errors_about_arguments_say_what_to_do() {
    let log = file("arguments.log", log());
    let log = log.to_str().unwrap();
    for (args, mend) in [
        (&[log][..], "--limit 100/1m tries one"),
        (&[log, "--limit", "5"], "a quota is N/duration"),
        (
            &[log, "--limit", "5/10s", "--algorithm", "windows"],
            "choose from fixed-window",
        ),
        (
            &[log, "--limit", "5/10s", "--algorithm", "concurrency"],
            "such as sliding-window",
        ),
        (
            &[log, "--limit", "5/10s", "--by", "user"],
            "choose from ip, path",
        ),
        (&[log, "--limit", "5/10s", "--format-in", "xml"], "jsonl"),
        (
            &[log, "--limit", "2000000/10s", "--algorithm", "sliding-log"],
            "leave it out of --algorithm",
        ),
        (
            &[log, "--limit", "5/10s", "--report", "no/such/dir/page.html"],
            "no/such/dir/page.html",
        ),
        (&[log, "--rules", "no-such.yaml"], "no-such.yaml"),
        (
            &[log, "--rules", "no-such.yaml", "--limit", "5/10s"],
            "cannot be used with",
        ),
        (
            &[log, "--limit", "5/10s", "--from", "yesterday"],
            "2015-05-17",
        ),
        (
            &[log, "--limit", "5/10s", "--since", "2016-01-01"],
            "all 11 requests, from 2015-05-17 10:05:09",
        ),
        (
            &[log, "--limit", "5/10s", "--exclude", "path"],
            "as in path=/health*",
        ),
        (
            &[log, "--suggest", "--window", "10s", "--deny-keys", "1"],
            "as in 1%",
        ),
        (&[log, "--suggest", "--window", "0s"], "the window is zero"),
        (
            &[log, "--limit", "5/10s", "--sources", "5"],
            "cannot be used with",
        ),
        (
            &["--synthetic", "--limit", "5/10s", "--by", "path"],
            "--by global",
        ),
        (
            &["--synthetic", "--limit", "5/10s", "--sources", "0"],
            "from 1 to",
        ),
        (
            &["--synthetic", "--limit", "5/10s", "--arrival", "smooth"],
            "choose poisson, bursty",
        ),
        (
            &[log, "--limit", "5/10s", "--mode", "leased"],
            "--nodes <N>",
        ),
        (&[log, "--limit", "5/10s", "--nodes", "0"], "from 1 to 1000"),
        (
            &[log, "--limit", "5/10s", "--nodes", "2", "--rtt", "1d"],
            "at most 1h",
        ),
        (&["--limit", "5/10s"], "<FILE"),
        (
            &["no-such.log", "--limit", "5/10s"],
            "cannot open no-such.log",
        ),
    ] {
        let message = failure(args);
        assert!(message.contains(mend), "{args:?}: {message}");
    }
}

#[test]
fn a_log_limit_too_high_for_a_log_leaves_it_out_of_the_default_set() {
    let log = file("high.log", log());
    let output = simulate(&[
        log.to_str().unwrap(),
        "--limit",
        "2000000/10s",
        "--format",
        "json",
    ]);
    let found = results(&serde_json::from_str(stdout(&output)).unwrap());
    assert_eq!(found.len(), 5);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("sliding-log is left out of 2000000/10s")
    );
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args([
            "simulate",
            "--synthetic",
            "--requests",
            "1000",
            "--format",
            "json",
        ])
        .args((1..400).flat_map(|limit| ["--limit".to_owned(), format!("{limit}/1s")]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The output is longer than a pipe holds, so the command is still writing when the reader
    // closes it.
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    // On a busy machine it may have printed its progress.
    let told = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = told
        .lines()
        .filter(|line| !line.starts_with("replaying: "))
        .collect();
    assert!(output.status.success() && errors.is_empty(), "{told}");
    assert!(first.starts_with(b"{\"by\":"), "{first:?}");
}

#[test]
fn suggest_alone_recommends_one_limit_with_its_reason_and_its_line_of_a_rules_file() {
    let log = file("alone.log", log());
    let log = log.to_str().unwrap();
    let found = document(&[log, "--suggest", "--deny-keys", "0%"]);
    let recommended = &found["suggestion"]["recommended"];
    assert_eq!(
        (&recommended["algorithm"], &recommended["limit"]),
        (&"sliding-window".into(), &"10/1m".into())
    );
    assert_eq!(
        recommended["yaml"],
        "- {name: per-ip, limit: 10/1m, algorithm: sliding-window, by: ip}"
    );
    assert!(
        recommended["reason"]
            .as_str()
            .unwrap()
            .starts_with("it never admits more than the limit")
    );
    let curve = recommended["curve"].as_array().unwrap();
    let at = |limit: u64| curve.iter().find(|point| point["limit"] == limit).unwrap();
    // Ten requests of one key in a minute.
    assert_eq!(
        (&at(5)["denied"], &at(8)["denied"], &at(10)["denied"]),
        (&5.into(), &2.into(), &0.into())
    );
    let busiest = &found["suggestion"]["busiest_window"][0];
    assert_eq!(
        (
            &busiest["window"],
            &busiest["requests"]["p50"],
            &busiest["requests"]["most"]
        ),
        (&"1m".into(), &1.into(), &10.into())
    );
    let output = simulate(&[log, "--suggest", "--deny-keys", "0%"]);
    let table = stdout(&output);
    assert!(
        table.contains("Begin with 10/1m and sliding-window: it never admits"),
        "{table}"
    );
    assert!(
        table.contains("  - {name: per-ip, limit: 10/1m, algorithm: sliding-window, by: ip}"),
        "{table}"
    );
    assert!(
        table.contains("requests of a key in its busiest 1m: p50 1, p90 10"),
        "{table}"
    );
}

#[test]
fn excluded_requests_and_those_outside_the_time_range_are_not_replayed() {
    let log = file("exclude.log", log());
    let args = [
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--algorithm",
        "sliding-log",
    ];
    let requests = |more: &[&str]| {
        let document = document(&[&args[..], more].concat());
        (
            document["trials"][0]["requests"].as_u64().unwrap(),
            document["excluded"].as_u64().unwrap(),
        )
    };
    assert_eq!(requests(&[]), (11, 0));
    assert_eq!(requests(&["--exclude", "ip=10.0.0.1"]), (1, 10));
    assert_eq!(
        requests(&["--exclude", "ip=10.0.0.9", "--exclude", "user-agent=c*l"][..2]),
        (11, 0)
    );
    assert_eq!(requests(&["--from", "2015-05-17T10:05:10Z"]), (6, 5));
    assert_eq!(
        requests(&[
            "--since",
            "2015-05-17T10:05:10Z",
            "--until",
            "2015-05-17T10:05:30Z"
        ]),
        (5, 6)
    );
    assert!(
        failure(&[&args[..], &["--exclude", "path=/*"]].concat())
            .contains("see --from, --to and --exclude")
    );
}

#[test]
fn the_clients_of_a_vhost_combined_log_are_not_its_servers() {
    let log = file(
        "vhost.log",
        log().replace("10.0.0.", "www.example.com:80 10.0.0."),
    );
    let found = document(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--algorithm",
        "sliding-log",
    ]);
    assert_eq!(
        (
            &found["trials"][0]["keys"],
            &found["trials"][0]["most_denied"][0]["key"]
        ),
        (&2.into(), &"10.0.0.1".into())
    );
    assert!(
        found["source"]
            .as_str()
            .unwrap()
            .ends_with("(a vhost_combined access log)")
    );
}

#[test]
fn times_as_coarse_as_the_window_cause_a_warning_with_advice() {
    let log = file("coarse.log", log());
    let log = log.to_str().unwrap();
    let warnings = |args: &[&str]| document(&[&[log], args].concat())["warnings"].to_string();
    let warning = warnings(&["--limit", "5/1s"]);
    assert!(
        warning.contains("whole multiples of 1s") && warning.contains("a window of 10s or more"),
        "{warning}"
    );
    let start = ["--stamped", "start", "--limit"];
    assert_eq!(warnings(&[&start[..], &["5/10s"]].concat()), "[]");
    let spread = [&start[..], &["5/1s", "--spread"]].concat();
    assert_eq!(warnings(&spread), "[]");
    assert!(
        String::from_utf8_lossy(&simulate(&[log, "--limit", "5/1s"]).stderr)
            .contains("warning: the log's times")
    );
}

#[test]
fn a_report_can_be_standard_output_and_names_its_command() {
    let log = file("page.log", log());
    let output = simulate(&[log.to_str().unwrap(), "--limit", "5/10s", "--report", "-"]);
    let page = stdout(&output);
    assert!(
        page.starts_with("<!doctype html>") && page.ends_with("</html>\n"),
        "{page}"
    );
    assert!(
        page.contains("--limit 5/10s --report -</code> 20"),
        "{page}"
    );
    assert!(
        page.contains("5/10s denies 5 of 11 requests (45.5%) and touches 1 of 2 keys"),
        "{page}"
    );
    assert!(!Path::new("-").exists());
}

#[test]
fn a_report_shows_when_the_most_denied_keys_were_denied() {
    let log = file("heat.log", log());
    let output = simulate(&[
        log.to_str().unwrap(),
        "--limit",
        "5/10s",
        "--algorithm",
        "sliding-log",
        "--report",
        "-",
    ]);
    let page = stdout(&output);
    let row = page
        .lines()
        .find(|line| line.contains("class=\"heat-row\""))
        .unwrap();
    assert!(row.contains("aria-label=\"10.0.0.1\""), "{row}");
    // Five requests in one second are admitted, the next five denied: only they are in the key's
    // cells.
    let denied: u32 = row
        .split("<title>")
        .skip(1)
        .map(|cell| cell.split(' ').next().unwrap().parse::<u32>().unwrap())
        .sum();
    let asked: u32 = row
        .split(" of ")
        .skip(1)
        .map(|cell| cell.split(' ').next().unwrap().parse::<u32>().unwrap())
        .sum();
    assert_eq!((asked, denied), (10, 5), "{row}");
    // A key without denials has no row.
    assert_eq!(page.matches("class=\"heat-row\"").count(), 1);
}

#[test]
fn each_limit_of_a_rules_file_is_replayed_on_its_requests() {
    let line = |ip: &str, second: u32, request: &str| {
        format!(
            "{ip} - - [17/May/2015:10:05:{second:02} +0000] \"{request} HTTP/1.1\" 200 5 \"-\" \"curl\"\n"
        )
    };
    let mut text = String::new();
    for second in 0..10 {
        text += &line("10.0.0.1", second, "POST /login?x=1");
        text += &line("10.0.0.2", second, "GET /login");
        text += &line("10.0.0.3", second, "POST /login");
        text += &line("10.0.0.4", second, "GET /static/a.css");
    }
    let log = file("rules.log", text);
    let rules = file(
        "rules.yaml",
        "limits:
  - {name: logins, limit: 4/1m, match: {path: /login, method: POST}, by: ip, overrides: {\"10.0.0.3\": 7/1m}}
  - {name: pages, limit: 5/10s, algorithm: fixed-window, by: [method, path]}
  - {name: all, limit: 35/1m, global: true, shadow: true}
  - {name: nobody, limit: 1/1s, match: {path: /none*}}
  - {name: permits, limit: 5, algorithm: concurrency}
",
    );
    let args = [
        log.to_str().unwrap(),
        "--rules",
        rules.to_str().unwrap(),
        "--exclude",
        "path=/static/*",
    ];
    let found = document(&args);
    let trials: Vec<(&str, u64, u64, u64)> = found["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| {
            let number = |value: &Value| value.as_u64().unwrap();
            (
                trial["name"].as_str().unwrap(),
                number(&trial["requests"]),
                number(&trial["keys"]),
                number(&trial["results"][0]["denied"]),
            )
        })
        .collect();
    let expected = [
        ("logins", 10, 1, 6),
        ("logins, 10.0.0.3", 10, 1, 3),
        // POST /login has 20 requests in one window, GET /login 10; the window begins at 10:05:00.
        ("pages", 30, 2, 15 + 5),
        ("all", 30, 1, 0),
        ("nobody", 0, 0, 0),
    ];
    assert_eq!(trials, expected);
    assert_eq!(found["excluded"], 10);
    let warnings = found["warnings"].to_string();
    assert!(
        warnings.contains("nobody concerns none of 30 requests (path=/none*)"),
        "{warnings}"
    );
    assert!(warnings.contains("all is a shadow limit"), "{warnings}");
    let output = simulate(&args);
    assert!(
        stdout(&output).contains("logins (4/1m): 10 requests by 1 key"),
        "{}",
        stdout(&output)
    );
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("the limit permits is left out: concurrency")
    );
}

/// Reads the output of `--follow` until a line contains these words. It prints one line per second,
/// so a minute is enough.
fn line_with(lines: &mut impl Iterator<Item = std::io::Result<String>>, words: &str) -> String {
    let found = lines
        .take(60)
        .map(Result::unwrap)
        .find(|line| line.contains(words));
    found.unwrap_or_else(|| panic!("no line of the first sixty has {words:?}"))
}

fn following(args: &[&str]) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("simulate").args(args).arg("--follow");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_log_on_standard_input_is_followed_to_its_end_with_a_total() {
    let mut child = following(&["-", "--limit", "2/1h"]);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let log = log();
    let (first, second) = log.split_at(log.len() / 2);
    input.write_all(first.as_bytes()).unwrap();
    line_with(&mut lines, "requests");
    // The line that was cut in two is one request, and the limit's state continues from one second
    // to the next.
    input.write_all(second.as_bytes()).unwrap();
    input.write_all(b"nonsense\n").unwrap();
    drop(input);
    let sum = line_with(&mut lines, "in all");
    let says =
        "11 requests of 2 keys; sliding-window 2/1h denies 8 (72.7%) of 1 key; no requests: 1 line";
    assert!(sum.ends_with(says), "{sum}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_file_is_followed_from_its_end_and_through_its_rotation() {
    let path = file("followed.log", log());
    let mut child = following(&[
        path.to_str().unwrap(),
        "--limit",
        "1/1h",
        "--algorithm",
        "sliding-log",
        "--format",
        "json",
    ]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    line_with(&mut lines, "\"requests\":0");
    let line = log().lines().next().unwrap().to_owned() + "\n";
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(line.as_bytes())
        .unwrap();
    line_with(&mut lines, "\"requests\":1");
    fs::rename(&path, path.with_extension("1")).unwrap();
    fs::write(&path, line.repeat(3)).unwrap();
    let rotated = line_with(&mut lines, "\"requests\":3");
    let rotated: Value = serde_json::from_str(&rotated).unwrap();
    assert_eq!(
        rotated["limits"][0]["denied"], 3,
        "the key has used its limit before: {rotated}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn inputs_that_cannot_be_followed_are_refused() {
    assert!(failure(&["a.log", "b.log", "--limit", "1/1s", "--follow"]).contains("one log"));
    assert!(failure(&["a.log", "--suggest", "--follow"]).contains("--follow"));
    let mut child = following(&["-", "--limit", "2/1h"]);
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"nothing known\n")
        .unwrap();
    assert!(!child.wait().unwrap().success());
}

#[test]
fn lines_behind_what_a_collector_puts_in_front_give_the_same_result() {
    let plain = file("plain.log", log());
    let args = |log: &Path| json(&[log.to_str().unwrap(), "--limit", "5/10s"]);
    let expected = args(&plain);
    for (at, front) in [
        "2015-05-17T10:05:03.123456789Z stdout F ",
        "[pod/web-7d9/nginx] ",
        "web-1  | ",
        "<190>May 17 10:05:03 host nginx: ",
        "May 17 10:05:03 host nginx[71]: ",
        "[2015-05-17 10:05:03 +0000] [7] [INFO] ",
        "2015-05-17T10:05:03.123Z  INFO 1 --- [nio-8080-exec-1] o.a.c.AccessLog : ",
        "INFO:aiohttp.access:",
    ]
    .into_iter()
    .enumerate()
    {
        let wrapped: Vec<String> = log().lines().map(|line| format!("{front}{line}")).collect();
        assert_eq!(
            args(&file(&format!("wrapped-{at}.log"), wrapped.join("\n"))),
            expected,
            "{front}"
        );
    }
    let unknown: Vec<String> = log()
        .lines()
        .map(|line| {
            format!(
                "app INFO request no-address{}",
                &line[line.find(' ').unwrap()..]
            )
        })
        .collect();
    let log = file("unknown-front.log", unknown.join("\n"));
    let error = failure(&[log.to_str().unwrap(), "--limit", "5/10s"]);
    assert!(
        error.contains("is in no form that can be replayed: `app INFO request` stands in front"),
        "{error}"
    );
}

#[test]
fn a_report_never_replaces_what_is_read() {
    let log = file("kept.log", log());
    let link = path("kept-link.html");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&log, &link).unwrap();
    let before = fs::read(&log).unwrap();
    for report in [&log, &link] {
        let error = failure(&[
            log.to_str().unwrap(),
            "--limit",
            "5/10s",
            "--report",
            report.to_str().unwrap(),
        ]);
        assert!(
            error.contains("would overwrite") && error.contains("another name"),
            "{error}"
        );
    }
    assert_eq!(fs::read(&log).unwrap(), before);
}

#[test]
fn a_key_from_x_forwarded_for_needs_the_proxies_that_are_trusted() {
    let line = |list: &str| {
        format!(
            "10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\" \"{list}\"\n"
        )
    };
    let log = file(
        "forwarded.log",
        line("198.51.100.1, 192.0.2.7") + &line("192.0.2.8"),
    );
    let log = log.to_str().unwrap();
    let rules = file(
        "forwarded.yaml",
        "limits: [{name: a, limit: 1/1h, by: forwarded}]",
    );
    let by = [log, "--limit", "1/1h", "--by", "forwarded"];
    let with_rules = [log, "--rules", rules.to_str().unwrap()];
    for args in [&by[..], &with_rules] {
        let error = failure(args);
        assert!(
            error.contains("`forwarded` as a key needs --trusted-proxies"),
            "{error}"
        );
        let proxies = ["--trusted-proxies", "10.0.0.0/8"];
        let document = document(&[args, &proxies].concat());
        assert_eq!(document["trials"][0]["keys"], 2, "{document}");
        assert_eq!(document["samples"][0]["keys"][0], "192.0.2.7", "{document}");
    }
    let shares = [log, "--limit", "1/1h", "--shares", "by=forwarded"];
    let error = failure(&shares);
    assert!(error.contains("needs --trusted-proxies"), "{error}");
    let document = document(&[&shares[..], &["--trusted-proxies", "10.0.0.0/8"]].concat());
    let tenants = document["shares"][0]["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 2, "{document}");
}

#[test]
fn a_condition_on_a_field_that_no_line_has_is_refused() {
    let log = file("condition.log", log());
    let run = |condition: &str| {
        simulate(&[
            log.to_str().unwrap(),
            "--limit",
            "5/10s",
            "--exclude",
            condition,
        ])
    };
    let error = String::from_utf8(run("pathh=/x").stderr).unwrap();
    assert!(
        error.contains("no line has the field `pathh`") && error.contains("ip, path, method"),
        "{error}"
    );
    assert!(
        run("path=/x").status.success(),
        "it excludes nothing here, but it might"
    );
    let lines = "{\"time\":1,\"ip\":\"a\",\"uri\":\"/\"}\n{\"time\":2,\"ip\":\"a\",\"uri\":\"/\",\"kind\":\"x\"}\n";
    let log = file("condition.jsonl", lines);
    let run = |condition: &str| {
        simulate(&[
            log.to_str().unwrap(),
            "--limit",
            "5/10s",
            "--exclude",
            condition,
        ])
    };
    assert!(run("kind=x").status.success(), "one of the lines has it");
    assert!(
        String::from_utf8(run("knd=x").stderr)
            .unwrap()
            .contains("no line has the field `knd`")
    );
}

#[test]
fn keys_that_occur_once_cause_a_warning() {
    let lines: Vec<String> = (0..200)
        .map(|at| {
            format!(
                "10.0.{}.{} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\n",
                at / 100,
                at % 100
            )
        })
        .collect();
    let log = file("once.log", lines.join("\n"));
    let notes =
        String::from_utf8(simulate(&[log.to_str().unwrap(), "--limit", "5/10s"]).stderr).unwrap();
    assert!(
        notes.contains("200 keys in 200 requests")
            && notes.contains("Is `ip` what identifies a client"),
        "{notes}"
    );
}

#[test]
fn a_cost_of_a_trace_is_a_cost_and_not_as_many_requests() {
    // 300 s of a byte limit: each key takes 4 MB and then, too much for the rest of its window, 2
    // MB.
    let mut trace = Vec::from(
        *br#"{"tidegate_trace":1,"share":"100%","fresh":true,"from":"1790000000.0","until":"1790000300.0"}
{"limit":"bytes","rule":"{algorithm: sliding-window, limit: 5000000/1s}"}
"#,
    );
    for (at, cost) in (0..600).zip([4_000_000, 2_000_000].into_iter().cycle()) {
        let (second, half) = (1_790_000_000 + at / 2, at % 2);
        writeln!(
            trace,
            r#"{{"time":"{second}.{half}","limit":"bytes","key":"{:016x}","cost":{cost},"verdict":"admitted"}}"#,
            at / 2
        )
        .unwrap();
    }
    trace.extend_from_slice(b"{\"end\":600}\n");
    let trace = file("costs.jsonl", trace);
    let trace = trace.to_str().unwrap();
    let told = document(&[
        trace,
        "--limit",
        "5000000/1s",
        "--limit",
        "6000000/1s",
        "--algorithm",
        "sliding-window,sliding-counter,fixed-window,token-bucket",
    ]);
    for (trial, admitted, most) in [(0, 300, 4_000_000), (1, 600, 6_000_000)] {
        let results = told["trials"][trial]["results"].as_array().unwrap();
        assert_eq!(results.len(), 4);
        for result in results {
            let found = [
                &result["admitted"],
                &result["denied"],
                &result["worst_window"],
            ]
            .map(Value::as_u64);
            assert_eq!(
                found,
                [Some(admitted), Some(600 - admitted), Some(most)],
                "{result}"
            );
        }
    }
    let nodes = document(&[
        trace,
        "--limit",
        "5000000/1s",
        "--nodes",
        "1",
        "--mode",
        "exact",
        "--algorithm",
        "sliding-window",
    ]);
    assert!(
        results(&nodes)
            .iter()
            .all(|result| result["admitted"] == 300),
        "{nodes}"
    );
    assert!(failure(&[trace, "--suggest"]).contains("try limits with --limit"));
    for option in [
        &["--by", "global"][..],
        &["--format-in", "jsonl"],
        &["--time-field", "time"],
        &["--spread"],
        &["--zone", "+02:00"],
        &["--trusted-proxies", "10.0.0.0/8"],
    ] {
        let error = failure(&[&[trace, "--limit", "5000000/1s"], option].concat());
        assert!(error.contains("are for logs"), "{option:?}: {error}");
    }
    let log = file("beside-a-trace.log", log());
    let error = failure(&[log.to_str().unwrap(), trace, "--limit", "5/10s"]);
    assert!(error.contains("is replayed alone"), "{error}");
}

/// Runs `simulate` with this standard input.
fn piped(input: &[u8], args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("simulate")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its input does not read it all.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

const TRACE: &[u8] = br#"{"tidegate_trace":1,"share":"100%","fresh":true,"from":"1790000000.0","until":"1790000300.0"}
{"limit":"a","rule":"{algorithm: sliding-log, limit: 1/1h}"}
{"time":"1790000001.0","limit":"a","key":"0000000000000001","cost":1,"verdict":"admitted"}
{"time":"1790000002.0","limit":"a","key":"0000000000000001","cost":1,"verdict":"denied"}
{"end":2}
"#;

#[test]
fn a_trace_is_known_in_a_pipe_too_packed_or_not() {
    let rules = file("piped-trace.yaml", "limits: [{name: a, limit: 2/1h}]");
    let rules = rules.to_str().unwrap();
    for input in [TRACE.to_vec(), packed(TRACE)] {
        for path in ["-", "/dev/stdin"] {
            let output = piped(&input, &[path, "--rules", rules, "--format", "json"]);
            let found: Value = serde_json::from_str(stdout(&output)).unwrap();
            let limit = &found["limits"][0];
            // A log would have no limit of the server, and a request for each line with a time.
            assert_eq!(limit["denied"]["requests"], 1, "{path}: {found}");
            assert_eq!(limit["would_deny"]["requests"], 0, "{path}: {found}");
        }
        let log = file("beside-a-piped-trace.log", log());
        let output = piped(&input, &[log.to_str().unwrap(), "-", "--limit", "5/10s"]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains("standard input is a trace of a server"),
            "{told}"
        );
    }
    // The look at its beginning takes nothing of a log.
    for input in [log().into_bytes(), packed(log().as_bytes())] {
        for path in ["-", "/dev/stdin"] {
            let output = piped(&input, &[path, "--limit", "5/10s", "--format", "json"]);
            let found: Value = serde_json::from_str(stdout(&output)).unwrap();
            assert_eq!(found["lines"], 11, "{path}");
        }
    }
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let log = file("packed-follow.log.gz", packed(log().as_bytes()));
    let trace = file("follow.trace", TRACE);
    for (path, expected) in [(&log, "is packed"), (&trace, "is a trace of a server")] {
        let arguments = ["--limit", "5/10s", "--follow"];
        let told = failure(&[&[path.to_str().unwrap()], &arguments[..]].concat());
        assert!(told.contains(expected), "{told}");
        let output = piped(&fs::read(path).unwrap(), &[&["-"], &arguments[..]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains("standard input") && told.contains(expected),
            "{told}"
        );
    }
}

#[test]
fn an_option_that_would_have_no_effect_is_refused() {
    let log = file("no-effect.log", log());
    let log = log.to_str().unwrap();
    for (option, expected) in [
        (
            &["--trusted-proxies", "10.0.0.0/8"][..],
            "add --by forwarded",
        ),
        (&["--time-field", "ts"], "leave it out"),
        (&["--report", "-", "--format", "json"], "give it a file"),
        (&["--follow", "--top", "3"], "cannot be used with"),
    ] {
        let told = failure(&[&[log, "--limit", "5/10s"], option].concat());
        assert!(told.contains(expected), "{told}");
    }
    for option in [
        &["--spread"][..],
        &["--time-field", "ts"],
        &["--format-in", "csv"],
    ] {
        let told = failure(&[&["--synthetic", "--limit", "5/10s"], option].concat());
        assert!(told.contains("cannot be used with"), "{told}");
    }
}

#[test]
fn a_cost_that_is_charged_after_the_answer_overspends_by_what_was_in_flight() {
    // A request each 100 ms, which takes a second, and 200 of them within a minute.
    let lines = |tokens: u32| {
        let line = |at: u32| {
            let time = 1_431_857_100.0 + f64::from(at) / 10.0;
            format!(
                r#"{{"ts":{time},"user":"a","usage":{{"total_tokens":{tokens}}},"duration":1000}}"#
            ) + "\n"
        };
        (0..200).map(line).collect::<String>()
    };
    let admitted = |name: &str, tokens, more: &[&str]| {
        let log = file(name, lines(tokens));
        let args = [
            log.to_str().unwrap(),
            "--by",
            "user",
            "--limit",
            "1000/1m",
            "--algorithm",
            "fixed-window",
        ];
        let row = json(&[&args[..], &["--charge", "usage.total_tokens"], more].concat()).remove(0);
        (
            row["admitted"].as_u64().unwrap(),
            row["worst_window"].as_u64().unwrap(),
        )
    };
    // As a service that charges at once: the table in the book.
    for (tokens, pass) in [(100, 11), (300, 4), (1_200, 1)] {
        assert_eq!(
            admitted("charged.jsonl", tokens, &[]),
            (pass, pass * u64::from(tokens))
        );
    }
    // Until the fourth answer ends after 1.3 s, thirteen requests have come.
    assert_eq!(
        admitted("charged-late.jsonl", 300, &["--took", "duration:ms"]),
        (13, 3_900)
    );
    let log = file("charged.log", log());
    let log = log.to_str().unwrap();
    // Five bytes each: three requests exceed ten.
    let args = [
        log,
        "--limit",
        "10/1m",
        "--algorithm",
        "sliding-log,token-bucket",
        "--charge",
        "bytes",
    ];
    let denied: Vec<_> = json(&args)
        .iter()
        .map(|row| row["denied"].clone())
        .collect();
    assert_eq!(denied, [7, 7]);
    let table = simulate(&args);
    assert!(
        stdout(&table).contains("bytes charged after the answer"),
        "{}",
        stdout(&table)
    );
    let missing = failure(&[log, "--limit", "10/1m", "--charge", "usage.total_tokens"]);
    assert!(
        missing.contains("usage.total_tokens") && missing.contains("has bytes"),
        "{missing}"
    );
    // More than 32 bits.
    let large = |bytes: u64| {
        let line =
            |bytes: u64| format!(r#"{{"ts":1431857100,"ip":"10.0.0.1","bytes":{bytes}}}"#) + "\n";
        let log = file("charged-large.jsonl", [line(bytes), line(1)].concat());
        let args = ["--limit", "6000000000/1m", "--algorithm", "fixed-window"];
        simulate(&[&[log.to_str().unwrap(), "--charge", "bytes"][..], &args].concat())
    };
    let table = large(5_000_000_000);
    let table = stdout(&table);
    assert!(
        table.contains("cost 5000000000") && table.contains("5,000,000,001"),
        "{table}"
    );
    let told = String::from_utf8(large(1 << 53).stderr).unwrap();
    assert!(told.contains("1 of 2 lines are not requests"), "{told}");
    let rules = "limits: [{name: out, limit: 10/1m, algorithm: fixed-window}]";
    let rules = file("charged.yaml", rules);
    assert_eq!(
        json(&[log, "--rules", rules.to_str().unwrap(), "--charge", "bytes"])[0]["denied"],
        7
    );
}

#[test]
fn a_key_that_has_nearly_everything_is_warned_of() {
    let line =
        |ip: &str| format!("{ip} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\n");
    let log = file(
        "proxy.log",
        line("10.0.0.1").repeat(190) + &line("10.0.0.2").repeat(10),
    );
    let log = log.to_str().unwrap();
    let warned =
        |args: &[&str]| String::from_utf8(simulate(&[&[log], args].concat()).stderr).unwrap();
    let told = warned(&["--limit", "5/10s"]);
    assert!(
        told.contains("the key 10.0.0.1 has 190 of 200 requests") && told.contains("--by"),
        "{told}"
    );
    assert!(!warned(&["--limit", "5/10s", "--by", "global"]).contains("the key"));
    let rules = file("proxy.yaml", "limits: [{name: each, limit: 5/1s}]");
    let told = warned(&["--rules", rules.to_str().unwrap()]);
    assert!(
        told.contains("each: the key 10.0.0.1 has 190 of 200"),
        "{told}"
    );
}

/// Time in tenths of a second, cost, and whether a bucket of 10/1s admits it that lets costs of up to 40 wait.
#[test]
fn costs_above_the_limit_are_replayed_as_they_are_served() {
    let requests = [
        (0, 30, true),
        (10, 1, false),
        (20, 1, false),
        (21, 1, true),
        (100, 41, false),
        (100, 40, true),
        (129, 1, false),
        (131, 1, true),
    ];
    let mut trace = Vec::from(
        *br#"{"tidegate_trace":1,"share":"100%","fresh":true,"from":"1790000000.0","until":"1790000020.0"}
{"limit":"tokens","rule":"{algorithm: token-bucket, limit: 10/1s, oversize_wait: 3s}"}
"#,
    );
    for (tenths, cost, is_admitted) in requests {
        let (second, tenth) = (1_790_000_000 + tenths / 10, tenths % 10);
        let verdict = if is_admitted { "admitted" } else { "denied" };
        writeln!(
            trace,
            r#"{{"time":"{second}.{tenth}","limit":"tokens","key":"a","cost":{cost},"verdict":"{verdict}"}}"#,
        )
        .unwrap();
    }
    writeln!(trace, "{{\"end\":{}}}", requests.len()).unwrap();
    let trace = file("oversize.jsonl", trace);
    let denied = |options: &str| {
        let rule = format!("limits: [{{name: tokens, limit: 10/1s, algorithm: {options}}}]");
        let rules = file("oversize.yaml", rule);
        let found = document(&[trace.to_str().unwrap(), "--rules", rules.to_str().unwrap()]);
        found["limits"][0]["most_denied"][0]["would_deny"].clone()
    };
    let served = requests.iter().filter(|(.., admitted)| !admitted).count();
    assert_eq!(denied("token-bucket, oversize_wait: 3s"), served);
    // The costs of 30 and 40 are denied as that of 41, and so leave room for all others.
    assert_eq!(denied("token-bucket"), 3);
    // The windows that begin at 0 s and 10 s and all that repay the rest are full.
    assert_eq!(
        denied("fixed-window, burst: 10, oversize_wait: 3s"),
        served + 2
    );
}

#[test]
fn every_option_of_the_rules_is_replayed_as_it_is_served() {
    let log = file("options.log", log());
    for policy in [
        "algorithm: fixed-window, limit: 5/10s, first_hit: true, count_denied: true",
        "algorithm: fixed-window, limit: 5/month, time_zone: Europe/Berlin, starts: 15",
        "algorithm: fixed-window, limit: 5/10s, burst: 20",
        "algorithm: fixed-window, limit: 5/10s, burst: 20, oversize_wait: 1m",
        "algorithm: token-bucket, limit: 5/1s, oversize_wait: 10s",
        "algorithm: sliding-log, limit: 5/500ms, closed: true",
        "algorithm: sliding-log, limit: 5/500ms, block_for: [1m, 1d], block_after: 3, block_within: 10s",
        "algorithm: sliding-window, limit: 5/2h, slots: 60, mode: balanced",
        "algorithm: sliding-window, limit: 5/2h, slots: 60",
        "algorithm: sliding-counter, limit: 5/1d",
        "algorithm: token-bucket, limit: 5/1m30s, burst: 20",
        "algorithm: leaky-bucket, limit: 5/1s, max_wait: 1m250ms",
    ] {
        let rules = file("options.yaml", format!("limits: [{{name: x, {policy}}}]"));
        let found = document(&[log.to_str().unwrap(), "--rules", rules.to_str().unwrap()]);
        let trial = &found["trials"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let replayed = format!(
            "{} {}",
            text(&trial["results"][0]["algorithm"]),
            text(&trial["limit"])
        );
        let served = rules::parse_policy(&format!("{{{policy}}}"))
            .unwrap()
            .policy()
            .unwrap();
        assert_eq!(replayed.parse::<Policy>().unwrap(), served, "{policy}");
    }
}

#[test]
fn the_status_of_a_log_of_fastify_is_refused_with_its_setting() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/logs/fastify.log");
    let output = simulate(&[log, "--limit", "3/1h", "--by", "status"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("set disableRequestLogging"),
        "{error}"
    );
}

#[test]
fn a_suggestion_that_denies_much_says_so_first_and_names_the_algorithm_of_its_numbers() {
    // A few sources make most requests.
    let traffic: Vec<&str> = "--synthetic --sources 2000 --requests 60000 --zipf 1.6 --suggest"
        .split(' ')
        .collect();
    let report = document(&traffic);
    let (all, recommended) = (&report["trials"][0], &report["suggestion"]["recommended"]);
    let number = |value: &Value| value.as_f64().unwrap();
    let share = |part: &Value| number(part) / number(&all["requests"]);
    assert!(share(&recommended["denied"]) > 0.5, "{recommended}");
    let milder = &recommended["milder"];
    assert!(share(&milder["denied"]) <= 0.05, "{milder}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (strict, mild, algorithm) = (
        text(&recommended["limit"]),
        text(&milder["limit"]),
        text(&recommended["algorithm"]),
    );
    let output = simulate(&traffic);
    let table = stdout(&output);
    let said: Vec<&str> = table.lines().collect();
    let begin = said
        .iter()
        .position(|line| line.starts_with("Begin with "))
        .unwrap();
    assert!(
        said[begin - 1].starts_with(&format!("{strict} denies "))
            && said[begin - 1].contains("look at the keys denied most"),
        "{table}"
    );
    assert!(
        said[begin].starts_with(&format!("Begin with {mild} and {algorithm}, which denies ")),
        "{table}"
    );
    assert!(text(&recommended["yaml"]).contains(&mild), "{recommended}");
    // The sentence about the limit has the numbers of the recommended algorithm.
    let sentence = said
        .iter()
        .find(|line| line.starts_with(&format!("{strict} denies ")) && line.contains("touches"))
        .unwrap();
    assert!(sentence.ends_with(&format!("with {algorithm}.")), "{table}");
    let denied = recommended["denied"].as_u64().unwrap();
    let plain = sentence.replace(',', "");
    assert!(plain.contains(&format!(" denies {denied} of ")), "{table}");
    // The page has the curve, with both limits on it.
    let page = path("suggested-curve.html");
    let written = [&traffic[..], &["--report", page.to_str().unwrap()]].concat();
    stdout(&simulate(&written));
    let page = fs::read_to_string(page).unwrap();
    let curve = page.split("class=\"curve\"").nth(1).expect("the curve");
    let curve = curve.split("</svg>").next().unwrap();
    assert_eq!(curve.matches("<polyline").count(), 2, "{curve}");
    assert_eq!(curve.matches("class=\"limit\"").count(), 2, "{curve}");
}

#[test]
fn a_command_line_without_a_limit_names_what_can_be_tried() {
    let output = simulate(&["access.log"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    for words in ["--suggest", "--limit 100/1m", "--rules FILE"] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// JSON lines of three tenants for twenty seconds: 60 requests a second by acme, 20 by beta and 3 by
/// little, and what a server decides on them that has these rules, by tenant.
fn tenants_log() -> (String, Vec<(u64, &'static str)>) {
    let mut all = Vec::new();
    for (tenant, rate, offset) in [("acme/a", 60, 0), ("beta", 20, 3), ("little/x", 3, 7)] {
        all.extend((0..20 * rate).map(|n| (n * 1_000 / rate + offset, tenant)));
    }
    all.sort_unstable();
    // From the same start as the log's times.
    let line = |&(ms, tenant): &(u64, &str)| {
        let (seconds, ms) = (1_700_000_000 + ms / 1_000, ms % 1_000);
        format!("{{\"time\": {seconds}.{ms:03}, \"tenant\": \"{tenant}\"}}\n")
    };
    (all.iter().map(line).collect(), all)
}

#[test]
fn a_limit_that_tenants_share_is_replayed_as_a_server_decides() {
    let (text, all) = tenants_log();
    let log = file("tenants.log", text);
    let log = log.to_str().unwrap();
    let text = "limits:
  - name: api
    limit: 20/1s
    burst: 10
    algorithm: token-bucket
    by: tenant
    shares: {weights: {acme: 3}, ceiling: 80%}
  - {name: plain, limit: 20/1s, by: tenant}
";
    let rules = file("tenants.yaml", text);
    let replay = document(&[log, "--rules", rules.to_str().unwrap()]);
    assert_eq!(replay["trials"].as_array().unwrap().len(), 1);
    let shared = &replay["shares"][0];
    assert_eq!(
        (&shared["name"], &shared["requests"]),
        (&"api".into(), &1_660.into())
    );
    // A server with the same rules, asked at the same times.
    let start = Nanos::from_secs(1_700_000_000);
    let parsed = rules::parse(text).unwrap();
    let limits = Limits::new(parsed, 1_000, |_| None, start).unwrap();
    let api = limits.limit(b"api").unwrap();
    let mut denied = BTreeMap::<&str, u64>::new();
    for (ms, tenant) in all {
        let now = start.saturating_add(Nanos::from_millis(ms));
        let decision = api.decide_in_memory(Act::Take, tenant.as_bytes(), 1, now);
        let name = tenant.split('/').next().unwrap();
        *denied.entry(name).or_default() += u64::from(decision.unwrap().is_denied());
    }
    let tenants = shared["tenants"].as_array().unwrap();
    for tenant in tenants {
        let expected = denied[tenant["tenant"].as_str().unwrap()];
        assert_eq!(tenant["denied"].as_u64(), Some(expected), "{tenant}");
    }
    assert_eq!(
        (tenants.len(), shared["denied"].as_u64()),
        (3, Some(denied.values().sum()))
    );
    // Without shares it is a global limit.
    let options = [
        "--limit",
        "20/1s",
        "--by",
        "global",
        "--algorithm",
        "token-bucket:burst=10",
    ];
    let global = &json(&[&[log][..], &options].concat())[0];
    assert_eq!(shared["denied_without"], global["denied"]);
    let index = |name: &str| shared[name].as_f64().unwrap();
    assert!(
        index("jain") > 0.99 && index("jain_without") < 0.9,
        "{shared}"
    );
    // Of 20 a second little needs 3, and acme gets three quarters of the rest.
    let units = |at: usize| tenants[at]["fair_units"].as_f64().unwrap();
    assert!(
        (units(0) - 255.0).abs() < 1.0 && (units(1) - 85.0).abs() < 1.0,
        "{shared}"
    );
    let table = simulate(&[log, "--rules", rules.to_str().unwrap()]);
    let table = stdout(&table);
    assert!(
        table.contains("api, 20/1s with token-bucket:burst=10, shared by 3 tenants"),
        "{table}"
    );
    assert!(table.contains("weight 3, ceiling 80 %"), "{table}");
    let page = simulate(&[log, "--rules", rules.to_str().unwrap(), "--report", "-"]);
    assert!(stdout(&page).contains("Shared by tenants"));
}

#[test]
fn requests_of_a_tenant_that_the_rules_deny_are_said_to_be_left_out() {
    let (text, _) = tenants_log();
    let log = file("tenants-denied.log", text);
    let rules = "limits:
  - {name: api, limit: 20/1s, algorithm: fixed-window, by: tenant, shares: {}, deny: [acme, beta]}
";
    let rules = file("tenants-denied.yaml", rules);
    let told = document(&[log.to_str().unwrap(), "--rules", rules.to_str().unwrap()]);
    let warned = "the `deny` list of api denies 1,600 requests more";
    assert!(told["warnings"].to_string().contains(warned), "{told}");
    assert_eq!(told["shares"][0]["requests"], 60);
}

#[test]
fn tenants_of_the_command_line_share_each_limit_with_equal_weights() {
    let (text, _) = tenants_log();
    let log = file("tenants-line.log", text);
    let log = log.to_str().unwrap();
    let with = |algorithm: &str| {
        let options = [
            "--limit",
            "20/1s",
            "--shares",
            "by=tenant",
            "--algorithm",
            algorithm,
        ];
        document(&[&[log][..], &options].concat())
    };
    let replay = with("fixed-window,sliding-log");
    assert_eq!(replay["trials"], serde_json::json!([]));
    for shared in replay["shares"].as_array().unwrap() {
        let index = |name: &str| shared[name].as_f64().unwrap();
        assert!(index("jain") > index("jain_without"), "{shared}");
        assert_eq!(shared["tenants"][0]["terms"], "weight 1");
    }
    // All that tenants can share, and not the leaky bucket.
    let all = document(&[log, "--limit", "20/1s", "--shares", "by=tenant"]);
    assert_eq!(all["shares"].as_array().unwrap().len(), 5);
    let page = simulate(&[
        log,
        "--limit",
        "20/1s",
        "--shares",
        "by=tenant",
        "--report",
        "-",
    ]);
    assert!(stdout(&page).contains("Shared by tenants"));
    let table = simulate(&[log, "--limit", "20/1s", "--shares", "by=tenant"]);
    assert!(stdout(&table).contains("20/1s with fixed-window, shared by 3 tenants (tenant)"));
    // The log of a real server.
    let apache = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/logs/apache.log");
    let one = ["--limit", "4/1s", "--algorithm", "fixed-window"];
    let shared = document(&[&[apache, "--shares", "by=ip"][..], &one].concat());
    let shared = &shared["shares"][0];
    let global = &json(&[&[apache, "--by", "global"][..], &one].concat())[0];
    for (name, of_global) in [("requests", "requests"), ("denied_without", "denied")] {
        assert_eq!(shared[name], global[of_global], "{shared}");
        let each = shared["tenants"].as_array().unwrap().iter();
        let sum: u64 = each.filter_map(|tenant| tenant[name].as_u64()).sum();
        assert_eq!(shared[name], sum);
    }
    assert!(global["denied"].as_u64() > Some(0), "{global}");
    for (options, expected) in [
        (&["--shares", "tenant"][..], "as in by=host"),
        (&["--shares", "by=global"], "global is no tenant"),
        (
            &["--shares", "by=tenant", "--by", "ip"],
            "cannot be used with",
        ),
        (
            &["--shares", "by=tenant", "--charge", "bytes"],
            "cannot be used with",
        ),
        (
            &["--shares", "by=tenant", "--algorithm", "leaky-bucket"],
            "leaky-bucket does not support them",
        ),
    ] {
        let told = failure(&[&[log, "--limit", "20/1s"][..], options].concat());
        assert!(told.contains(expected), "{told}");
    }
    let told = failure(&[log, "--shares", "by=tenant"]);
    assert!(told.contains("--limit"), "{told}");
}

/// The first Ctrl-C ends the reading, however much follows.
#[test]
fn ctrl_c_shows_the_results_of_what_was_read() {
    let line = |at: usize| {
        format!(
            "10.0.0.1 - - [17/May/2015:10:{:02}:{:02} +0000] \"GET / HTTP/1.1\" 200 5\n",
            at / 60 % 60,
            at % 60
        )
    };
    for arguments in [["--limit", "5/1m"], ["--shares", "by=ip"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["simulate", "-", "--format", "json", "--limit", "5/1m"])
            .args(arguments.iter().filter(|_| arguments[0] != "--limit"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = child.stdin.take().unwrap();
        // More than a pipe holds, so when this returns the program is reading.
        let first: String = (0..20_000).map(line).collect();
        log.write_all(first.as_bytes()).unwrap();
        let sent = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        // Without end: the program closes the pipe when it has seen the signal.
        let mut written = 20_000;
        while log.write_all(line(written).as_bytes()).is_ok() {
            written += 1;
        }
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{errors}");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lines = told["lines"].as_u64().unwrap();
        assert!(
            (1..=written as u64).contains(&lines),
            "{lines} of {written}"
        );
        let plain = errors.replace(',', "");
        let note = format!("reading was stopped after {lines} line");
        assert!(plain.contains(&note), "{errors}");
    }
}
