//! The client's address behind proxies.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use http::{HeaderMap, header::FORWARDED, request::Parts};
use ipnet::IpNet;

use super::{
    KeySource,
    address::{NO_PEER, USUAL, key, peer},
};

/// The client's address behind proxies, as [`address_key`](super::address_key) writes it. Each
/// proxy appends the address of its own peer to the right end of `X-Forwarded-For` or `Forwarded`.
///
/// Clients can write anything into these fields. They are therefore read from the right, and only
/// past the proxies that are [counted](Self::behind) or [trusted](Self::trusting). Entries further
/// left are ignored.
#[derive(Clone, Debug)]
pub struct Client {
    trust: Trust,
    field: Field,
    prefix: u8,
}

#[derive(Clone, Debug)]
enum Trust {
    Proxies(usize),
    Networks(Networks),
}

#[derive(Clone, Copy, Debug)]
enum Field {
    XForwardedFor,
    Forwarded,
}

impl Client {
    /// The service is behind exactly `proxies` proxies, and every request passes all of them. The
    /// client is the entry of that number, counted from the right, in `X-Forwarded-For`. With 0 it
    /// is the peer.
    ///
    /// A request whose field has fewer addresses has no key. If clients can reach the service
    /// without passing the proxies, they can forge addresses: use [`trusting`](Self::trusting)
    /// instead.
    #[must_use]
    pub const fn behind(proxies: usize) -> Self {
        Self {
            trust: Trust::Proxies(proxies),
            field: Field::XForwardedFor,
            prefix: USUAL,
        }
    }

    /// The service is behind proxies in these networks. The client is the first address outside
    /// them, starting with the peer and then reading `X-Forwarded-For` from the right. If all
    /// addresses are inside, it is the leftmost.
    ///
    /// A request has no key if the server does not provide the peer's address (see
    /// [`Peer`](super::Peer)), or if a trusted proxy wrote something that is not an address.
    #[must_use]
    pub const fn trusting(proxies: Networks) -> Self {
        Self {
            trust: Trust::Networks(proxies),
            field: Field::XForwardedFor,
            prefix: USUAL,
        }
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Only one field is ever read,
    /// because a proxy that writes one of them passes on the other as the client sent it.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self {
            field: Field::Forwarded,
            ..self
        }
    }

    /// Identifies clients by the first `bits` of an IPv6 address, at most 128 (default: 64).
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self {
            prefix: bits,
            ..self
        }
    }

    fn address(&self, parts: &Parts) -> Option<IpAddr> {
        match &self.trust {
            Trust::Proxies(0) => peer(&parts.extensions),
            Trust::Proxies(proxies) => self.field.addresses(&parts.headers).nth(proxies - 1)?,
            Trust::Networks(trusted) => {
                let mut client = peer(&parts.extensions)?;
                let mut before = self.field.addresses(&parts.headers);
                while trusted.contains(client) {
                    match before.next() {
                        Some(address) => client = address?,
                        None => break,
                    }
                }
                Some(client)
            }
        }
    }
}

impl KeySource for Client {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        self.address(parts)
            .map(|address| key(address, self.prefix).into())
    }

    fn missing(&self) -> &'static str {
        match self.trust {
            Trust::Proxies(0) => NO_PEER,
            Trust::Proxies(_) => {
                "X-Forwarded-For (or Forwarded) has fewer addresses than the configured number of proxies, or one that \
                 cannot be parsed"
            }
            Trust::Networks(_) => {
                "no peer address in the request's extensions (serve axum with \
                 into_make_service_with_connect_info::<SocketAddr>()), or a trusted proxy wrote something that is not \
                 an address"
            }
        }
    }
}

impl Field {
    /// The addresses from right to left, with `None` for an entry that cannot be parsed.
    fn addresses(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let name = match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => FORWARDED.as_str(),
        };
        let lines = headers.get_all(name).iter().rev();
        lines
            .flat_map(|line| FromRight {
                left: Some(line.as_bytes()),
            })
            .map(move |entry| match self {
                Self::XForwardedFor => node(entry),
                Self::Forwarded => forwarded_for(entry),
            })
    }
}

/// The entries of a list, from right to left. Commas within quotes do not separate entries. Quotes
/// are matched from the right, so nothing that a client wrote further left, such as an unclosed
/// quote, changes the result.
struct FromRight<'a> {
    left: Option<&'a [u8]>,
}

impl<'a> Iterator for FromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let left = self.left.take()?;
        let mut quoted = false;
        let comma = left.iter().rposition(|byte| {
            quoted ^= *byte == b'"';
            *byte == b',' && !quoted
        });
        self.left = comma.map(|at| &left[..at]);
        Some(left[comma.map_or(0, |at| at + 1)..].trim_ascii())
    }
}

/// The node after `for` in an entry such as `for=192.0.2.60;proto=http;by=203.0.113.43`.
fn forwarded_for(entry: &[u8]) -> Option<IpAddr> {
    let mut pairs = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let value = pairs.find_map(|pair| {
        let (name, value) = pair.split_at_checked(4)?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    })?;
    let quoted = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    node(quoted.unwrap_or(value))
}

/// `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok();
    address
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
        .map(|a: IpAddr| a.to_canonical())
}

/// Networks and single addresses, for example those of trusted proxies.
///
/// ```
/// use tidegate_tower::key::Networks;
///
/// let inside: Networks = "10.0.0.0/8, fd00::/8, 192.0.2.7".parse()?;
/// assert!(inside.contains("10.1.2.3".parse()?));
/// assert!(!inside.contains("192.0.2.8".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Whether one of the networks contains the address. An IPv4-mapped IPv6 address counts as the
    /// IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl std::str::FromStr for Networks {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty());
        let network = |entry: &str| {
            let whole = entry.parse::<IpNet>().ok();
            whole
                .or_else(|| entry.parse::<IpAddr>().ok().map(IpNet::from))
                .ok_or_else(|| NetworkError(entry.to_owned()))
        };
        entries.map(network).collect::<Result<_, _>>().map(Self)
    }
}

/// An entry of a list of [`Networks`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network or an address: write one like 10.0.0.0/8, fd00::/8 or 192.0.2.7")]
pub struct NetworkError(String);
