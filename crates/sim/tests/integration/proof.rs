//! A log's reading proves itself: samples, the moment of a time stamp, and what may change the
//! findings.

use std::{fs, num::NonZeroUsize, path::PathBuf, time::Duration};

use tidegate_sim::{
    AlgorithmSpec, Findings, Progress, Trial, Workload,
    input::{By, Format, InputError, Loaded, Options, Source, Stamp, read, read_limits},
    replay,
    report::{Report, write_html, write_json, write_table},
    workload::TraceBuilder,
};

fn file(name: &str, text: &str) -> Source {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("proof-{name}"));
    fs::write(&path, text).unwrap();
    Source::File(path)
}

fn load(sources: &[Source], options: &Options) -> Result<Loaded, InputError> {
    read(sources, options, &Progress::default())
}

fn findings(workload: &impl Workload, limit: &str) -> Findings {
    let algorithms = AlgorithmSpec::parse_list("sliding-log").unwrap();
    let trial = Trial::new(limit.parse().unwrap(), &algorithms).unwrap();
    replay(workload, &[trial], NonZeroUsize::MIN, &Progress::default()).remove(0)
}

fn denied(loaded: &Loaded, limit: &str) -> u64 {
    findings(&loaded.trace, limit).rows[0].denied
}

fn notes(loaded: &Loaded) -> String {
    loaded.proof.notes(Some(Duration::from_mins(1))).join("\n")
}

/// A hundred requests at once, which are answered over twenty seconds.
fn burst(line: impl Fn(f64, f64) -> String) -> String {
    (1..=100)
        .map(|at| f64::from(at) * 0.2)
        .map(|took| line(1_431_857_103.0 + took, took) + "\n")
        .collect()
}

#[test]
fn a_burst_counts_when_it_came_if_the_log_has_the_ends_and_the_durations() {
    let nginx = |end, took| {
        format!(
            r#"{{"msec":"{end:.3}","remote_addr":"192.0.2.7","request":"GET / HTTP/1.1","request_time":{took:.3}}}"#
        )
    };
    let caddy = |end, took| {
        format!(
            r#"{{"ts":{end:.3},"request":{{"remote_ip":"192.0.2.7","uri":"/"}},"duration":{took:.3}}}"#
        )
    };
    let pino = |end: f64, took: f64| {
        format!(
            r#"{{"time":{:.0},"req":{{"remoteAddress":"192.0.2.7","url":"/"}},"responseTime":{:.0}}}"#,
            end * 1e3,
            took * 1e3
        )
    };
    let echo = |end: f64, took: f64| {
        format!(
            r#"{{"time":{end:.3},"remote_ip":"192.0.2.7","uri":"/","latency":{:.0},"latency_human":"x"}}"#,
            took * 1e9
        )
    };
    let squid = |end: f64, took: f64| {
        format!(
            "{end:.3} {:6.0} 192.0.2.7 TCP_MISS/200 1 GET http://h/ - HIER_DIRECT/10.0.0.1 -",
            took * 1e3
        )
    };
    for (name, log) in [
        ("nginx", burst(nginx)),
        ("caddy", burst(caddy)),
        ("pino", burst(pino)),
        ("echo", burst(echo)),
        ("squid", burst(squid)),
    ] {
        let sources = [file(name, &log)];
        let loaded = load(&sources, &Options::default()).unwrap();
        assert_eq!(denied(&loaded, "10/1s"), 90, "{name}");
        assert_eq!(
            (loaded.proof.moved, notes(&loaded)),
            (100, String::new()),
            "{name}"
        );
        // By the ends it is an even five a second.
        let options = Options {
            stamped: Some(Stamp::Start),
            ..Options::default()
        };
        assert_eq!(
            denied(&load(&sources, &options).unwrap(), "10/1s"),
            0,
            "{name}"
        );
    }
}

#[test]
fn a_log_that_does_not_say_what_its_times_are_says_what_may_change() {
    let lines = |took: &str| {
        format!("192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5{took}\n")
            .repeat(3)
    };
    let plain = load(&[file("plain", &lines(""))], &Options::default()).unwrap();
    assert!(
        notes(&plain).contains("takes 1m or longer may count in another window"),
        "{}",
        notes(&plain)
    );
    let options = |stamped| Options {
        stamped: Some(stamped),
        ..Options::default()
    };
    let start = load(&[file("start", &lines(""))], &options(Stamp::Start)).unwrap();
    assert_eq!(notes(&start), "");
    let end = load(&[file("end", &lines(""))], &options(Stamp::End)).unwrap();
    assert!(
        notes(&end).contains("the time of 3 requests is that of the end"),
        "{}",
        notes(&end)
    );
    let traefik = lines(" \"-\" \"-\" 1 \"app@file\" \"http://10.0.0.1\" 4026ms");
    let traefik = load(&[file("traefik", &traefik)], &Options::default()).unwrap();
    assert_eq!(notes(&traefik), "");
    let json = "{\"time\":1431857103,\"ip\":\"192.0.2.7\",\"ms\":20000}\n";
    let took = Options {
        took: Some("ms:ms".parse().unwrap()),
        ..Options::default()
    };
    let took = load(&[file("took", json)], &took).unwrap();
    assert!(
        notes(&took).contains("move by up to 20s"),
        "{}",
        notes(&took)
    );
}

