//! Starting, reloading and stopping the server, and the state that outlives it.

pub(crate) mod background;
pub(crate) mod follow;
#[cfg(feature = "grpc")]
mod for_envoy;
#[cfg(feature = "sentinel")]
mod for_sentinel;
mod listeners;
mod metrics;
pub(crate) mod open_files;
pub(crate) mod options;
mod parts;
pub(crate) mod reload;
pub(crate) mod server;
pub(crate) mod shutdown;
pub(crate) mod sources;
pub(crate) mod start_error;
pub(crate) mod state;
pub(crate) mod state_file;
