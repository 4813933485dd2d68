//! Lines of logs, read as the follower of a log reads them: on lines as servers and log collectors
//! write them, and compared with naive readers on random ones.

use proptest::prelude::*;
use tidegate_sim::{
    Workload,
    input::{
        AccessLine, By, ByError, Condition, Field, Filter, Format, LineError, Lines, Options,
        TimeField, parse_access_log_time, parse_rfc3339, read_lines,
    },
};

include!("../good_lines/mod.rs");

const COMBINED: &[u8] = br#"83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /a/b.png?x=1 HTTP/1.1" 200 203 "http://e/" "Mozilla \"5\" (X)""#;
const LINE: &str = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
const MAY: u64 = 1_431_857_103_000_000_000;

fn by(text: &str) -> Options {
    Options {
        by: Some(text.parse().unwrap()),
        ..Options::default()
    }
}

fn lines_of(format: Format, text: &[u8], options: &Options) -> Lines {
    read_lines(text, &mut Some(format), options).unwrap()
}

/// The format that is found in lines.
fn detect(text: &[u8]) -> Option<Format> {
    let mut found = None;
    // Requests per second are found, and then refused.
    let _ = read_lines(text, &mut found, &Options::default());
    found
}

/// The time and the key of a line of this format, or why it is no request.
fn request(format: Format, line: &str, options: &Options) -> Result<(u64, String), LineError> {
    let Lines {
        trace, unparsed, ..
    } = lines_of(format, line.as_bytes(), options);
    match unparsed.first.into_iter().next() {
        Some(failed) => Err(failed.error),
        None => Ok((trace.span().0, trace.label(0))),
    }
}

fn json(line: &str, time: Option<&str>, key: &str) -> Result<(u64, String), LineError> {
    let options = Options {
        time_field: TimeField::new(time.map(str::to_owned)),
        ..by(key)
    };
    request(Format::JsonLines, line, &options)
}

