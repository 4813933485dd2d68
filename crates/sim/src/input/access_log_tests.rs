//! The reader of access logs on lines as servers write them, and compared with a naive reader on random ones.

use proptest::prelude::*;

use super::*;
use crate::input::timestamp::{parse_access_log_time, parse_rfc3339};
use crate::workload::By;

const COMBINED: &[u8] = br#"83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /a/b.png?x=1 HTTP/1.1" 200 203 "http://e/" "Mozilla \"5\" (X)""#;
const MAY: u64 = 1_431_857_103_000_000_000;

#[test]
fn a_combined_line_gives_every_part() {
    let line = AccessLine::parse(COMBINED).unwrap();
    assert_eq!(line.ip, b"83.149.9.216");
    assert_eq!(line.time, MAY);
    assert_eq!((line.method, line.path, line.status), (&b"GET"[..], &b"/a/b.png"[..], &b"200"[..]));
    assert_eq!(line.user_agent(), Some(&br#"Mozilla \"5\" (X)"#[..]));
}

#[test]
fn a_common_line_has_no_user_agent() {
    let line = AccessLine::parse(br#"::1 - - [17/May/2015:10:05:03 +0000] "HEAD / HTTP/1.0" 304 -"#).unwrap();
    assert_eq!((line.ip, line.method, line.user_agent()), (&b"::1"[..], &b"HEAD"[..], None));
    let by: By = "user-agent".parse().unwrap();
    assert_eq!(line.key(&by, &mut Vec::new()), Err(LineError::NoUserAgent));
}

#[test]
fn a_time_may_be_as_rfc3339_writes_it() {
    let line =
        AccessLine::parse(br#"1.2.3.4 - - [2015-05-17T10:05:03+00:00] "GET / HTTP/1.1" 200 5"#).unwrap();
    assert_eq!(line.time, MAY);
}

#[test]
fn the_client_of_vhost_combined_is_the_second_column() {
    let line = br#"shop.example.com:443 10.0.0.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#;
    assert!(AccessLine::has_vhost(line));
    let line = AccessLine::vhost(line, &mut TimeCache::default()).unwrap();
    assert_eq!(
        (line.ip, line.host, line.path),
        (&b"10.0.0.7"[..], Some(&b"shop.example.com"[..]), &b"/a"[..])
    );
    assert_eq!(line.user_agent(), Some(&b"curl"[..]));
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
        assert!(!AccessLine::has_vhost(line), "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn envoys_default_line_gives_every_part() {
    let line = br#"[2015-05-17T10:05:03.250Z] "POST /api/v1/locations?x=1 HTTP/2" 204 - 154 0 226 100 "198.51.100.7, 10.0.35.28" "nsq2http" "cc21d9b0-cf5c" "locations" "tcp://10.0.2.1:80""#;
    let line = AccessLine::envoy(line, &mut TimeCache::default()).unwrap();
    assert_eq!((line.ip, line.time), (&b"10.0.35.28"[..], MAY + 250_000_000));
    assert_eq!((line.method, line.path, line.status), (&b"POST"[..], &b"/api/v1/locations"[..], &b"204"[..]));
    assert_eq!((line.host, line.user_agent()), (Some(&b"locations"[..]), Some(&b"nsq2http"[..])));
}

#[test]
fn a_load_balancers_line_gives_every_part() {
    let line = br#"https 2015-05-17T10:05:03.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 201 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn "Root=1" "www.example.com""#;
    let line = AccessLine::alb(line, &mut TimeCache::default()).unwrap();
    assert_eq!((line.ip, line.time), (&b"192.168.131.39:2817"[..], MAY + 186_641_000));
    assert_eq!((line.method, line.path, line.status), (&b"GET"[..], &b"/a"[..], &b"200"[..]));
    assert_eq!((line.host, line.user_agent()), (Some(&b"www.example.com"[..]), Some(&b"curl/7.46.0"[..])));
    let mut key = Vec::new();
    line.key(&By::ip(), &mut key).unwrap();
    assert_eq!(key, b"192.168.131.39");
}

#[test]
fn a_line_without_http_is_still_a_request() {
    let line = AccessLine::parse(br#"1.2.3.4 - a [b] [17/May/2015:10:05:03 +0000] "\x16\x03" 400 0 "-" "-""#)
        .unwrap();
    assert_eq!((line.method, line.path), (&b"-"[..], &br"\x16\x03"[..]));
    let line = AccessLine::parse(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "" 408 0"#).unwrap();
    assert_eq!((line.method, line.path), (&b"-"[..], &b""[..]));
}

#[test]
fn a_broken_line_says_what_it_lacks() {
    let error = |line: &[u8]| AccessLine::parse(line).unwrap_err();
    assert_eq!(error(b"# comment"), LineError::NotAccessLog);
    assert_eq!(error(br#"1.2.3.4 - - [32/May/2015:10:05:03 +0000] "GET /" 200"#), LineError::AccessTime);
    assert_eq!(error(b"1.2.3.4 - - [17/May/2015:10:05:03 +0000] GET / 200"), LineError::NoRequest);
    assert_eq!(error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HT"#), LineError::NoRequest);
    assert_eq!(
        error(br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 20"#),
        LineError::NoStatus
    );
}

/// Byte by byte, without a cache: what the fast reader must find. Client, time, method, path, status, user agent.
type Parts = (Vec<u8>, u64, Vec<u8>, Vec<u8>, Vec<u8>, Option<Vec<u8>>);

fn naive(line: &[u8]) -> Option<Parts> {
    let mut at = 0;
    let ip: Vec<u8> = line.iter().copied().take_while(|&byte| byte != b' ').collect();
    if ip.is_empty() || ip.len() == line.len() {
        return None;
    }
    at += ip.len();
    let time = loop {
        at += line[at..].iter().position(|&byte| byte == b'[')? + 1;
        let close = line[at..].iter().position(|&byte| byte == b']')?;
        let text = &line[at..at + close];
        if let Some(time) = parse_access_log_time(text).or_else(|| parse_rfc3339(text)) {
            at += close + 1;
            break time;
        }
    };
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
    let request = quoted(&mut at)?;
    let status = word(&mut at);
    let is_number = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    if !is_number && status != b"-" {
        return None;
    }
    let _bytes = word(&mut at);
    let agent = quoted(&mut at).and_then(|_| quoted(&mut at));
    let mut words = request.split(|&byte| byte == b' ').filter(|word| !word.trim_ascii().is_empty());
    let method = words.next().map(<[u8]>::trim_ascii_start).unwrap_or_default();
    let (method, path) = match words.next().map(<[u8]>::trim_ascii_start) {
        Some(target) => (method.to_vec(), target.split(|&byte| byte == b'?').next()?.to_vec()),
        None => (b"-".to_vec(), request.clone()),
    };
    Some((ip, time, method, path, status, agent))
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
    ("[0-9a-f.:]{0,9}", "[a-z\\[\\] -]{0,6}", time, request, status, "[0-9-]{0,4}", agent).prop_map(
        |(ip, user, time, request, status, bytes, agent)| {
            format!("{ip} - {user} {time} {request} {status} {bytes}{agent}").into_bytes()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_fast_reader_reads_what_a_naive_one_reads(lines in prop::collection::vec(lines(), 1..4)) {
        // One cache for all, as in a log.
        let mut times = TimeCache::default();
        for line in lines {
            let parts = |line: AccessLine<'_>| {
                let agent = line.user_agent().map(<[u8]>::to_vec);
                (line.ip.to_vec(), line.time, line.method.to_vec(), line.path.to_vec(), line.status.to_vec(), agent)
            };
            let found = AccessLine::common(&line, &mut times).ok().map(parts);
            prop_assert_eq!(found, naive(&line), "{}", String::from_utf8_lossy(&line));
        }
    }

    #[test]
    fn no_line_makes_a_reader_panic(
        noise in prop::collection::vec(any::<u8>(), 0..20), at in 0..COMBINED.len(), cut in 0..20_usize,
    ) {
        let mut line = COMBINED.to_vec();
        let end = (at + cut).min(line.len());
        line.splice(at..end, noise);
        let times = &mut TimeCache::default();
        let _ = (AccessLine::vhost(&line, times), AccessLine::envoy(&line, times), AccessLine::alb(&line, times));
        if let Ok(parsed) = AccessLine::parse(&line) {
            let by: By = "ip,path,method,status".parse().unwrap();
            prop_assert_eq!(parsed.key(&by, &mut Vec::new()), Ok(()));
        }
    }
}
