//! Network addresses as keys, and the peer's address.

use std::{
    borrow::Cow,
    marker::PhantomData,
    net::{IpAddr, SocketAddr},
};

use http::{Extensions, request::Parts};

use super::KeySource;

/// The default number of bits of an IPv6 address that identify a client.
pub(super) const USUAL: u8 = 64;

/// The address of the connection's peer, as [`address_key`] writes it.
///
/// The server must provide it: axum's `ConnectInfo<SocketAddr>` (feature `axum`; serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`), tonic's `TcpConnectInfo` (feature
/// `grpc`), a [`SocketAddr`] or an [`IpAddr`] in the request's extensions, or the extension that
/// [`found_in`](Self::found_in) names. Behind a proxy, the peer is the proxy: use
/// [`Client`](super::Client) there.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    prefix: u8,
}

impl Peer {
    /// Takes the address from one of the usual extensions.
    #[must_use]
    pub const fn address() -> Self {
        Self { prefix: USUAL }
    }

    /// Takes the address from an extension of another type.
    pub const fn found_in<T, F>(address: F) -> PeerIn<T, F>
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&T) -> IpAddr + Send + Sync,
    {
        PeerIn {
            address,
            prefix: USUAL,
            kind: PhantomData,
        }
    }

    /// Identifies clients by the first `bits` of an IPv6 address, at most 128 (default: 64).
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefix = bits;
        self
    }
}

impl KeySource for Peer {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        peer(&parts.extensions).map(|address| key(address, self.prefix).into())
    }

    fn missing(&self) -> &'static str {
        NO_PEER
    }
}

#[cfg(feature = "axum")]
pub(super) const NO_PEER: &str = "no peer address in the request's extensions: serve axum with \
     into_make_service_with_connect_info::<SocketAddr>(), elsewhere insert the SocketAddr, or use Peer::found_in";
#[cfg(not(feature = "axum"))]
pub(super) const NO_PEER: &str = "no peer address in the request's extensions: for axum's ConnectInfo enable \
     tidegate-tower's feature `axum`, elsewhere insert the SocketAddr, or use Peer::found_in";

/// Looks for the peer's address in all usual extensions.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        if let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
        if let Some(MockConnectInfo(address)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
    }
    #[cfg(feature = "grpc")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|address| address.ip());
    }
    let socket = extensions.get::<SocketAddr>().map(SocketAddr::ip);
    socket.or_else(|| extensions.get::<IpAddr>().copied())
}

/// A key source from [`Peer::found_in`].
#[derive(Clone, Debug)]
pub struct PeerIn<T, F> {
    address: F,
    prefix: u8,
    kind: PhantomData<fn(&T)>,
}

impl<T, F> PeerIn<T, F> {
    /// Identifies clients by the first `bits` of an IPv6 address, at most 128 (default: 64).
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self {
            prefix: bits,
            ..self
        }
    }
}

impl<T, F> KeySource for PeerIn<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> IpAddr + Send + Sync,
{
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        parts
            .extensions
            .get::<T>()
            .map(|found| key((self.address)(found), self.prefix).into())
    }

    fn missing(&self) -> &'static str {
        "the request lacks the extension that Peer::found_in looks for"
    }
}

/// The key of a network address: the whole IPv4 address, or the first 64 bits of an IPv6 address,
/// because one client usually has all addresses with the same first 64 bits. The key is readable
/// text.
#[must_use]
pub fn address_key(address: IpAddr) -> Vec<u8> {
    key(address, USUAL)
}

pub(super) fn key(address: IpAddr, prefix: u8) -> Vec<u8> {
    tidegate_core::address_key(address, prefix).into_bytes()
}
