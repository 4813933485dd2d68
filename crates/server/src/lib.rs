//! The Tidegate server: limits for programs in any language, over HTTP, the Redis protocol, gRPC
//! and HAProxy's SPOP.
//!
//! ```text
//! edges: HTTP, SPOP ─┬─► tidegate-service ─► limits ─┬─ memory ─► tidegate-limiter
//! RESP, gRPC ────────┘                               └─ shared ─► tidegate-redis
//! ```
//!
//! A module imports only modules below it (`scripts/layers.py` checks it):
//!
//! | module | what it does |
//! |---|---|
//! | `serve` | starts, reloads and stops the server, and writes the state file |
//! | `control` | the control plane: its paths, the dashboard, and the programs that report to it |
//! | `edges` | HTTP and SPOP: parse, ask the service, print |
//!
//! The Redis protocol is in `tidegate-resp`, gRPC and descriptors in `tidegate-envoy`, Sentinel's
//! clients in `tidegate-sentinel`. An algorithm decides; the service only finds the limit that a
//! request names and asks it.
//! [`Server`] connects the parts, and `tidegate serve` is its command line.
//!
//! ```
//! use tidegate_server::{Options, Order, Server};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let server = Server::start(Options::default()).await?;
//! println!("http://{}", server.address("http").expect("HTTP is on by default"));
//! let (orders, receiver) = tokio::sync::mpsc::channel(1);
//! orders.send(Order::Stop).await?;
//! server.run(receiver).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the command is the caller"
)]

mod control;
mod edges;
mod serve;

pub use edges::http;
#[doc(hidden)]
pub use serve::state_file::check_and_restore;
pub use serve::{
    open_files::{OpenFiles, connections_within, raise_open_files},
    options::Options,
    server::{Ended, Order, Server},
    shutdown::signals,
    start_error::{StartError, StoreOptionError},
    state_file::StatePathError,
};
pub use tidegate_envoy::{
    config as envoy, descriptors,
    xds::{self, XdsSource, XdsSourceError},
};
pub use tidegate_export::{
    statsd::{StatsdAddress, StatsdAddressError},
    telemetry,
};
pub use tidegate_headers::Vendor;
pub use tidegate_listen::{
    access,
    security::{Exposed, Lacks},
    tls::{TlsError, TlsFiles},
};
pub use tidegate_redis::{Mode, Timeout};
pub use tidegate_resp as resp;
#[cfg(feature = "sentinel")]
pub use tidegate_sentinel::cluster;
pub use tidegate_service::{
    decide::{
        counts, limits, observers::DecisionObservers, reservations, service, shared, throttle,
        waits,
    },
    files::LockError,
    flow::PushError,
    observe::{heavy, history, trace, usage, what_if},
    rules, shown,
};
