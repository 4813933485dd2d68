//! The address of `StatsD`, and what is sent there.

#[cfg(feature = "statsd")]
mod send;

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use url::Url;

#[cfg(feature = "statsd")]
pub use send::Statsd;

/// How counters are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    /// Over UDP, with tags behind the count instead of in the name.
    DogStatsd,
}

/// Where `StatsD` is, as in `udp://localhost:8125?interval=10s&tag=zone:a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdAddress {
    protocol: Protocol,
    /// Host and port.
    to: String,
    interval: Duration,
    tags: BTreeMap<String, String>,
}

/// Why a text is not the address of `StatsD`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StatsdAddressError(String);

impl FromStr for StatsdAddress {
    type Err = StatsdAddressError;

    fn from_str(text: &str) -> Result<Self, StatsdAddressError> {
        let refuse = |what: String| Err(StatsdAddressError(what));
        let url = Url::parse(text).ok();
        let Some((url, host)) = url.as_ref().and_then(|url| Some((url, url.host_str()?))) else {
            return refuse(
                "write tcp://HOST:PORT, udp://HOST:PORT or dogstatsd://HOST:PORT".to_owned(),
            );
        };
        let protocol = match url.scheme() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "dogstatsd" => Protocol::DogStatsd,
            other => return refuse(format!("`{other}` is none of tcp, udp and dogstatsd")),
        };
        let to = format!("{host}:{}", url.port().unwrap_or(8125));
        let mut address = Self {
            protocol,
            to,
            interval: Duration::from_secs(10),
            tags: BTreeMap::new(),
        };
        for (name, value) in url.query_pairs() {
            match (&*name, value.split_once(':')) {
                ("interval", _) => match tidegate_core::parse_duration(&value) {
                    Ok(interval) if !interval.is_zero() => address.interval = interval,
                    _ => return refuse(format!("interval is `{value}`; write it as in 10s")),
                },
                ("tag", Some((name, value))) if !name.is_empty() && !value.is_empty() => {
                    address
                        .tags
                        .insert(name.to_owned(), value.replace(['.', ':', '|'], "_"));
                }
                ("tag", _) => {
                    return refuse(format!("tag is `{value}`; write it as in tag=NAME:VALUE"));
                }
                _ => {
                    return refuse(format!(
                        "there is no option `{name}`; the options are interval and tag"
                    ));
                }
            }
        }
        Ok(address)
    }
}
