//! Lines of text in the formats of web servers and proxies:
//!
//! | form | a line |
//! |---|---|
//! | common, combined | `host ident user [time] "request" status bytes "referer" "user agent"` |
//! | `vhost_combined` | `server:port` before that |
//! | Envoy | `[time] "request" status flags received sent duration upstream "forwarded for" "user agent" "id" "authority" …` |
//! | AWS | `type time elb client:port target:port … status … "request" "user agent" …`; a classic balancer writes no type |
//! | HAProxy | `client:port [time] frontend backend/server timers status … "request"` |
//! | Squid, Traffic Server | `time duration client code/status bytes method url user hierarchy/server type` |
//! | granian | `[time] client - "request" status duration` |
//! | Tornado | `[I time module:line] status method target (client) duration` |
//! | gin | `[GIN] time \| status \| duration \| client \| method "target"` |
//!
//! A line is read only if each column holds what it must: a time in the time's place, a client that
//! is an address (or the name of a host), a request and a status. A time is written as
//! `17/May/2015:10:05:03 +0000` or in the form of RFC 3339. Nothing is copied, and the part of a
//! line after the status is parsed only on request.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2, memrchr};

use tidegate_headers::Forwarded;

use super::{
    client::{has_port, is_address, without_port},
    line::LineError,
    request::{AddressList, LogRequest, Stamp},
    target::{self, split_request, split_target},
    timestamp::{TimeCache, gin_time, parse_unix, tornado_time},
};
use crate::workload::Field;

const SECOND: f64 = 1e9;
const MILLI: f64 = 1e6;

/// The parts of a line that may be part of a key. Texts are as in the log, including escapes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessLine<'a> {
    /// The client: an address without its port, or a host's name. Envoy's is the last address of
    /// `x-forwarded-for`, and empty if there is none.
    pub ip: &'a [u8],
    /// Nanoseconds since 1970.
    pub time: u64,
    /// `-` if the request has no method (not HTTP, or nothing was sent).
    pub method: &'a [u8],
    /// The path without the query and without a host; if the request has no method, the whole
    /// request.
    pub path: &'a [u8],
    /// Three digits, or `-`.
    pub status: &'a [u8],
    /// The requested host, if the format or the request has it.
    pub host: Option<&'a [u8]>,
    tail: Tail<'a>,
    /// The bytes of the answer, if they are not behind the status.
    bytes: Option<&'a [u8]>,
    /// How long the request took, in nanoseconds.
    took: Option<u64>,
    stamp: Option<Stamp>,
    /// The list of addresses, if the last of them is the client.
    forwarded: Option<&'a [u8]>,
}

