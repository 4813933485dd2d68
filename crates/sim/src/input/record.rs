//! Lines that each contain named fields: a JSON object, logfmt, or columns below a header. The
//! field names of nginx, Caddy, Envoy, Traefik, IIS and the large clouds are known.

use std::{borrow::Cow, fmt::Write as _};

use memchr::memchr;

use serde_json::{Map, Value};
use tidegate_headers::Forwarded;

use super::{
    columns::Header,
    json::{mended, object},
    line::LineError,
    request::{AddressList, IP, LogRequest, Stamp},
    target::{split_request, split_target},
    timestamp::{TimeCache, parse_unix},
};
use crate::workload::Field;

/// The default fields for the time.
const TIME_FIELDS: &str = "StartUTC time timestamp @timestamp ts msec time_iso8601 time_local start_time EdgeStartTimestamp requestTime t \
    date";
/// Field names for the parts of a request; the first one present counts. The part's own name, then
/// those of nginx, Caddy, Envoy, Traefik, W3C logs (IIS), Google Cloud, AWS (API Gateway, WAF),
/// Cloudflare, Azure and Elastic, and common ones.
const PATH: &str = "path request_uri uri request.uri RequestPath cs-uri-stem httpRequest.requestUrl httpRequest.uri \
    ClientRequestURI properties.requestUri url.path req.url url request";
const METHOD: &str = "method request_method request.method RequestMethod cs-method httpRequest.requestMethod httpRequest.httpMethod \
    httpMethod ClientRequestMethod properties.httpMethod http.request.method req.method request";
const STATUS: &str = "status response_code status_code DownstreamStatus sc-status httpRequest.status EdgeResponseStatus \
    properties.httpStatusCode http.response.status_code res.statusCode";
const USER_AGENT: &str = "user-agent user_agent http_user_agent request.headers.User-Agent request_User-Agent cs(User-Agent) \
    httpRequest.userAgent ClientRequestUserAgent properties.userAgent user_agent.original req.headers.user-agent";
const HOST: &str = "host http_host request.host authority server_name RequestHost x-host-header cs(Host) cs-host ClientRequestHost \
    url.domain req.host req.headers.host";
/// The lists of addresses that proxies write.
const X_FORWARDED_FOR: &str = "http_x_forwarded_for x_forwarded_for x-forwarded-for X-Forwarded-For xff request.headers.X-Forwarded-For \
    request_X-Forwarded-For req.headers.x-forwarded-for cs(X-Forwarded-For) headers.x-forwarded-for";
const FORWARDED: &str =
    "http_forwarded forwarded request.headers.Forwarded request_Forwarded req.headers.forwarded";
/// The bytes of the answer.
const BYTES: &str = "bytes body_bytes_sent bytes_sent size response_size DownstreamContentSize sc-bytes httpRequest.responseSize \
    EdgeResponseBytes http.response.body.bytes";
/// The moment that the time of a program's line is. The time's field and one that the program's lines have
/// show which program it was; then the field with the duration, and its unit in nanoseconds.
const STAMPS: [(&str, &str, Stamp, &str, u64); 10] = [
    ("StartUTC", "", Stamp::Start, "Duration", 1), // Traefik
    (
        "start_time",
        "response_code",
        Stamp::Start,
        "duration",
        1_000_000,
    ), // Envoy
    ("EdgeStartTimestamp", "", Stamp::Start, "", 0), // Cloudflare
    (
        "ts",
        "request.remote_ip",
        Stamp::End,
        "duration",
        1_000_000_000,
    ), // Caddy
    (
        "time",
        "responseTime",
        Stamp::End,
        "responseTime",
        1_000_000,
    ), // pino-http
    ("time", "req.remoteAddress", Stamp::Start, "", 0), // fastify
    ("time", "latency_human", Stamp::End, "latency", 1), // echo
    (
        "time_iso8601",
        "",
        Stamp::End,
        "request_time",
        1_000_000_000,
    ), // nginx
    ("time_local", "", Stamp::End, "request_time", 1_000_000_000), // nginx
    ("msec", "", Stamp::End, "request_time", 1_000_000_000), // nginx
];
/// How many fields of a line an error lists.
const LISTED: usize = 30;

/// The field that contains the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeField(Option<String>);

impl TimeField {
    /// The field with this name (or path, joined by dots). For `None`, the first one present of
    /// `StartUTC`, `time`, `timestamp`, `@timestamp`, `ts`, `msec`, `time_iso8601`, `time_local`,
    /// `start_time`, `EdgeStartTimestamp`, `requestTime`, `t` and `date`; a `date` next to a `time`
    /// belongs to it, as in W3C logs.
    pub const fn new(name: Option<String>) -> Self {
        Self(name)
    }

