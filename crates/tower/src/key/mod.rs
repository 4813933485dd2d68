//! Where a request's key comes from: ready-made sources, and closures.
//!
//! | key | source |
//! |---|---|
//! | the peer's address | [`Peer`] |
//! | the client's address, behind proxies | [`Client`] |
//! | a header field | [`Header`] |
//! | what an earlier layer put into the request, such as a user's id | [`Extension`] |
//! | the route, as axum writes it (`/users/{id}`) | `Route`, with the feature `axum` |
//! | the gRPC method | [`GrpcMethod`] |
//! | the path | [`Path`] |
//! | two or three of these together | a tuple |
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
//! check(Fixed::new("everybody"));
//! check(|parts: &Parts| parts.uri.query().map(str::to_owned));
//! ```

mod address;
mod forwarded;
mod list;
mod request;

use std::borrow::Cow;

use http::request::Parts;

pub use address::{Peer, PeerIn, address_key};
pub use forwarded::{Client, Networks};
pub use list::KeyList;
#[cfg(feature = "axum")]
pub use request::Route;
pub use request::{Extension, Fixed, GrpcMethod, Header, Path};

/// Finds the key of a request.
///
/// Any closure that takes [`Parts`] and returns an `Option` of something that becomes bytes is one: a `String`, a `&str`
/// that lives long enough, a `Vec<u8>`.
pub trait KeySource: Send + Sync {
    /// The key; `None` where the request has none.
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>>;

    /// Why a request has no key, and what to do about it: for the log.
    fn missing(&self) -> &'static str {
        "the key source found none in the request"
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

/// Both keys together. A request that lacks one of them has none.
impl<A: KeySource, B: KeySource> KeySource for (A, B) {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(joined(&[self.0.key(parts)?, self.1.key(parts)?]).into())
    }

    fn missing(&self) -> &'static str {
        "one of the layer's key sources found none in the request"
    }
}

/// All three keys together. A request that lacks one of them has none.
impl<A: KeySource, B: KeySource, C: KeySource> KeySource for (A, B, C) {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(joined(&[self.0.key(parts)?, self.1.key(parts)?, self.2.key(parts)?]).into())
    }

    fn missing(&self) -> &'static str {
        "one of the layer's key sources found none in the request"
    }
}

/// Keys with their lengths before them: no two lists of keys become the same one.
fn joined(keys: &[Cow<'_, [u8]>]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(keys.iter().map(|key| key.len() + 4).sum());
    for key in keys {
        whole.extend_from_slice(key.len().to_string().as_bytes());
        whole.push(b':');
        whole.extend_from_slice(key);
    }
    whole
}
