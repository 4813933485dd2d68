//! The client's address behind proxies.

use std::{borrow::Cow, net::IpAddr};

use http::{HeaderMap, request::Parts};
use tidegate_headers::{Forwarded, Networks};

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
    field: Forwarded,
    prefix: u8,
}

#[derive(Clone, Debug)]
enum Trust {
    Proxies(usize),
    Networks(Networks),
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
            field: Forwarded::XForwardedFor,
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
            field: Forwarded::XForwardedFor,
            prefix: USUAL,
        }
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Only one field is ever read,
    /// because a proxy that writes one of them passes on the other as the client sent it.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self {
            field: Forwarded::Forwarded,
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
            Trust::Proxies(proxies) => addresses(self.field, &parts.headers).nth(proxies - 1)?,
            Trust::Networks(trusted) => {
                let peer = peer(&parts.extensions)?;
                trusted.client(peer, addresses(self.field, &parts.headers))
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

/// The addresses of all lines of the field, from right to left.
fn addresses(field: Forwarded, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(field.name()).iter().rev();
    lines.flat_map(move |line| field.addresses(line.as_bytes()))
}
