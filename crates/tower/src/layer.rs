//! The layer, and the builder of its options.

use std::{
    fmt, marker::PhantomData, num::NonZeroU32, sync::Arc, sync::atomic::AtomicU64, time::Duration,
};

use bytes::Bytes;
use http::{Response, request, response};
use tidegate_limiter::{SystemClock, Timer};
use tower_layer::Layer;

use crate::{
    IntoLimit, Limit, RateLimit, Refusal, Tell,
    bodies::{Same, Wrapped},
    header_decision::Name,
    key::{KeyList, KeySource},
    once::OnceById,
    options::{LayerOptions, LayerRule, LimitSource, NoKey},
    settle::Settle,
};

/// Options of a [`RateLimitLayer`]. Methods that refer to "this limit", such as
/// [`name`](Self::name) and [`cost`](Self::cost), apply to the limit that was added last.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<C = SystemClock>(LayerOptions<C>);

impl<C: Timer + 'static> Builder<C> {
    fn new(limit: Limit<C>, key: impl KeySource + 'static) -> Self {
        Self(LayerOptions {
            time: limit.time(),
            rules: vec![LayerRule::new(LimitSource::Fixed(limit), key)],
            is_billed: false,
            exempt: None,
            answers: None,
            on_shadow: None,
            no_key: NoKey::default(),
            tell: Tell::default(),
            old_headers: false,
            #[cfg(feature = "vendors")]
            vendor: None,
            max_wait: None,
            any: false,
            once: None,
            logged: AtomicU64::new(0),
        })
    }

    fn this(mut self, change: impl FnOnce(&mut LayerRule<C>)) -> Self {
        if let Some(rule) = self.0.rules.last_mut() {
            change(rule);
        }
        self
    }

    /// Adds another limit. One decision covers all limits of a layer: all admit, or none is
    /// charged.
    ///
    /// Limits of this process are decided in one atomic step, and so are the shared limits of one
    /// store. If a layer has both, or limits of several stores, the limits of this process are
    /// decided first. If a store then denies, they are refunded.
    pub fn and(mut self, limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Self {
        self.0
            .rules
            .push(LayerRule::new(LimitSource::Fixed(limit.into_limit()), key));
        self
    }

    /// The first limit of the layer that admits takes its cost, in the order in which they were
    /// added: a steady limit, and behind it a reserve for bursts. If all deny, the response has the
    /// denial that ends first. Limits in a dry run never take the place of another.
    ///
    /// Limits of this process are decided in one atomic step. If some are shared or
    /// [custom](Limit::own), they are asked in turn, and the first that admits takes its cost. Requests wait
    /// only for a delay, in such a layer, and [ids](Self::id) have no effect.
    ///
    /// ```
    /// # use tidegate_limiter::{KeyedLimiter, Policy};
    /// # use tidegate_tower::{RateLimitLayer, key::Header};
    /// let user = || Header::named("x-user");
    /// let steady = KeyedLimiter::new(Policy::token_bucket("10/1s".parse()?))?;
    /// let bursts = KeyedLimiter::new(Policy::fixed_window("500/1h".parse()?))?;
    /// let layer: RateLimitLayer =
    ///     RateLimitLayer::builder(steady, user()).and(bursts, user()).any().build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn any(mut self) -> Self {
        self.0.any = true;
        self
    }

    /// Adds a limit that is chosen for each request, such as the limit of a tenant's plan. `None`
    /// means that this rule does not limit the request. The closure may read a table that changes
    /// while the service runs.
    pub fn and_by(
        mut self,
        limit: impl Fn(&request::Parts) -> Option<Limit<C>> + Send + Sync + 'static,
        key: impl KeySource + 'static,
    ) -> Self {
        self.0
            .rules
            .push(LayerRule::new(LimitSource::ByRequest(Box::new(limit)), key));
        self
    }

    /// The limit's name in headers, responses and the log (default: `default`).
    pub fn name(self, name: &str) -> Self {
        self.this(|rule| rule.name = Name::new(name))
    }

    /// The cost of a request for this limit (default: 1). A cost of 0 takes nothing; it is denied
    /// while more is in use than the limit, after late charges.
    pub fn cost(self, cost: impl Fn(&request::Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.this(|rule| rule.cost = Some(Box::new(cost)))
    }

    /// The head of the response, such as a header field, has the actual cost for this limit. The
    /// layer takes [`cost`](Self::cost) before the call and then refunds the difference, or charges
    /// it even if it does not fit. If the closure returns `None`, or the service fails without a
    /// response, the charge stays as it is.
    pub fn cost_from_response(
        self,
        cost: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.this(|rule| rule.settle = Settle::Head(Arc::new(cost)))
    }

    /// The actual cost for this limit is one unit per `bytes` of the response's body, rounded up,
    /// counted until the body ends or is dropped. Otherwise the same as
    /// [`cost_from_response`](Self::cost_from_response).
    pub fn cost_per_bytes(self, bytes: NonZeroU32) -> Self {
        self.this(|rule| rule.settle = Settle::Bytes(bytes))
    }

    /// The text of the response has the actual cost for this limit, such as the tokens of a
    /// language model's answer: a JSON document, or the data of a server-sent event. In a stream of
    /// events the last one for which the closure returns a cost counts. The charge is settled when
    /// the body ends or is dropped, for example because the client has gone away. If no value had a
    /// cost until then, or the body is compressed, of another type or has more than 1 MiB (a
    /// stream: in one event), the charge stays as it is.
    ///
    /// ```
    /// # use tidegate_limiter::{KeyedLimiter, Policy};
    /// # use tidegate_tower::{RateLimitLayer, key::Header};
    /// let tokens = KeyedLimiter::new(Policy::sliding_window("100000/1m".parse()?))?;
    /// let layer: RateLimitLayer = RateLimitLayer::builder(tokens, Header::named("x-api-key"))
    ///     .cost(|_| 4_000) // the estimate
    ///     .cost_from_json(|answer| answer.pointer("/usage/total_tokens")?.as_u64()?.try_into().ok())
    ///     .build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "json")]
    pub fn cost_from_json(
        self,
        cost: impl Fn(&serde_json::Value) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.this(|rule| rule.settle = Settle::Json(Arc::new(cost), None))
    }

    /// The service says the actual cost for this limit: it writes it into the [`Bill`](crate::Bill)
    /// in the request's extensions before the response's body ends. Otherwise the same as
    /// [`cost_from_response`](Self::cost_from_response).
    pub fn billed(mut self) -> Self {
        self.0.is_billed = true;
        self.this(|rule| rule.settle = Settle::Bill(None))
    }

    /// Exempts these keys from this limit. The list can change while the service runs.
    pub fn exempt_keys(self, keys: KeyList) -> Self {
        self.this(|rule| rule.exempt = Some(keys))
    }

    /// Runs this limit dry: requests are decided and charged, but never refused, and responses do
    /// not report it. It is decided after the other limits, and only if they admit.
    /// [`on_shadow`](Self::on_shadow) receives the refusals that it would have caused.
    pub fn shadow(self) -> Self {
        self.this(|rule| rule.shadow = true)
    }

    /// Exempts these requests from all limits of this layer. Their responses report no limits.
    pub fn exempt(
        mut self,
        is_exempt: impl Fn(&request::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.0.exempt = Some(Box::new(is_exempt));
        self
    }

    /// Called for each request that a limit in a dry run would have refused (default: log at level
    /// debug).
    pub fn on_shadow(mut self, hears: impl Fn(&Refusal<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_shadow = Some(Box::new(hears));
        self
    }

    /// Builds the response to a refused request (default: [`Refusal::usual`]). The layer adds the
    /// limits' headers, and `Retry-After` unless the closure sets it.
    pub fn on_denial<B: Into<Bytes>>(
        mut self,
        answer: impl Fn(&Refusal<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.0.answers = Some(Box::new(move |refusal| answer(refusal).map(Into::into)));
        self
    }

    /// Sets the treatment of a request without a key (default: [`NoKey::Refuse`]).
    pub fn no_key(mut self, no_key: NoKey) -> Self {
        self.0.no_key = no_key;
        self
    }

    /// Which responses report the limits (default: [`Tell::Always`]).
    pub fn tell(mut self, tell: Tell) -> Self {
        self.0.tell = tell;
        self
    }

    /// Also sends the header fields of a provider of language models, for limits with such
    /// [names](Self::name): see [`Vendor::fields`](crate::Vendor::fields).
    #[cfg(feature = "vendors")]
    pub fn vendor_headers(mut self, vendor: crate::Vendor) -> Self {
        self.0.vendor = Some(vendor);
        self
    }

    /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds
    /// from now) for the limit with the least left.
    pub fn old_headers(mut self) -> Self {
        self.0.old_headers = true;
        self
    }

    /// Waits up to `bound` for admission, without blocking a thread. A request that would have to
    /// wait longer is refused immediately.
    ///
    /// Without this option, a request waits only for the delay of a leaky bucket or of a cost
    /// above the limit (`oversize_wait`), and a denied
    /// request is refused immediately. Requests wait for limits of this process in order, first
    /// come first served ([`wait_all`](tidegate_limiter::wait_all)). Shared limits are asked again
    /// at the time when they expect to admit, and the first request to ask then gets the units.
    pub fn max_wait(mut self, bound: Duration) -> Self {
        self.0.max_wait = Some(bound);
        self
    }

    /// Makes requests with an id safe to repeat. A request that got no answer in time can be sent
    /// again with the same id: for a minute, a repeat of an admitted request with the same id, keys
    /// and costs gets the first decision and takes nothing. Its service is called. Requests without
    /// an id, and with an empty one, count each time.
    ///
    /// A client that chooses its ids can use one of them again and again, and is admitted each time:
    /// take ids only from clients that you trust, or check first that the id is new or that the
    /// service repeats its own answer.
    ///
    /// * A denial took nothing and is not remembered, because clients keep their id when they try
    ///   again after its wait.
    /// * If all limits of the layer are shared limits of one store, an id counts once in all
    ///   processes. In these decisions, units that processes hold of leased limits count as used.
    ///   Otherwise, and with [`max_wait`](Self::max_wait) or costs that are known only after the
    ///   service has run, an id counts once in this process, and a repeat that arrives while the
    ///   first one waits is decided by itself.
    /// * An admitted request with an id that is dropped before its service is called keeps its units
    ///   taken, for its repeat.
    /// * A concurrency limit counts each request in flight, repeats too. If a layer has one, ids
    ///   have no effect in it: use a second layer.
    ///
    /// The layer remembers at most [`MOST_REMEMBERED`](tidegate_limiter::repeats::MOST_REMEMBERED)
    /// ids, of 44 bytes each. Above that, it forgets the oldest.
    ///
    /// ```
    /// # use tidegate_limiter::{KeyedLimiter, Policy};
    /// # use tidegate_tower::{RateLimitLayer, key::Header};
    /// let calls = KeyedLimiter::new(Policy::fixed_window("100/1m".parse()?))?;
    /// let layer: RateLimitLayer = RateLimitLayer::builder(calls, Header::named("x-api-key"))
    ///     .id(Header::named("idempotency-key"))
    ///     .build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(mut self, id: impl KeySource + 'static) -> Self {
        self.0.once = Some(Box::new(OnceById::new(id)));
        self
    }

    /// Builds the layer.
    pub fn build(self) -> RateLimitLayer<C> {
        RateLimitLayer {
            options: Arc::new(self.0),
            bodies: PhantomData,
        }
    }
}

impl<C> fmt::Debug for Builder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.0).finish()
    }
}

