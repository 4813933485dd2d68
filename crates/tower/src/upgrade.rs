//! Permits of requests whose connection outlives the response.

use std::{any::Any, fmt, sync::Arc};

/// The permits of a request that asks for an upgraded connection, such as a websocket. The layer
/// puts it into the extensions of each request with the field `Upgrade`, or with the method
/// `CONNECT`, that holds permits of a limit of [`Policy::concurrency`].
///
/// The permits return when the response's body has ended and all clones of this value are dropped.
/// A handler that moves a clone into the connection's task therefore holds them as long as the
/// connection. A handler that does not take it holds them until its response.
///
/// Permits of a shared limit end with the limit's longest hold at the latest.
///
/// ```
/// use axum::{Extension, extract::Request, response::Response};
/// use tidegate_tower::InFlight;
///
/// async fn upgrade(Extension(in_flight): Extension<InFlight>, mut request: Request) -> Response {
///     tokio::spawn(async move {
///         // let connection = hyper::upgrade::on(&mut request).await;
///         // … serves the connection …
///         drop((request, in_flight));
///     });
///     Response::builder().status(101).body(Default::default()).unwrap()
/// }
/// # let _ = axum::Router::<()>::new().route("/", axum::routing::get(upgrade));
/// ```
///
/// [`Policy::concurrency`]: tidegate_limiter::Policy::concurrency
#[derive(Clone)]
pub struct InFlight(Arc<dyn Any + Send + Sync>);

impl InFlight {
    pub(crate) fn new(permits: impl Any + Send + Sync) -> Self {
        Self(Arc::new(permits))
    }

    /// The permits of both: of several layers around one service.
    pub(crate) fn and(self, other: Self) -> Self {
        Self::new((self, other))
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("clones", &Arc::strong_count(&self.0))
            .finish()
    }
}
