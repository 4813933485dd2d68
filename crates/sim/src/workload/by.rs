//! The key of a limit, and how several parts make one key.

use std::{borrow::Cow, fmt, str::FromStr};

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The client: its IPv4 address, or the first 64 bits of its IPv6 address.
    Ip,
    /// The client behind trusted proxies, as `X-Forwarded-For` names it.
    Forwarded,
    /// The path of the request, without its query.
    Path,
    /// The method of the request.
    Method,
    /// The status of the response.
    Status,
    /// The client's user agent.
    UserAgent,
    /// The requested host: a server's name.
    Host,
    /// A field of a JSON line: its name, or for a nested field the names joined by dots.
    Named(String),
}

impl Field {
    /// The part with this name; `None` if the name is empty.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "" => return None,
            "ip" => Self::Ip,
            "forwarded" => Self::Forwarded,
            "path" => Self::Path,
            "method" => Self::Method,
            "status" => Self::Status,
            "user-agent" => Self::UserAgent,
            "host" => Self::Host,
            name => Self::Named(name.to_owned()),
        })
    }

    /// The part's name: for JSON lines, the name of the field.
    pub fn name(&self) -> &str {
        match self {
            Self::Ip => "ip",
            Self::Forwarded => "forwarded",
            Self::Path => "path",
            Self::Method => "method",
            Self::Status => "status",
            Self::UserAgent => "user-agent",
            Self::Host => "host",
            Self::Named(name) => name,
        }
    }
}

/// The parts of a key; without parts, one limit for all (`global`).
///
/// ```
/// use tidegate_sim::input::By;
/// let by: By = "ip,method".parse()?;
/// assert_eq!(by.to_string(), "ip,method");
/// assert_eq!("global".parse::<By>()?, By::GLOBAL);
/// # Ok::<(), tidegate_sim::input::ByError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By(Vec<Field>);

impl By {
    /// One limit for all requests.
    pub const GLOBAL: Self = Self(Vec::new());

    /// One limit for each client address.
    pub fn ip() -> Self {
        Self(vec![Field::Ip])
    }

    /// The parts.
    pub fn fields(&self) -> &[Field] {
        &self.0
    }

    /// Appends one part's text to a key.
    ///
    /// A key of one part is the text itself. If a key has several parts, each is preceded by its
    /// length, so that no two lists of parts make the same key, for any bytes that a client sends.
    pub(crate) fn push(&self, key: &mut Vec<u8>, part: &[u8]) {
        if self.0.len() > 1 {
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            key.extend_from_slice(&length.to_le_bytes());
        }
        key.extend_from_slice(part);
    }

    /// A key in readable form, its parts joined by blanks; invalid UTF-8 is replaced.
    pub(crate) fn label(&self, key: &[u8]) -> String {
        match self.0.len() {
            0 => "everything".to_owned(),
            _ => self.parts(key).join(" "),
        }
    }

    /// The first part of a key in readable form; all of it if it has one.
    pub(crate) fn first_part(&self, key: &[u8]) -> String {
        let first = self.parts(key).into_iter().next();
        first.unwrap_or_default().into_owned()
    }

    fn parts<'a>(&self, key: &'a [u8]) -> Vec<Cow<'a, str>> {
        if self.0.len() < 2 {
            return vec![String::from_utf8_lossy(key)];
        }
        let mut parts = Vec::with_capacity(self.0.len());
        let mut rest = key;
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (part, tail) = tail.split_at(tail.len().min(u32::from_le_bytes(*length) as usize));
            parts.push(String::from_utf8_lossy(part));
            rest = tail;
        }
        parts
    }
}

impl FromStr for By {
    type Err = ByError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = Vec::new();
        for name in text.split(',').map(str::trim) {
            if name == "global" {
                continue;
            }
            let field = Field::from_name(name).ok_or(ByError::Empty)?;
            if !fields.contains(&field) {
                fields.push(field);
            }
        }
        Ok(Self(fields))
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(Field::name).collect();
        if names.is_empty() {
            f.write_str("global")
        } else {
            f.write_str(&names.join(","))
        }
    }
}

/// Why a text does not name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ByError {
    /// A name is missing before, between or after the commas.
    #[error(
        "name one or more of ip, forwarded, path, method, status, user-agent, host, global, or (for JSON lines) a field, joined by commas as in ip,path"
    )]
    Empty,
}
