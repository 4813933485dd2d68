//! `docs/src/reference.md` is made from what the program says about itself, and this test fails if
//! the page lacks anything. `TIDEGATE_WRITE_REFERENCE=1` writes the page again.
#![cfg(all(feature = "grpc", feature = "otlp", feature = "sim", feature = "top"))]

#[path = "integration/program/mod.rs"]
mod program;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use program::{Serving, request, scratch, tidegate};
use serde_json::Value;
use tidegate_core::DenialReason;

/// What each option of a limit, of the file and of an access file means. The program lists the
/// options.
const KEYS: [(&str, &str); 46] = [
    ("name", "the name in requests: letters, digits and `. _ -`"),
    (
        "limit",
        "`N/duration`, as in `100/1m`; for `concurrency` a number of permits",
    ),
    (
        "algorithm",
        "[how each behaves](algorithms.md); `sliding-window` without one",
    ),
    (
        "global",
        "`true`: one state for all instead of one for each key",
    ),
    (
        "shadow",
        "`true`: the limit counts and reports, and never denies",
    ),
    (
        "soft",
        "`true`: what is beyond the limit is admitted and counted, and the answer says so",
    ),
    (
        "thresholds",
        "a list such as `[80%, 100%]`: a log line and a count when a key reaches that share",
    ),
    (
        "when_full",
        "`forget` the exhausted key that ends first, or `deny` unknown keys, when the table is full",
    ),
    (
        "on_expiry",
        "what becomes of a reservation that nobody settles",
    ),
    ("overrides", "keys with their own limit"),
    ("deny", "keys that are always denied"),
    ("max_keys", "the maximum number of keys"),
    (
        "shares",
        "[tenants that share the limit](tenants.md): `by`, `weights`, `guarantee`, `ceiling`",
    ),
    ("sharing", "over a store: `exact`, `leased`, `reported`"),
    (
        "on_error",
        "while the store does not reply: `local`, `open`, `closed`",
    ),
    ("deadline", "how long the store may take"),
    (
        "slack",
        "how long a leased unit is kept, and a report waits",
    ),
    (
        "unreported",
        "how much a server may have used and not yet reported",
    ),
    (
        "line",
        "`true`: requests can [wait in line](wait.md) for the limit in the store",
    ),
    (
        "match",
        "which requests of a log the limit concerns, for `tidegate simulate`",
    ),
    ("by", "the key in a log, for `tidegate simulate`"),
    (
        "first_hit",
        "fixed-window: a window begins with a key's first request",
    ),
    (
        "calendar",
        "fixed-window: `true`: windows are the days, weeks, months or years of a time zone",
    ),
    (
        "time_zone",
        "fixed-window: the calendar's time zone, as in `Europe/Berlin`",
    ),
    (
        "starts",
        "fixed-window: the day on which a month of the calendar starts, from 1 to 31",
    ),
    (
        "closed",
        "sliding-log: a request counts to the end of its window",
    ),
    ("slots", "sliding-window: the parts of a window"),
    ("mode", "sliding-window: `strict` or `balanced`"),
    (
        "burst",
        "token-bucket, fixed-window: how much a key may save",
    ),
    (
        "oversize_wait",
        "token-bucket, and fixed-window with `burst`: how long a cost above the limit may wait for its rest",
    ),
    ("max_wait", "leaky-bucket: the longest delay"),
    (
        "hold",
        "concurrency: after this time a permit that was not released is free again",
    ),
    ("count_denied", "`true`: denied requests count too"),
    (
        "block_for",
        "for how long a denial blocks its key, as in `60s`, or longer each time, as in `60s, 10m, 1d`",
    ),
    ("block_after", "only this number of denials blocks a key"),
    ("block_within", "the time in which these denials count"),
    (
        "limits",
        "the list of limits; in an access file the limits that a client may use, by the beginning of their names",
    ),
    (
        "gate",
        "`sentinel`: programs that build their gate from the file count over two slots of 500 ms",
    ),
    (
        "max_memory",
        "memory for the keys of all limits together, as in `512MiB`",
    ),
    ("roles", "`decide`, `observe`, `operate`, `report`"),
    (
        "tokens",
        "hashes of tokens, as `tidegate token` prints them",
    ),
    ("certificates", "names in a client certificate"),
    (
        "addresses",
        "addresses and networks, for protocols without credentials",
    ),
    (
        "flow",
        "[flow control](flow.md) of programs with a gate, as the next ones",
    ),
    ("isolation", "calls in flight for each resource"),
    ("adaptive", "limits in flight that follow the latency"),
];