/// The position of the user agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail<'a> {
    /// After the bytes and the referer, if it is present.
    Combined(&'a [u8]),
    Found(Option<&'a [u8]>),
}

impl<'a> AccessLine<'a> {
    /// Parses a line of a common or combined log.
    ///
    /// # Errors
    /// If the line has no client, no time in brackets, no request in quotes, or no status.
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        Self::common(line, &mut TimeCache::default())
    }

    pub(super) fn common(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let blank = memchr(b' ', line).ok_or(LineError::NotAccessLog)?;
        let (ip, rest) = line.split_at(blank);
        if ip.is_empty() {
            return Err(LineError::NotAccessLog);
        }
        let (time, request) = time_of_request(rest, times)?;
        let before = &rest[..rest.len() - request.len()];
        if !is_client(ip, before) {
            return Err(LineError::NotClient);
        }
        let [request, status, tail] = request_and_status(request)?;
        let line = Self {
            tail: Tail::Combined(tail),
            ..Self::of_request(ip, time, request, status)
        };
        // Any text may be a bad request, but that has a status.
        let is_method = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
        if status == b"-" && !line.method.iter().all(is_method) {
            return Err(LineError::NoStatus);
        }
        Ok(line)
    }

    /// A line with these parts and no others.
    fn of_request(ip: &'a [u8], time: u64, request: &'a [u8], status: &'a [u8]) -> Self {
        let (method, target) = split_request(request);
        let (host, path) = if method == b"-" {
            (None, target)
        } else {
            split_target(target)
        };
        Self {
            ip,
            time,
            method,
            path,
            status,
            host,
            tail: Tail::Found(None),
            bytes: None,
            took: None,
            stamp: None,
            forwarded: None,
        }
    }

    /// Parses a line with the server's name and port in front.
    pub(super) fn vhost(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (host, rest) = word(line);
        let rest = rest.trim_ascii_start();
        if !Self::has_vhost(host, word(rest).0) {
            return Err(LineError::NotVhost);
        }
        let line = Self::common(rest, times)?;
        // The port is the server's own, and says nothing about the host.
        let host = Some(target::without_port(host));
        Ok(Self { host, ..line })
    }

    /// Whether the first column is a server's name and the second one the client.
    fn has_vhost(first: &[u8], second: &[u8]) -> bool {
        let names_port = target::without_port(first).len() + 1 < first.len();
        let is_client = is_address(second) || has_port(second);
        let host = target::without_port(first);
        let is_host = is_name(host) || (names_port && is_address(host));
        is_host && (is_client || (names_port && is_name(second)))
    }

    /// Parses a line in Envoy's default format.
    pub(super) fn envoy(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (time, request) = leading_time(line, times).ok_or(LineError::NotEnvoy)?;
        let (request, rest) = quoted(request).ok_or(LineError::NotEnvoy)?;
        let (status, rest) = word(rest);
        if status.is_empty() || !status.iter().all(u8::is_ascii_digit) {
            return Err(LineError::NoStatus);
        }
        // Response flags and details, connection and upstream failure reasons, then numbers. The
        // next quote ends them, except for a quote inside a reason, which hardly ever occurs in a
        // log.
        let quote = memchr(b'"', rest).ok_or(LineError::NotEnvoy)?;
        let mut numbers = rest[..quote]
            .rsplit(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        // From the last one: time of the upstream, duration, bytes sent.
        let (_, took, bytes) = (numbers.next(), numbers.next(), numbers.next());
        let took = took
            .and_then(|took| nanos(took, MILLI))
            .ok_or(LineError::NotEnvoy)?;
        let (forwarded, rest) = quoted(&rest[quote..]).ok_or(LineError::NotEnvoy)?;
        let (agent, rest) = quoted(rest).ok_or(LineError::NotEnvoy)?;
        let authority = quoted(rest)
            .and_then(|(_id, rest)| quoted(rest))
            .map(|(authority, _)| authority);
        let last = memrchr(b',', forwarded).map_or(forwarded, |comma| &forwarded[comma + 1..]);
        let last = last.trim_ascii();
        let ip = if is_address(last) || has_port(last) {
            last
        } else {
            b""
        };
        let line = Self::of_request(ip, time, request, status);
        Ok(Self {
            host: authority.or(line.host),
            tail: Tail::Found(Some(agent)),
            bytes,
            took: Some(took),
            stamp: Some(Stamp::Start),
            forwarded: Some(forwarded),
            ..line
        })
    }

    /// Parses a line of an AWS application load balancer, or of a classic one, which begins with
    /// the time.
    pub(super) fn alb(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (kind, rest) = word(line);
        let is_kind = ["http", "https", "h2", "grpcs", "ws", "wss"]
            .iter()
            .any(|known| known.as_bytes() == kind);
        let (time, rest) = if is_kind { word(rest) } else { (kind, rest) };
        let wrong = if is_kind {
            LineError::AlbTime
        } else {
            LineError::NotAlb
        };
        let time = times.read_rfc3339(time).ok_or(wrong)?;
        let (_elb, rest) = word(rest);
        let (ip, rest) = word(rest);
        let ip = without_port(ip).ok_or(LineError::NotAlb)?;
        let before = memchr(b'"', rest).ok_or(LineError::NoRequest)?;
        // Target, three processing times, the balancer's status, the target's, bytes received and
        // sent.
        let columns: [&[u8]; 8] = nth_words(&rest[..before]).ok_or(LineError::NotAlb)?;
        let (status, _) = status(columns[4]).map_err(|_| LineError::NotAlb)?;
        // A negative time stands for a part that did not happen.
        let took = columns[1..4]
            .iter()
            .map(|part| nanos(part, SECOND))
            .try_fold(0_u64, |sum, part| sum.checked_add(part?));
        let (request, rest) = quoted(&rest[before..]).ok_or(LineError::NoRequest)?;
        Ok(Self {
            tail: Tail::Found(quoted(rest).map(|(agent, _)| agent)),
            bytes: Some(columns[7]),
            took,
            // A classic balancer writes when it received the request.
            stamp: Some(if is_kind { Stamp::End } else { Stamp::Start }),
            ..Self::of_request(ip, time, request, status)
        })
    }

    /// Parses a line of HAProxy (`option httplog`).
    pub(super) fn haproxy(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (client, rest) = word(line);
        let ip = without_port(client)
            .or_else(|| client.starts_with(b"unix:").then_some(client))
            .ok_or(LineError::NotHaproxy)?;
        let (time, rest) =
            leading_time(rest.trim_ascii_start(), times).ok_or(LineError::NotHaproxy)?;
        // Frontend, backend and server, timers, status. The request is the last column.
        let columns: [&[u8]; 5] = nth_words(rest).ok_or(LineError::NotHaproxy)?;
        let is_server = memchr(b'/', columns[1]).is_some();
        let mut timers = columns[2].split(|&byte| byte == b'/');
        let took = timers.clone().nth(4).ok_or(LineError::NotHaproxy)?;
        let is_timer = |timer: &[u8]| {
            let digits = unsigned(timer);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        };
        let (status, _) = status(columns[3]).or_else(|error| match columns[3] {
            b"-1" => Ok((&b"-"[..], &b""[..])),
            _ => Err(error),
        })?;
        if !is_server || !timers.all(is_timer) {
            return Err(LineError::NotHaproxy);
        }
        let quote = memchr(b'"', rest).ok_or(LineError::NotHaproxy)?;
        let (request, _) = quoted(&rest[quote..]).ok_or(LineError::NoRequest)?;
        Ok(Self {
            bytes: Some(columns[4]),
            took: nanos(took.strip_prefix(b"+").unwrap_or(took), MILLI),
            stamp: Some(Stamp::Start),
            ..Self::of_request(ip, time, request, status)
        })
    }

    /// Parses a line of Squid's native log, or of Traffic Server's `squid` format.
    pub(super) fn squid(line: &'a [u8]) -> Result<Self, LineError> {
        let columns: [&[u8]; 10] = nth_words(line).ok_or(LineError::NotSquid)?;
        let [
            time,
            took,
            ip,
            code,
            bytes,
            method,
            url,
            _user,
            hierarchy,
            _kind,
        ] = columns;
        let is_time = time.len() > 4 && time[time.len() - 4] == b'.' && time[0].is_ascii_digit();
        let time = std::str::from_utf8(time)
            .ok()
            .filter(|_| is_time)
            .and_then(parse_unix)
            .ok_or(LineError::NotSquid)?;
        let slash = memchr(b'/', code).ok_or(LineError::NotSquid)?;
        let status = &code[slash + 1..];
        let is_code = code[..slash]
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || *byte == b'_');
        let numbers = took.iter().chain(bytes).all(u8::is_ascii_digit);
        let fits = is_code && is_status(status) && numbers && memchr(b'/', hierarchy).is_some();
        if !fits || !(is_address(ip) || is_name(ip)) {
            return Err(LineError::NotSquid);
        }
        let (host, path) = split_target(url);
        Ok(Self {
            ip,
            time,
            method,
            path,
            status,
            host,
            tail: Tail::Found(None),
            bytes: Some(bytes),
            took: nanos(took, MILLI),
            stamp: Some(if is_squid(line, took, hierarchy) {
                Stamp::End
            } else {
                Stamp::Start
            }),
            forwarded: None,
        })
    }

    /// Parses a line of granian.
    pub(super) fn granian(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (time, rest) = leading_time(line, times).ok_or(LineError::NotGranian)?;
        let (ip, rest) = word(rest);
        let request = rest.strip_prefix(b" - ").ok_or(LineError::NotGranian)?;
        if !is_address(ip) {
            return Err(LineError::NotGranian);
        }
        let [request, status, rest] = request_and_status(request)?;
        let took = nanos(rest.trim_ascii(), MILLI).ok_or(LineError::NotGranian)?;
        Ok(Self {
            took: Some(took),
            stamp: Some(Stamp::Start),
            ..Self::of_request(ip, time, request, status)
        })
    }

    /// Parses a line of Tornado.
    pub(super) fn tornado(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let parse = || {
            let inside = line.strip_prefix(b"[")?;
            let (level, rest) = word(inside);
            let close = memchr(b']', rest)?;
            let time = rest[..close].trim_ascii_start();
            let time = &time[..memrchr(b' ', time)?];
            let (status, rest) = word(&rest[close + 1..]);
            let open = memchr::memmem::rfind(rest, b" (")?;
            let (ip, took) = rest[open + 2..].split_at(memchr(b')', &rest[open + 2..])?);
            let took = took[1..].trim_ascii().strip_suffix(b"ms")?;
            let fits = level.len() == 1 && is_status(status) && is_address(ip);
            fits.then_some((
                time,
                status,
                rest[..open].trim_ascii(),
                ip,
                nanos(took, MILLI)?,
            ))
        };
        let (time, status, request, ip, took) = parse().ok_or(LineError::NotTornado)?;
        let time = times
            .read_local(time, tornado_time)
            .ok_or(LineError::NotTornado)?;
        Ok(Self {
            took: Some(took),
            stamp: Some(Stamp::End),
            ..Self::of_request(ip, time, request, status)
        })
    }

    /// Parses a line of gin.
    pub(super) fn gin(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let rest = line.strip_prefix(b"[GIN] ").ok_or(LineError::NotGin)?;
        let mut columns = rest.splitn(5, |&byte| byte == b'|').map(<[u8]>::trim_ascii);
        let mut column = || columns.next().ok_or(LineError::NotGin);
        let (time, status, took, ip, request) =
            (column()?, column()?, column()?, column()?, column()?);
        let (method, target) = word(request);
        let (target, _) = quoted(target).ok_or(LineError::NotGin)?;
        let took = go_duration(took).ok_or(LineError::NotGin)?;
        if !is_status(status) || !is_address(ip) {
            return Err(LineError::NotGin);
        }
        let (host, path) = split_target(target);
        Ok(Self {
            method,
            path,
            host,
            took: Some(took),
            stamp: Some(Stamp::End),
            ..Self::of_request(
                ip,
                times.read_local(time, gin_time).ok_or(LineError::NotGin)?,
                b"",
                status,
            )
        })
    }

    /// Whether the client is an address with a port, for which `::1:80` is not an address alone.
    pub(super) fn client_has_port(&self) -> bool {
        has_port(self.ip)
    }

    /// The line, with a client without a port.
    pub(super) fn without_port(self) -> Self {
        Self {
            ip: without_port(self.ip).unwrap_or(self.ip),
            ..self
        }
    }

    /// The user agent; the combined format and later ones have it.
    pub fn user_agent(&self) -> Option<&'a [u8]> {
        match self.tail {
            Tail::Found(agent) => agent,
            Tail::Combined(rest) => {
                let (_bytes, rest) = word(rest);
                quoted(rest)
                    .and_then(|(_referer, rest)| quoted(rest))
                    .map(|(agent, _)| agent)
            }
        }
    }
}

