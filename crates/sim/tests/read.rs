//! Logs on disk, read as the command reads them.

use std::{fs, path::PathBuf};

use tidegate_sim::{
    Progress, Workload,
    input::{Format, InputError, LineError, Loaded, Options, Source, TimeField, read},
};

/// A file of its own for each test.
fn file(name: &str, contents: &[u8]) -> Source {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, contents).unwrap();
    Source::File(path)
}

fn load(sources: &[Source], options: &Options) -> Result<Loaded, InputError> {
    read(sources, options, &Progress::default())
}

/// Each key's name and its requests' times in whole seconds since the first request.
fn requests(loaded: &Loaded) -> Vec<(String, Vec<u64>)> {
    let trace = &loaded.trace;
    let seconds = |key| trace.times(key).map(|time| (time - trace.span().0) / 1_000_000_000).collect();
    (0..trace.keys()).map(|key| (trace.label(key), seconds(key))).collect()
}

const ACCESS: &str = "\
10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET /a?x=1 HTTP/1.1\" 200 5 \"-\" \"curl\"
10.0.0.2 - - [17/May/2015:10:05:09 +0000] \"POST /b HTTP/1.1\" 404 5 \"-\" \"curl\"
what is this
10.0.0.1 - - [17/May/2015:12:05:00 +0200] \"GET /a HTTP/1.1\" 200 5 \"-\" \"wget\"
";

#[test]
fn an_access_log_is_read_in_time_order_and_broken_lines_are_named() {
    let loaded = load(&[file("access.log", ACCESS.as_bytes())], &Options::default()).unwrap();
    assert_eq!(loaded.format, Format::AccessLog);
    assert_eq!(requests(&loaded), [("10.0.0.1".to_owned(), vec![0, 3]), ("10.0.0.2".to_owned(), vec![9])]);
    assert_eq!((loaded.lines, loaded.unparsed.count), (4, 1));
    assert_eq!(
        (loaded.unparsed.first[0].line, &loaded.unparsed.first[0].error),
        (3, &LineError::NotAccessLog)
    );
}

#[test]
fn keys_are_built_from_the_chosen_parts() {
    for (by, names) in [
        ("path", vec!["/a", "/b"]),
        ("method,status", vec!["GET 200", "POST 404"]),
        ("user-agent", vec!["curl", "wget"]),
        ("global", vec!["everything"]),
    ] {
        let options = Options { by: Some(by.parse().unwrap()), ..Options::default() };
        let loaded = load(&[file(&format!("by-{by}.log"), ACCESS.as_bytes())], &options).unwrap();
        let found: Vec<String> = requests(&loaded).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, names);
    }
}

#[test]
fn rotated_logs_are_one_log() {
    let lines: Vec<&str> = ACCESS.lines().collect();
    let newer = file("rotated.log", lines[1].as_bytes());
    let older = file("rotated.log.1", format!("{}\n{}", lines[0], lines[3]).as_bytes());
    let loaded = load(&[newer, older], &Options::default()).unwrap();
    assert_eq!(requests(&loaded), [("10.0.0.2".to_owned(), vec![9]), ("10.0.0.1".to_owned(), vec![0, 3])]);
}

#[test]
fn json_lines_are_read_by_any_of_their_fields() {
    let log = "{\"at\":\"2015-05-17T10:05:03Z\",\"user\":{\"id\":1}}\n\n{\"at\":1431857105,\"user\":{\"id\":1}}\n{\"at\":1}\n";
    let options = Options {
        by: Some("user.id".parse().unwrap()),
        time_field: TimeField::new(Some("at".to_owned())),
        ..Options::default()
    };
    let loaded = load(&[file("app.jsonl", log.as_bytes())], &options).unwrap();
    assert_eq!(requests(&loaded), [("1".to_owned(), vec![0, 2])]);
    assert_eq!((loaded.lines, loaded.unparsed.count), (3, 1));
    assert_eq!(loaded.unparsed.first[0].line, 4);
}

#[test]
fn requests_per_second_keep_their_seconds_across_files() {
    let sources = [file("one.txt", b"2 0 1\n"), file("two.txt", b"0 1")];
    let loaded = load(&sources, &Options::default()).unwrap();
    assert_eq!(loaded.format, Format::Rate);
    assert_eq!(requests(&loaded), [("everything".to_owned(), vec![0, 0, 2, 4])]);
    assert!(!loaded.trace.has_dates());
    let spread = load(&sources, &Options { spread: true, ..Options::default() }).unwrap();
    assert_eq!(spread.trace.times(0).collect::<Vec<_>>(), [0, 500_000_000, 2_000_000_000, 4_000_000_000]);
}

#[test]
fn a_wrong_number_skips_its_second_and_is_named() {
    let loaded = load(
        &[file("bad-rate.txt", b"1 2\nx 3\n-1 1")],
        &Options { format: Some(Format::Rate), ..Options::default() },
    )
    .unwrap();
    assert_eq!(requests(&loaded), [("everything".to_owned(), vec![0, 1, 1, 3, 3, 3, 5])]);
    let numbers: Vec<u64> = loaded.unparsed.first.iter().map(|line| line.line).collect();
    assert_eq!(numbers, [3, 5]);
}

#[test]
fn an_unreadable_log_is_refused_with_the_known_formats() {
    let message = |name: &str, contents: &str, options: &Options| {
        load(&[file(name, contents.as_bytes())], options).unwrap_err().to_string()
    };
    let default = Options::default();
    let prose = message("prose.txt", "once upon a time\nthere was a log\n", &default);
    assert!(prose.contains("prose.txt is in no form") && prose.contains("CSV with a header"), "{prose}");
    let forced = message(
        "forced.txt",
        "once upon\n",
        &Options { format: Some(Format::AccessLog), ..Options::default() },
    );
    assert!(forced.contains("none of 1 lines parses as an access log"), "{forced}");
    assert!(forced.contains("forced.txt:1:") && forced.contains("requests per second"), "{forced}");
    let no_ip = message("no-ip.jsonl", "{\"time\":1}\n{\"time\":2}\n", &default);
    assert!(no_ip.contains("no field `ip`"), "{no_ip}");
    assert!(message("empty.log", " \n", &default).contains("has no requests"));
    assert!(message("zeros.txt", "0 0 0", &default).contains("has no requests"));
    let by = |by: &str| Options { by: Some(by.parse().unwrap()), ..Options::default() };
    assert!(message("by-ip.txt", "1 2 3", &by("ip")).contains("--by global"));
    assert!(message("by-user.log", ACCESS, &by("user")).contains("has no `user`: choose from ip"));
    let missing = load(&[Source::File("no/such/file.log".into())], &default).unwrap_err();
    assert!(missing.to_string().starts_with("cannot open no/such/file.log"));
    let mixed = [file("mixed-1.txt", b"1 2"), file("mixed-2.log", ACCESS.as_bytes())];
    assert!(matches!(load(&mixed, &default), Err(InputError::Mixed { .. })));
}

#[test]
fn a_cut_archive_is_an_error_that_says_where() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..10_000 {
        std::io::Write::write_all(&mut packed, ACCESS.as_bytes()).unwrap();
    }
    let packed = packed.finish().unwrap();
    let error = load(&[file("cut.log.gz", &packed[..packed.len() / 2])], &Options::default()).unwrap_err();
    assert!(matches!(error, InputError::Read { after: 1.., .. }), "{error}");
    assert!(error.to_string().contains("cut.log.gz after line"), "{error}");
}