/// Sections for programs with a gate, whose options `tidegate check --help` explains.
const SECTIONS: [&str; 7] = [
    "flow",
    "isolation",
    "adaptive",
    "breakers",
    "hot_params",
    "system",
    "authority",
];

/// What a client can do about each reason.
const REASONS: [(DenialReason, &str); 7] = [
    (
        DenialReason::Quota,
        "the quota is used up: retry after `retry_after_ms`",
    ),
    (
        DenialReason::TooLarge,
        "the cost is above the limit or the burst: no wait helps, split the request",
    ),
    (
        DenialReason::InFlight,
        "all permits are held: retry when other work ends",
    ),
    (DenialReason::Blocked, "an operator blocked the key"),
    (DenialReason::DenyListed, "the rules deny the key"),
    (
        DenialReason::TableFull,
        "the table has no room for a new key (`when_full: deny`)",
    ),
    (
        DenialReason::StoreDown,
        "the store does not reply (`on_error: closed`)",
    ),
];

fn help(arguments: &[&str]) -> String {
    String::from_utf8(
        tidegate()
            .args(arguments)
            .arg("--help")
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap()
}

/// The options that `check` lists if a file has one that there is not.
fn options_of(rules: &str) -> Vec<Vec<String>> {
    let file = scratch("reference").join("rules.yaml");
    fs::write(&file, rules).unwrap();
    let refused = tidegate().arg("check").arg(&file).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    let lists = said
        .lines()
        .filter_map(|line| line.split_once("the options are: "));
    lists
        .map(|(_, list)| list.split(", ").map(str::to_owned).collect())
        .collect()
}

fn table(page: &mut String, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    page.push_str(&line(
        &head
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>(),
    ));
    page.push_str(&line(&vec!["---".to_owned(); head.len()]));
    for row in rows {
        page.push_str(&line(
            &row.iter()
                .map(|cell| cell.replace('|', "\\|"))
                .collect::<Vec<_>>(),
        ));
    }
    page.push('\n');
}

/// Each option of a command with its value, variable, default and the first paragraph about it.
fn options(command: &str) -> Vec<Vec<String>> {
    let text = help(&[command]);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut paragraph = true;
    for line in text.lines().skip_while(|line| *line != "Options:") {
        let words = line.trim();
        let is_option =
            words.starts_with("--") || (words.starts_with('-') && words.contains(", --"));
        if is_option && line.len() - line.trim_start().len() <= 6 {
            rows.push(vec![
                format!("`{words}`"),
                String::new(),
                String::new(),
                String::new(),
            ]);
            paragraph = true;
            continue;
        }
        let Some(row) = rows.last_mut() else { continue };
        let bracket = |name: &str| {
            Some(
                words
                    .strip_prefix(name)?
                    .trim_end_matches(']')
                    .trim_end_matches('='),
            )
        };
        if let Some(name) = bracket("[env: ") {
            // The tests set some of them.
            row[1] = format!("`{}`", name.split('=').next().unwrap_or_default());
        } else if let Some(value) = bracket("[default: ") {
            row[2] = format!("`{value}`");
        } else if words.is_empty() || words.starts_with('[') {
            paragraph &= row[3].is_empty();
        } else if paragraph && line.starts_with("          ") {
            let blank = if row[3].is_empty() { "" } else { " " };
            row[3].push_str(blank);
            row[3].push_str(words);
        } else {
            paragraph = false;
        }
    }
    rows.retain(|row| !row[0].contains("--help") && !row[0].contains("--version"));
    rows
}

fn commands() -> Vec<Vec<String>> {
    let text = help(&[]);
    let lines = text
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in lines {
        let (name, about) = line.trim().split_once("  ").unwrap_or(("", line.trim()));
        match rows.last_mut() {
            Some(row) if name.is_empty() || line.starts_with("     ") => {
                row[1].push(' ');
                row[1].push_str(line.trim());
            }
            _ => rows.push(vec![format!("`{name}`"), about.trim().to_owned()]),
        }
    }
    rows
}

fn keys(page: &mut String) {
    let [file, limit] = [
        "zzz: 1\nlimits: [{name: a, limit: 1/1s}]\n",
        "limits: [{name: a, limit: 1/1s, zzz: 1}]\n",
    ]
    .map(|rules| options_of(rules).remove(0));
    let access = options_of("access: [{name: a, zzz: 1}]\n").remove(0);
    let known: BTreeMap<_, _> = KEYS.into_iter().collect();
    for (title, options) in [
        ("The file", file),
        ("A limit", limit),
        ("A client of an access file", access),
    ] {
        page.push_str(title);
        page.push_str(":\n\n");
        let about = |key: &String| match known.get(key.as_str()) {
            Some(about) => (*about).to_owned(),
            None if SECTIONS.contains(&key.as_str()) => "see below".to_owned(),
            None => panic!("`{key}` has no description in this test"),
        };
        table(
            page,
            &["key", "meaning"],
            options
                .iter()
                .map(|key| vec![format!("`{key}`"), about(key)]),
        );
    }
    page.push_str("For programs with a gate (`tidegate check --help` has an example of each):\n\n");
    let row = |section: &&str| {
        let keys = options_of(&format!("{section}: [{{zzz: 1}}]\n")).remove(0);
        vec![
            format!("`{section}`"),
            keys.iter()
                .map(|key| format!("`{key}`"))
                .collect::<Vec<_>>()
                .join(", "),
        ]
    };
    table(
        page,
        &["section", "keys of a rule"],
        SECTIONS.iter().map(row),
    );
}

/// Every family of metrics of a server with all listeners and some denials, and of one with a
/// store.
fn metrics(page: &mut String) {
    let place = scratch("reference-metrics");
    let [rules, cluster] = ["rules.yaml", "app-flow-rules.json"].map(|name| place.join(name));
    fs::write(
        &rules,
        "limits: [{name: per-user, limit: 1/1h, thresholds: [100%]}]",
    )
    .unwrap();
    let flow = r#"[{"resource":"a","count":5,"clusterMode":true,"clusterConfig":{"flowId":1,"thresholdType":1}}]"#;
    fs::write(&cluster, flow).unwrap();
    let listeners = [
        "--grpc",
        "127.0.0.1:0",
        "--spoe",
        "127.0.0.1:0",
        "--sentinel-token",
        "127.0.0.1:0",
    ];
    let (rules, cluster) = (rules.to_str().unwrap(), cluster.to_str().unwrap());
    let sources = [
        "--rules",
        rules,
        "--sentinel-rules",
        cluster,
        "--envoy-xds",
        "http://127.0.0.1:1",
        "--sentinel-dashboard=127.0.0.1:0",
    ];
    let server = Serving::with(&[&listeners[..], &sources].concat());
    for _ in 0..2 {
        server.post(r#"{"limit":"per-user","key":"alice"}"#);
    }
    let shared = Serving::with(&["--store", "redis://127.0.0.1:1"]);
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| place.join(name));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let secured = Serving::with(&[
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ]);
    let address = format!("https://{}/metrics", secured.admin);
    let output = Command::new("curl")
        .args(["--silent", "--insecure", &address])
        .output()
        .unwrap();
    let over_tls = String::from_utf8(output.stdout).unwrap();
    // Years from now.
    let expires = over_tls
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_certificate_expires_timestamp_seconds "));
    assert!(
        expires.unwrap().parse::<f64>().unwrap() > 3e9,
        "{expires:?}"
    );
    let texts = [server.get("/metrics"), shared.get("/metrics"), over_tls].concat();
    let of = |what: &str| -> BTreeMap<String, String> {
        let lines = texts
            .lines()
            .filter_map(|line| line.strip_prefix(what)?.split_once(' '));
        lines
            .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            .collect()
    };
    let (kinds, abouts) = (of("# TYPE "), of("# HELP "));
    assert!(
        kinds.len() > 60 && kinds.keys().eq(abouts.keys()),
        "each family has a type and a text"
    );
    let rows = kinds
        .iter()
        .map(|(name, kind)| vec![format!("`{name}`"), kind.clone(), abouts[name].clone()]);
    table(page, &["family", "type", "meaning"], rows);
}

/// The book, the alerts and the dashboards of Grafana use no metric that the page lacks.
fn watched_metrics_are_in(page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in [
        "docs/src/run.md",
        "docs/src/server.md",
        "packaging/prometheus/alerts.yaml",
        "packaging/grafana/tidegate.json",
    ] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        for (at, _) in text.match_indices("tidegate_") {
            let rest = &text[at..];
            let end = rest
                .find(|c: char| !c.is_ascii_lowercase() && c != '_')
                .unwrap_or(rest.len());
            let series = rest[..end].trim_end_matches('_');
            let ends = ["_total", "_bucket", "_count", "_sum", "_info"];
            let family = ends
                .iter()
                .find_map(|end| series.strip_suffix(end))
                .unwrap_or(series);
            let is_there = [family, series]
                .iter()
                .any(|name| page.contains(&format!("`{name}`")));
            assert!(is_there, "{file}: {series}");
        }
    }
}

