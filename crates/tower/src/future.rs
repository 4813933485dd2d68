//! The response future of all layers.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

/// A layer's step after the inner service has responded. If it is dropped before, the request was
/// cancelled.
pub trait After<R, O>: Sized {
    /// The inner service has responded.
    fn finish(self, response: Response<R>) -> Response<O>;

    /// The inner service has failed.
    fn failed(self) {}
}

pin_project! {
    /// The future of a response from a layer of this crate. Dropping it gives back what the request
    /// holds.
    pub struct ResponseFuture<F, O, E, A> {
        #[pin]
        state: State<F, O, E, A>,
    }
}

type Waited<O, E> = Pin<Box<dyn Future<Output = Result<Response<O>, E>> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<F, O, E, A> {
        Running { #[pin] call: F, after: Option<A> },
        Answered { response: Option<Response<O>> },
        Waiting { future: Waited<O, E> },
    }
}

impl<F, O, E, A> ResponseFuture<F, O, E, A> {
    /// The inner service has already been called.
    #[inline]
    pub(crate) fn running(call: F, after: A) -> Self {
        Self {
            state: State::Running {
                call,
                after: Some(after),
            },
        }
    }

    /// The inner service is not called.
    pub(crate) fn answered(response: Response<O>) -> Self {
        Self {
            state: State::Answered {
                response: Some(response),
            },
        }
    }

    /// The inner service is called after a wait.
    pub(crate) fn waiting(
        future: impl Future<Output = Result<Response<O>, E>> + Send + 'static,
    ) -> Self {
        Self {
            state: State::Waiting {
                future: Box::pin(future),
            },
        }
    }
}

impl<F, R, O, E, A> Future for ResponseFuture<F, O, E, A>
where
    F: Future<Output = Result<Response<R>, E>>,
    A: After<R, O>,
{
    type Output = Result<Response<O>, E>;

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
#[inline]
pub(crate) fn finish<R, O, E>(
    after: impl After<R, O>,
    answer: Result<Response<R>, E>,
) -> Result<Response<O>, E> {
    match answer {
        Ok(response) => Ok(after.finish(response)),
        Err(error) => {
            after.failed();
            Err(error)
        }
    }
}

impl<F, O, E, A> fmt::Debug for ResponseFuture<F, O, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
