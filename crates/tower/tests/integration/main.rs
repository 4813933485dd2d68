//! The promises of the middleware.

mod axum;
mod concurrency;
mod gate;
mod grpc;
mod headers;
mod ids;
mod keys;
mod limits;
mod reqwest;
mod shared;
mod signals;
mod usage;
