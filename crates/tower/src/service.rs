//! The service: it finds keys, decides, and then calls the inner service or refuses.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use tidegate_limiter::{SystemClock, Timer};
use tower_service::Service;

use crate::{
    Tell,
    answer::is_grpc,
    bill::Bill,
    body::{AtEnd, Body},
    decide::Verdict,
    future::{After, ResponseFuture, finish},
    hold::Holds,
    layer::{Options, Settle},
    signals,
    told::{Fields, Told, write_retry_after},
};

/// A service behind limits, made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, C = SystemClock> {
    inner: S,
    options: Arc<Options<C>>,
}

impl<S, C> RateLimit<S, C> {
    pub(crate) fn new(inner: S, options: Arc<Options<C>>) -> Self {
        Self { inner, options }
    }
}

impl<S: Clone, C> Clone for RateLimit<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), options: Arc::clone(&self.options) }
    }
}

impl<S: fmt::Debug, C> fmt::Debug for RateLimit<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("options", &self.options).finish()
    }
}

impl<S, B, R, C> Service<Request<B>> for RateLimit<S, C>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes> + 'static,
    C: Timer + 'static,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error, Admitted<C>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let options = &self.options;
        let (mut parts, body) = request.into_parts();
        let bill = options.bill(&mut parts);
        let mut verdict = Verdict::new();
        let is_decided = options.decide_first(&mut verdict, &parts, bill.as_ref());
        if is_decided && verdict.refused.is_some() {
            return ResponseFuture::answered(options.refuse(&parts, &verdict));
        }
        if is_decided && verdict.delay().is_zero() {
            verdict.holds.run();
            let admitted = Admitted::new(options, verdict);
            return ResponseFuture::running(self.inner.call(Request::from_parts(parts, body)), admitted);
        }
        // The instance that was polled ready must be called, so its clone takes its place.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let decided = is_decided.then_some(verdict);
        ResponseFuture::waiting(later(inner, Arc::clone(options), parts, body, bill, decided))
    }
}

/// Finishes a request that cannot be decided or run immediately.
async fn later<S, B, R, C>(
    mut inner: S,
    options: Arc<Options<C>>,
    parts: Parts,
    body: B,
    bill: Option<Bill>,
    decided: Option<Verdict<C>>,
) -> Result<Response<Body<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes>,
    C: Timer + 'static,
{
    let mut verdict = match decided {
        Some(verdict) => verdict,
        None => options.decide_later(&parts, bill.as_ref()).await,
    };
    if verdict.refused.is_some() {
        return Ok(options.refuse(&parts, &verdict));
    }
    options.wait_out(&verdict).await;
    verdict.holds.run();
    let admitted = Admitted::new(&options, verdict);
    finish(admitted, inner.call(Request::from_parts(parts, body)).await)
}

/// An admitted request. If it is dropped before the inner service has responded, it gives back what it holds.
///
/// It is part of the response's future, so it is small: the header fields are written before the call, and only a request that holds
/// something needs the options afterwards.
pub struct Admitted<C: Timer + 'static> {
    /// Boxed, as what is held: servers box this future, and above a kilobyte an allocation takes several times as long.
    fields: Option<Box<Fields>>,
    held: Option<Box<Held<C>>>,
}

/// What a request holds until its response's body ends.
struct Held<C: Timer + 'static> {
    options: Arc<Options<C>>,
    holds: Holds<C>,
}

impl<C: Timer + 'static> Admitted<C> {
    fn new(options: &Arc<Options<C>>, verdict: Verdict<C>) -> Self {
        let fields =
            if options.tell == Tell::Always { options.fields(&verdict.told).map(Box::new) } else { None };
        Self { fields, ..Self::quiet(options, verdict) }
    }

    /// An admitted request whose response reports no limits.
    pub(crate) fn quiet(options: &Arc<Options<C>>, verdict: Verdict<C>) -> Self {
        let holds = verdict.holds;
        let held = (!holds.is_empty()).then(|| Box::new(Held { options: Arc::clone(options), holds }));
        Self { fields: None, held }
    }
}

impl<C: Timer + 'static> After for Admitted<C> {
    fn finish<R: http_body::Body>(self, mut response: Response<R>) -> Response<Body<R>> {
        if let Some(fields) = self.fields {
            fields.add_to(response.headers_mut());
        }
        let Some(mut held) = self.held else {
            return response.map(|body| Body::passed(body, None, false));
        };
        let (head, body) = response.into_parts();
        let Held { options, holds } = &mut *held;
        holds.head(|rule| match &options.rules[rule].settle {
            Settle::Head(cost) => cost(&head),
            _ => None,
        });
        let has_trailers = is_grpc(&head.headers);
        Response::from_parts(head, Body::passed(body, Some(held as Box<dyn AtEnd>), has_trailers))
    }
}

impl<C: Timer + 'static> AtEnd for Held<C> {
    fn data(&mut self, bytes: usize) {
        self.holds.data(bytes);
    }
}

impl<C: Timer + 'static> Options<C> {
    /// The bill into which the service writes the cost. Limits of several layers can share one.
    fn bill(&self, parts: &mut Parts) -> Option<Bill> {
        if !self.rules.iter().any(|rule| matches!(rule.settle, Settle::Bill)) {
            return None;
        }
        Some(parts.extensions.get_or_insert_default::<Bill>().clone())
    }

    /// Decides, into a new verdict, if no waiting is needed. Otherwise returns false, and nothing is taken.
    fn decide_first(&self, verdict: &mut Verdict<C>, parts: &Parts, bill: Option<&Bill>) -> bool {
        match self.questions(parts) {
            Ok(Some(asked)) => self.decide_now(verdict, &asked, parts, bill),
            Ok(None) => true,
            Err(refused) => {
                verdict.refused = Some(refused);
                true
            }
        }
    }

    /// Decides asynchronously. It builds the questions again: closures return the same for the same request.
    pub(crate) async fn decide_later(&self, parts: &Parts, bill: Option<&Bill>) -> Verdict<C> {
        match self.questions(parts) {
            Ok(Some(asked)) => self.decide(&asked, parts, bill).await,
            Ok(None) => Verdict::new(),
            Err(refused) => Verdict::refused(refused),
        }
    }

    /// Waits out the delay of an admitted request.
    pub(crate) async fn wait_out(&self, verdict: &Verdict<C>) {
        let delay = verdict.delay();
        if !delay.is_zero() {
            self.time.sleep_until(self.time.now().saturating_add(delay.into())).await;
        }
    }

    /// What responses tell of these answers.
    fn fields(&self, told: &[Told]) -> Option<Fields> {
        let rule = |rule: usize| (self.rules[rule].name.as_str(), &self.rules[rule].last_text);
        Fields::new(told, rule, self.old_headers)
    }

    fn refuse<R>(&self, parts: &Parts, verdict: &Verdict<C>) -> Response<Body<R>> {
        let Some(refused) = &verdict.refused else { return Response::new(Body::default()) };
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
        if self.tell != Tell::Never
            && let Some(fields) = self.fields(&verdict.told)
        {
            fields.add_to(&mut head.headers);
        }
        Response::from_parts(head, Body::told(text))
    }
}
