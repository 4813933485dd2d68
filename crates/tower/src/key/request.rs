//! Keys that the request contains.

use std::{borrow::Cow, marker::PhantomData};

use http::{HeaderName, request::Parts};

use super::KeySource;
use crate::answer::is_grpc;

/// The value of a header field; the first if there are several. Clients can write anything there.
/// Behind a proxy, use a field that the proxy itself sets.
#[derive(Clone, Debug)]
pub struct Header(pub HeaderName);

impl Header {
    /// The field with this name.
    ///
    /// # Panics
    /// Panics if `name` is not a header name in lower case.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl KeySource for Header {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        parts
            .headers
            .get(&self.0)
            .map(|value| value.as_bytes().into())
    }

    fn missing(&self) -> &'static str {
        "the request lacks the header field; `no_key` sets what happens to such requests"
    }
}

/// The path of the URI as the client wrote it. If paths contain identifiers, clients can make up as
/// many as they like, and each counts separately: use `Route` with axum instead.
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeySource for Path {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(parts.uri.path().as_bytes().into())
    }
}

/// The route that axum matched, as the router has it: `/users/{id}`. All requests without a route
/// share the empty key.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct Route;

#[cfg(feature = "axum")]
impl KeySource for Route {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        let route = parts.extensions.get::<axum::extract::MatchedPath>();
        Some(route.map_or("", |route| route.as_str()).as_bytes().into())
    }
}

/// The method of a gRPC call: `/package.Service/Method`. Other requests have no key.
#[derive(Clone, Copy, Debug)]
pub struct GrpcMethod;

impl KeySource for GrpcMethod {
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        is_grpc(&parts.headers).then(|| parts.uri.path().as_bytes().into())
    }

    fn missing(&self) -> &'static str {
        "the request is not a gRPC call: its content-type does not begin with application/grpc"
    }
}

/// One key for all requests.
#[derive(Clone, Debug)]
pub struct Fixed(Vec<u8>);

impl Fixed {
    /// Uses this key.
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self(key.into())
    }
}

impl KeySource for Fixed {
    fn key<'r>(&'r self, _parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(self.0.as_slice().into())
    }
}

/// A value that an earlier layer put into the request's extensions, such as the id of the signed-in
/// user.
///
/// ```
/// use tidegate_tower::key::Extension;
///
/// #[derive(Clone)]
/// struct User(String);
///
/// let user = Extension::new(|user: &User| user.0.clone());
/// # let _ = user;
/// ```
#[derive(Clone, Debug)]
pub struct Extension<T, F> {
    key: F,
    kind: PhantomData<fn(&T)>,
}

impl<T, F, K> Extension<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync,
    K: Into<Vec<u8>>,
{
    /// Builds the key from the extension with the closure.
    pub const fn new(key: F) -> Self {
        Self {
            key,
            kind: PhantomData,
        }
    }
}

impl<T, F, K> KeySource for Extension<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync,
    K: Into<Vec<u8>>,
{
    fn key<'r>(&'r self, parts: &'r Parts) -> Option<Cow<'r, [u8]>> {
        parts
            .extensions
            .get::<T>()
            .map(|found| Cow::Owned((self.key)(found).into()))
    }

    fn missing(&self) -> &'static str {
        "the request lacks the extension: the layer that sets it must run before this one"
    }
}
