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

mod answer;
mod bill;
mod body;
mod decide;
pub mod headers;
mod hold;
pub mod key;
mod layer;
mod limit;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod time;
mod told;

pub use answer::{Reason, Refusal};
pub use bill::Bill;
pub use body::Body;
pub use layer::{Builder, NoKey, RateLimitLayer};
pub use limit::{IntoLimit, Limit};
pub use service::{RateLimit, ResponseFuture};
pub use told::{Name, Tell};