#[test]
fn a_combined_line_gives_every_part() {
    let line = AccessLine::parse(COMBINED).unwrap();
    assert_eq!(line.ip, b"83.149.9.216");
    assert_eq!(line.time, MAY);
    assert_eq!(
        (line.method, line.path, line.status),
        (&b"GET"[..], &b"/a/b.png"[..], &b"200"[..])
    );
    assert_eq!(line.user_agent(), Some(&br#"Mozilla \"5\" (X)"#[..]));
}

#[test]
fn every_good_line_is_found_to_be_of_its_format() {
    for (format, line) in GOOD {
        assert_eq!(detect(line.as_bytes()), Some(format), "{line}");
    }
}

#[test]
fn a_common_line_has_no_user_agent() {
    let text = r#"::1 - - [17/May/2015:10:05:03 +0000] "HEAD / HTTP/1.0" 304 -"#;
    let line = AccessLine::parse(text.as_bytes()).unwrap();
    assert_eq!(
        (line.ip, line.method, line.user_agent()),
        (&b"::1"[..], &b"HEAD"[..], None)
    );
    assert_eq!(
        request(Format::AccessLog, text, &by("user-agent")),
        Err(LineError::NoUserAgent)
    );
}

#[test]
fn a_time_may_be_as_rfc3339_writes_it() {
    let line =
        AccessLine::parse(br#"1.2.3.4 - - [2015-05-17T10:05:03+00:00] "GET / HTTP/1.1" 200 5"#)
            .unwrap();
    assert_eq!(line.time, MAY);
}

#[test]
fn each_format_gives_every_part() {
    for (format, line, time, parts) in [
        (
            Format::VhostCombined,
            r#"shop.example.com:443 10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#,
            MAY,
            "10.0.0.7 GET /a 200 shop.example.com curl",
        ),
        (
            Format::Envoy,
            r#"[2015-05-17T10:05:03.250Z] "POST /api/v1/locations?x=1 HTTP/2" 204 - 154 0 226 100 "198.51.100.7, 10.0.35.28" "nsq2http" "cc21d9b0-cf5c" "locations" "tcp://10.0.2.1:80""#,
            MAY + 250_000_000,
            "10.0.35.28 POST /api/v1/locations 204 locations nsq2http",
        ),
        (
            Format::Alb,
            r#"https 2015-05-17T10:05:03.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 201 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn "Root=1" "www.example.com""#,
            MAY + 186_641_000 - 171_000_000, // the processing times before the end
            "192.168.131.39 GET /a 200 www.example.com curl/7.46.0",
        ),
    ] {
        assert_eq!(detect(line.as_bytes()), Some(format));
        let options = by("ip,method,path,status,host,user-agent");
        assert_eq!(
            request(format, line, &options),
            Ok((time, parts.to_owned()))
        );
    }
}

#[test]
fn a_common_line_has_no_vhost_whoever_the_client_and_the_user_are() {
    for line in [
        COMBINED,
        br#"::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
        br#"::1 - Jane Doe [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
        br#"host.example.com - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
        br#"10.0.0.1 10.0.0.2 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#,
    ] {
        assert_eq!(
            detect(line),
            Some(Format::AccessLog),
            "{}",
            String::from_utf8_lossy(line)
        );
    }
}

#[test]
fn a_line_without_http_is_still_a_request() {
    let line = AccessLine::parse(
        br#"1.2.3.4 - a [b] [17/May/2015:10:05:03 +0000] "\x16\x03" 400 0 "-" "-""#,
    )
    .unwrap();
    assert_eq!((line.method, line.path), (&b"-"[..], &br"\x16\x03"[..]));
    let line = AccessLine::parse(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "" 408 0"#).unwrap();
    assert_eq!((line.method, line.path), (&b"-"[..], &b""[..]));
}

#[test]
fn a_broken_line_says_what_it_lacks() {
    let error = |line: &[u8]| AccessLine::parse(line).unwrap_err();
    assert_eq!(error(b"# comment"), LineError::NotAccessLog);
    assert_eq!(
        error(br#"1.2.3.4 - - [32/May/2015:10:05:03 +0000] "GET /" 200"#),
        LineError::AccessTime
    );
    assert_eq!(
        error(b"1.2.3.4 - - [17/May/2015:10:05:03 +0000] GET / 200"),
        LineError::NoRequest
    );
    assert_eq!(
        error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HT"#),
        LineError::NoRequest
    );
    assert_eq!(
        error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 20"#),
        LineError::NoStatus
    );
}

#[test]
fn the_time_is_found_under_its_usual_names_or_the_one_given() {
    let second = 1_431_857_103_000_000_000;
    let found = Ok((second, "everything".to_owned()));
    assert_eq!(
        json(r#"{"time":"2015-05-17T10:05:03Z"}"#, None, "global"),
        found
    );
    assert_eq!(json(r#"{"@timestamp":1431857103}"#, None, "global"), found);
    assert_eq!(json(r#"{"ts":"1431857103"}"#, None, "global"), found);
    assert_eq!(
        json(
            r#"{"time":1,"at":{"unix":1431857103000}}"#,
            Some("at.unix"),
            "global"
        ),
        found
    );
    assert_eq!(
        json(r#"{"time":1431857103.25}"#, None, "global"),
        Ok((second + 250_000_000, "everything".into()))
    );
}

#[test]
fn a_key_is_any_field_also_a_nested_one_or_one_with_dots_in_its_name() {
    let line = r#"{"time":1,"user":{"id":7},"a.b":true,"ip":"10.0.0.1"}"#;
    assert_eq!(json(line, None, "user.id").unwrap().1, "7");
    assert_eq!(json(line, None, "a.b,ip").unwrap().1, "true 10.0.0.1");
}

#[test]
fn the_parts_of_a_request_are_found_by_the_names_of_nginx_caddy_and_envoy() {
    let may = 1_431_857_103_000_000_000;
    let by = "ip,method,path,status,user-agent,host";
    for line in [
        r#"{"time_local":"17/May/2015:10:05:03 +0000","msec":"1431857103.000","remote_addr":"10.0.0.1","request":"GET /a?x=1 HTTP/1.1","status":"200","http_user_agent":"curl","http_host":"h"}"#,
        r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"10.0.0.1","request_method":"GET","request_uri":"/a?x=1","status":200,"http_user_agent":"curl","host":"h"}"#,
        r#"{"level":"info","ts":1431857103.0,"logger":"http.log.access","request":{"remote_ip":"10.0.0.9","client_ip":"10.0.0.1","method":"GET","host":"h","uri":"/a?x=1","headers":{"User-Agent":["curl"]}},"status":200}"#,
        r#"{"start_time":"2015-05-17T10:05:03.000Z","downstream_remote_address":"10.0.0.1:4711","method":"GET","path":"/a","response_code":200,"user_agent":"curl","authority":"h"}"#,
    ] {
        assert_eq!(
            json(line, None, by),
            Ok((may, "10.0.0.1 GET /a 200 curl h".into())),
            "{line}"
        );
    }
}

#[test]
fn a_line_without_the_field_lists_its_fields() {
    let no_field = |has: &str| {
        Err(LineError::NoField {
            name: "ip".into(),
            has: has.into(),
        })
    };
    assert_eq!(
        json(r#"{"time":1,"user":{"id":1,"name":"x"}}"#, None, "ip"),
        no_field("time, user.id, user.name")
    );
    assert_eq!(
        json(r#"{"time":1,"ip":null}"#, None, "ip"),
        no_field("ip, time")
    );
    let no_time = Err(LineError::NoTime {
        name: "time".into(),
        has: "when".into(),
    });
    assert_eq!(json(r#"{"when":1}"#, None, "global"), no_time);
    assert_eq!(
        json(r#"{"time":"noon"}"#, None, "global"),
        Err(LineError::Time("time".into()))
    );
    assert_eq!(
        json(r#"{"time":-5}"#, None, "global"),
        Err(LineError::Time("time".into()))
    );
    assert_eq!(json("[1]", None, "global"), Err(LineError::NotJson));
    assert_eq!(json("{\"time\":1", None, "global"), Err(LineError::NotJson));
    let many = (0..40)
        .map(|at| format!("\"f{at:02}\":1"))
        .collect::<Vec<_>>()
        .join(",");
    let error = json(&format!("{{\"time\":1,{many}}}"), None, "ip")
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("f29 and 11 more"), "{error}");
}

#[test]
fn the_format_is_detected_from_most_of_the_first_lines() {
    let access = br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
    assert_eq!(
        detect(&[b"# a comment\n\n", &access[..]].concat()),
        Some(Format::AccessLog)
    );
    let vhost = [b"www.example.com:80 ", &access[..]].concat();
    assert_eq!(detect(&vhost), Some(Format::VhostCombined));
    let envoy =
        br#"[2015-05-17T10:05:03.250Z] "GET / HTTP/2" 200 - 0 5 1 1 "-" "curl" "id" "h" "tcp://h""#;
    assert_eq!(detect(envoy), Some(Format::Envoy));
    let alb = br#"h2 2015-05-17T10:05:03.1Z app/x 1.2.3.4:9 10.0.0.1:80 0 0 0 200 200 0 57 "GET https://h/ HTTP/2" "curl""#;
    assert_eq!(detect(alb), Some(Format::Alb));
    assert_eq!(detect(b"{\"time\":1}\n{\"ti"), Some(Format::JsonLines));
    assert_eq!(detect(b"1 0 0 3\n5 5"), Some(Format::Rate));
    assert_eq!(detect(b"once upon\na time"), None);
    // Words in front of the client are not taken for the client.
    for front in ["app INFO access ", "web-1 : ", "x y z | ", "INFO:access:"] {
        let line = [front.as_bytes(), &access[..]].concat();
        assert_eq!(detect(&line), Some(Format::AccessLog), "{front}");
        let read = lines_of(Format::AccessLog, &line, &by("ip"));
        assert_eq!(read.trace.label(0), "1.2.3.4", "{front}");
    }
    assert_eq!(detect(b"  \n\n"), None);
}

#[test]
fn the_line_of_a_program_is_found_behind_what_collectors_put_in_front() {
    for front in [
        "",
        "2015-05-17T10:05:03.123456789Z stdout F ",
        "2015-05-17T10:05:03.1+02:00 stderr F ",
        "[pod/web-7d9/nginx] ",
        "web-1  | ",
        "<190>May 17 10:05:03 host nginx: ",
        "May  7 10:05:03 host nginx[71]: ",
        "2015-05-17T10:05:03+0200 host nginx[71]: ",
        "2015-05-17T10:05:03+02:00 host nginx[71]: ",
        "<190>1 2015-05-17T10:05:03Z host nginx 71 - - ",
        "<190>1 2015-05-17T10:05:03Z host nginx 71 access [a b=\"c\"] ",
    ] {
        let line = format!("{front}{LINE}");
        let log = format!("{line}\n{line}\nnot a request\n");
        let read = lines_of(Format::AccessLog, log.as_bytes(), &by("ip"));
        assert_eq!(
            (read.trace.label(0), read.trace.requests()),
            ("1.2.3.4".to_owned(), 2),
            "{line}"
        );
        assert_eq!(read.unparsed.count, 1, "{line}");
    }
    let front = "2015-05-17T10:05:03Z stdout";
    let part = format!("{front} F {LINE}\n{front} F {LINE}\n{front} P {LINE}\n");
    let failed = &lines_of(Format::AccessLog, part.as_bytes(), &by("ip"))
        .unparsed
        .first[0];
    assert_eq!(
        (failed.line, &failed.error),
        (3, &LineError::Envelope),
        "a part of a line is none"
    );
}

#[test]
fn a_client_is_an_ipv4_address_64_bits_of_an_ipv6_one_or_any_other_text() {
    let client = |text: &str| {
        json(
            &serde_json::json!({"time": 1, "ip": text}).to_string(),
            None,
            "ip",
        )
        .unwrap()
        .1
    };
    for (texts, expected) in [
        (
            &[
                "2001:db8:1:2::9",
                "2001:DB8:1:2:3:4:5:6",
                "[2001:db8:1:2::9]:443",
                "2001:0db8:0001:0002::1",
            ][..],
            "2001:db8:1:2::/64",
        ),
        (&["::1"], "::/64"),
        (
            &[
                "10.0.0.1",
                "10.0.0.1:5678",
                "::ffff:10.0.0.1",
                "[::ffff:10.0.0.1]:80",
            ],
            "10.0.0.1",
        ),
    ] {
        for text in texts {
            assert_eq!(client(text), expected, "{text}");
        }
    }
    for text in ["crawler.example.com", "-", "unix:", "a:b:c", ""] {
        assert_eq!(client(text), text);
    }
}

#[test]
fn a_key_reads_as_its_parts() {
    let parts: By = "ip, path,global,ip".parse().unwrap();
    assert_eq!(parts.to_string(), "ip,path");
    let line = b"10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET /ab\xff HTTP/1.1\" 200 5";
    let read = lines_of(
        Format::AccessLog,
        line,
        &Options {
            by: Some(parts),
            ..Options::default()
        },
    );
    assert_eq!(read.trace.label(0), "10.0.0.1 /ab\u{fffd}");
}

#[test]
fn an_empty_part_is_refused() {
    assert_eq!("ip,".parse::<By>(), Err(ByError::Empty));
    assert_eq!("".parse::<By>(), Err(ByError::Empty));
}

/// Byte by byte, without a cache: what the fast reader must find. Client, time, method, path,
/// status, user agent.
type Parts = (Vec<u8>, u64, Vec<u8>, Vec<u8>, Vec<u8>, Option<Vec<u8>>);

fn naive(line: &[u8]) -> Option<Parts> {
    let mut at = 0;
    let ip: Vec<u8> = line
        .iter()
        .copied()
        .take_while(|&byte| byte != b' ')
        .collect();
    if ip.is_empty() || ip.len() == line.len() {
        return None;
    }
    at += ip.len();
    let time = loop {
        at += line[at..].iter().position(|&byte| byte == b'[')? + 1;
        let close = line[at..].iter().position(|&byte| byte == b']')?;
        let text = &line[at..at + close];
        let behind = line[at + close + 1..]
            .iter()
            .find(|byte| !byte.is_ascii_whitespace());
        if let Some(time) = parse_access_log_time(text).or_else(|| parse_rfc3339(text))
            && behind == Some(&b'"')
        {
            at += close + 1;
            break time;
        }
    };
    let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
    let text = String::from_utf8(ip.clone()).ok()?;
    let is_client = is_address(&text)
        || text.rsplit_once(':').is_some_and(|(host, port)| {
            is_address(host)
                && (1..6).contains(&port.len())
                && port.bytes().all(|byte| byte.is_ascii_digit())
        });
    let before = &line[ip.len()..line.iter().position(|&byte| byte == b'[')?];
    let others = before
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    let is_name = !text.contains(':') && text.contains(|c: char| c.is_ascii_alphabetic());
    let is_host = is_name && others.count() == 2;
    if !is_client && !is_host {
        return None;
    }
    let skip = |at: &mut usize| {
        while line.get(*at).is_some_and(u8::is_ascii_whitespace) {
            *at += 1;
        }
    };
    let quoted = |at: &mut usize| -> Option<Vec<u8>> {
        skip(at);
        if line.get(*at) != Some(&b'"') {
            return None;
        }
        let (mut text, mut escaped) = (Vec::new(), false);
        loop {
            *at += 1;
            let byte = *line.get(*at)?;
            if byte == b'"' && !escaped {
                *at += 1;
                return Some(text);
            }
            escaped = byte == b'\\' && !escaped;
            text.push(byte);
        }
    };
    let word = |at: &mut usize| -> Vec<u8> {
        skip(at);
        let from = *at;
        while *at < line.len() && line[*at] != b' ' {
            *at += 1;
        }
        line[from..*at].to_vec()
    };
    let is_status = |status: &[u8]| {
        status == b"-" || status.len() == 3 && status.iter().all(u8::is_ascii_digit)
    };
    skip(&mut at);
    let begin = at;
    let mut request = quoted(&mut at);
    let mut status = word(&mut at);
    if request.is_none() || !is_status(&status) {
        // A quote that is not escaped: the first one before a status ends the request.
        let end = (begin + 1..line.len()).find(|&end| {
            at = end + 1;
            line[end] == b'"' && is_status(&word(&mut at))
        })?;
        at = end + 1;
        request = Some(line[begin + 1..end].to_vec());
        status = word(&mut at);
    }
    let request = request?;
    let _bytes = word(&mut at);
    let agent = quoted(&mut at).and_then(|_| quoted(&mut at));
    let mut words = request
        .split(|&byte| byte == b' ')
        .filter(|word| !word.trim_ascii().is_empty());
    let method = words
        .next()
        .map(<[u8]>::trim_ascii_start)
        .unwrap_or_default();
    let (method, path) = match words.next().map(<[u8]>::trim_ascii_start) {
        Some(target) => (
            method.to_vec(),
            target.split(|&byte| byte == b'?').next()?.to_vec(),
        ),
        None => (b"-".to_vec(), request.clone()),
    };
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    let is_request = status != b"-" || method.iter().all(is_method);
    is_request.then_some((ip, time, method, path, status, agent))
}

/// Lines that are nearly right: whole columns, dropped, doubled or replaced.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let time = prop_oneof![
        4 => (1..30_u32, 0..24_u32, 0..60_u32, -12..12_i32)
            .prop_map(|(day, hour, second, zone)| format!("[{day:02}/May/2015:{hour:02}:05:{second:02} {zone:+03}00]")),
        1 => Just("[2015-05-17T10:05:03.5+02:00]".to_owned()),
        1 => "\\[[a-z0-9/: ]{0,30}\\]",
        1 => Just("17/May/2015".to_owned()),
    ];
    let request = prop_oneof![
        4 => "\"(GET|POST) /[a-z]{0,5}(\\?[a-z=]{0,4})? HTTP/1\\.[01]\"",
        1 => "\"[ -~]{0,12}\"",
        1 => "\"[a-z\\\\\" ]{0,12}",
        1 => Just("\"\"".to_owned()),
    ];
    let status = prop_oneof![4 => "[2-5][0-9]{2}", 1 => Just("-".to_owned()), 1 => "[0-9a-z]{0,4}"];
    let agent = prop_oneof![3 => "( \"[a-z/]{0,6}\"){0,3}", 1 => " \"[a-z\\\\\"]{0,9}"];
    (
        "[0-9a-f.:]{0,9}",
        "[a-z\\[\\] -]{0,6}",
        time,
        request,
        status,
        "[0-9-]{0,4}",
        agent,
    )
        .prop_map(|(ip, user, time, request, status, bytes, agent)| {
            format!("{ip} - {user} {time} {request} {status} {bytes}{agent}").into_bytes()
        })
}

/// A star takes any number of bytes: every way is tried.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|from| fits(rest, &text[from..])),
        [byte, rest @ ..] => text.first() == Some(byte) && fits(rest, &text[1..]),
    }
}

/// Found by the fuzz target.
#[test]
fn a_line_with_quotes_or_a_brace_put_in_is_not_one_of_another_format() {
    let quotes = r#"192.0.2.7:33317 [17/May/2015:10:05:03.000] "web app/one 10/0/30/69/109 200 2750" - - ---- 1/1/1/1/0 0/0 "GET /a HTTP/1.1""#;
    assert!(is_read_as(Format::Haproxy, quotes.as_bytes()));
    let brace = GOOD[0].1.replacen('1', "{", 1);
    assert!(is_read_as(Format::AccessLog, brace.as_bytes()));
}

/// Found by the property below: `::` is an address, and `:` in front of it no logger's name.
#[test]
fn a_part_of_a_word_is_not_a_client_behind_a_logger() {
    let line = |front: &str| {
        format!(r#"{front}:: - - [01/May/2015:00:05:00 +0000] "GET / HTTP/1.1" 200 1"#)
    };
    for front in [":", "ab:", "1.2:"] {
        let read = lines_of(Format::AccessLog, line(front).as_bytes(), &by("global"));
        assert_eq!(read.trace.requests(), 0, "{front}");
    }
    let read = lines_of(Format::AccessLog, line("web:").as_bytes(), &by("global"));
    assert_eq!(read.trace.requests(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_fast_reader_reads_what_a_naive_one_reads(lines in prop::collection::vec(lines(), 1..4)) {
        for line in &lines {
            let parts = |line: AccessLine<'_>| {
                let agent = line.user_agent().map(<[u8]>::to_vec);
                (line.ip.to_vec(), line.time, line.method.to_vec(), line.path.to_vec(), line.status.to_vec(), agent)
            };
            let found = AccessLine::parse(line).ok().map(parts);
            prop_assert_eq!(found, naive(line), "{}", String::from_utf8_lossy(line));
        }
        // The lines of a log share what is known of their times.
        let read = lines_of(Format::AccessLog, &lines.join(&b'\n'), &by("global")).trace;
        let found: Vec<u64> = (0..read.keys()).flat_map(|key| read.times(key)).collect();
        let mut expected: Vec<u64> = lines.iter().filter_map(|line| Some(naive(line)?.1)).collect();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_changed_line_is_read_as_its_format_or_refused(
        at in 0..GOOD.len(), edits in prop::collection::vec(any::<[u8; 4]>(), 0..4),
    ) {
        let (format, line) = GOOD[at];
        // Bytes that occur in logs change more than others.
        let byte = |byte: u8| if byte < 128 { b" \"[]:.-/0a,={"[usize::from(byte) % 13] } else { byte };
        let edits: Vec<_> = edits.iter().map(|edit| Edit { byte: byte(edit[3]), ..edit_of(edit) }).collect();
        let changed = edited(line, &edits);
        prop_assert!(is_read_as(format, &changed), "{}", String::from_utf8_lossy(&changed));
        prop_assert!(is_read_as(format, line.as_bytes()));
    }

    #[test]
    fn no_line_makes_a_reader_panic(
        noise in prop::collection::vec(any::<u8>(), 0..20), at in 0..COMBINED.len(), cut in 0..20_usize,
    ) {
        let mut line = COMBINED.to_vec();
        let end = (at + cut).min(line.len());
        line.splice(at..end, noise);
        let key = by("ip,path,method,status");
        for format in [Format::VhostCombined, Format::Envoy, Format::Alb, Format::Haproxy] {
            let _ = lines_of(format, &line, &key);
        }
        let unparsed = lines_of(Format::AccessLog, &line, &key).unparsed;
        if !line.contains(&b'\n') {
            match unparsed.first.into_iter().next() {
                Some(failed) => prop_assert_eq!(AccessLine::parse(&line).err(), Some(failed.error)),
                // What is in front of a line may be a logger's.
                None => prop_assert!((0..line.len()).any(|at| AccessLine::parse(&line[at..]).is_ok())),
            }
        }
    }

    #[test]
    fn a_pattern_fits_what_trying_every_way_fits(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
        let condition = Condition::new(Field::Named("f".to_owned()), pattern.clone());
        let filter = Filter { exclude: vec![condition], ..Filter::default() };
        let line = serde_json::json!({"time": 1, "f": text}).to_string();
        let read = lines_of(Format::JsonLines, line.as_bytes(), &Options { filter, ..by("global") });
        prop_assert_eq!(read.trace.requests() == 0, fits(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn different_parts_never_make_the_same_key(
        a in prop::collection::vec("[\0-\x03]{0,5}", 2), b in prop::collection::vec("[\0-\x03]{0,5}", 2),
    ) {
        let line = |parts: &[String]| serde_json::json!({"time": 1, "x": parts[0], "y": parts[1]}).to_string();
        let log = format!("{}\n{}", line(&a), line(&b));
        let read = lines_of(Format::JsonLines, log.as_bytes(), &by("x,y"));
        prop_assert_eq!(read.trace.requests(), 2);
        prop_assert_eq!(read.trace.keys() == 1, a == b);
    }
}