/// Whether a first column is a client. A user's name may contain blanks if the client is an
/// address; a client with a name has two columns between it and the time, its identity and its
/// user.
fn is_client(first: &[u8], before_request: &[u8]) -> bool {
    if is_address(first) || first.starts_with(b"unix:") {
        return true;
    }
    if has_port(first) {
        // Followed by a client, it would be the server's.
        return !is_address(word(before_request).0);
    }
    let time = memchr(b'[', before_request).unwrap_or(before_request.len());
    let others = before_request[..time].split(|&byte| byte == b' ');
    is_name(first) && others.filter(|word| !word.is_empty()).count() == 2
}

/// Whether Squid wrote the line, and not Traffic Server, which has the same columns and writes when a
/// request began. Squid fills a duration up to six columns with blanks; for longer ones
/// Squid's names for a route decide.
fn is_squid(line: &[u8], took: &[u8], hierarchy: &[u8]) -> bool {
    if took.len() < 6 {
        return memchr::memmem::find(line, b"  ").is_some_and(|at| line[..at].len() < 20);
    }
    hierarchy.starts_with(b"HIER_") || memchr::memmem::find(hierarchy, b"_PARENT").is_some()
}

/// The time in brackets at the beginning, and the text behind it.
fn leading_time<'a>(line: &'a [u8], times: &mut TimeCache) -> Option<(u64, &'a [u8])> {
    let inside = line.strip_prefix(b"[")?;
    let close = memchr(b']', inside)?;
    let time = times.read_log_time(&inside[..close])?;
    Some((time, inside[close + 1..].strip_prefix(b" ")?))
}

