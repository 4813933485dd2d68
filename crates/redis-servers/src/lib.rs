//! Redis servers that a test starts on free ports, disturbs and stops.
//!
//! Every process is killed when its handle is dropped. Nothing here waits for a fixed time:
//! conditions are polled up to [`PATIENCE`], so a busy machine makes a test slow but not wrong.

#![allow(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "tests are the callers"
)]

mod clock;
mod cluster;
mod proxy;
mod resp;
mod sentinel;
mod server;

use std::time::Duration;

pub use cluster::Cluster;
pub use proxy::Proxy;
pub use resp::{Reply, ask};
pub use sentinel::Sentinel;
pub use server::{Server, free_port};

/// How long a condition may take before the test fails.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Polls until the condition is true.
///
/// # Panics
/// When it is still false after [`PATIENCE`].
pub fn eventually(what: &str, mut yes: impl FnMut() -> bool) {
    // Counts pauses instead of time, so that a process that was frozen for a while still has its
    // time left.
    let pause = Duration::from_millis(10);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if yes() {
            return;
        }
        std::thread::park_timeout(pause);
    }
    panic!("still false after {PATIENCE:?}: {what}");
}
