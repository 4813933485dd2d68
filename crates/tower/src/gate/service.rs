//! The service: it enters the gate, and then calls the inner service or refuses.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use super::{call::Entered, layer::GateOptions};
use crate::{
    body::Body,
    future::{ResponseFuture, finish},
};

/// A service behind a gate, made by [`GateLayer`](crate::GateLayer).
#[derive(Clone, Debug)]
pub struct Gated<S> {
    inner: S,
    options: Arc<GateOptions>,
}

impl<S> Gated<S> {
    pub(crate) fn new(inner: S, options: Arc<GateOptions>) -> Self {
        Self { inner, options }
    }
}

impl<S, B, R> Service<Request<B>> for Gated<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: http_body::Body<Data = Bytes> + 'static,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, Body<R>, S::Error, Entered>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let guard = match self.options.enter(&parts) {
            Ok(guard) => guard,
            Err(stopped) => {
                return ResponseFuture::answered(
                    self.options.refuse(&stopped, &parts).map(Body::of_text),
                );
            }
        };
        let request = Request::from_parts(parts, body);
        if guard.delay().is_zero() {
            return ResponseFuture::running(
                self.inner.call(request),
                Entered::new(&self.options, guard),
            );
        }
        // The instance that was polled ready must be called, so its clone takes its place.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let options = Arc::clone(&self.options);
        ResponseFuture::waiting(async move {
            let entered = Entered::new(&options, guard.ready().await);
            finish(entered, inner.call(request).await)
        })
    }
}
