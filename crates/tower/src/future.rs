//! The response future of all layers.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use crate::body::Body;

/// What a layer does after the inner service has responded. If it is dropped before, the request was cancelled.
pub trait After: Sized {
    /// The inner service has responded.
    fn finish<R: http_body::Body>(self, response: Response<R>) -> Response<Body<R>>;

    /// The inner service has failed.
    fn failed(self) {}
}

pin_project! {
    /// The future of a response from a layer of this crate. Dropping it gives back what the request holds.
    pub struct ResponseFuture<F, R, E, A> {
        #[pin]
        state: State<F, R, E, A>,
    }
}

type Waited<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<F, R, E, A> {
        Running { #[pin] call: F, after: Option<A> },
        Answered { response: Option<Response<Body<R>>> },
        Waiting { future: Waited<R, E> },
    }
}

impl<F, R, E, A> ResponseFuture<F, R, E, A> {
    /// The inner service has already been called.
    pub(crate) fn running(call: F, after: A) -> Self {
        Self { state: State::Running { call, after: Some(after) } }
    }

    /// The inner service is not called.
    pub(crate) fn answered(response: Response<Body<R>>) -> Self {
        Self { state: State::Answered { response: Some(response) } }
    }

    /// The inner service is called after a wait.
    pub(crate) fn waiting(
        future: impl Future<Output = Result<Response<Body<R>>, E>> + Send + 'static,
    ) -> Self {
        Self { state: State::Waiting { future: Box::pin(future) } }
    }
}

impl<F, R, E, A> Future for ResponseFuture<F, R, E, A>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: http_body::Body,
    A: After,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Running { call, after } => {
                let answer = ready!(call.poll(context));
                Poll::Ready(match after.take() {
                    Some(after) => finish(after, answer),
                    // A future that is polled after completion may return anything.
                    None => return Poll::Pending,
                })
            }
            StateProjection::Answered { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => Poll::Pending,
            },
            StateProjection::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

/// Passes the inner service's result to `after`.
pub(crate) fn finish<A: After, R: http_body::Body, E>(
    after: A,
    answer: Result<Response<R>, E>,
) -> Result<Response<Body<R>>, E> {
    match answer {
        Ok(response) => Ok(after.finish(response)),
        Err(error) => {
            after.failed();
            Err(error)
        }
    }
}

impl<F, R, E, A> fmt::Debug for ResponseFuture<F, R, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
