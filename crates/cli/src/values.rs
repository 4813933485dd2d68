//! The values of options that several commands take.

use std::{fmt, time::Duration};

use tidegate_core::{ParseQuotaError, parse_duration};
use tidegate_server::{
    descriptors::{FieldNames, field_names},
    rules::parse_bytes,
};

/// A value with a text for none, such as `off`. Under its own name, an `Option` is to clap an
/// option that may be missing.
pub type MayBeNone<T> = Option<T>;

/// Why an option cannot have a value. The text says what to write.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("{0}")]
    Form(&'static str),
    #[error(transparent)]
    Span(#[from] ParseQuotaError),
    #[error("give at least {0} bytes")]
    TooFewBytes(u64),
    #[error("`{0}` is not on, off or max_burst:count:period, as in 15:30:60")]
    Throttle(String),
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Key(#[from] tidegate_sim::input::ByError),
}

impl From<&'static str> for ValueError {
    fn from(form: &'static str) -> Self {
        Self::Form(form)
    }
}

/// A server's host and port, and whether to use TLS.
#[derive(Clone, Debug)]
pub struct Address {
    pub authority: String,
    pub tls: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

pub fn server(text: &str) -> Result<Address, &'static str> {
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, rest) => (false, rest.unwrap_or(text)),
    };
    let authority = rest.trim_end_matches('/');
    match authority.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok() =>
        {
            Ok(Address {
                authority: authority.to_owned(),
                tls,
            })
        }
        _ => Err("give a host and a port, as in 127.0.0.1:8080 or https://limits.example.com:8080"),
    }
}

/// A duration above zero.
pub fn positive(text: &str) -> Result<Duration, ValueError> {
    let span = parse_duration(text)?;
    if span.is_zero() {
        Err(ValueError::Form("it must be greater than zero"))
    } else {
        Ok(span)
    }
}

pub fn bytes(text: &str) -> Result<u64, &'static str> {
    parse_bytes(text).ok_or("write a number of bytes above 0, as in 512MiB or 2GiB")
}

/// A part of a whole.
pub fn part(text: &str) -> Result<f32, &'static str> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or("write a number from 0 to 1, as in 0.8")
}

/// Parses the names of header fields.
pub fn header_names(text: &str) -> Result<FieldNames, &'static str> {
    field_names(text.split(',')).ok_or(
        "write three names of header fields, as in RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset",
    )
}
