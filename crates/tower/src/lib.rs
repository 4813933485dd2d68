//! Tidegate's limits as [tower](https://docs.rs/tower) middleware, for axum, tonic, hyper and their clients.
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
//! # What to use for what
//!
//! | you want to | take |
//! |---|---|
//! | limit each client, by address, API key, user, route | [`RateLimitLayer`] with a [key] |
//! | find the client behind proxies | [`key::Client`] |
//! | bound what is in flight, with or without waiting | [`ConcurrencyLayer`] |
//! | guard a service by breakers, flow rules, adaptive limits | `GateLayer` (feature `flow`) |
//! | share limits among processes | a `SharedLimit` of `tidegate-redis` as the limit (feature `shared`) |
//! | answer gRPC calls as they expect it | feature `grpc` |
//! | limit a client of reqwest | the same layers with `reqwest-middleware` (feature `reqwest`) |
//! | limit a client of hyper, tonic, or any other of tower | the same layers; [`Builder::max_wait`] waits for its turn |
//!
//! # Several limits
//!
//! Limits of one layer are one decision: what one of them denies, the others have not spent.
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
//! [`Builder::cost`] is taken before. [`Builder::cost_from_response`], [`Builder::cost_per_bytes`] and [`Builder::billed`] (for
//! what the service itself finds out, such as the tokens of a model's answer) give back or charge the difference afterwards. What
//! is charged then is at most what is left: one request can use more than its limit by what it cost beyond that.
//!
//! # What is answered
//!
//! * 429 and a problem document, or `RESOURCE_EXHAUSTED` with `RetryInfo`; with `Retry-After` in whole seconds, rounded up,
//!   where a wait can be named. [`Builder::on_denial`] answers otherwise.
//! * `RateLimit-Policy` and `RateLimit` tell each client where it stands (see [`headers`]); [`Builder::old_headers`] adds
//!   `X-RateLimit-Limit` and its kin. [`Builder::tell`] says which responses do.
//! * A request without a key is answered with 500, and the log says why and what to do: see [`NoKey`].
//! * Without its store a shared limit answers as its `on_error` says; one that fails closed answers with 503.
//!
//! # What changes while it runs
//!
//! A limiter's policy and its overrides for single keys; the limit that [`Builder::and_by`] chooses for each request; a
//! [`key::KeyList`] of exempt keys; a gate's rules. [`Builder::shadow`] tries a limit out before it holds.

mod answer;
mod bill;
mod body;
#[cfg(feature = "reqwest")]
mod client;
mod concurrency;
mod decide;
mod future;
#[cfg(feature = "flow")]
mod gate;
pub mod headers;
mod hold;
pub mod key;
mod layer;
mod limit;
mod log;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod time;
mod told;

pub use answer::{Reason, Refusal};
pub use bill::Bill;
pub use body::Body;
#[cfg(feature = "reqwest")]
pub use client::NotSent;
pub use concurrency::ConcurrencyLayer;
pub use future::ResponseFuture;
#[cfg(feature = "flow")]
pub use gate::{GateBuilder, GateLayer, Gated};
pub use layer::{Builder, NoKey, RateLimitLayer};
pub use limit::{IntoLimit, Limit};
pub use service::RateLimit;
pub use told::{Name, Tell};
