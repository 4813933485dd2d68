//! Limits on the number of requests in flight.

use std::time::Duration;

use tidegate_limiter::{BuildError, KeyedLimiter, Limiter, Policy};
use tower_layer::Layer;

use crate::{
    RateLimit, RateLimitLayer,
    key::{Fixed, KeySource},
};

/// Bounds how many requests a service has in flight. A request is in flight from the call of the
/// service until the response's body has been read or dropped. Requests above the limit are
/// answered with 429, or wait.
///
/// An upgraded connection, such as a websocket, outlives its response with status 101. A handler
/// that moves the request's [`InFlight`](crate::InFlight) into the connection's task keeps it in
/// flight.
///
/// To set other options, or to decide together with other limits, give a [`RateLimitLayer`] a limit
/// of [`Policy::concurrency`].
///
/// ```
/// use std::time::Duration;
/// use tidegate_tower::{ConcurrencyLayer, key::Header};
///
/// let at_most_100 = ConcurrencyLayer::new(100);
/// let others_wait = ConcurrencyLayer::waiting(100, Duration::from_secs(1));
/// let two_each = ConcurrencyLayer::per_key(2, Header::named("x-api-key"))?;
/// # let _ = (at_most_100, others_wait, two_each);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer(RateLimitLayer);

impl ConcurrencyLayer {
    /// Allows `limit` requests in flight in total.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self(RateLimitLayer::new(
            Limiter::new(Policy::concurrency(limit)),
            Fixed::new(""),
        ))
    }

    /// Allows `limit` requests in flight in total. Others wait up to `bound`, first come first
    /// served.
    #[must_use]
    pub fn waiting(limit: u32, bound: Duration) -> Self {
        let limiter = Limiter::new(Policy::concurrency(limit));
        Self(
            RateLimitLayer::builder(limiter, Fixed::new(""))
                .max_wait(bound)
                .build(),
        )
    }

    /// Allows `limit` requests in flight for each key.
    ///
    /// # Errors
    /// The same as [`KeyedLimiter::new`].
    pub fn per_key(limit: u32, key: impl KeySource + 'static) -> Result<Self, BuildError> {
        Ok(Self(RateLimitLayer::new(
            KeyedLimiter::new(Policy::concurrency(limit))?,
            key,
        )))
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        self.0.layer(inner)
    }
}
