//! Lines that each contain named fields: a JSON object, logfmt, or columns below a header. The
//! field names of nginx, Caddy, Envoy, Traefik, IIS and the large clouds are known.

use std::{borrow::Cow, fmt::Write as _};

use memchr::memchr;

use serde_json::{Map, Value};

use super::{
    access_log::{split_request, split_url, without_query},
    columns::Header,
    line::LineError,
    request::{IP, LogRequest},
    timestamp::{parse_access_log_time, parse_rfc3339, parse_unix},
};
use crate::workload::Field;

/// The default fields for the time.
const TIME_FIELDS: &str = "StartUTC time timestamp @timestamp ts msec time_iso8601 time_local start_time EdgeStartTimestamp requestTime t \
    date";
/// Field names for the parts of a request; the first one present counts. The part's own name, then
/// those of nginx, Caddy, Envoy, Traefik, W3C logs (IIS), Google Cloud, AWS (API Gateway, WAF),
/// Cloudflare, Azure and Elastic, and common ones.
const PATH: &str = "path request_uri uri request.uri RequestPath cs-uri-stem httpRequest.requestUrl httpRequest.uri \
    ClientRequestURI properties.requestUri url.path url request";
const METHOD: &str = "method request_method request.method RequestMethod cs-method httpRequest.requestMethod httpRequest.httpMethod \
    httpMethod ClientRequestMethod properties.httpMethod http.request.method request";
const STATUS: &str = "status response_code status_code DownstreamStatus sc-status httpRequest.status EdgeResponseStatus \
    properties.httpStatusCode http.response.status_code";
const USER_AGENT: &str = "user-agent user_agent http_user_agent request.headers.User-Agent request_User-Agent cs(User-Agent) \
    httpRequest.userAgent ClientRequestUserAgent properties.userAgent user_agent.original";
const HOST: &str = "host http_host request.host authority server_name RequestHost x-host-header cs(Host) cs-host ClientRequestHost \
    url.domain";
/// The bytes of the answer.
const BYTES: &str = "bytes body_bytes_sent bytes_sent size response_size DownstreamContentSize sc-bytes httpRequest.responseSize \
    EdgeResponseBytes http.response.body.bytes";
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

    fn read(&self, line: &Map<String, Value>) -> Result<u64, LineError> {
        let (name, value) = match &self.0 {
            Some(name) => (name.as_str(), field(line, name)),
            None => TIME_FIELDS
                .split(' ')
                .find_map(|name| line.get(name).map(|value| (name, Some(value))))
                .unwrap_or(("time", None)),
        };
        if let (None, "time", Some(Value::String(time)), Some(Value::String(date))) =
            (&self.0, name, value, line.get("date"))
            && let Some(time) = parse_rfc3339(format!("{date} {time}").as_bytes())
        {
            return Ok(time);
        }
        let missing = || LineError::NoTime {
            name: name.to_owned(),
            has: list(line),
        };
        let time = match value.ok_or_else(missing)? {
            Value::String(text) => parse_rfc3339(text.as_bytes())
                .or_else(|| parse_unix(text))
                .or_else(|| parse_access_log_time(text.as_bytes())),
            Value::Number(number) => parse_unix(&number.to_string()),
            _ => None,
        };
        time.ok_or_else(|| LineError::Time(name.to_owned()))
    }
}

/// The fields of a line, and its time.
#[derive(Debug)]
pub(super) struct Record {
    fields: Map<String, Value>,
    time: u64,
}

impl Record {
    /// Parses a JSON object.
    ///
    /// # Errors
    /// Here and below: if the line has another form, or if its time is missing or invalid.
    pub fn json(line: &[u8], time: &TimeField) -> Result<Self, LineError> {
        let Ok(Value::Object(fields)) = serde_json::from_slice(line) else {
            return Err(LineError::NotJson);
        };
        Self::new(fields, time)
    }

    /// Parses `name=value name="value with blanks"`.
    pub fn logfmt(line: &[u8], time: &TimeField) -> Result<Self, LineError> {
        Self::new(logfmt(line).ok_or(LineError::NotLogfmt)?, time)
    }

    /// Parses a line below a header.
    pub fn columns(line: &[u8], header: &Header, time: &TimeField) -> Result<Self, LineError> {
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
        )
    }

    fn new(fields: Map<String, Value>, time: &TimeField) -> Result<Self, LineError> {
        let time = time.read(&fields)?;
        Ok(Self { fields, time })
    }
}

impl LogRequest for Record {
    fn time(&self) -> u64 {
        self.time
    }

    fn field(&self, wanted: &Field) -> Result<Cow<'_, [u8]>, LineError> {
        let names = match wanted {
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
        let (name, text) = found.ok_or_else(missing)?;
        // nginx' `request` is the whole request line. A path counts without its query.
        Ok(match wanted {
            Field::Method if name == "request" => part(&text, |text| split_request(text).0),
            Field::Path if name == "request" => part(&text, |text| split_request(text).1),
            Field::Path => part(&text, |text| without_query(split_url(text).1)),
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
    let mut rest = std::str::from_utf8(line).ok()?.trim();
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
                    add(names, &format!("{before}{name}."), inner)
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
