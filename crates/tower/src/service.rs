//! The service: it finds keys, decides, and then calls the inner service or refuses.

use std::{
    fmt,
    marker::PhantomData,
    mem, slice,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, header::UPGRADE, request::Parts};
use tidegate_limiter::{SystemClock, Timer};
use tower_service::Service;

#[cfg(feature = "vendors")]
use crate::Reason;
use crate::{
    Bill, Tell,
    answer::is_grpc,
    bodies::{Bodies, OutOf, Wrapped},
    decide::LayerDecision,
    fields::{Fields, write_retry_after},
    future::{After, ResponseFuture, finish},
    header_decision::HeaderDecision,
    hold::Holds,
    options::LayerOptions,
    signals,
    upgrade::InFlight,
};

/// A service behind limits, made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, C = SystemClock, K = Wrapped> {
    inner: S,
    options: Arc<LayerOptions<C>>,
    bodies: PhantomData<fn() -> K>,
}

impl<S, C, K> RateLimit<S, C, K> {
    pub(crate) fn new(inner: S, options: Arc<LayerOptions<C>>) -> Self {
        Self {
            inner,
            options,
            bodies: PhantomData,
        }
    }
}

impl<S: Clone, C, K> Clone for RateLimit<S, C, K> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.options))
    }
}

impl<S: fmt::Debug, C, K> fmt::Debug for RateLimit<S, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("options", &self.options)
            .finish()
    }
}

impl<S, B, R, C, K> Service<Request<B>> for RateLimit<S, C, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes> + 'static,
    C: Timer + 'static,
    K: Bodies<R, Body: 'static>,
{
    type Response = Response<K::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, K::Body, S::Error, Admitted<C>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let options = &self.options;
        let (mut parts, body) = request.into_parts();
        if options.is_billed {
            // The service writes the cost into it. Limits of several layers can share one.
            parts.extensions.get_or_insert_default::<Bill>();
        }
        let mut verdict = LayerDecision::new();
        let is_decided = match options.decide_plain(&parts) {
            Some(decided) if decided.just_admits() => {
                let admitted = Admitted::plain(options, &decided);
                return ResponseFuture::running(
                    self.inner.call(Request::from_parts(parts, body)),
                    admitted,
                );
            }
            Some(decided) => {
                options.take_plain(&mut verdict, decided, &parts);
                true
            }
            None => options.decide_first(&mut verdict, &parts),
        };
        if is_decided && verdict.refused.is_some() {
            return ResponseFuture::answered(options.refuse::<R, _>(&parts, &verdict));
        }
        if is_decided && verdict.delay().is_zero() {
            share_permits(&mut parts, &mut verdict.holds);
            let admitted = Admitted::new(options, &mut verdict);
            return ResponseFuture::running(
                self.inner.call(Request::from_parts(parts, body)),
                admitted,
            );
        }
        // The instance that was polled ready must be called, so its clone takes its place.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let decided = is_decided.then_some(verdict);
        ResponseFuture::waiting(later(inner, Arc::clone(options), parts, body, decided))
    }
}

/// Finishes a request that cannot be decided or run immediately.
async fn later<S, B, R, O, C>(
    mut inner: S,
    options: Arc<LayerOptions<C>>,
    mut parts: Parts,
    body: B,
    decided: Option<LayerDecision<C>>,
) -> Result<Response<O>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    O: OutOf<R>,
    C: Timer + 'static,
{
    let mut verdict = match decided {
        Some(verdict) => verdict,
        None => options.decide_later(&parts).await,
    };
    if verdict.refused.is_some() {
        return Ok(options.refuse::<R, O>(&parts, &verdict));
    }
    options.wait_out(&verdict).await;
    share_permits(&mut parts, &mut verdict.holds);
    let admitted = Admitted::new(&options, &mut verdict);
    finish(admitted, inner.call(Request::from_parts(parts, body)).await)
}

/// An admitted request. If it is dropped before the inner service has responded, it gives back what
/// it holds.
///
/// It is part of the response's future, so it is small: the header fields are written before the
/// call.
pub struct Admitted<C: Timer + 'static> {
    fields: Option<Fields>,
    holds: Holds<C>,
}

