//! Logs on disk, read as the command reads them, and packed ones.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use tidegate_sim::{
    Progress, Workload,
    input::{
        Filter, Format, InputError, LineError, Loaded, Options, Source, TimeField, read, unpack,
    },
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
    let seconds = |key| {
        trace
            .times(key)
            .map(|time| (time - trace.span().0) / 1_000_000_000)
            .collect()
    };
    (0..trace.keys())
        .map(|key| (trace.label(key), seconds(key)))
        .collect()
}

const ACCESS: &str = "\
10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET /a?x=1 HTTP/1.1\" 200 5 \"-\" \"curl\"
10.0.0.2 - - [17/May/2015:10:05:09 +0000] \"POST /b HTTP/1.1\" 404 5 \"-\" \"curl\"
what is this
10.0.0.1 - - [17/May/2015:12:05:00 +0200] \"GET /a HTTP/1.1\" 200 5 \"-\" \"wget\"
";

#[test]
fn an_access_log_is_read_in_time_order_and_broken_lines_are_named() {
    let loaded = load(
        &[file("access.log", ACCESS.as_bytes())],
        &Options::default(),
    )
    .unwrap();
    assert_eq!(loaded.format, Format::AccessLog);
    assert_eq!(
        requests(&loaded),
        [
            ("10.0.0.1".to_owned(), vec![0, 3]),
            ("10.0.0.2".to_owned(), vec![9])
        ]
    );
    assert_eq!((loaded.lines, loaded.unparsed.count), (4, 1));
    assert_eq!(
        (
            loaded.unparsed.first[0].line,
            &loaded.unparsed.first[0].error
        ),
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
        let options = Options {
            by: Some(by.parse().unwrap()),
            ..Options::default()
        };
        let loaded = load(
            &[file(&format!("by-{by}.log"), ACCESS.as_bytes())],
            &options,
        )
        .unwrap();
        let found: Vec<String> = requests(&loaded)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(found, names);
    }
}

#[test]
fn rotated_logs_are_one_log() {
    let lines: Vec<&str> = ACCESS.lines().collect();
    let newer = file("rotated.log", lines[1].as_bytes());
    let older = file(
        "rotated.log.1",
        format!("{}\n{}", lines[0], lines[3]).as_bytes(),
    );
    let loaded = load(&[newer, older], &Options::default()).unwrap();
    assert_eq!(
        requests(&loaded),
        [
            ("10.0.0.2".to_owned(), vec![9]),
            ("10.0.0.1".to_owned(), vec![0, 3])
        ]
    );
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
    assert_eq!(
        requests(&loaded),
        [("everything".to_owned(), vec![0, 0, 2, 4])]
    );
    assert!(!loaded.trace.has_dates());
    let spread = load(
        &sources,
        &Options {
            spread: true,
            ..Options::default()
        },
    )
    .unwrap();
    assert_eq!(
        spread.trace.times(0).collect::<Vec<_>>(),
        [0, 500_000_000, 2_000_000_000, 4_000_000_000]
    );
}

