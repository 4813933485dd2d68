//! Key sources: how a layer finds the key of a request.
//!
//! | key | source |
//! |---|---|
//! | the peer's address | [`Peer`] |
//! | the client's address, behind proxies | [`Client`] |
//! | a header field | [`Header`] |
//! | a value that an earlier layer put into the request, such as a user's id | [`Extension`] |
//! | the route template of axum (`/users/{id}`) | `Route`, with the feature `axum` |
//! | the gRPC method | [`GrpcMethod`] |
//! | the path | [`Path`] |
//! | two or three of these combined | a tuple |
//! | anything else, such as a claim of a token | a closure |
//! | one key for all | [`Fixed`] |
//!
//! ```
//! use http::request::Parts;
//! use tidegate_tower::key::{Client, Fixed, Header, KeySource, Path, Peer};
//!
//! fn check(_: impl KeySource) {}
//! check(Header::named("x-api-key"));
//! check((Peer::address(), Path));
//! check(Client::behind(1));
//! check(Fixed::new("all clients"));
//! check(|parts: &Parts| parts.uri.query().map(str::to_owned));
//! ```

mod address;
mod forwarded;
mod list;
mod request;

use std::borrow::Cow;

use http::request::Parts;

pub use address::{Peer, PeerIn, address_key};
pub use forwarded::Client;
pub use list::KeyList;
#[cfg(feature = "axum")]
pub use request::Route;
pub use request::{Extension, Fixed, GrpcMethod, Header, Path};
pub use tidegate_headers::{NetworkError, Networks};

/// Finds the key of a request.
///
/// Any closure that takes [`Parts`] and returns an `Option` of something that converts into bytes
/// is a key source. It can return a `String`, a `Vec<u8>` or a `&str` that lives long enough.
pub trait KeySource: Send + Sync {
    /// The key, or `None` if the request has none.
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>>;

    /// Why a request has no key and what to do about it, for the log.
    fn missing(&self) -> &'static str {
        "the key source found no key in the request"
    }
}

impl<F, K> KeySource for F
where
    F: Fn(&Parts) -> Option<K> + Send + Sync,
    K: Into<Vec<u8>>,
{
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        self(parts).map(|key| Cow::Owned(key.into()))
    }

    fn missing(&self) -> &'static str {
        "the layer's closure returned None"
    }
}

/// Combines both keys. A request that lacks one of them has no key.
impl<A: KeySource, B: KeySource> KeySource for (A, B) {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(joined(&[self.0.key(parts)?, self.1.key(parts)?]).into())
    }

    fn missing(&self) -> &'static str {
        "one of the layer's key sources found no key in the request"
    }
}

/// Combines all three keys. A request that lacks one of them has no key.
impl<A: KeySource, B: KeySource, C: KeySource> KeySource for (A, B, C) {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(joined(&[self.0.key(parts)?, self.1.key(parts)?, self.2.key(parts)?]).into())
    }

    fn missing(&self) -> &'static str {
        "one of the layer's key sources found no key in the request"
    }
}

/// Joins keys, each preceded by its length, so that different lists of keys never become equal.
fn joined(keys: &[Cow<'_, [u8]>]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(keys.iter().map(|key| key.len() + 4).sum());
    for key in keys {
        whole.extend_from_slice(key.len().to_string().as_bytes());
        whole.push(b':');
        whole.extend_from_slice(key);
    }
    whole
}
