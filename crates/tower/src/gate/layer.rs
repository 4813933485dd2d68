//! The layer and its options.

use std::{fmt, sync::Arc, sync::atomic::AtomicU64};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, request::Parts};
use tidegate_flow::{Blocked, Gate};
use tower_layer::Layer;

use super::Gated;
use crate::key::KeySource;

type Failed = Box<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;
type Answers = Box<dyn Fn(&Blocked, &Parts) -> Response<Bytes> + Send + Sync>;
type CountOf = Box<dyn Fn(&Parts) -> u32 + Send + Sync>;
type Prioritized = Box<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The state that a layer shares with its services.
pub(crate) struct GateOptions {
    pub(crate) gate: Gate,
    pub(crate) resource: Box<dyn KeySource>,
    pub(crate) inbound: bool,
    pub(crate) origin: Option<Box<dyn KeySource>>,
    pub(crate) args: Vec<Box<dyn KeySource>>,
    pub(crate) named: Vec<(String, Box<dyn KeySource>)>,
    pub(crate) count: Option<CountOf>,
    pub(crate) prioritized: Option<Prioritized>,
    pub(crate) failed: Option<Failed>,
    pub(crate) answers: Option<Answers>,
    pub(crate) logged: AtomicU64,
}

/// Guards a service with a [`Gate`]: each request enters a resource, and the gate's rules block,
/// delay or admit it. All rule kinds apply (flow rules, breakers, adaptive limits and others), and
/// they can change while the service runs.
///
/// The entry ends with the response's body, and its response time includes the body. The entry has
/// failed if the service or the body fails, or if the response has a status of 500 or more, or
/// gRPC's `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`, `UNAVAILABLE` or `DATA_LOSS`;
/// [`failed_when`](GateBuilder::failed_when) changes this. A request that is cancelled, even in the
/// middle of its body, is not a failure, and breakers ignore it.
///
/// A request blocked by a flow rule or a hot parameter is answered with 429, one whose origin is
/// not allowed with 403, and any other with 503; for gRPC (feature `grpc`) with
/// `RESOURCE_EXHAUSTED`, `PERMISSION_DENIED` or `UNAVAILABLE`. `Retry-After` is set if the wait is
/// known.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tidegate_flow::{Gate, rules::{IsolationRule, Rules}};
/// use tidegate_tower::{GateLayer, key::Fixed};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # futures::executor::block_on(async {
/// let gate = Gate::new();
/// gate.load(Rules::from(vec![IsolationRule::new("orders", 1)]))?;
/// let orders = async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::from("here")));
/// let service = GateLayer::new(&gate, Fixed::new("orders")).layer(service_fn(orders));
///
/// let first = service.clone().oneshot(Request::new(())).await?;
/// assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), StatusCode::SERVICE_UNAVAILABLE);
/// drop(first); // its body is over
/// assert_eq!(service.oneshot(Request::new(())).await?.status(), StatusCode::OK);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct GateLayer(Arc<GateOptions>);

impl GateLayer {
    /// A layer with default options. `resource` finds the name of the resource: one name for all
    /// requests ([`Fixed`](crate::key::Fixed)), axum's `Route`,
    /// [`GrpcMethod`](crate::key::GrpcMethod) or a closure. Do not use names that clients can
    /// choose freely: they fill the gate's table.
    #[must_use]
    pub fn new(gate: &Gate, resource: impl KeySource + 'static) -> Self {
        Self::builder(gate, resource).build()
    }

    /// Starts a layer with other options.
    pub fn builder(gate: &Gate, resource: impl KeySource + 'static) -> GateBuilder {
        GateBuilder(GateOptions {
            gate: gate.clone(),
            resource: Box::new(resource),
            inbound: true,
            origin: None,
            args: Vec::new(),
            named: Vec::new(),
            count: None,
            prioritized: None,
            failed: None,
            answers: None,
            logged: AtomicU64::new(0),
        })
    }

    #[cfg(feature = "reqwest")]
    pub(crate) fn options(&self) -> &Arc<GateOptions> {
        &self.0
    }
}

/// Options of a [`GateLayer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct GateBuilder(GateOptions);

impl GateBuilder {
    /// Marks requests as outbound, for clients. System rules ignore them (default: inbound).
    pub fn outbound(mut self) -> Self {
        self.0.inbound = false;
        self
    }

    /// The origin of a request, for rules on origins. A request without this key has no origin.
    pub fn origin(mut self, origin: impl KeySource + 'static) -> Self {
        self.0.origin = Some(Box::new(origin));
        self
    }

    /// Adds an argument to the entry, for rules on hot parameters. If a request lacks this key, the
    /// argument is empty.
    pub fn arg(mut self, arg: impl KeySource + 'static) -> Self {
        self.0.args.push(Box::new(arg));
        self
    }

    /// Adds a named argument. If a request lacks this key, it lacks the argument.
    pub fn attach(mut self, name: &str, arg: impl KeySource + 'static) -> Self {
        self.0.named.push((name.to_owned(), Box::new(arg)));
        self
    }

    /// The number of units that a request takes (default: 1).
    pub fn count(mut self, count: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.0.count = Some(Box::new(count));
        self
    }

    /// Which requests are [prioritized](tidegate_flow::Entry::prioritized) (default: none).
    pub fn prioritized(
        mut self,
        is_prioritized: impl Fn(&Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.0.prioritized = Some(Box::new(is_prioritized));
        self
    }

    /// Decides which responses have failed, from status and headers. If the body has trailers, the
    /// closure runs again with the trailers in place of the headers.
    pub fn failed_when(
        mut self,
        failed: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.0.failed = Some(Box::new(failed));
        self
    }

    /// Builds the response to a blocked request. `Retry-After` is added unless the closure sets it.
    pub fn on_block<B: Into<Bytes>>(
        mut self,
        answer: impl Fn(&Blocked, &Parts) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.0.answers = Some(Box::new(move |blocked, request| {
            answer(blocked, request).map(Into::into)
        }));
        self
    }

    /// Builds the layer.
    pub fn build(self) -> GateLayer {
        GateLayer(Arc::new(self.0))
    }
}

impl fmt::Debug for GateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("gate", &self.gate)
            .field("inbound", &self.inbound)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated::new(inner, Arc::clone(&self.0))
    }
}