impl<C: Timer + 'static> Admitted<C> {
    /// An admitted request to a layer with one [plain](LayerOptions::decide_plain) limit.
    #[inline]
    fn plain(options: &LayerOptions<C>, decided: &HeaderDecision<C>) -> Self {
        Self {
            fields: options.told(slice::from_ref(decided)),
            holds: Holds::new(),
        }
    }

    #[inline]
    fn new(options: &LayerOptions<C>, verdict: &mut LayerDecision<C>) -> Self {
        Self {
            fields: options.told(&verdict.decisions),
            ..Self::quiet(verdict)
        }
    }

    /// An admitted request whose response reports no limits. Its service is called next.
    #[inline]
    pub(crate) fn quiet(verdict: &mut LayerDecision<C>) -> Self {
        let mut holds = verdict.holds.take();
        holds.run();
        Self {
            fields: None,
            holds,
        }
    }
}

impl<R, O: OutOf<R>, C: Timer + 'static> After<R, O> for Admitted<C> {
    #[inline]
    fn finish(self, mut response: Response<R>) -> Response<O> {
        if let Some(fields) = self.fields {
            fields.add_to(response.headers_mut());
        }
        if self.holds.is_empty() {
            return response.map(|body| O::passed(body, None, false));
        }
        let (head, body) = response.into_parts();
        let end = self.holds.head(&head);
        let has_trailers = is_grpc(&head.headers);
        Response::from_parts(head, O::passed(body, end, has_trailers))
    }
}

impl<C: Timer + 'static> LayerOptions<C> {
    /// The header fields of an admitted request.
    #[inline]
    fn told(&self, decided: &[HeaderDecision<C>]) -> Option<Fields> {
        if self.tell == Tell::Always {
            self.fields(decided)
        } else {
            None
        }
    }

    /// Waits out the delay of an admitted request.
    pub(crate) async fn wait_out(&self, verdict: &LayerDecision<C>) {
        let delay = verdict.delay();
        if !delay.is_zero() {
            self.time
                .sleep_until(self.time.now().saturating_add(delay.into()))
                .await;
        }
    }

    #[cold]
    fn refuse<R, O: OutOf<R>>(&self, parts: &Parts, verdict: &LayerDecision<C>) -> Response<O> {
        let Some(refused) = &verdict.refused else {
            return Response::new(O::of_text(Bytes::new()));
        };
        let refusal = self.refusal(refused, parts);
        signals::refused(&refusal);
        let response = match &self.answers {
            Some(answer) => answer(&refusal),
            None => refusal.usual(),
        };
        let (mut head, text) = response.into_parts();
        if let Some(wait) = refused.decision.retry_after() {
            write_retry_after(&mut head.headers, wait);
        }
        #[cfg(feature = "vendors")]
        if let Some(vendor) = self.vendor
            && refused.reason == Reason::Limited
        {
            let wait = refused.decision.retry_after();
            head.headers.extend(vendor.retry_fields(wait));
        }
        if self.tell != Tell::Never
            && let Some(fields) = self.fields(&verdict.decisions)
        {
            fields.add_to(&mut head.headers);
        }
        Response::from_parts(head, O::of_text(text))
    }
}

/// Puts the permits into the extensions of a request whose connection may outlive its response.
#[inline]
fn share_permits<C: Timer + 'static>(parts: &mut Parts, holds: &mut Holds<C>) {
    if !holds.is_empty() && (parts.headers.contains_key(UPGRADE) || parts.method == Method::CONNECT)
    {
        share(parts, holds);
    }
}

#[cold]
fn share<C: Timer + 'static>(parts: &mut Parts, holds: &mut Holds<C>) {
    let Some(permits) = holds.share_permits() else {
        return;
    };
    let all = match parts.extensions.remove::<InFlight>() {
        Some(outer) => outer.and(permits),
        None => permits,
    };
    parts.extensions.insert(all);
}