    pub(super) const fn is_named(&self) -> bool {
        self.0.is_some()
    }

    /// The name of the time's field, and the time.
    fn read<'a>(
        &'a self,
        line: &Map<String, Value>,
        times: &mut TimeCache,
    ) -> Result<(&'a str, u64), LineError> {
        let (name, value) = match &self.0 {
            Some(name) => (name.as_str(), field(line, name)),
            None => TIME_FIELDS
                .split(' ')
                .find_map(|name| line.get(name).map(|value| (name, Some(value))))
                .unwrap_or(("time", None)),
        };
        if let (None, "time", Some(Value::String(time)), Some(Value::String(date))) =
            (&self.0, name, value, line.get("date"))
            && let Some(time) = times.read_rfc3339(format!("{date} {time}").as_bytes())
        {
            return Ok((name, time));
        }
        let missing = || LineError::NoTime {
            name: name.to_owned(),
            has: list(line),
        };
        let time = match value.ok_or_else(missing)? {
            Value::String(text) => {
                parse_unix(text).or_else(|| times.read_log_time(text.as_bytes()))
            }
            Value::Number(number) => parse_unix(&number.to_string()),
            _ => None,
        };
        time.map(|time| (name, time))
            .ok_or_else(|| LineError::Time(name.to_owned()))
    }
}

/// The fields of a line, and its time.
#[derive(Debug)]
pub(super) struct Record<'a> {
    fields: Map<String, Value>,
    /// The name of the time's field.
    time_field: &'a str,
    time: u64,
}

impl<'a> Record<'a> {
    /// Parses a JSON object; `None` for a line that goes with a request before it.
    ///
    /// # Errors
    /// Here and below: if the line has another form, or if its time is missing or invalid.
    pub fn json(
        line: &[u8],
        time: &'a TimeField,
        times: &mut TimeCache,
    ) -> Result<Option<Self>, LineError> {
        let fields = object(line).ok_or(LineError::NotJson)?;
        // Fastify writes a second line when the answer has ended, and another one for an error.
        let is_second = fields.contains_key("reqId") && fields.contains_key("res");
        if is_second {
            return Ok(None);
        }
        Self::new(fields, time, times).map(Some)
    }

    /// Parses `name=value name="value with blanks"`.
    pub fn logfmt(
        line: &[u8],
        time: &'a TimeField,
        times: &mut TimeCache,
    ) -> Result<Self, LineError> {
        Self::new(logfmt(line).ok_or(LineError::NotLogfmt)?, time, times)
    }

    /// Parses a line below a header.
    pub fn columns(
        line: &[u8],
        header: &Header,
        time: &'a TimeField,
        times: &mut TimeCache,
    ) -> Result<Self, LineError> {
        let value = |text: String| {
            if text == "-" || text.is_empty() {
                Value::Null
            } else {
                Value::String(text)
            }
        };
        Self::new(
            header
                .fields(line)?
                .map(|(name, text)| (name.clone(), value(text)))
                .collect(),
            time,
            times,
        )
    }

    fn new(
        fields: Map<String, Value>,
        time: &'a TimeField,
        times: &mut TimeCache,
    ) -> Result<Self, LineError> {
        let (time_field, time) = time.read(&fields, times)?;
        Ok(Self {
            fields,
            time_field,
            time,
        })
    }

    /// The moment that the time is, and the field with the duration and its unit.
    fn timing(&self) -> Option<(Stamp, &'static str, u64)> {
        let fits = |time: &str, mark: &str| {
            time == self.time_field && (mark.is_empty() || field(&self.fields, mark).is_some())
        };
        STAMPS
            .into_iter()
            .find(|(time, mark, ..)| fits(time, mark))
            .map(|(_, _, stamp, took, unit)| (stamp, took, unit))
    }
}

