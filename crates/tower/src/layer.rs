//! The layer and its options.

use std::{fmt, sync::Arc};

use http::{Response, StatusCode, request::Parts};
use tidegate_core::Decision;
use tidegate_limiter::{KeyedLimit, SystemClock};
use tower_layer::Layer;

use crate::{RateLimit, key::KeySource};

/// What is done with a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// All such requests share one key, the empty one: nobody gets round the limit by leaving the key out, and nobody is
    /// turned away for it as long as few do.
    #[default]
    Shared,
    /// It is let through, and not counted.
    Admit,
    /// It is denied, and no wait is named.
    Deny,
}

/// Which responses tell `RateLimit-Policy` and `RateLimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tell {
    /// All.
    #[default]
    Always,
    /// Denials.
    Denials,
    /// None; denials still have `Retry-After`.
    Never,
}

/// What a limit is called in headers: printable ASCII, of which quotes and backslashes become `_`, as all else does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// This name, as far as headers take it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let taken = |c: char| (' '..='~').contains(&c) && c != '"' && c != '\\';
        Self(name.chars().map(|c| if taken(c) { c } else { '_' }).collect())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Makes the response to a request that is denied. A closure from the [`Decision`] to a response is one; status, body and
/// headers are as it says, and what it does not set of `Retry-After` and the limit's headers is added.
pub trait Denial<R>: Send + Sync {
    /// The response.
    fn response(&self, decision: &Decision) -> Response<R>;
}

impl<R, F: Fn(&Decision) -> Response<R> + Send + Sync> Denial<R> for F {
    fn response(&self, decision: &Decision) -> Response<R> {
        self(decision)
    }
}

/// 429 Too Many Requests, with an empty body.
#[derive(Clone, Copy, Debug)]
pub struct TooManyRequests;

impl<R: Default> Denial<R> for TooManyRequests {
    fn response(&self, _decision: &Decision) -> Response<R> {
        let mut response = Response::new(R::default());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response
    }
}

/// Options of a [`RateLimitLayer`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<L, K, C = fn(&Parts) -> u32, D = TooManyRequests, T = SystemClock> {
    pub(crate) limit: L,
    pub(crate) key: K,
    pub(crate) cost: C,
    pub(crate) denial: D,
    pub(crate) timer: T,
    pub(crate) no_key: NoKey,
    pub(crate) tell: Tell,
    pub(crate) name: Name,
}

impl<L: KeyedLimit, K: KeySource> Builder<L, K> {
    fn new(limit: L, key: K) -> Self {
        Self {
            limit,
            key,
            cost: |_| 1,
            denial: TooManyRequests,
            timer: SystemClock::new(),
            no_key: NoKey::default(),
            tell: Tell::default(),
            name: Name::new("default"),
        }
    }
}

impl<L, K, C, D, T> Builder<L, K, C, D, T> {
    /// What a request costs (default: 1). A cost of 0 is admitted, and told where the client stands.
    pub fn cost<E: Fn(&Parts) -> u32 + Send + Sync>(self, cost: E) -> Builder<L, K, E, D, T> {
        let Self { limit, key, denial, timer, no_key, tell, name, .. } = self;
        Builder { limit, key, cost, denial, timer, no_key, tell, name }
    }

    /// How a denied request is answered (default: [`TooManyRequests`]).
    pub fn on_denial<E>(self, denial: E) -> Builder<L, K, C, E, T> {
        let Self { limit, key, cost, timer, no_key, tell, name, .. } = self;
        Builder { limit, key, cost, denial, timer, no_key, tell, name }
    }

    /// What waits where a decision names a delay (default: the system's clock): a [`tidegate_limiter::Timer`].
    pub fn timer<E>(self, timer: E) -> Builder<L, K, C, D, E> {
        let Self { limit, key, cost, denial, no_key, tell, name, .. } = self;
        Builder { limit, key, cost, denial, timer, no_key, tell, name }
    }

    /// What is done with a request that has no key (default: [`NoKey::Shared`]).
    pub fn no_key(self, no_key: NoKey) -> Self {
        Self { no_key, ..self }
    }

    /// Which responses tell the limit (default: [`Tell::Always`]).
    pub fn tell(self, tell: Tell) -> Self {
        Self { tell, ..self }
    }

    /// What the limit is called in headers (default: `default`).
    pub fn name(self, name: &str) -> Self {
        Self { name: Name::new(name), ..self }
    }

    /// The layer.
    pub fn build(self) -> RateLimitLayer<L, K, C, D, T> {
        RateLimitLayer(Arc::new(self))
    }
}

impl<L: fmt::Debug, K, C, D, T> fmt::Debug for Builder<L, K, C, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("limit", &self.limit)
            .field("no_key", &self.no_key)
            .field("tell", &self.tell)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Limits a service. All services of one layer, and of its clones, share the limit.
pub struct RateLimitLayer<L, K, C = fn(&Parts) -> u32, D = TooManyRequests, T = SystemClock>(
    Arc<Builder<L, K, C, D, T>>,
);

impl<L: KeyedLimit, K: KeySource> RateLimitLayer<L, K> {
    /// A layer with the options' defaults.
    #[must_use]
    pub fn new(limit: L, key: K) -> Self {
        Self::builder(limit, key).build()
    }

    /// A layer with other options.
    pub fn builder(limit: L, key: K) -> Builder<L, K> {
        Builder::new(limit, key)
    }
}

impl<L, K, C, D, T> Clone for RateLimitLayer<L, K, C, D, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: fmt::Debug, K, C, D, T> fmt::Debug for RateLimitLayer<L, K, C, D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.0).finish()
    }
}

impl<S, L, K, C, D, T> Layer<S> for RateLimitLayer<L, K, C, D, T> {
    type Service = RateLimit<S, L, K, C, D, T>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.0))
    }
}