/// Limits a service. All services of a layer and its clones share the limits.
///
/// A unit of a [`concurrency`](tidegate_limiter::Policy::concurrency) limit is given back when the
/// response's body has been read or dropped, when the service fails, or when the request is
/// dropped. Units of other limits are spent once the service is called. A request that is dropped
/// before that, for example while it waits for its delay, refunds them. A request that is dropped
/// while the store decides may stay charged, except for permits of a single shared limit.
///
/// The response's body is a [`Body`](crate::Body), unless the layer is for services of the [same
/// body](Self::same_body).
pub struct RateLimitLayer<C = SystemClock, K = Wrapped> {
    options: Arc<LayerOptions<C>>,
    bodies: PhantomData<fn() -> K>,
}

impl<C: Timer + 'static> RateLimitLayer<C> {
    /// A layer with default options.
    #[must_use]
    pub fn new(limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Self {
        Self::builder(limit, key).build()
    }

    /// Starts a layer with other options.
    pub fn builder(limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Builder<C> {
        Builder::new(limit.into_limit(), key)
    }

    /// The same layer for services whose body type can hold any body: axum's `Body` (feature
    /// `axum`) and tonic's (feature `grpc`). Its responses keep that type. Axum and tonic put a
    /// body of another type into a box of theirs, which costs each request an allocation; this
    /// layer needs a box only for requests that hold something until their body ends.
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # fn example() -> Result<axum::Router, Box<dyn std::error::Error>> {
    /// use axum::{Router, routing::get};
    /// use tidegate_limiter::{KeyedLimiter, Policy};
    /// use tidegate_tower::{RateLimitLayer, key::Peer};
    ///
    /// let limit = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
    /// let layer = RateLimitLayer::new(limit, Peer::address()).same_body();
    /// # return Ok(
    /// Router::new().route("/", get(async || "hello")).layer(layer)
    /// # );
    /// # }
    /// ```
    #[must_use]
    pub fn same_body(self) -> RateLimitLayer<C, Same> {
        RateLimitLayer {
            options: self.options,
            bodies: PhantomData,
        }
    }
}

#[cfg(feature = "reqwest")]
impl<C> RateLimitLayer<C> {
    pub(crate) const fn options(&self) -> &Arc<LayerOptions<C>> {
        &self.options
    }
}

impl<C, K> Clone for RateLimitLayer<C, K> {
    fn clone(&self) -> Self {
        Self {
            options: Arc::clone(&self.options),
            bodies: PhantomData,
        }
    }
}

impl<C, K> fmt::Debug for RateLimitLayer<C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer")
            .field(&self.options)
            .finish()
    }
}

impl<S, C, K> Layer<S> for RateLimitLayer<C, K> {
    type Service = RateLimit<S, C, K>;

    fn layer(&self, inner: S) -> RateLimit<S, C, K> {
        RateLimit::new(inner, Arc::clone(&self.options))
    }
}
