//! HTTP/1.1 and HTTP/2 with JSON, on two listeners: the data plane (limits for programs in any language) and the control plane
//! (`--admin`: metrics, rules, blocks, resets). Both serve health checks.
//!
//! To add a path, add a row to [`ROUTES`] in `table`, which says where it is served, and an arm in `routes` (data) or `admin`
//! (control).
//!
//! `credentials` reads a client's token or certificate, and `permit` refuses requests that they do not cover. `body` reads a
//! body within its bounds, `ask` and `descriptors` parse it, and `query` parses the query of a GET. `routes` calls the handler
//! of a path, with the `App` that all handlers share; `answer` and `problem` write responses. `top` serves the heavy keys,
//! `history` the decisions over time, `overview` the state of all limits, `trace` the requests of traced keys, `what_if` what
//! other rules would have decided on them, and `rules_file` the rules file. `serve` handles the connections.

mod admin;
mod answer;
mod app;
mod ask;
mod body;
mod credentials;
mod descriptors;
mod flow;
mod history;
pub(crate) mod hosts;
mod orders;
mod overview;
mod permit;
mod problem;
mod query;
mod reserve;
mod routes;
mod rules_file;
mod rules_thread;
mod serve;
mod servers;
mod table;
mod top;
mod trace;
mod what_if;

pub(crate) use answer::{policy_field, state_field};
pub(crate) use app::App;
pub use ask::MAX_ALL;
pub use body::MAX_BODY;
pub(crate) use overview::health_name;
pub(crate) use permit::Viewer;
pub(crate) use query::{QueryError, texts as query_fields};
pub(crate) use routes::Paths;
pub(crate) use rules_thread::RulesThread;
pub(crate) use serve::serve;
pub use table::{Endpoint, Plane, ROUTES, Route, Served};
#[cfg(feature = "grpc")]
pub(crate) use {body::drain, credentials::http_rights};
