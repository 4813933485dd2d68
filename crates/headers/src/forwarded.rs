//! The addresses that proxies write into `X-Forwarded-For` and `Forwarded`. Each proxy appends the
//! address of its peer to the right end. Clients can write anything further left, so lists are
//! read from the right.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// A field with the addresses of clients and proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// `X-Forwarded-For: 192.0.2.7, 10.0.0.1`.
    XForwardedFor,
    /// `Forwarded: for=192.0.2.7;proto=http, for="[2001:db8::1]:80"` (RFC 7239).
    Forwarded,
}

impl Forwarded {
    /// The field's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// The addresses of a value from right to left, with `None` for an entry that is not an
    /// address. IPv4-mapped IPv6 addresses are IPv4 addresses; ports are left out.
    ///
    /// ```
    /// use tidegate_headers::Forwarded;
    ///
    /// let found: Vec<_> = Forwarded::XForwardedFor.addresses(b"x, [2001:db8::1]:80, 10.0.0.1").collect();
    /// assert_eq!(found, [Some("10.0.0.1".parse()?), Some("2001:db8::1".parse()?), None]);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn addresses(self, value: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
        FromRight { left: Some(value) }.map(move |entry| match self {
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
/// use tidegate_headers::Networks;
///
/// let inside: Networks = "10.0.0.0/8, fd00::/8, 192.0.2.7".parse()?;
/// assert!(inside.contains("10.1.2.3".parse()?));
/// assert!(!inside.contains("192.0.2.8".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Whether one of the networks contains the address. An IPv4-mapped IPv6 address counts as the
    /// IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client: the first address outside the networks, starting with the `peer` and then
    /// reading the addresses `before` it from the right. If all are inside, it is the leftmost.
    ///
    /// `None` if a proxy in these networks wrote something that is not an address.
    #[must_use]
    pub fn client(
        &self,
        peer: IpAddr,
        mut before: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        let mut client = peer;
        while self.contains(client) {
            match before.next() {
                Some(address) => client = address?,
                None => break,
            }
        }
        Some(client)
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
