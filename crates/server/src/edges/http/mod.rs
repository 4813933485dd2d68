//! HTTP/1.1 and HTTP/2 with JSON, on two listeners: the data plane (limits for programs in any
//! language) and the control plane (`--admin`: metrics, rules, blocks, resets). Both serve health
//! checks.
//!
//! To add a path, add a row to [`ROUTES`] in `table`, which says where it is served, and an arm in
//! `routes` (data) or in the room `control` (control), which implements `ControlPaths`.
//!
//! `permit` refuses requests that a client's token or certificate does not cover. `body` reads a body within its bounds, `ask` and `descriptors` parse it, and `query`
//! parses the query of a GET. `routes` calls the handler of a path, with the `App` that all
//! handlers share; `answer` and `problem` write responses, and `stats` counts them. `serve` handles
//! the connections.

pub(crate) mod answer;
mod app;
pub(crate) mod ask;
pub(crate) mod body;
mod descriptors;
pub(crate) mod hosts;
pub(crate) mod permit;
pub(crate) mod problem;
pub(crate) mod query;
mod reserve;
mod routes;
mod serve;
mod stats;
mod table;
mod wait;

pub(crate) use answer::{policy_field, state_field};
pub(crate) use app::App;
pub use ask::MAX_ALL;
pub use body::MAX_BODY;
pub(crate) use routes::{ControlPaths, Paths};
pub(crate) use serve::{ClientAddress, serve};
pub(crate) use stats::HttpStats;
pub use table::{Endpoint, Plane, ROUTES, Route, Served};
