// Good lines of each format, and small changes to them: for the tests here and the fuzz target.

/// Good lines.
const GOOD: [(Format, &str); 16] = [
    (Format::AccessLog, r#"192.0.2.7 - bob smith [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#),
    (Format::AccessLog, r#"2001:db8:1:2::9:4711 - - [17/May/2015:10:05:03] "GET /a" 200 5"#),
    (Format::AccessLog, r#"192.0.2.7 [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#),
    (Format::AccessLog, r#"host.example.com - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5"#),
    (Format::VhostCombined, r#"shop.example.com:443 192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#),
    (Format::Envoy, r#"[2015-05-17T10:05:03.000Z] "GET /a HTTP/1.1" 200 - 0 512 3 2 "192.0.2.7" "curl" "6c0e" "h" "10.1.0.3:80""#),
    (Format::Alb, r#"h2 2015-05-17T10:05:03.0Z app/shop/50dc 192.0.2.7:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://h:443/a HTTP/1.1" "curl" - -"#),
    (Format::Alb, r#"2015-05-17T10:05:03.0Z my-elb 192.0.2.7:2817 10.0.0.1:80 0.00 0.01 0.00 200 200 0 29 "GET http://h:80/a HTTP/1.1" "curl" - -"#),
    (Format::Haproxy, r#"192.0.2.7:33317 [17/May/2015:10:05:03.000] web app/one 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /a HTTP/1.1""#),
    (Format::Squid, "1431857103.000    110 192.0.2.7 TCP_MISS/200 4512 GET http://h/a - HIER_DIRECT/203.0.113.5 text/html"),
    (Format::Granian, r#"[2015-05-17 12:05:03 +0200] 192.0.2.7 - "GET /a HTTP/1.1" 200 12.345"#),
    (Format::Tornado, "[I 150517 10:05:03 web:2348] 200 GET /a (192.0.2.7) 2.00ms"),
    (Format::Gin, r#"[GIN] 2015/05/17 - 10:05:03 | 200 |         2ms |       192.0.2.7 | GET      "/a""#),
    (Format::JsonLines, r#"{"time":"2015-05-17T10:05:03Z","ip":"192.0.2.7","path":"/a"}"#),
    (Format::Logfmt, "time=2015-05-17T10:05:03Z ip=192.0.2.7 path=/a"),
    (Format::AccessLog, r#"[2015-05-17 12:05:03 +0200] [7] [INFO] 192.0.2.7:4711 - - [17/May/2015:12:05:03 +0200] "GET /a 1.1" 200 5 "-" "curl""#),
];

/// A change at a place: a byte is replaced, inserted or left out.
#[derive(Clone, Copy, Debug)]
struct Edit {
    place: u16,
    kind: u8,
    byte: u8,
}

fn edit_of(bytes: &[u8]) -> Edit {
    Edit {
        place: u16::from_le_bytes([bytes[0], bytes[1]]),
        kind: bytes[2],
        byte: bytes[3],
    }
}

fn edited(line: &str, edits: &[Edit]) -> Vec<u8> {
    let mut line = line.as_bytes().to_vec();
    for edit in edits {
        let place = usize::from(edit.place) % line.len().max(1);
        match edit.kind % 3 {
            _ if line.is_empty() => {}
            0 => line[place] = edit.byte,
            1 => line.insert(place, edit.byte),
            _ => drop(line.remove(place)),
        }
    }
    // It stays one line.
    line.retain(|byte| *byte != b'\n');
    line
}

/// Whether a line is read as this format, or refused. A name in front of a common line makes it one of
/// `vhost_combined`; two words that are no server are a logger's prefix. The client is the same. A
/// line that begins with a brace is looked at as JSON, and refused if it is none.
fn is_read_as(format: Format, line: &[u8]) -> bool {
    let mut found = None;
    let read = read_lines(line, &mut found, &Options::default());
    let is_refused = read.map_or(true, |read| tidegate_sim::Workload::requests(&read.trace) == 0);
    let pair = [Format::AccessLog, Format::VhostCombined];
    is_refused
        || found == Some(format)
        || (pair.contains(&format) && found.is_some_and(|found| pair.contains(&found)))
}