#[test]
fn times_without_a_zone_empty_connections_and_a_log_given_twice_are_named() {
    let haproxy = |request: &str| {
        format!(
            "192.0.2.7:1 [17/May/2015:10:05:03.000] web app/one 0/0/0/1/1 200 5 - - ---- 1/1/0/0/0 0/0 \"{request}\"\n"
        )
    };
    let log = haproxy("GET / HTTP/1.1") + &haproxy("<BADREQ>");
    let sources = [file("twice", &log), file("twice-again", &log)];
    let options = Options {
        zone: "Asia/Kolkata".parse().unwrap(),
        ..Options::default()
    };
    let loaded = load(&sources, &options).unwrap();
    assert_eq!(
        loaded.trace.span().0,
        1_431_857_103_000_000_000 - 19_800_000_000_000
    );
    let notes = notes(&loaded);
    for part in [
        "taken as Asia/Kolkata; --zone",
        "which count as requests: 2 lines",
        "--exclude method=-",
        "proof-twice-again has the same lines as",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let options = Options::default();
    let other = [
        file("once", &log),
        file("other", &haproxy("GET /other HTTP/1.1")),
    ];
    let loaded = load(&other, &options).unwrap();
    assert_eq!(loaded.proof.repeated, []);
    let dated = "192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"-\" 408 0\n";
    let loaded = load(&[file("408", dated)], &options).unwrap();
    assert_eq!((loaded.proof.requestless, loaded.proof.zone), (1, None));
}

#[test]
fn samples_show_the_key_the_time_the_path_and_the_cost() {
    let line = |client: &str, path: &str| {
        format!("{client} - - [17/May/2015:12:05:03 +0200] \"GET {path}?q=1 HTTP/1.1\" 200 512\n")
    };
    let log = line("192.0.2.7", "/a").repeat(5)
        + &line("2001:db8::1", "/b")
        + &line("192.0.2.9", "/c")
        + &line("192.0.2.9", "/d");
    let loaded = load(&[file("samples", &log)], &Options::default()).unwrap();
    let shown: Vec<String> = loaded
        .proof
        .samples
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        shown,
        [
            "key 192.0.2.7, time 2015-05-17 10:05:03, path /a, cost 1",
            "key 2001:db8::/64, time 2015-05-17 10:05:03, path /b, cost 1",
            "key 192.0.2.9, time 2015-05-17 10:05:03, path /c, cost 1",
        ]
    );
    let report = Report {
        findings: vec![findings(&loaded.trace, "3/1m")],
        samples: loaded.proof.samples,
        ..Report::default()
    };
    let [mut table, mut json, mut page] = [Vec::new(), Vec::new(), Vec::new()];
    write_table(&mut table, &report, 5).unwrap();
    write_json(&mut json, &report).unwrap();
    write_html(&mut page, &report).unwrap();
    for written in [table, page] {
        let written = String::from_utf8(written).unwrap();
        assert!(
            written.contains(&shown[1]) && written.contains("2001:db8::1 - - ["),
            "{written}"
        );
    }
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["samples"][2]["path"], "/c");
    assert_eq!(json["samples"][2]["keys"][0], "192.0.2.9");
}

#[test]
fn a_format_that_fits_only_some_lines_is_refused_with_both_readings() {
    let common = "192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /a HTTP/1.1\" 200 5\n";
    let json = "{\"time\":1,\"ip\":\"192.0.2.8\",\"path\":\"/b\"}\n";
    let mixed = common.repeat(4) + &json.repeat(3) + &"what is this\n".repeat(2);
    let source = [file("mixed", &mixed)];
    let error = load(&source, &Options::default()).unwrap_err().to_string();
    for part in [
        "no format fits most of the first 9 lines",
        "4 lines read as an access log",
        "key 192.0.2.7, time 2015-05-17 10:05:03, path /a",
        "3 lines read as JSON lines",
        "key 192.0.2.8",
        "--format-in",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let prose = common.repeat(2) + &"once upon a time\n".repeat(3);
    let error = load(&[file("prose", &prose)], &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("3 lines in no known format, such as once upon"),
        "{error}"
    );
    let chosen = Options {
        format: Some(Format::AccessLog),
        ..Options::default()
    };
    let loaded = load(&source, &chosen).unwrap();
    assert_eq!((loaded.trace.requests(), loaded.unparsed.count), (4, 5));
}

#[test]
fn a_limit_that_concerns_nothing_has_no_date() {
    let log = "192.0.2.7 - - [17/May/2015:10:05:03 +0000] \"GET /a HTTP/1.1\" 200 5\n";
    let selector = |path: &str| tidegate_sim::input::Selector {
        conditions: vec![format!("path={path}").parse().unwrap()],
        by: By::ip(),
    };
    let sources = [file("nothing", log)];
    let selectors = [selector("/none"), selector("/a")];
    let loaded = read_limits(
        &sources,
        &Options::default(),
        &selectors,
        &Progress::default(),
    )
    .unwrap();
    assert_eq!(
        loaded.proof.samples[0].keys,
        [None, Some("192.0.2.7".to_owned())]
    );
    let each = |selected: &tidegate_sim::input::Selected| findings(&selected.trace, "3/1m");
    let report = Report {
        findings: loaded.selected.iter().map(each).collect(),
        limits: vec!["none".to_owned(), "a".to_owned()],
        ..Report::default()
    };
    let alone = Report {
        findings: vec![findings(
            &TraceBuilder::new(By::ip()).build(true, 0),
            "3/1m",
        )],
        ..Report::default()
    };
    for (report, dated) in [(report, true), (alone, false)] {
        let [mut table, mut json, mut page] = [Vec::new(), Vec::new(), Vec::new()];
        write_table(&mut table, &report, 5).unwrap();
        write_json(&mut json, &report).unwrap();
        write_html(&mut page, &report).unwrap();
        for written in [&table, &page] {
            let written = String::from_utf8_lossy(written);
            assert!(!written.contains("1970"), "{written}");
            assert_eq!(written.contains("2015-05-17 10:05:03"), dated, "{written}");
            assert_eq!(written.contains("no requests"), !dated, "{written}");
        }
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert!(json["trials"][0]["start"].is_null(), "{json}");
    }
}
