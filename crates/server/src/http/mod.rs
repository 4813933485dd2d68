//! HTTP/1.1 with JSON, on two listeners: the data plane (limits for programs in any language) and the control plane (`--admin`:
//! metrics, rules, blocks, resets). Both answer about the server's health.
//!
//! A new path is a row of [`ROUTES`], which says where it is served, and an arm in `routes` (data) or `admin` (control).
//!
//! `credentials` reads who asks, `ask` and `descriptors` read what a body asks and `query` the query of a GET. `routes` says which
//! path does what, `answer` and `problem` write what comes back. `top` answers which keys are heavy, `history` what was decided
//! when, `overview` how all limits are.
//! `serve` has the connections: `slots` says how many there may be and who gives way, `write_deadline` how long an answer
//! waits for a client that does not read.

mod admin;
mod answer;
mod ask;
mod credentials;
mod descriptors;
mod history;
mod overview;
mod problem;
mod query;
mod routes;
mod serve;
mod slots;
mod top;
mod write_deadline;

pub use ask::MAX_ALL;
pub(crate) use overview::health_name;
pub(crate) use query::texts as query_fields;
#[cfg(feature = "grpc")]
pub(crate) use routes::drain;
pub(crate) use routes::{App, router};
pub use routes::{Endpoint, MAX_BODY, Plane, ROUTES, Route, Served};
pub(crate) use serve::{HttpConfig, serve};
#[cfg(feature = "grpc")]
pub(crate) use {
    credentials::http_rights,
    slots::{Admission, Calls, Slots},
    write_deadline::WriteDeadline,
};
