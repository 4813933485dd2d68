//! Where a request's key comes from: ready-made sources, and closures.
//!
//! ```
//! use http::request::Parts;
//! use tidegate_tower::key::{Fixed, Header, KeySource, Path};
//!
//! fn check(_: impl KeySource) {}
//! check(Header::named("x-api-key"));
//! check(Path);
//! check(Fixed::new("everybody"));
//! check(|parts: &Parts| parts.uri.query().map(str::to_owned));
//! ```

use std::{
    borrow::Cow,
    marker::PhantomData,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use http::{HeaderName, request::Parts};

/// Finds the key of a request.
///
/// Any closure that takes [`Parts`] and returns an `Option` of something that becomes bytes is one: a `String`, a `&str`
/// that lives long enough, a `Vec<u8>`.
pub trait KeySource: Send + Sync {
    /// The key; `None` where the request has none.
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>>;
}

impl<F, K> KeySource for F
where
    F: Fn(&Parts) -> Option<K> + Send + Sync,
    K: Into<Vec<u8>>,
{
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        self(parts).map(|key| Cow::Owned(key.into()))
    }
}

/// The value of a header field; of several, the first. A client writes what it likes there: behind a proxy, take a field
/// that the proxy sets itself.
#[derive(Clone, Debug)]
pub struct Header(pub HeaderName);

impl Header {
    /// The field of this name.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl KeySource for Header {
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        parts.headers.get(&self.0).map(|value| value.as_bytes().into())
    }
}

/// The path of the address, as the client wrote it. Where paths hold names of things, clients make up as many as they
/// like: each counts by itself.
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeySource for Path {
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(parts.uri.path().as_bytes().into())
    }
}

/// One key for all requests.
#[derive(Clone, Debug)]
pub struct Fixed(Vec<u8>);

impl Fixed {
    /// This key.
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self(key.into())
    }
}

impl KeySource for Fixed {
    fn key<'r>(&self, _parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(self.0.clone().into())
    }
}

/// The client's network address, by [`address_key`], from an extension of the request: a [`SocketAddr`] or an [`IpAddr`],
/// or what [`found_in`](Self::found_in) says. Whoever accepts the connection must put it there.
#[derive(Clone, Debug)]
pub struct Peer(());

impl Peer {
    /// From a [`SocketAddr`] or an [`IpAddr`] among the extensions.
    #[must_use]
    pub const fn address() -> Self {
        Self(())
    }

    /// From an extension of another type. With axum:
    /// `Peer::found_in(|info: &ConnectInfo<SocketAddr>| info.0.ip())`.
    pub const fn found_in<T, F>(address: F) -> PeerIn<T, F>
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&T) -> IpAddr + Send + Sync,
    {
        PeerIn { address, kind: PhantomData }
    }
}

impl KeySource for Peer {
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        let socket = parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        let address = socket.or_else(|| parts.extensions.get::<IpAddr>().copied())?;
        Some(address_key(address).into())
    }
}

/// From [`Peer::found_in`].
#[derive(Clone, Debug)]
pub struct PeerIn<T, F> {
    address: F,
    kind: PhantomData<fn(&T)>,
}

impl<T, F> KeySource for PeerIn<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> IpAddr + Send + Sync,
{
    fn key<'r>(&self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        parts.extensions.get::<T>().map(|found| address_key((self.address)(found)).into())
    }
}

/// The key of a network address: an IPv4 address in full, of an IPv6 address the first 64 bits, as one client has all
/// addresses that begin with them. As text, so that it can be read where keys are looked at.
#[must_use]
pub fn address_key(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string().into_bytes(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            format!("{}/64", Ipv6Addr::from(network)).into_bytes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_counts_as_the_client_that_has_it() {
        let key = |text: &str| {
            let address = text.parse().expect("the address is well formed");
            String::from_utf8(address_key(address)).expect("a key of an address is text")
        };
        assert_eq!(key("192.0.2.7"), "192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(key("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(key("2001:db8:1:2::9"), "2001:db8:1:2::/64");
    }
}
