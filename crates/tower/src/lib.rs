//! Tidegate's limits as [tower](https://docs.rs/tower) middleware, for axum, tonic, hyper and their
//! clients.
//!
//! ```
//! use http::{Request, Response};
//! use tidegate_limiter::{KeyedLimiter, Policy};
//! use tidegate_tower::{RateLimitLayer, key::Header};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # futures::executor::block_on(async {
//! let per_client = KeyedLimiter::new(Policy::sliding_log("1/1m".parse()?)?)?;
//! let layer = RateLimitLayer::new(per_client, Header::named("x-api-key"));
//! let hello = async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")));
//! let service = layer.layer(service_fn(hello));
//!
//! let request = || Request::builder().header("x-api-key", "alice").body(());
//! assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
//! let denied = service.oneshot(request()?).await?;
//! assert_eq!(denied.status(), 429);
//! assert_eq!(denied.headers()["ratelimit-policy"], r#""default";q=1;w=60"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Which part to use
//!
//! | to do this | use |
//! |---|---|
//! | limit each client by address, API key, user or route | [`RateLimitLayer`] with a [key] |
//! | find the client behind proxies | [`key::Client`] |
//! | bound the requests in flight, with or without waiting | [`ConcurrencyLayer`] |
//! | bound upgraded connections, such as websockets | [`ConcurrencyLayer`] and [`InFlight`] |
//! | guard a service with breakers, flow rules or adaptive limits | `GateLayer` (feature `flow`) |
//! | share limits among processes | a `SharedLimit` of `tidegate-redis` as the limit (feature `shared`) |
//! | send gRPC statuses to gRPC clients | feature `grpc` |
//! | save the box that axum and tonic put around each body of another type | [`RateLimitLayer::same_body`] |
//! | limit a client of reqwest | the same layers with `reqwest-middleware` (feature `reqwest`) |
//! | limit a client of hyper, tonic or any other tower service | the same layers; [`Builder::max_wait`] waits for admission |
//!
//! # Several limits
//!
//! One decision covers all limits of a layer: if one of them denies, the others are not charged.
//!
//! ```
//! # use tidegate_limiter::{KeyedLimiter, Limiter, Policy};
//! # use tidegate_tower::{RateLimitLayer, key::{Fixed, Peer}};
//! let per_client = KeyedLimiter::new(Policy::sliding_window("100/1m".parse()?))?;
//! let in_flight = Limiter::new(Policy::concurrency(1_000));
//! let layer = RateLimitLayer::builder(per_client, Peer::address())
//!     .name("client")
//!     .and(in_flight, Fixed::new(""))
//!     .name("in-flight")
//!     .build();
//! # let _ = layer;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Costs that are known later
//!
//! [`Builder::cost`] is taken before the call. [`Builder::cost_from_response`],
//! [`Builder::cost_per_bytes`], `Builder::cost_from_json` (feature `json`: a document or a stream
//! has the cost, such as the tokens of a language model's answer) and [`Builder::billed`] (for
//! costs that only the service knows) refund or charge the difference afterwards, even if it does
//! not fit. Units above the limit are debt: requests are denied until time has repaid it, also
//! those with a cost of 0. So a cost of 0 before the call admits while no more is in use than the
//! limit.
//!
//! # Responses
//!
//! * A denied request gets 429 with a problem document, or `RESOURCE_EXHAUSTED` with `RetryInfo`.
//!   `Retry-After`, in whole seconds rounded up, is set if the wait is known.
//!   [`Builder::on_denial`] replaces the response.
//! * `RateLimit-Policy` and `RateLimit` report the state of each limit (see [`headers`]);
//!   [`Builder::old_headers`] adds `X-RateLimit-Limit` and its siblings, and
//!   `Builder::vendor_headers` (feature `vendors`) those of a provider of language models.
//!   [`Builder::tell`] selects which responses have these headers.
//! * A request without a key gets 500, and the log says why and what to do; see [`NoKey`].
//! * If the store is down, a shared limit acts as its `on_error` says. If it fails closed, the
//!   response is 503.
//!
//! # Events and counters
//!
//! The feature `events` makes each refused request a `tracing` event (level `debug`, target
//! `tidegate_tower`). The feature `metrics` counts them through the `metrics` facade as
//! `tidegate_tower_refused_total{limit,reason}`, and those of a dry run as
//! `tidegate_tower_dry_run_refused_total`; a refusal then allocates for its labels. Neither costs
//! anything when it is off, or for a request that is admitted.
//!
//! # Changes at run time
//!
//! You can change a limiter's policy and its overrides for single keys, the limit that
//! [`Builder::and_by`] chooses for each request, a [`key::KeyList`] of exempt keys, and a gate's
//! rules. Use [`Builder::shadow`] to try a limit before you enforce it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
mod bill;
mod bodies;
mod body;
#[cfg(feature = "reqwest")]
mod client;
mod concurrency;
mod decide;
mod fields;
mod future;
#[cfg(feature = "flow")]
mod gate;
mod header_decision;
pub mod headers {
    //! The header fields of the IETF draft `draft-ietf-httpapi-ratelimit-headers`, version 10.
    //!
    //! `RateLimit-Policy: "name";q=100;w=60` describes a limit. `RateLimit: "name";r=99;t=66` says
    //! how much the client has left, and in how many seconds the limit is full again. Both are
    //! lists, so one response can report several limits.

    pub use tidegate_headers::{Per, ceil_secs, quota, write_policy, write_state};
}
mod hold;
mod in_flight;
pub mod key;
mod layer;
mod limit;
mod log;
mod once;
mod options;
mod question;
mod service;
mod settle;
#[cfg(feature = "shared")]
mod shared;
mod signals;
mod time;
mod upgrade;
#[cfg(feature = "json")]
mod usage;

pub use answer::{Reason, Refusal};
pub use bill::Bill;
pub use bodies::{Same, Wrapped};
pub use body::Body;
#[cfg(feature = "reqwest")]
pub use client::NotSent;
pub use concurrency::ConcurrencyLayer;
pub use future::ResponseFuture;
#[cfg(feature = "flow")]
pub use gate::{GateBuilder, GateLayer, Gated};
pub use header_decision::{Name, Tell};
pub use layer::{Builder, RateLimitLayer};
pub use limit::{IntoLimit, Limit};
pub use options::NoKey;
pub use service::RateLimit;
#[cfg(feature = "vendors")]
pub use tidegate_headers::{UnknownVendor, Vendor};
pub use upgrade::InFlight;
