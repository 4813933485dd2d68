//! The Tidegate server: limits for programs in any language, over HTTP, the Redis protocol, gRPC and
//! HAProxy's SPOP.
//!
//! ```text
//! HTTP ─ http ─┐                       ┌─ memory ─► tidegate-limiter
//! RESP ─ resp ─┼─► service ─► limits ──┤
//! gRPC ─ grpc ─┤                ▲      └─ shared ─► tidegate-redis
//! SPOP ─ spoe ─┘                │
//!      (envoy)      rules file ─ rules      metrics, reload, state_file, shutdown beside it
//! ```
//!
//! No decision is made here: [`service`] finds the limit that a request names and asks it. [`Server`] connects the parts, and
//! `tidegate serve` is its command line.
//!
//! ```
//! use tidegate_server::{Options, Order, Server};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let server = Server::start(Options::default()).await?;
//! println!("http://{}", server.http_address().expect("HTTP is on by default"));
//! let (orders, receiver) = tokio::sync::mpsc::channel(1);
//! orders.send(Order::Stop).await?;
//! server.run(receiver).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod access;
#[cfg(test)]
mod captured_log;
mod connections;
pub mod counts;
pub mod envoy;
mod flow;
mod follow;
#[cfg(feature = "grpc")]
mod grpc;
pub mod heavy;
pub mod history;
pub mod http;
mod idle;
mod latency;
pub mod limits;
mod locks;
mod metrics;
mod occupancy;
mod once_a_minute;
mod open_files;
mod options;
mod pages;
mod peers;
pub mod rate_limits;
mod refusal;
mod reload;
pub mod resp;
pub mod rules;
mod rules_file;
mod server;
pub mod service;
pub mod shared;
mod shutdown;
mod sources;
#[doc(hidden)]
pub mod spoe;
mod start_error;
mod state;
mod state_file;
#[cfg(feature = "otlp")]
pub mod telemetry;
#[cfg(not(feature = "otlp"))]
#[path = "telemetry/off.rs"]
pub mod telemetry;
pub mod throttle;
mod tls;
pub mod trace;
mod watchers;
pub mod what_if;

pub use flow::PushError;
#[cfg(feature = "grpc")]
#[doc(hidden)]
pub use grpc::InProcess;
pub use open_files::{OpenFiles, raise_open_files};
pub use options::Options;
pub use server::{Ended, Order, Server};
pub use shutdown::signals;
pub use start_error::{Lacks, StartError, StoreOptionError};
pub use state_file::StatePathError;
#[doc(hidden)]
pub use state_file::check_and_restore;
pub use tidegate_redis::Timeout;
pub use tls::{TlsError, TlsFiles};
pub use watchers::Watchers;
