//! Lines of text in the formats of web servers and proxies:
//!
//! | form | a line |
//! |---|---|
//! | common, combined | `host ident user [time] "request" status bytes "referer" "user agent"` |
//! | `vhost_combined` | `server:port` before that |
//! | Envoy | `[time] "request" status flags received sent duration upstream "forwarded for" "user agent" "id" "authority" …` |
//! | AWS | `type time elb client:port target:port … status … "request" "user agent" …`; a classic balancer writes no type |
//! | HAProxy | `client:port [time] frontend backend/server timers status … "request"` |
//!
//! A time is written as `17/May/2015:10:05:03 +0000` or in the form of RFC 3339. Nothing is copied,
//! and the part of a line after the status is parsed only on request.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::{
    client::{address, is_address},
    line::LineError,
    request::LogRequest,
    timestamp::{TimeCache, parse_rfc3339},
};
use crate::workload::Field;

/// The parts of a line that may be part of a key. Texts are as in the log, including escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLine<'a> {
    /// The client: the first column, `client:port` (ALB), or the last address of `x-forwarded-for`
    /// (Envoy).
    pub ip: &'a [u8],
    /// Nanoseconds since 1970.
    pub time: u64,
    /// `-` if the request has no method (not HTTP, or nothing was sent).
    pub method: &'a [u8],
    /// The path without the query; if the request has no method, the whole request.
    pub path: &'a [u8],
    /// Three digits, or `-`.
    pub status: &'a [u8],
    /// The requested host, if the format has it.
    pub host: Option<&'a [u8]>,
    agent: Agent<'a>,
    /// The bytes of the answer, if they are not behind the status.
    bytes: Option<&'a [u8]>,
}

/// The position of the user agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent<'a> {
    /// After the bytes and the referer, if it is present.
    Behind(&'a [u8]),
    Found(Option<&'a [u8]>),
}

impl<'a> AccessLine<'a> {
    /// Parses a line of a common or combined log.
    ///
    /// # Errors
    /// If the line has no host, no time in brackets, no request in quotes, or no status.
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        Self::common(line, &mut TimeCache::default())
    }

    pub(super) fn common(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let blank = memchr(b' ', line).ok_or(LineError::NotAccessLog)?;
        let (ip, rest) = line.split_at(blank);
        if ip.is_empty() {
            return Err(LineError::NotAccessLog);
        }
        let (time, rest) = bracketed_time(rest, times)?;
        let (request, rest) = quoted(rest).ok_or(LineError::NoRequest)?;
        let (status, rest) = status(rest)?;
        let (method, path) = split_request(request);
        Ok(Self {
            ip,
            time,
            method,
            path,
            status,
            host: None,
            agent: Agent::Behind(rest),
            bytes: None,
        })
    }

    /// Parses a line with the server's name and port in front.
    pub(super) fn vhost(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (host, rest) = word(line);
        let line = Self::common(rest.trim_ascii_start(), times)?;
        // The port is the server's own, and says nothing about the host.
        let port = host
            .iter()
            .rposition(|&byte| byte == b':')
            .filter(|&colon| host[colon + 1..].iter().all(u8::is_ascii_digit));
        Ok(Self {
            host: Some(&host[..port.unwrap_or(host.len())]),
            ..line
        })
    }

    /// Whether a line of an access log begins with a server's name, so that the client is in its
    /// second column.
    pub(super) fn has_vhost(line: &[u8]) -> bool {
        let (first, rest) = word(line);
        let (second, rest) = word(rest);
        let before_time = memchr(b'[', rest).map_or(&[][..], |open| &rest[..open]);
        let columns = before_time
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty())
            .count();
        let named = first
            .rsplit(|&byte| byte == b':')
            .next()
            .is_some_and(|port| {
                port.len() < first.len() && !port.is_empty() && port.iter().all(u8::is_ascii_digit)
            });
        !is_address(first) && columns >= 2 && (is_address(second) || (named && second != b"-"))
    }

    /// Whether only the client, its identity and its user are in front of the time. The user's name
    /// may contain blanks if the client is an address.
    pub(super) fn begins_with_client(line: &[u8]) -> bool {
        let before_time = memchr(b'[', line).map_or(line, |open| &line[..open]);
        let mut columns = before_time
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        let client = columns.next().unwrap_or_default();
        let others = columns.count();
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:%-".contains(byte);
        is_address(client) || (others == 2 && client.iter().all(is_name))
    }

    /// Parses a line in Envoy's default format.
    pub(super) fn envoy(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        if line.first() != Some(&b'[') {
            return Err(LineError::NotEnvoy);
        }
        let (time, rest) = bracketed_time(line, times)?;
        let (request, rest) = quoted(rest).ok_or(LineError::NoRequest)?;
        let (status, mut rest) = word(rest);
        if status.is_empty() || !status.iter().all(u8::is_ascii_digit) {
            return Err(LineError::NoStatus);
        }
        // Response flags and details, connection and upstream failure reasons, then numbers. The
        // next quote ends them, except for a quote inside a reason, which hardly ever occurs in a
        // log.
        let quote = memchr(b'"', rest).ok_or(LineError::NotEnvoy)?;
        // The last of them: bytes sent, duration, time of the upstream.
        let bytes = rest[..quote]
            .rsplit(|&byte| byte == b' ')
            .filter(|word| !word.is_empty())
            .nth(2);
        rest = &rest[quote..];
        let (forwarded, rest) = quoted(rest).ok_or(LineError::NotEnvoy)?;
        let (agent, rest) = quoted(rest).ok_or(LineError::NotEnvoy)?;
        let authority = quoted(rest)
            .and_then(|(_id, rest)| quoted(rest))
            .map(|(authority, _)| authority);
        let ip = forwarded
            .rsplit(|&byte| byte == b',')
            .next()
            .unwrap_or(forwarded)
            .trim_ascii();
        let (method, path) = split_request(request);
        let agent = Agent::Found(Some(agent));
        Ok(Self {
            ip,
            time,
            method,
            path,
            status,
            host: authority,
            agent,
            bytes,
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
        let time = times.read(time, parse_rfc3339).ok_or(wrong)?;
        let (_elb, rest) = word(rest);
        let (ip, rest) = word(rest);
        let before = memchr(b'"', rest).ok_or(LineError::NoRequest)?;
        let columns: [&[u8]; 8] = nth_words(&rest[..before]).ok_or(LineError::NotAlb)?;
        // Target, three processing times, the balancer's status, the target's, bytes received and
        // sent.
        let (status, bytes) = (columns[4], Some(columns[7]));
        let (request, rest) = quoted(&rest[before..]).ok_or(LineError::NoRequest)?;
        let agent = Agent::Found(quoted(rest).map(|(agent, _)| agent));
        let (method, target) = split_request(request);
        let (host, path) = split_url(target);
        Ok(Self {
            ip,
            time,
            method,
            path,
            status,
            host,
            agent,
            bytes,
        })
    }

    /// Parses a line of HAProxy (`option httplog`).
    pub(super) fn haproxy(line: &'a [u8], times: &mut TimeCache) -> Result<Self, LineError> {
        let (ip, rest) = word(line);
        if address(ip).is_none() || is_address(ip) || !rest.starts_with(b" [") {
            return Err(LineError::NotHaproxy);
        }
        let (time, rest) = bracketed_time(rest, times)?;
        // Frontend, backend and server, timers, status. The request is the last column.
        let columns: [&[u8]; 5] = nth_words(rest).ok_or(LineError::NotHaproxy)?;
        let (status, _) = status(columns[3])?;
        let quote = memchr(b'"', rest).ok_or(LineError::NotHaproxy)?;
        let (request, _) = quoted(&rest[quote..]).ok_or(LineError::NoRequest)?;
        let (method, target) = split_request(request);
        let (host, path) = split_url(target);
        let (agent, bytes) = (Agent::Found(None), Some(columns[4]));
        Ok(Self {
            ip,
            time,
            method,
            path,
            status,
            host,
            agent,
            bytes,
        })
    }

    /// The user agent; the combined format and later ones have it.
    pub fn user_agent(&self) -> Option<&'a [u8]> {
        match self.agent {
            Agent::Found(agent) => agent,
            Agent::Behind(rest) => {
                let (_bytes, rest) = word(rest);
                quoted(rest)
                    .and_then(|(_referer, rest)| quoted(rest))
                    .map(|(agent, _)| agent)
            }
        }
    }
}