/// HAProxy writes `-1` for a timer that did not run, and `+` for one that did not end.
fn unsigned(timer: &[u8]) -> &[u8] {
    timer
        .strip_prefix(b"+")
        .or_else(|| timer.strip_prefix(b"-"))
        .unwrap_or(timer)
}

impl LogRequest for AccessLine<'_> {
    fn time(&self) -> u64 {
        self.time
    }

    fn took(&self) -> Option<u64> {
        self.took
    }

    fn stamp(&self) -> Option<Stamp> {
        match self.tail {
            Tail::Combined(rest) if is_traefik(rest) => Some(Stamp::Start),
            _ => self.stamp,
        }
    }

    fn is_http(&self) -> bool {
        self.method != b"-"
    }

    fn forwarded(&self) -> Result<Option<AddressList<'_>>, LineError> {
        let list = match (self.forwarded, self.tail) {
            (Some(list), _) => list,
            (None, Tail::Combined(rest)) => {
                let (_bytes, rest) = word(rest);
                quoted(rest)
                    .and_then(|(_referer, rest)| quoted(rest))
                    .and_then(|(_agent, rest)| quoted(rest))
                    .ok_or(LineError::NoForwarded)?
                    .0
            }
            (None, Tail::Found(_)) => return Err(LineError::NoForwarded),
        };
        let is_list = !list.is_empty() && list != b"-";
        Ok(is_list.then_some((Forwarded::XForwardedFor, list.into())))
    }

    fn has_no_peer(&self) -> bool {
        self.forwarded.is_some()
    }

    fn field(&self, field: &Field) -> Result<Cow<'_, [u8]>, LineError> {
        Ok(Cow::Borrowed(match field {
            Field::Forwarded => return Err(LineError::NoForwarded),
            Field::Ip if self.ip.is_empty() => return Err(LineError::NoClient),
            Field::Ip => self.ip,
            Field::Path => self.path,
            Field::Method => self.method,
            Field::Status => self.status,
            Field::UserAgent => self.user_agent().ok_or(LineError::NoUserAgent)?,
            Field::Host => self.host.ok_or(LineError::NoHost)?,
            Field::Named(name) if name == "bytes" => match (self.tail, self.bytes) {
                (Tail::Combined(rest), _) => word(rest).0,
                (_, bytes) => bytes.unwrap_or_default(),
            },
            Field::Named(name) => {
                let has = "ip, path, method, status, user-agent, host".to_owned();
                return Err(LineError::NoField {
                    name: name.clone(),
                    has,
                });
            }
        }))
    }
}