#[test]
fn requests_per_second_have_nothing_to_select_by() {
    let sources = [file("unselected.txt", b"2 0 1\n")];
    let refused = |filter: Filter| {
        let options = Options {
            filter,
            ..Options::default()
        };
        load(&sources, &options).unwrap_err().to_string()
    };
    let exclude = vec!["path=/health*".parse().unwrap()];
    let since = Some("2015-05-17".parse().unwrap());
    for filter in [
        Filter {
            exclude,
            ..Filter::default()
        },
        Filter {
            since,
            ..Filter::default()
        },
    ] {
        let told = refused(filter);
        assert!(told.contains("neither fields nor dates"), "{told}");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_line() {
    let lines = [
        "10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5\n",
        "{\"time\":1,\"ip\":\"10.0.0.1\"}\n",
        "time,ip\n1,10.0.0.1\n",
    ];
    for line in lines {
        let text = format!("\u{feff}{line}");
        let loaded = load(&[file("mark.log", text.as_bytes())], &Options::default()).unwrap();
        let read = (loaded.trace.requests(), loaded.unparsed.count);
        assert_eq!(read, (1, 0), "{line}");
    }
}

#[test]
fn a_wrong_number_skips_its_second_and_is_named() {
    let loaded = load(
        &[file("bad-rate.txt", b"1 2\nx 3\n-1 1")],
        &Options {
            format: Some(Format::Rate),
            ..Options::default()
        },
    )
    .unwrap();
    assert_eq!(
        requests(&loaded),
        [("everything".to_owned(), vec![0, 1, 1, 3, 3, 3, 5])]
    );
    let numbers: Vec<u64> = loaded.unparsed.first.iter().map(|line| line.line).collect();
    assert_eq!(numbers, [3, 5]);
}

#[test]
fn numbers_are_the_same_whatever_is_between_them() {
    let long = "9".repeat(200);
    // More than any buffer has, so that numbers lie across two.
    let text = format!("\n 1  0\t20\r\n\n{long} -3 x 4294967296 7").repeat(5_000);
    let options = Options {
        format: Some(Format::Rate),
        ..Options::default()
    };
    let loaded = load(&[file("blanks.txt", text.as_bytes())], &options).unwrap();
    assert_eq!(
        (loaded.trace.requests(), loaded.unparsed.count),
        (5_000 * 28, 5_000 * 4)
    );
    assert_eq!(
        loaded
            .trace
            .times(0)
            .nth(28)
            .map(|time| time / 1_000_000_000),
        Some(8),
        "eight seconds each"
    );
}

#[test]
fn lines_are_the_same_whatever_their_ends_and_an_endless_one_is_left_out() {
    let line = |key: usize| {
        format!(
            "10.0.0.{} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5",
            key % 9
        )
    };
    let ends = ["\n", "\r\n", "\n\n", "\r\n\r\n"];
    // More than any buffer has, so that lines and their ends lie across two.
    let mut text: String = (0..9_000).map(|at| line(at) + ends[at % 4]).collect();
    text.push_str(&"x".repeat((1 << 20) + 1));
    text.push('\n');
    text.push_str(&line(0));
    let loaded = load(&[file("ends.log", text.as_bytes())], &Options::default()).unwrap();
    assert_eq!(
        (
            loaded.trace.keys(),
            loaded.trace.requests(),
            loaded.unparsed.count
        ),
        (9, 9_001, 1)
    );
    assert_eq!(loaded.unparsed.first[0].error, LineError::TooLong);
}

#[test]
fn an_unreadable_log_is_refused_with_the_known_formats() {
    let message = |name: &str, contents: &str, options: &Options| {
        load(&[file(name, contents.as_bytes())], options)
            .unwrap_err()
            .to_string()
    };
    let default = Options::default();
    let prose = message("prose.txt", "once upon a time\nthere was a log\n", &default);
    assert!(
        prose.contains("prose.txt is in no form") && prose.contains("CSV with a header"),
        "{prose}"
    );
    let forced = message(
        "forced.txt",
        "once upon\n",
        &Options {
            format: Some(Format::AccessLog),
            ..Options::default()
        },
    );
    assert!(
        forced.contains("none of 1 lines parses as an access log"),
        "{forced}"
    );
    assert!(
        forced.contains("forced.txt:1:") && forced.contains("requests per second"),
        "{forced}"
    );
    let no_ip = message("no-ip.jsonl", "{\"time\":1}\n{\"time\":2}\n", &default);
    assert!(no_ip.contains("no field `ip`"), "{no_ip}");
    assert!(message("empty.log", " \n", &default).contains("has no requests"));
    assert!(message("zeros.txt", "0 0 0", &default).contains("has no requests"));
    let by = |by: &str| Options {
        by: Some(by.parse().unwrap()),
        ..Options::default()
    };
    assert!(message("by-ip.txt", "1 2 3", &by("ip")).contains("--by global"));
    assert!(message("by-user.log", ACCESS, &by("user")).contains("has no `user`: choose from ip"));
    let missing = load(&[Source::File("no/such/file.log".into())], &default).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("cannot open no/such/file.log")
    );
    let mixed = [
        file("mixed-1.txt", b"1 2"),
        file("mixed-2.log", ACCESS.as_bytes()),
    ];
    assert!(matches!(
        load(&mixed, &default),
        Err(InputError::Mixed { .. })
    ));
}

#[test]
fn a_cut_archive_is_an_error_that_says_where() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..10_000 {
        packed.write_all(ACCESS.as_bytes()).unwrap();
    }
    let packed = packed.finish().unwrap();
    let error = load(
        &[file("cut.log.gz", &packed[..packed.len() / 2])],
        &Options::default(),
    )
    .unwrap_err();
    assert!(
        matches!(error, InputError::Read { after: 1.., .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("cut.log.gz after line"),
        "{error}"
    );
}

fn texts(packed: &[u8]) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    unpack(packed, |input| {
        let mut text = String::new();
        input.read_to_string(&mut text)?;
        texts.push(text);
        Ok::<(), io::Error>(())
    })?;
    Ok(texts)
}

fn text(packed: &[u8]) -> io::Result<String> {
    texts(packed).map(|texts| texts.concat())
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn bzip2(text: &[u8]) -> Vec<u8> {
    let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *text).unwrap();
    }
    archive.into_inner().unwrap()
}

