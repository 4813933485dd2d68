//! The values of the options of `tidegate serve`, as clap parses them.

use clap::ValueEnum;
use ipnet::IpNet;
use tidegate_server::{
    throttle::{ThrottleAllowed, ThrottleQuota},
    trace::{KeyShare, LEAST_TRACE_BYTES, ParseKeyShareError},
};

use crate::values::{MayBeNone, ValueError, bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

/// How servers share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SharingOption {
    /// The store makes every decision
    Exact,
    /// Each server takes parts of the limit ahead and decides from them: never over
    Leased,
}

/// How a denied request from Envoy is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ConsumeOption {
    /// Every limit is charged, also if another one denies, as with envoyproxy/ratelimit
    Each,
    /// Nothing: one decision covers all limits of a request
    AllOrNone,
}

/// The address with this port, if it has none.
pub(super) fn with_port(address: &str, port: u16) -> String {
    match address.parse::<std::net::IpAddr>() {
        Ok(ip) => std::net::SocketAddr::from((ip, port)).to_string(),
        Err(_) if !address.contains(':') => format!("{address}:{port}"),
        Err(_) => address.to_owned(),
    }
}

pub(super) fn bytes_or_off(text: &str) -> Result<u64, &'static str> {
    if text.eq_ignore_ascii_case("off") {
        Ok(0)
    } else {
        bytes(text)
    }
}

pub(super) fn share_or_off(text: &str) -> Result<MayBeNone<KeyShare>, ParseKeyShareError> {
    if text.eq_ignore_ascii_case("off") {
        Ok(None)
    } else {
        text.parse().map(Some)
    }
}

pub(super) fn usage_bytes(text: &str) -> Result<u64, &'static str> {
    let bytes = bytes(text)?;
    if bytes < 16 << 20 {
        Err("give at least 16MiB")
    } else {
        Ok(bytes)
    }
}

pub(super) fn trace_bytes(text: &str) -> Result<u64, ValueError> {
    let bytes = bytes(text)?;
    if bytes < LEAST_TRACE_BYTES {
        Err(ValueError::TooFewBytes(LEAST_TRACE_BYTES))
    } else {
        Ok(bytes)
    }
}

pub(super) fn throttle(text: &str) -> Result<ThrottleAllowed, ValueError> {
    let bucket = |text: &str| {
        let numbers: Option<Vec<i64>> = text
            .trim()
            .split(':')
            .map(|number| number.parse().ok())
            .collect();
        match numbers.as_deref() {
            Some([max_burst, count, period]) => Ok(ThrottleQuota {
                max_burst: *max_burst,
                count: *count,
                period: *period,
            }),
            _ => Err(ValueError::Throttle(text.to_owned())),
        }
    };
    match text {
        // The period is another option.
        "on" => Ok(ThrottleAllowed::default()),
        "off" => Ok(ThrottleAllowed::Nothing),
        list => list
            .split(',')
            .map(bucket)
            .collect::<Result<_, _>>()
            .map(ThrottleAllowed::Only),
    }
}

/// A host's name without a port.
pub(super) fn host_name(text: &str) -> Result<String, &'static str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    if !text.is_empty() && text.chars().all(is_name) {
        return Ok(text.to_owned());
    }
    Err("a name is without a scheme and a port, as in limits.internal")
}

pub(super) fn metrics_path(text: &str) -> Result<String, &'static str> {
    let is_path = |byte: u8| byte.is_ascii_graphic() && !b"?#{}".contains(&byte);
    if text.len() < 2 || !text.starts_with('/') || !text.bytes().all(is_path) {
        return Err("write a path, as in /actuator/prometheus");
    }
    if text.starts_with("/v1/") {
        return Err("the API is below /v1/; choose another path, as in /actuator/prometheus");
    }
    Ok(text.to_owned())
}

pub(super) fn origin(text: &str) -> Result<String, &'static str> {
    match text.split_once("://") {
        Some((scheme, host))
            if !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '*']) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("give a scheme, a host and optionally a port, as in https://ops.example.com:8443"),
    }
}

pub(super) fn network(text: &str) -> Result<IpNet, &'static str> {
    let network = text
        .parse()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
    network.map_err(|_| "write a network or an address, as in 10.0.0.0/8")
}

#[cfg(feature = "webhook")]
pub(super) fn web_address(text: &str) -> Result<String, &'static str> {
    match url::Url::parse(text) {
        Ok(url) if ["http", "https"].contains(&url.scheme()) => Ok(text.to_owned()),
        _ => Err("write an address such as https://example.com/hook"),
    }
}