/// Whether the end of a common or combined line is Traefik's: `1 "router" "server" 3ms`.
fn is_traefik(rest: &[u8]) -> bool {
    rest.strip_suffix(b"ms").is_some_and(|rest| {
        let quote = rest.iter().rposition(|&byte| byte == b'"');
        quote.is_some_and(|quote| {
            rest[quote + 1..]
                .trim_ascii()
                .iter()
                .all(u8::is_ascii_digit)
        })
    })
}

/// The first bracket that contains a time and is followed by a quote, and the text from that quote
/// on. A user's name may contain brackets, and even a time in brackets.
fn time_of_request<'a>(
    mut rest: &'a [u8],
    times: &mut TimeCache,
) -> Result<(u64, &'a [u8]), LineError> {
    let mut error = LineError::NotAccessLog;
    while let Some(open) = memchr(b'[', rest) {
        rest = &rest[open + 1..];
        let Some(close) = memchr(b']', rest) else {
            break;
        };
        let behind = rest[close + 1..].trim_ascii_start();
        match times.read_log_time(&rest[..close]) {
            Some(time) if behind.starts_with(b"\"") => return Ok((time, behind)),
            Some(_) => error = LineError::NoRequest,
            None if error == LineError::NotAccessLog => error = LineError::AccessTime,
            None => {}
        }
    }
    Err(error)
}