impl LogRequest for AccessLine<'_> {
    fn time(&self) -> u64 {
        self.time
    }

    fn field(&self, field: &Field) -> Result<Cow<'_, [u8]>, LineError> {
        Ok(Cow::Borrowed(match field {
            Field::Ip => self.ip,
            Field::Path => self.path,
            Field::Method => self.method,
            Field::Status => self.status,
            Field::UserAgent => self.user_agent().ok_or(LineError::NoUserAgent)?,
            Field::Host => self.host.ok_or(LineError::NoHost)?,
            Field::Named(name) if name == "bytes" => match (self.agent, self.bytes) {
                (Agent::Behind(rest), _) => word(rest).0,
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

/// The first bracket that contains a time, and the text after it: a user's name may contain
/// brackets too.
fn bracketed_time<'a>(
    mut rest: &'a [u8],
    times: &mut TimeCache,
) -> Result<(u64, &'a [u8]), LineError> {
    let mut error = LineError::NotAccessLog;
    while let Some(open) = memchr(b'[', rest) {
        rest = &rest[open + 1..];
        let Some(close) = memchr(b']', rest) else {
            break;
        };
        match times.read_log_time(&rest[..close]) {
            Some(time) => return Ok((time, &rest[close + 1..])),
            None => error = LineError::AccessTime,
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
    let digits = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    if digits || status == b"-" {
        Ok((status, rest))
    } else {
        Err(LineError::NoStatus)
    }
}

pub(super) fn split_request(request: &[u8]) -> (&[u8], &[u8]) {
    let (method, rest) = word(request);
    let (target, _) = word(rest);
    if target.is_empty() {
        return (b"-", request);
    }
    (method, without_query(target))
}

pub(super) fn without_query(target: &[u8]) -> &[u8] {
    &target[..memchr(b'?', target).unwrap_or(target.len())]
}

/// Splits `https://host:port/path` into host and path; a target without a host is a path.
pub(super) fn split_url(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let Some(after) = memchr::memmem::find(target, b"://").map(|at| &target[at + 3..]) else {
        return (None, target);
    };
    let (host, path) = after.split_at(memchr(b'/', after).unwrap_or(after.len()));
    let host = &host[..memchr(b':', host).unwrap_or(host.len())];
    (Some(host), if path.is_empty() { b"/" } else { path })
}
