//! HTTP/1.1 with JSON: the limits for programs in any language, and the server's health and metrics.
//!
//! `ask` reads what a body asks, `routes` says which path does what, `answer` and `problem` write what comes back,
//! `serve` has the connections.

mod answer;
mod ask;
mod problem;
mod routes;
mod serve;

pub use ask::MAX_ALL;
pub(crate) use routes::{App, router};
pub use routes::{MAX_BODY, ROUTES};
pub(crate) use serve::{HttpConfig, serve};
