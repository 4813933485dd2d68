//! The layer and its options.

use std::{fmt, num::NonZeroU32, sync::Arc, sync::atomic::AtomicU64, time::Duration};

use bytes::Bytes;
use http::{Response, request, response};
use tidegate_core::Decision;
use tidegate_limiter::{SystemClock, Timer};
use tower_layer::Layer;

use crate::{
    IntoLimit, Limit, RateLimit, Refusal, Tell,
    key::{KeyList, KeySource},
    time::Time,
    told::Name,
};

/// What is done with a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// It is answered with 500, and the log says why it has none, at most once a minute: the service is not set up as the
    /// limit needs it.
    #[default]
    Refuse,
    /// All such requests share one key, the empty one: nobody gets round the limit by leaving the key out.
    Shared,
    /// It is let through, and not counted.
    Admit,
    /// It is denied, and no wait is named.
    Deny,
}

type CostOf = Box<dyn Fn(&request::Parts) -> u32 + Send + Sync>;
type LimitOf<C> = Box<dyn Fn(&request::Parts) -> Option<Limit<C>> + Send + Sync>;
type ToldCost = Box<dyn Fn(&response::Parts) -> Option<u32> + Send + Sync>;
type Exempts = Box<dyn Fn(&request::Parts) -> bool + Send + Sync>;
type Answers = Box<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;
type Hears = Box<dyn Fn(&Refusal<'_>) + Send + Sync>;

/// Where a rule has its limit from.
pub(crate) enum Source<C> {
    Fixed(Limit<C>),
    ByRequest(LimitOf<C>),
}

/// When a rule learns what a request has cost.
pub(crate) enum Settle {
    Before,
    Head(ToldCost),
    Bytes(NonZeroU32),
    Bill,
}

/// One of a layer's limits, and how it is asked.
pub(crate) struct Rule<C> {
    pub(crate) source: Source<C>,
    pub(crate) key: Box<dyn KeySource>,
    pub(crate) cost: Option<CostOf>,
    pub(crate) settle: Settle,
    pub(crate) exempt: Option<KeyList>,
    pub(crate) shadow: bool,
    pub(crate) name: Name,
}

impl<C> Rule<C> {
    fn new(source: Source<C>, key: impl KeySource + 'static) -> Self {
        Self {
            source,
            key: Box::new(key),
            cost: None,
            settle: Settle::Before,
            exempt: None,
            shadow: false,
            name: Name::new("default"),
        }
    }
}

/// What a layer and its services share.
pub(crate) struct Options<C> {
    pub(crate) rules: Vec<Rule<C>>,
    pub(crate) time: Arc<dyn Time>,
    pub(crate) exempt: Option<Exempts>,
    pub(crate) answers: Option<Answers>,
    pub(crate) on_shadow: Option<Hears>,
    pub(crate) no_key: NoKey,
    pub(crate) tell: Tell,
    pub(crate) old_headers: bool,
    pub(crate) max_wait: Option<Duration>,
    /// When the log was last told of a request that has no key, in nanoseconds; 0 for never.
    pub(crate) logged: AtomicU64,
}

/// Options of a [`RateLimitLayer`]. [`name`](Self::name), [`cost`](Self::cost) and what else speaks of "this limit" is about
/// the one that was added last.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<C = SystemClock>(Options<C>);

impl<C: Timer + 'static> Builder<C> {
    fn new(limit: Limit<C>, key: impl KeySource + 'static) -> Self {
        Self(Options {
            time: limit.time(),
            rules: vec![Rule::new(Source::Fixed(limit), key)],
            exempt: None,
            answers: None,
            on_shadow: None,
            no_key: NoKey::default(),
            tell: Tell::default(),
            old_headers: false,
            max_wait: None,
            logged: AtomicU64::new(0),
        })
    }

    fn this(mut self, change: impl FnOnce(&mut Rule<C>)) -> Self {
        if let Some(rule) = self.0.rules.last_mut() {
            change(rule);
        }
        self
    }

    /// Adds another limit. All limits of one layer are one decision: all admit, or none is charged.
    ///
    /// Limits of this process are decided in one atomic step, and so are shared limits of one store. Where a layer has both, or
    /// limits of several stores, those of this process are asked first, and what they took is given back when a store denies.
    pub fn and(mut self, limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Self {
        self.0.rules.push(Rule::new(Source::Fixed(limit.into_limit()), key));
        self
    }

    /// Adds a limit that is chosen for each request, such as that of a tenant's plan; `None` leaves the request unlimited by
    /// it. The closure may look into a table that changes while the service runs.
    pub fn and_by(
        mut self,
        limit: impl Fn(&request::Parts) -> Option<Limit<C>> + Send + Sync + 'static,
        key: impl KeySource + 'static,
    ) -> Self {
        self.0.rules.push(Rule::new(Source::ByRequest(Box::new(limit)), key));
        self
    }

    /// What this limit is called in headers, in answers and in the log (default: `default`).
    pub fn name(self, name: &str) -> Self {
        self.this(|rule| rule.name = Name::new(name))
    }

    /// What a request costs of this limit (default: 1). A cost of 0 is admitted, and told where the client stands.
    pub fn cost(self, cost: impl Fn(&request::Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.this(|rule| rule.cost = Some(Box::new(cost)))
    }

    /// What a request has cost of this limit is told by the head of its response, such as a header field. The
    /// [`cost`](Self::cost) is taken before; then the difference is given back, or taken as far as there is something left.
    /// `None`, or no response, leaves it as it is.
    pub fn cost_from_response(
        self,
        cost: impl Fn(&response::Parts) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.this(|rule| rule.settle = Settle::Head(Box::new(cost)))
    }

    /// A request has cost one of this limit for each `bytes` of the response's body, rounded up, that were read before it ended
    /// or was dropped. Otherwise as [`cost_from_response`](Self::cost_from_response).
    pub fn cost_per_bytes(self, bytes: NonZeroU32) -> Self {
        self.this(|rule| rule.settle = Settle::Bytes(bytes))
    }

    /// The service says what a request has cost of this limit: it writes that into the [`Bill`](crate::Bill) among the
    /// request's extensions, before the response's body is over. Otherwise as
    /// [`cost_from_response`](Self::cost_from_response).
    pub fn billed(self) -> Self {
        self.this(|rule| rule.settle = Settle::Bill)
    }

    /// This limit does not hold for these keys. The list changes while the service runs.
    pub fn exempt_keys(self, keys: KeyList) -> Self {
        self.this(|rule| rule.exempt = Some(keys))
    }

    /// A dry run of this limit: it is asked and charged, but nobody is refused for it, and no response tells of it. It is asked
    /// after the others, where they admit. [`on_shadow`](Self::on_shadow) hears of those that it would have refused.
    pub fn shadow(self) -> Self {
        self.this(|rule| rule.shadow = true)
    }

    /// Requests that no limit of this layer holds for, and that no response tells limits to.
    pub fn exempt(mut self, is_exempt: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.0.exempt = Some(Box::new(is_exempt));
        self
    }

    /// Hears of each request that a limit in a dry run would have refused (default: an event of level debug).
    pub fn on_shadow(mut self, hears: impl Fn(&Refusal<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_shadow = Some(Box::new(hears));
        self
    }

    /// How a refused request is answered (default: [`Refusal::usual`]). Status, headers and body are as the closure says; what
    /// it does not set of `Retry-After` is added, and so are the limits' headers.
    pub fn on_denial<B: Into<Bytes>>(
        mut self,
        answer: impl Fn(&Refusal<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.0.answers = Some(Box::new(move |refusal| answer(refusal).map(Into::into)));
        self
    }

    /// What is done with a request that has no key (default: [`NoKey::Refuse`]).
    pub fn no_key(mut self, no_key: NoKey) -> Self {
        self.0.no_key = no_key;
        self
    }

    /// Which responses tell the limits (default: [`Tell::Always`]).
    pub fn tell(mut self, tell: Tell) -> Self {
        self.0.tell = tell;
        self
    }

    /// Also tells `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from now), of the limit that
    /// has the least left.
    pub fn old_headers(mut self) -> Self {
        self.0.old_headers = true;
        self
    }

    /// Waits up to `bound` for admission, without holding a thread. A request that would have to wait longer is refused at
    /// once.
    ///
    /// Without it, a request that a leaky bucket delays waits as long as the bucket says, and one that is denied is refused at
    /// once. One limit of this process is waited for first come, first served; several, or shared ones, are asked again when
    /// they said that they would admit, and whoever asks first gets what there is.
    pub fn max_wait(mut self, bound: Duration) -> Self {
        self.0.max_wait = Some(bound);
        self
    }

    /// The layer.
    pub fn build(self) -> RateLimitLayer<C> {
        RateLimitLayer(Arc::new(self.0))
    }
}

impl<C> fmt::Debug for Options<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.rules.iter().map(|rule| rule.name.as_str()).collect();
        f.debug_struct("Options")
            .field("limits", &names)
            .field("no_key", &self.no_key)
            .field("tell", &self.tell)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Builder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.0).finish()
    }
}

/// Limits a service. All services of one layer, and of its clones, share the limits.
///
/// A unit of a [`concurrency`](tidegate_limiter::Policy::concurrency) limit comes back when the response's body has been read
/// or dropped, when the service fails, and when the request is dropped. What other limits took is spent once the service is
/// called; before, as while a request waits for its delay, a request that is dropped gives it back. (Dropped while the store
/// is asked, it may be charged, except for permits of one shared limit.)
pub struct RateLimitLayer<C = SystemClock>(Arc<Options<C>>);

impl<C: Timer + 'static> RateLimitLayer<C> {
    /// A layer with the options' defaults.
    #[must_use]
    pub fn new(limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Self {
        Self::builder(limit, key).build()
    }

    /// A layer with other options.
    pub fn builder(limit: impl IntoLimit<Clock = C>, key: impl KeySource + 'static) -> Builder<C> {
        Builder::new(limit.into_limit(), key)
    }
}

#[cfg(feature = "reqwest")]
impl<C> RateLimitLayer<C> {
    pub(crate) const fn options(&self) -> &Arc<Options<C>> {
        &self.0
    }
}

impl<C> Clone for RateLimitLayer<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> fmt::Debug for RateLimitLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.0).finish()
    }
}

impl<S, C> Layer<S> for RateLimitLayer<C> {
    type Service = RateLimit<S, C>;

    fn layer(&self, inner: S) -> RateLimit<S, C> {
        RateLimit::new(inner, Arc::clone(&self.0))
    }
}

/// What is told of a limit that refuses without being asked.
pub(crate) fn no_decision() -> Decision {
    Decision::deny_for_good(0, 0, 1, u64::MAX)
}