/// The request in quotes, the status behind it, and the rest of the line. Not every server escapes
/// a quote within the request: then the first quote before a status ends it.
fn request_and_status(rest: &[u8]) -> Result<[&[u8]; 3], LineError> {
    let mut error = LineError::NoRequest;
    if let Some((request, rest)) = quoted(rest) {
        match status(rest) {
            Ok((status, rest)) => return Ok([request, status, rest]),
            Err(wrong) => error = wrong,
        }
    }
    let text = rest.strip_prefix(b"\"").ok_or(LineError::NoRequest)?;
    for quote in memchr_iter(b'"', text) {
        if let Ok((status, rest)) = status(&text[quote + 1..]) {
            return Ok([&text[..quote], status, rest]);
        }
    }
    Err(error)
}

/// The text between the next two quotes, ignoring quotes after a backslash, and the text after it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', &text[from..])?;
        if text[at] == b'"' {
            return Some((&text[..at], &text[at + 1..]));
        }
        // The byte after a backslash is skipped.
        from = (at + 2).min(text.len());
    }
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    text.split_at(memchr(b' ', text).unwrap_or(text.len()))
}

/// The first words of a text.
fn nth_words<const N: usize>(mut text: &[u8]) -> Option<[&[u8]; N]> {
    let mut words = [&[][..]; N];
    for place in &mut words {
        (*place, text) = word(text);
    }
    (!words[N - 1].is_empty()).then_some(words)
}

fn status(text: &[u8]) -> Result<(&[u8], &[u8]), LineError> {
    let (status, rest) = word(text);
    if is_status(status) || status == b"-" {
        Ok((status, rest))
    } else {
        Err(LineError::NoStatus)
    }
}

fn is_status(text: &[u8]) -> bool {
    text.len() == 3 && text.iter().all(u8::is_ascii_digit)
}

fn is_name(text: &[u8]) -> bool {
    let of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    text.iter().all(of_name) && text.iter().any(u8::is_ascii_alphabetic)
}

/// A number of units, as nanoseconds; `None` for other text, also for negative numbers.
fn nanos(text: &[u8], unit: f64) -> Option<u64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // A cast of a float saturates.
    #[allow(clippy::cast_sign_loss)]
    (number.is_finite() && number >= 0.0).then_some((number * unit).round() as u64)
}

/// A duration as Go writes it: `45.2µs`, `1m2.5s`.
fn go_duration(text: &[u8]) -> Option<u64> {
    let mut text = std::str::from_utf8(text).ok()?;
    let mut sum: u64 = 0;
    while !text.is_empty() {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(digits);
        let end = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "h" => 3_600.0 * SECOND,
            "m" => 60.0 * SECOND,
            "s" => SECOND,
            "ms" => MILLI,
            "us" | "µs" | "μs" => 1e3,
            "ns" => 1.0,
            _ => return None,
        };
        sum = sum.checked_add(nanos(number.as_bytes(), unit)?)?;
        text = &rest[end..];
    }
    Some(sum)
}
