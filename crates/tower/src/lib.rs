//! Tidegate's limits as [tower](https://docs.rs/tower) middleware, for axum, tonic, hyper and whatever else speaks it.
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
//! The limit is any [`KeyedLimit`](tidegate_limiter::KeyedLimit): a `KeyedLimiter` of this process, a `Limiter` for all
//! requests together, or a `SharedLimit` of `tidegate-redis` that many processes share.
//!
//! * A request that is admitted goes on, after the delay if the decision names one (leaky bucket). Its cost is not given
//!   back, whatever comes of it.
//! * One that is denied is answered with 429 and `Retry-After` in whole seconds, rounded up, where a wait can be named; the
//!   inner service does not see it. [`Builder::on_denial`] answers otherwise.
//! * `RateLimit-Policy` and `RateLimit` tell each client where it stands: see [`headers`]. Of several layers each adds its
//!   own.
//! * Requests without a key share one: see [`NoKey`].

pub mod headers;
pub mod key;
mod layer;
mod service;

pub use layer::{Builder, Denial, Name, NoKey, RateLimitLayer, Tell, TooManyRequests};
pub use service::RateLimit;