fn redis_commands(page: &mut String, server: &Serving) {
    let docs = server.ask("COMMAND DOCS");
    let mut rows: Vec<Vec<String>> = docs
        .split(" $7 summary $")
        .skip(1)
        .map(|rest| {
            let (_, text) = rest.split_once(' ').unwrap();
            let (summary, usage) = text
                .split_once(" $5 since")
                .unwrap()
                .0
                .rsplit_once(" (")
                .unwrap();
            vec![
                format!("`{}`", usage.trim_end_matches(')').trim_end()),
                summary.to_owned(),
            ]
        })
        .collect();
    let count = server.ask("COMMAND COUNT");
    assert_eq!(format!(":{}", rows.len()), count, "{docs}");
    rows.sort();
    table(page, &["command", "meaning"], rows);
}

fn paths(page: &mut String, server: &Serving) {
    let answer = request(&server.http, "GET", "/openapi.json", "");
    let description: Value =
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let mut rows = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap().to_owned();
            let statuses: Vec<_> = operation["responses"]
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect();
            rows.push(vec![
                format!("`{} {path}`", method.to_uppercase()),
                summary,
                statuses.join(", "),
            ]);
        }
    }
    assert!(
        rows.len() >= tidegate_server::http::ROUTES.len(),
        "{rows:?}"
    );
    table(page, &["path", "meaning", "statuses"], rows);
}