impl LogRequest for Record<'_> {
    fn time(&self) -> u64 {
        self.time
    }

    fn took(&self) -> Option<u64> {
        let (_, name, unit) = self.timing()?;
        let number: f64 = text(self.fields.get(name)?)?.parse().ok()?;
        // A cast of a float saturates.
        #[allow(clippy::cast_sign_loss)]
        (number.is_finite() && number >= 0.0).then_some((number * unit as f64).round() as u64)
    }

    fn stamp(&self) -> Option<Stamp> {
        self.timing().map(|(stamp, ..)| stamp)
    }

    fn is_http(&self) -> bool {
        true
    }

    fn forwarded(&self) -> Result<Option<AddressList<'_>>, LineError> {
        let names = [
            (Forwarded::XForwardedFor, X_FORWARDED_FOR),
            (Forwarded::Forwarded, FORWARDED),
        ];
        for (kind, names) in names {
            // A list of lines is one list.
            let found = names.split(' ').find_map(|name| field(&self.fields, name));
            let text = match found {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Array(lines)) => {
                    let lines: Vec<_> = lines.iter().filter_map(Value::as_str).collect();
                    lines.join(", ")
                }
                _ => continue,
            };
            let is_list = !text.is_empty() && text != "-";
            return Ok(is_list.then(|| (kind, text.into_bytes().into())));
        }
        Ok(None)
    }

    fn field(&self, wanted: &Field) -> Result<Cow<'_, [u8]>, LineError> {
        let names = match wanted {
            Field::Forwarded => return Err(LineError::NoForwarded),
            Field::Ip => IP,
            Field::Path => PATH,
            Field::Method => METHOD,
            Field::Status => STATUS,
            Field::UserAgent => USER_AGENT,
            Field::Host => HOST,
            Field::Named(name) if name == "bytes" => BYTES,
            // A name of a field may have blanks; the others have none.
            Field::Named(name) => name,
        };
        let value = |name| Some((name, text(field(&self.fields, name)?)?));
        let found = if matches!(wanted, Field::Named(name) if name == names) {
            value(names)
        } else {
            names.split(' ').find_map(value)
        };
        let missing = || LineError::NoField {
            name: wanted.name().to_owned(),
            has: list(&self.fields),
        };
        if found.is_none() && *wanted == Field::Status && self.fields.contains_key("reqId") {
            return Err(LineError::FastifyStatus);
        }
        if found.is_none() && *wanted == Field::Host {
            let path = PATH.split(' ').find_map(value).ok_or_else(missing)?;
            let path = if path.0 == "request" {
                part(&path.1, |text| split_request(text).1)
            } else {
                path.1.into_owned().into_bytes().into()
            };
            let host = split_target(&path).0.map(<[u8]>::to_vec);
            return host.map(Cow::Owned).ok_or_else(missing);
        }
        let (name, text) = found.ok_or_else(missing)?;
        // nginx' `request` is the whole request line. A path counts without its query.
        Ok(match wanted {
            Field::Method if name == "request" => part(&text, |text| split_request(text).0),
            Field::Path if name == "request" => {
                part(&text, |text| split_target(split_request(text).1).1)
            }
            Field::Path => part(&text, |text| split_target(text).1),
            _ => match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
        })
    }
}

fn part(text: &str, of: impl Fn(&[u8]) -> &[u8]) -> Cow<'static, [u8]> {
    Cow::Owned(of(text.as_bytes()).to_vec())
}

/// The fields of a logfmt line; `None` for any other text.
pub(super) fn logfmt(line: &[u8]) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let line = mended(line);
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (name, behind) = rest.split_once('=')?;
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.@/-".contains(&byte))
        {
            return None;
        }
        let value;
        (value, rest) = if let Some(quoted) = behind.strip_prefix('"') {
            let mut escaped = false;
            let end = quoted.bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })?;
            // The escapes are those of JSON; other text stands for itself.
            let text = serde_json::from_str(&behind[..end + 2])
                .unwrap_or_else(|_| quoted[..end].to_owned());
            (text, &quoted[end + 1..])
        } else {
            let end = memchr(b' ', behind.as_bytes()).unwrap_or(behind.len());
            (behind[..end].to_owned(), &behind[end..])
        };
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        rest = rest.trim_start();
        fields.insert(name.to_owned(), Value::String(value));
    }
    (fields.len() > 1).then_some(fields)
}

/// The field with exactly this name, or the nested field at the path of names between the dots.
fn field<'a>(line: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    line.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        field(line.get(first)?.as_object()?, rest)
    })
}

/// A value as a part of a key. Null and objects have none; a list counts as its first element.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null | Value::Object(_) => None,
        Value::String(text) => Some(text.into()),
        Value::Array(list) => text(list.first()?),
        other => Some(other.to_string().into()),
    }
}

/// The field names that a key or the time may use, in alphabetical order.
fn list(line: &Map<String, Value>) -> String {
    fn add(names: &mut Vec<String>, before: &str, line: &Map<String, Value>) {
        for (name, value) in line {
            match value {
                Value::Object(inner) if !inner.is_empty() => {
                    add(names, &format!("{before}{name}."), inner);
                }
                _ => names.push(format!("{before}{name}")),
            }
        }
    }
    let mut names = Vec::new();
    add(&mut names, "", line);
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let mut listed = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    if more > 0 {
        // Writing into a string cannot fail.
        let _ = write!(listed, " and {more} more");
    }
    listed
}