/// `printf '1 2 3\n' | zstd` and `| xz`.
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00\x31\x20\x32\x20\x33\x0a\x2a\x71\x24\x71";
const XZ: &[u8] = b"\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\x01\x00\x05\x31\x20\x32\x20\x33\x0a\x00\x00\x00\xe3\x4d\x3a\x5d\x05\xc7\x88\x46\x00\x01\x1e\x06\xc1\x2f\xa4\x1d\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a";

#[test]
fn the_same_text_comes_out_of_every_wrapping() {
    let plain = b"1 2 3\n";
    let tar = archive(&[("workload.txt", plain)]);
    for packed in [
        plain.to_vec(),
        gzip(plain),
        bzip2(plain),
        ZSTD.to_vec(),
        XZ.to_vec(),
        tar.clone(),
        gzip(&tar),
        bzip2(&gzip(&tar)),
        gzip(&archive(&[("log.zst", ZSTD)])),
    ] {
        assert_eq!(text(&packed).unwrap(), "1 2 3\n");
    }
}

#[test]
fn members_after_the_first_are_read_too() {
    for packed in [
        [gzip(b"1 2 3\n"), gzip(b"two\n")],
        [bzip2(b"1 2 3\n"), bzip2(b"two\n")],
    ] {
        assert_eq!(text(&packed.concat()).unwrap(), "1 2 3\ntwo\n");
    }
    for packed in [ZSTD, XZ] {
        assert_eq!(text(&packed.repeat(2)).unwrap(), "1 2 3\n1 2 3\n");
    }
}

#[test]
fn every_file_of_an_archive_is_a_text_of_its_own() {
    let tar = archive(&[
        ("a.log", b"one"),
        ("b.log.gz", &gzip(b"two")),
        ("c/d.log", b"three"),
    ]);
    assert_eq!(texts(&tar).unwrap(), ["one", "two", "three"]);
}

#[test]
fn an_empty_file_is_empty_text() {
    assert_eq!(text(b"").unwrap(), "");
}

#[test]
fn a_cut_file_is_an_error_and_not_a_short_text() {
    let tar = archive(&[("a.log", &[b'x'; 2_000])]);
    for packed in [
        &gzip(b"some lines of text\n")[..],
        &bzip2(b"some lines of text\n"),
        ZSTD,
        XZ,
    ] {
        assert!(text(&packed[..packed.len() - 5]).is_err());
    }
    assert!(text(&tar[..1_000]).is_err());
}

#[test]
fn a_format_that_is_not_read_says_how_to_pipe_it() {
    let error = text(b"PK\x03\x04....").unwrap_err();
    assert!(error.to_string().contains("unzip -p FILE |"), "{error}");
}

#[test]
fn archives_nested_too_deep_are_refused() {
    let deep = |layers| (0..layers).fold(b"text".to_vec(), |inner, _| gzip(&inner));
    assert_eq!(text(&deep(4)).unwrap(), "text");
    assert_eq!(
        text(&deep(5)).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
}