#[test]
fn the_reference_has_everything_that_the_program_has() {
    let server = Serving::with(&[]);
    let mut page = "# Reference\n\nThis page is made from the program: `crates/cli/tests/reference.rs` fails if it lacks a key, an option, a metric, a\n\
        command or a path.\n\n"
        .to_owned();
    page.push_str("## Commands\n\n");
    table(&mut page, &["command", "what it does"], commands());
    page.push_str("## Rules and access files\n\n");
    keys(&mut page);
    page.push_str("## Options of `tidegate serve`\n\n");
    table(
        &mut page,
        &["option", "variable", "default", "meaning"],
        options("serve"),
    );
    page.push_str("## HTTP\n\n`/openapi.json` describes every path with its bodies. Errors are `application/problem+json`.\n\n");
    paths(&mut page, &server);
    page.push_str(
        "## Reasons of denials\n\nOf `reason` in answers, and of `tidegate_denials_total`.\n\n",
    );
    assert_eq!(REASONS.map(|(reason, _)| reason), DenialReason::ALL);
    table(
        &mut page,
        &["reason", "what it means"],
        REASONS.map(|(reason, about)| vec![format!("`{reason}`"), about.to_owned()]),
    );
    page.push_str("## Redis protocol\n\n");
    redis_commands(&mut page, &server);
    page.push_str("## Metrics\n\n");
    metrics(&mut page);
    let page = format!("{}\n", page.trim_end());
    watched_metrics_are_in(&page);

    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference.md");
    if std::env::var_os("TIDEGATE_WRITE_REFERENCE").is_some() {
        fs::write(&file, &page).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    for (made, there) in page.lines().zip(written.lines()) {
        assert_eq!(
            there, made,
            "write the page again: TIDEGATE_WRITE_REFERENCE=1 cargo test … --test reference"
        );
    }
    assert_eq!(
        written.lines().count(),
        page.lines().count(),
        "write the page again"
    );
}

#[test]
fn the_help_of_serve_is_one_page_and_the_long_one_has_every_option_in_a_group() {
    let run = |option| {
        tidegate()
            .args(["serve", option])
            .env("COLUMNS", "100")
            .output()
            .unwrap()
            .stdout
    };
    let short = String::from_utf8(run("-h")).unwrap();
    assert!(
        short.lines().count() <= 60,
        "{} lines\n{short}",
        short.lines().count()
    );
    let long = String::from_utf8(run("--help")).unwrap();
    let (options, groups) = long
        .split_once("\nOptions:\n")
        .unwrap()
        .1
        .split_once("\n\nHTTP:\n")
        .unwrap();
    let is_option = |line: &&str| line.starts_with("      --") || line.starts_with("  -");
    let general: Vec<&str> = options.lines().filter(is_option).map(str::trim).collect();
    assert_eq!(general, ["--config <FILE>", "-h, --help", "-V, --version"]);
    assert!(groups.lines().filter(is_option).count() > 70, "{groups}");
    // Paragraphs wrap, and examples stay.
    assert!(
        long.contains("\n            http: 0.0.0.0:8080\n            tls-cert: "),
        "{long}"
    );
    let prose = long
        .split_once("Without --rules,")
        .unwrap()
        .1
        .split_once("[env:")
        .unwrap()
        .0;
    assert!(
        prose
            .split_whitespace()
            .eq("the server has only the limits of these files.".split(' ')),
        "{prose}"
    );
}

#[test]
fn an_option_has_one_form_in_all_commands() {
    let mut forms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for command in commands().iter().filter(|command| command[0] != "`help`") {
        let command = command[0].trim_matches('`');
        let usage = help(&[command]);
        let usage = usage
            .lines()
            .find(|line| line.starts_with("Usage:"))
            .unwrap();
        assert!(
            !usage.replace("--server <ADDR>", "").contains("<ADDR>"),
            "{usage}"
        );
        for option in options(command) {
            // In a help without paragraphs the text follows on the same line.
            let option = option[0]
                .trim_matches('`')
                .split("  ")
                .next()
                .unwrap_or_default();
            let Some((_, long)) = option.split_once("--") else {
                continue;
            };
            let (name, value) = long.split_once(' ').unwrap_or((long, ""));
            // A server is named by --server, what is printed by --format, and a time by --from and
            // --to.
            let others = [
                "json",
                "output-format",
                "url",
                "host",
                "since",
                "until",
                "start",
                "end-time",
            ];
            assert!(!others.contains(&name), "{command} --{name}");
            assert!(
                name != "server" || value == "<ADDR>",
                "{command} --server {value}"
            );
            // The same name takes the same values.
            forms
                .entry(name.to_owned())
                .or_default()
                .insert(value.trim_end_matches("...").to_owned());
        }
    }
    forms.retain(|_, values| values.len() > 1);
    // The name of a limit, where `simulate` tries candidates.
    forms.remove("limit");
    assert!(forms.is_empty(), "{forms:?}");
    let simulate = help(&["simulate"]);
    assert!(
        !simulate.contains('`') && !simulate.contains("<http"),
        "{simulate}"
    );
}
