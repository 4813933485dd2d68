//! The service: keys, a decision, and then the inner service or a refusal.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts, response};
use pin_project_lite::pin_project;
use tidegate_limiter::{SystemClock, Timer};
use tower_service::Service;

use crate::{
    Reason, Tell,
    answer::is_grpc,
    bill::Bill,
    body::{AtEnd, Body},
    decide::Verdict,
    hold::Holds,
    layer::{Options, Settle},
    told::{Told, write, write_old, write_retry},
};

/// A service behind limits; from [`RateLimitLayer`](crate::RateLimitLayer).
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
    type Future = ResponseFuture<S::Future, R, S::Error, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let options = &self.options;
        let (mut parts, body) = request.into_parts();
        let bill = options.bill(&mut parts);
        let state = match options.decide_first(&parts, bill.as_ref()) {
            Some(verdict) if verdict.refused.is_some() => {
                State::Answered { response: Some(options.refuse(&parts, &verdict)) }
            }
            Some(mut verdict) if verdict.delay().is_zero() => {
                verdict.holds.run();
                let call = self.inner.call(Request::from_parts(parts, body));
                State::Running { call, after: Some(After::new(options, verdict)) }
            }
            decided => {
                // The one that was polled ready is called, and its clone takes its place.
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                let future = later(inner, Arc::clone(options), parts, body, bill, decided);
                State::Waiting { future: Box::pin(future) }
            }
        };
        ResponseFuture { state }
    }
}

/// What is left to do when the request cannot run at once.
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
    let delay = verdict.delay();
    if !delay.is_zero() {
        options.time.sleep_until(options.time.now().saturating_add(delay.into())).await;
    }
    verdict.holds.run();
    let after = After::new(&options, verdict);
    let response = inner.call(Request::from_parts(parts, body)).await?;
    Ok(after.finish(response))
}

/// What is done when the inner service has answered. Dropped before, what the request holds is given back.
struct After<C: Timer + 'static> {
    options: Arc<Options<C>>,
    told: smallvec::SmallVec<[Told; 1]>,
    holds: Holds<C>,
}

impl<C: Timer + 'static> After<C> {
    fn new(options: &Arc<Options<C>>, verdict: Verdict<C>) -> Self {
        Self { options: Arc::clone(options), told: verdict.told, holds: verdict.holds }
    }

    fn finish<R: http_body::Body>(self, response: Response<R>) -> Response<Body<R>> {
        let Self { options, told, mut holds } = self;
        let (mut head, body) = response.into_parts();
        if options.tell == Tell::Always {
            options.tell(&mut head, &told);
        }
        if holds.is_empty() {
            return Response::from_parts(head, Body::passed(body, None, false));
        }
        holds.head(|rule| match &options.rules[rule].settle {
            Settle::Head(cost) => cost(&head),
            _ => None,
        });
        let has_trailers = is_grpc(&head.headers);
        let end = Box::new(holds) as Box<dyn AtEnd>;
        Response::from_parts(head, Body::passed(body, Some(end), has_trailers))
    }
}

impl<C: Timer + 'static> Options<C> {
    /// Where the service is to write down what the request has cost. Another layer's limits may have the same one.
    fn bill(&self, parts: &mut Parts) -> Option<Bill> {
        if !self.rules.iter().any(|rule| matches!(rule.settle, Settle::Bill)) {
            return None;
        }
        Some(parts.extensions.get_or_insert_default::<Bill>().clone())
    }

    /// Decides at once, if that can be; else nothing was taken.
    fn decide_first(&self, parts: &Parts, bill: Option<&Bill>) -> Option<Verdict<C>> {
        match self.questions(parts) {
            Ok(Some(asked)) => self.decide_now(&asked, parts, bill),
            Ok(None) => Some(Verdict::new()),
            Err(refused) => Some(Verdict::refused(refused)),
        }
    }

    /// Decides with time. The questions are put a second time: closures answer the same about the same request.
    async fn decide_later(&self, parts: &Parts, bill: Option<&Bill>) -> Verdict<C> {
        match self.questions(parts) {
            Ok(Some(asked)) => self.decide(&asked, parts, bill).await,
            Ok(None) => Verdict::new(),
            Err(refused) => Verdict::refused(refused),
        }
    }

    fn tell(&self, head: &mut response::Parts, told: &[Told]) {
        write(&mut head.headers, told, |rule| self.rules[rule].name.as_str());
        if self.old_headers {
            write_old(&mut head.headers, told);
        }
    }

    fn refuse<R>(&self, parts: &Parts, verdict: &Verdict<C>) -> Response<Body<R>> {
        let Some(refused) = &verdict.refused else { return Response::new(Body::default()) };
        let refusal = self.refusal(refused, parts);
        let response = match &self.answers {
            Some(answer) => answer(&refusal),
            None => refusal.usual(),
        };
        let (mut head, text) = response.into_parts();
        if refused.reason == Reason::Limited {
            write_retry(&mut head.headers, &refused.decision);
        }
        if self.tell != Tell::Never {
            self.tell(&mut head, &verdict.told);
        }
        Response::from_parts(head, Body::told(text))
    }
}

pin_project! {
    /// The future of a [`RateLimit`]'s response. Dropped, what the request holds is given back.
    pub struct ResponseFuture<F, R, E, C> where C: Timer, C: 'static {
        #[pin]
        state: State<F, R, E, C>,
    }
}

type Waited<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<F, R, E, C> where C: Timer, C: 'static {
        Running { #[pin] call: F, after: Option<After<C>> },
        Answered { response: Option<Response<Body<R>>> },
        Waiting { future: Waited<R, E> },
    }
}

impl<F, R, E, C> Future for ResponseFuture<F, R, E, C>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: http_body::Body,
    C: Timer + 'static,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Running { call, after } => {
                let response = ready!(call.poll(context));
                let after = after.take();
                Poll::Ready(response.map(|response| match after {
                    Some(after) => after.finish(response),
                    None => response.map(|body| Body::passed(body, None, false)),
                }))
            }
            StateProjection::Answered { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // As all futures may be that are polled again.
                None => Poll::Pending,
            },
            StateProjection::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, R, E, C: Timer + 'static> fmt::Debug for ResponseFuture<F, R, E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
